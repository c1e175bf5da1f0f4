"""What a cleaning asks of the world between two steps: may it go on, how fast, how long did it take.

The cleaner itself knows nothing of other cleaners. Every slice that it reads and every part that it writes is a step;
the answer comes from whoever started it. Nothing is half-made when a step raises: what is not swapped in yet is a
``.cleaned`` file, which the cleaner takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from local.errors import CleaningAborted
from local.names import TopicPartition
from local.segment import Segment
from local.segment_reading import batch_slices


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

    def slices(self, segment: Segment) -> Iterator[tuple[int, memoryview]]:
        """`batch_slices`, each a step. Raises CleaningAborted."""
        for start, data in batch_slices(segment):
            self.read(len(data))
            yield start, data

    def read(self, size_bytes: int) -> None:
        """One step: `size_bytes` were read. Raises CleaningAborted."""
        self.check()
        self.bytes_read += size_bytes
        self.throttle(size_bytes)

    def written(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """`parts` on their way to the disk, each a step. Raises CleaningAborted."""
        for part in parts:
            self.check()
            self.bytes_written += len(part)
            self.throttle(len(part))
            yield part
