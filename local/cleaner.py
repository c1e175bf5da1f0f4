"""The first cleaner: keeps the newest record of every key in the sealed part of a compacted log.

Two passes, as in Kafka. Pass one maps every key of the dirty sealed segments to its newest offset there. Pass two
judges every record of the sealed segments from `clean_from` on: it stays unless the map has a newer offset for its
key; then segments are rewritten, small neighbours merged.
Offsets, order and batch headers' ranges never change; batches that lose nothing are copied byte for byte; the last
batch of every rewritten segment stays, empty if need be, so that no offset range is lost.

Tombstones are **kept** while they are the newest of their key: below `clean_from` older values may sit in the remote
tier, and dropping one would bring those back (invariant I5). They become removable with the full cleaner.

Transactions: nothing at or above the last stable offset is looked at; markers and the records of aborted transactions
stay, and such a record never takes the place of another.

`clean_from` is the first offset that is not in the remote tier yet: uploaded segments are frozen. A segment with
messages of format 0 or 1 is refused before anything is changed: they have tombstone rules of their own.

Memory: the key map holds every distinct key of the dirty section (exact: keys are compared, not hashes), a byte a
record holds the verdicts, and of the records themselves there is one slice of a segment
(`local.segment_reading.SLICE_BYTES`) with one step of it inflated (`local.kernels.STEP_BYTES`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt

from local import kernels, offset_index, swap, time_index
from local.batch_header import CODEC_BITS, CONTROL, HEADER_BYTES
from local.cleaning_pace import Pace
from local.columns import Columns
from local.errors import CleaningAborted, Corrupt, InvalidRequest
from local.index_files import Indexes, build_indexes
from local.isolation import aborted_batches, without_aborted
from local.log import Log
from local.names import CLEANED, LOG, segment_file
from local.segment import RELATIVE_OFFSET_MAX, Segment
from local.segment_info import SegmentInfo
from local.settings import LogSettings
from local.storage import Storage, join
from local.txn_index import AbortedTransaction

POSITION_MAX = 2**31 - 1  # positions in an offset index are int32
Flags = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningResult:
    """What one round did. Bytes are of ``.log`` files; `cleaner_offset` is the next dirty offset.

    `indexed_bytes` were read in `index_seconds` to build the key map, which was full to `buffer_utilization` (0..1 of
    its memory); the other `bytes_read` and all that was written took `clean_seconds`.
    """

    first_dirty_offset: int
    cleaner_offset: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    distinct_keys: int
    invalid_records: int
    indexed_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    index_seconds: float = 0.0
    clean_seconds: float = 0.0
    buffer_utilization: float = 0.0


@dataclass(slots=True)
class _Tally:
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One segment and the verdict on each of its records: a flag array per slice, in order.

    `bytes_after` and `batches_after` are what it will be after cleaning, the batch that may stay for the range's end
    included: about exact, and above the truth where a compressed batch loses records.
    """

    segment: Segment
    next_offset: int
    flags: list[Flags]
    record_count: int
    kept_count: int
    invalid_records: int
    bytes_after: int
    batches_after: int


def clean(
    log: Log,
    storage: Storage,
    *,
    clean_from: int,
    upto_offset: int | None = None,
    now_ms: int,
    delete_delay_ms: int = 0,
    progress: Progress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    clock: Callable[[], float] = time.monotonic,
) -> CleaningResult | None:
    """One round over the sealed segments of `log` at or above `clean_from`; None when there is nothing dirty.

    Nothing at or above `upto_offset` (a segment's base; None: the active one's) is looked at. `should_stop` is asked
    and `throttle` told between slices (`local.cleaning_pace`). Raises CleaningAborted when it was asked to let go: the
    groups that are swapped in stay so, `log.cleaner_offset` does not rise.

    Order of effects: each group is swapped in on its own (`local.swap`); `log.cleaner_offset` rises after the last
    swap, and the caller writes the checkpoint after that. A crash in between costs a second cleaning, never a record.
    """
    first_dirty = max(log.cleaner_offset or 0, log.log_start_offset, clean_from)
    upto = _first_unstable_base(log)
    upto = upto if upto_offset is None else min(upto_offset, upto)
    sealed = [info for info in log.segments() if info.base_offset >= clean_from and info.next_offset <= upto]
    dirty = [info for info in sealed if info.next_offset > first_dirty and not info.is_empty]
    if not dirty:
        log.cleaner_offset = max(log.cleaner_offset or 0, upto)
        return None
    pace = Pace(log.partition, should_stop, throttle, clock)
    began = clock()
    newest = _newest_offsets(((log.segment(info.base_offset), _aborted(log, info)) for info in dirty), pace)
    indexed, indexed_bytes = clock(), pace.bytes_read
    judged = [
        _judge(log.segment(info.base_offset), info, newest, _aborted(log, info), pace)
        for info in sealed
        if not info.is_empty
    ]
    groups = _groups(judged, log.settings)
    tally = _Tally()
    for done, group in enumerate(groups):
        progress(done, len(groups))
        _clean_group(log, storage, group, tally, pace, now_ms=now_ms, delay_ms=delete_delay_ms)
    progress(len(groups), len(groups))
    log.cleaner_offset = upto
    return CleaningResult(
        first_dirty_offset=first_dirty,
        cleaner_offset=upto,
        records_before=tally.records_before,
        records_after=tally.records_after,
        bytes_before=tally.bytes_before,
        bytes_after=tally.bytes_after,
        distinct_keys=len(newest),
        invalid_records=sum(each.invalid_records for each in judged),
        indexed_bytes=indexed_bytes,
        bytes_read=pace.bytes_read,
        bytes_written=pace.bytes_written,
        index_seconds=indexed - began,
        clean_seconds=clock() - indexed,
    )


