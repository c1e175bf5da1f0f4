"""The cleaner: keeps the newest record of every key in the sealed part of a compacted log. Kafka's two passes.

Pass one maps the keys of the dirty sealed segments (`local.cleaner.offset_map`), as many whole segments as fit; of a
first segment that does not fit, as many records. The checkpoint then lies inside that segment, as Kafka's may. Pass two
judges every batch from `clean_from` to where that ended (`local.cleaner.record_retention` has the table of what
survives); then segments are rewritten, small neighbours merged. Offsets, order and batch headers' ranges never change;
batches that lose nothing are copied byte for byte, and segments that lose nothing and gain no neighbour stay as they
are.

Segments that are in the remote tier too are cleaned with the others. The two kinds are never merged, for the remote
tier knows segments by their ranges (`apart_at` is where the one ends and the other begins). Tombstones and transaction
markers at or above `tombstones_below` never leave: an older record of their key, or data of their transaction, may sit
in the remote tier (invariant I5). Nothing at or above the last stable offset is looked at. What stays of messages of
formats 0 and 1 is written in format 2.

Kafka groups segments by their sizes before cleaning; here it is by those after it, so that what goes to the store is
fewer and larger objects. A segment all of whose batches would go keeps its last one, empty, so that no file is empty.

Memory: the dedupe buffer, two bits a dirty record, a bit a record and a byte a batch for the verdicts, and of the
records a part of those that stay (`kernels.REBUILT_PART_BYTES`, or one batch) or one step of them inflated
(`local.kernels.dispatch.STEP_BYTES`). Segments are mapped, the dirty ones until they are rewritten: their pages are the
page cache's. A sealed segment shrinks only behind the log's gate (`local.log.cleaning_state`), which sends the cleaner
away first.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.cleaner_history import CleaningFigures
from local.cleaner.cleaner_io import Pace
from local.cleaner.offset_map import SEGMENTS_MAX, Buffer, find_newest, find_newest_in_part
from local.cleaner.record_retention import Circumstances, Judge, SegmentVerdict
from local.cleaner.segment_grouping import POSITION_MAX, grouped, survivors
from local.errors import CleaningAborted, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.index.index_building import IndexRows
from local.log import Log
from local.names import CLEANED, LOG, TopicPartition, segment_file
from local.segment import swap
from local.segment.segment_info import SegmentInfo
from local.settings import DAY_MS
from local.storage import Storage, join

_log = logging.getLogger(__name__)
DEFAULT_BUFFER = Buffer()
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningResult(CleaningFigures):
    """What one round did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What both passes found out. `indexed` is when the key map was built, in seconds of the round's clock."""

    segments: list[SegmentVerdict]
    upto_offset: int
    reach_offset: (
        int  # newer records were looked for up to here: past `upto_offset`, where a segment's keys had no room
    )
    distinct_keys: int
    invalid_records: int
    indexed: float
    indexed_bytes: int
    buffer_utilization: float
    is_cut: bool


@dataclass(slots=True)
class _Tally:
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(slots=True)
class _Work:
    """What the groups of one round have in common. Times in ms."""

    log: Log
    storage: Storage
    pace: Pace
    tally: _Tally
    now_ms: int
    delay_ms: int
    horizon_ms: int
    out: NDArray[np.uint8]


