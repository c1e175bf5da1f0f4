"""Reads of a local log at once: as ranges of segment files for `sendfile`, without a copy and without a wait.

A read finds the position of its first batch (the place where the last read ended, or the offset index and the headers
after its entry) and a position of a batch at or before its limit (the offset index). The bytes between are whole
batches; their headers are not scanned.

The indexes are hints. A read trusts a position only if the header there has a possible base offset:

| position | from | the header's base offset must |
|---|---|---|
| start | the end of an earlier read of the segment, whose bytes do not change | equal the offset, then |
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
_NEIGHBOURS = 2  # entries of the offset index
_HEADERS_MAX = 256  # from an index entry to the batch of an offset


class FileReads:
    """Thread safe."""

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._lock = threading.Lock()
        # (segment, base offset) to the position and the size of the batch
        self._places: OrderedDict[tuple[Segment, int], tuple[int, int]] = OrderedDict()

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
        start, size_bytes = first
        limit = start + max(bytes_max, size_bytes)
        if headers.end <= limit:
            return FileRange(headers.file, start, headers.end - start)
        if not segment.has_offsets_in_memory():
            return None
        position = _entry_position(segment, limit, headers.end)
        if position <= start:
            # Without an entry in between the batches are small, or this one is large.
            return FileRange(headers.file, start, size_bytes) if size_bytes >= bytes_max else None
        following = headers.at(position)
        if following is None or following.base_offset <= offset:
            return None
        self._keep(segment, following.base_offset, (position, following.size_bytes))
        return FileRange(headers.file, start, position - start)

    def _first(self, headers: _Headers, segment: Segment, offset: int) -> tuple[int, int] | None:
        """The position and the size of the batch that holds or follows `offset`."""
        with self._lock:
            place = self._places.pop((segment, offset), None)
        if place is not None:
            return place
        if not segment.has_offsets_in_memory():
            return None
        position = segment.entry_before(offset)[1]
        for count in range(_HEADERS_MAX):
            header = headers.at(position)
            if header is None or (not count and position and header.base_offset > offset):
                return None
            if header.next_offset > offset:
                return position, header.size_bytes
            position += header.size_bytes
        return None

    def _keep(self, segment: Segment, offset: int, place: tuple[int, int]) -> None:
        with self._lock:
            self._places[segment, offset] = place
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


def _entry_position(segment: Segment, limit: int, end: int) -> int:
    """The largest position of an entry of the offset index at or below `limit`; 0 without one.

    Batches of one log have similar sizes: the search begins where `limit` is in the file, which ends at `end`.
    """
    with segment.entries(OFFSET_INDEX) as (count, entry):
        guess, step = min(count, count * limit // end), _NEIGHBOURS
        low, high = 0, count  # entries below `low` are at most `limit`, those from `high` on are above it
        if guess < count and entry(guess)[1] > limit:
            high = guess
            while high > step and entry(high - step)[1] > limit:
                high, step = high - step, 2 * step
            low = max(0, high - step)
        else:
            low = guess
            while low + step < count and entry(low + step)[1] <= limit:
                low, step = low + step, 2 * step
            high = min(count, low + step)
        slot = bisect_right(range(count), limit, low, high, key=lambda slot: entry(slot)[1])
        return int(entry(slot - 1)[1]) if slot else 0
