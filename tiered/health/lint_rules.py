"""Lint rules: valid settings that hardly make sense, checked on one topic's effective settings.

Settings that Kafka or the manager refuses are not covered here (`tiered.config.resolve_settings`,
`tiered.partition.partition_opening`): the caller checks them first. The rules are pure functions from settings to
hints, without access to disk or store. A rule about a setting without effect reports it only if it was set explicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import monthly_storage, request_cost, segment_requests
from policies.rules import PartitionRules
from tiered.config.config import Setting
from tiered.config.properties import APPEND_FREE_MIN, RELIEF_FREE_MIN, parse
from tiered.config.resolve_settings import resolve_rules
from tiered.config.units import format_bytes, format_ms

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
_SIZES = tuple(1 << power for power in range(26, 31))  # sizes to propose for segments
SEGMENT_BYTES_LEAST = 1 << 20  # below it requests cost more than storage, at any prices
GRACE_MS_LEAST = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A hint. `keys` are the conflicting settings, the one to change first.

    `step` is ``-X ...`` for the topic, or a command.
    """

    keys: tuple[str, ...]
    what: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The effective settings of one topic (`name` empty: of future topics), resolved."""

    name: str
    settings: Mapping[str, Setting]
    rules: PartitionRules
    prices: PriceTable = BUILT_IN

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Setting], prices: PriceTable = BUILT_IN) -> Subject:
        """Resolve the settings. Raises InvalidRequest if they contradict each other."""
        rules = resolve_rules({each.name: each.value for each in settings.values()})
        return cls(name=name, settings=settings, rules=rules, prices=prices)

    def number(self, key: str) -> float:
        value = parse(key, self.settings[key].value)
        assert isinstance(value, (int, float)), key
        return value

    def bytes_of(self, key: str) -> int:
        return int(self.number(key))

    def text(self, key: str) -> str:
        return self.settings[key].value

    def is_set(self, key: str) -> bool:
        """Return whether the setting was set explicitly."""
        return self.settings[key].origin != "default"

    @property
    def is_tiered(self) -> bool:
        return self.text("remote.storage.enable") == "true"


Rule = Callable[[Subject], Iterator[Hint]]


def hints(subject: Subject) -> Iterator[Hint]:
    """Yield every hint of every rule, in the rules' order."""
    for rule in RULES:
        yield from rule(subject)


def _slow_roll(of: Subject) -> Iterator[Hint]:
    kept = of.rules.log_limits.ms
    if of.is_tiered and kept is not None and of.rules.segment_ms > kept:
        yield Hint(
            keys=("segment.ms", "retention.ms"),
            what=(
                f"segment.ms={format_ms(of.rules.segment_ms)} is longer than "
                f"retention.ms={format_ms(kept)}: a slow topic retains records for the sum of both"
            ),
            step="-X segment.ms=<a part of retention.ms>",
        )


def _less_than_a_segment(of: Subject) -> Iterator[Hint]:
    size = of.bytes_of("segment.bytes")
    limits = {"retention.bytes": of.rules.log_limits.bytes}
    if of.is_tiered and of.is_set("local.retention.bytes"):
        limits["local.retention.bytes"] = of.rules.local_limits.bytes
    for key, limit in limits.items():
        if limit is not None and limit < size:
            yield Hint(
                keys=("segment.bytes", key),
                what=(
                    f"{key}={format_bytes(limit)} is less than one segment, {format_bytes(size)}: the active "
                    "segment always stays"
                ),
                step="-X segment.bytes=<less>",
            )


def _dear_requests(of: Subject) -> Iterator[Hint]:
    """Compare a segment's request price with its storage price for its lifetime, a month at most."""
    if not of.is_tiered:
        return
    size = of.bytes_of("segment.bytes")
    better = next((each for each in _SIZES if each > size and not _is_dear(of, each)), None)
    if better is not None and _is_dear(of, size):
        merge = f"; tiered rewrite merge {of.name} for existing segments" if of.name else ""
        yield Hint(
            keys=("segment.bytes",),
            what=f"segment.bytes={format_bytes(size)}: requests will cost more than storage",
            step=f"-X segment.bytes={better >> 20}MiB{merge}",
        )


