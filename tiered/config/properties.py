"""Look up and parse properties of topics and the manager; the table is `tiered.config.property_table`.

Values are text until this module parses them, so a setting reads the same in the file, in the environment and after
``-X``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from local.errors import ErrorCode, InvalidRequest
from tiered.config.broker_names import BROKER_NAMES
from tiered.config.broker_only import broker_only
from tiered.config.property_table import TABLE, Kind, Property, Source, Value
from tiered.config.units import parse_bytes, parse_ms

__all__ = [
    "DEFAULTS",
    "ENVIRONMENT",
    "PROPERTIES",
    "Kind",
    "Property",
    "Source",
    "Value",
    "canonical",
    "find_property",
    "nearest",
    "parse",
]

PROPERTIES: dict[str, Property] = {row.name: row for row in TABLE}
ENVIRONMENT: dict[str, Property] = {row.environment_variable: row for row in PROPERTIES.values()}
DEFAULTS: dict[str, str] = {row.name: row.default for row in PROPERTIES.values()}
_NOWHERE: Mapping[str, object] = {}


def find_property(name: str, where: Mapping[str, object] = _NOWHERE, *, per_topic: bool = False) -> Property:
    """The property of that name. Raises InvalidRequest with the nearest known name.

    `where` is added to the facts of the error.
    """
    row = PROPERTIES.get(name)
    if row is None and name in BROKER_NAMES:
        meant = PROPERTIES[BROKER_NAMES[name]]
        facts = {**where, "did_you_mean": meant.name, "expected": repr(meant.expected)}
        raise InvalidRequest("invalid setting, it is a setting of Kafka brokers and not of topics", key=name, **facts)
    if row is None and (known := broker_only(name)) is not None:
        what = "invalid setting, it is a setting of Kafka brokers that has no effect here"
        raise InvalidRequest(what, key=name, why=repr(known.words), **where)
    if row is None:
        raise InvalidRequest("invalid setting, unknown key", key=name, **where, did_you_mean=nearest(name, PROPERTIES))
    if per_topic and not row.is_per_topic:
        text = "invalid setting, it belongs to the manager and not to a topic"
        raise InvalidRequest(text, key=name, **where).with_code(ErrorCode.SETTING_OF_MANAGER)
    return row


def parse(name: str, text: str, where: Mapping[str, object] = _NOWHERE) -> Value:
    """The value of one setting. Raises InvalidRequest with the key, the text and the expected form."""
    row = find_property(name, where)
    value = _sound(name, text)
    if value is None:
        raise InvalidRequest("invalid setting", key=name, value=repr(text), expected=repr(row.expected), **where)
    return value


def canonical(name: str, text: str) -> str:
    """A well-formed value in its stored spelling: switches and choices as in the table."""
    row = PROPERTIES[name]
    if row.kind is Kind.BOOL:
        return text.strip().lower()
    return str(_parse(row, text)) if row.kind is Kind.ENUM else text.strip()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelt one; None if none is close."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


@lru_cache(maxsize=4096)
def _sound(name: str, text: str) -> Value | None:
    """The value; None if malformed or out of range. Cached: hundreds of topics share a few settings."""
    value = _parse(PROPERTIES[name], text)
    return value if value is not None and _is_in_range(PROPERTIES[name], value) else None


def _parse(row: Property, text: str) -> Value | None:
    match row.kind:
        case Kind.MS:
            return parse_ms(text)
        case Kind.BYTES:
            return parse_bytes(text)
        case Kind.INT:
            return _number(int, text)
        case Kind.FLOAT:
            return _number(float, text)
        case Kind.BOOL:
            return {"true": True, "false": False}.get(text.strip().lower())
        case Kind.ENUM:
            return next((choice for choice in row.choices if choice.lower() == text.strip().lower()), None)
        case Kind.SET:
            chosen = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
            return chosen if chosen <= set(row.choices) else None
        case Kind.TEXT:
            return text.strip()


def _number(kind: type[int] | type[float], text: str) -> int | float | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _is_in_range(row: Property, value: Value) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    return (row.minimum is None or value >= row.minimum) and (row.maximum is None or value <= row.maximum)
