"""CRC-32C (Castagnoli): the checksum of batches, chunks and this project's own files.

Only this module uses google_crc32c. For long ranges the compiled kernels (`crc32c_hardware.h`) are four times as fast.
Check value: ``crc32c(b"123456789") == 0xE3069283`` (RFC 3720, B.4).
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

LONG_BYTES = 64 << 10  # from this length on the kernels are faster, if they are loaded
LOAD_BYTES = 32 << 20  # bytes of long ranges after which the kernels are loaded

_summed_bytes = 0  # bytes of long ranges before the kernels were loaded; a thread race may lose some


def crc32c(data: Buffer, seed: int = 0) -> int:
    """The checksum of `data`, 0..2^32-1. `seed` is the checksum of the preceding bytes."""
    return _fastest()(data, seed) if _is_for_kernels(memoryview(data).nbytes) else _library(data, seed)


def crc32c_of(read: Callable[[int, int], Buffer], size_bytes: int, piece_bytes: int = 8 << 20) -> int:
    """The checksum of the first `size_bytes`; `read(start, length)` is called for one piece after the other."""
    found = 0
    for at in range(0, size_bytes, piece_bytes):
        found = crc32c(read(at, min(piece_bytes, size_bytes - at)), found)
    return found


def crc32c_each(data: Buffer, lengths: Sequence[int]) -> list[int]:
    """The checksums of adjacent pieces from the start of `data`. Raises InvalidRequest if they exceed it."""
    if _is_for_kernels(memoryview(data).nbytes) and _fastest() is not _library:
        found: list[int] = importlib.import_module("local.kernels._kernels").crc32c_of_each(data, lengths)
        return found
    view, edges = memoryview(data).cast("B"), list(accumulate(lengths, initial=0))
    if min(lengths, default=0) < 0 or edges[-1] > len(view):
        raise InvalidRequest(
            "cannot compute checksums, a piece is outside the data", bytes=len(view), pieces=len(lengths)
        )
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
        return int(google_crc32c.extend(seed, bytes(data)))  # a copy, but commands without numpy check only few bytes
    import numpy as np

    # The library refuses memoryviews. An array of the same bytes needs no copy.
    return int(google_crc32c.extend(seed, np.frombuffer(memoryview(data), np.uint8)))


@cache
def _fastest() -> Callable[[Buffer, int], int]:
    """The kernels' function if they are compiled and the processor has the CRC instruction, else the library's."""
    kernels = importlib.import_module("local.kernels")  # by name: kernels import the formats, which import this module
    if kernels.implementation() == "pure":
        return _library
    compiled = importlib.import_module("local.kernels._kernels")
    found: Callable[[Buffer, int], int] = compiled.crc32c_of
    return found if compiled.has_crc_instruction() else _library
