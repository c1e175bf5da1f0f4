"""A Kafka broker's ``server.properties``, or a file of topic settings, read as tiered settings; lint.

The file is read as by `java.util.Properties`, bytes as ISO-8859-1. Some names count hours or minutes. Of several names
for one setting the finest unit counts (Kafka's ServerTopicConfigSynonyms).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from local.errors import InvalidRequest
from local.verify.findings import Finding, Severity, finding, message
from tiered.config.config import Setting
from tiered.config.properties import (
    BROKER_NAMES,
    DEFAULTS,
    PROPERTIES,
    Kind,
    Source,
    broker_only,
    names_of_logs,
    nearest,
    parse,
)
from tiered.health.lint import Subject, hints, unknown
from tiered.node.problems import flat

_UNITS = {"hours": 3_600_000, "minutes": 60_000}
_LATER = ("log.flush.scheduler.interval.ms", "log.retention.check.interval.ms")
_SYSTEM = "remote.log.storage.system.enable"
_SAME = frozenset(("compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level"))
_OF_BROKERS = frozenset(
    ("broker.id", "node.id", "process.roles", "listeners", "log.dir", "log.dirs", "zookeeper.connect")
)
_BLANKS = " \t\f"  # Java's; only CR, LF or both end a line
_LINE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\r|\n")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+")
_READING = "cannot read the properties of the broker"


@dataclass(frozen=True, slots=True)
class Entry:
    line: int
    name: str
    value: str


def read_entries(path: str) -> list[Entry]:
    """Read the entries of the file at `path`, in order. Raises as `read_given` and `parse_entries`."""
    from tiered.config.user_files import read_given

    body = read_given(path, _READING, "name the server.properties of a broker")
    if b"\0" in body:
        raise InvalidRequest(f"{_READING}, it is not text", file=path)
    try:
        return list(parse_entries(body.decode("iso-8859-1")))
    except InvalidRequest as problem:
        raise problem.restated(problem.attempt, file=path, **problem.facts) from None


def parse_entries(text: str) -> Iterator[Entry]:
    """Parse as `java.util.Properties.load`. Raises InvalidRequest for a refused escape."""
    for first, line in _joined(text):
        found = _LINE.fullmatch(line)
        if found is not None:
            yield Entry(first, _unescaped(found[1], first), _unescaped(found[2], first).rstrip())


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with an entry and its first line number; a final backslash joins the next line."""
    pending: str | None = None
    first = 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if pending is None and (not line or line[0] in "#!"):
            continue
        first = number if pending is None else first
        is_joined = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined = (pending or "") + (line[:-1] if is_joined else line)
        pending = joined if is_joined else None
        if not is_joined:
            yield first, joined
    if pending is not None:
        yield first, pending


