"""Copy of a topic to another bucket, complete and verified, resumable after any interruption.

The copy is an ordinary bucket: the same topic names and ids, offsets, batches, indexes and leader epochs, with
manifests of its own. A manager, Spark or a reader can use it afterwards. The source is only read. Its manager keeps
running, and another run copies the segments that have arrived since.

1. `plan_copy` compares both manifests and lists the entries that the copy lacks, with requests, bytes and dollars.
2. `copy_entry` copies one of them, in any process: read and checked, uploaded and verified, bytes compared by checksum.
3. `commit_entries` adds entries to the copy, in the order of offsets. The entries of a cleaned partition are committed
   all at once: the cleaner removed older records in favour of newer ones of the same key, so a copy without the newest
   entries would lack keys.
4. `finish_copy` sets the log start offset, and `compare` lists the differences.

The copy has one writer: each run raises its epoch. A run refuses a partition that another writer wrote to.

| a crash or an error after | leaves in the copy | outcome |
|---|---|---|
| the epoch | a manifest without entries, or with the entries of earlier runs | the next run continues there |
| some uploads | objects that no manifest names | orphans once the next run has taken over |
| a commit, its reply lost | the new manifest | the next plan finds the entries there |
| all entries, no log start offset | perhaps entries that have expired in the source | the next run finishes |

Views are not copied: they are rebuilt from the log. Data is encrypted again, under the key ids of the entries or a
requested one, so the key ring must have these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from local.errors import Conflict, InvalidRequest, NotFound
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import request_cost
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.co_writer import CoWriterLog
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import add_segments, expire_segments
from remote.manifest.sealing import keyed
from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import CHUNK_BYTES
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.segment_upload import copy_segment
from remote.store import ObjectStore
from tiered.jobs.joined_segments import check_same_bytes, joined
from tiered.jobs.rewriting import RewriteCost, cost_of
from tiered.node.writer_ids import COPY
from tiered.stores.object_encoding import Keeping, SettingsOf, kept_as, own_settings

ENTRIES_A_MANIFEST = 64
EPOCHS_APART = 1 << 20  # writer changes that the source may make before its leader epochs reach the copy's
_SAME = ("base_offset", "next_offset", "size_bytes", "record_count", "content_crc32c", "epochs",
         "max_timestamp_ms", "min_timestamp_ms")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEntry:
    """One segment to copy, and its object encoding in the target (`keeping`). It can be pickled."""

    row: SegmentEntry
    keeping: Keeping


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """The entries missing in one partition's copy. `at_once`: they are committed together."""

    name: RemotePartitionName
    now_ms: int
    rows: tuple[CopyEntry, ...]
    log_start_offset: int
    properties: dict[str, str]
    at_once: bool
    cost: RewriteCost

    @property
    def size_bytes(self) -> int:
        return sum(each.row.size_bytes for each in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """Result of copying one partition: `rows` were copied.

    `behind` entries have arrived in the source since. `differences` must be empty; each one is a fault.
    """

    name: RemotePartitionName
    rows: int
    size_bytes: int
    behind: int = 0
    differences: tuple[str, ...] = ()
    is_complete: bool = True


def plan_copy(
    source: ObjectStore,
    target: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    codec: str | None = None,
    key_id: str | None = None,
    storage_class: str | None = None,
    prices: PriceTable = BUILT_IN,
    settings: SettingsOf = own_settings,
) -> CopyPlan:
    """Plan the copy of one partition.

    With None, codec and key stay as in the source, and the storage class is the target's default. The objects of a
    plaintext entry are encrypted if `settings` of the topic name a key.

    Raises NotFound if the source has no manifest, InvalidRequest if both stores are the same. Raises Conflict if
    another writer writes to the target, or the target holds other ranges than the source.
    """
    if source.url == target.url:
        raise InvalidRequest("copying to another bucket, it is the same", store=source.url)
    head, rows = _rows(source, name)
    reached = _reached(source, target, name, rows)
    known = settings(name.topic, head.properties)
    due = []
    for row in rows:
        if row.base_offset < reached:
            continue
        kept = kept_as(row, known)
        keeping = Keeping(
            codec=kept.codec if codec is None else codec,
            key_id=kept.key_id if key_id is None else key_id,
            storage_class=storage_class,
            level=kept.level,
        )
        due.append(CopyEntry(row=row, keeping=keeping))
    at_once = any(each.row.cleaned_through is not None for each in due)
    return CopyPlan(
        name=name,
        now_ms=now_ms,
        rows=tuple(due),
        log_start_offset=head.log_start_offset,
        properties=dict(head.properties),
        at_once=at_once,
        cost=_cost(due, at_once=at_once, prices=prices),
    )


def begin_copy(source: ObjectStore, target: ObjectStore, plan: CopyPlan) -> MetadataLog:
    """Become the writer of the copy. Raises Conflict if the partition has another writer."""
    log = MetadataLog(target, plan.name.prefix)
    known = log.load(exact=True)
    _check_ours(source, target, plan.name, known)
    name = plan.name
    newest = MetadataLog(source, name.prefix).refresh(exact=True)
    chosen = (each.keeping.key_id for each in plan.rows if each.keeping.key_id is not None)
    log.become_writer(
        _writer(source),
        plan.now_ms,
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        properties=plan.properties,
        first_epoch=newest.epoch + EPOCHS_APART,
        seal_key_id=next(chosen, newest.seal_key_id),
    )
    return log


def copy_entry(
    source: ObjectStore,
    target: ObjectStore,
    plan: CopyPlan,
    each: CopyEntry,
    *,
    epoch: int,
    keys: KeyRing = NO_KEYS,
    chunk_bytes: int = CHUNK_BYTES,
) -> SegmentEntry:
    """Read, check, upload and verify one segment under the copy's `epoch`; return the entry to commit.

    Raises NotFound for an entry that expired since the plan: plan again. Raises Corrupt for a damaged segment: repair
    it first.
    """
    remote = RemotePartition(source, plan.name.prefix, ChunkCache(), read_ahead_chunks=0, keys=keys)
    row = copy_segment(
        target,
        plan.name.prefix,
        joined(remote, [each.row]),
        epoch=epoch,
        now_ms=plan.now_ms,
        object_encoding=each.keeping.object_encoding(keys),
        chunk_bytes=chunk_bytes,
    )
    check_same_bytes(row, [each.row])
    return replace(row, made_by=each.row.made_by)


def commit_entries(
    target: ObjectStore, plan: CopyPlan, rows: Sequence[SegmentEntry], *, epoch: int, now_ms: int
) -> None:
    """Add copied entries, ascending. May be repeated. Raises Fenced if another run has taken over."""
    if not rows:
        return
    log = CoWriterLog(target, plan.name.prefix)
    log.join(epoch=epoch)
    log.commit(add_segments(rows), now_ms)


def finish_copy(target: ObjectStore, plan: CopyPlan, *, epoch: int, now_ms: int) -> None:
    """Set the copy's log start offset to the source's, after all entries are committed."""
    log = CoWriterLog(target, plan.name.prefix)
    log.join(epoch=epoch)
    log.commit(expire_segments([], now_ms=now_ms, log_start_offset=plan.log_start_offset), now_ms)


def run_copy(
    source: ObjectStore,
    target: ObjectStore,
    plan: CopyPlan,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing = NO_KEYS,
    entries_a_manifest: int = ENTRIES_A_MANIFEST,
    chunk_bytes: int = CHUNK_BYTES,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> CopyOutcome:
    """Carry out a plan in this process and compare both buckets.

    If `should_stop` returns true, the function commits the copied entries (unless `at_once`) and returns an incomplete
    outcome.
    """
    source, target = keyed(source, keys), keyed(target, keys)
    epoch = begin_copy(source, target, plan).epoch
    due, count, size = iter(plan.rows), 0, 0
    while part := list(islice(due, len(plan.rows) if plan.at_once else entries_a_manifest)):
        done: list[SegmentEntry] = []
        for each in part:
            if should_stop():
                break
            done.append(copy_entry(source, target, plan, each, epoch=epoch, keys=keys, chunk_bytes=chunk_bytes))
            progress(each.row.size_bytes)
        is_whole = len(done) == len(part)
        if is_whole or not plan.at_once:
            commit_entries(target, plan, done, epoch=epoch, now_ms=now_ms())
            count, size = count + len(done), size + sum(row.size_bytes for row in done)
        if not is_whole:
            return CopyOutcome(name=plan.name, rows=count, size_bytes=size, is_complete=False)
    finish_copy(target, plan, epoch=epoch, now_ms=now_ms())
    behind, differences = compare(source, target, plan.name)
    return CopyOutcome(name=plan.name, rows=count, size_bytes=size, behind=behind, differences=tuple(differences))


def compare(source: ObjectStore, target: ObjectStore, name: RemotePartitionName) -> tuple[int, list[str]]:
    """Return (entries that the copy lacks at its end, a sentence for each other difference).

    Only the manifests are read. They were checked against the bytes during the copy; `tiered.health.scrub` reads all
    bytes again.
    """
    head, rows = _rows(source, name)
    copied, theirs = _rows(target, name)
    found = []
    by_base = {row.base_offset: row for row in theirs}
    end = copied.entries_end_offset
    for row in rows:
        if row.base_offset >= end:
            continue
        there = by_base.pop(row.base_offset, None)
        where = f"offsets {row.base_offset} to {row.next_offset - 1}"
        if there is None:
            found.append(f"{where} are not in the copy")
            continue
        other = [name for name in _SAME if getattr(row, name) != getattr(there, name)]
        found += [f"{where}: {field}={getattr(row, field)} there {getattr(there, field)}" for field in other]
        if (there.cleaned_through or 0) > (row.cleaned_through or 0):
            found.append(f"{where}: the copy says it is cleaner than the source")
    alive = [row for row in by_base.values() if row.next_offset > head.log_start_offset]
    found += [f"offsets {row.base_offset} to {row.next_offset - 1} are in the copy alone" for row in alive]
    return sum(row.base_offset >= end for row in rows), found


def _rows(store: ObjectStore, name: RemotePartitionName) -> tuple[Head, list[SegmentEntry]]:
    log = MetadataLog(store, name.prefix)
    head = log.refresh(exact=True)
    if head.deleted_ms is not None:
        raise NotFound("copying a topic, it was deleted", topic=name.topic, deleted_ms=head.deleted_ms)
    return head, log.ask(head, lambda index: list(index.rows()))


def _reached(source: ObjectStore, target: ObjectStore, name: RemotePartitionName, rows: Sequence[SegmentEntry]) -> int:
    """Return the offset up to which the copy has entries."""
    head = MetadataLog(target, name.prefix).load(exact=True)
    _check_ours(source, target, name, head)
    if head is None:
        return 0
    reached = head.entries_end_offset
    if any(row.base_offset < reached < row.next_offset for row in rows):
        facts = {"topic": name.topic, "partition": name.partition, "reached": reached}
        raise Conflict("going on with a copy, the source has other segments there by now: copy to a new place", **facts)
    return reached


def _check_ours(source: ObjectStore, target: ObjectStore, name: RemotePartitionName, head: Head | None) -> None:
    if head is not None and head.writer_id != _writer(source):
        facts = {"store": target.url, "topic": name.topic, "partition": name.partition, "writer": head.writer_id}
        raise Conflict("copying to another bucket, somebody else writes there", **facts)


def _writer(source: ObjectStore) -> str:
    return f"{COPY}{source.url}"


def _cost(due: Iterable[CopyEntry], *, at_once: bool, prices: PriceTable) -> RewriteCost:
    costs = [cost_of([each.row], each.keeping, prices) for each in due]
    heads = 2 + (1 if at_once else -(-len(costs) // ENTRIES_A_MANIFEST))
    return RewriteCost(
        gets=sum(each.gets for each in costs),
        puts=sum(each.puts for each in costs) + heads,
        read_bytes=sum(each.read_bytes for each in costs),
        write_bytes=sum(each.write_bytes for each in costs),
        dollars=sum(each.dollars for each in costs) + request_cost(puts=heads, prices=prices.of(None)),
    )
