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
from dataclasses import replace
from fnmatch import fnmatchcase

from local.errors import ErrorCode, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage
from local.verify.findings import Finding, error, warning
from policies.cost.prices import BUILT_IN, PriceTable
from tiered.config.config import KEYS, SECTIONS, Config, Setting
from tiered.config.properties import ENVIRONMENT, find_property, nearest, parse
from tiered.health.lint_rules import Subject, hints
from tiered.node.problems import flat
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.partition_opening import wants_tier

# `ERROR` is refused when the node opens; `WARNING` is valid but harmful.
_NO_TOML = error("settings.toml", "the file is no TOML", "correct the line; names with dots need quotes")
_UNKNOWN = error("settings.unknown", "unknown {kind}: {name}", "remove it")
_NO_TABLE = error("settings.no-table", "{name} is not a table", "write it as [{name}]")
_NO_QUOTES = error(
    "settings.no-quotes",
    "TOML reads a name with dots and without quotes as a table",
    'write it as "{name}" = ...',
)
_INVALID = error("settings.invalid", "{name}={value} is invalid, expected {expected}", "tiered config explain {name}")
_OF_MANAGER = error(
    "settings.of-manager", "{name} belongs to the manager and not to a topic", "move it to [defaults] of tiered.toml"
)
_REFUSED = error("settings.refused", "the settings contradict each other, or one of them is refused")
_NO_MATCH = warning("settings.no-match", '[topics."{glob}"] of tiered.toml matches no topic', "correct the name")
_OVERRIDDEN = warning("settings.overridden", "the topic has its own value, which overrides the file's")
_NO_URL = error(
    "settings.no-url", "remote.storage.enable=true, and [remote] has no url", "set url in [remote] of tiered.toml"
)

_HEADER = re.compile(r"\s*(\[[^\[].*?\])\s*(?:#.*)?")
_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")
_AT_LINE = re.compile(r"\(at line (\d+)")


def lint_place(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    topics: Sequence[str] | None = None,
    storage: Storage | None = None,
) -> list[Finding]:
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
    except InvalidRequest as problem:
        key = next((key for key in problem.facts if key in _PLACE or "." in key), "")
        return [_refused(problem, lines.where(str(problem.facts.get("section", "defaults")), key) or path, key)]
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
) -> list[Finding]:
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
    by_key_and_message: dict[tuple[str, str], Finding] = {}
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
        self.file_findings: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, path: str) -> TomlLines:
        """Read the file. Raises NotFound. A file that is no TOML sets `file_findings`."""
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
        except FileNotFoundError:
            raise NotFound("the configuration file does not exist", file=path) from None
        except (OSError, UnicodeDecodeError) as problem:
            cause = problem.strerror if isinstance(problem, OSError) else "it is not text"
            return cls._unreadable(path, path, f"the file is unreadable: {(cause or 'failed').lower()}")
        try:
            return cls(path, dict(_places(text)), tomllib.loads(text))
        except tomllib.TOMLDecodeError as problem:
            line = _AT_LINE.search(str(problem))
            message = re.sub(r"\s*\(at .*", "", str(problem))
            return cls._unreadable(path, f"{path}:{line[1]}" if line else path, f"invalid TOML: {message.lower()}")

    @classmethod
    def _unreadable(cls, path: str, where: str, what: str) -> TomlLines:
        found = cls(path, {})
        found.file_findings = (_NO_TOML.found(where, what=what),)
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


def _keys_of_file(lines: TomlLines) -> Iterator[Finding]:
    for section, content in lines.body.items():
        if section not in SECTIONS:
            yield unknown(lines.where(section, "") or lines.path, section, nearest(section, SECTIONS), "section")
        elif not isinstance(content, dict):
            yield _NO_TABLE.found(lines.where("", section) or lines.path, key=section, name=section)
        elif section in KEYS:
            for key in content:
                if key not in KEYS[section]:
                    where = lines.where(section, key) or lines.path
                    yield unknown(where, key, nearest(key, KEYS[section]), f"key of [{section}]")
        elif section == "defaults":
            yield from _settings_of(content, "defaults", lines, per_topic=False)
        else:
            for glob, settings in content.items():
                if isinstance(settings, dict):
                    yield from _settings_of(settings, f"topics.{glob}", lines, per_topic=True)
                else:
                    where = lines.where("topics", glob) or lines.path
                    step = f'write it as [topics."{glob}"]'
                    yield _NO_TABLE.found(where, key=glob, next_step=step, name=f"topics.{glob}")


def _settings_of(table: Mapping[str, object], section: str, lines: TomlLines, *, per_topic: bool) -> Iterator[Finding]:
    for name, value in table.items():
        where = lines.where(section, name) or lines.path
        if isinstance(value, dict):
            dotted = f"{name}.{next(iter(value), '')}"
            yield _NO_QUOTES.found(lines.where(section, dotted) or where, key=dotted, name=dotted)
        else:
            yield from _checked(name, str(value), where, per_topic=per_topic)


