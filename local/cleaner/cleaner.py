"""The cleaner: keep the newest record of every key in a log's closed segments, in Kafka's two passes.

**Pass one** maps the keys of the dirty closed segments (`local.cleaner.offset_map`), as many whole segments as fit. If
the first segment does not fit, it maps as many of its records as fit: the checkpoint is then inside that segment.

**Pass two** decides on every batch from `clean_from` to the end of pass one (`local.cleaner.record_retention`). It then
rewrites segments and merges small neighbours.

- Offsets, record order and the offset ranges in batch headers never change. Nothing at or above the last stable offset
  is read.
- A batch that loses nothing is copied byte for byte. A segment that loses nothing and is not merged stays unchanged.
- Segments that are also in the remote tier are never merged with local-only segments (`apart_at` is the boundary): the
  remote tier identifies segments by their ranges.
- Tombstones and transaction markers at or above `tombstones_below` are never removed: the remote tier may hold an older
  record of their key, or data of their transaction (invariant I5).
- Remaining records of formats 0 and 1 are written in format 2.

Memory: as pass one; then a bit per record, a byte per batch, and a part of the remaining records
(`kernels.REBUILT_PART_BYTES`).

**The log is in use.** A pass would restore records that are truncated or replaced while it runs. A pass therefore
runs between `CleaningGate.try_start` and `end`, and `Log.truncate_to` and `Log.restart_at` first pause the gate. An
aborted pass restores the checkpoint in memory before the waiting call continues.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from local import kernels
from local.cleaner.cleaner_history import CleaningFigures
from local.cleaner.offset_map import SEGMENTS_MAX, Buffer, CleanerThrottle, build_offset_map, build_offset_map_of_part
from local.cleaner.record_retention import CleanContext, RecordFilter, SegmentVerdict
from local.errors import CleaningAborted, Conflict, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.facts import SegmentInfo
from local.format.columns import Octets
from local.index import offset_index, time_index
from local.index.index_files import IndexRows
from local.log import Log
from local.log.log_state import CleaningGate
from local.names import CLEANED, LOG, TopicPartition
from local.segment import swap
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.settings import DAY_MS, LogSettings
from local.storage import SegmentFiles

_log = logging.getLogger(__name__)
DEFAULT_BUFFER = Buffer()
POSITION_MAX = 2**31 - 1  # positions in an offset index are int32


@dataclass(slots=True)
class _Work:
    log: Log
    limiter: CleanerThrottle
    now_ms: int
    delay_ms: int
    horizon_ms: int
    out: Octets
    figures: CleaningFigures


def clean(
    log: Log,
    *,
    clean_from: int = 0,
    apart_at: int = 0,
    upto_offset: int | None = None,
    now_ms: int,
    delete_delay_ms: int = 0,
    delete_retention_ms: int = DAY_MS,
    tombstones_below: int | None = 0,
    buffer: Buffer = DEFAULT_BUFFER,
    should_stop: Callable[[], bool] = lambda: False,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    clock: Callable[[], float] = time.monotonic,
    announce: Callable[[], None] = lambda: None,
) -> CleaningFigures | None:
    """Clean the closed segments of `log` from `clean_from` on. Returns the figures; None if nothing is dirty.

    `upto_offset` is the exclusive end, the base of a segment; None: that of the active one. The pass also ends where
    `buffer` has no room: `CleaningFigures.cleaner_offset` may be inside a segment. Tombstones are removed only below
    `tombstones_below`: None means no bound (no remote tier), 0 removes none.

    Raises CleaningAborted if another pass runs, if `should_stop` is true, if the log is or becomes paused, or if
    retention deletes its segments during the pass: groups already swapped in stay, `log.cleaner_offset` does not rise.
    Raises InvalidRequest if a segment would exceed 2 GiB, or if not one key fits `buffer`.

    Order of effects; a crash between the steps costs a second cleaning, never a record:

    1. Raise `log.cleaner_reach` to the end of the search for newer records; `announce` makes it durable. A reach above
       the checkpoint marks a log that is only partly cleaned.
    2. Swap in each group (`local.segment.swap`).
    3. After the last swap, raise `log.cleaner_offset`. The caller writes the checkpoint.
    """
    with _only_pass(log) as gate:
        limiter = CleanerThrottle(log.partition, lambda: gate.is_aborted or should_stop(), throttle, clock)
        first_dirty = max(log.cleaner_offset or 0, log.log_start_offset, clean_from)
        upto = min(at for at in (_first_unstable_base(log), upto_offset) if at is not None)
        infos = (info for info in log.segments() if not info.is_active)
        sealed = [info for info in infos if info.base_offset >= clean_from and info.next_offset <= upto]
        dirty = [info for info in sealed if info.next_offset > first_dirty and not info.is_empty]
        if not dirty:
            log.set_cleaner_offset(max(log.cleaner_offset or 0, upto))
            return None
        facts = CleanContext(
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
            tombstones_below=tombstones_below,
            legacy_horizon_ms=_legacy_horizon(log, first_dirty, delete_retention_ms),
            first_offset=sealed[0].base_offset,
            upto_offset=upto,
            producers={each.producer_id: each for each in log.producers()},
            dirty_from=first_dirty,
        )
        began = clock()
        judged, reach_offset, figures = _decide(log, sealed, dirty, facts, buffer, limiter, began)
        if reach_offset > log.cleaner_reach:
            log.set_cleaner_reach(reach_offset)
            announce()
        _log.info("%s", beginning(log.partition, judged, facts))
        out = np.empty(kernels.REBUILT_PART_BYTES, np.uint8)
        work = _Work(log, limiter, now_ms, delete_delay_ms, facts.horizon_ms, out, figures)
        _rewrite(work, judged, apart_at)
        log.set_cleaner_offset(figures.cleaner_offset)
        return _result(work, began)


@contextmanager
def _only_pass(log: Log) -> Iterator[CleaningGate]:
    gate = log.cleaning
    if not gate.try_start():
        raise CleaningAborted(
            "cannot clean the log now, its cleaning state does not allow it", partition=log.partition, state=gate.now
        )
    before, first_offset = log.cleaner_offset, log.local_log_start_offset

    def undo() -> None:
        log.set_cleaner_offset(before)

    is_done = False
    try:
        yield gate
    except (NotFound, Conflict) as error:
        if log.local_log_start_offset == first_offset:
            raise
        raise CleaningAborted(
            "the cleaner pass was aborted, segments of the log were deleted during the pass", partition=log.partition
        ) from error
    finally:
        is_done = gate.end(undo)
    if not is_done:
        raise CleaningAborted("the cleaner was stopped on request", partition=log.partition)


def _decide(
    log: Log,
    sealed: Sequence[SegmentInfo],
    dirty: Sequence[SegmentInfo],
    facts: CleanContext,
    buffer: Buffer,
    limiter: CleanerThrottle,
    began: float,
) -> tuple[list[SegmentVerdict], int, CleaningFigures]:
    """Run pass one and the decisions: (decisions, end of the search for newer records, figures so far)."""
    aborted = log.aborted_transactions(facts.first_offset, facts.upto_offset)
    segments = [log.segment(info.base_offset) for info in dirty]
    where = {"from_offset": facts.dirty_from}
    newest, fitting = build_offset_map(segments, dirty[-1].next_offset, aborted, buffer, limiter, **where)
    is_cut = fitting < min(len(dirty), SEGMENTS_MAX)
    reach_offset = upto_offset = facts.upto_offset
    if fitting == 0:
        end = dirty[0].next_offset
        newest, upto_offset = build_offset_map_of_part(segments[0], end, aborted, buffer, limiter, **where)
        reach_offset, facts = upto_offset, replace(facts, upto_offset=end)
    elif fitting < len(dirty):
        reach_offset, upto_offset = dirty[fitting].next_offset, dirty[fitting].base_offset
        facts = replace(facts, upto_offset=upto_offset)
    index_seconds, indexed_bytes = limiter.clock() - began, limiter.bytes_read
    record_filter = RecordFilter(facts, newest, aborted)
    judged = [
        record_filter.segment(log.segment(info.base_offset), info.next_offset, limiter)
        for info in sealed
        if info.next_offset <= facts.upto_offset and not info.is_empty
    ]
    figures = CleaningFigures(
        first_dirty_offset=facts.dirty_from,
        cleaner_offset=upto_offset,
        distinct_keys=len(newest.keys),
        invalid_records=newest.invalid_records + record_filter.invalid_records,
        indexed_bytes=indexed_bytes,
        index_seconds=index_seconds,
        buffer_utilization=newest.utilization,
        is_cut=is_cut,
    )
    return judged, reach_offset, figures


def _rewrite(work: _Work, judged: Sequence[SegmentVerdict], apart_at: int) -> None:
    if any(each.has_legacy for each in judged):
        work.log.cover_epochs()
    for group in grouped(judged, work.log.settings, work.limiter, apart_at=apart_at):
        _clean_group(work, group)
        for each in group:
            each.mapped = None


def _result(work: _Work, began: float) -> CleaningFigures:
    limiter, figures = work.limiter, work.figures
    clean_seconds = limiter.clock() - began - figures.index_seconds
    read, written = limiter.bytes_read, limiter.bytes_written
    return replace(figures, bytes_read=read, bytes_written=written, clean_seconds=clean_seconds)


def beginning(partition: TopicPartition, judged: Sequence[SegmentVerdict], facts: CleanContext) -> str:
    """The line that Kafka's log cleaner logs before it rewrites segments. Source: kafka `Cleaner.doClean`."""
    name = f"{partition.topic}-{partition.partition}"
    prior = _moment(judged[-1].segment.modified_ms) if judged else "none"
    horizon = "none" if facts.legacy_horizon_ms is None else _moment(facts.legacy_horizon_ms)
    bound = "" if facts.tombstones_below is None else f", none at or above offset {facts.tombstones_below}"
    return (
        f"Cleaning log {name} (cleaning prior to {prior}, discarding tombstones prior to upper bound deletion horizon "
        f"{horizon}{bound})..."
    )


