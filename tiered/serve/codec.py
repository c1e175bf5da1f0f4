"""Bytes of messages, read and written by a schema: a dataclass of `kio` for one version of one message.

Requests and responses are read and written alike, so a server and a client share the codec. `kio` has readers and
writers of its own. The codec replaces them for two reasons:

- Its reader allocates an array for the count in a frame before it reads an item: 20 bytes end the process.
- Its writer copies record batches. Here a buffer of `records` is passed on as it is.

| bound of a message | reason |
|---|---|
| an array has at most as many items as bytes follow | an item has at least one byte |
| a string has at most TEXT_BYTES_MAX bytes | as in Kafka, compact strings too |
| ITEMS_MAX items in all arrays together | an item costs up to some hundred bytes of memory |

Tagged fields are skipped and never written.

Source of the formats: https://kafka.apache.org/protocol (primitive types), KIP-482 (compact and tagged fields).
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from local.errors import InvalidRequest
from tiered.serve.messages.base import Error, Piece, size_of

ITEMS_MAX = 100_000
TEXT_BYTES_MAX = 2**15 - 1
UVARINT_BYTES_MAX = 5
_BOOL, _INT8, _INT16 = struct.Struct(">?"), struct.Struct(">b"), struct.Struct(">h")
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_FIXED = {
    "bool": _BOOL,
    "int8": _INT8,
    "int16": _INT16,
    "error_code": _INT16,
    "int32": _INT32,
    "timedelta_i32": _INT32,
    "int64": _INT64,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": struct.Struct(">d"),
}
_NUMBERS: dict[str | None, str] = {kind: form.format[1:] for kind, form in _FIXED.items() if kind != "error_code"}
_NO_UUID = UUID(int=0)
_ERRORS = {int(each): each for each in Error}
M = TypeVar("M")


class FrameTooLarge(InvalidRequest):
    """A message to write has more bytes than its frame may have."""


class Cursor:
    """A position in the bytes of one message. Every verb raises InvalidRequest if the bytes end too early."""

    __slots__ = ("_data", "_items", "_message", "at")

    def __init__(self, data: memoryview, message: str = "request") -> None:
        self._data = data
        self._items = 0
        self._message = message  # for error messages
        self.at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self.at

    def refuse(self, reason: str, **facts: object) -> InvalidRequest:
        return InvalidRequest(f"invalid {self._message}, {reason}", at=self.at, **facts)

    def take(self, length: int) -> memoryview:
        if not 0 <= length <= self.remaining:
            raise self.refuse("it ends inside a field", length=length)
        self.at += length
        return self._data[self.at - length : self.at]

    def number(self, form: struct.Struct) -> Any:  # noqa: ANN401 - int, bool or float by its form
        return form.unpack(self.take(form.size))[0]

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        """Adjacent numbers."""
        return form.unpack(self.take(form.size))

    def uvarint(self) -> int:
        value = 0
        for at in range(UVARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * at)
            if byte < 0x80:
                return value
        raise self.refuse("a length has more than five bytes")

    def length(self, form: struct.Struct | None) -> int:
        """The length of a string or an array; -1 for null. `form` None: compact."""
        length: int = self.uvarint() - 1 if form is None else self.number(form)
        if length < -1:
            raise self.refuse("a length is negative", length=length)
        return length

    def count(self, form: struct.Struct | None) -> int:
        """The number of items of an array; -1 for null."""
        count = self.length(form)
        self._items += max(count, 0)
        if count > self.remaining or self._items > ITEMS_MAX:
            raise self.refuse("an array has too many items", items=count)
        return count

    def text(self, form: struct.Struct | None) -> str | None:
        length = self.length(form)
        if length > TEXT_BYTES_MAX:
            raise self.refuse("a string is too long", bytes=length, limit=TEXT_BYTES_MAX)
        try:
            return None if length < 0 else str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise self.refuse("a string is not UTF-8") from None

    def data(self, form: struct.Struct | None) -> memoryview | None:
        length = self.length(form)
        return None if length < 0 else self.take(length)

    def skip_tagged(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


class Frame:
    """The bytes of one message in `pieces`: small fields joined, record batches as they are.

    `bytes_max` limits the small fields: `check` raises FrameTooLarge beyond it.
    """

    def __init__(self, bytes_max: int = sys.maxsize) -> None:
        self.bytes_max = bytes_max
        self._small = bytearray(4)  # the length prefix, set by `close`
        self.pieces: list[Piece] = [self._small]
        self.size_bytes = 4

    def write(self, data: bytes) -> None:
        before = len(self._small)
        self._small += data
        self.size_bytes += len(self._small) - before

    def number(self, form: struct.Struct, value: object) -> None:
        self.write(form.pack(value))

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self.write(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        self.write(bytes((value,)))

    def length(self, form: struct.Struct | None, length: int) -> None:
        """Write the length of a string or an array; -1 for null. `form` None: compact."""
        if form is None:
            self.uvarint(length + 1)
        else:
            self.number(form, length)

    def text(self, form: struct.Struct | None, text: str | None) -> None:
        data = b"" if text is None else text.encode()
        self.length(form, -1 if text is None else len(data))
        self.write(data)

    def append(self, data: Piece) -> None:
        """Add a buffer or a range of a file without a copy. It must not change until the frame was sent."""
        self.pieces.append(data)
        self._small = bytearray()
        self.pieces.append(self._small)
        self.size_bytes += size_of(data)
        self.bytes_max += size_of(data)

    def check(self) -> None:
        if self.size_bytes > self.bytes_max:
            raise FrameTooLarge("the message is too large", limit_bytes=self.bytes_max)

    def close(self) -> list[Piece]:
        """Set the length prefix and return the pieces."""
        first = self.pieces[0]
        assert isinstance(first, bytearray)
        _INT32.pack_into(first, 0, self.size_bytes - 4)
        return [piece for piece in self.pieces if len(piece)]


class _Field(NamedTuple):
    name: str  # of the message, see `tiered.serve.messages`
    kind: str | None  # Kafka's type; None for a struct
    item: type  # the schema of a struct
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object


Read = Callable[[Cursor], Any]
Write = Callable[[Frame, Any], None]
Step = Callable[[Cursor, dict[str, object]], None]  # reads adjacent fields of a struct


def reader_of(schema: type, message: type[M]) -> Callable[[Cursor], M]:
    """Return a function that reads `message` in the format of `schema`. It raises InvalidRequest for other bytes."""
    return _struct_reader(schema, message)


def writer_of(schema: type, message: type | None) -> Write:
    """Return a function that writes `message`, or only defaults for None, in the format of `schema`."""
    return _struct_writer(schema, message)


def is_flexible(schema: type) -> bool:
    return bool(schema.__flexible__)  # type: ignore[attr-defined]


def _fields(schema: type) -> list[_Field]:
    return [_field(each) for each in dataclasses.fields(schema)]


def _field(field: dataclasses.Field[Any]) -> _Field:
    hint: Any = field.type
    kind, tag = field.metadata.get("kafka_type"), field.metadata.get("tag")
    is_nullable = False
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
        is_nullable = kind != "uuid" and tag is None
    is_array = get_origin(hint) is tuple
    item = get_args(hint)[0] if is_array else hint
    name = f"{field.name}_ms" if kind is not None and kind.startswith("timedelta") else field.name
    default = field.default
    if default is dataclasses.MISSING:
        default = None if is_nullable else () if is_array else _zero(kind)
    elif isinstance(default, timedelta):
        default = default // timedelta(milliseconds=1)
    return _Field(name, kind, item, is_array, is_nullable, tag, default)


def _zero(kind: str | None) -> object:
    zeros: dict[str | None, object] = {"string": "", "bytes": b"", "records": (), "uuid": None, None: None}
    return zeros.get(kind, 0)


def _nested(message: type | None) -> dict[str, type]:
    """The message classes of the fields that are structs or arrays of structs."""
    found: dict[str, type] = {}
    for name, hint in (get_type_hints(message) if message is not None else {}).items():
        alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        for each in alternatives:
            item = get_args(each)[0] if get_origin(each) is tuple else each
            if dataclasses.is_dataclass(item) and isinstance(item, type):
                found[name] = item
    return found


def _struct_reader(schema: type, message: type[Any] | None) -> Read:
    """A reader of a struct; with `message` None the value is None."""
    is_compact, nested = is_flexible(schema), _nested(message)
    names = {each.name for each in dataclasses.fields(message)} if message is not None else set()
    steps = [
        _numbers_step(group, names)
        if are_numbers
        else _value_step(group[0], names, _value_reader(group[0], nested.get(group[0].name), is_compact=is_compact))
        for are_numbers, group in _grouped(schema)
    ]
    tagged = {
        each.tag: (each.name, _value_reader(each, nested.get(each.name), is_compact=is_compact))
        for each in _fields(schema)
        if each.tag is not None and each.name in names
    }

    def read(cursor: Cursor) -> Any:  # noqa: ANN401 - an instance of `message`
        values: dict[str, object] = {}
        for step in steps:
            step(cursor, values)
        if tagged:
            values |= _read_tagged(cursor, tagged)
        elif is_compact:
            cursor.skip_tagged()
        return message(**values) if message is not None else None

    return read


def _grouped(schema: type) -> Iterator[tuple[bool, list[_Field]]]:
    """The fields without a tag, in order: (True, adjacent numbers), which are one operation, or (False, one other)."""
    fields = [each for each in _fields(schema) if each.tag is None]
    for are_numbers, found in groupby(fields, lambda each: each.kind in _NUMBERS and not each.is_array):
        group = list(found)
        yield from [(True, group)] if are_numbers else [(False, [each]) for each in group]


def _numbers_step(fields: Sequence[_Field], names: Collection[str]) -> Step:
    kept = [each.name for each in fields if each.name in names]
    form = struct.Struct(">" + "".join(_code(each, is_kept=each.name in names) for each in fields))

    def step(cursor: Cursor, values: dict[str, object]) -> None:
        values.update(zip(kept, cursor.numbers(form), strict=True))

    return step


def _code(field: _Field, *, is_kept: bool) -> str:
    """The field in the language of `struct`; without its value if the message lacks it."""
    code = _NUMBERS[field.kind]
    return code if is_kept else f"{struct.calcsize('>' + code)}x"


def _value_step(field: _Field, names: Collection[str], read_value: Read) -> Step:
    name, is_kept = field.name, field.name in names

    def step(cursor: Cursor, values: dict[str, object]) -> None:
        value = read_value(cursor)
        if is_kept:
            values[name] = value

    return step


def _read_tagged(cursor: Cursor, tagged: Mapping[int, tuple[str, Read]]) -> dict[str, object]:
    """The tagged fields that the message has. A field must have the size that its head declares."""
    values = {}
    for _ in range(cursor.uvarint()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        end = cursor.at + size
        if tag in tagged:
            name, read = tagged[tag]
            values[name] = read(cursor)
            if cursor.at != end:
                raise cursor.refuse("a tagged field has another size", tag=tag, size_bytes=size)
        else:
            cursor.take(size)
    return values


def _value_reader(field: _Field, message: type | None, *, is_compact: bool) -> Read:
    read_item = _struct_reader(field.item, message) if field.kind is None else _plain_reader(field, is_compact)
    if not field.is_array:
        return _maybe_null_reader(read_item) if field.kind is None and field.is_nullable else read_item
    form = None if is_compact else _INT32

    def read(cursor: Cursor) -> object:
        count = cursor.count(form)
        if count < 0 and not field.is_nullable:
            raise cursor.refuse("a field is null", field=field.name)
        return None if count < 0 else tuple([read_item(cursor) for _ in range(count)])

    return read


def _maybe_null_reader(read_item: Read) -> Read:
    """A reader of a struct that may be null. Source: KIP-893."""
    return lambda cursor: None if cursor.number(_INT8) < 0 else read_item(cursor)


def _plain_reader(field: _Field, is_compact: bool) -> Read:
    if field.kind == "error_code":
        return lambda cursor: _ERRORS.get(code := cursor.number(_INT16), code)
    if field.kind in _FIXED:
        fixed = _FIXED[field.kind]
        return lambda cursor: cursor.number(fixed)
    if field.kind == "uuid":
        return lambda cursor: _uuid(cursor.take(16))
    read_value = _sized_reader(field.kind, is_compact)
    may_be_null = field.is_nullable and not field.is_array

    def read(cursor: Cursor) -> object:
        value = read_value(cursor)
        if value is None and not may_be_null:
            raise cursor.refuse("a field is null", field=field.name)
        return value

    return read


def _sized_reader(kind: str | None, is_compact: bool) -> Read:
    """A reader of a string, of bytes (a copy), or of records (a view of the frame, as the sequence of one piece)."""
    if kind == "string":
        text_form = None if is_compact else _INT16
        return lambda cursor: cursor.text(text_form)
    form = None if is_compact else _INT32

    def read(cursor: Cursor) -> object:
        found = cursor.data(form)
        return None if found is None else bytes(found) if kind == "bytes" else (found,)

    return read


def _uuid(data: memoryview) -> UUID | None:
    found = UUID(bytes=bytes(data))
    return None if found == _NO_UUID else found


def _struct_writer(schema: type, message: type | None) -> Write:
    """A writer of a struct. A field that `message` lacks has its default. Tagged fields with defaults are omitted."""
    is_compact, nested = is_flexible(schema), _nested(message)
    names = {each.name for each in dataclasses.fields(message)} if message is not None else set()
    steps: list[Write] = [
        _numbers_writer(group, names)
        if are_numbers
        else _field_writer(group[0], names, _value_writer(group[0], nested.get(group[0].name), is_compact))
        for are_numbers, group in _grouped(schema)
    ]
    tagged = [
        (each.tag, each.name, each.default, _value_writer(each, nested.get(each.name), is_compact))
        for each in _fields(schema)
        if each.tag is not None and each.name in names
    ]

    def write(frame: Frame, value: object) -> None:
        for step in steps:
            step(frame, value)
        if tagged:
            _write_tagged(frame, value, tagged)
        elif is_compact:
            frame.uvarint(0)

    return write


def _numbers_writer(fields: Sequence[_Field], names: Collection[str]) -> Write:
    form = struct.Struct(">" + "".join(_NUMBERS[each.kind] for each in fields))
    parts = [(each.name if each.name in names else None, each.default) for each in fields]

    def write(frame: Frame, value: object) -> None:
        numbers = [default if name is None else getattr(value, name) for name, default in parts]
        frame.write(form.pack(*numbers))

    return write


def _field_writer(field: _Field, names: Collection[str], write_value: Write) -> Write:
    name, default = field.name, field.default
    if name not in names:
        return lambda frame, value: write_value(frame, default)
    return lambda frame, value: write_value(frame, getattr(value, name))


def _write_tagged(frame: Frame, value: object, tagged: Sequence[tuple[int, str, object, Write]]) -> None:
    """Write the tagged fields that are set and differ from their defaults. None of them has record batches."""
    values = ((tag, getattr(value, name), default, write) for tag, name, default, write in tagged)
    found = [(tag, each, write) for tag, each, default, write in values if each is not None and each != default]
    frame.uvarint(len(found))
    for tag, each, write in found:
        body = Frame()
        write(body, each)
        (piece,) = body.close()
        assert isinstance(piece, bytearray), "small fields are one piece"
        data = bytes(piece[_INT32.size :])
        frame.uvarint(tag)
        frame.uvarint(len(data))
        frame.write(data)


def _value_writer(field: _Field, message: type | None, is_compact: bool) -> Write:
    write_item = _struct_writer(field.item, message) if field.kind is None else _plain_writer(field, is_compact)
    if not field.is_array:
        return _maybe_null_writer(write_item) if field.kind is None and field.is_nullable else write_item
    form = None if is_compact else _INT32

    def write(frame: Frame, values: Sequence[object] | None) -> None:
        frame.length(form, -1 if values is None else len(values))
        for each in values or ():
            write_item(frame, each)
            frame.check()

    return write


def _maybe_null_writer(write_item: Write) -> Write:
    def write(frame: Frame, value: object) -> None:
        frame.number(_INT8, -1 if value is None else 1)
        if value is not None:
            write_item(frame, value)

    return write


def _plain_writer(field: _Field, is_compact: bool) -> Write:
    if field.kind in _FIXED:
        fixed = _FIXED[field.kind]
        return lambda frame, value: frame.number(fixed, value)
    if field.kind == "uuid":
        return lambda frame, value: frame.write((value or _NO_UUID).bytes)
    form, is_null = None if is_compact else _INT16, field.is_nullable and not field.is_array
    if field.kind == "string":
        return lambda frame, value: frame.text(form, value if value is not None or is_null else "")
    return _records_writer(field.kind, None if is_compact else _INT32, is_null)


def _records_writer(kind: str | None, form: struct.Struct | None, is_null: bool) -> Write:
    """A writer of bytes, or of records as a sequence of pieces."""

    def write(frame: Frame, value: Any) -> None:  # noqa: ANN401 - bytes or pieces
        if value is None and is_null:
            frame.length(form, -1)
            return
        pieces = (value or b"",) if kind == "bytes" else value or ()
        frame.length(form, sum(map(size_of, pieces)))
        for piece in pieces:
            if kind == "bytes":
                frame.write(piece)
            else:
                frame.append(piece)

    return write
