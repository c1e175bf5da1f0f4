"""Costs of topics under other settings: their own history, simulated and priced.

`policies.cost.scenarios` has the simulation. Commands, scripts and pages use `simulate_costs`: it measures the topics
of a manager and prices every combination of the given values. Without values it prices single changes of every setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from local.errors import InvalidRequest, LogError, Unavailable
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.scenarios import (
    KINDS,
    VARIANTS_MAX,
    BreakEven,
    Scenario,
    ScenarioCost,
    Stream,
    break_evens,
    cost_of,
    sensitivities,
    variants,
)
from policies.cost.simulation import Counts
from policies.cost.storage_cost import DAY_MS
from tiered.config.price_file import configured_prices
from tiered.cost.cost_history import Measured, measured_streams
from tiered.manager.manager import LogManager

if TYPE_CHECKING:
    import pandas as pd

HOUR_MS = 3_600_000
PART_BYTES_LEAST = 5 << 20  # S3's minimum for all parts but the last
READ_SHARE_MOST = 1_000_000  # times a month; more is a typing error
CLASS_NAMES = {
    "standard": "STANDARD",
    "ia": "STANDARD_IA",
    "onezone": "ONEZONE_IA",
    "gir": "GLACIER_IR",
    "it": "INTELLIGENT_TIERING",
    "express": "EXPRESS_ONEZONE",
}
Axes = Mapping[str, Sequence[int | float | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSimulation:
    """The cost of `today` and of the variants `found`, in the requested order.

    `sensitivities` are the single changes that save most, with dollars. `measured` has the basis of each topic.
    """

    measured: tuple[Measured, ...]
    prices: PriceTable
    today: ScenarioCost
    found: tuple[ScenarioCost, ...]
    sensitivities: tuple[tuple[Scenario, float], ...]
    break_evens: tuple[BreakEven, ...]

    def rows(self) -> list[dict[str, object]]:
        """Return flat fields of today and of each variant; an unchanged setting is None."""
        return [_row(each, self.today) for each in (self.today, *self.found)]

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame. Raises ImportError without pandas."""
        import pandas

        return pandas.DataFrame(self.rows())


def simulate_costs(
    manager: LogManager,
    now_ms: int,
    axes: Axes | None = None,
    topics: Iterable[str] | None = None,
    *,
    rates: Mapping[str | None, float] | None = None,
) -> CostSimulation:
    """Measure the tiered topics (None: all) and simulate. `axes` are values by field of `Scenario`.

    `rates` are bytes a day by topic, for topics with too short a history (see `Measured.warning`); the key None stands
    for the only topic. Without a rate such a topic is left out. Reads samples of local segments; changes nothing.

    Raises NotFound for an unknown topic, Unavailable if no topic could be read. Raises InvalidRequest if there is
    nothing to measure or there are more combinations than VARIANTS_MAX.
    """
    prices = configured_prices(manager.config)
    if axes:
        check_axes(axes, prices)
    found = measured_streams(manager, now_ms, topics, rates=rates)
    return simulate_streams(found, axes, prices)


def simulate_streams(
    measured: Sequence[Measured], axes: Axes | None = None, prices: PriceTable = BUILT_IN
) -> CostSimulation:
    """Simulate as `simulate_costs`, with measured or synthetic streams."""
    streams = [each.stream for each in measured if each.stream is not None]
    if not streams:
        raise nothing_to_simulate(measured)
    if axes:
        check_axes(axes, prices)
    asked = dict(axes) if axes else default_axes(streams, prices)
    if axes:
        found = variants(asked)
    else:
        found = [Scenario(**{name: value}) for name, values in asked.items() for value in values]  # type: ignore[arg-type]
    return CostSimulation(
        measured=tuple(measured),
        prices=prices,
        today=cost_of(streams, Scenario(), prices),
        found=tuple(cost_of(streams, each, prices) for each in found),
        sensitivities=tuple(sensitivities(streams, asked, prices)),
        break_evens=tuple(break_evens(streams, prices)),
    )


def nothing_to_simulate(measured: Sequence[Measured]) -> LogError:
    """Return the error for no topic with a stream, with the reason of the first topic that stores data."""
    topics = ",".join(each.topic for each in measured) or None
    warning = next((each.warning for each in measured if each.warning is not None), None)
    if any(each.is_unread for each in measured):
        return Unavailable(f"cannot simulate costs, {warning}", topics=topics)
    if warning is not None:
        return InvalidRequest(f"cannot simulate costs, {warning}", topics=topics)
    return InvalidRequest("cannot simulate costs, no tiered topic has stored records yet", topics=topics)