def _moment(ms: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # a file may have any modification time


def _first_unstable_base(log: Log) -> int:
    """The end of cleaning: the base of the segment with the last stable offset, at most the active base."""
    stable, infos = log.last_stable_offset, log.segments()
    return max((info.base_offset for info in infos if info.base_offset <= stable), default=infos[0].base_offset)


def _legacy_horizon(log: Log, first_dirty: int, delete_retention_ms: int) -> int | None:
    """`CleanContext.legacy_horizon_ms` of a pass. Source: kafka `Cleaner.doClean`, legacyDeleteHorizonMs."""
    clean = [info.base_offset for info in log.segments() if info.base_offset < first_dirty]
    return log.segment(clean[-1]).modified_ms - delete_retention_ms if clean else None


def _clean_group(work: _Work, group: Sequence[SegmentVerdict]) -> None:
    """Swap in the remains of `group` as one segment, or each half if recompression makes them too large."""
    base_offset = group[0].segment.base_offset
    is_changed = len(group) > 1 or (group[0].is_changed and not group[0].is_last_batch_alone)
    size = _write_cleaned(work, group) if is_changed else None
    if size is None and len(group) > 1:
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _clean_group(work, half)
        return
    before, records_before = sum(each.segment.size_bytes for each in group), sum(each.record_count for each in group)
    # Without a new segment the old file stays with all its records: nothing is removed or saved.
    after, records_after = before, records_before
    if size is not None:
        after, records_after = size, sum(each.kept_count for each in group)
    figures = work.figures
    work.figures = replace(
        figures,
        bytes_before=figures.bytes_before + before,
        bytes_after=figures.bytes_after + after,
        records_before=figures.records_before + records_before,
        records_after=figures.records_after + records_after,
    )
    if size is not None:
        work.log.swap_in([each.segment for each in group], base_offset, now_ms=work.now_ms, delay_ms=work.delay_ms)


def _write_cleaned(work: _Work, group: Sequence[SegmentVerdict]) -> int | None:
    """Step 1 of the swap: write the new segment and return its size.

    - Several segments that do not fit one segment: the new file is deleted, and the result is None.
    - A single segment may exceed ``segment.bytes``. Its old file must not stay: it has records that this pass counts as
      removed. They would become the newest of their keys again once the tombstones above them are removed.

    Raises InvalidRequest if the positions of a single segment would not fit its index.
    """
    files = SegmentFiles(work.log.storage, work.log.directory, group[0].segment.base_offset)
    try:
        return _write_group(work, group, files)
    except (CleaningAborted, Corrupt, NotFound):
        files.storage.unlink(files.path(LOG) + CLEANED)
        raise
    except DiskFailed as error:
        if error.lacks_room:
            with suppress(LogError):  # frees the room that half a file takes on a full disk
                swap.discard(files)
        raise


def _write_group(work: _Work, group: Sequence[SegmentVerdict], files: SegmentFiles) -> int | None:
    settings, rows = work.log.settings, IndexRows()
    parts = work.limiter.written(survivors(group, work.limiter, rows, work.horizon_ms, work.out))
    size = swap.write_cleaned(files, parts, modified_ms=group[-1].segment.modified_ms)
    is_alone = len(group) == 1
    if size <= (POSITION_MAX if is_alone else min(settings.segment_bytes, POSITION_MAX)):
        indexes = rows.indexes(files.base_offset, settings.index_interval_bytes)
        if is_alone or max(map(len, indexes)) <= settings.segment_index_bytes:
            aborted = sorted((each for one in group for each in one.aborted), key=lambda each: each.last_offset)
            swap.write_cleaned_indexes(files, indexes, aborted)
            return size
    files.storage.unlink(files.path(LOG) + CLEANED)
    if is_alone:
        facts = {"path": files.path(LOG), "size_bytes": size, "limit": POSITION_MAX}
        raise InvalidRequest(
            "cannot clean a segment, the remaining records are larger than the maximum segment size", **facts
        )
    return None


def grouped(
    judged: Sequence[SegmentVerdict], settings: LogSettings, limiter: CleanerThrottle, *, apart_at: int = 0
) -> list[list[SegmentVerdict]]:
    """The groups to merge: neighbours whose remaining records fit one segment. Raises as `SegmentVerdict.measure`.

    Uses the sizes after cleaning (Kafka: before). The segment at `apart_at` is not merged with its predecessor.
    """
    groups: list[list[SegmentVerdict]] = []
    for each in judged:
        is_apart = each.segment.base_offset == apart_at
        if groups and not is_apart and _fits([*groups[-1], each], settings, limiter):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def survivors(
    group: Sequence[SegmentVerdict], limiter: CleanerThrottle, rows: IndexRows, horizon_ms: int, out: Octets
) -> Iterator[memoryview]:
    """Yield the new segment inside `out`, each part valid until the next; add its batches to `rows`.

    If all batches would be removed, one empty batch stays: a segment file is never empty.
    """
    is_empty = all(each.is_empty for each in group)
    for each in group:
        slices = limiter.slices(each.segment, each.mapped)
        for (_, data), verdict in zip(slices, each.slices, strict=True):
            actions = verdict.actions
            if is_empty and each is group[-1] and verdict is each.slices[-1]:
                actions = actions.copy()
                actions[-1] = verdict.last_stays
            for part in kernels.rebuilt_batches(data, verdict.keep, actions, horizon_ms, out):
                table = kernels.scan_batches(part, verify=False)
                assert table.valid_bytes == len(part)
                rows.add(table)
                yield part


def _fits(group: Sequence[SegmentVerdict], settings: LogSettings, limiter: CleanerThrottle) -> bool:
    if group[-1].next_offset - 1 - group[0].segment.base_offset > RELATIVE_OFFSET_MAX:
        return False
    if _is_legal(group, sum(each.bytes_most for each in group), settings):
        return True
    if not _is_legal(group, sum(each.bytes_least for each in group), settings):
        return False
    for each in group:
        each.measure(limiter)
    return _is_legal(group, sum(each.bytes_most for each in group), settings)


def _is_legal(group: Sequence[SegmentVerdict], size: int, settings: LogSettings) -> bool:
    # An index entry follows more than `index_interval_bytes` of log; the time index has one final entry.
    entries = min(size // (settings.index_interval_bytes + 1), sum(each.batches_after for each in group))
    index_bytes = max(entries * offset_index.ENTRY_BYTES, (entries + 1) * time_index.ENTRY_BYTES)
    return size <= min(settings.segment_bytes, POSITION_MAX) and index_bytes <= settings.segment_index_bytes