def _keys_elsewhere(overrides: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    for variable, text in environ.items():
        if variable in ENVIRONMENT:
            yield from _checked(ENVIRONMENT[variable].name, text, f"environment {variable}", per_topic=False)
    for name, text in overrides.items():
        yield from _checked(name, text, "-X", per_topic=False)


def _own_keys(topics: Iterable[Topic]) -> Iterator[Finding]:
    for topic in topics:
        for name, text in topic.properties.items():
            yield from _checked(name, text, f"topic {topic.name}", per_topic=True)


def _checked(name: str, text: str, where: str, *, per_topic: bool) -> Iterator[Finding]:
    """Check one setting by itself: known, of the right type, in range."""
    try:
        find_property(name, per_topic=per_topic)
        parse(name, text)
    except InvalidRequest as problem:
        yield _mistake(where, name, text, problem)


def _mistake(where: str, name: str, text: str, problem: InvalidRequest) -> Finding:
    """Return the finding for one setting."""
    meant = problem.facts.get("did_you_mean")
    if meant is not None:
        what = f"{problem.attempt.removeprefix('invalid setting, ')}: {name}; did you mean {meant}?"
        return _UNKNOWN.found(where, key=name, what=what, next_step=f"write {meant}")
    if "expected" in problem.facts:
        expected = str(problem.facts["expected"]).strip("'")
        return _INVALID.found(where, key=name, name=name, value=text, expected=expected)
    if problem.code is ErrorCode.SETTING_OF_MANAGER:
        return _OF_MANAGER.found(where, key=name, name=name)
    return unknown(where, name, None)


def _of_manager(config: Config, lines: TomlLines) -> Iterator[Finding]:
    from remote.store.open_store import check_url
    from tiered.config.config import URL_VARIABLE
    from tiered.config.secrets import load_key_ring

    try:
        if config.remote_url is not None:
            check_url(config.remote_url)
    except InvalidRequest as problem:
        yield _refused(problem, lines.where("remote", "url") or f"environment {URL_VARIABLE}", "url")

    try:
        config.fetch_cache_dir  # noqa: B018 - looked at for what it raises
    except LogError as problem:
        key = "remote.fetch.cache.dir"
        yield _refused(problem, lines.where("defaults", key) or config.path or "", key)
    try:
        load_key_ring(config.key_ring, os.environ)
    except LogError as problem:
        yield _refused(problem, lines.where("remote", "key_ring") or config.path or "", "key_ring")


def _prices(config: Config, lines: TomlLines) -> tuple[PriceTable, list[Finding]]:
    from tiered.config.price_file import SETTING, configured_prices

    try:
        return configured_prices(config), []
    except LogError as problem:
        return BUILT_IN, [_refused(problem, lines.where("defaults", SETTING) or config.path or "", SETTING)]


def _globs(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[Finding]:
    names = sorted(topic.name for topic in topics)
    for glob in config.topics:
        if topics and not any(fnmatchcase(name, glob) for name in names):
            where = lines.where(f"topics.{glob}", "") or config.path or ""
            what = f"{_NO_MATCH.message(glob=glob)}: {', '.join(names[:5])}"
            yield _NO_MATCH.found(where, key=glob, what=what)


def _outranked(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[Finding]:
    """Yield file settings of a single named topic that the topic's own settings override.

    A glob is for many topics, and some of them may have settings of their own.
    """
    for topic in topics:
        for name, text in config.topics.get(topic.name, {}).items():
            own = topic.properties.get(name)
            if own is not None and parse(name, own) != parse(name, text):
                yield _OVERRIDDEN.found(
                    lines.where(f"topics.{topic.name}", name) or config.path or "",
                    key=name,
                    topics=(topic.name,),
                    what=f"{name}={text} has no effect: the topic has its own {name}={own}, which overrides it",
                    next_step=f"tiered topic alter {topic.name} -X {name}= or remove the line",
                )


def _of_topic(config: Config, topic: Topic | None, prices: PriceTable, lines: TomlLines) -> Iterator[Finding]:
    """Yield errors of a topic, else its warnings. None is a future topic without own settings."""
    from tiered.config.resolve_settings import log_settings
    from tiered.config.secrets import load_key_ring
    from tiered.stores.object_encoding import encoding_of

    name = topic.name if topic is not None else ""
    affected = (name,) if name else ()
    effective = {each.name: each for each in config.explain(name, topic.properties if topic is not None else None)}
    values = {each.name: each.value for each in effective.values()}
    try:
        subject = Subject.of(name, effective, prices)
        log_settings(values), encoding_of(values, load_key_ring(config.key_ring, os.environ))
    except InvalidRequest as problem:
        key = next((key for key in problem.facts if key in effective), "")
        where = lines.where_from(effective[key]) if key else config.path or ""
        yield replace(_refused(problem, where, key, topic=name), topics=affected)
        return
    except LogError:
        return  # an unreadable key ring is reported already
    if wants_tier(values) and config.remote_url is None and name:
        key = "remote.storage.enable"
        yield _NO_URL.found(lines.where_from(effective[key]), key=key, topics=affected)

    def place(keys: Sequence[str]) -> str:
        """Return the place of the first setting that was set explicitly."""
        explicit = (effective[key] for key in keys if effective[key].origin != "default")
        return lines.where_from(next(explicit, effective[keys[0]]))

    for hint in hints(subject, place, set_with=f"tiered topic alter {name} -X " if name else "-X "):
        yield replace(hint, topics=affected)


def _refused(problem: LogError, where: str, key: str, topic: str = "") -> Finding:
    step = f"tiered topic alter {topic}, or correct tiered.toml" if topic else "correct tiered.toml"
    return _REFUSED.found(where, key=key, what=flat(problem), next_step=step)


def unknown(where: str, name: str, meant: str | None, kind: str = "key") -> Finding:
    """Return the finding for an unknown name; `meant` is the similar name that exists."""
    what = f"unknown {kind}: {name}" + (f"; did you mean {meant}?" if meant else "")
    return _UNKNOWN.found(where, key=name, what=what, next_step=f"write {meant}" if meant else "remove it")
