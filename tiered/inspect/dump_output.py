"""Dumped rows as JSON lines and as flat fields, fast enough for ten million rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from tiered.inspect.decoders import undecoded
from tiered.inspect.dump_rows import HeaderRow, RecordRow


class FlatRecord(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A record and the facts of its batch side by side."""

    offset: int
    timestamp: int
    timestamp_type: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: str
    key: str | int | float | bool | None
    value: str | int | float | bool | None
    headers: list[HeaderRow]
    end_txn_marker: str | None
    coordinator_epoch: int | None
    base_offset: int
    position: int | None
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    compresscodec: str


def write_jsonl(rows: Iterable[RecordRow]) -> None:
    """Write a line to stdout for each record as it arrives, with the facts of its batch in ``batch``."""
    encode = msgspec.json.Encoder().encode
    sys.stdout.flush()
    write = sys.stdout.buffer.write
    for row in rows:
        write(encode(row) + b"\n")


def flat(rows: Iterable[RecordRow]) -> Iterator[FlatRecord]:
    """Yield records merged with the facts of their batch.

    Keys and values that are no text or number become JSON, undecoded bytes become ``base64:...``.
    """
    for row in rows:
        batch, control = row.batch, row.control
        yield FlatRecord(
            row.offset,
            row.timestamp,
            row.timestamp_type,
            row.key_size,
            row.value_size,
            row.sequence,
            ",".join(each.key for each in row.headers),
            _plain(row.key),
            _plain(row.value),
            row.headers,
            control.type if control is not None else None,
            control.coordinator_epoch if control is not None else None,
            batch.base_offset,
            batch.position,
            batch.partition_leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            batch.is_control,
            batch.compresscodec,
        )


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict) and set(value) == set(undecoded(b"")):
        return f"base64:{value['base64']}"
    return msgspec.json.encode(value).decode()
