"""Fetches that end in time: what has arrived by then is the answer, and what has not goes on arriving.

A read of the remote tier may take longer than a caller can wait. A fetch gives the whole batches that are there when
its time is up, none of them perhaps, and where to go on. The read behind it goes on: the next fetch at that place is
answered from it, so waiting in short steps costs no request twice. An error of the read is the answer of the fetch that
comes to it, after the batches before it were given.
Source: kafka ``remote.fetch.max.wait.ms``, ``fetch.max.bytes``, which answers with nothing where this has a part.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType

from local.errors import InvalidRequest
from local.names import TopicPartition
from local.records.batch import read_header
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

FETCH_BYTES = 1 << 20
READS_KEPT = 64  # reads under way or waiting to be fetched on, over all partitions; the oldest is given up


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches in order, and the offset to fetch next. `is_partial`: time was up before all asked for was here."""

    data: tuple[memoryview, ...]
    next_offset: int
    is_partial: bool

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.data))


class Fetcher:
    """Fetches from one reader. Thread safe; a context manager that gives up the reads under way."""

    def __init__(self, reader: TieredReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._reads: OrderedDict[tuple[TopicPartition, int], _Read] = OrderedDict()

    def fetch(self, partition: TopicPartition, offset: int, *, bytes_max: int = FETCH_BYTES, wait_ms: int) -> Fetched:
        """Batches from the one that holds `offset` on: at most `bytes_max` bytes of them, but one if any has arrived.

        Waits at most `wait_ms` for them; at the log end the answer is empty, at once, and not partial. Raises what
        `TieredReader.batches` does, and InvalidRequest for limits below 1 byte or 0 ms.
        """
        if bytes_max < 1 or wait_ms < 0:
            raise InvalidRequest("fetching, not a limit", partition=partition, bytes_max=bytes_max, wait_ms=wait_ms)
        source = self._reader.source(partition)
        with self._lock:
            read = self._reads.pop((partition, offset), None)
        if read is not None and not read.is_of(source):
            read.give_up()
            read = None
        if read is None:
            read = _Read(self._reader.batches(partition, offset), source, offset, bytes_max)
            threading.Thread(target=read.run, name=f"tiered-fetch-{partition}", daemon=True).start()
        data, is_partial = read.take(bytes_max, wait_ms / 1000)
        if not read.is_over:
            self._keep((partition, read.next_offset), read)
        return Fetched(data, read.next_offset, is_partial)

    def close(self) -> None:
        """Give up the reads under way; one that waits for the store ends when the store's deadline does."""
        with self._lock:
            reads, self._reads = list(self._reads.values()), OrderedDict()
        for read in reads:
            read.give_up()

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, place: tuple[TopicPartition, int], read: _Read) -> None:
        with self._lock:
            replaced = self._reads.pop(place, None)
            self._reads[place] = read
            oldest = self._reads.popitem(last=False)[1] if len(self._reads) > READS_KEPT else None
        for each in (replaced, oldest):
            if each is not None:
                each.give_up()


class _Read:
    """One stream, read by a thread of its own as far as somebody asked; what it brought waits here."""

    def __init__(self, stream: Generator[memoryview], source: PartitionSource, offset: int, bytes_wanted: int) -> None:
        self.next_offset = offset
        self._source = source
        self._stream = stream
        self._arrived: deque[memoryview] = deque()
        self._bytes = 0
        self._wanted = bytes_wanted
        self._change = threading.Condition()
        self._is_done = False
        self._error: BaseException | None = None

    def is_of(self, source: PartitionSource) -> bool:
        """Whether what waits here is still there: neither deleted meanwhile nor another topic's of the same name."""
        mine = self._source
        if mine.log is not source.log or mine.metadata is not source.metadata:
            return False
        head = source.known_head()
        starts = [head.log_start_offset if head is not None else 0, source.log.log_start_offset if source.log else 0]
        return self.next_offset >= max(starts)

    @property
    def is_over(self) -> bool:
        """Nothing will come any more, and nothing waits here."""
        with self._change:
            return self._is_done and not self._arrived and self._error is None

    def run(self) -> None:
        """In a thread: read on while what waits is less than what was asked for."""
        try:
            with closing(self._stream) as stream:
                for data in stream:
                    with self._change:
                        self._arrived.append(data)
                        self._bytes += len(data)
                        self._change.notify_all()
                        self._change.wait_for(lambda: self._is_done or self._bytes < self._wanted)
                        if self._is_done:
                            return
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever fetches next
            self._error = error
        finally:
            with self._change:
                self._is_done = True
                self._change.notify_all()

    def take(self, bytes_max: int, seconds: float) -> tuple[tuple[memoryview, ...], bool]:
        """What is here by then, at most so much, and whether more was asked for. Raises the stream's error."""
        with self._change:
            self._wanted = bytes_max
            self._change.notify_all()
            is_whole = self._change.wait_for(lambda: self._is_done or self._bytes >= bytes_max, seconds)
            found: list[memoryview] = []
            room = bytes_max
            while self._arrived and room > 0:
                data = self._arrived.popleft()
                fitting, following = _fitting(data, room, is_first=not found)
                if fitting:
                    found.append(data[:fitting])
                    self.next_offset = following
                    room -= fitting
                    self._bytes -= fitting
                if fitting < len(data):
                    self._arrived.appendleft(data[fitting:])
                    break
            if not found and self._is_done and self._error is not None:
                error, self._error = self._error, None
                raise error
            self._change.notify_all()
            return tuple(found), not is_whole

    def give_up(self) -> None:
        with self._change:
            self._is_done = True
            self._arrived.clear()
            self._change.notify_all()


def _fitting(data: memoryview, room: int, *, is_first: bool) -> tuple[int, int]:
    """(bytes of leading whole batches within `room`, the offset after them); one batch at least if it `is_first`."""
    at, following = 0, -1
    while header := read_header(data, at):
        if at + header.size_bytes > room and not (is_first and at == 0):
            break
        at += header.size_bytes
        following = header.next_offset
    return at, following
