"""Reading remote segments one after another: bytes that are likely next are on their way before they are asked for.

A stream proves itself: its first read fetches what it asked for and nothing else, so a look at one record costs one
small GET. Each read that goes on where the last one ended makes GROWTH times as much of what is fetched ahead, up to
`window_bytes_max`, and of the step that the stream should ask for next (`step_bytes`). A jump begins anew. The window
goes on in the following segment: near the end of one, the next one's indexes and first chunks are fetched.

A segment is thought of as cells of RANGE_BYTES. Once the window is as large as that, whole cells are fetched, each by
one GET, and what a read gives ends where its cell does: so nothing is copied together, and none waits for two GETs.
Cells that the stream is through with are the first to leave the cache (`RemotePartition.leave_behind`).

Fetching ahead happens in a few threads that all streams share, into the cache where the real read finds it, or waits
for it (one flight). What goes wrong there is not reported: the real read meets the same and tells.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from local.errors import LogError
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.segment_entry import RemoteSegment

WINDOW_BYTES_MAX = 32 << 20  # fetched ahead of one stream, and up to a cell more
STEP_BYTES_MIN, STEP_BYTES_MAX = 128 << 10, 8 << 20
WINDOW_BYTES_MIN = 1 << 20
GROWTH = 4  # five reads to the full window: each of them waits for the store once, and more is not fetched in vain
THREADS = 4  # of all streams together

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_threads: _Threads | None = None


class SequentialReader:
    """One stream's reads of one partition. Not thread safe: a stream belongs to one thread. Close it at the end.

    `following` gives the segment that the stream will read after one, None where it ends; it is called in another
    thread and may read the index.
    """

    def __init__(
        self,
        remote: RemotePartition,
        following: Callable[[RemoteSegment], RemoteSegment | None],
        *,
        window_bytes_max: int = WINDOW_BYTES_MAX,
    ) -> None:
        self._remote = remote
        self._following = following
        # What a small cache would let go of before it is read is not worth a request.
        self._window_max = min(window_bytes_max, remote.cache_bytes_max // 2)
        self._window = 0
        # The last read: segment, first and one past the last byte. The segment is left behind up to `_left`.
        self._last: tuple[RemoteSegment, int, int] | None = None
        self._left = 0
        # Bytes below `_covered` of the last of these rows are here or on their way, and all of those before it.
        self._path: list[RemoteSegment] = []
        self._covered = 0
        self._crossing: tuple[str, Future[RemoteSegment | None]] | None = None
        self._flights: deque[Future[None]] = deque()
        self._is_open = True
        self.step_bytes = STEP_BYTES_MIN
        remote.stream_begins()

    def read(self, row: RemoteSegment, position: int, length: int, *, in_one_piece: bool = False) -> memoryview:
        """As `RemotePartition.read`. A read that begins inside the last one (a batch was cut) goes on from it."""
        goes_on = self._goes_on(row, position)
        if not goes_on:
            self._begin_anew(row)
        if in_one_piece:
            length = min(length, _left_of_cell(position))
        data = self._remote.read(row, position, length, in_one_piece=in_one_piece)
        reached = position + len(data)
        if goes_on:
            self._window = min(max(GROWTH * self._window, WINDOW_BYTES_MIN), self._window_max)
            self.step_bytes = min(GROWTH * self.step_bytes, STEP_BYTES_MAX)
            self._leave_behind(row, position)
        self._last = row, position, reached
        if self._window:
            self._fetch_ahead(row, reached)
        return data

    def _goes_on(self, row: RemoteSegment, position: int) -> bool:
        if self._last is None:
            return False
        last, start, reached = self._last
        if last.ulid == row.ulid:
            return start <= position <= reached
        # The stream left a segment at its end, and this is the one behind it.
        return bool(self._path) and self._path[0].ulid == last.ulid and reached >= last.size_bytes and position == 0

    def close(self) -> None:
        """Forget what is not under way yet. Idempotent."""
        self._forget_flights()
        if self._is_open:
            self._is_open = False
            self._remote.stream_ends()

    def _forget_flights(self) -> None:
        for flight in self._flights:
            flight.cancel()
        self._flights.clear()

    def _begin_anew(self, row: RemoteSegment) -> None:
        self._forget_flights()
        self._window, self.step_bytes = 0, STEP_BYTES_MIN
        self._path, self._covered, self._crossing = [row], 0, None
        self._last, self._left = None, 0

    def _leave_behind(self, row: RemoteSegment, position: int) -> None:
        """The cells before the one that `position` lies in, and all of the segment before."""
        assert self._last is not None, "it goes on"
        last = self._last[0]
        if last.ulid != row.ulid:
            self._remote.leave_behind(last, self._left, last.size_bytes)
            self._left = 0
        cell = position - position % RANGE_BYTES
        if cell > self._left:
            self._remote.leave_behind(row, self._left, cell)
            self._left = cell

    def _fetch_ahead(self, row: RemoteSegment, reached: int) -> None:
        """Cover `_window` bytes behind `reached`, as far as it is known where they lie."""
        while self._flights and self._flights[0].done():
            self._flights.popleft()
        self._come_to(row, reached)
        while (ahead := sum(each.size_bytes for each in self._path[:-1]) + self._covered - reached) < self._window:
            last = self._path[-1]
            if self._covered >= last.size_bytes:
                following = self._crossed(last)
                if following is None:
                    return
                self._path.append(following)
                self._covered = 0
                continue
            length = min(self._piece(self._window - ahead), last.size_bytes - self._covered)
            self._flights.append(_pool().submit(self._warm, last, self._covered, length))
            self._covered += length

    def _piece(self, missing: int) -> int:
        """How much to fetch next by one GET: a whole cell where the window has come to that."""
        left = _left_of_cell(self._covered)
        return left if self._window >= RANGE_BYTES else min(left, missing)

    def _come_to(self, row: RemoteSegment, reached: int) -> None:
        """Forget the path behind the stream."""
        while self._path and self._path[0].ulid != row.ulid:
            self._path.pop(0)
        if not self._path:
            self._path, self._covered = [row], reached
        if len(self._path) == 1:
            self._covered = max(self._covered, reached)

    def _crossed(self, row: RemoteSegment) -> RemoteSegment | None:
        """The segment after `row`, once another thread has found it; None until then, and where the stream ends."""
        if self._crossing is None or self._crossing[0] != row.ulid:
            self._crossing = row.ulid, _pool().submit(self._cross, row)
        _, found = self._crossing
        return found.result() if found.done() else None

    def _cross(self, row: RemoteSegment) -> RemoteSegment | None:
        try:
            following = self._following(row)
            if following is not None:
                self._remote.indexes(following)
        except LogError as error:
            _log.debug("reading ahead stops: object=%s cause=%s", row.data_key, error)
            return None
        return following

    def _warm(self, row: RemoteSegment, position: int, length: int) -> None:
        try:
            self._remote.warm(row, position, length)
        except LogError as error:
            _log.debug("reading ahead failed: object=%s cause=%s", row.data_key, error)


def _left_of_cell(position: int) -> int:
    return RANGE_BYTES - position % RANGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLoad:
    """How many ranges wait for a thread, and the share of the threads that have nothing to do (0..1)."""

    queued: int
    idle_share: float


class _Threads:
    """A few threads that no process waits for at its end: a store that hangs would hold that up. Begun when needed."""

    def __init__(self, count: int) -> None:
        self._count = self._left = count
        self._busy = 0
        self._lock = threading.Lock()
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*given, **named))
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
            self._tell(1)
            try:
                call()
            finally:
                self._tell(-1)

    def _tell(self, by: int) -> None:
        with self._lock:
            self._busy += by


def reader_load() -> ReaderLoad:
    """How busy the threads of this process are that fetch ahead."""
    with _lock:
        threads = _threads
    return threads.load if threads is not None else ReaderLoad(queued=0, idle_share=1.0)


def _pool() -> _Threads:
    global _threads
    with _lock:
        if _threads is None:
            _threads = _Threads(THREADS)
        return _threads
