"""Encode whole record batches, assign their offsets, and read transaction markers.

`local.format.batch_header` has the header. Each record after it, with zigzag varints:

    length | attributes 1 byte | timestamp delta (64 bit) | offset delta | key length, key | value length, value |
    header count | for each header: key length, key in UTF-8 | value length, value

A length of -1 means null; it is legal for the key, the value and a header's value. With a codec, all records form one
compressed section. Sources: kafka `DefaultRecordBatch`, `DefaultRecord`, `EndTransactionMarker`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import (
    CODEC_BITS,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    read_header,
    seal,
)
from local.format.compression import Codec
from local.format.record import TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LONG = (-(2**63), 2**63 - 1)
_INT = (-(2**31), 2**31 - 1)
_SHORT = (-(2**15), 2**15 - 1)
_MARKER_KEY, _MARKER_VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """The end of a transaction, read from a control record."""

    is_commit: bool
    coordinator_epoch: int


def encode_batch(
    records: Sequence[tuple[object, ...]],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """Encode one batch of `records` at consecutive offsets.

    A record is a `Record` or a tuple (key, value, timestamp_ms[, headers]). Under LOG_APPEND_TIME every record reads
    back with `append_time_ms`. Raises InvalidRequest for no records, a wrong record, number or level.
    """
    from local import kernels

    attributes = codec | (LOG_APPEND_TIME if timestamp_type else 0) | (TRANSACTIONAL if is_transactional else 0)
    if (append_time_ms is None) is bool(timestamp_type):
        raise InvalidRequest(
            "cannot encode a batch, append time and timestamp type contradict each other", append_time_ms=append_time_ms
        )
    append_ms = -1 if append_time_ms is None else append_time_ms
    _check_fields(base_offset, leader_epoch, append_ms, producer_id, producer_epoch, base_sequence)
    fields = (base_offset, leader_epoch, attributes, append_ms, producer_id, producer_epoch, base_sequence)
    if codec is Codec.NONE:
        return kernels.encode_plain_batch(records, fields)
    plain = kernels.encode_plain_batch(records, (*fields[:2], attributes & ~CODEC_BITS, *fields[3:]))
    header = read_header(plain)
    assert header is not None
    section = kernels.compress_section(codec, memoryview(plain)[HEADER_BYTES:], level)
    return seal(header._replace(attributes=attributes), section)


def encode_marker(
    *,
    base_offset: int,
    is_commit: bool,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """Encode the control batch that ends a transaction: one record, key = int16 version 0, int16 type."""
    from local import kernels

    key = _MARKER_KEY.pack(0, _COMMIT if is_commit else _ABORT)
    record = (key, _MARKER_VALUE.pack(0, coordinator_epoch), timestamp_ms)
    attributes = TRANSACTIONAL | CONTROL
    _check_fields(base_offset, leader_epoch, -1, producer_id, producer_epoch, -1)
    fields = (base_offset, leader_epoch, attributes, -1, producer_id, producer_epoch, -1)
    return kernels.encode_plain_batch([record], fields)


def read_marker(data: Buffer, at: int = 0) -> Marker | None:
    """Read the transaction marker from the control batch at byte `at`; None for an empty batch or another type.

    Longer keys and values are legal: later versions append fields. Raises Corrupt for a shorter key or value.
    """
    header = read_header(data, at)
    if header is None or header.record_count == 0:
        return None
    view = memoryview(data).cast("B")[at : at + header.size_bytes]
    from local import kernels

    columns = kernels.decode_columns(view, verify=False, include_control=True)
    key, value = (columns.key(0), columns.value(0)) if len(columns) else (None, None)
    if key is None or len(key) < _MARKER_KEY.size:
        raise Corrupt("cannot read a control record, its key is too short", base_offset=header.base_offset)
    _, kind = _MARKER_KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise Corrupt("cannot read a transaction marker, its value is too short", base_offset=header.base_offset)
    return Marker(kind == _COMMIT, _MARKER_VALUE.unpack_from(value)[1])


def assign_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place, outside the checksum. Raises InvalidRequest, Corrupt."""
    _check_fields(base_offset, leader_epoch, -1, -1, -1, -1)
    header = read_header(batch)
    if header is None:
        raise Corrupt("cannot assign an offset, the batch is truncated", bytes=len(batch))
    if header.is_legacy:
        raise InvalidRequest("cannot assign an offset, the batch is not of format 2", magic=header.magic)
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)


def _check_fields(
    base_offset: int, leader_epoch: int, append_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    if not 0 <= base_offset < _LONG[1] - _INT[1]:
        raise InvalidRequest("cannot encode a batch, an offset is outside 0..2^63", base_offset=base_offset)
    for name, number, (lowest, highest) in (
        ("leader_epoch", leader_epoch, _INT),
        ("append_time_ms", append_ms, _LONG),
        ("producer_id", producer_id, _LONG),
        ("producer_epoch", producer_epoch, _SHORT),
        ("base_sequence", base_sequence, _INT),
    ):
        if not lowest <= number <= highest:
            raise InvalidRequest("cannot encode a batch, a number is too large for its field", **{name: number})
