"""The one table of properties of topics and of the manager (``properties.json``), with their look-up and their parser.

Names and defaults are Kafka's where Kafka has the property. Values are text until this module parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pkgutil import get_data

from msgspec import convert, json

from local.errors import ErrorCode, InvalidRequest
from policies.rules import DailyWindow
from tiered.config.units import parse_bytes, parse_ms

Value = int | float | bool | str | frozenset[str] | DailyWindow


class Kind(Enum):
    """The type of a value; the text describes its form."""

    MS = "a duration such as 7d, 90s or a number of ms"
    BYTES = "a size such as 512MiB or a number of bytes"
    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    ENUM = "one of"
    SET = "a comma-separated list of"
    WINDOW = "a daily time range in UTC such as 22:00-06:00"
    TEXT = "a name, or nothing"


class Source(Enum):
    KAFKA = "kafka"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `default` is text, as in a file; `minimum` and `maximum` are inclusive.

    | field | meaning |
    |---|---|
    | `rule`, `log_setting` | the field of `PartitionRules`, of `LogSettings` that has this value unchanged |
    | `needs_tier` | has no effect on a topic without a remote tier: lint reports it there |
    | `adopt_refusal` | why `tiered adopt` refuses another value than the default |
    | `not_planned` | why a saved plan stays valid under another value |
    | `broker_names` | names in Kafka's ``server.properties`` (ServerTopicConfigSynonyms); refused, since units differ |
    """

    name: str
    kind: Kind
    default: str
    doc: str = ""
    source: Source = Source.KAFKA
    is_per_topic: bool = True
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    rule: str = ""
    log_setting: str = ""
    needs_tier: bool = False
    adopt_refusal: str = ""
    not_planned: str = ""

    @property
    def environment_variable(self) -> str:
        return "TIERED_" + self.name.replace(".", "_").upper()

    @property
    def expected(self) -> str:
        text = f"{self.kind.value} {', '.join(self.choices)}" if self.choices else self.kind.value
        if self.minimum is not None:
            text += f", at least {self.minimum}"
        return text if self.maximum is None else f"{text}, at most {self.maximum}"


_TIME_RANGE = re.compile(r"([0-9]{2}):([0-5][0-9])-([0-9]{2}):([0-5][0-9])")
_DAY_MINUTES = 24 * 60
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
IMMUTABLE = "remote.immutable"
APPEND_FREE_MIN = "log.dir.append.free.bytes.min"
RELIEF_FREE_MIN = "log.dir.relief.free.bytes.min"
JUMP_HOLD = "clock.jump.hold.ms"
_FILE = json.decode(get_data(__package__, "properties.json") or b"")
TABLE = convert(
    [{**row, "kind": Kind[row["kind"]].value} for row in _FILE["properties"]], tuple[Property, ...]
)  # at import: msgspec 0.22 must not meet a type for the first time in two threads at once
# Settings of Kafka 4.1 brokers without effect here, with the replacement; then families by prefix: the first decides.
_NO_EFFECT: dict[str, str] = _FILE["no_effect"]
_FAMILIES_WITHOUT_EFFECT = [(row["why"], tuple(row["prefixes"])) for row in _FILE["families"]]

PROPERTIES: dict[str, Property] = {row.name: row for row in TABLE}
ENVIRONMENT: dict[str, Property] = {row.environment_variable: row for row in TABLE}
DEFAULTS: dict[str, str] = {row.name: row.default for row in TABLE}
BROKER_NAMES: dict[str, str] = dict(sorted((broker, row.name) for row in TABLE for broker in row.broker_names))
_NOWHERE: Mapping[str, object] = {}


def find_property(name: str, where: Mapping[str, object] = _NOWHERE, *, per_topic: bool = False) -> Property:
    """Return a property. Raises InvalidRequest, with `where` and the nearest known name."""
    row = PROPERTIES.get(name)
    if row is None and name in BROKER_NAMES:
        meant = PROPERTIES[BROKER_NAMES[name]]
        facts = {**where, "did_you_mean": meant.name, "expected": repr(meant.expected)}
        raise InvalidRequest("invalid setting, it is a setting of Kafka brokers and not of topics", key=name, **facts)
    if row is None and (why := broker_only(name)) is not None:
        what = "invalid setting, it is a setting of Kafka brokers that has no effect here"
        raise InvalidRequest(what, key=name, why=repr(why), **where)
    if row is None:
        raise InvalidRequest("invalid setting, unknown key", key=name, **where, did_you_mean=nearest(name, PROPERTIES))
    if per_topic and not row.is_per_topic:
        text = "invalid setting, it belongs to the manager and not to a topic"
        raise InvalidRequest(text, key=name, **where).with_code(ErrorCode.SETTING_OF_MANAGER)
    return row


def broker_only(name: str) -> str | None:
    """The reason why a broker setting has no effect here; None for other names."""
    families = (why for why, prefixes in _FAMILIES_WITHOUT_EFFECT if name.startswith(prefixes))
    return _NO_EFFECT.get(name) or next(families, None)


def names_of_logs() -> frozenset[str]:
    return frozenset(name for name in _NO_EFFECT if name.startswith("log."))


def parse(name: str, text: str, where: Mapping[str, object] = _NOWHERE) -> Value:
    """The value of one setting. Raises InvalidRequest with the key, the text and the expected form."""
    row = find_property(name, where)
    value = _sound(name, text)
    if value is None:
        raise InvalidRequest("invalid setting", key=name, value=repr(text), expected=repr(row.expected), **where)
    return value


def canonical(name: str, text: str) -> str:
    """Return a valid value as it is stored, in the spelling of the table."""
    row = PROPERTIES[name]
    if row.kind is Kind.BOOL:
        return text.strip().lower()
    return str(_parse(row, text)) if row.kind is Kind.ENUM else text.strip()


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


@lru_cache(maxsize=4096)
def _sound(name: str, text: str) -> Value | None:
    """The value; None if malformed or out of range. Cached: hundreds of topics share a few settings."""
    row = PROPERTIES[name]
    value = _parse(row, text)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    is_in_range = (row.minimum is None or value >= row.minimum) and (row.maximum is None or value <= row.maximum)
    return value if is_in_range else None


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
            words = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
            return words if words <= set(row.choices) else None
        case Kind.WINDOW:
            return _window(text)
        case Kind.TEXT:
            return text.strip()


def _window(text: str) -> DailyWindow | None:
    found = _TIME_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    start, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (1, 3))
    if start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
        return None
    return DailyWindow(start_ms=start * 60_000, end_ms=end * 60_000)


def _number(kind: type[int] | type[float], text: str) -> int | float | None:
    try:
        return kind(text)
    except ValueError:
        return None
