"""Streams of remote records that stay open between the fetches of a consumer, with their read-ahead.

A consumer that reads on finds its stream by the offset where its last read ended. At most STREAMS_MAX streams are open;
the one that was used least recently is closed first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator

from local import kernels
from local.errors import Corrupt
from local.format.batch_header import plain_header, seal
from local.names import TopicPartition
from local.records.isolation import Isolation

STREAMS_MAX = 64
_INT32_MAX = 2**31 - 1
Place = tuple[TopicPartition, Isolation, int]  # where the next read of a stream begins


class Stream:
    """An open stream of one partition, cut into reads. `offset` is where the next read begins."""

    def __init__(self, runs: Generator[memoryview], offset: int) -> None:
        self._runs = runs
        self._run = _NO_RUN
        self.offset = offset
        self.is_at_end = False

    def take(self, bytes_max: int) -> list[memoryview]:
        """Whole batches of at most `bytes_max` bytes, at least one. Empty at the end of the stream."""
        taken: list[memoryview] = []
        left = bytes_max
        while left > 0:
            if self._run.is_empty:
                data = next(self._runs, None)
                if data is None:
                    self.is_at_end = True
                    break
                self._run = _Run(data)
                continue
            found = self._cut(left, needs_one=not taken)
            if found is None:
                break
            taken.append(found)
            left -= len(found)
        return taken

    def take_now(self, bytes_max: int) -> list[memoryview] | None:
        """As `take`, of the bytes that were read already: perhaps fewer. None if there are none."""
        found = self._cut(bytes_max, needs_one=True) if not self._run.is_empty else None
        return None if found is None else [found]

    def _cut(self, bytes_max: int, *, needs_one: bool) -> memoryview | None:
        cut = self._run.cut(bytes_max, needs_one=needs_one)
        if cut is None:
            return None
        data, self.offset = cut
        if self._run.is_empty:
            self._run = _NO_RUN
        return data

    def close(self) -> None:
        self._runs.close()
        self._run = _NO_RUN


class _Run:
    """Consecutive batches, of which the first were taken. Their headers are scanned once."""

    def __init__(self, data: memoryview) -> None:
        table = kernels.scan_batches(data, verify=False)
        if table.valid_bytes != len(data):
            raise Corrupt("cannot read a stream, its bytes are no whole batches", at=table.valid_bytes)
        self._data, self._position, self._row = data, 0, 0
        self._ends, self._last_offsets = table.positions + table.sizes, table.last_offsets

    @property
    def is_empty(self) -> bool:
        return self._row == len(self._ends)

    def cut(self, bytes_max: int, *, needs_one: bool) -> tuple[memoryview, int] | None:
        """The next batches of at most `bytes_max` bytes, with `needs_one` at least one; and the offset after them."""
        stop = int(self._ends.searchsorted(self._position + bytes_max, "right"))
        if stop <= self._row and not needs_one:
            return None
        stop = max(stop, self._row + 1)
        start, self._position, self._row = self._position, int(self._ends[stop - 1]), stop
        return self._data[start : self._position], int(self._last_offsets[stop - 1]) + 1


_NO_RUN = _Run(memoryview(b""))


class OpenStreams:
    """The table of open streams. Thread safe; a stream that was taken belongs to the caller until it is put back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: OrderedDict[Place, Stream] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def take(self, partition: TopicPartition, isolation: Isolation, offset: int) -> Stream | None:
        with self._lock:
            return self._streams.pop((partition, isolation, offset), None)

    def put(self, partition: TopicPartition, isolation: Isolation, stream: Stream) -> None:
        """Keep the stream for the next read; close it at its end, or if this table was closed."""
        place = partition, isolation, stream.offset
        with self._lock:
            removed = [self._streams.pop(place)] if place in self._streams else []
            if self._is_closed or stream.is_at_end:
                removed.append(stream)
            else:
                self._streams[place] = stream
            while len(self._streams) > STREAMS_MAX:
                removed.append(self._streams.popitem(last=False)[1])
        for each in removed:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            streams, self._streams = list(self._streams.values()), OrderedDict()
        for each in streams:
            each.close()


def gap(offset: int, end: int) -> list[memoryview]:
    """An empty batch of the offsets ``[offset, end)``, or of as many as one batch can span.

    Kafka's cleaner writes such batches. So a consumer reaches the end of a log that ends in removed records.
    """
    last_delta = min(end - 1 - offset, _INT32_MAX)
    header = plain_header(offset, 0, (-1, -1), 0, leader_epoch=-1)._replace(last_offset_delta=last_delta)
    return [memoryview(seal(header, b""))]
