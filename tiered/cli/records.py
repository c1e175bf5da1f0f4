"""Records as text: kcat templates and JSON for output, lines and JSON lines for input."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Self

from local.errors import InvalidRequest
from local.format.record import Header, Record, StoredRecord
from local.names import TopicPartition
from tiered.cli.render import PartitionRow, Struct
from tiered.config.units import rfc3339

_TIMESTAMP_MS_MAX = 2**63 - 1
_READ = ("key", "value", "timestamp", "headers")
_PASSED_OVER = frozenset(
    ("topic", "partition", "offset", "timestampType", "keySize", "valueSize", "sequence", "batch", "control")
)

# Converts an input line (without its end) and its number. Raises InvalidRequest, naming the line.
ReadLine = Callable[[bytes, int], Record]
Field = Callable[[TopicPartition, StoredRecord], bytes]

_FIELDS: dict[str, Field] = {
    "T": lambda partition, record: partition.topic.encode(),
    "p": lambda partition, record: b"%d" % partition.partition,
    "o": lambda partition, record: b"%d" % record.offset,
    "k": lambda partition, record: record.key or b"",
    "v": lambda partition, record: record.value or b"",
    "t": lambda partition, record: b"%d" % record.timestamp_ms,
    "d": lambda partition, record: rfc3339(record.timestamp_ms).encode(),
    "h": lambda partition, record: b",".join(
        name.encode() + b"=" + (value if value is not None else b"NULL") for name, value in record.headers
    ),
    "K": lambda partition, record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda partition, record: b"%d" % (-1 if record.value is None else len(record.value)),
    "%": lambda partition, record: b"%",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def parse_template(template: str) -> Field:
    r"""Return a formatter of records: ``%T %p %o %k %v %t`` (ms) ``%d`` (RFC 3339) ``%h %K %S`` (sizes).

    It also replaces ``\n`` and ``\t``. Null prints as nothing. Raises InvalidRequest without any sign, or for an
    unknown one.
    """
    if not template:
        raise InvalidRequest("invalid template, it is empty and would print nothing: such as '%k %v\\n'")
    parts: list[bytes | Field] = []
    signs = iter(template)
    for sign in signs:
        table: dict[str, Field] | dict[str, bytes] | None = {"%": _FIELDS, "\\": _ESCAPES}.get(sign)  # type: ignore[assignment]
        if table is None:
            parts.append(os.fsencode(sign))  # an argument that is not UTF-8 stands for its bytes
            continue
        name = next(signs, "")
        if name not in table:
            raise InvalidRequest("invalid template, unknown sign", sign=sign + name, known=" ".join(_FIELDS))
        parts.append(table[name])

    def text(partition: TopicPartition, record: StoredRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(partition, record) for part in parts)

    return text


class Base64(Struct):
    """Bytes that are not UTF-8."""

    base64: str


class ConsumedHeader(Struct):
    """A header of a record."""

    key: str
    value: str | Base64 | None


class ConsumedRecord(PartitionRow, rename="camel"):
    """A line of ``tiered consume -o jsonl``; ``append --jsonl`` reads it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: str | Base64 | None
    value: str | Base64 | None
    headers: list[ConsumedHeader]

    @classmethod
    def of_stored(cls, partition: TopicPartition, record: StoredRecord) -> Self:
        return cls(
            topic=partition.topic,
            partition=partition.partition,
            offset=record.offset,
            timestamp=record.timestamp_ms,
            timestamp_type=int(record.timestamp_type),
            key=_text(record.key),
            value=_text(record.value),
            headers=[ConsumedHeader(name, _text(value)) for name, value in record.headers],
        )


