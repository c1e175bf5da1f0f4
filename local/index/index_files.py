"""Build, check and replace the ``.index`` and ``.timeindex`` files of a segment.

The entries are Kafka's. A batch gets an offset entry when more than an interval of bytes precedes it since the last
entry. A time entry is written at the same batches, only if the largest timestamp has grown, and once more at the last
batch.

The check is Kafka's sanity check and more: only whole entries, each column in order, no position past the log, and an
empty time index only if the log has no timestamps. The check cannot detect an index that lost its last entries. Files
are therefore replaced whole or not at all (`write_aside`, `put_in_place`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index
from local.names import LOG, OFFSET_INDEX, TEMPORARY, TIME_INDEX, segment_file
from local.storage import Body, Storage, join, write_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from local.format.columns import BatchTable

INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX)
ENTRY_BYTES = {OFFSET_INDEX: offset_index.ENTRY_BYTES, TIME_INDEX: time_index.ENTRY_BYTES}
_SLICE_BYTES = 16 << 20
_RELATIVE_MAX = 2**31 - 1  # int32 in both files


class Judged(NamedTuple):
    """The number of sound leading entries of each file; `problem` is None if both are sound to the end."""

    offset_entries: int
    time_entries: int
    problem: str | None


def time_entry(index: bytearray, base_offset: int, timestamp_ms: int | None, offset: int) -> bytes:
    """Pack the entry for the largest timestamp so far; no bytes if it is not later than the last entry."""
    if timestamp_ms is None:
        return b""
    if index and time_index.entries(index[-time_index.ENTRY_BYTES :], base_offset)[0][0] >= timestamp_ms:
        return b""
    return time_index.pack(base_offset, timestamp_ms, offset)


def check_indexes(
    offsets: Body | None, times: Body | None, log_bytes: int, first_timestamp_ms: Callable[[], int]
) -> Judged:
    """Return how much of both files is usable for a log of `log_bytes`. None stands for a missing file.

    `first_timestamp_ms` returns the first batch's largest timestamp (-1: none). It is called only if the time index
    has at most one entry.
    """
    if offsets is None or times is None:
        problem: str | None = "an index is missing"
        offsets, times = offsets or b"", times or b""
    else:
        problem = None
    good_offsets = offset_index.sound_entries(offsets, log_bytes)
    good_times = time_index.sound_entries(times)
    if good_offsets * offset_index.ENTRY_BYTES < len(offsets):
        problem = "the offset index is torn, out of order or points past the end of the log"
    elif good_times * time_index.ENTRY_BYTES < len(times):
        problem = "the time index is torn or out of order"
    elif len(times) <= time_index.ENTRY_BYTES and log_bytes:
        indexed_ms = time_index.entries(times, 0)[0][0] if times else -1
        if first_timestamp_ms() > indexed_ms:
            problem = "the time index lacks the first batch's timestamp"
    return Judged(good_offsets, good_times, problem)


def check(storage: Storage, directory: str, base_offset: int, log_bytes: int) -> str | None:
    """Return why a segment's indexes are unusable, or None if they are usable. Reads both files whole."""
    offsets, times = (_read(storage, join(directory, segment_file(base_offset, each))) for each in INDEX_SUFFIXES)
    log_path = join(directory, segment_file(base_offset, LOG))
    return check_indexes(offsets, times, log_bytes, lambda: first_timestamp(storage, log_path)).problem


def first_timestamp(storage: Storage, log_path: str) -> int:
    """Return the first batch's largest timestamp, or -1 without one (such a segment has no time entries)."""
    try:
        header = read_header(storage.read(log_path, 0, HEADER_BYTES))
    except Corrupt:
        return -1  # the read of this batch reports the damage
    return header.max_timestamp_ms if header is not None else -1


def scan_times(read: Callable[[int, int], bytes], base_offset: int) -> tuple[int | None, int]:
    """Scan a log for (largest timestamp, last offset of the first batch with it).

    Without a timestamp the result is (None, `base_offset`). Reads the headers of a log up to the first unsound one.
    `read` returns the bytes at (position, length).
    """
    latest, offset = -1, base_offset
    for _, _, table in slices_of(read):
        at = int(table.max_timestamps.argmax())
        if int(table.max_timestamps[at]) > latest:
            latest, offset = int(table.max_timestamps[at]), int(table.last_offsets[at])
    return (latest, offset) if latest >= 0 else (None, base_offset)


