"""Compare the local log with the manifest by `policies.tier_relation`; refusals become errors.

Every open asks this module; docs/explanation/diverged-logs.md lists the relations. The newest manifest is authoritative
for the committed offsets. A local log that ends before the bucket starts over at the bucket's end (`reconcile`), if the
bucket provably had all of its records.

Leader epochs distinguish two histories, unless both have one epoch: a disk was restored from an old copy of itself, and
took records while the bucket was unavailable. So `check_same_records` compares the batches at the last common offset by
their CRC32C, which covers everything but offset and leader epoch.

Batches cannot be compared if the topic is compacted, if a cleaner pass under another policy reached them on the disk,
or if the bucket cannot return the batch. Then the note on the disk decides: the offset of the first record that came
while the bucket was unavailable. If the bucket ends above that offset, another log gave these offsets.
"""

from __future__ import annotations

import logging

from local.errors import Conflict, Diverged, LogError, RemoteLost, Unavailable
from local.log import Log
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerState
from policies.tier_relation import Action, LocalTier, Relation, RemoteTier, TierVerdict, tier_relation
from remote.manifest.manifest import Manifest
from tiered.node.writer_ids import is_of_other_node
from tiered.partition.partition import Partition
from tiered.read.partition_source import PartitionSource

_log = logging.getLogger(__name__)

_ATTEMPTS = {
    Relation.DIVERGED: (
        "cannot open the partition, another writer committed other records at offsets that this "
        "disk holds; all records of this disk are retained"
    ),
    Relation.FENCED: (
        "cannot open the partition, another writer took over, and the bucket does not prove to "
        "have all records of this disk; all records of this disk are retained"
    ),
    Relation.UNPROVEN: (
        "cannot open the partition, its log ends before the bucket, and the bucket does not "
        "prove to have all records of this disk; all records of this disk are retained"
    ),
    Relation.LOST: (
        "cannot open the partition, the bucket is lost or wrong: it lacks records that this disk has dropped"
    ),
}


def local_tier(log: Log) -> LocalTier:
    return LocalTier(
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_log_start_offset,
        next_offset=log.next_offset,
        held=tuple((each.base_offset, each.next_offset) for each in log.segments(with_times=False) if each.size_bytes),
        epochs=log.epochs,
        lineage_from=log.first_known_offset,
    )


def remote_tier(log: Log, manifest: Manifest, mark: str | None) -> RemoteTier:
    return RemoteTier(
        log_start_offset=manifest.log_start_offset,
        allocated_end_offset=manifest.allocated_end_offset,
        entries=tuple(manifest.epoch_ranges),
        expired=manifest.expired_epochs,
        counts=not manifest.tier_disabled,
        is_other_writer=_is_other_writer(log, manifest, mark),
    )


def relation_of(log: Log, manifest: Manifest | None, mark: str | None = None) -> TierVerdict:
    """The relation of the log and the manifest; `manifest` None means that no manifest was ever committed."""
    return tier_relation(local_tier(log), remote_tier(log, manifest, mark) if manifest is not None else None)


def check_agreement(
    log: Log, manifest: Manifest | None, mark: str | None = None, *, takes_over: bool = False
) -> TierVerdict:
    """The verdict, if it allows the writer role. Raises RemoteLost or Diverged if it does not."""
    verdict = relation_of(log, manifest, mark)
    if not verdict.allows(Action.TAKE_OVER if takes_over else Action.TAKE_ROLE):
        raise refusal(log, manifest, verdict)
    return verdict


def refusal(log: Log, manifest: Manifest | None, verdict: TierVerdict) -> Conflict:
    facts: dict[str, object] = {
        "partition": log.partition,
        "relation": verdict.relation.value,
        "from_offset": verdict.from_offset,
        **_local_offsets(log),
        "remote_start_offset": manifest.log_start_offset if manifest is not None else "none",
        "remote_next_offset": manifest.next_offset if manifest is not None else "none",
    }
    if verdict.relation is Relation.LOST:
        facts["log_start_offset"] = log.log_start_offset
        return RemoteLost(_ATTEMPTS[Relation.LOST], **facts)
    facts["only_here"] = " ".join(f"[{start}, {end})" for start, end in verdict.only_here[:8]) or None
    facts["writer"] = manifest.writer_id if manifest is not None else None
    start = verdict.only_here[0][0] if verdict.only_here else log.local_log_start_offset
    facts["rescue"] = _rescue_command(log, start)
    return Diverged(_ATTEMPTS[verdict.relation], **facts)


def fenced_before(log: Log, by: str) -> Diverged:
    what = (
        "cannot open the partition, another writer took over before the restart, and the bucket was not read since; "
        "all records of this disk are retained"
    )
    facts = {"partition": log.partition, "relation": Relation.FENCED.value, "writer": by, **_local_offsets(log)}
    return Diverged(what, **facts, rescue=_rescue_command(log, log.local_log_start_offset))


def emptied(log: Log, manifest: Manifest) -> RemoteLost:
    """The error for a bucket without the writer's earlier manifests: it was emptied or replaced."""
    what = "cannot open the partition, the bucket is lost or wrong: its first manifests are missing"
    facts = {"partition": log.partition, "relation": Relation.LOST.value, "head_sequence": manifest.sequence}
    return RemoteLost(what, **facts, **_local_offsets(log), remote_next_offset=manifest.next_offset)