def line_reader(separator: str | None, is_empty_null: bool, clock: Callable[[], int]) -> ReadLine:
    """Return a reader of lines as records, stamped by `clock`; a key precedes the first separator, if one is given."""
    mark = os.fsencode(separator) if separator is not None else None

    def read(line: bytes, number: int) -> Record:
        text = line.removesuffix(b"\r")
        key: bytes | None = None
        if mark is not None:
            key, found, text = text.partition(mark)
            if not found:
                raise InvalidRequest("invalid line, it has no key separator", line=number, separator=repr(separator))
        return Record(key, None if is_empty_null and not text else text, clock())

    return read


def jsonl_reader(clock: Callable[[], int], partition: int | None = None) -> ReadLine:
    """Return a reader of JSON objects as records; null or missing is null, a missing timestamp is the clock's.

    The location fields of `ConsumedRecord` and ``tiered dump`` are ignored, except a partition that contradicts
    `partition`. Any other field is an error: a misspelt ``value`` would create a tombstone.
    """

    def read(line: bytes, number: int) -> Record:
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidRequest("invalid line, it is not JSON", line=number) from None
        if not isinstance(body, dict):
            raise InvalidRequest("invalid line, it is not a JSON object", line=number)
        _check_fields(body, number, partition)
        timestamp = _timestamp(body.get("timestamp"), number)
        record = Record(
            _bytes(body.get("key"), "key", number),
            _bytes(body.get("value"), "value", number),
            clock() if timestamp is None else timestamp,
            _headers(body.get("headers"), number),
        )
        if "key" not in body and "value" not in body:
            raise InvalidRequest("invalid line, it has neither key nor value", line=number)
        return record

    return read


def _check_fields(body: dict[str, object], line: int, partition: int | None) -> None:
    unknown = next((name for name in body if name not in _READ and name not in _PASSED_OVER), None)
    if unknown is not None:
        from tiered.config.properties import nearest

        facts = {"field": repr(unknown), "did_you_mean": nearest(unknown, _READ), "known": " ".join(_READ)}
        raise InvalidRequest("invalid line, unknown field", line=line, **facts)
    named = body.get("partition")
    if partition is not None and named is not None and named != partition:
        hint = "remove it from the lines, or the partition from the command"
        wrong = f"invalid line, it belongs to another partition: {hint}"
        raise InvalidRequest(wrong, line=line, said=named, asked=partition)


def _text(value: bytes | None) -> str | Base64 | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Base64(base64.b64encode(value).decode())


def _timestamp(value: object, line: int) -> int | None:
    if value is None:
        return None
    # bool is a subclass of int in Python. -1 is Kafka's value for no timestamp.
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= _TIMESTAMP_MS_MAX:
        raise InvalidRequest("invalid line, timestamp is not a number of ms", line=line)
    return value


def _headers(value: object, line: int) -> tuple[Header, ...]:
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif value is None:
        pairs = []
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        pairs = [(one.get("key"), one.get("value")) for one in value]
    else:
        raise InvalidRequest("invalid line, headers are not a list of key and value", line=line)
    return tuple((_name(key, line), _bytes(content, "a header", line)) for key, content in pairs)


def _name(value: object, line: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest("invalid line, headers have a key that is not a string", line=line)
    _utf8(value, "a header's key", line)
    return value


def _bytes(value: object, field: str, line: int) -> bytes | None:
    """Return text as UTF-8, ``{"base64": ...}`` decoded, and any other JSON value as its compact text."""
    if value is None:
        return None
    if isinstance(value, str):
        return _utf8(value, field, line)
    if isinstance(value, dict) and set(value) == {"base64"}:
        try:
            return base64.b64decode(str(value["base64"]), validate=True)
        except ValueError:
            raise InvalidRequest(f"invalid line, {field} is not base64", line=line) from None
    try:
        return _utf8(json.dumps(value, separators=(",", ":"), ensure_ascii=False), field, line)
    except RecursionError:
        raise InvalidRequest(f"invalid line, {field} is nested too deeply", line=line) from None


def _utf8(text: str, field: str, line: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"invalid line, {field} is not text: half a surrogate pair", line=line) from None