def slices_of(read: Callable[[int, int], bytes]) -> Iterator[tuple[int, memoryview, BatchTable]]:
    """Yield (position, bytes, headers) of a log's whole batches in slices, up to the first unsound header.

    `read` returns the bytes at (position, length). This function reads and does not map the file, because the file may
    shrink during the scan: access to a map past the end of its file ends the process.
    """
    from local import kernels

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


def headers_of(
    read: Callable[[int, int], bytes], size_bytes: int, *, path: str, may_be_torn: bool = False
) -> BatchTable:
    """Return the headers of all batches, read in slices. Raises Corrupt for an earlier end, unless it `may_be_torn`."""
    from local import kernels
    from local.format.columns import joined_tables

    parts, end = [], 0
    for position, _, table in slices_of(read):
        parts.append(replace(table, positions=table.positions + position))
        end = position + table.valid_bytes
    if end < size_bytes and not may_be_torn:
        problem = kernels.scan_batches(read(end, HEADER_BYTES), verify=False).problem
        raise Corrupt(f"cannot rebuild indexes, {problem}", path=path, at=end)
    return joined_tables(parts or [kernels.scan_batches(b"")])


def write_aside(storage: Storage, directory: str, base_offset: int, indexes: Indexes) -> None:
    """Write and sync both files under temporary names. The next start removes them after a crash."""
    for suffix, body in zip(INDEX_SUFFIXES, (indexes.offset, indexes.time), strict=True):
        write_file(storage, join(directory, segment_file(base_offset, suffix)) + TEMPORARY, body)


def put_in_place(storage: Storage, directory: str, base_offset: int) -> None:
    """Rename the files of `write_aside` over the old ones, durably. A crash leaves each file old or new."""
    for suffix in INDEX_SUFFIXES:
        path = join(directory, segment_file(base_offset, suffix))
        storage.rename(path + TEMPORARY, path)
    storage.sync_directory(directory)


def discard_aside(storage: Storage, directory: str, base_offset: int) -> None:
    """Remove the files of `write_aside` without using them."""
    for suffix in INDEX_SUFFIXES:
        storage.unlink(join(directory, segment_file(base_offset, suffix)) + TEMPORARY)


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except NotFound:
        return None


class OutsideSegment(Corrupt):
    """Offsets that no index of the segment can hold. `local.log.recovery` repairs such a segment."""


class Indexes(NamedTuple):
    """The bytes of both index files, and the largest timestamp.

    `max_timestamp_offset` is the last offset of the first batch with that timestamp; the base offset without one.
    """

    offset: bytearray
    time: bytearray
    max_timestamp_ms: int | None
    max_timestamp_offset: int


def build_indexes(table: BatchTable, base_offset: int, interval_bytes: int) -> Indexes:
    """Build both indexes of a segment as an uninterrupted write leaves them.

    The final time entry is included (KAFKA-806 form). `table` holds all batches of the segment. Raises OutsideSegment
    if an offset is below `base_offset` or more than 2**31 - 1 above it.
    """
    rows = IndexRows()
    rows.add(table)
    return rows.indexes(base_offset, interval_bytes)


class IndexRows:
    """The batches of a segment in write order, added one table after another."""

    def __init__(self) -> None:
        self._sizes: list[NDArray[np.int32]] = []
        self._last_offsets: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []

    def add(self, table: BatchTable) -> None:
        self._sizes.append(table.sizes)
        self._last_offsets.append(table.last_offsets)
        self._times.append(table.max_timestamps)

    def indexes(self, base_offset: int, interval_bytes: int) -> Indexes:
        """Return the indexes of all added batches, as `build_indexes` does."""
        import numpy as np

        sizes = np.concatenate((np.empty(0, np.int32), *self._sizes))
        relative = np.concatenate((np.empty(0, np.int64), *self._last_offsets)) - base_offset
        times = np.maximum.accumulate(np.maximum(np.concatenate((np.empty(0, np.int64), *self._times)), -1))
        if len(sizes) and (relative[-1] > _RELATIVE_MAX or relative[0] < 0):
            raise OutsideSegment("cannot build indexes, an offset is outside the segment", base_offset=base_offset)
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
    """Return the rows that get an entry: more than `interval_bytes` after the last batch with an entry."""
    import numpy as np

    following = np.searchsorted(before, before + interval_bytes, "right").tolist()
    rows: list[int] = []
    at = following[0] if following else 0
    while at < len(following):
        rows.append(at)
        at = following[at]
    return rows