def broker_settings(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the settings for ``[defaults]``. Raises InvalidRequest, by names of the file, where Kafka would."""
    from tiered.config.config import check_combination

    meant = _meant(entries)
    settings = {name: _value(entry, name) for name, entry in meant.items()}
    try:
        check_combination(settings, may_tier=True)
    except InvalidRequest as problem:
        raise problem.restated(problem.attempt, **_as_written(problem.facts, meant)) from None
    return settings


def without_effect(entries: Sequence[Entry]) -> list[tuple[Entry, str]]:
    """Return the entries that set nothing, and why."""
    overriding = dict(_overridden(entries))
    found = []
    for each in entries:
        if _our_name(each.name) is None:
            found.append((each, broker_only(each.name) or "it is not a setting of tiered"))
        elif (other := overriding.get(each)) is not None:
            found.append((each, f"{other.name} in line {other.line} overrides it"))
    return found


def lint_broker_file(path: str) -> list[Finding]:
    entries = read_entries(path)
    is_broker = any(each.name in _OF_BROKERS or each.name.startswith("log.") for each in entries)
    found = [
        finding(
            "settings.repeated", f"{path}:{each.line}", key=each.name, name=each.name, other=other.name, line=other.line
        )
        for each, other in _overridden(entries)
    ]
    found += [finding for each in entries for finding in _of_entry(path, each, is_broker=is_broker)]
    if any(each.severity is Severity.ERROR for each in found):
        return found
    meant = _meant(entries)
    effective = {name: Setting(name=name, value=value, origin="default") for name, value in DEFAULTS.items()}
    for name, entry in meant.items():
        effective[name] = Setting(name=name, value=_value(entry, name), origin=f"{path}:{entry.line}")
    found += _of_kafka(path, {each.name: each for each in entries}, effective)
    try:
        subject = Subject.of("", effective)
    except InvalidRequest as problem:
        key = next((key for key in problem.facts if key in meant), "")
        where = effective[key].origin if key else path
        what = flat(problem.restated(problem.attempt, **_as_written(problem.facts, meant)))
        return [*found, finding("settings.broker-refused", where, key=meant[key].name if key else "", what=what)]

    def place(keys: Sequence[str]) -> str:
        return next((effective[key].origin for key in keys if key in meant), path)

    return [*found, *hints(subject, place, set_with="")]


def _meant(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return the entry that sets each tiered setting: the one with the finest unit, the last of equal ones."""
    meant: dict[str, Entry] = {}
    for each in entries:
        name = _our_name(each.name)
        if name is not None and (name not in meant or _rank(each.name) <= _rank(meant[name].name)):
            meant[name] = each
    return meant


def _as_written(facts: Mapping[str, object], meant: Mapping[str, Entry]) -> dict[str, object]:
    return {
        meant[name].name if name in meant else name: meant[name].value if name in meant else value
        for name, value in facts.items()
    }


def _our_name(name: str) -> str | None:
    entry = PROPERTIES.get(name)
    return name if entry is not None and entry.source is Source.KAFKA else BROKER_NAMES.get(name)


def _rank(name: str) -> int:
    return 1 if name in _LATER else {"minutes": 1, "hours": 2}.get(name.rpartition(".")[2], 0)


def _value(entry: Entry, name: str) -> str:
    text, unit = entry.value, _UNITS.get(entry.name.rpartition(".")[2])
    if PROPERTIES[name].kind in (Kind.MS, Kind.BYTES) and not _NUMBER.fullmatch(text):
        expected = f"a bare number of {entry.name.rpartition('.')[2] if unit else PROPERTIES[name].kind.name.lower()}"
        wrong = "cannot read the properties, a value is not in the form of Kafka"
        raise InvalidRequest(wrong, key=entry.name, value=text, expected=expected)
    value = str(int(text) * unit) if unit and int(text) > 0 else text
    try:
        parse(name, value)
    except InvalidRequest as problem:
        facts = {**problem.facts, "key": entry.name, "value": repr(text)}
        raise problem.restated(problem.attempt, **facts) from None
    return value


def _of_entry(path: str, entry: Entry, *, is_broker: bool) -> Iterator[Finding]:
    where, name = f"{path}:{entry.line}", _our_name(entry.name)
    if name is None:
        yield from _unknown(where, entry.name)
        return
    try:
        _value(entry, name)
    except InvalidRequest as problem:
        expected = str(problem.facts.get("expected", "")).strip("'")
        yield finding(
            "settings.broker-value", where, key=entry.name, name=entry.name, value=entry.value, expected=expected
        )
    if is_broker and entry.name in PROPERTIES and PROPERTIES[entry.name].is_per_topic and entry.name not in _SAME:
        meant = next((known for known, ours in BROKER_NAMES.items() if ours == name and _rank(known) == 0), None)
        what = message("settings.of-topics", name=entry.name) + (f"; did you mean {meant}?" if meant else "")
        yield finding(
            "settings.of-topics", where, key=entry.name, what=what, next_step=f"write {meant}" if meant else None
        )


def _unknown(where: str, name: str) -> Iterator[Finding]:
    own = (each for each, entry in PROPERTIES.items() if entry.source is Source.KAFKA)
    is_of_logs = name.startswith("log.")
    meant = nearest(name, {*BROKER_NAMES, *names_of_logs(), *own}, cutoff=0.6 if is_of_logs else 0.9)
    if broker_only(name) is None and (is_of_logs or meant is not None):
        yield unknown(where, name, meant)


def _overridden(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    meant = _meant(entries)
    for each in entries:
        name = _our_name(each.name)
        if name is not None and meant[name] is not each:
            yield each, meant[name]


def _of_kafka(path: str, entries: Mapping[str, Entry], effective: Mapping[str, Setting]) -> Iterator[Finding]:
    system = entries.get(_SYSTEM)
    if system is None or system.value.lower() != "true":
        return
    where, manager = f"{path}:{system.line}", "remote.log.storage.manager.class.name"
    if manager not in entries:
        yield finding("settings.no-plugin", where, key=_SYSTEM, name=_SYSTEM, plugin=manager)
    if "compact" in effective["cleanup.policy"].value:
        yield finding("settings.broker-compacted", effective["cleanup.policy"].origin, key="cleanup.policy")


def _unescaped(text: str, line: int) -> str:
    def character(found: re.Match[str]) -> str:
        if found[1] == "u":
            raise InvalidRequest(f"{_READING}, four hex digits follow \\u", line=line, text=repr(text))
        if len(found[1]) > 1:
            return chr(int(found[1][1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(found[1], found[1])

    units = _ESCAPE.sub(character, text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # pairs become one character
