"""Decode the records of ``__consumer_offsets`` and ``__transaction_state`` into dicts.

A key starts with an int16 for the type of the record, a value with an int16 for the version of its layout. The
functions below read the fields in their order.

All numbers are big-endian. From version 4 (1 for transactions) the value is *flexible*: a length is an unsigned varint
of length + 1 (0 means null), and tagged fields end every structure.

Key types from 3 up in `__consumer_offsets` belong to newer group protocols: their type is a number, their fields stay
bytes. Source: kafka ``OffsetCommitKey.json``, ``OffsetCommitValue.json``, ``GroupMetadataKey.json``,
``GroupMetadataValue.json``, ``TransactionLogKey.json``, ``TransactionLogValue.json``, `TransactionState`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from local.errors import Corrupt

Fields = dict[str, object]

_TRANSACTION_STATES = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
]
_LONG_TAGS = {0: ("previousProducerId", 8), 1: ("nextProducerId", 8), 2: ("clientTransactionVersion", 2)}


def decode_offsets_record(key: bytes | None, value: bytes | None) -> tuple[Fields, Fields | None]:
    """Decode a record of `__consumer_offsets`. A value of None is a tombstone. Raises Corrupt.

    Returns ``{"type": n, "data": {...}}`` for the key and ``{"version": n, "data": {...}}`` for the value.
    """
    kind, head = _begin(key, "cannot read the key of a consumer offset")
    if kind > 2:
        return _unknown(kind, key, value)
    data: Fields = {"group": head.text()}
    if kind < 2:
        data |= {"topic": head.text(), "partition": head.number(4)}
    head.end()
    return {"type": kind, "data": data}, _value(value, 4, 4, _group_value if kind == 2 else _offset_value)


def decode_transaction_record(key: bytes | None, value: bytes | None) -> tuple[Fields, Fields | None]:
    """A record of `__transaction_state`, in the form of `decode_offsets_record`."""
    kind, head = _begin(key, "cannot read the key of a transaction")
    if kind > 0:
        return _unknown(kind, key, value)
    data: Fields = {"transactionalId": head.text()}
    head.end()
    return {"type": kind, "data": data}, _value(value, 1, 1, _transaction_value)


class FieldReader:
    """Reads the fields of a Kafka message in order. `is_flexible` selects the encoding of lengths. Raises Corrupt."""

    def __init__(self, data: bytes, attempt: str, *, is_flexible: bool = False, errors: str = "replace") -> None:
        """`attempt` begins each error. `errors` is that of `bytes.decode`, for texts."""
        self._data = data
        self._attempt = attempt
        self._errors = errors
        self._at = 0
        self.is_flexible = is_flexible

    def take(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._data):
            raise Corrupt(f"{self._attempt}, it is truncated", at=self._at, size_bytes=len(self._data))
        self._at += length
        return self._data[self._at - length : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big", signed=True)

    def length(self, width: int) -> int:
        return self.varint() - 1 if self.is_flexible else self.number(width)

    def nullable_text(self) -> str | None:
        length = self.length(2)
        try:
            return None if length == -1 else self.take(length).decode("utf-8", self._errors)
        except UnicodeDecodeError:
            raise Corrupt(f"{self._attempt}, a string is invalid", at=self._at) from None

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise Corrupt(f"{self._attempt}, a field must not be null", at=self._at)
        return text

    def body(self) -> str:
        """Bytes as base64: Kafka's own JSON notation for bytes."""
        return base64.b64encode(self.take(self.length(4))).decode()

    def items(self, read: Callable[[], object]) -> list[object] | None:
        count = self.length(4)
        if count > len(self._data):
            raise Corrupt(f"{self._attempt}, it declares more items than bytes", at=self._at, items=count)
        return None if count == -1 else [read() for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        if not self.is_flexible:
            return {}
        found: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self.take(self.varint())
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise Corrupt(f"{self._attempt}, bytes follow its end", at=self._at, size_bytes=len(self._data))

    def varint(self) -> int:
        """An unsigned varint."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Corrupt(f"{self._attempt}, a length has more than five bytes", at=self._at)


def _begin(key: bytes | None, attempt: str) -> tuple[int, FieldReader]:
    if key is None:
        raise Corrupt(f"{attempt}, it is missing")
    head = FieldReader(key, attempt)
    kind = head.number(2)
    if kind < 0:
        raise Corrupt(f"{attempt}, its type is unknown", type=kind)
    return kind, head


def _unknown(kind: int, key: bytes | None, value: bytes | None) -> tuple[Fields, Fields | None]:
    fields: Fields = {"type": kind, "data": None, "base64": base64.b64encode(key or b"").decode()}
    return fields, None if value is None else {"data": None, "base64": base64.b64encode(value).decode()}


def _value(
    value: bytes | None, newest: int, flexible_from: int, read: Callable[[FieldReader, int], Fields]
) -> Fields | None:
    if value is None:
        return None
    body = FieldReader(value, "cannot read the value of a coordinator record")
    version = body.number(2)
    if not 0 <= version <= newest:
        raise Corrupt(
            "cannot read the value of a coordinator record, its version is unknown", version=version, newest=newest
        )
    body.is_flexible = version >= flexible_from
    data = read(body, version)
    body.end()
    return {"version": version, "data": data}


def _offset_value(body: FieldReader, version: int) -> Fields:
    data: Fields = {"offset": body.number(8)}
    if version >= 3:
        data["leaderEpoch"] = body.number(4)
    data["metadata"] = body.text()
    data["commitTimestamp"] = body.number(8)
    if version == 1:
        data["expireTimestamp"] = body.number(8)
    return data | _unknown_tags(body.tags())


def _group_value(body: FieldReader, version: int) -> Fields:
    data: Fields = {
        "protocolType": body.text(),
        "generation": body.number(4),
        "protocol": body.nullable_text(),
        "leader": body.nullable_text(),
    }
    if version >= 2:
        data["currentStateTimestamp"] = body.number(8)
    data["members"] = body.items(lambda: _member(body, version))
    return data | _unknown_tags(body.tags())


def _member(body: FieldReader, version: int) -> Fields:
    member: Fields = {"memberId": body.text()}
    if version >= 3:
        member["groupInstanceId"] = body.nullable_text()
    member |= {"clientId": body.text(), "clientHost": body.text()}
    if version >= 1:
        member["rebalanceTimeout"] = body.number(4)
    member |= {"sessionTimeout": body.number(4), "subscription": body.body(), "assignment": body.body()}
    return member | _unknown_tags(body.tags())


def _transaction_value(body: FieldReader, version: int) -> Fields:
    data: Fields = {
        "producerId": body.number(8),
        "producerEpoch": body.number(2),
        "transactionTimeoutMs": body.number(4),
    }
    state = body.number(1)
    data["transactionStatus"] = _TRANSACTION_STATES[state] if 0 <= state < len(_TRANSACTION_STATES) else state
    data["transactionPartitions"] = body.items(lambda: _partitions(body))
    data["transactionLastUpdateTimestampMs"] = body.number(8)
    data["transactionStartTimestampMs"] = body.number(8)
    tags = body.tags()
    for tag, (name, width) in _LONG_TAGS.items():
        if len(tags.get(tag, b"")) == width:
            data[name] = int.from_bytes(tags.pop(tag), "big", signed=True)
    return data | _unknown_tags(tags)


def _partitions(body: FieldReader) -> Fields:
    topic: Fields = {"topic": body.text(), "partitionIds": body.items(lambda: body.number(4))}
    return topic | _unknown_tags(body.tags())


def _unknown_tags(tags: dict[int, bytes]) -> Fields:
    if not tags:
        return {}
    return {"unknownTaggedFields": {str(tag): base64.b64encode(body).decode() for tag, body in tags.items()}}
