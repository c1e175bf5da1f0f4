"""The 61-byte header of a record batch of magic 2. Headers of magic 0 and 1 use the same fields.

| off | size | field           | note                                                                                |
|-----|------|-----------------|-------------------------------------------------------------------------------------|
| 0   | 8    | baseOffset      | first offset as originally written; compaction never changes it                     |
| 8   | 4    | batchLength     | bytes after this field, never below 49                                              |
| 12  | 4    | leaderEpoch     | outside the CRC; -1 unknown                                                         |
| 16  | 1    | magic           | 2                                                                                   |
| 17  | 4    | crc             | CRC-32C of byte 21 to the end, after compression                                    |
| 21  | 2    | attributes      | bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon     |
| 23  | 4    | lastOffsetDelta | last offset = base + delta; compaction never changes it                             |
| 27  | 8    | baseTimestamp   | origin of the deltas; the delete horizon if bit 6 is set; -1 if retained empty      |
| 35  | 8    | maxTimestamp    | largest record timestamp; the append time in log-append batches                     |
| 43  | 8    | producerId      | -1 none                                                                             |
| 51  | 2    | producerEpoch   | -1 none                                                                             |
| 53  | 4    | baseSequence    | -1 none                                                                             |
| 57  | 4    | recordsCount    | 0 only in a batch the cleaner retained empty                                        |

Big-endian. Values are the stored values, -1 included; callers above this codec convert -1 to None. Source: kafka
`DefaultRecordBatch`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, InvalidRequest
from local.format import legacy
from local.format.compression import Codec
from local.format.crc32c import crc32c
from local.format.legacy import MAGICS
from local.format.record import TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
CRC_START = 21  # the first byte that the checksum covers
LENGTH_OVERHEAD = 12  # bytes before the bytes that batchLength counts
LENGTH_MIN = HEADER_BYTES - LENGTH_OVERHEAD
BATCH_BYTES_MAX = 2**31 - 1  # every size fits an int32
MAGIC = 2
MAGIC_END = 17  # bytes up to and including the magic; with fewer bytes left the log has ended
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, two lengths and a header count of one byte each

CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
TORN = "torn"
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class BatchHeader(NamedTuple):
    """One header: its fields in the order of the bytes. `next_offset` is the offset after `last_offset`."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def is_legacy(self) -> bool:
        """Whether the format is 0 or 1."""
        return self.magic != MAGIC

    @property
    def codec(self) -> Codec:
        """The codec. Raises Corrupt for the three ids without a codec."""
        if self.attributes & CODEC_BITS > Codec.ZSTD:
            facts = {"base_offset": self.base_offset, "attributes": self.attributes}
            raise Corrupt("cannot read a batch header, the codec is unknown", **facts)
        return Codec(self.attributes & CODEC_BITS)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON)

    def pack(self) -> bytes:
        """The 61 bytes with `crc` unchanged: the inverse of `read_header`."""
        return HEADER.pack(*self)


def plain_header(
    base_offset: int,
    attributes: int,
    times_ms: tuple[int, int],
    record_count: int,
    *,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> BatchHeader:
    """The header for `seal`, with dense offsets. `times_ms`: base, largest; `producer`: id, epoch, sequence."""
    fields = (LENGTH_MIN, leader_epoch, MAGIC, 0, attributes, record_count - 1)
    return BatchHeader(base_offset, *fields, *times_ms, *producer, record_count)


def read_header(data: Buffer, at: int = 0) -> BatchHeader | None:
    """The header at byte `at`; None if the bytes end before the header does.

    Magic and length are checked as soon as their bytes are available: a damaged length near the end is not a torn tail.
    A wrapper of format 0 or 1 counts as one record at its last offset. Raises Corrupt for a wrong magic or length.
    """
    view = memoryview(data).cast("B")
    if len(view) - at < MAGIC_END:
        return None
    magic = view[at + MAGIC_END - 1]
    if magic in legacy.MAGICS:
        fields = legacy.header_fields(view, at)
        return None if fields is None else BatchHeader._make(fields)
    length = int.from_bytes(view[at + 8 : at + LENGTH_OVERHEAD], "big", signed=True)
    if magic != MAGIC:
        raise Corrupt("cannot read a batch header, its magic is above 2", at=at, magic=magic)
    if length < LENGTH_MIN:
        raise Corrupt("cannot read a batch header, its length is below 49", at=at, length=length)
    if len(view) - at < HEADER_BYTES:
        return None
    return BatchHeader._make(HEADER.unpack_from(view, at))


def seal(header: BatchHeader, section: Buffer) -> bytes:
    """The batch of header and section, with its length and checksum. Raises InvalidRequest above 2^31 bytes."""
    body = memoryview(section).cast("B")
    if len(body) > BATCH_BYTES_MAX - HEADER_BYTES:
        raise InvalidRequest("cannot seal a batch, it is larger than 2^31 bytes", bytes=len(body))
    header = header._replace(batch_length=LENGTH_MIN + len(body), crc=0)
    crc = crc32c(body, crc32c(header.pack()[CRC_START:]))
    return b"".join((header._replace(crc=crc).pack(), body))


# The header checks of a scan, equal to those of the compiled kernels. Not in `local.kernels.pure_kernels`, so that
# the few batches at the end of a log are checked without numpy.


class Walked(NamedTuple):
    """One or more consecutive sound batches. `last_offset` is that of the first batch. Timestamp -1: none."""

    last_offset: int
    next_offset: int
    max_timestamp_ms: int
    valid_bytes: int


def walk(data: Buffer) -> Walked | None:
    """Like `kernels.scan_batches` with CRCs, without numpy. None without a sound batch, or with formats 0 and 1."""
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
    """Whether `data` may hold a batch of a producer or a marker. True for unreadable bytes."""
    view, at, problem = memoryview(data).cast("B"), 0, None
    while at < len(view) and (problem := size_problem(view, at)) is None:
        fields = HEADER.unpack_from(view, at)
        if fields[9] >= 0:
            return True
        at += fields[1] + LENGTH_OVERHEAD
    return problem not in (None, TORN)


def size_problem(view: memoryview, at: int) -> str | None:
    """The fault of the size field, or None. The magic defines its meaning and is checked first."""
    remaining_bytes = len(view) - at
    if remaining_bytes < MAGIC_END:
        return TORN
    magic = view[at + MAGIC_END - 1]
    if magic != MAGIC:
        return f"magic {magic}"
    length = int.from_bytes(view[at + 8 : at + LENGTH_OVERHEAD], "big", signed=True)
    if length < LENGTH_MIN:
        return "length below 49"
    if length > BATCH_BYTES_MAX - LENGTH_OVERHEAD:
        return "length above 2^31-13"
    return TORN if length + LENGTH_OVERHEAD > remaining_bytes else None


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
