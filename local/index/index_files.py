"""Check the ``.index`` and ``.timeindex`` files of a segment on disk and put new ones in place.

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
from local.storage import Body, Storage, join

if TYPE_CHECKING:
    from local.format.columns import BatchTable
    from local.index.index_building import Indexes

INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX)
ENTRY_BYTES = {OFFSET_INDEX: offset_index.ENTRY_BYTES, TIME_INDEX: time_index.ENTRY_BYTES}
_SLICE_BYTES = 16 << 20


class Judged(NamedTuple):
    """The number of sound leading entries of each file.

    `problem` is None if both files are sound to the end.
    """

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
        told = time_index.entries(times, 0)[0][0] if times else -1
        if first_timestamp_ms() > told:
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
    """Return the headers of all batches of a log of `size_bytes`, read in slices.

    Raises Corrupt if the sound headers end before `size_bytes`, unless the end `may_be_torn`.
    """
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
        file = storage.create(join(directory, segment_file(base_offset, suffix)) + TEMPORARY)
        try:
            file.append(body)
            file.sync()
        finally:
            file.close()


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