def _first_unstable_base(log: Log) -> int:
    """Where cleaning has to stop: the base of the segment with the last stable offset, or of the active one."""
    stable, infos = log.last_stable_offset, log.segments()
    return max((info.base_offset for info in infos if info.base_offset <= stable), default=infos[0].base_offset)


def _aborted(log: Log, info: SegmentInfo) -> list[AbortedTransaction]:
    return log.aborted_transactions(info.base_offset, info.next_offset)


def _newest_offsets(
    segments: Iterator[tuple[Segment, list[AbortedTransaction]]], pace: Pace
) -> dict[bytes | None, int]:
    """Records of aborted transactions are nobody's newest: what they would replace is what readers see."""
    newest: dict[bytes | None, int] = {}
    for segment, aborted in segments:
        for _, data in pace.slices(segment):
            for step in kernels.decode_in_steps(data):
                columns = without_aborted(step, aborted)
                newest.update(zip(_keys(columns), columns.offsets.tolist(), strict=True))
                del columns, step  # before the next step is inflated
    newest.pop(None, None)
    return newest


def _judge(
    segment: Segment,
    info: SegmentInfo,
    newest: dict[bytes | None, int],
    aborted: list[AbortedTransaction],
    pace: Pace,
) -> _Judged:
    flags, invalid, size, batches = [], 0, HEADER_BYTES, 1
    for start, data in pace.slices(segment):
        verdicts, whole = [], 0
        for columns in kernels.decode_in_steps(data, include_control=True):
            if columns.table.has_legacy:
                attempt = "cleaning a segment, messages of format 0 or 1 are not rewritten"
                raise InvalidRequest(attempt, path=segment.path(LOG))
            keep, keyless = _keep(columns, newest, aborted)
            sizes = _sizes_after(columns, keep)
            verdicts.append(keep)
            invalid += keyless
            size += int(sizes.sum())
            batches += int((sizes > 0).sum())
            whole = columns.table.valid_bytes
            del columns  # before the next step is inflated
        if whole < len(data):
            raise Corrupt("cleaning a segment, it ends inside a batch", path=segment.path(LOG), at=start + whole)
        flags.append(np.concatenate(verdicts) if len(verdicts) > 1 else verdicts[0])
    return _Judged(
        segment=segment,
        next_offset=info.next_offset,
        flags=flags,
        record_count=sum(len(each) for each in flags),
        kept_count=sum(int(each.sum()) for each in flags),
        invalid_records=invalid,
        bytes_after=min(size, segment.size_bytes),
        batches_after=batches,
    )


def _sizes_after(columns: Columns, keep: Flags) -> npt.NDArray[np.int64]:
    """Bytes that each batch will take: its own where it is compressed or keeps all, else those of what it keeps."""
    table, rows = columns.table, len(columns.table)
    kept = np.bincount(columns.batch_ordinals[keep], minlength=rows)
    sizes = np.where(kept > 0, table.sizes, 0).astype(np.int64)
    is_partial = ((table.attributes & CODEC_BITS) == 0) & (kept > 0) & (kept < table.record_counts)
    if is_partial.any():
        lengths = _record_bytes(columns)
        taken = np.bincount(columns.batch_ordinals[keep], weights=lengths[keep], minlength=rows).astype(np.int64)
        sizes[is_partial] = np.minimum(HEADER_BYTES + taken, table.sizes)[is_partial]
    return sizes


def _record_bytes(columns: Columns) -> npt.NDArray[np.int64]:
    """Bytes of each record of the plain batches, counted from its key to the next one's (a few off at batch ends)."""
    table = columns.table
    lengths = np.append(np.diff(columns.key_starts), 0)
    last = np.append(np.flatnonzero(np.diff(columns.batch_ordinals)), len(columns) - 1)
    rows = columns.batch_ordinals[last]
    first = np.append(0, last[:-1] + 1)
    # The last of a batch has what its neighbours leave of the section.
    ahead = columns.key_starts[last] - columns.key_starts[first]
    lengths[last] = table.sizes[rows] - HEADER_BYTES - ahead
    return lengths


