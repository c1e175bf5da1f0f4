"""Lint of a node's configuration: all findings at once, each with file, line and next step.

Step 1 checks each key of ``tiered.toml``, environment, command line and topics; without a finding step 2 looks for
contradictions, step 3 for valid but harmful settings (`RULES`). Settings without effect count only if set explicitly.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from local.errors import ErrorCode, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage
from local.verify.findings import CODES, Finding, finding, message
from policies.cost.prices import BUILT_IN, Prices, PriceTable
from policies.cost.storage_cost import monthly_storage, request_cost, segment_requests
from policies.rules import PartitionRules
from remote.store.open_store import check_url
from tiered.config.config import KEYS, SECTIONS, URL_VARIABLE, Config, Setting, log_settings, resolve_rules
from tiered.config.price_file import SETTING as PRICES
from tiered.config.price_file import configured_prices
from tiered.config.properties import (
    APPEND_FREE_MIN,
    ENVIRONMENT,
    PROPERTIES,
    RELIEF_FREE_MIN,
    TABLE,
    Kind,
    find_property,
    nearest,
    parse,
)
from tiered.config.secrets import load_key_ring
from tiered.config.units import format_bytes, format_ms
from tiered.node.problems import flat
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.partition_opening import wants_tier
from tiered.stores.object_encoding import encoding_of

# Severities: a setting with an `ERROR` is refused when the node opens; one with a `WARNING` is valid but harmful.

_HEADER = re.compile(r"\s*(\[[^\[].*?\])\s*(?:#.*)?")
_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")
_AT_LINE = re.compile(r"\(at line (\d+)")
DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
_SIZES = tuple(1 << power for power in range(26, 31))  # sizes to propose for segments
SEGMENT_BYTES_LEAST = 1 << 20  # below it requests cost more than storage, at any prices
GRACE_MS_LEAST = 3_600_000
_NAME = re.compile(r"\{([\w.]+)\}")


def lint_place(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    topics: Sequence[str] | None = None,
) -> list[Finding]:
    """Return the findings for the node of the ``tiered.toml`` at `path`. Raises NotFound, Corrupt."""
    lines = TomlLines.read(path)
    overrides, environ = overrides or {}, environ or {}
    found = [*lines.file_findings, *_keys_of_file(lines), *_keys_elsewhere(overrides, environ)]
    if found:
        return found
    try:
        config = Config.load(path, overrides, environ)
    except InvalidRequest as problem:
        key = next((key for key in problem.facts if any(key in keys for keys in KEYS.values()) or "." in key), "")
        return [_refused(problem, lines.where(str(problem.facts.get("section", "defaults")), key) or path, key)]
    registry = TopicRegistry([(DiskStorage(), root) for root in config.data_dirs])
    selected = registry.all() if topics is None else [registry.get(name) for name in topics]
    return lint_config(config, selected, lines, is_whole=topics is None)


def lint_config(
    config: Config,
    topics: Sequence[Topic],
    lines: TomlLines | None = None,
    *,
    is_whole: bool = True,
    with_defaults: bool = True,
) -> list[Finding]:
    """Return the findings for a loaded configuration; `is_whole`: `topics` are all topics of the node."""
    lines = lines or TomlLines(config.path or "")
    found: list[Finding] = []
    for topic in topics:
        for name, text in topic.properties.items():
            found += _checked(name, text, f"topic {topic.name}", per_topic=True)
    if found:
        return found
    found += _of_manager(config, lines)
    prices = BUILT_IN if any(each.key == PRICES for each in found) else configured_prices(config)
    found += _globs(config, topics, lines) if is_whole else []
    found += _outranked(config, topics, lines)
    by_key_and_message: dict[tuple[str, str], Finding] = {}
    for subject in [None, *topics] if is_whole and with_defaults else topics:
        for each in _of_topic(config, subject, prices, lines):
            known = by_key_and_message.setdefault((each.key, each.what), each)
            if known is not each and known.topics:
                by_key_and_message[each.key, each.what] = replace(known, topics=(*known.topics, *each.topics))
    return [*found, *by_key_and_message.values()]


@dataclass(frozen=True, slots=True)
class TomlLines:
    path: str
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of each key, by (section, key)
    body: Mapping[str, object] = field(default_factory=dict)
    file_findings: Sequence[Finding] = ()

    @classmethod
    def read(cls, path: str) -> TomlLines:
        """Read the file. Raises NotFound. A file that is no TOML sets `file_findings`."""
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
            return cls(path, dict(_places(text)), tomllib.loads(text))
        except FileNotFoundError:
            raise NotFound("the configuration file does not exist", file=path) from None
        except tomllib.TOMLDecodeError as problem:
            line = _AT_LINE.search(str(problem))
            message = re.sub(r"\s*\(at .*", "", str(problem))
            where, what = f"{path}:{line[1]}" if line else path, f"invalid TOML: {message.lower()}"
        except (OSError, UnicodeDecodeError) as problem:
            cause = problem.strerror if isinstance(problem, OSError) else "it is not text"
            where, what = path, f"the file is unreadable: {(cause or 'failed').lower()}"
        return cls(path, file_findings=(finding("settings.toml", where, what=what),))

    def where(self, section: str, key: str) -> str | None:
        """Return ``file:line`` of a key, else of its section's header; None if neither has a line."""
        line = self.lines.get((section, key)) or self.lines.get((section, ""))
        return f"{self.path}:{line}" if line else None

    def where_from(self, setting: Setting) -> str:
        if not self.path or not setting.origin.startswith(f"{self.path} ["):
            return setting.origin
        section = setting.origin.removeprefix(f"{self.path} [")[:-1].replace('"', "")
        return self.where(section, setting.name) or setting.origin


