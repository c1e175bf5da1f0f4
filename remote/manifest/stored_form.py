"""Stored JSON of frozen dataclasses whose stored field names differ from the names in the code.

The format keeps the field names of its first version (docs/reference/formats.md). A `StoredForm` converts between a
value and a msgspec struct with these names, for the value and for the listed fields that hold such values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec

T = TypeVar("T")


class StoredForm(Generic[T]):
    """The stored form of `kind`. Create it at import: msgspec decoders of a type are not created in two threads."""

    def __init__(self, kind: type[T], names: Mapping[str, str], **nested: StoredForm[Any]) -> None:
        """`names` maps fields to stored names; `nested` has the stored forms of fields that are tuples of values."""
        hints = get_type_hints(kind, include_extras=True)
        hints |= {name: tuple[form.struct, ...] for name, form in nested.items()}  # type: ignore[name-defined]
        defined: list[Any] = []
        for field in fields(kind):  # type: ignore[arg-type]
            default = () if field.default is MISSING else (field.default,)
            defined.append((field.name, hints[field.name], *default))
        self._kind = kind
        self._nested = nested
        self._fields = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
        self.names = {name: names.get(name, name) for name in self._fields}
        self.struct: Any = msgspec.defstruct(f"Stored{kind.__name__}", defined, kw_only=True, rename=self.names)
        self._decoder = msgspec.json.Decoder(self.struct)

    def encode(self, value: T) -> bytes:
        """Return the JSON bytes, with the fields in the order of the struct."""
        return msgspec.json.encode(self.stored(value))

    def decode(self, text: bytes | msgspec.Raw) -> T:
        """Decode the JSON of `encode`. Raises msgspec.DecodeError, UnicodeDecodeError."""
        return self.value(self._decoder.decode(text))

    def stored(self, value: T) -> msgspec.Struct:
        return cast(
            msgspec.Struct,
            self.struct(**{name: self._map(name, getattr(value, name), "stored") for name in self._fields}),
        )

    def value(self, stored: msgspec.Struct) -> T:
        return self._kind(**{name: self._map(name, getattr(stored, name), "value") for name in self._fields})

    def _map(self, name: str, value: object, verb: str) -> object:
        form = self._nested.get(name)
        return value if form is None else tuple(getattr(form, verb)(each) for each in cast("tuple[object, ...]", value))
