"""The records of ``__transaction_state``: one key for each transactional id, the newest value counts.

| | bytes |
|---|---|
| key | int16 version 0, int16 length, transactional id in UTF-8 |
| value | int16 version, fields; null: the id has expired |

A value of version 1, big-endian; a *compact* length is an unsigned varint of length + 1, 0 for null:

    producer id int64 | producer epoch int16 | timeout in ms int32 | state int8 |
    topics, compact array or null in EMPTY: name compact, partitions compact array of int32, tag count 0 |
    last update in ms int64 | start in ms int64 | tagged fields

| tag | field | written |
|---|---|---|
| 0 | previous producer id int64 | if it differs from the producer id |
| 1 | next producer id int64 | if there is one |
| 2 | transaction version of the client int16 | if it is not 0 |

Version 0 has no compact lengths (int16 for texts, int32 for arrays) and no tags. Kafka 4.1 writes version 1 and reads
both, as this module does. It reads tags 0 and 1 but does not write them, so it loses the next producer id in a crash.

Source: kafka ``TransactionLogKey.json``, ``TransactionLogValue.json``, `TransactionLog`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter

from local.errors import Corrupt, InvalidRequest
from local.names import TopicPartition
from tiered.serve.groups.coordinator_records import FieldReader
from tiered.serve.transactions.transaction import NONE, VERSION_0, State, Transaction

_VERSION, _NEWEST, _FLEXIBLE = 1, 1, 1
_PREVIOUS, _NEXT, _CLIENT_VERSION = 0, 1, 2
_HEAD = struct.Struct(">hqhib")  # version, producer id, producer epoch, timeout, state
_TIMES = struct.Struct(">qq")
_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


def encode_key(transactional_id: str) -> bytes:
    """Raises struct.error for an id of more than 32,767 bytes, which no request can have."""
    text = transactional_id.encode()
    return _INT16.pack(0) + _INT16.pack(len(text)) + text


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a key of another type. Raises Corrupt."""
    fields = FieldReader(key, "cannot read the key of a transaction", errors="strict")
    if fields.number(2) != 0:
        return None
    transactional_id = fields.text()
    fields.end()
    return transactional_id


def encode_value(transaction: Transaction) -> bytes:
    state = transaction.state
    head = _HEAD.pack(_VERSION, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, int(state))
    topics = b"\0" if state is State.EMPTY else _topics(transaction.partitions)
    times = _TIMES.pack(transaction.updated_ms, transaction.start_ms)
    return b"".join((head, topics, times, _tags(transaction)))


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """Raises Corrupt for truncated bytes and an unknown version or state."""
    fields = FieldReader(value, "cannot read the value of a transaction", errors="strict")
    version = fields.number(2)
    if not 0 <= version <= _NEWEST:
        raise Corrupt("cannot read the value of a transaction, its version is unknown", version=version, newest=_NEWEST)
    fields.is_flexible = version >= _FLEXIBLE
    producer_id, producer_epoch, timeout_ms = fields.number(8), fields.number(2), fields.number(4)
    state = _state(fields.number(1))
    partitions = _partitions(fields)
    updated_ms, start_ms = fields.number(8), fields.number(8)
    tags = fields.tags()
    fields.end()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=start_ms,
        updated_ms=updated_ms,
        previous_producer_id=_tag(tags, _PREVIOUS, _INT64, NONE),
        next_producer_id=_tag(tags, _NEXT, _INT64, NONE),
        client_version=_tag(tags, _CLIENT_VERSION, _INT16, VERSION_0),
    )


def _topics(partitions: frozenset[TopicPartition]) -> bytes:
    by_topic = [(topic, list(each)) for topic, each in groupby(sorted(partitions), attrgetter("topic"))]
    parts = [_uvarint(len(by_topic) + 1)]
    for topic, of_topic in by_topic:
        name = topic.encode()
        parts += _uvarint(len(name) + 1), name, _uvarint(len(of_topic) + 1)
        parts += [_INT32.pack(each.partition) for each in of_topic]
        parts.append(b"\0")
    return b"".join(parts)


def _tags(transaction: Transaction) -> bytes:
    found: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id not in (NONE, transaction.producer_id):
        found.append((_PREVIOUS, _INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NONE:
        found.append((_NEXT, _INT64.pack(transaction.next_producer_id)))
    if transaction.client_version != VERSION_0:
        found.append((_CLIENT_VERSION, _INT16.pack(transaction.client_version)))
    tagged = [_uvarint(tag) + _uvarint(len(body)) + body for tag, body in found]
    return _uvarint(len(found)) + b"".join(tagged)


def _partitions(fields: FieldReader) -> frozenset[TopicPartition]:
    found: list[TopicPartition] = []

    def topic() -> None:
        name = fields.text()
        numbers = fields.items(lambda: fields.number(4))
        fields.tags()
        try:
            found.extend(TopicPartition(name, number) for number in numbers or () if isinstance(number, int))
        except InvalidRequest:
            raise Corrupt("cannot read the value of a transaction, a partition is invalid", topic=name) from None

    fields.items(topic)
    return frozenset(found)


def _state(number: int) -> State:
    try:
        return State(number)
    except ValueError:
        raise Corrupt("cannot read the value of a transaction, its state is unknown", state=number) from None


def _tag(tags: Mapping[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    body = tags.get(tag)
    if body is None:
        return default
    if len(body) != form.size:
        raise Corrupt("cannot read the value of a transaction, a tagged field has a wrong size", tag=tag)
    number: int = form.unpack(body)[0]
    return number


def _uvarint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
