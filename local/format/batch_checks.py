"""The header checks that a scan makes of each batch. The compiled kernels make the same checks.

They are apart from `local.kernels.pure_kernels`, so that the few batches at the end of a log are checked without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from local.format.batch_header import (
    BATCH_BYTES_MAX,
    CODEC_BITS,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_END,
    RECORD_BYTES_MIN,
)
from local.format.compression import Codec
from local.format.crc32c import crc32c
from local.format.legacy import MAGICS

if TYPE_CHECKING:
    from typing_extensions import Buffer

TORN = "torn"
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Walked(NamedTuple):
    """At least one consecutive sound batch.

    `last_offset` is the last offset of the first batch, inclusive. A timestamp of -1 means none.
    """

    last_offset: int
    next_offset: int
    max_timestamp_ms: int
    valid_bytes: int


def walk(data: Buffer) -> Walked | None:
    """Read the sound batches from the first byte on and check every CRC; None if there are none.

    The result equals that of `kernels.scan_batches`. Data with a message of format 0 or 1 also gives None: it is left
    to `scan_batches`.
    """
    view = memoryview(data).cast("B")
    at, first, last_offset, latest = 0, -1, -1, -1
    while at < len(view) and size_problem(view, at) is None:
        fields = HEADER.unpack_from(view, at)
        size = fields[1] + LENGTH_OVERHEAD
        if batch_problem(view[at : at + size], fields, last_offset, verify=True) is not None:
            break
        last_offset = fields[0] + fields[6]
        first = last_offset if at == 0 else first
        at, latest = at + size, max(latest, fields[8])
    has_legacy = len(view) - at >= MAGIC_END and view[at + MAGIC_END - 1] in MAGICS
    return Walked(first, last_offset + 1, latest, at) if at and not has_legacy else None


def may_have_producers(data: Buffer) -> bool:
    """Whether `data` may hold a batch of an idempotent producer or a marker.

    True also for bytes that cannot be read as batches; a torn end does not count.
    """
    view, at, problem = memoryview(data).cast("B"), 0, None
    while at < len(view) and (problem := size_problem(view, at)) is None:
        fields = HEADER.unpack_from(view, at)
        if fields[9] >= 0:
            return True
        at += fields[1] + LENGTH_OVERHEAD
    return problem not in (None, TORN)


def size_problem(view: memoryview, at: int) -> str | None:
    """The fault of the size field, or None.

    The magic is checked first: it defines the meaning of the size field.
    """
    left = len(view) - at
    if left < MAGIC_END:
        return TORN
    magic = view[at + MAGIC_END - 1]
    if magic != MAGIC:
        return f"magic {magic}"
    length = int.from_bytes(view[at + 8 : at + LENGTH_OVERHEAD], "big", signed=True)
    if length < LENGTH_MIN:
        return "length below 49"
    if length > BATCH_BYTES_MAX - LENGTH_OVERHEAD:
        return "length above 2^31-13"
    return TORN if length + LENGTH_OVERHEAD > left else None


def batch_problem(batch: memoryview, fields: tuple[int, ...], last_offset: int, *, verify: bool) -> str | None:
    base, _length, _epoch, _magic, crc, bits, delta, *_rest, count = fields
    if verify and crc32c(batch[CRC_START:]) != crc:
        return "crc differs"
    if base < 0 or base > LONG_MAX - 1 - INT_MAX:
        return "offset outside 0..2^63"
    if delta < 0:
        return "last offset delta below 0"
    if base <= last_offset:
        return "offset goes back"
    if count < 0 or count > delta + 1:
        return "record count outside its offsets"
    if bits & CODEC_BITS > Codec.ZSTD:
        return "no such codec"
    if bits & CODEC_BITS == Codec.NONE and count * RECORD_BYTES_MIN > len(batch) - HEADER_BYTES:
        return "record count above its bytes"
    return None
