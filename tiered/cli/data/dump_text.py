"""Batches and records as the lines of Kafka's own dump tool, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered.inspect.dump_rows import BatchRow, RecordRow

INDENT = "|"
_OPTIONAL = ("currentTxnFirstOffset",)
MAGIC = 2  # as in `local.format.batch_header`, whose import loads numpy


def batch_line(row: BatchRow) -> str:
    """Format a batch; a message of format 0 or 1 has an offset in place of the producer's fields."""
    position = "" if row.position is None else f" position: {row.position}"
    return (
        f"{f'offset: {row.last_offset}' if row.magic < MAGIC else _producer(row)}{position}"
        f" {row.timestamp_type}: {row.max_timestamp} size: {row.size}"
        f" magic: {row.magic} compresscodec: {row.compresscodec} crc: {row.crc} isvalid: {_truth(row.isvalid)}"
    )


def _producer(row: BatchRow) -> str:
    return (
        f"baseOffset: {row.base_offset} lastOffset: {row.last_offset} count: {row.count}"
        f" baseSequence: {row.base_sequence} lastSequence: {row.last_sequence} producerId: {row.producer_id}"
        f" producerEpoch: {row.producer_epoch} partitionLeaderEpoch: {row.partition_leader_epoch}"
        f" isTransactional: {_truth(row.is_transactional)} isControl: {_truth(row.is_control)}"
        f" deleteHorizonMs: {_optional(row.delete_horizon_ms)}"
    )


def record_line(row: RecordRow, *, with_data: bool) -> str:
    """Format a record; key and payload if requested, and never for a control record."""
    line = (
        f"{INDENT} offset: {row.offset} {row.batch.timestamp_type}: {row.timestamp} keySize: {row.key_size}"
        f" valueSize: {row.value_size}"
    )
    if row.batch.magic >= MAGIC:
        line += f" sequence: {row.sequence} headerKeys: [{','.join(each.key for each in row.headers)}]"
    if row.control is not None:
        if row.control.coordinator_epoch is None:
            return f"{line} controlType: {row.control.type}"
        return f"{line} endTxnMarker: {row.control.type} coordinatorEpoch: {row.control.coordinator_epoch}"
    if with_data:
        line += "" if row.key is None else f" key: {shown(row.key)}"
        line += "" if row.value is None else f" payload: {shown(row.value)}"
    return line


def lines_of(rows: Iterable[BatchRow | RecordRow], *, with_data: bool) -> Iterator[str]:
    from tiered.inspect.dump_rows import BatchRow

    for row in rows:
        yield batch_line(row) if isinstance(row, BatchRow) else record_line(row, with_data=with_data)


def entry_line(row: Mapping[str, object]) -> str:
    """``offset: 5 position: 4096``"""
    told = {name: _optional(value) if name in _OPTIONAL else value for name, value in row.items()}
    return " ".join(f"{name}: {shown(value)}" for name, value in told.items() if value is not None)


def shown(value: object) -> str:
    """Format a decoded value on a line; an undecodable one as ``base64:...``."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"base64"}:
        return f"base64:{value['base64']}"
    import msgspec

    return msgspec.json.encode(value).decode()


def _optional(value: object) -> str:
    """Format like Java's OptionalLong."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _truth(flag: bool) -> str:
    return "true" if flag else "false"
