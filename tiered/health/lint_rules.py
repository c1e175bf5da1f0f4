"""Lint rules: valid settings that hardly make sense, checked on one topic's effective settings.

Settings that Kafka or the manager refuses are not covered here (`tiered.config.resolve_settings`,
`tiered.partition.partition_opening`): the caller checks them first. The rules are pure functions of settings, without
access to disk or store. A rule about a setting without effect reports it only if it was set explicitly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from local.verify.findings import Finding, FindingCode, warning
from policies.cost.prices import BUILT_IN, Prices, PriceTable
from policies.cost.storage_cost import monthly_storage, request_cost, segment_requests
from policies.rules import PartitionRules
from tiered.config.config import Setting
from tiered.config.properties import APPEND_FREE_MIN, PROPERTIES, RELIEF_FREE_MIN, TABLE, Kind, parse
from tiered.config.resolve_settings import resolve_rules
from tiered.config.units import format_bytes, format_ms

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
_SIZES = tuple(1 << power for power in range(26, 31))  # sizes to propose for segments
SEGMENT_BYTES_LEAST = 1 << 20  # below it requests cost more than storage, at any prices
GRACE_MS_LEAST = 3_600_000
_NAME = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The effective settings of one topic (`name` empty: of future topics), resolved."""

    name: str
    settings: Mapping[str, Setting]
    rules: PartitionRules
    price_table: PriceTable = BUILT_IN

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Setting], price_table: PriceTable = BUILT_IN) -> Subject:
        """Resolve the settings. Raises InvalidRequest if they contradict each other."""
        rules = resolve_rules({each.name: each.value for each in settings.values()})
        return cls(name=name, settings=settings, rules=rules, price_table=price_table)

    def bytes_of(self, key: str) -> int:
        value = parse(key, self.text(key))
        assert isinstance(value, (int, float)), key
        return int(value)

    def text(self, key: str) -> str:
        return self.settings[key].value

    def is_set(self, key: str) -> bool:
        """Return whether the setting was set explicitly."""
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
        """The smallest proposed segment size whose requests cost less than its storage; None if there is none."""
        size = self.bytes_of("segment.bytes")
        return next((each for each in _SIZES if each > size and not self.has_dear_requests(each)), None)

    def has_dear_requests(self, size: int) -> bool:
        """Compare a segment's request price with its storage price for its lifetime, a month at most."""
        prices, retention_ms = self.prices, self.rules.log_limits.ms
        billed_ms = MONTH_MS if retention_ms is None else min(MONTH_MS, max(retention_ms, prices.min_days * DAY_MS))
        paid = request_cost(puts=segment_requests(size), prices=prices)
        return size < SEGMENT_BYTES_LEAST or paid > billed_ms / MONTH_MS * monthly_storage(size, prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: a finding if the condition `holds`. `keys` are the conflicting settings, the one to change first.

    The texts of the code name settings and other facts of the topic in braces (`_fact`); ``{set}`` is the command that
    changes a setting.
    """

    code: FindingCode
    keys: tuple[str, ...]
    holds: Callable[[Subject], bool]


def hints(
    subject: Subject, where: Callable[[Sequence[str]], str] = lambda keys: "", *, set_with: str = "-X "
) -> Iterator[Finding]:
    """Yield the finding of every rule that holds, in the rules' order.

    `where` returns the place of its settings. `set_with` comes before a setting in the next step.
    """

    def filled(text: str, rule: Rule) -> str:
        return _NAME.sub(lambda name: set_with if name[1] == "set" else _fact(subject, rule, name[1]), text)

    for rule in RULES:
        if rule.holds(subject):
            code = rule.code
            what, step = filled(code.text, rule), filled(code.next_step, rule)
            yield replace(code.found(where(rule.keys), what=what, next_step=step), key=rule.keys[0])


def _fact(of: Subject, rule: Rule, name: str) -> str:
    """Return the text for a name in braces: ``retention.ms=7d`` for a setting."""
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
    """Return whether a value is above a limit; None is no limit."""
    return limit is not None and value > limit


def _rule(code: str, keys: tuple[str, ...], holds: Callable[[Subject], bool], what: str, next_step: str) -> Rule:
    return Rule(code=warning(f"settings.{code}", what, next_step), keys=keys, holds=holds)


def _without_expiry(key: str) -> Rule:
    return _rule(
        "no-expiry",
        (key, "cleanup.policy"),
        lambda of: of.is_set(key) and not of.rules.cleanup_delete,
        "{first_key} has no effect: {cleanup.policy} expires nothing by age or size",
        "{set}cleanup.policy=compact,delete, or remove the setting",
    )


def _without_tier(key: str) -> Rule:
    return _rule(
        "not-tiered",
        (key, "remote.storage.enable"),
        lambda of: of.is_set(key) and not of.is_tiered,
        "{first_key} has no effect: the topic is not tiered, remote.storage.enable=false",
        "{set}remote.storage.enable=true, or remove the setting",
    )


# Code, keys, condition, what is wrong, next step.
RULES: tuple[Rule, ...] = (
    _rule("slow-roll", ("segment.ms", "retention.ms"),
          lambda of: of.is_tiered and _exceeds(of.rules.segment_ms, of.rules.log_limits.ms),
          "{segment.ms} is longer than {retention.ms}: a slow topic retains records for the sum of both",
          "{set}segment.ms=<a part of retention.ms>"),
    _rule("retention-below-segment", ("segment.bytes", "retention.bytes"),
          lambda of: _exceeds(of.bytes_of("segment.bytes"), of.rules.log_limits.bytes),
          "{retention.bytes} is less than one segment, {segment_size}: the active segment always stays",
          "{set}segment.bytes=<less>"),
    _rule("local-retention-below-segment", ("segment.bytes", "local.retention.bytes"),
          lambda of: of.is_tiered and of.is_set("local.retention.bytes")
          and _exceeds(of.bytes_of("segment.bytes"), of.rules.local_limits.bytes),
          "{local.retention.bytes} is less than one segment, {segment_size}: the active segment always stays",
          "{set}segment.bytes=<less>"),
    _rule("dear-requests", ("segment.bytes",),
          lambda of: of.is_tiered and of.better_segment_bytes is not None
          and of.has_dear_requests(of.bytes_of("segment.bytes")),
          "{segment.bytes}: requests will cost more than storage",
          "{set}segment.bytes={better_size}{and_merge}"),
    _rule("small-objects", ("segment.bytes", "remote.storage.class"),
          lambda of: of.is_tiered and of.bytes_of("segment.bytes") < of.prices.min_bytes,
          "{remote.storage.class} bills {min_bytes} for each object at least, and {segment.bytes}",
          "{set}segment.bytes=64MiB"),
    _rule("short-lived", ("remote.storage.class", "retention.ms"),
          lambda of: of.is_tiered and _exceeds(of.prices.min_days * DAY_MS, of.rules.log_limits.ms),
          "{remote.storage.class} bills {min_days} days at least, and {retention.ms} is shorter",
          "tiered cost simulate --class standard,ia"),
    # Replaced objects are billed to the end of the minimum duration.
    _rule("rewritten-early", ("remote.storage.class", "cleanup.policy"),
          lambda of: of.is_compacted_and_tiered and of.prices.min_days > 0 and of.rules.recompaction_min_reduction < 1,
          "{remote.storage.class} bills {min_days} days at least, and compaction replaces segments earlier",
          "{set}remote.recompaction.min.reduction.ratio=1, or remote.storage.class=STANDARD; tiered cost advise"),
    _rule("short-grace", ("remote.log.delete.grace.ms",),
          lambda of: of.is_tiered and of.rules.delete_grace_ms < GRACE_MS_LEAST,
          "{remote.log.delete.grace.ms}: longer reads without a pin lose their objects",
          "{set}remote.log.delete.grace.ms=24h"),
    _without_expiry("retention.ms"),
    _without_expiry("retention.bytes"),
    *(_without_tier(row.name) for row in TABLE if row.needs_tier),
    # A log that is never cleaned is not copied, and so never dropped from the disk.
    _rule("never-cleaned", ("min.cleanable.dirty.ratio", "max.compaction.lag.ms"),
          lambda of: of.rules.cleanup_compact and of.rules.min_cleanable_dirty_ratio >= 1
          and of.rules.max_compaction_lag_ms is None,
          "{min.cleanable.dirty.ratio} without max.compaction.lag.ms: the log is never cleaned{and_no_copy}",
          "{set}min.cleanable.dirty.ratio=0.5"),
    _rule("expires-before-cleaning", ("min.compaction.lag.ms", "retention.ms"),
          lambda of: of.rules.cleanup_compact and of.rules.log_limits.ms is not None
          and of.rules.min_compaction_lag_ms >= of.rules.log_limits.ms > 0,
          "{min.compaction.lag.ms} is not less than {retention.ms}: records expire before they may be compacted",
          "{set}min.compaction.lag.ms=<a part of retention.ms>"),
    _rule("waits-for-cleaner", ("min.compaction.lag.ms", "local.retention.ms"),
          lambda of: of.is_compacted_and_tiered and _exceeds(of.rules.min_compaction_lag_ms, of.rules.local_limits.ms),
          "{min.compaction.lag.ms} is longer than {local.retention.ms}: only clean segments are copied to the bucket, "
          "so the disk retains more",
          "{set}min.compaction.lag.ms=<less>, or a longer local.retention.ms"),
    _rule("waits-for-window", ("remote.copy.window", "local.retention.ms"),
          lambda of: of.is_tiered and _exceeds(of.rules.copy_window.gap_ms, of.rules.local_limits.ms),
          "{remote.copy.window} is closed for longer than {local.retention.ms}: segments wait on the disk",
          "{set}remote.copy.window=<longer>, or a longer local.retention.ms"),
    # A reader of the bucket alone then never sees the tombstones.
    _rule("early-tombstones", ("delete.retention.ms", "remote.copy.lag.ms"),
          lambda of: of.is_compacted_and_tiered and of.rules.copy_lag_ms is not None
          and of.rules.delete_retention_ms < of.rules.copy_lag_ms,
          "{delete.retention.ms} is shorter than the copy lag of segments, {copy_lag}: tombstones are removed before "
          "the bucket has them",
          "{set}delete.retention.ms=<more than remote.copy.lag.ms>"),
    _rule("large-batch", ("max.message.bytes", "segment.bytes"),
          lambda of: of.is_set("max.message.bytes") and of.bytes_of("max.message.bytes") > of.bytes_of("segment.bytes"),
          "{max.message.bytes} is more than {segment.bytes}: no batch of that size fits in a segment",
          "{set}segment.bytes=<more>"),
    _rule("compressed-twice", ("remote.compression", "compression.type"),
          lambda of: of.is_tiered and of.text("remote.compression") == "zstd"
          and of.text("compression.type") in ("zstd", "gzip"),
          "{remote.compression} over {compression.type}: records are compressed twice for a few percent",
          "{set}remote.compression=none"),
    _rule("late-relief", (RELIEF_FREE_MIN, APPEND_FREE_MIN),
          lambda of: not of.name and 0 < of.bytes_of(RELIEF_FREE_MIN) <= of.bytes_of(APPEND_FREE_MIN),
          f"{{{RELIEF_FREE_MIN}}} is not more than {{{APPEND_FREE_MIN}}}: appends are refused before segments are "
          "dropped early",
          f"{{set}}{RELIEF_FREE_MIN}=<several times {APPEND_FREE_MIN}>"),
)  # fmt: skip