def _groups(judged: Sequence[_Judged], settings: LogSettings) -> list[list[_Judged]]:
    """Neighbours whose survivors together fit one segment become one; every other segment stays by itself.

    Kafka groups by the sizes before cleaning; by those after it, what goes to the store is fewer and larger objects.
    """
    groups: list[list[_Judged]] = []
    for each in judged:
        if groups and _fits([*groups[-1], each], settings):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _fits(group: Sequence[_Judged], settings: LogSettings) -> bool:
    """Whether the survivors of `group` make a legal segment: its bytes, both its indexes, its range of offsets."""
    size = sum(each.bytes_after for each in group)
    # An entry is written once more than an interval's bytes have gone by, and the time index has a final one.
    entries = min(size // (settings.index_interval_bytes + 1), sum(each.batches_after for each in group))
    index_bytes = max(entries * offset_index.ENTRY_BYTES, (entries + 1) * time_index.ENTRY_BYTES)
    span = group[-1].next_offset - 1 - group[0].segment.base_offset
    return (
        size <= min(settings.segment_bytes, POSITION_MAX)
        and index_bytes <= settings.segment_index_bytes
        and span <= RELATIVE_OFFSET_MAX
    )


def _clean_group(
    log: Log, storage: Storage, group: Sequence[_Judged], tally: _Tally, pace: Pace, *, now_ms: int, delay_ms: int
) -> None:
    """Swap in what is left of `group`, as one segment; each half by itself, should that come out too large after all.

    Only recompressing can make it so: survivors are packed at the codec's default level, whatever the producer's was.
    """
    base_offset = group[0].segment.base_offset
    is_changed = len(group) > 1 or group[0].kept_count < group[0].record_count
    size = _write_cleaned(log, storage, group, pace) if is_changed else None
    if size is None and len(group) > 1:
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            _clean_group(log, storage, half, tally, pace, now_ms=now_ms, delay_ms=delay_ms)
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
    log.swap_in([each.segment for each in group], base_offset, now_ms=now_ms, delay_ms=delay_ms)


def _write_cleaned(log: Log, storage: Storage, group: Sequence[_Judged], pace: Pace) -> int | None:
    """Step 1 of the swap; the size of the new segment. None, and nothing left of it, when it is not a legal one."""
    base_offset, settings = group[0].segment.base_offset, log.settings
    try:
        path = swap.write_cleaned(storage, log.directory, base_offset, pace.written(_survivors(group, pace)))
    except CleaningAborted:
        storage.unlink(join(log.directory, segment_file(base_offset, LOG) + CLEANED))
        raise
    size = storage.size(path)
    is_alone = len(group) == 1
    allowed = max(settings.segment_bytes, group[0].segment.size_bytes) if is_alone else settings.segment_bytes
    if size <= min(allowed, POSITION_MAX):
        indexes = _indexes_of(storage, path, base_offset, settings.index_interval_bytes)
        if is_alone or max(len(indexes.offset), len(indexes.time)) <= settings.segment_index_bytes:
            aborted = [each for judged in group for each in judged.segment.aborted()]
            swap.write_cleaned_indexes(storage, log.directory, base_offset, indexes, aborted)
            return size
    storage.unlink(path)
    return None


def _indexes_of(storage: Storage, path: str, base_offset: int, interval_bytes: int) -> Indexes:
    data = storage.map(path)
    try:
        return build_indexes(kernels.scan_batches(data), base_offset, interval_bytes)
    finally:
        data.release()


def _survivors(group: Sequence[_Judged], pace: Pace) -> Iterator[bytes]:
    for each in group:
        segment = each.segment
        for (start, data), keep in zip(pace.slices(segment), each.flags, strict=True):
            is_last = each is group[-1] and start + len(data) == segment.size_bytes
            yield kernels.filter_batches(data, keep, keep_last_batch=is_last)


def _keep(columns: Columns, newest: dict[bytes | None, int], aborted: list[AbortedTransaction]) -> tuple[Flags, int]:
    """A flag per record, and how many records have no key (they go).

    Control records stay, and so do records of aborted transactions: nobody reads them, but their markers count them.
    """
    found = np.fromiter(map(newest.get, _keys(columns), repeat(-1)), np.int64, len(columns))
    keyless = columns.key_lengths < 0
    stays = (columns.table.attributes[columns.batch_ordinals] & CONTROL) != 0
    if aborted:
        stays |= aborted_batches(columns.table, aborted)[columns.batch_ordinals]
    return ((columns.offsets >= found) & ~keyless) | stays, int((keyless & ~stays).sum())


def _keys(columns: Columns) -> list[bytes | None]:
    """Every record's key: gathered in one go, cut from one object."""
    lengths = columns.key_lengths
    bounds, gathered = kernels.gather(columns.data, columns.key_starts, lengths)
    if len(lengths) and lengths[0] > 0 and (lengths == lengths[0]).all():
        cut: list[bytes | None] = gathered.view(f"V{lengths[0]}").tolist()  # four times as fast as slicing
        return cut
    data = gathered.tobytes()
    keys: list[bytes | None] = [data[start:end] for start, end in pairwise(bounds.tolist())]
    for row in np.flatnonzero(lengths < 0).tolist():
        keys[row] = None
    return keys