def _is_dear(of: Subject, size: int) -> bool:
    prices, kept_ms = of.prices.of(_class(of)), of.rules.log_limits.ms
    billed_ms = min(MONTH_MS, max(kept_ms, prices.min_days * DAY_MS)) if kept_ms is not None else MONTH_MS
    paid = request_cost(puts=segment_requests(size), prices=prices)
    return size < SEGMENT_BYTES_LEAST or paid > billed_ms / MONTH_MS * monthly_storage(size, prices)


def _small_objects(of: Subject) -> Iterator[Hint]:
    prices, size = of.prices.of(_class(of)), of.bytes_of("segment.bytes")
    if of.is_tiered and size < prices.min_bytes:
        yield Hint(
            keys=("segment.bytes", "remote.storage.class"),
            what=f"remote.storage.class={_class(of)} bills {format_bytes(prices.min_bytes)} for each object at least, "
            f"and segment.bytes={format_bytes(size)}",
            step="-X segment.bytes=64MiB",
        )


def _short_lived(of: Subject) -> Iterator[Hint]:
    """Report a class with a minimum duration longer than the lifetime of its objects."""
    prices, kept = of.prices.of(_class(of)), of.rules.log_limits.ms
    if of.is_tiered and kept is not None and prices.min_days * DAY_MS > kept:
        yield Hint(
            keys=("remote.storage.class", "retention.ms"),
            what=f"remote.storage.class={_class(of)} bills {prices.min_days:g} days at least, and "
            f"retention.ms={format_ms(kept)} is shorter",
            step="tiered cost simulate --class standard,ia",
        )


def _short_grace(of: Subject) -> Iterator[Hint]:
    grace = of.rules.delete_grace_ms
    if of.is_tiered and grace < GRACE_MS_LEAST:
        yield Hint(
            keys=("remote.log.delete.grace.ms",),
            what=f"remote.log.delete.grace.ms={format_ms(grace)}: longer reads without a pin lose their objects",
            step="-X remote.log.delete.grace.ms=24h",
        )


def _binds_nothing(of: Subject) -> Iterator[Hint]:
    for key in ("retention.ms", "retention.bytes"):
        if of.is_set(key) and not of.rules.cleanup_delete:
            yield Hint(
                keys=(key, "cleanup.policy"),
                what=(
                    f"{key}={of.text(key)} has no effect: cleanup.policy={of.text('cleanup.policy')} expires "
                    "nothing by age or size"
                ),
                step="-X cleanup.policy=compact,delete, or remove the setting",
            )
    if of.is_tiered:
        return
    for key in (
        *("local.retention.ms", "local.retention.bytes", "remote.copy.lag.ms", "remote.copy.lag.bytes"),
        *("remote.log.copy.disable", "remote.compression", "remote.encryption.key.id"),
    ):
        if of.is_set(key):
            yield Hint(
                keys=(key, "remote.storage.enable"),
                what=f"{key}={of.text(key)} has no effect: the topic is not tiered, remote.storage.enable=false",
                step="-X remote.storage.enable=true, or remove the setting",
            )


def _never_cleaned(of: Subject) -> Iterator[Hint]:
    """Report logs that are never cleaned: they are not copied, and so never dropped from the disk."""
    rules = of.rules
    if not rules.cleanup_compact:
        return
    if rules.min_cleanable_dirty_ratio >= 1 and rules.max_compaction_lag_ms is None:
        then = ", so no segment is copied to the bucket" if of.is_tiered else ""
        yield Hint(
            keys=("min.cleanable.dirty.ratio", "max.compaction.lag.ms"),
            what=f"min.cleanable.dirty.ratio={of.text('min.cleanable.dirty.ratio')} without max.compaction.lag.ms: "
            f"the log is never cleaned{then}",
            step="-X min.cleanable.dirty.ratio=0.5",
        )
    kept = rules.log_limits.ms
    if rules.cleanup_delete and kept is not None and rules.min_compaction_lag_ms >= kept > 0:
        yield Hint(
            keys=("min.compaction.lag.ms", "retention.ms"),
            what=(
                f"min.compaction.lag.ms={format_ms(rules.min_compaction_lag_ms)} is not less than "
                f"retention.ms={format_ms(kept)}: records expire before they may be compacted"
            ),
            step="-X min.compaction.lag.ms=<a part of retention.ms>",
        )