def clean(
    log: Log,
    storage: Storage,
    *,
    clean_from: int = 0,
    apart_at: int = 0,
    upto_offset: int | None = None,
    now_ms: int,
    delete_delay_ms: int = 0,
    delete_retention_ms: int = DAY_MS,
    tombstones_below: int | None = 0,
    buffer: Buffer = DEFAULT_BUFFER,
    progress: Progress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    clock: Callable[[], float] = time.monotonic,
    announce: Callable[[], None] = lambda: None,
) -> CleaningResult | None:
    """One round over the sealed segments of `log` at or above `clean_from`; None when there is nothing dirty.

    Nothing at or above `upto_offset` (a segment's base; None: the active one's) is looked at, nor what `buffer` has no
    room for: `CleaningResult.cleaner_offset` tells, which may lie inside a segment. A tombstone may leave only below
    `tombstones_below`; None is no bound, for a log without remote tier, and 0 lets none leave. `should_stop` is asked
    and `throttle` told between slices (`local.cleaner.cleaner_io`). Raises CleaningAborted when it was asked to stop:
    the groups that are swapped in stay so, `log.cleaner_offset` does not rise. Raises InvalidRequest when a segment
    would pass 2 GiB, and for a buffer in which not one key fits.

    Order of effects: `log.cleaner_reach` rises to where newer records were looked for, and `announce` makes that
    durable (the caller's part); each group is swapped in on its own (`local.segment.swap`); `log.cleaner_offset` rises
    after the last swap, and the caller writes the checkpoint after that. A crash in between costs a second cleaning,
    never a record; until that is done the reach lies above the checkpoint, and tells that the log is not clean in
    itself.
    """
    first_dirty = max(log.cleaner_offset or 0, log.log_start_offset, clean_from)
    upto = min(at for at in (_first_unstable_base(log), upto_offset) if at is not None)
    sealed = _sealed(log, clean_from, upto)
    dirty = [info for info in sealed if info.next_offset > first_dirty and not info.is_empty]
    if not dirty:
        log.cleaner_offset = max(log.cleaner_offset or 0, upto)
        return None
    between = (sealed[0].base_offset, upto)
    facts = _circumstances(log, between, first_dirty, now_ms, delete_retention_ms, tombstones_below)
    pace = Pace(log.partition, should_stop, throttle, clock)
    began = clock()
    found = _judge(log, storage, sealed, dirty, facts, buffer, pace)
    if found.reach_offset > log.cleaner_reach:
        log.cleaner_reach = found.reach_offset
        announce()
    _log.info("%s", beginning(log.partition, found.segments, facts))
    out = np.empty(kernels.REBUILT_PART_BYTES, np.uint8)
    work = _Work(log, storage, pace, _Tally(), now_ms, delete_delay_ms, facts.horizon_ms, out)
    _rewrite(work, found.segments, progress, apart_at)
    log.cleaner_offset = found.upto_offset
    return _result(first_dirty, found, work, index_seconds=found.indexed - began, clean_seconds=clock() - found.indexed)


def _sealed(log: Log, clean_from: int, upto: int) -> list[SegmentInfo]:
    """The closed segments that lie in ``[clean_from, upto)``; an empty one may end at `upto`."""
    infos = (info for info in log.segments() if not info.is_active)
    return [info for info in infos if info.base_offset >= clean_from and info.next_offset <= upto]


def _circumstances(
    log: Log,
    between: tuple[int, int],
    first_dirty: int,
    now_ms: int,
    delete_retention_ms: int,
    tombstones_below: int | None,
) -> Circumstances:
    """What the records of the offsets `between` are judged by."""
    return Circumstances(
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        tombstones_below=tombstones_below,
        legacy_horizon_ms=_legacy_horizon(log, first_dirty, delete_retention_ms),
        first_offset=between[0],
        upto_offset=between[1],
        producers={each.producer_id: each for each in log.producers()},
        dirty_from=first_dirty,
    )


