"""What the ``.index`` and ``.timeindex`` of a segment must hold: building both, judging what is found on a disk.

The judgement is Kafka's sanity check and more: whole entries, every column rising, no position past the log, and an
empty time index only where the log has no timestamps. It can't tell an index that lost its last entries: files are
therefore put in place whole or not at all (`replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from local import kernels, offset_index, time_index
from local.batch_header import HEADER_BYTES, read_header
from local.errors import Corrupt, NotFound
from local.names import LOG, OFFSET_INDEX, TEMPORARY, TIME_INDEX, segment_file
from local.storage import Body, Storage, join

if TYPE_CHECKING:
    from local.columns import BatchTable

INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX)
ENTRY_BYTES = {OFFSET_INDEX: offset_index.ENTRY_BYTES, TIME_INDEX: time_index.ENTRY_BYTES}
_SLICE_BYTES = 16 << 20
_RELATIVE_MAX = 2**31 - 1  # int32 in both files


class Indexes(NamedTuple):
    """Both index files' bytes, and the largest timestamp with the last offset of the batch it was first seen in."""

    offset: bytearray
    time: bytearray
    max_timestamp_ms: int | None
    max_timestamp_offset: int


class Judged(NamedTuple):
    """How many leading entries of each file are sound; `problem` is None when both files are, from end to end."""

    offset_entries: int
    time_entries: int
    problem: str | None


def build_indexes(table: BatchTable, base_offset: int, interval_bytes: int) -> Indexes:
    """What both indexes of a segment hold after an uninterrupted write, final time entry included (KAFKA-806 form).

    `table` is of all its batches.     Raises Corrupt for a batch further from `base_offset` than a segment reaches.
    """
    rows = IndexRows()
    rows.add(table)
    return rows.indexes(base_offset, interval_bytes)


class IndexRows:
    """The batches of a segment as they are written, one table of neighbours after another."""

    def __init__(self) -> None:
        self._sizes: list[NDArray[np.int32]] = []
        self._last_offsets: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []

    def add(self, table: BatchTable) -> None:
        self._sizes.append(table.sizes)
        self._last_offsets.append(table.last_offsets)
        self._times.append(table.max_timestamps)

    def indexes(self, base_offset: int, interval_bytes: int) -> Indexes:
        """As `build_indexes`, of all that was added."""
        sizes = np.concatenate((np.empty(0, np.int32), *self._sizes))
        relative = np.concatenate((np.empty(0, np.int64), *self._last_offsets)) - base_offset
        times = np.maximum.accumulate(np.maximum(np.concatenate((np.empty(0, np.int64), *self._times)), -1))
        if len(sizes) and (relative[-1] > _RELATIVE_MAX or relative[0] < 0):
            raise Corrupt("building indexes, an offset outside the segment", base_offset=base_offset)
        positions = np.cumsum(sizes, dtype=np.int64) - sizes
        rows = _entry_rows(positions, interval_bytes)
        is_later = np.concatenate((times[:1] >= 0, times[1:] > times[:-1]))
        found_at = np.maximum.accumulate(np.where(is_later, np.arange(len(sizes)), 0))
        with_last = [*rows, len(sizes) - 1] if len(sizes) else []
        entries = times[with_last]
        is_entry = np.concatenate((entries[:1] >= 0, entries[1:] > entries[:-1]))
        offsets = offset_index.encode(relative[rows], positions[rows])
        time_entries = time_index.encode(entries[is_entry], relative[found_at[with_last]][is_entry])
        if not len(sizes) or times[-1] < 0:
            return Indexes(offsets, time_entries, None, base_offset)
        return Indexes(offsets, time_entries, int(times[-1]), base_offset + int(relative[found_at[-1]]))


def _entry_rows(before: NDArray[np.int64], interval_bytes: int) -> list[int]:
    """The batches that get an entry: before them lie more than `interval_bytes` since the last one that has one."""
    following = np.searchsorted(before, before + interval_bytes, "right").tolist()
    rows: list[int] = []
    at = following[0] if following else 0
    while at < len(following):
        rows.append(at)
        at = following[at]
    return rows


def time_entry(index: bytearray, base_offset: int, timestamp_ms: int | None, offset: int) -> bytes:
    """The entry to add for the largest timestamp so far; empty when it is no later than the last one."""
    if timestamp_ms is None:
        return b""
    if index and time_index.entries(index[-time_index.ENTRY_BYTES :], base_offset)[0][0] >= timestamp_ms:
        return b""
    return time_index.pack(base_offset, timestamp_ms, offset)


