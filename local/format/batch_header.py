"""The 61-byte header of a record batch of magic 2.

Headers of magic 0 and 1 are read into the same fields.

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

Big-endian. Values are the stored values, -1 included; callers above this codec convert -1 to None.
Magic 0 and 1 are described in `local.format.legacy`. Source: kafka `DefaultRecordBatch`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from local.errors import Corrupt, InvalidRequest
from local.format import legacy
from local.format.compression import Codec
from local.format.crc32c import crc32c
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """One header. `last_offset` is inclusive, `next_offset` is the offset after it."""

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
        """Whether the format is 0 or 1: another checksum, no producer, and never written any more."""
        return self.magic != MAGIC

    @property
    def codec(self) -> Codec:
        """The codec. Raises Corrupt for the three ids without a codec."""
        if self.attributes & CODEC_BITS > Codec.ZSTD:
            raise Corrupt(
                "cannot read a batch header, the codec is unknown",
                base_offset=self.base_offset,
                attributes=self.attributes,
            )
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
        return HEADER.pack(
            self.base_offset,
            self.batch_length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )


def read_header(data: Buffer, at: int = 0) -> BatchHeader | None:
    """The header at byte `at`; None if the bytes end before the header does.

    Magic and length are checked as soon as their bytes are available, as in Kafka: a damaged length in the last few
    bytes is never taken for a torn tail. A message of format 0 or 1 gives a header without producer and epoch. If it
    wraps a compressed set, it counts as one record at its last offset; `kernels.scan_batches` reads the set. Raises
    Corrupt if magic or length is invalid.
    """
    view = memoryview(data).cast("B")
    if len(view) - at < MAGIC_END:
        return None
    magic = view[at + MAGIC_END - 1]
    if magic in legacy.MAGICS:
        fields = legacy.header_fields(view, at)
        return None if fields is None else header_of(fields)
    length = int.from_bytes(view[at + 8 : at + LENGTH_OVERHEAD], "big", signed=True)
    if magic != MAGIC:
        raise Corrupt("cannot read a batch header, its magic is above 2", at=at, magic=magic)
    if length < LENGTH_MIN:
        raise Corrupt("cannot read a batch header, its length is below 49", at=at, length=length)
    if len(view) - at < HEADER_BYTES:
        return None
    return header_of(HEADER.unpack_from(view, at))


def header_of(fields: tuple[int, ...]) -> BatchHeader:
    """The header of its thirteen fields, in the order of the bytes."""
    base, length, epoch, magic, crc, attributes, delta, base_ms, max_ms, producer, p_epoch, sequence, count = fields
    return BatchHeader(
        base_offset=base,
        batch_length=length,
        leader_epoch=epoch,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=delta,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer,
        producer_epoch=p_epoch,
        base_sequence=sequence,
        record_count=count,
    )


def seal(header: BatchHeader, section: Buffer) -> bytes:
    """Join header and section to one batch, and set its length and checksum."""
    body = memoryview(section).cast("B")
    if len(body) > BATCH_BYTES_MAX - HEADER_BYTES:
        raise InvalidRequest("cannot seal a batch, it is larger than 2^31 bytes", bytes=len(body))
    header = replace(header, batch_length=LENGTH_MIN + len(body), crc=0)
    crc = crc32c(body, crc32c(header.pack()[CRC_START:]))
    return b"".join((replace(header, crc=crc).pack(), body))
