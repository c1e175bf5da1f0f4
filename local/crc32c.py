"""CRC-32C (Castagnoli) of a byte range: the checksum of batches, chunks and our own files.

The one door for google_crc32c. The compiled kernels carry their own copy (`crc32c_hardware.h`), because they check
batches while other threads run Python. Check value: ``crc32c(b"123456789") == 0xE3069283`` (RFC 3720, B.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


def crc32c(data: Buffer, seed: int = 0) -> int:
    """The checksum of `data`, 0..2^32-1; `seed` is the checksum of what came before, so pieces can be chained."""
    if isinstance(data, bytes):
        return int(google_crc32c.extend(seed, data))
    import numpy as np  # heavy, and whoever only decides checks nothing

    # The library refuses memoryviews but takes arrays, which look at the same bytes without copying them.
    return int(google_crc32c.extend(seed, np.frombuffer(memoryview(data), np.uint8)))