def judge(offsets: Body | None, times: Body | None, log_bytes: int, first_timestamp_ms: Callable[[], int]) -> Judged:
    """What can be used of both files' bytes (None: there is no such file), the log being `log_bytes` long.

    `first_timestamp_ms` is asked for the first batch's largest timestamp (-1: none) where that decides.
    """
    if offsets is None or times is None:
        problem: str | None = "an index is missing"
        offsets, times = offsets or b"", times or b""
    else:
        problem = None
    good_offsets = offset_index.sound_entries(offsets, log_bytes)
    good_times = time_index.sound_entries(times)
    if good_offsets * offset_index.ENTRY_BYTES < len(offsets):
        problem = "the offset index is torn, out of order or reaches past the log"
    elif good_times * time_index.ENTRY_BYTES < len(times):
        problem = "the time index is torn or out of order"
    elif len(times) <= time_index.ENTRY_BYTES and log_bytes:
        told = time_index.entries(times, 0)[0][0] if times else -1
        if first_timestamp_ms() > told:
            problem = "the time index lacks the first batch's timestamp"
    return Judged(good_offsets, good_times, problem)


def check(storage: Storage, directory: str, base_offset: int, log_bytes: int) -> str | None:
    """Why a segment's indexes cannot be used, None when they can. Reads both files whole."""
    offsets, times = (_read(storage, join(directory, segment_file(base_offset, each))) for each in INDEX_SUFFIXES)
    log_path = join(directory, segment_file(base_offset, LOG))
    return judge(offsets, times, log_bytes, lambda: first_timestamp(storage, log_path)).problem


def first_timestamp(storage: Storage, log_path: str) -> int:
    """The first batch's largest timestamp; -1 where its records have none (such a segment has no time entries)."""
    try:
        header = read_header(storage.read(log_path, 0, HEADER_BYTES))
    except Corrupt:
        return -1  # whoever reads the batch will hear of it
    return header.max_timestamp_ms if header is not None else -1


def scan_times(read: Callable[[int, int], bytes], base_offset: int) -> tuple[int | None, int]:
    """(largest timestamp, last offset of the first batch with it) from the headers of a log, as far as they are sound.

    `read` gives the bytes (position, length).
    """
    latest, offset = -1, base_offset
    for _, _, table in slices_of(read):
        at = int(table.max_timestamps.argmax())
        if int(table.max_timestamps[at]) > latest:
            latest, offset = int(table.max_timestamps[at]), int(table.last_offsets[at])
    return (latest, offset) if latest >= 0 else (None, base_offset)


def slices_of(read: Callable[[int, int], bytes]) -> Iterator[tuple[int, memoryview, BatchTable]]:
    """(position, bytes, headers) of a log's whole batches, a slice at a time, up to where they break off.

    For a file that may shrink meanwhile: a map of it would end the process. `read` gives the bytes (position, length).
    """
    position, want = 0, _SLICE_BYTES
    while data := read(position, want):
        table = kernels.scan_batches(data, verify=False)
        if len(table):
            yield position, memoryview(data), table
            position += table.valid_bytes
        elif table.is_corrupt or len(data) < want:
            return
        else:
            want *= 2


def write_aside(storage: Storage, directory: str, base_offset: int, indexes: Indexes) -> None:
    """Both files under temporary names, synced. A crash leaves files that the next start removes."""
    for suffix, body in zip(INDEX_SUFFIXES, (indexes.offset, indexes.time), strict=True):
        file = storage.create(join(directory, segment_file(base_offset, suffix)) + TEMPORARY)
        try:
            file.append(body)
            file.sync()
        finally:
            file.close()


def put_in_place(storage: Storage, directory: str, base_offset: int) -> None:
    """What `write_aside` wrote takes the place of what was there, durably; a crash leaves each file old or new."""
    for suffix in INDEX_SUFFIXES:
        path = join(directory, segment_file(base_offset, suffix))
        storage.rename(path + TEMPORARY, path)
    storage.sync_directory(directory)


def discard_aside(storage: Storage, directory: str, base_offset: int) -> None:
    """What `write_aside` wrote is not needed after all."""
    for suffix in INDEX_SUFFIXES:
        storage.unlink(join(directory, segment_file(base_offset, suffix)) + TEMPORARY)


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except NotFound:
        return None
