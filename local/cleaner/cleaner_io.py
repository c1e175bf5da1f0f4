"""What a cleaning asks of the world between two steps: may it go on, how fast, how long did it take.

The cleaner itself knows nothing of other cleaners. Every slice that it reads and every part that it writes is a step;
the answer comes from whoever started it. Nothing is half-made when a step raises: what is not swapped in yet is a
``.cleaned`` file, which the cleaner takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from local.errors import CleaningAborted, Corrupt
from local.names import LOG, TopicPartition
from local.segment.segment import Segment
from local.segment.segment_reading import slice_bounds
from local.storage import Storage


@dataclass(slots=True)
class Pace:
    """`throttle` is told how many bytes were just read or written and may take its time; `clock` is in seconds."""

    partition: TopicPartition
    should_stop: Callable[[], bool] = lambda: False
    throttle: Callable[[int], None] = lambda size_bytes: None
    clock: Callable[[], float] = time.monotonic
    bytes_read: int = 0
    bytes_written: int = 0

    def check(self) -> None:
        """Raises CleaningAborted when the cleaning was asked to let go of its log."""
        if self.should_stop():
            raise CleaningAborted("cleaning a log, asked to let go of it", partition=self.partition)

    def mapped(self, storage: Storage, segment: Segment) -> memoryview:
        """All of a sealed segment, not copied. Raises DiskFailed, and Corrupt when the file is shorter than it."""
        mapped = storage.map(segment.path(LOG))
        if len(mapped) < segment.size_bytes:
            attempt = "cleaning a segment, it ends inside a batch"
            raise Corrupt(attempt, path=segment.path(LOG), at=len(mapped))
        return mapped[: segment.size_bytes]

    def slices(
        self, storage: Storage, segment: Segment, mapped: memoryview | None = None, *, is_counted: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """All of a sealed segment as (position, whole batches), each a step. Raises as `mapped`, CleaningAborted.

        Where not `is_counted` the caller says by `read` what it read of each.
        """
        if mapped is None:
            mapped = self.mapped(storage, segment)
        for start, end in slice_bounds(segment):
            if is_counted:
                self.read(end - start)
            yield start, mapped[start:end]

    def read(self, size_bytes: int) -> None:
        """One step: `size_bytes` were read. Raises CleaningAborted."""
        self.check()
        self.bytes_read += size_bytes
        self.throttle(size_bytes)

    def written(self, parts: Iterable[memoryview]) -> Iterator[memoryview]:
        """`parts` on their way to the disk, each a step. Raises CleaningAborted."""
        for part in parts:
            self.check()
            self.bytes_written += len(part)
            self.throttle(len(part))
            yield part
