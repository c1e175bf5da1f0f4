"""Sequential reads of remote segments: likely next bytes are fetched before they are requested.

- The first read, and a read after a jump, fetches only its own range. Each read that continues the last one multiplies
  two sizes by GROWTH: the bytes fetched ahead, up to WINDOW_BYTES_MAX, and `step_bytes` for the next read.
- Once the window has the size of a cell, whole cells are fetched, one GET each, and a read ends at the end of its cell:
  no bytes are joined by copying. Passed cells are evicted first (`RemotePartition.leave_behind`). A cell is a quarter
  of the window, RANGE_BYTES to CELL_BYTES_MAX: the THREADS fetch at once what a full window holds.
- A few threads, shared by all streams, fetch ahead into the cache. Errors are logged; the later read tries again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from local.errors import LogError
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.segment_entry import SegmentEntry

WINDOW_BYTES_MAX = 64 << 20  # fetched ahead of one stream; up to a cell more
CELL_BYTES_MAX = 16 << 20  # of one GET
STEP_BYTES_MIN, STEP_BYTES_MAX = 128 << 10, 8 << 20
WINDOW_BYTES_MIN = 1 << 20
GROWTH = 4  # five reads reach the full window: each waits for the store once, and little is fetched in vain
THREADS = 4  # for all streams together

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SequentialReader:
    """The reads of one stream in one partition; its owner must `close` it. Not thread safe.

    Another thread calls `following` (next segment).
    """

    def __init__(self, remote: RemotePartition, following: Callable[[SegmentEntry], SegmentEntry | None]) -> None:
        self._remote = remote
        self._following = following
        self._window = 0
        # The last read: segment, first and one past the last byte. Bytes below `_left` are already marked as passed.
        self._last: tuple[SegmentEntry, int, int] | None = None
        self._left = 0
        # All bytes of these entries are cached or being fetched; of the last entry only bytes below `_covered`.
        self._path: list[SegmentEntry] = []
        self._covered = 0
        self._crossing: tuple[str, Future[SegmentEntry | None]] | None = None
        self._flights: deque[Future[None]] = deque()
        self._is_open = True
        self.step_bytes = STEP_BYTES_MIN
        remote.count_streams(1)

    def read(self, entry: SegmentEntry, position: int, length: int, *, in_one_piece: bool = False) -> memoryview:
        """As `RemotePartition.read`. A read that begins inside the last one continues it (a batch was cut)."""
        goes_on = self._goes_on(entry, position)
        if not goes_on:
            self._forget_flights()
            self._window, self.step_bytes = 0, STEP_BYTES_MIN
            self._path, self._covered, self._crossing = [entry], 0, None
            self._last, self._left = None, 0
        if in_one_piece:
            length = min(length, self._left_of_cell(position))
        if goes_on and self._window >= RANGE_BYTES:  # a cell that no thread has begun: one GET for all of it
            self._remote.warm(entry, position, length - 1 + self._left_of_cell(position + length - 1))
        data = self._remote.read(entry, position, length, in_one_piece=in_one_piece)
        reached = position + len(data)
        if goes_on:
            # A cache that is small, or has many streams, would evict a larger window before it is read.
            most = min(WINDOW_BYTES_MAX, self._remote.cache.bytes_max // (2 * max(1, self._remote.cache.streams)))
            self._window = min(max(GROWTH * self._window, WINDOW_BYTES_MIN), most)
            self.step_bytes = min(GROWTH * self.step_bytes, STEP_BYTES_MAX)
            self._leave_behind(entry, position)
        self._last = entry, position, reached
        if self._window:
            self._fetch_ahead(entry, reached)
        return data

    def _goes_on(self, entry: SegmentEntry, position: int) -> bool:
        if self._last is None:
            return False
        last, start, reached = self._last
        if last.ulid == entry.ulid:
            return start <= position <= reached
        # The stream reached a segment's end, and this is the next segment.
        return bool(self._path) and self._path[0].ulid == last.ulid and reached >= last.size_bytes and position == 0

    def close(self) -> None:
        """Cancel the fetches that have not started. Idempotent."""
        self._forget_flights()
        if self._is_open:
            self._is_open = False
            self._remote.count_streams(-1)

    def _forget_flights(self) -> None:
        for flight in self._flights:
            flight.cancel()
        self._flights.clear()

    def _leave_behind(self, entry: SegmentEntry, position: int) -> None:
        assert self._last is not None, "it goes on"
        last = self._last[0]
        if last.ulid != entry.ulid:
            self._remote.leave_behind(last, self._left, last.size_bytes)
            self._left = 0
        cell = position - position % self._cell_bytes
        if cell > self._left:
            self._remote.leave_behind(entry, self._left, cell)
            self._left = cell

    def _fetch_ahead(self, entry: SegmentEntry, reached: int) -> None:
        while self._flights and self._flights[0].done():
            self._flights.popleft()
        self._come_to(entry, reached)
        while (ahead := sum(each.size_bytes for each in self._path[:-1]) + self._covered - reached) < self._window:
            last = self._path[-1]
            if self._covered >= last.size_bytes:
                following = self._crossed(last)
                if following is None:
                    return
                self._path.append(following)
                self._covered = 0
                continue
            length = min(self._left_of_cell(self._covered), last.size_bytes - self._covered)
            if self._window < RANGE_BYTES:
                length = min(length, self._window - ahead)
            self._flights.append(_threads.submit(partial(self._warm, last, self._covered, length)))
            self._covered += length

    @property
    def _cell_bytes(self) -> int:
        return max(RANGE_BYTES, min(self._window // THREADS, CELL_BYTES_MAX))

    def _left_of_cell(self, position: int) -> int:
        return self._cell_bytes - position % self._cell_bytes

    def _come_to(self, entry: SegmentEntry, reached: int) -> None:
        while self._path and self._path[0].ulid != entry.ulid:
            self._path.pop(0)
        if not self._path:
            self._path, self._covered = [entry], reached
        if len(self._path) == 1:
            self._covered = max(self._covered, reached)

    def _crossed(self, entry: SegmentEntry) -> SegmentEntry | None:
        if self._crossing is None or self._crossing[0] != entry.ulid:
            self._crossing = entry.ulid, _threads.submit(partial(self._cross, entry))
        _, found = self._crossing
        return found.result() if found.done() else None

    def _cross(self, entry: SegmentEntry) -> SegmentEntry | None:
        try:
            following = self._following(entry)
            if following is not None:
                self._remote.indexes(following)
        except LogError as error:
            _log.debug("read-ahead stopped: object=%s cause=%s", entry.data_key, error)
            return None
        return following

    def _warm(self, entry: SegmentEntry, position: int, length: int) -> None:
        try:
            self._remote.warm(entry, position, length)
        except LogError as error:
            _log.debug("read-ahead failed: object=%s cause=%s", entry.data_key, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLoad:
    """Ranges that wait for a read-ahead thread, and the idle share of the threads (0..1)."""

    queued: int
    idle_share: float


class _Threads:
    """A few daemon threads, started on demand: a store that hangs must not delay the process's end."""

    def __init__(self, count: int) -> None:
        self._count = self._left = count
        self._busy = 0
        self._lock = threading.Lock()
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is the future's to tell, and the thread goes on
                future.set_exception(error)

        self._asked.put(run)
        with self._lock:
            if self._left:
                self._left -= 1
                threading.Thread(target=self._work, name=f"tiered-read-ahead-{self._left}", daemon=True).start()
        return future

    @property
    def load(self) -> ReaderLoad:
        with self._lock:
            return ReaderLoad(queued=self._asked.qsize(), idle_share=1 - self._busy / self._count)

    def _work(self) -> None:
        while True:
            call = self._asked.get()
            self._count_busy(1)
            try:
                call()
            finally:
                self._count_busy(-1)

    def _count_busy(self, by: int) -> None:
        with self._lock:
            self._busy += by


_threads = _Threads(THREADS)


def reader_load() -> ReaderLoad:
    return _threads.load
