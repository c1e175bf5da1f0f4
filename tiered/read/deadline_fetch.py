"""Fetches with a deadline: a fetch returns the whole batches that arrived in time, maybe none.

The read continues, and the next fetch at the returned offset is answered from it. An error of the read is raised by the
fetch that reaches it. Source: kafka ``remote.fetch.max.wait.ms``, ``fetch.max.bytes``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from local.errors import InvalidRequest
from local.format.batch_header import read_header
from local.names import TopicPartition
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

FETCH_BYTES = 1 << 20
READS_KEPT = 64  # running or unclaimed reads over all partitions; the oldest is cancelled


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches in order, and the offset to fetch next. `is_partial`: the deadline cut it short."""

    data: tuple[memoryview, ...]
    next_offset: int
    is_partial: bool


class Fetcher(AbstractContextManager["Fetcher"]):
    """Fetches from one reader. Thread safe; a context manager that cancels the running reads."""

    def __init__(self, reader: TieredReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._reads: OrderedDict[tuple[TopicPartition, int], _Read] = OrderedDict()

    def fetch(self, partition: TopicPartition, offset: int, *, bytes_max: int = FETCH_BYTES, wait_ms: int) -> Fetched:
        """Batches from the one that holds `offset`: at most `bytes_max` bytes, but at least one that arrived.

        Waits at most `wait_ms`. At the log end the result is empty, immediate and not partial. Raises as
        `TieredReader.batches`, and InvalidRequest for limits below 1 byte or 0 ms.
        """
        if bytes_max < 1 or wait_ms < 0:
            raise InvalidRequest("invalid fetch limit", partition=partition, bytes_max=bytes_max, wait_ms=wait_ms)
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
            with self._lock:
                replaced = self._reads.pop((partition, read.next_offset), None)
                self._reads[partition, read.next_offset] = read
                oldest = self._reads.popitem(last=False)[1] if len(self._reads) > READS_KEPT else None
            for each in (replaced, oldest):
                if each is not None:
                    each.give_up()
        return Fetched(data, read.next_offset, is_partial)

    def close(self) -> None:
        """Cancel the running reads. A read that waits for the store ends at the store's deadline."""
        with self._lock:
            reads, self._reads = list(self._reads.values()), OrderedDict()
        for read in reads:
            read.give_up()

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Read:
    """One stream, read ahead by its own thread up to the requested bytes; holds the batches that arrived."""

    def __init__(self, stream: Generator[memoryview], source: PartitionSource, offset: int, bytes_wanted: int) -> None:
        self.next_offset, self._source, self._stream = offset, source, stream
        self._arrived: deque[memoryview] = deque()
        self._bytes = 0
        self._wanted = bytes_wanted
        self._change = threading.Condition()
        self._is_done = False
        self._error: BaseException | None = None

    def is_of(self, source: PartitionSource) -> bool:
        mine = self._source
        if mine.log is not source.log or mine.metadata is not source.metadata:
            return False
        tiers = source.known_manifest(), source.log
        return all(self.next_offset >= tier.log_start_offset for tier in tiers if tier is not None)

    @property
    def is_over(self) -> bool:
        with self._change:
            return self._is_done and not self._arrived and self._error is None

    def run(self) -> None:
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
        except BaseException as error:  # noqa: BLE001 - the next fetch raises it
            self._error = error
        finally:
            with self._change:
                self._is_done = True
                self._change.notify_all()

    def take(self, bytes_max: int, seconds: float) -> tuple[tuple[memoryview, ...], bool]:
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
    """(bytes of leading whole batches within `room`, next offset); at least one batch if `is_first`."""
    at, following = 0, -1
    while header := read_header(data, at):
        if at + header.size_bytes > room and not (is_first and at == 0):
            break
        at += header.size_bytes
        following = header.next_offset
    return at, following
