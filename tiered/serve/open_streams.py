"""Streams of remote records that stay open between the fetches of a consumer, with their read-ahead.

A consumer that reads on finds its stream by the offset where its last read ended. At most STREAMS_MAX streams are open;
the one that was used least recently is closed first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator

from local import kernels
from local.format.batch_header import plain_header, seal
from local.names import TopicPartition
from local.records.isolation import Isolation

STREAMS_MAX = 64
_INT32_MAX = 2**31 - 1
Place = tuple[TopicPartition, Isolation, int]  # where the next read of a stream begins


class Stream:
    """An open stream of one partition, cut into reads. `offset` is where the next read begins."""

    def __init__(self, runs: Generator[memoryview], offset: int) -> None:
        self._runs, self._rest = runs, memoryview(b"")
        self.offset = offset
        self.is_at_end = False

    def take(self, bytes_max: int) -> list[memoryview]:
        """Whole batches of at most `bytes_max` bytes, at least one. Empty at the end of the stream."""
        taken: list[memoryview] = []
        left = bytes_max
        while left > 0:
            run = self._rest if len(self._rest) else next(self._runs, None)
            if run is None:
                self.is_at_end = True
                break
            table = kernels.scan_batches(run, verify=False)
            ends = table.positions + table.sizes
            count = int(ends.searchsorted(left, "right")) or (0 if taken else 1)
            if count:
                cut = int(ends[count - 1])
                taken.append(run[:cut])
                left -= cut
                self.offset = int(table.last_offsets[count - 1]) + 1
                run = run[cut:]
            self._rest = run
            if len(run):
                break
        return taken

    def close(self) -> None:
        self._runs.close()
        self._rest = memoryview(b"")


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
