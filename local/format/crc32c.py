"""CRC-32C (Castagnoli) of a byte range: the checksum of batches, chunks and our own files.

The one door for google_crc32c. The compiled kernels carry their own (`crc32c_hardware.h`), because they check batches
while other threads run Python; it runs three streams side by side and prefetches, which from memory is four times as
fast, so long ranges go there: where the kernels are loaded, or once so much was summed that loading them (and numpy
with them, a tenth of a second) pays. Check value: ``crc32c(b"123456789") == 0xE3069283`` (RFC 3720, B.4).
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import google_crc32c

from local.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

LONG_BYTES = 64 << 10  # from here on the kernels pay, where they are loaded
LOAD_BYTES = 32 << 20  # of long ranges, until they are

_summed_bytes = 0  # of long ranges, before they were; two threads may lose some of it


def crc32c(data: Buffer, seed: int = 0) -> int:
    """The checksum of `data`, 0..2^32-1; `seed` is the checksum of what came before, so pieces can be chained."""
    return _fastest()(data, seed) if _is_for_kernels(memoryview(data).nbytes) else _library(data, seed)


def crc32c_each(data: Buffer, lengths: Sequence[int]) -> list[int]:
    """The checksums of neighbouring pieces of `data`, from its start; bytes behind the last are nobody's.

    The interpreter's lock is let go of once, not once a piece. Raises InvalidRequest for pieces that leave the data.
    """
    if _is_for_kernels(memoryview(data).nbytes) and _fastest() is not _library:
        found: list[int] = importlib.import_module("local.kernels._kernels").crc32c_of_each(data, lengths)
        return found
    view, edges = memoryview(data).cast("B"), list(accumulate(lengths, initial=0))
    if min(lengths, default=0) < 0 or edges[-1] > len(view):
        raise InvalidRequest("summing pieces, they leave the data", bytes=len(view), pieces=len(lengths))
    return [crc32c(view[start:end]) for start, end in pairwise(edges)]


def _is_for_kernels(size_bytes: int) -> bool:
    global _summed_bytes
    if size_bytes < LONG_BYTES:
        return False
    if "local.kernels.dispatch" not in sys.modules:
        _summed_bytes += size_bytes
        return _summed_bytes >= LOAD_BYTES
    return True


def _library(data: Buffer, seed: int) -> int:
    if isinstance(data, bytes):
        return int(google_crc32c.extend(seed, data))
    if "numpy" not in sys.modules:
        return int(google_crc32c.extend(seed, bytes(data)))  # a copy of the little that a command looks at
    import numpy as np

    # The library refuses memoryviews but takes arrays, which look at the same bytes without copying them.
    return int(google_crc32c.extend(seed, np.frombuffer(memoryview(data), np.uint8)))


@cache
def _fastest() -> Callable[[Buffer, int], int]:
    """The kernels' where they are compiled and the processor has the instruction they use."""
    kernels = importlib.import_module("local.kernels")  # by name: the kernels import the formats, which import this
    if kernels.implementation() == "pure":
        return _library
    compiled = importlib.import_module("local.kernels._kernels")
    found: Callable[[Buffer, int], int] = compiled.crc32c_of
    return found if compiled.has_crc_instruction() else _library
