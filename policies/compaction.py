"""Which compacted log is cleaned, when, which part of it, and in which order.

Source: `LogCleanerManager.grabFilthiestCompactedLog`, `cleanableOffsets`, `maxCompactionDelay`. Cleaning precedes
copying: only segments wholly below the checkpoint of a pass are uploaded (`policies.tiering`).

| section | range |
|---|---|
| clean | below the first dirty offset: the cleaner's checkpoint, or the log start if the checkpoint is out of range |
| cleanable | from there to the first uncleanable offset, whole segments |
| uncleanable | above the last stable offset, younger than `min.compaction.lag.ms`, the active segment |

A log is eligible when one of these holds:

- cleanable / (clean + cleanable) exceeds `min.cleanable.dirty.ratio`;
- one of its records has waited longer than `max.compaction.lag.ms`;
- its last pass was cancelled, or its buffer was too small. Nothing of such a log is copied until a pass has read
  the whole range (`PartitionSnapshot.clean_cut`).

**Order.** Kafka always cleans the filthiest log first, so a log of medium dirt can wait forever. Here each maintenance
pass that skips an eligible log raises its rank by ``1 / AGING_ROUNDS`` of a ratio. Bound: with n eligible logs and k
cleaned per maintenance pass, each log is cleaned within ``AGING_ROUNDS + (n - 1) // k`` maintenance passes, for any
appends. Proof: a dirty ratio is above 0 and at most 1. Count passes from the start of a log's wait. Another log that
is cleaned in pass AGING_ROUNDS or later ranks below the waiting log from then on: once per log at most.

**Recompaction.** A segment that is on both tiers is cleaned again with the local log. Its entry keeps the old records,
and so every tombstone above it stays (I5: a tombstone is removed once all entries below it are clean past it). Both
decisions need entries that a local segment *tiles exactly*: from the base of the first entry to the next offset of the
last one, without a gap.

| the local segment | decision |
|---|---|
| lost enough | `ReplaceRemote`: it is uploaded, and one entry replaces the entries it tiles |
| lost less | none; entries and tombstones stay until it has lost enough, or retention expires the entries |
| lost no record | `AdvanceCleanedOffset`: the entries are as clean as the disk, one commit records it |
| lost less or none, and a job wrote an entry (`made_by`) | none: entry and segment may have lost different records |
| any, and a job erased records of an entry, or may have (`is_redacted`) | none: the segment may still have them |

"Enough" means both `remote.recompaction.min.reduction.ratio` and `remote.recompaction.min.saved.bytes`. Entries are
replaced whole or not at all. Nothing happens before the bucket holds all clean records
(`PartitionSnapshot.clean_cut`): an older record may have been removed because of a newer one that only the disk has.

Cost: with the default ratio of 0.5 all uploads together stay below twice the first one. A replacement is three PUTs,
the price of 1 MiB for three weeks (S3 Standard).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import attrgetter

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.decisions import Action, AdvanceCleanedOffset, CleanLog, Code, Deferral, ReplaceRemote, put_off
from policies.formatting import format_ms
from policies.snapshot import PartitionSnapshot
from remote.manifest.view import tombstone_bound
from remote.segment_entry import SegmentEntry

AGING_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToClean:
    """A compacted log as the cleaner sees it. Bytes are of ``.log`` files, offsets half open."""

    partition: TopicPartition
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int  # a segment that contains the checkpoint counts once, here
    uncleanable_bytes: int
    min_dirty_ratio: float
    delay_ms: int  # time since the oldest dirty record passed `max.compaction.lag.ms`; 0 before
    is_unfinished: bool = False  # an earlier pass removed records because of newer ones that are still dirty

    @property
    def dirty_ratio(self) -> float:
        return dirty_share(self.cleanable_bytes, self.clean_bytes)

    @property
    def is_eligible(self) -> bool:
        is_dirty = is_dirty_enough(self.cleanable_bytes, self.clean_bytes, self.min_dirty_ratio)
        return is_dirty or (self.cleanable_bytes > 0 and (self.delay_ms > 0 or self.is_unfinished))


def dirty_share(dirty_bytes: float, clean_bytes: float) -> float:
    """The dirty share, 0..1; 0 without bytes."""
    return dirty_bytes / max(1, clean_bytes + dirty_bytes)


def is_dirty_enough(dirty_bytes: float, clean_bytes: float, min_ratio: float) -> bool:
    """Whether the dirty share exceeds the limit, strictly as in Kafka. False without dirty bytes."""
    return dirty_bytes > 0 and dirty_share(dirty_bytes, clean_bytes) > min_ratio


def log_to_clean(snapshot: PartitionSnapshot) -> LogToClean:
    """Return the sections that a pass over this log would find, whether or not a pass is due."""
    dirty_from, upto = first_dirty_offset(snapshot), first_uncleanable_offset(snapshot)
    clean = sum(each.size_bytes for each in snapshot.closed if each.next_offset <= dirty_from)
    cleanable = sum(each.size_bytes for each in snapshot.closed if dirty_from < each.next_offset <= upto)
    whole = sum(each.size_bytes for each in snapshot.segments)
    overdue_from_ms = _overdue_from_ms(snapshot, dirty_from)
    return LogToClean(
        partition=snapshot.partition,
        first_dirty_offset=dirty_from,
        first_uncleanable_offset=upto,
        clean_bytes=clean,
        cleanable_bytes=cleanable,
        uncleanable_bytes=whole - clean - cleanable,
        min_dirty_ratio=snapshot.rules.min_cleanable_dirty_ratio,
        delay_ms=0 if overdue_from_ms is None else max(0, snapshot.now_ms - overdue_from_ms + 1),
        is_unfinished=snapshot.cleaner_reach > dirty_from,
    )


def cleanings(snapshot: PartitionSnapshot) -> list[CleanLog]:
    """Return at most one pass; none while the cleaner is paused, or a copy reads files of the log."""
    if not snapshot.rules.cleanup_compact or snapshot.copying or not snapshot.may_clean:
        return []
    log = log_to_clean(snapshot)
    return [_cleaning(log, _reason(log, snapshot.rules.max_compaction_lag_ms))] if log.is_eligible else []


def cleaning_deferrals(snapshot: PartitionSnapshot) -> list[Deferral]:
    """Return a deferral for each closed dirty segment that `cleanings` omits; oldest first."""
    if not snapshot.rules.cleanup_compact:
        return []
    log, planned = log_to_clean(snapshot), {each.upto_offset for each in cleanings(snapshot)}
    dirty = _dirty_closed(snapshot, log.first_dirty_offset)
    waiting = [each for each in dirty if not planned or each.next_offset > max(planned)]
    return [_cleaning_deferral(snapshot, log, each) for each in waiting if not each.is_empty]


def _cleaning_deferral(snapshot: PartitionSnapshot, log: LogToClean, segment: SegmentInfo) -> Deferral:
    lag_ms, until_ms = snapshot.rules.min_compaction_lag_ms, None
    if segment.next_offset > snapshot.stable_offset:
        code, why = Code.OPEN_TRANSACTION, f"a transaction is open from offset {snapshot.stable_offset}"
    elif _is_too_young(snapshot, segment):
        code, why = Code.COMPACTION_LAG, f"min.compaction.lag.ms={format_ms(lag_ms)} has not passed"
        until_ms = segment.age_timestamp_ms + lag_ms
    elif segment.next_offset > log.first_uncleanable_offset:
        code, why = Code.ORDER, "an earlier segment waits"
    elif snapshot.copying:
        code, why = Code.COPYING, "a copy of this log is in progress"
    elif not snapshot.may_clean:
        code, why = Code.CLEANER_HELD, "cleaning of this log is paused, see compaction status"
    else:
        why = f"dirty share {log.dirty_ratio:.2f}, min.cleanable.dirty.ratio={log.min_dirty_ratio}"
        code, until_ms = Code.DIRTY_RATIO, _overdue_from_ms(snapshot, log.first_dirty_offset)
    return put_off(Action.CLEAN, segment, code, why, until_ms)


def forced_cleaning(snapshot: PartitionSnapshot) -> CleanLog | None:
    """Return a requested pass over all cleanable segments, whatever their size; None if there are none."""
    if not snapshot.rules.cleanup_compact or snapshot.copying:
        return None
    log = log_to_clean(snapshot)
    return _cleaning(log, "requested") if log.cleanable_bytes else None


def _cleaning(log: LogToClean, reason: str) -> CleanLog:
    return CleanLog(
        first_dirty_offset=log.first_dirty_offset,
        upto_offset=log.first_uncleanable_offset,
        size_bytes=log.cleanable_bytes,
        reason=reason,
    )


def tombstones_below(snapshot: PartitionSnapshot, *, is_bucket_known: bool) -> int | None:
    """Return the bound of removable tombstones and markers (I5). None: no bound. 0: remote tier unknown."""
    if snapshot.is_tiered and not is_bucket_known:
        return 0
    return tombstone_bound(snapshot.committed_parts, snapshot.all_views, snapshot.log_start_offset)


def by_priority(logs: Iterable[LogToClean], waited_rounds: Mapping[TopicPartition, int]) -> list[LogToClean]:
    """Return the eligible logs in cleaning order: filthiest first, raised by waiting (module text)."""
    eligible = [log for log in logs if log.is_eligible]

    def rank(log: LogToClean) -> tuple[float, int, TopicPartition]:
        waited = waited_rounds.get(log.partition, 0)
        return -(log.dirty_ratio + waited / AGING_ROUNDS), -waited, log.partition

    return sorted(eligible, key=rank)


def first_dirty_offset(snapshot: PartitionSnapshot) -> int:
    """The cleaner's checkpoint; the log start without one, or if it is outside the log (Kafka)."""
    start = snapshot.log_start_offset
    if snapshot.cleaner_offset is None or not start <= snapshot.cleaner_offset <= snapshot.next_offset:
        return start
    return snapshot.cleaner_offset


