"""The cleaner's I/O steps: each step counts bytes, may be throttled, and may end the pass.

The cleaner itself knows no other cleaner. Every slice it reads and every part it writes is one step; the caller of the
pass supplies the throttle and the stop condition. A step that raises leaves no partial result: unfinished segments are
``.cleaned`` files, which the cleaner deletes.
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
class CleanerThrottle:
    """`throttle` gets the bytes just read or written, and may block. `clock` is in seconds."""

    partition: TopicPartition
    should_stop: Callable[[], bool] = lambda: False
    throttle: Callable[[int], None] = lambda size_bytes: None
    clock: Callable[[], float] = time.monotonic
    bytes_read: int = 0
    bytes_written: int = 0

    def check(self) -> None:
        """Raises CleaningAborted if the pass was asked to stop."""
        if self.should_stop():
            raise CleaningAborted("the cleaner was stopped on request", partition=self.partition)

    def mapped(self, storage: Storage, segment: Segment) -> memoryview:
        """Map all of a closed segment, without a copy.

        Raises DiskFailed, and Corrupt if the file is too short.
        """
        mapped = storage.map(segment.path(LOG))
        if len(mapped) < segment.size_bytes:
            attempt = "cannot clean a segment, it ends inside a batch"
            raise Corrupt(attempt, path=segment.path(LOG), at=len(mapped))
        return mapped[: segment.size_bytes]

    def slices(
        self, storage: Storage, segment: Segment, mapped: memoryview | None = None, *, is_counted: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """All of a closed segment as (position, whole batches), each a step.

        If `is_counted` is False, the caller must call `read` for each slice.
        Raises as `mapped`, and CleaningAborted.
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
        """Pass `parts` on to the disk, each as one step. Raises CleaningAborted."""
        for part in parts:
            self.check()
            self.bytes_written += len(part)
            self.throttle(len(part))
            yield part
