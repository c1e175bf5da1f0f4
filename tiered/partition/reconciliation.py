"""The local log and the manifest of a partition as facts for `policies.tier_relation`, and its verdict as an error.

Every open asks here, for writing and read-only alike. What each relation means and allows:
docs/explanation/diverged-logs.md. The bucket's newest head is the truth about what is committed. A local log that ends
before it starts over where the bucket ends (`reconcile`), but only where the bucket proves to have had all its records.

Two histories are told apart by their leader epochs. Not so where both are of one epoch: a disk was put back from an old
copy of itself, and took records while the bucket was out of reach, at offsets which the bucket has other records for.
So the batches at the last offset that both have are compared (`check_same_records`), by the CRC32C that they bear: it
covers all but offset and leader epoch, and copies are the same bytes. Cleaned segments are not: batches of a compacted
topic cannot be compared, nor what a pass has reached on the disk under another policy, nor where the bucket cannot show
the batch (damage, a missing key). There the note of the disk decides, which says at which offset the records begin that
came while the bucket was out of reach: where the bucket goes beyond it, another log gave these offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from local.errors import Conflict, Diverged, LogError, RemoteLost, Unavailable
from local.log import Log
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerState
from policies.tier_relation import Action, LocalTier, Relation, RemoteTier, TierVerdict, tier_relation
from remote.manifest.manifest import Head
from tiered.node.writer_ids import is_of_other_node

if TYPE_CHECKING:
    from tiered.partition.partition import Partition
    from tiered.read.partition_source import PartitionSource

_log = logging.getLogger(__name__)

_ATTEMPTS = {
    Relation.DIVERGED: "opening a partition, another writer committed other records at offsets that this disk holds; "
    "all records of this disk are kept",
    Relation.FENCED: "opening a partition, another writer took over, and this disk holds records that the bucket does "
    "not prove to have; all records of this disk are kept",
    Relation.UNPROVEN: "opening a partition, its log ends before the bucket and holds records that the bucket does not "
    "prove to have; all records of this disk are kept",
    Relation.LOST: "opening a partition, the bucket is lost or wrong: it lacks records that this disk has dropped",
}


def local_tier(log: Log) -> LocalTier:
    """The facts of a local log."""
    return LocalTier(
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_log_start_offset,
        next_offset=log.next_offset,
        held=tuple((each.base_offset, each.next_offset) for each in log.segments(with_times=False) if each.size_bytes),
        epochs=log.epochs,
        lineage_from=log.first_known_offset,
    )


def remote_tier(log: Log, head: Head, mark: str | None) -> RemoteTier:
    """The facts of a manifest, as seen from a node with this mark (`tiered.node.writer_ids`) and this log."""
    return RemoteTier(
        log_start_offset=head.log_start_offset,
        taken_upto=head.taken_upto,
        entries=tuple(head.epoch_ranges),
        expired=head.expired_epochs,
        counts=not head.given_up,
        is_other_writer=_is_other_writer(log, head, mark),
    )


def judge(log: Log, head: Head | None, mark: str | None = None) -> TierVerdict:
    """How the log and the manifest relate; None: no manifest was ever committed."""
    return tier_relation(local_tier(log), remote_tier(log, head, mark) if head is not None else None)


def check_agreement(log: Log, head: Head | None, mark: str | None = None, *, takes_over: bool = False) -> TierVerdict:
    """The verdict, where it allows to take the writer role. Raises RemoteLost and Diverged where it does not, with the
    offsets of both sides and what to do. `takes_over`: a person asked for the role."""
    verdict = judge(log, head, mark)
    if not verdict.allows(Action.TAKE_OVER if takes_over else Action.TAKE_ROLE):
        raise refusal(log, head, verdict)
    return verdict


def refusal(log: Log, head: Head | None, verdict: TierVerdict) -> Conflict:
    """The error of a relation that allows no writer."""
    facts: dict[str, object] = {
        "partition": log.partition,
        "relation": verdict.relation.value,
        "from_offset": verdict.from_offset,
        "local_start_offset": log.local_log_start_offset,
        "local_next_offset": log.next_offset,
        "remote_start_offset": head.log_start_offset if head is not None else "none",
        "remote_next_offset": head.next_offset if head is not None else "none",
    }
    if verdict.relation is Relation.LOST:
        facts["log_start_offset"] = log.log_start_offset
        return RemoteLost(_ATTEMPTS[Relation.LOST], **facts)
    facts["only_here"] = " ".join(f"[{start}, {end})" for start, end in verdict.only_here[:8]) or None
    facts["writer"] = head.writer_id if head is not None else None
    facts["rescue"] = rescue_command(log, verdict)
    return Diverged(_ATTEMPTS[verdict.relation], **facts)


def fenced_before(log: Log, by: str) -> Diverged:
    """The error of a log that another writer fenced before the restart, as long as the bucket was not asked since."""
    return Diverged(
        "opening a partition, another writer took over before the restart, and the bucket has not been asked since; "
        "all records of this disk are kept",
        partition=log.partition,
        relation=Relation.FENCED.value,
        writer=by,
        local_start_offset=log.local_log_start_offset,
        local_next_offset=log.next_offset,
        rescue=f"`tiered consume {log.partition} --local --from {log.local_log_start_offset} -o jsonl`",
    )


def emptied(log: Log, head: Head) -> RemoteLost:
    """The error of a bucket that was emptied or replaced under a writer: it has only what was committed afterwards."""
    return RemoteLost(
        "opening a partition, the bucket is lost or wrong: its manifests begin after the first ones were written",
        partition=log.partition,
        relation=Relation.LOST.value,
        head_sequence=head.sequence,
        local_start_offset=log.local_log_start_offset,
        local_next_offset=log.next_offset,
        remote_next_offset=head.next_offset,
    )


def rescue_command(log: Log, verdict: TierVerdict) -> str:
    """What prints the records that only this disk holds."""
    at = verdict.only_here[0][0] if verdict.only_here else log.local_log_start_offset
    return f"`tiered consume {log.partition} --local --from {at} -o jsonl`"


def _is_other_writer(log: Log, head: Head, mark: str | None) -> bool:
    """Whether another node was the last writer with a log of its own. A log that has records of the manifest's epoch or
    a later one was the writer then, whatever the names say."""
    latest = log.epochs.latest
    if latest is not None and latest >= head.epoch:
        return False
    return is_of_other_node(head.writer_id if head.appender_id is None else head.appender_id, mark)


def reconcile(
    log: Log,
    head: Head,
    *,
    now_ms: int,
    producers: Callable[[], ProducerState] = ProducerState,
) -> None:
    """Make the local log agree with the bucket's newest head, which is this writer's own. Raises as `check_agreement`.

    `producers` are those of all that the bucket holds; asked for where the log starts over at its end.
    """
    end = log.next_offset  # of what is looked at here: an append that was let in before may come yet
    verdict = check_agreement(log, head)
    if end < head.taken_upto:
        if not verdict.allows(Action.START_OVER):
            raise refusal(log, head, verdict)
        _log.warning(
            "local log starts over at the bucket's end: partition=%s local_next_offset=%d remote_next_offset=%d",
            log.partition,
            end,
            head.taken_upto,
        )
        log.begin_epoch(head.epoch)  # before anybody can append at the bucket's end
        log.restart_at(head.taken_upto, lineage(head), now_ms=now_ms, producers=producers(), ends_at=end)
    if head.log_start_offset > log.log_start_offset:
        log.raise_log_start(head.log_start_offset)
    log.begin_epoch(head.epoch)


def lineage(head: Head) -> LeaderEpochs:
    """The leader epochs of everything that the bucket holds, and of what it held before."""
    epochs = LeaderEpochs()
    expired = ((each.epoch, each.base_offset) for each in head.expired_epochs if each.epoch is not None)
    for epoch, start in (*expired, *head.lineage):
        if epochs.latest is None or epoch > epochs.latest:
            epochs = epochs.assign(epoch, start)
    return epochs


def check_same_records(held: Partition, bucket: PartitionSource, head: Head, *, is_unconfirmed: bool = False) -> None:
    """Raises Diverged where the bucket has another batch at the last offset that both have, and Unavailable.

    Where batches cannot be compared it raises Diverged for records that came while the bucket was out of reach, at
    offsets that the bucket has: they may be the only copy.

    `bucket` is the partition without its log, `head` its newest head. For a log that was behind `head` when it was
    opened and held something, and for one that took records while the bucket was out of reach (`is_unconfirmed`). Any
    other log is worth no read. Raises Diverged too for an unconfirmed log where the bucket expired that batch, and its
    log start rose without this disk.
    """
    log = held.log
    at = min(log.next_offset, head.rows_next_offset) - 1
    start = head.log_start_offset
    if is_unconfirmed and log.local_log_start_offset < start and at < start and log.log_start_offset < start:
        raise _unproven(log, head, log.local_log_start_offset)
    compared = _compare_at(held, bucket, head, at)
    if compared is False:
        verdict = TierVerdict(relation=Relation.DIVERGED, from_offset=at, only_here=((at, log.next_offset),))
        raise refusal(log, head, verdict)
    unconfirmed_from = log.unconfirmed_from
    if compared is None and unconfirmed_from is not None and unconfirmed_from < head.taken_upto:
        # Another log gave these offsets: this one had no writer role since, so it copied none of them.
        raise _unproven(log, head, max(unconfirmed_from, log.local_log_start_offset))


def _unproven(log: Log, head: Head, from_offset: int) -> Conflict:
    verdict = TierVerdict(
        relation=Relation.UNPROVEN, from_offset=from_offset, only_here=((from_offset, log.next_offset),)
    )
    return refusal(log, head, verdict)


def _compare_at(held: Partition, bucket: PartitionSource, head: Head, at: int) -> bool | None:
    """Whether disk and bucket hold the same batch at an offset; None where the two cannot be compared."""
    from local.format.batch_header import read_header
    from tiered.read.reader import TieredReader

    log = held.log
    first = max(head.log_start_offset, log.cleaner_reach, log.local_log_start_offset)
    if at < first or held.rules.cleanup_compact or log.cleaner_offset:
        return None
    try:
        ours = read_header(log.read(at, 1))
        row, _ = bucket.row_at(at)
        if ours is None or ours.base_offset > at or row is None or row.cleaned_through is not None:
            return None
        theirs = read_header(next(TieredReader(lambda _: bucket).batches(held.name, at, at + 1), memoryview(b"")))
    except Unavailable:
        raise
    except LogError as error:
        _log.warning("disk and bucket cannot be compared where both end: partition=%s error=%s", held.name, error)
        return None
    return None if theirs is None else (theirs.base_offset, theirs.crc) == (ours.base_offset, ours.crc)