def first_uncleanable_offset(snapshot: PartitionSnapshot) -> int:
    """The offset where a pass must stop: a segment's base, or the first dirty offset."""
    dirty_from = first_dirty_offset(snapshot)
    upto = dirty_from
    for segment in _dirty_closed(snapshot, dirty_from):
        if segment.next_offset > snapshot.stable_offset or _is_too_young(snapshot, segment):
            break
        upto = segment.next_offset
    return upto


def _is_too_young(snapshot: PartitionSnapshot, segment: SegmentInfo) -> bool:
    lag_ms = snapshot.rules.min_compaction_lag_ms
    return lag_ms > 0 and segment.age_timestamp_ms > snapshot.now_ms - lag_ms


def _dirty_closed(snapshot: PartitionSnapshot, dirty_from: int) -> list[SegmentInfo]:
    return [each for each in snapshot.closed if each.next_offset > dirty_from]


def _overdue_from_ms(snapshot: PartitionSnapshot, dirty_from: int) -> int | None:
    """The first ms at which a dirty record is overdue; None if none will be. Time 0 is absent (Kafka)."""
    lag_ms = snapshot.rules.max_compaction_lag_ms
    if lag_ms is None:
        return None
    times = [each.first_timestamp_ms or 0 for each in _dirty_closed(snapshot, dirty_from)]
    earliest = min((time for time in times if time > 0), default=None)
    return None if earliest is None else earliest + lag_ms + 1