def _local_offsets(log: Log) -> dict[str, int]:
    return {"local_start_offset": log.local_log_start_offset, "local_next_offset": log.next_offset}


def _rescue_command(log: Log, start: int) -> str:
    return f"`tiered consume {log.partition} --local --from {start} -o jsonl`"


def _is_other_writer(log: Log, manifest: Manifest, mark: str | None) -> bool:
    """Whether another node was the last writer. A log with records of the manifest's epoch was the writer."""
    latest = log.epochs.latest
    if latest is not None and latest >= manifest.epoch:
        return False
    return is_of_other_node(manifest.writer_id if manifest.appender_id is None else manifest.appender_id, mark)


def reconcile(log: Log, manifest: Manifest, *, now_ms: int, producers: ProducerState | None = None) -> None:
    """Make the log agree with this writer's manifest; `producers` at the bucket's end. Raises as `check_agreement`."""
    end = log.next_offset  # of the state compared here: a concurrent append that passed its check may still come
    verdict = check_agreement(log, manifest)
    if end < manifest.allocated_end_offset:
        if not verdict.allows(Action.START_OVER):
            raise refusal(log, manifest, verdict)
        what = (
            "the local log restarts at the end of the bucket: partition=%s local_next_offset=%d remote_next_offset=%d"
        )
        _log.warning(what, log.partition, end, manifest.allocated_end_offset)
        log.begin_epoch(manifest.epoch)  # before an append at the bucket's end is possible
        epochs, found = lineage(manifest), producers or ProducerState()
        log.restart_at(manifest.allocated_end_offset, epochs, now_ms=now_ms, producers=found, ends_at=end)
    if manifest.log_start_offset > log.log_start_offset:
        log.raise_log_start(manifest.log_start_offset)
    log.begin_epoch(manifest.epoch)


def lineage(manifest: Manifest) -> LeaderEpochs:
    epochs = LeaderEpochs()
    expired = ((each.epoch, each.base_offset) for each in manifest.expired_epochs if each.epoch is not None)
    for epoch, start in (*expired, *manifest.lineage):
        if epochs.latest is None or epoch > epochs.latest:
            epochs = epochs.assign(epoch, start)
    return epochs


def check_same_records(
    held: Partition, bucket: PartitionSource, manifest: Manifest, *, is_unconfirmed: bool = False
) -> None:
    """Check that both tiers hold the same batch at the last common offset. Raises Diverged or Unavailable.

    Called for logs that held records and were behind `manifest` when opened, and for logs that took records while the
    bucket was unavailable (`is_unconfirmed`). `bucket` is the partition without its log. Raises Diverged in two more
    cases, because the records may be the only copy:

    - Batches cannot be compared, and records came while the bucket was unavailable at offsets that the bucket has.
    - The log is unconfirmed, the bucket expired that batch, and the bucket's log start rose without this disk.
    """
    log = held.log
    at = min(log.next_offset, manifest.entries_end_offset) - 1
    start = manifest.log_start_offset
    if is_unconfirmed and log.local_log_start_offset < start and at < start and log.log_start_offset < start:
        raise _unproven(log, manifest, log.local_log_start_offset)
    compared = _compare_at(held, bucket, manifest, at)
    if compared is False:
        verdict = TierVerdict(relation=Relation.DIVERGED, from_offset=at, only_here=((at, log.next_offset),))
        raise refusal(log, manifest, verdict)
    unconfirmed_from = log.notes.unconfirmed_from
    if compared is None and unconfirmed_from is not None and unconfirmed_from < manifest.allocated_end_offset:
        # Another log gave these offsets: this log was not the writer since, so it copied none of them.
        raise _unproven(log, manifest, max(unconfirmed_from, log.local_log_start_offset))


def _unproven(log: Log, manifest: Manifest, from_offset: int) -> Conflict:
    only_here = ((from_offset, log.next_offset),)
    verdict = TierVerdict(relation=Relation.UNPROVEN, from_offset=from_offset, only_here=only_here)
    return refusal(log, manifest, verdict)


def _compare_at(held: Partition, bucket: PartitionSource, manifest: Manifest, at: int) -> bool | None:
    from local.format.batch_header import read_header
    from tiered.read.reader import TieredReader

    log = held.log
    first = max(manifest.log_start_offset, log.cleaner_reach, log.local_log_start_offset)
    if at < first or held.rules.cleanup_compact or log.cleaner_offset:
        return None
    try:
        ours = read_header(log.read(at, 1))
        entry, _ = bucket.entry_at(at)
        if ours is None or ours.base_offset > at or entry is None:
            return None
        if entry.cleaned_through is not None or entry.is_redacted:  # a job changed the batches of the bucket
            return None
        theirs = read_header(next(TieredReader(lambda _: bucket).batches(held.name, at, at + 1), memoryview(b"")))
    except Unavailable:
        raise
    except LogError as error:
        _log.warning("cannot compare the ends of disk and bucket: partition=%s error=%s", held.name, error)
        return None
    return None if theirs is None else (theirs.base_offset, theirs.crc) == (ours.base_offset, ours.crc)
