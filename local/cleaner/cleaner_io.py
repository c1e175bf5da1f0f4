"""The cleaner's I/O steps: each step counts bytes, may be throttled, and may end the pass.

The cleaner itself knows no other cleaner. Every slice it reads and every part it writes is one step; the caller of the
pass supplies the throttle and the stop condition. A step that raises leaves no partial result: unfinished segments are
``.cleaned`` files, which the cleaner deletes.

**Bits of records.** Record r is bit ``r & 7`` of byte ``r >> 3``, as in the cleaner's kernels. Bits of the last byte
after the last record are undefined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local.errors import CleaningAborted, Corrupt
from local.names import LOG, TopicPartition
from local.segment.segment import Segment
from local.segment.segment_reading import slice_bounds
from local.storage import Storage

Bits = NDArray[np.uint8]


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
        """Map all of a closed segment, without a copy. Raises DiskFailed, Corrupt if the file is too short."""
        mapped = storage.map(segment.path(LOG))
        if len(mapped) < segment.size_bytes:
            attempt = "cannot clean a segment, it ends inside a batch"
            raise Corrupt(attempt, path=segment.path(LOG), at=len(mapped))
        return mapped[: segment.size_bytes]

    def slices(
        self, storage: Storage, segment: Segment, mapped: memoryview | None = None, *, is_counted: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield a closed segment as (position, whole batches). Each slice is throttled and may abort the pass.

        If `is_counted` is False, the caller must call `read` for each slice. Raises as `mapped`, and CleaningAborted.
        """
        if mapped is None:
            mapped = self.mapped(storage, segment)
        for start, end in slice_bounds(segment):
            if is_counted:
                self.read(end - start)
            yield start, mapped[start:end]

    def read(self, size_bytes: int) -> None:
        """Account for `size_bytes` that were read; may wait for the throttle. Raises CleaningAborted."""
        self.check()
        self.bytes_read += size_bytes
        self.throttle(size_bytes)

    def written(self, parts: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield `parts` for the disk; the throttle counts each. Raises CleaningAborted."""
        for part in parts:
            self.check()
            self.bytes_written += len(part)
            self.throttle(len(part))
            yield part


def packed(flags: NDArray[np.bool_]) -> Bits:
    return np.packbits(flags, bitorder="little")


def clear(bits: Bits, first: int, count: int) -> None:
    for record in range(first, first + count):
        bits[record >> 3] &= 0xFF ^ (1 << (record & 7))


def joined(bits: Bits, runs: Sequence[tuple[int, int]]) -> Bits:
    """A copy of some runs (first record, a multiple of 8; number of records), joined."""
    parts = [bits[first >> 3 : (first + count + 7) >> 3] for first, count in runs]
    if len(parts) == 1:
        return parts[0].copy()
    flags = [np.unpackbits(part, count=count, bitorder="little") for part, (_, count) in zip(parts, runs, strict=True)]
    return np.packbits(np.concatenate(flags), bitorder="little") if flags else np.empty(0, np.uint8)
