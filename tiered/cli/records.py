"""Records as text: kcat templates and JSON for output, lines and JSON lines for input."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, repeat
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from local.format.record import Header, Record
from local.names import TopicPartition
from tiered.cli.render import PartitionRow, Struct
from tiered.config.units import rfc3339

if TYPE_CHECKING:
    from local.format.columns import Columns, Ints, Longs

_TIMESTAMP_MS_MAX = 2**63 - 1
_READ = ("key", "value", "timestamp", "headers")
_PASSED_OVER = {"topic", "partition", "offset", "timestampType", "keySize", "valueSize", "sequence", "batch", "control"}

# Converts input lines (without their ends), the first of which has this number. Raises InvalidRequest, naming the line.
ReadLines = Callable[[Sequence[bytes], int], Iterator[Record]]
Show = Callable[[TopicPartition, "Columns"], bytes]  # the text of all these records
Cells = Callable[[TopicPartition, "Columns"], Iterable[object]]  # a value for each record

_FIELDS: dict[str, tuple[bytes, Cells]] = {
    "T": (b"%b", lambda name, columns: repeat(name.topic.encode(), len(columns))),
    "p": (b"%d", lambda name, columns: repeat(name.partition, len(columns))),
    "o": (b"%d", lambda name, columns: columns.offsets.tolist()),
    "k": (b"%b", lambda name, columns: _views(columns.data, columns.key_starts, columns.key_lengths)),
    "v": (b"%b", lambda name, columns: _views(columns.data, columns.value_starts, columns.value_lengths)),
    "t": (b"%d", lambda name, columns: columns.timestamps.tolist()),
    "d": (b"%b", lambda name, columns: (rfc3339(each).encode() for each in columns.timestamps.tolist())),
    "h": (
        b"%b",
        lambda name, columns: _pairs(columns, b"%b=%b", lambda value: b"NULL" if value is None else value, b","),
    ),
    "K": (b"%d", lambda name, columns: columns.key_lengths.tolist()),
    "S": (b"%d", lambda name, columns: columns.value_lengths.tolist()),
}
_SIGNS: dict[str, dict[str, bytes]] = {
    "%": {name: form for name, (form, _) in _FIELDS.items()} | {"%": b"%%"},
    "\\": {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"},
}


def parse_template(template: str) -> Show:
    r"""Return a formatter of records: ``%T %p %o %k %v %t`` (ms) ``%d`` (RFC 3339) ``%h %K %S`` (sizes).

    It also replaces ``\n`` and ``\t``. Null is empty. Raises InvalidRequest for an empty template or an unknown sign.
    """
    if not template:
        raise InvalidRequest("invalid template, it is empty and would print nothing: such as '%k %v\\n'")
    form, fields, signs = b"", list[Cells](), iter(template)
    for sign in signs:
        if sign not in _SIGNS:
            form += os.fsencode(sign)  # an argument that is not UTF-8 stands for its bytes
            continue
        name = next(signs, "")
        if name not in _SIGNS[sign]:
            raise InvalidRequest("invalid template, unknown sign", sign=sign + name, known=" ".join(_SIGNS["%"]))
        form += _SIGNS[sign][name]
        fields += [_FIELDS[name][1]] if sign == "%" and name in _FIELDS else []
    return _formatter(form, fields)


def show_json() -> Show:
    """Return a formatter of records as lines of `ConsumedRecord`."""
    form = b'{"topic": %b, "partition": %d, "offset": %d, "timestamp": %d, "timestampType": %d, '
    fields: list[Cells] = [
        lambda name, columns: repeat(_quoted(name.topic.encode()), len(columns)),
        *(_FIELDS[each][1] for each in "pot"),
        lambda name, columns: (columns.table.attributes[columns.batch_ordinals] >> 3 & 1).tolist(),  # `TimestampType`
        lambda name, columns: _texts(columns.data, columns.key_starts, columns.key_lengths),
        lambda name, columns: _texts(columns.data, columns.value_starts, columns.value_lengths),
        lambda name, columns: _pairs(columns, b'{"key": %b, "value": %b}', _quoted, b", "),
    ]
    return _formatter(form + b'"key": %b, "value": %b, "headers": [%b]}\n', fields)


def _formatter(form: bytes, fields: Sequence[Cells]) -> Show:
    if not fields:
        return lambda name, columns: form % () * len(columns)
    return lambda name, columns: b"".join(map(form.__mod__, zip(*(of(name, columns) for of in fields), strict=True)))


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


def line_reader(separator: str | None, is_empty_null: bool, clock: Callable[[], int]) -> ReadLines:
    """Return a reader of lines as records, stamped by `clock`; a key precedes the first separator, if one is given."""
    mark = os.fsencode(separator) if separator is not None else None

    def read(lines: Sequence[bytes], first: int) -> Iterator[Record]:
        key, now_ms, empty = None, clock(), None if is_empty_null else b""
        for at, line in enumerate(lines, first):
            text = line.removesuffix(b"\r")
            if mark is not None:
                key, found, text = text.partition(mark)
                if not found:
                    raise InvalidRequest("invalid line, it has no key separator", line=at, separator=repr(separator))
            yield Record(key, text or empty, now_ms)

    return read


def jsonl_reader(clock: Callable[[], int], partition: int | None = None) -> ReadLines:
    """Return a reader of JSON objects as records; null or missing is null, a missing timestamp is the clock's.

    The location fields of `ConsumedRecord` and ``tiered dump`` are ignored, except a partition that contradicts
    `partition`. Any other field is an error: a misspelt ``value`` would create a tombstone.
    """

    def read_line(line: bytes, number: int) -> Record:
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

    return lambda lines, first: map(read_line, lines, count(first))


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


def _views(data: memoryview, starts: Longs, lengths: Ints) -> Iterator[memoryview]:
    return map(data.__getitem__, map(slice, starts.tolist(), (starts + lengths.clip(0)).tolist()))


def _texts(data: memoryview, starts: Longs, sizes: Ints) -> Iterator[bytes]:
    return (_quoted(None if n < 0 else v) for v, n in zip(_views(data, starts, sizes), sizes.tolist(), strict=True))


def _pairs(columns: Columns, form: bytes, text: Callable[[bytes | None], bytes], mark: bytes) -> Iterable[bytes]:
    if not columns.header_counts.any():
        return repeat(b"", len(columns))
    each = ([(text(name.encode()), text(value)) for name, value in columns.headers(at)] for at in range(len(columns)))
    return (mark.join(map(form.__mod__, pairs)) for pairs in each)


def _quoted(value: memoryview | bytes | None) -> bytes:
    """Return JSON: text as a string, other bytes as `Base64`."""
    try:
        return b"null" if value is None else encode_basestring(str(value, "utf-8")).encode()
    except UnicodeDecodeError:
        return b'{"base64": "%b"}' % base64.b64encode(value or b"")


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
    return _utf8(value, "a header's key", line).decode()


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