def _judge(
    log: Log,
    storage: Storage,
    sealed: Sequence[SegmentInfo],
    dirty: Sequence[SegmentInfo],
    facts: Circumstances,
    buffer: Buffer,
    pace: Pace,
) -> _Found:
    """Both passes over what is there. The keys go with the return; mappings stay until their segment is rewritten."""
    aborted = log.aborted_transactions(facts.first_offset, facts.upto_offset)
    segments = [log.segment(info.base_offset) for info in dirty]
    where = {"from_offset": facts.dirty_from}
    newest, fitting = find_newest(storage, segments, dirty[-1].next_offset, aborted, buffer, pace, **where)
    is_cut = fitting < min(len(dirty), SEGMENTS_MAX)
    reach_offset = upto_offset = facts.upto_offset
    if fitting == 0:
        end = dirty[0].next_offset
        newest, upto_offset = find_newest_in_part(storage, segments[0], end, aborted, buffer, pace, **where)
        reach_offset, facts = upto_offset, replace(facts, upto_offset=end)
    elif fitting < len(dirty):
        reach_offset, upto_offset = dirty[fitting].next_offset, dirty[fitting].base_offset
        facts = replace(facts, upto_offset=upto_offset)
    indexed, indexed_bytes = pace.clock(), pace.bytes_read
    judge = Judge(facts, newest, aborted)
    judged = [
        judge.segment(storage, log.segment(info.base_offset), info.next_offset, pace)
        for info in sealed
        if info.next_offset <= facts.upto_offset and not info.is_empty
    ]
    return _Found(
        segments=judged,
        upto_offset=upto_offset,
        reach_offset=reach_offset,
        distinct_keys=len(newest.keys),
        invalid_records=newest.invalid_records + judge.invalid_records,
        indexed=indexed,
        indexed_bytes=indexed_bytes,
        buffer_utilization=newest.utilization,
        is_cut=is_cut,
    )


def _rewrite(work: _Work, judged: Sequence[SegmentVerdict], progress: Progress, apart_at: int) -> None:
    """Every group, oldest first. What is made of old formats has no leader epoch of its own: the log knows it."""
    if any(each.has_legacy for each in judged):
        work.log.cover_epochs()
    groups = grouped(judged, work.log.settings, work.storage, work.pace, apart_at=apart_at)
    for done, group in enumerate(groups):
        progress(done, len(groups))
        _clean_group(work, group)
        for each in group:
            each.mapped = None
    progress(len(groups), len(groups))


def _result(
    first_dirty: int, found: _Found, work: _Work, *, index_seconds: float, clean_seconds: float
) -> CleaningResult:
    pace, tally = work.pace, work.tally
    return CleaningResult(
        first_dirty_offset=first_dirty,
        cleaner_offset=found.upto_offset,
        records_before=tally.records_before,
        records_after=tally.records_after,
        bytes_before=tally.bytes_before,
        bytes_after=tally.bytes_after,
        distinct_keys=found.distinct_keys,
        invalid_records=found.invalid_records,
        indexed_bytes=found.indexed_bytes,
        bytes_read=pace.bytes_read,
        bytes_written=pace.bytes_written,
        index_seconds=index_seconds,
        clean_seconds=clean_seconds,
        buffer_utilization=found.buffer_utilization,
        is_cut=found.is_cut,
    )


def beginning(partition: TopicPartition, judged: Sequence[SegmentVerdict], facts: Circumstances) -> str:
    """The line that Kafka's log cleaner logs before it rewrites segments, with the tombstone bound where there is one.

    The first time is when the last of the segments was written to. Tombstones of formats 0 and 1 are removed from
    segments written to before the second; those of format 2 once the horizon in their batch has passed.
    Source: kafka `Cleaner.doClean`.
    """
    name = f"{partition.topic}-{partition.partition}"
    prior = _moment(judged[-1].segment.modified_ms) if judged else "none"
    horizon = "none" if facts.legacy_horizon_ms is None else _moment(facts.legacy_horizon_ms)
    bound = "" if facts.tombstones_below is None else f", none at or above offset {facts.tombstones_below}"
    return (
        f"Cleaning log {name} (cleaning prior to {prior}, discarding tombstones prior to upper bound deletion horizon "
        f"{horizon}{bound})..."
    )


def _moment(ms: int) -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # a file may bear any time


def _first_unstable_base(log: Log) -> int:
    """Where cleaning has to stop: the base of the segment with the last stable offset, or of the active one."""
    stable, infos = log.last_stable_offset, log.segments()
    return max((info.base_offset for info in infos if info.base_offset <= stable), default=infos[0].base_offset)


