"""One bit per record, as in the cleaner's kernels: record r is bit ``r & 7`` of byte ``r >> 3``.

Bits of the last byte after the last record are undefined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]


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