def _places(text: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield ((section, key), line) of every key; a header has an empty key."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = ".".join(_path_of(header[1]))
            yield (section, ""), number
        elif key := _KEY.match(line):
            yield (section, key[1].strip("\"'")), number


def _path_of(header: str) -> list[str]:
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
            yield finding("settings.no-table", lines.where("", section) or lines.path, key=section, name=section)
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
                    yield finding("settings.no-table", where, key=glob, next_step=step, name=f"topics.{glob}")


def _settings_of(table: Mapping[str, object], section: str, lines: TomlLines, *, per_topic: bool) -> Iterator[Finding]:
    for name, value in table.items():
        where = lines.where(section, name) or lines.path
        if isinstance(value, dict):
            dotted = f"{name}.{next(iter(value), '')}"
            yield finding("settings.no-quotes", lines.where(section, dotted) or where, key=dotted, name=dotted)
        else:
            yield from _checked(name, str(value), where, per_topic=per_topic)


def _keys_elsewhere(overrides: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    for variable, text in environ.items():
        if variable in ENVIRONMENT:
            yield from _checked(ENVIRONMENT[variable].name, text, f"environment {variable}", per_topic=False)
    for name, text in overrides.items():
        yield from _checked(name, text, "-X", per_topic=False)


def _checked(name: str, text: str, where: str, *, per_topic: bool) -> Iterator[Finding]:
    try:
        find_property(name, per_topic=per_topic)
        parse(name, text)
    except InvalidRequest as problem:
        yield _mistake(where, name, text, problem)


def _mistake(where: str, name: str, text: str, problem: InvalidRequest) -> Finding:
    meant = problem.facts.get("did_you_mean")
    if meant is not None:
        what = f"{problem.attempt.removeprefix('invalid setting, ')}: {name}; did you mean {meant}?"
        return finding("settings.unknown", where, key=name, what=what, next_step=f"write {meant}")
    if "expected" in problem.facts:
        expected = str(problem.facts["expected"]).strip("'")
        return finding("settings.invalid", where, key=name, name=name, value=text, expected=expected)
    if problem.code is ErrorCode.SETTING_OF_MANAGER:
        return finding("settings.of-manager", where, key=name, name=name)
    return unknown(where, name, None)


def _of_manager(config: Config, lines: TomlLines) -> Iterator[Finding]:
    file = config.path or ""
    checks: tuple[tuple[str, str, str, Callable[[], object]], ...] = (
        ("defaults", PRICES, file, lambda: configured_prices(config)),
        ("remote", "url", f"environment {URL_VARIABLE}", lambda: config.remote_url and check_url(config.remote_url)),
        ("defaults", "remote.fetch.cache.dir", file, lambda: config.fetch_cache_dir),
        ("remote", "key_ring", file, lambda: load_key_ring(config.key_ring, os.environ)),
    )
    for section, key, other_place, check in checks:
        try:
            check()
        except LogError as problem:
            yield _refused(problem, lines.where(section, key) or other_place, key)


def _globs(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[Finding]:
    names = sorted(topic.name for topic in topics)
    for glob in config.topics:
        if topics and not any(fnmatchcase(name, glob) for name in names):
            where = lines.where(f"topics.{glob}", "") or config.path or ""
            what = f"{message('settings.no-match', glob=glob)}: {', '.join(names[:5])}"
            yield finding("settings.no-match", where, key=glob, what=what)


def _outranked(config: Config, topics: Sequence[Topic], lines: TomlLines) -> Iterator[Finding]:
    """Yield file settings of a single named topic that the topic's own settings override; globs are left out."""
    for topic in topics:
        for name, text in config.topics.get(topic.name, {}).items():
            own = topic.properties.get(name)
            if own is not None and parse(name, own) != parse(name, text):
                yield finding(
                    "settings.overridden",
                    lines.where(f"topics.{topic.name}", name) or config.path or "",
                    key=name,
                    topics=(topic.name,),
                    what=f"{name}={text} has no effect: the topic has its own {name}={own}, which overrides it",
                    next_step=f"tiered topic alter {topic.name} -X {name}= or remove the line",
                )


def _of_topic(config: Config, topic: Topic | None, prices: PriceTable, lines: TomlLines) -> Iterator[Finding]:
    """Yield a topic's errors, else its warnings. None is a future topic without own settings."""
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
        yield finding("settings.no-url", lines.where_from(effective[key]), key=key, topics=affected)

    def place(keys: Sequence[str]) -> str:
        explicit = (effective[key] for key in keys if effective[key].origin != "default")
        return lines.where_from(next(explicit, effective[keys[0]]))

    for hint in hints(subject, place, set_with=f"tiered topic alter {name} -X " if name else "-X "):
        yield replace(hint, topics=affected)


def _refused(problem: LogError, where: str, key: str, topic: str = "") -> Finding:
    step = f"tiered topic alter {topic}, or correct tiered.toml" if topic else "correct tiered.toml"
    return finding("settings.refused", where, key=key, what=flat(problem), next_step=step)


def unknown(where: str, name: str, meant: str | None, kind: str = "key") -> Finding:
    what = f"unknown {kind}: {name}" + (f"; did you mean {meant}?" if meant else "")
    return finding("settings.unknown", where, key=name, what=what, next_step=f"write {meant}" if meant else "remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    settings: Mapping[str, Setting]
    rules: PartitionRules
    price_table: PriceTable = BUILT_IN

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Setting], price_table: PriceTable = BUILT_IN) -> Subject:
        rules = resolve_rules({each.name: each.value for each in settings.values()})
        return cls(name=name, settings=settings, rules=rules, price_table=price_table)

    def bytes_of(self, key: str) -> int:
        value = parse(key, self.text(key))
        assert isinstance(value, (int, float)), key
        return int(value)

    def text(self, key: str) -> str:
        return self.settings[key].value

    def is_set(self, key: str) -> bool:
        return self.settings[key].origin != "default"

    @property
    def is_tiered(self) -> bool:
        return self.text("remote.storage.enable") == "true"

    @property
    def is_compacted_and_tiered(self) -> bool:
        return self.is_tiered and self.rules.cleanup_compact

    @property
    def storage_class(self) -> str:
        name = self.text("remote.storage.class")
        return "STANDARD" if name == "default" else name

    @property
    def prices(self) -> Prices:
        return self.price_table.of(self.storage_class)

    @property
    def better_segment_bytes(self) -> int | None:
        """The smallest larger size with requests cheaper than storage; None if there is none."""
        size = self.bytes_of("segment.bytes")
        return next((each for each in _SIZES if each > size and not self.has_dear_requests(each)), None)

    def has_dear_requests(self, size: int) -> bool:
        prices, retention_ms = self.prices, self.rules.log_limits.ms
        billed_ms = MONTH_MS if retention_ms is None else min(MONTH_MS, max(retention_ms, prices.min_days * DAY_MS))
        paid = request_cost(puts=segment_requests(size), prices=prices)
        return size < SEGMENT_BYTES_LEAST or paid > billed_ms / MONTH_MS * monthly_storage(size, prices)


class Rule(NamedTuple):
    """A finding if the condition `holds`. The first of `keys` is the setting to change.

    The texts of the code name facts of the topic in braces (`_fact`); ``{set}`` is the command that changes a setting.
    """

    code: str
    keys: tuple[str, ...]
    holds: Callable[[Subject], bool]


def hints(
    subject: Subject, where: Callable[[Sequence[str]], str] = lambda keys: "", *, set_with: str = "-X "
) -> Iterator[Finding]:
    """Yield the findings of the rules that hold. `set_with` precedes a setting in the next step."""

    def filled(text: str, rule: Rule) -> str:
        return _NAME.sub(lambda name: set_with if name[1] == "set" else _fact(subject, rule, name[1]), text)

    for rule in RULES:
        if rule.holds(subject):
            what, step = (filled(text, rule) for text in (CODES[rule.code].text, CODES[rule.code].next_step))
            yield finding(rule.code, where(rule.keys), what=what, next_step=step, key=rule.keys[0])


def _fact(of: Subject, rule: Rule, name: str) -> str:
    match name:
        case "first_key":
            return f"{rule.keys[0]}={of.text(rule.keys[0])}"
        case "segment_size":
            return format_bytes(of.bytes_of("segment.bytes"))
        case "better_size":
            return f"{(of.better_segment_bytes or 0) >> 20}MiB"
        case "and_merge":
            return f"; tiered rewrite merge {of.name} for existing segments" if of.name else ""
        case "min_bytes":
            return format_bytes(of.prices.min_bytes)
        case "min_days":
            return f"{of.prices.min_days:g}"
        case "copy_lag":
            return format_ms(of.rules.copy_lag_ms or 0)
        case "and_no_copy":
            return ", so no segment is copied to the bucket" if of.is_tiered else ""
        case "remote.storage.class":
            return f"{name}={of.storage_class}"
        case "retention.ms" | "retention.bytes":
            value: int | None = getattr(of.rules.log_limits, name.rpartition(".")[2])
        case "local.retention.ms" | "local.retention.bytes":
            value = getattr(of.rules.local_limits, name.rpartition(".")[2])
        case _ if PROPERTIES[name].kind in (Kind.MS, Kind.BYTES):
            value = of.bytes_of(name)
        case _:
            return f"{name}={of.text(name)}"
    shown = format_ms if PROPERTIES[name].kind is Kind.MS else format_bytes
    return f"{name}={of.text(name) if value is None else shown(value)}"


def _exceeds(value: float, limit: float | None) -> bool:
    return limit is not None and value > limit


def _without_expiry(key: str) -> Rule:
    keys = key, "cleanup.policy"
    return Rule("settings.no-expiry", keys, lambda of: of.is_set(key) and not of.rules.cleanup_delete)


def _without_tier(key: str) -> Rule:
    return Rule("settings.not-tiered", (key, "remote.storage.enable"), lambda of: of.is_set(key) and not of.is_tiered)


# Code, keys, condition.
RULES: tuple[Rule, ...] = (
    Rule("settings.slow-roll", ("segment.ms", "retention.ms"),
         lambda of: of.is_tiered and _exceeds(of.rules.segment_ms, of.rules.log_limits.ms)),
    Rule("settings.retention-below-segment", ("segment.bytes", "retention.bytes"),
         lambda of: _exceeds(of.bytes_of("segment.bytes"), of.rules.log_limits.bytes)),
    Rule("settings.local-retention-below-segment", ("segment.bytes", "local.retention.bytes"),
         lambda of: of.is_tiered and of.is_set("local.retention.bytes")
         and _exceeds(of.bytes_of("segment.bytes"), of.rules.local_limits.bytes)),
    Rule("settings.dear-requests", ("segment.bytes",),
         lambda of: of.is_tiered and of.better_segment_bytes is not None
         and of.has_dear_requests(of.bytes_of("segment.bytes"))),
    Rule("settings.small-objects", ("segment.bytes", "remote.storage.class"),
         lambda of: of.is_tiered and of.bytes_of("segment.bytes") < of.prices.min_bytes),
    Rule("settings.short-lived", ("remote.storage.class", "retention.ms"),
         lambda of: of.is_tiered and _exceeds(of.prices.min_days * DAY_MS, of.rules.log_limits.ms)),
    # Replaced objects are billed to the end of the minimum duration.
    Rule("settings.rewritten-early", ("remote.storage.class", "cleanup.policy"),
         lambda of: of.is_compacted_and_tiered and of.prices.min_days > 0 and of.rules.recompaction_min_reduction < 1),
    Rule("settings.short-grace", ("remote.log.delete.grace.ms",),
         lambda of: of.is_tiered and of.rules.delete_grace_ms < GRACE_MS_LEAST),
    _without_expiry("retention.ms"),
    _without_expiry("retention.bytes"),
    *(_without_tier(row.name) for row in TABLE if row.needs_tier),
    Rule("settings.never-cleaned", ("min.cleanable.dirty.ratio", "max.compaction.lag.ms"),
         lambda of: of.rules.cleanup_compact and of.rules.min_cleanable_dirty_ratio >= 1
         and of.rules.max_compaction_lag_ms is None),
    Rule("settings.expires-before-cleaning", ("min.compaction.lag.ms", "retention.ms"),
         lambda of: of.rules.cleanup_compact and of.rules.log_limits.ms is not None
         and of.rules.min_compaction_lag_ms >= of.rules.log_limits.ms > 0),
    Rule("settings.waits-for-cleaner", ("min.compaction.lag.ms", "local.retention.ms"),
         lambda of: of.is_compacted_and_tiered and _exceeds(of.rules.min_compaction_lag_ms, of.rules.local_limits.ms)),
    Rule("settings.waits-for-window", ("remote.copy.window", "local.retention.ms"),
         lambda of: of.is_tiered and _exceeds(of.rules.copy_window.gap_ms, of.rules.local_limits.ms)),
    Rule("settings.early-tombstones", ("delete.retention.ms", "remote.copy.lag.ms"),
         lambda of: of.is_compacted_and_tiered and of.rules.copy_lag_ms is not None
         and of.rules.delete_retention_ms < of.rules.copy_lag_ms),
    Rule("settings.large-batch", ("max.message.bytes", "segment.bytes"),
         lambda of: of.is_set("max.message.bytes")
         and of.bytes_of("max.message.bytes") > of.bytes_of("segment.bytes")),
    Rule("settings.compressed-twice", ("remote.compression", "compression.type"),
         lambda of: of.is_tiered and of.text("remote.compression") == "zstd"
         and of.text("compression.type") in ("zstd", "gzip")),
    Rule("settings.late-relief", (RELIEF_FREE_MIN, APPEND_FREE_MIN),
         lambda of: not of.name and 0 < of.bytes_of(RELIEF_FREE_MIN) <= of.bytes_of(APPEND_FREE_MIN)),
)  # fmt: skip