def _reason(log: LogToClean, max_lag_ms: int | None) -> str:
    share = f"dirty share {log.dirty_ratio:.2f}"
    if is_dirty_enough(log.cleanable_bytes, log.clean_bytes, log.min_dirty_ratio):
        return f"{share}, min.cleanable.dirty.ratio={log.min_dirty_ratio}"
    if log.delay_ms == 0 or max_lag_ms is None:
        return f"{share}, the last pass did not reach the end of the dirty part"
    return f"{share}, {format_ms(log.delay_ms)} past max.compaction.lag.ms={format_ms(max_lag_ms)}"


def replacements(
    snapshot: PartitionSnapshot, *, going: AbstractSet[str] = frozenset()
) -> list[ReplaceRemote | AdvanceCleanedOffset]:
    """Return decisions about entries that a local segment tiles, by offset. `going`: ulids that expire."""
    cut = snapshot.clean_cut
    if not snapshot.rules.cleanup_compact or not snapshot.is_copying_on or cut == 0:
        return []
    if not all(snapshot.has_safe_copy(each) for each in snapshot.closed if each.next_offset <= cut):
        return []
    found: list[ReplaceRemote | AdvanceCleanedOffset] = []
    for segment in snapshot.closed:
        if segment.next_offset > cut or segment.is_empty or segment.base_offset in snapshot.copying:
            continue
        entries = tiled(snapshot.committed, segment.base_offset, segment.next_offset)
        is_retained = segment.next_offset > snapshot.log_start_offset
        if entries and is_retained and going.isdisjoint(entry.ulid for entry in entries):
            found += _decided(snapshot, segment, entries, cut)
    return found


def tiled(entries: Sequence[SegmentEntry], base_offset: int, next_offset: int) -> tuple[SegmentEntry, ...]:
    """Return the ascending entries that tile ``[base_offset, next_offset)`` exactly, else none."""
    first = bisect_left(entries, base_offset, key=attrgetter("base_offset"))
    found: list[SegmentEntry] = []
    reached = base_offset
    while reached < next_offset and first + len(found) < len(entries):
        entry = entries[first + len(found)]
        if entry.base_offset != reached:
            break
        found.append(entry)
        reached = entry.next_offset
    return tuple(found) if reached == next_offset else ()


def _decided(
    snapshot: PartitionSnapshot, segment: SegmentInfo, entries: Sequence[SegmentEntry], cut: int
) -> list[ReplaceRemote | AdvanceCleanedOffset]:
    if min(entry.cleaned_through or 0 for entry in entries) >= cut or any(entry.is_redacted for entry in entries):
        return []
    remote_bytes = sum(entry.size_bytes for entry in entries)
    saved_bytes = remote_bytes - segment.size_bytes
    ulids = tuple(entry.ulid for entry in entries)
    rules = snapshot.rules
    if saved_bytes >= max(rules.recompaction_min_reduction * remote_bytes, rules.recompaction_min_saved_bytes, 1):
        reason = f"cleaned again, {saved_bytes} of {remote_bytes} bytes less"
        return [ReplaceRemote.of(segment, reason, ulids=ulids, remote_bytes=remote_bytes)]
    if segment.base_offset in snapshot.shrunk or any(entry.made_by is not None for entry in entries):
        return []
    reason = f"cleaned again up to {cut}, there is nothing to replace"
    return [AdvanceCleanedOffset.of(segment, reason, ulids=ulids, cleaned_through=cut, size_bytes=0)]