def default_axes(streams: Sequence[Stream], prices: PriceTable) -> dict[str, list[int | float | str]]:
    """Return single changes around today's settings. Classes are offered only if readable at once."""
    largest = max(streams, key=lambda each: each.workload.bytes_per_month * each.partitions)
    kept, local = largest.rules.log_limits.ms, largest.rules.local_limits.ms
    retention = [kept // 2, kept * 2] if kept is not None else [30 * DAY_MS, 90 * DAY_MS]
    on_disk = [each for each in (HOUR_MS, 6 * HOUR_MS, DAY_MS) if local is None or each < local]
    segment = largest.workload.segment_bytes
    classes = [name for name in offered_classes(prices) if name != largest.storage_class]
    found: dict[str, list[int | float | str]] = {
        "retention_ms": list(retention),
        "local_retention_ms": list(on_disk),
        "segment_bytes": [segment // 4, segment * 4] if segment < 1 << 30 else [segment // 4],
        "part_bytes": [16 << 20],
        "compression": ["zstd"] if any(each.zstd_share is not None for each in streams) else [],
        "storage_class": list(classes),
    }
    return {name: values for name, values in found.items() if values}


def shown(variant: Scenario, *, is_short: bool = False) -> str:
    """Format ``retention.ms=7d segment.bytes=256MiB``, short ``retention=7d segment=256MiB``.

    A variant without changes gives ``as it is``.
    """
    from tiered.config.units import format_bytes, format_ms

    words = []
    for name, value in variant.changes.items():
        key = (_SHORT if is_short else _KEYS)[name]
        if name.endswith("_ms"):
            words.append(f"{key}={format_ms(int(value))}")
        elif name.endswith("_bytes"):
            words.append(f"{key}={format_bytes(int(value))}".replace(" ", ""))
        else:
            words.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    return " ".join(words) or "current"


_KEYS = {
    "retention_ms": "retention.ms",
    "local_retention_ms": "local.retention.ms",
    "segment_bytes": "segment.bytes",
    "part_bytes": "part.size",
    "compression": "remote.compression",
    "storage_class": "remote.storage.class",
    "read_share": "reads",
}

_LEAST_MS = {"retention_ms": -1, "local_retention_ms": -2}  # values as in the settings: no limit, as retention.ms

_SHORT = {
    "retention_ms": "retention",
    "local_retention_ms": "local",
    "segment_bytes": "segment",
    "part_bytes": "part",
    "compression": "codec",
    "storage_class": "class",
    "read_share": "reads",
}


def _row(cost: ScenarioCost, today: ScenarioCost) -> dict[str, object]:
    return {
        "changes": shown(cost.variant),
        **{each.name: getattr(cost.variant, each.name) for each in fields(Scenario)},
        "dollars_per_month": cost.total,
        "saved_dollars": today.total - cost.total,
        **{f"{kind}_dollars": getattr(cost, kind) for kind in KINDS},
        "double_storage_dollars": cost.double,
        "idle_dollars": cost.idle,
        "stored_bytes": round(cost.stored_bytes),
        "local_bytes": round(cost.local_bytes),
        "objects": round(cost.objects),
        **{f"{each.name}_per_month": round(getattr(cost.counts, each.name)) for each in fields(Counts)},
    }


def offered_classes(prices: PriceTable) -> list[str]:
    """Return the storage classes that a topic can use: priced, and readable at once."""
    return [name for name, of in prices.classes.items() if of.is_readable]


def check_axes(axes: Axes, prices: PriceTable) -> None:
    """Raise InvalidRequest for an impossible value of a setting, and for too many combinations."""
    count = 1
    for name, values in axes.items():
        if name not in _KEYS:
            raise InvalidRequest("cannot simulate costs, the setting is unknown", setting=name, known=",".join(_KEYS))
        count *= len(values)
        for value in values:
            _check_value(name, value, prices)
    if not 0 < count <= VARIANTS_MAX:
        raise InvalidRequest(
            "cannot simulate costs, there are too many combinations", combinations=count, at_most=VARIANTS_MAX
        )


def _check_value(name: str, value: int | float | str, prices: PriceTable) -> None:
    if name == "storage_class" and value not in offered_classes(prices):
        why = (
            "objects of this storage class must be restored before a read"
            if value in prices.classes
            else "the storage class is unknown"
        )
        known = ",".join(offered_classes(prices))
        raise InvalidRequest(f"cannot simulate costs, {why}", storage_class=value, known=known)
    if name == "compression" and value not in ("none", "zstd"):
        raise InvalidRequest("cannot simulate costs, the compression is unknown", compression=value, known="none,zstd")
    if name.endswith("_bytes") and not (isinstance(value, int) and value > 0):
        raise InvalidRequest("cannot simulate costs, a size must be above 0", setting=name, value=value)
    if name == "part_bytes" and isinstance(value, int) and value < PART_BYTES_LEAST:
        raise InvalidRequest("cannot simulate costs, stores refuse parts below 5 MiB", setting=name, value=value)
    if name == "read_share" and not (isinstance(value, (int, float)) and 0 <= value <= READ_SHARE_MOST):
        raise InvalidRequest(
            "cannot simulate costs, a share of reads must be 0 or more", value=value, at_most=READ_SHARE_MOST
        )
    if name in _LEAST_MS and not (isinstance(value, int) and value >= _LEAST_MS[name]):
        facts = {"setting": _KEYS[name], "value": value, "least": _LEAST_MS[name]}
        raise InvalidRequest("cannot simulate costs, invalid retention: -1 is no limit", **facts)
