"""Lint of a node's configuration: all findings at once, each with file, line and next step.

Checked are ``tiered.toml``, the environment, the command line's settings, and the own settings of the topics.

1. Each key by itself: unknown keys, invalid values.
2. If every key is valid: settings that contradict each other.
3. Then valid settings that hardly make sense (`tiered.health.lint_rules`).

A finding that is the same for many topics is reported once, for the layer that it comes from. Needs no store; no log is
opened.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from local.errors import ErrorCode, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage
from policies.cost.prices import BUILT_IN, PriceTable
from tiered.config.config import KEYS, SECTIONS, Config, Setting
from tiered.config.properties import ENVIRONMENT, find_property, nearest, parse
from tiered.health.lint_rules import Subject, hints
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.partition_opening import wants_tier

_HEADER = re.compile(r"\s*(\[[^\[].*?\])\s*(?:#.*)?")
_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")
_AT_LINE = re.compile(r"\(at line (\d+)")


class Severity(StrEnum):
    """`ERROR` is refused when the node opens; `WARNING` is valid but harmful."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One finding. `where` is ``file:line``, ``topic NAME``, ``environment`` or ``-X``.

    `key` is empty for a finding about no single key. `topics` are the affected topics; empty for a finding about a
    file.
    """

    severity: Severity
    where: str
    key: str
    what: str
    next_step: str
    topics: tuple[str, ...] = ()


def lint_place(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    topics: Sequence[str] | None = None,
    storage: Storage | None = None,
) -> list[LintFinding]:
    """Return the findings for the node with its ``tiered.toml`` at `path`, for all topics or `topics`.

    Raises NotFound for a missing file or topic, and Corrupt if the topics cannot be read.
    """
    lines = TomlLines.read(path)
    overrides, environ = overrides or {}, environ or {}
    found = [*lines.file_findings, *_keys_of_file(lines), *_keys_elsewhere(overrides, environ)]
    if found:
        return found
    try:
        config = Config.load(path, overrides, environ)
    except InvalidRequest as error:
        key = next((key for key in error.facts if key in _PLACE or "." in key), "")
        return [_refused(error, lines.where(str(error.facts.get("section", "defaults")), key) or path, key)]
    registry = TopicRegistry([(storage or DiskStorage(), root) for root in config.data_dirs])
    chosen = registry.all() if topics is None else [registry.get(name) for name in topics]
    return lint_config(config, chosen, lines, is_whole=topics is None)


def lint_config(
    config: Config,
    topics: Sequence[Topic],
    lines: TomlLines | None = None,
    *,
    is_whole: bool = True,
    with_defaults: bool = True,
) -> list[LintFinding]:
    """Return the findings for a loaded configuration and these topics. `is_whole`: they are all topics.

    Without `with_defaults` future topics are not checked.
    """
    lines = lines or TomlLines(config.path or "", {})
    found = list(_own_keys(topics))
    if found:
        return found
    prices, price_findings = _prices(config, lines)
    found += price_findings
    found += _of_manager(config, lines)
    found += _globs(config, topics, lines) if is_whole else []
    found += _outranked(config, topics, lines)
    by_key_and_message: dict[tuple[str, str], LintFinding] = {}
    for topic in [None, *topics] if is_whole and with_defaults else topics:
        for each in _of_topic(config, topic, prices, lines):
            known = by_key_and_message.setdefault((each.key, each.what), each)
            if known is not each and known.topics:
                by_key_and_message[each.key, each.what] = replace(known, topics=(*known.topics, *each.topics))
    return [*found, *by_key_and_message.values()]


class TomlLines:
    """The line of each key of a ``tiered.toml``."""

    def __init__(
        self, path: str, lines: Mapping[tuple[str, str], int], body: Mapping[str, object] | None = None
    ) -> None:
        self.path, self._lines, self.body = path, lines, body or {}
        self.file_findings: tuple[LintFinding, ...] = ()

    @classmethod
    def read(cls, path: str) -> TomlLines:
        """Read the file. Raises NotFound. A file that is no TOML sets `file_findings`."""
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
        except FileNotFoundError:
            raise NotFound("the configuration file does not exist", file=path) from None
        except (OSError, UnicodeDecodeError) as error:
            what = "it is not text" if isinstance(error, UnicodeDecodeError) else (error.strerror or "failed").lower()
            return cls._unreadable(path, path, f"the file is unreadable: {what}")
        try:
            return cls(path, dict(_places(text)), tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            line = _AT_LINE.search(str(error))
            message = re.sub(r"\s*\(at .*", "", str(error))
            return cls._unreadable(path, f"{path}:{line[1]}" if line else path, f"invalid TOML: {message.lower()}")

    @classmethod
    def _unreadable(cls, path: str, where: str, what: str) -> TomlLines:
        found = cls(path, {})
        step = "correct the line; names with dots need quotes"
        found.file_findings = (LintFinding(severity=Severity.ERROR, where=where, key="", what=what, next_step=step),)
        return found

    def where(self, section: str, key: str) -> str | None:
        """Return ``file:line`` of a key, or of its section's header if the key has no line of its own."""
        line = self._lines.get((section, key)) or self._lines.get((section, ""))
        return f"{self.path}:{line}" if line else None

    def where_from(self, setting: Setting) -> str:
        """Return the origin of an effective setting, with the line if it is the file."""
        if not self.path or not setting.origin.startswith(f"{self.path} ["):
            return setting.origin
        section = setting.origin.removeprefix(f"{self.path} [")[:-1].replace('"', "")
        return self.where(section, setting.name) or setting.origin


