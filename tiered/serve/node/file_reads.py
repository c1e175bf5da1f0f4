"""Reads of a local log at once: as ranges of segment files for `sendfile`, without a copy and without a wait.

A read finds the position of its first batch (the place where the last read ended, or the offset index and the headers
after its entry) and a position of a batch at or before its limit (the offset index). The bytes between are whole
batches; their headers are not scanned.

The indexes are hints. A read trusts a position only if the header there has a possible base offset:

| position | from | the header's base offset must |
|---|---|---|
| start | the end of an earlier read | equal the offset |
| start | an index entry | be at most the offset; later headers lead to the batch of the offset |
| end | an index entry | be above the offset |

`read` answers None for all else: bytes outside the page cache, an index that is not checked and mapped yet, an old
message format, a wrong index, a segment that was dropped. The caller then reads through the log, which waits, maps,
repairs and reports.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from local.errors import LogError
from local.format.batch_header import MAGIC, MAGIC_END, BatchHeader, read_header
from local.log import Log
from local.names import LOG, OFFSET_INDEX
from local.segment.segment import Segment
from tiered.serve.file_range import FileRange, OpenFile, OpenFiles

SMALL_BYTES = 64 << 10  # fewer are copied: one system call less than a header and a `sendfile`
PLACES_MAX = 1024
_PROBE_BYTES = 4096
_HEADERS_MAX = 256  # from an index entry to the batch of an offset


class FileReads:
    """Thread safe."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[Segment, int], int] = OrderedDict()  # (segment, base offset) to position

    def read(self, log: Log, offset: int, bytes_max: int) -> FileRange | memoryview | None:
        """Whole batches, the first one holding or following `offset`; at most `bytes_max` bytes or one batch.

        None: the log has to be read. `offset` is below the log end of the log's current view.
        """
        view = log.view
        at = bisect_right(view.bases, offset) - 1
        if at < 0 or offset >= view.next_offset:
            return None
        segment, is_last = view.segments[at], at == len(view.bases) - 1
        end = view.tail_bytes if is_last else segment.size_bytes
        try:
            file = self._files.get(segment, partial(_open, segment))
            if file is None:
                return None
            found = self._range(_Headers(file, end), segment, offset, bytes_max)
            data = found.read_cached() if found is not None and found.nbytes < SMALL_BYTES else found
        except (LogError, OSError):
            return None
        # A truncation retires the segment before it changes bytes, so these are the bytes of the view.
        return None if segment.is_retired else data

    def _range(self, headers: _Headers, segment: Segment, offset: int, bytes_max: int) -> FileRange | None:
        first = self._first(headers, segment, offset)
        if first is None:
            return None
        start, header = first
        limit = start + max(bytes_max, header.size_bytes)
        if headers.end <= limit:
            return FileRange(headers.file, start, headers.end - start)
        if not segment.has_offsets_in_memory():
            return None
        position = _entry_position(segment, limit)
        if position <= start:
            # Without an entry in between the batches are small, or this one is large.
            return FileRange(headers.file, start, header.size_bytes) if header.size_bytes >= bytes_max else None
        following = headers.at(position)
        if following is None or following.base_offset <= offset:
            return None
        self._keep(segment, following.base_offset, position)
        return FileRange(headers.file, start, position - start)

    def _first(self, headers: _Headers, segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
        """The position and the header of the batch that holds or follows `offset`."""
        with self._lock:
            position = self._places.pop((segment, offset), None)
        if position is not None:
            header = headers.at(position)
            if header is not None and header.base_offset == offset:
                return position, header
        if not segment.has_offsets_in_memory():
            return None
        position = segment.entry_before(offset)[1]
        for count in range(_HEADERS_MAX):
            header = headers.at(position)
            if header is None or (not count and position and header.base_offset > offset):
                return None
            if header.next_offset > offset:
                return position, header
            position += header.size_bytes
        return None

    def _keep(self, segment: Segment, offset: int, position: int) -> None:
        with self._lock:
            self._places[segment, offset] = position
            if len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)


class _Headers:
    """Batch headers below `end` of a file, as far as the page cache has them."""

    def __init__(self, file: OpenFile, end: int) -> None:
        self.file, self.end = file, end
        self._data, self._start = memoryview(b""), 0

    def at(self, position: int) -> BatchHeader | None:
        header = self._header(position)
        if header is None and position < self.end:
            probe = FileRange(self.file, position, min(_PROBE_BYTES, self.end - position))
            self._data, self._start = probe.read_cached() or memoryview(b""), position
            header = self._header(position)
        return header if header is not None and position + header.size_bytes <= self.end else None

    def _header(self, position: int) -> BatchHeader | None:
        at = position - self._start
        if not 0 <= at <= len(self._data) - MAGIC_END or self._data[at + MAGIC_END - 1] != MAGIC:
            return None
        return read_header(self._data, at)


def _open(segment: Segment) -> int:
    with segment.present():
        return os.open(segment.path(LOG), os.O_RDONLY | os.O_CLOEXEC)


def _entry_position(segment: Segment, limit: int) -> int:
    """The largest position of an entry of the offset index at or below `limit`; 0 without one."""
    with segment.entries(OFFSET_INDEX) as (count, entry):
        slot = bisect_right(range(count), limit, key=_position_by(entry))
        return int(entry(slot - 1)[1]) if slot else 0


def _position_by(entry: Callable[[int], tuple[int, int]]) -> Callable[[int], int]:
    return lambda slot: entry(slot)[1]