def _waits_for_the_cleaner(of: Subject) -> Iterator[Hint]:
    rules = of.rules
    local = rules.local_limits.ms
    if not (of.is_tiered and rules.cleanup_compact and local is not None):
        return
    if rules.min_compaction_lag_ms > local:
        yield Hint(
            keys=("min.compaction.lag.ms", "local.retention.ms"),
            what=(
                f"min.compaction.lag.ms={format_ms(rules.min_compaction_lag_ms)} is longer than "
                f"local.retention.ms={format_ms(local)}: only clean segments are copied to the bucket, so "
                "the disk retains more"
            ),
            step="-X min.compaction.lag.ms=<less>, or a longer local.retention.ms",
        )


def _tombstones(of: Subject) -> Iterator[Hint]:
    """Report tombstones that are removed before their segment is copied.

    A reader of the bucket alone then never sees them.
    """
    rules = of.rules
    if not (of.is_tiered and rules.cleanup_compact) or rules.copy_lag_ms is None:
        return
    if rules.delete_retention_ms < rules.copy_lag_ms:
        yield Hint(
            keys=("delete.retention.ms", "remote.copy.lag.ms"),
            what=(
                f"delete.retention.ms={format_ms(rules.delete_retention_ms)} is shorter than the copy lag "
                f"of segments, {format_ms(rules.copy_lag_ms)}: tombstones are removed before the bucket "
                "has them"
            ),
            step="-X delete.retention.ms=<more than remote.copy.lag.ms>",
        )


def _rewritten_early(of: Subject) -> Iterator[Hint]:
    """Report compaction in classes with a minimum duration: replaced objects are billed to its end."""
    prices = of.prices.of(_class(of))
    if of.is_tiered and of.rules.cleanup_compact and prices.min_days and of.rules.recompaction_min_reduction < 1:
        yield Hint(
            keys=("remote.storage.class", "cleanup.policy"),
            what=(
                f"remote.storage.class={_class(of)} bills {prices.min_days:g} days at least, and "
                "compaction replaces segments earlier"
            ),
            step="-X remote.recompaction.min.reduction.ratio=1, or remote.storage.class=STANDARD; tiered cost advise",
        )


def _too_large_a_batch(of: Subject) -> Iterator[Hint]:
    largest, size = of.bytes_of("max.message.bytes"), of.bytes_of("segment.bytes")
    if of.is_set("max.message.bytes") and largest > size:
        yield Hint(
            keys=("max.message.bytes", "segment.bytes"),
            what=(
                f"max.message.bytes={format_bytes(largest)} is more than "
                f"segment.bytes={format_bytes(size)}: no batch of that size fits in a segment"
            ),
            step="-X segment.bytes=<more>",
        )


def _compressed_twice(of: Subject) -> Iterator[Hint]:
    codec = of.text("compression.type")
    if of.is_tiered and of.text("remote.compression") == "zstd" and codec in ("zstd", "gzip"):
        yield Hint(
            keys=("remote.compression", "compression.type"),
            what=(
                f"remote.compression=zstd over compression.type={codec}: records are compressed twice for a few percent"
            ),
            step="-X remote.compression=none",
        )


def _relief_after_refusal(of: Subject) -> Iterator[Hint]:
    least, relief = of.bytes_of(APPEND_FREE_MIN), of.bytes_of(RELIEF_FREE_MIN)
    if not of.name and 0 < relief <= least:
        yield Hint(
            keys=(RELIEF_FREE_MIN, APPEND_FREE_MIN),
            what=(
                f"{RELIEF_FREE_MIN}={format_bytes(relief)} is not more than "
                f"{APPEND_FREE_MIN}={format_bytes(least)}: appends are refused before segments are "
                "dropped early"
            ),
            step=f"-X {RELIEF_FREE_MIN}=<several times {APPEND_FREE_MIN}>",
        )


def _class(of: Subject) -> str:
    name = of.text("remote.storage.class")
    return "STANDARD" if name == "default" else name


RULES: tuple[Rule, ...] = (
    _slow_roll,
    _less_than_a_segment,
    _dear_requests,
    _small_objects,
    _short_lived,
    _rewritten_early,
    _short_grace,
    _binds_nothing,
    _never_cleaned,
    _waits_for_the_cleaner,
    _tombstones,
    _too_large_a_batch,
    _compressed_twice,
    _relief_after_refusal,
)