_PLACE = frozenset(key for keys in KEYS.values() for key in keys)


def _places(text: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((section, key), line) of every key at the start of a line, and of headers with an empty key."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = ".".join(_path_of(header[1]))
            yield (section, ""), number
        elif key := _KEY.match(line):
            yield (section, key[1].strip("\"'")), number


def _path_of(header: str) -> list[str]:
    """Return the parts of ``[topics."orders*"]``; empty for text that is no header."""
    try:
        table: object = tomllib.loads(header)
    except tomllib.TOMLDecodeError:
        return []
    path = []
    while isinstance(table, dict) and table:
        name, table = next(iter(table.items()))
        path.append(name)
    return path


def _keys_of_file(lines: TomlLines) -> Iterator[LintFinding]:
    for section, content in lines.body.items():
        if section not in SECTIONS:
            yield _unknown(lines.where(section, "") or lines.path, section, "section", nearest(section, SECTIONS))
        elif not isinstance(content, dict):
            what = f"{section} is not a table"
            yield _error(lines.where("", section) or lines.path, section, what, f"write it as [{section}]")
        elif section in KEYS:
            for key in content:
                if key not in KEYS[section]:
                    where = lines.where(section, key) or lines.path
                    yield _unknown(where, key, f"key of [{section}]", nearest(key, KEYS[section]))
        elif section == "defaults":
            yield from _settings_of(content, "defaults", lines, per_topic=False)
        else:
            for glob, settings in content.items():
                if isinstance(settings, dict):
                    yield from _settings_of(settings, f"topics.{glob}", lines, per_topic=True)
                else:
                    where = lines.where("topics", glob) or lines.path
                    yield _error(where, glob, f"topics.{glob} is not a table", f'write it as [topics."{glob}"]')


def _settings_of(
    table: Mapping[str, object], section: str, lines: TomlLines, *, per_topic: bool
) -> Iterator[LintFinding]:
    for name, value in table.items():
        where = lines.where(section, name) or lines.path
        if isinstance(value, dict):
            dotted = f"{name}.{next(iter(value), '')}"
            what = "TOML reads a name with dots and without quotes as a table"
            yield _error(lines.where(section, dotted) or where, dotted, what, f'write it as "{dotted}" = ...')
        else:
            yield from _checked(name, str(value), where, per_topic=per_topic)


def _keys_elsewhere(overrides: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[LintFinding]:
    for variable, text in environ.items():
        if variable in ENVIRONMENT:
            yield from _checked(ENVIRONMENT[variable].name, text, f"environment {variable}", per_topic=False)
    for name, text in overrides.items():
        yield from _checked(name, text, "-X", per_topic=False)


def _own_keys(topics: Iterable[Topic]) -> Iterator[LintFinding]:
    for topic in topics:
        for name, text in topic.properties.items():
            yield from _checked(name, text, f"topic {topic.name}", per_topic=True)


def _checked(name: str, text: str, where: str, *, per_topic: bool) -> Iterator[LintFinding]:
    """Check one setting by itself: known, of the right type, in range."""
    try:
        find_property(name, per_topic=per_topic)
        parse(name, text)
    except InvalidRequest as error:
        yield _error(where, name, *_mistake(name, text, error))


def _mistake(name: str, text: str, error: InvalidRequest) -> tuple[str, str]:
    """Return the error of one setting, and the next step."""
    meant = error.facts.get("did_you_mean")
    if meant is not None:
        return f"{error.attempt.removeprefix('invalid setting, ')}: {name}; did you mean {meant}?", f"write {meant}"
    if "expected" in error.facts:
        expected = str(error.facts["expected"]).strip("'")
        return f"{name}={text} is invalid, expected {expected}", f"tiered config explain {name}"
    if error.code is ErrorCode.SETTING_OF_MANAGER:
        return f"{name} belongs to the manager and not to a topic", "move it to [defaults] of tiered.toml"
    return f"unknown key: {name}", "remove it"


def _of_manager(config: Config, lines: TomlLines) -> Iterator[LintFinding]:
    from remote.store.open_store import check_url
    from tiered.config.config import URL_VARIABLE
    from tiered.config.secrets import load_key_ring

    try:
        if config.remote_url is not None:
            check_url(config.remote_url)
    except InvalidRequest as error:
        yield _refused(error, lines.where("remote", "url") or f"environment {URL_VARIABLE}", "url")

    try:
        config.fetch_cache_dir  # noqa: B018 - looked at for what it raises
    except LogError as error:
        key = "remote.fetch.cache.dir"
        yield _refused(error, lines.where("defaults", key) or config.path or "", key)
    try:
        load_key_ring(config.key_ring, os.environ)
    except LogError as error:
        yield _refused(error, lines.where("remote", "key_ring") or config.path or "", "key_ring")


def _prices(config: Config, lines: TomlLines) -> tuple[PriceTable, list[LintFinding]]:
    from tiered.config.price_file import SETTING, configured_prices

    try:
        return configured_prices(config), []
    except LogError as error:
        return BUILT_IN, [_refused(error, lines.where("defaults", SETTING) or config.path or "", SETTING)]


def _globs(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[LintFinding]:
    names = sorted(topic.name for topic in topics)
    for glob in config.topics:
        if topics and not any(fnmatchcase(name, glob) for name in names):
            what = f'[topics."{glob}"] of tiered.toml matches no topic: {", ".join(names[:5])}'
            where = lines.where(f"topics.{glob}", "") or config.path or ""
            yield LintFinding(severity=Severity.WARNING, where=where, key=glob, what=what, next_step="correct the name")


def _outranked(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[LintFinding]:
    """Yield file settings of a single named topic that the topic's own settings override.

    A glob is for many topics, and some of them may have settings of their own.
    """
    for topic in topics:
        for name, text in config.topics.get(topic.name, {}).items():
            own = topic.properties.get(name)
            if own is not None and parse(name, own) != parse(name, text):
                yield LintFinding(
                    severity=Severity.WARNING,
                    where=lines.where(f"topics.{topic.name}", name) or config.path or "",
                    key=name,
                    what=f"{name}={text} has no effect: the topic has its own {name}={own}, which overrides it",
                    next_step=f"tiered topic alter {topic.name} -X {name}= or remove the line",
                    topics=(topic.name,),
                )


def _of_topic(config: Config, topic: Topic | None, prices: PriceTable, lines: TomlLines) -> Iterator[LintFinding]:
    """Yield errors of a topic, else its warnings. None is a future topic without own settings."""
    from tiered.config.resolve_settings import log_settings
    from tiered.config.secrets import load_key_ring
    from tiered.stores.object_encoding import encoding_of

    name = topic.name if topic is not None else ""
    effective = {each.name: each for each in config.explain(name, topic.properties if topic is not None else None)}
    values = {each.name: each.value for each in effective.values()}
    try:
        subject = Subject.of(name, effective, prices)
        log_settings(values), encoding_of(values, load_key_ring(config.key_ring, os.environ))
    except InvalidRequest as error:
        key = next((key for key in error.facts if key in effective), "")
        where = lines.where_from(effective[key]) if key else config.path or ""
        yield replace(_refused(error, where, key, topic=name), topics=(name,) if name else ())
        return
    except LogError:
        return  # an unreadable key ring is reported already
    if wants_tier(values) and config.remote_url is None and name:
        where, what = (
            lines.where_from(effective["remote.storage.enable"]),
            "remote.storage.enable=true, and [remote] has no url",
        )
        step = "set url in [remote] of tiered.toml"
        yield LintFinding(
            severity=Severity.ERROR, where=where, key="remote.storage.enable", what=what, next_step=step, topics=(name,)
        )
    for hint in hints(subject):
        said = next(
            (effective[key] for key in hint.keys if effective[key].origin != "default"), effective[hint.keys[0]]
        )
        yield LintFinding(
            severity=Severity.WARNING,
            where=lines.where_from(said),
            key=hint.keys[0],
            what=hint.what,
            next_step=f"tiered topic alter {name} {hint.step}" if name and hint.step.startswith("-X") else hint.step,
            topics=(name,) if name else (),
        )


def _refused(error: LogError, where: str, key: str, topic: str = "") -> LintFinding:
    step = f"tiered topic alter {topic}, or correct tiered.toml" if topic else "correct tiered.toml"
    return _error(where, key, " ".join(str(error).split()), step)


def _unknown(where: str, name: str, kind: str, meant: str | None) -> LintFinding:
    by_key_and_message = f"unknown {kind}: {name}" + (f"; did you mean {meant}?" if meant else "")
    return _error(where, name, by_key_and_message, f"write {meant}" if meant else "remove it")


def _error(where: str, key: str, what: str, step: str) -> LintFinding:
    return LintFinding(severity=Severity.ERROR, where=where, key=key, what=what, next_step=step)