def _legacy_horizon(log: Log, first_dirty: int, delete_retention_ms: int) -> int | None:
    """Tombstones of formats 0 and 1 go from segments last written to by this time (ms).

    Source: kafka `Cleaner.doClean`, legacyDeleteHorizonMs.
    """
    clean = [info.base_offset for info in log.segments() if info.base_offset < first_dirty]
    return log.segment(clean[-1]).modified_ms - delete_retention_ms if clean else None


def _clean_group(work: _Work, group: Sequence[SegmentVerdict]) -> None:
    """Swap in what is left of `group`, as one segment; each half by itself, should that come out too large after all.

    Only recompressing can make it so: survivors are packed at the codec's default level, whatever the producer's was.
    What does not fit two goes one by one, however large.
    """
    log, tally = work.log, work.tally
    base_offset = group[0].segment.base_offset
    is_changed = len(group) > 1 or (group[0].is_changed and not group[0].is_last_batch_alone)
    size = _write_cleaned(work, group) if is_changed else None
    if size is None and len(group) > 1:
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _clean_group(work, half)
        return
    before = sum(each.segment.size_bytes for each in group)
    records_before = sum(each.record_count for each in group)
    tally.bytes_before += before
    tally.records_before += records_before
    if size is None:
        # Nothing goes, or nothing would be gained: the old file stays, and so does whatever knows it.
        tally.bytes_after += before
        tally.records_after += records_before
        return
    tally.bytes_after += size
    tally.records_after += sum(each.kept_count for each in group)
    log.swap_in([each.segment for each in group], base_offset, now_ms=work.now_ms, delay_ms=work.delay_ms)


def _write_cleaned(work: _Work, group: Sequence[SegmentVerdict]) -> int | None:
    """Step 1 of the swap; the size of the new segment. None, and nothing left of it, when several do not fit one.

    One alone may pass ``segment.bytes``: left as it is, it would keep records that the round counts as gone, and they
    would be the newest of their keys again once the tombstones above them have left. Raises InvalidRequest where the
    positions in its index would not do.
    """
    base_offset = group[0].segment.base_offset
    try:
        return _write_group(work, group, base_offset)
    except (CleaningAborted, Corrupt, NotFound):
        work.storage.unlink(join(work.log.directory, segment_file(base_offset, LOG) + CLEANED))
        raise
    except DiskFailed as error:
        if error.lacks_room:
            with suppress(LogError):  # what a full disk has least use for is half of a file
                swap.discard(work.storage, work.log.directory, base_offset)
        raise


def _write_group(work: _Work, group: Sequence[SegmentVerdict], base_offset: int) -> int | None:
    log, storage = work.log, work.storage
    settings, rows = log.settings, IndexRows()
    parts = work.pace.written(survivors(group, work.storage, work.pace, rows, work.horizon_ms, work.out))
    path = swap.write_cleaned(storage, log.directory, base_offset, parts, modified_ms=group[-1].segment.modified_ms)
    size = storage.size(path)
    is_alone = len(group) == 1
    if size <= (POSITION_MAX if is_alone else min(settings.segment_bytes, POSITION_MAX)):
        indexes = rows.indexes(base_offset, settings.index_interval_bytes)
        if is_alone or max(len(indexes.offset), len(indexes.time)) <= settings.segment_index_bytes:
            aborted = sorted((each for one in group for each in one.aborted), key=lambda each: each.last_offset)
            swap.write_cleaned_indexes(storage, log.directory, base_offset, indexes, aborted)
            return size
    storage.unlink(path)
    if is_alone:
        facts = {"path": group[0].segment.path(LOG), "size_bytes": size, "limit": POSITION_MAX}
        raise InvalidRequest("cleaning a segment, what stays of it is larger than a segment may be", **facts)
    return None
