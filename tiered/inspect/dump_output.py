"""Dumped rows as JSON lines and as flat fields, fast enough for ten million rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec

from tiered.inspect.decoders import undecoded
from tiered.inspect.dump_rows import BatchRow, RecordRow


def write_jsonl(rows: Iterable[RecordRow]) -> None:
    """Write a line to stdout for each record as it arrives, with the facts of its batch in ``batch``."""
    encode = msgspec.json.Encoder().encode
    sys.stdout.flush()
    write = sys.stdout.buffer.write
    for row in rows:
        write(encode(row) + b"\n")


def fields(row: BatchRow) -> dict[str, object]:
    """Return the fields of a batch by Kafka's names."""
    named = msgspec.to_builtins(row)
    assert isinstance(named, dict), "a struct is a dict of its fields"
    return named


def flat(rows: Iterable[RecordRow]) -> Iterator[dict[str, object]]:
    """Yield records merged with the facts of their batch.

    Keys and values that are no text or number become JSON, undecoded bytes become ``base64:...``.
    """
    batch: BatchRow | None = None
    facts: dict[str, object] = {}
    for row in rows:
        if row.batch is not batch:
            batch, facts = row.batch, fields(row.batch)
        yield facts | _of_record(row)


def _of_record(row: RecordRow) -> dict[str, object]:
    named: dict[str, object] = {}
    named |= {"offset": row.offset, "timestamp": row.timestamp, "timestampType": row.timestamp_type}
    named |= {"keySize": row.key_size, "valueSize": row.value_size, "sequence": row.sequence}
    named |= {"key": _plain(row.key), "value": _plain(row.value)}
    named["headerKeys"] = ",".join(each.key for each in row.headers)
    named["headers"] = msgspec.to_builtins(row.headers) if row.headers else []
    if row.control is not None:
        named |= {"endTxnMarker": row.control.type, "coordinatorEpoch": row.control.coordinator_epoch}
    return named


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict) and set(value) == set(undecoded(b"")):
        return f"base64:{value['base64']}"
    return msgspec.json.encode(value).decode()
