"""Costs of topics under other settings: their own history, simulated and priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeAlias

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
    changed,
    cost_of,
    sensitivities,
    variants,
)
from policies.cost.simulation import Counts
from policies.cost.storage_cost import DAY_MS
from tiered.config.price_file import configured_prices
from tiered.config.units import format_bytes, format_ms, parse_bytes, parse_duration, parse_ms
from tiered.cost.cost_history import Measured, measured_streams
from tiered.cost.topic_cost import CostTable
from tiered.manager.manager import LogManager

FOR_EVER_MS = -1
READ_SHARE_MOST = 1_000_000  # times a month; more is a typing error
READ_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
CLASS_NAMES = {
    "standard": "STANDARD",
    "ia": "STANDARD_IA",
    "onezone": "ONEZONE_IA",
    "gir": "GLACIER_IR",
    "it": "INTELLIGENT_TIERING",
    "express": "EXPRESS_ONEZONE",
}
Value: TypeAlias = int | float | str
Axes: TypeAlias = Mapping[str, Sequence[Value]]
Curve: TypeAlias = tuple[tuple[int | float, ScenarioCost], ...]  # costs by value of one setting


def class_of(text: str) -> str:
    return CLASS_NAMES.get(text.lower(), text.upper())


def class_word(storage_class: str) -> str:
    names = {value: name for name, value in CLASS_NAMES.items()}
    return names.get(storage_class, storage_class.lower())


def read_share(text: str) -> float | None:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


class Axis(NamedTuple):
    option: str  # name as an option of `tiered cost simulate`, and in a URL
    key: str  # the property
    label: str
    read: Callable[[str], Value | None]  # None for a malformed value


AXES: Mapping[str, Axis] = {  # by field of `Scenario`
    "retention_ms": Axis("retention", "retention.ms", "Retention", parse_duration),
    "local_retention_ms": Axis("local", "local.retention.ms", "Local retention", parse_duration),
    "segment_bytes": Axis("segment", "segment.bytes", "Segment size", parse_bytes),
    "compression": Axis("codec", "remote.compression", "Codec in the bucket", str.lower),
    "storage_class": Axis("class", "remote.storage.class", "Storage class", class_of),
    "read_share": Axis("reads", "reads", "Share read a month", read_share),
}
_RETENTIONS = "1h 6h 12h 1d 2d 3d 7d 14d 30d 60d 90d 180d 365d 730d -1"
_LOCAL_RETENTIONS = "1h 2h 6h 12h 1d 2d 3d 7d 14d 30d"
# Values of each setting on the page.
STEPS: Mapping[str, tuple[int | float, ...]] = {
    "retention_ms": tuple(parse_ms(text) or 0 for text in _RETENTIONS.split()),
    "local_retention_ms": tuple(parse_ms(text) or 0 for text in _LOCAL_RETENTIONS.split()),
    "segment_bytes": tuple(size << 20 for size in (4, 16, 64, 128, 256, 512, 1024)),
    "read_share": (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0),
}
# A value of a URL beyond these bounds is a typing error, and would keep the simulator busy for long.
_BOUNDS = {"ms": (60_000, 36_525 * DAY_MS), "bytes": (4096, 1 << 40), "share": (0.0, 1000.0)}
FIELD_OF = {axis.option: field for field, axis in AXES.items()}
ALONG = ("retention_ms", "local_retention_ms", "segment_bytes")
_LEAST_MS = {"retention_ms": -1, "local_retention_ms": -2}  # as in the settings: -1 no limit, -2 as retention.ms


def shown(variant: Scenario, *, is_short: bool = False) -> str:
    """Format ``retention.ms=7d segment.bytes=256MiB``, short ``retention=7d segment=256MiB``, or ``current``."""
    words = []
    for field, value in variant.changes.items():
        key = AXES[field].option if is_short else AXES[field].key
        if field.endswith("_ms"):
            words.append(f"{key}={format_ms(int(value))}")
        elif field.endswith("_bytes"):
            words.append(f"{key}={format_bytes(int(value))}".replace(" ", ""))
        else:
            words.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    return " ".join(words) or "current"


def shown_value(field: str, value: Value | None) -> str:
    if value is None:
        return "-"
    if value == FOR_EVER_MS:
        return "no limit"
    if field == "read_share":
        return f"{100 * float(value):.3g} % of it"
    return format_ms(int(value)) if field.endswith("_ms") else format_bytes(int(value))


def value_words(field: str, value: Value) -> str:
    """Format exactly, as a URL and the command line have it: ``7d``, ``256MiB``, ``10%``."""
    if field == "read_share":
        return f"{100 * float(value):.6g}%"
    if field.endswith("_ms"):
        words = format_ms(int(value)).replace(" ", "")
        return words if parse_ms(words) == value else f"{value}ms" if int(value) > 0 else str(value)
    if not field.endswith("_bytes"):
        return str(value)
    units = {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}
    return next((f"{int(value) // size}{unit}" for size, unit in units.items() if int(value) % size == 0), str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCosts:
    """The cost of `today`, in dollars a month; `sensitivities` are single changes, the largest saving first."""

    measured: tuple[Measured, ...]
    prices: PriceTable
    today: ScenarioCost
    sensitivities: tuple[tuple[Scenario, float], ...]
    break_evens: tuple[BreakEven, ...]

    @property
    def topics(self) -> list[str]:
        return [each.topic for each in self.measured if each.stream is not None]

    @property
    def largest_sensitivities(self) -> list[tuple[Scenario, float]]:
        return [(each, dollars) for each, dollars in self.sensitivities if dollars > 0][:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSimulation(SimulatedCosts, CostTable):
    found: tuple[ScenarioCost, ...]

    def rows(self) -> list[dict[str, object]]:
        """Return flat fields of today and each variant; an unchanged setting is None."""
        return [
            {
                **{each.name: getattr(cost.variant, each.name) for each in fields(Scenario)},
                "saved_dollars": self.today.total - cost.total,
                **cost_fields(cost),
                **{f"{each.name}_per_month": round(getattr(cost.counts, each.name)) for each in fields(Counts)},
            }
            for cost in (self.today, *self.found)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLab(SimulatedCosts):
    """Costs of `chosen`: `curve` `along` a setting, `by_class` by read share. `curve_today`: today's."""

    streams: tuple[Stream, ...]
    chosen: ScenarioCost
    along: str
    curve: Curve
    curve_today: Curve
    by_class: Mapping[str, Curve]

    def value_today(self, field: str) -> Value:
        """Today's value of a setting in the largest stream, FOR_EVER_MS without a limit."""
        return _value_of(_largest(self.streams), field)

    @property
    def chosen_at(self) -> int | float | None:
        """Position of `chosen` on the `curve`; None if the streams differ."""
        return _place(self.streams, self.chosen.variant, self.along)


def cost_fields(cost: ScenarioCost) -> dict[str, object]:
    return {
        "changes": shown(cost.variant),
        "dollars_per_month": cost.total,
        **{f"{kind}_dollars": getattr(cost, kind) for kind in KINDS},
        "double_storage_dollars": cost.double,
        "idle_dollars": cost.idle,
        "stored_bytes": round(cost.stored_bytes),
        "local_bytes": round(cost.local_bytes),
        "objects": round(cost.objects),
    }


def simulate_costs(
    manager: LogManager,
    now_ms: int,
    axes: Axes | None = None,
    topics: Iterable[str] | None = None,
    *,
    rates: Mapping[str | None, float] | None = None,
) -> CostSimulation:
    """Measure the tiered topics (None: all) and simulate. `axes` are values by field of `Scenario`.

    `rates` as in `measured_streams`; a topic with too short a history is left out without one. Raises NotFound,
    Unavailable if no topic could be read, InvalidRequest for more than VARIANTS_MAX combinations or none.
    """
    prices = configured_prices(manager.config)
    if axes:
        check_axes(axes, prices)
    return simulate_streams(measured_streams(manager, now_ms, topics, rates=rates), axes, prices)


def simulate_streams(
    measured: Sequence[Measured], axes: Axes | None = None, prices: PriceTable = BUILT_IN
) -> CostSimulation:
    streams = _streams(measured)
    if axes:
        check_axes(axes, prices)
        found = variants(axes)
    else:
        axes = default_axes(streams, prices)
        found = [Scenario(**{name: value}) for name, values in axes.items() for value in values]  # type: ignore[arg-type]
    return CostSimulation(
        measured=tuple(measured),
        prices=prices,
        today=cost_of(streams, Scenario(), prices),
        found=tuple(cost_of(streams, each, prices) for each in found),
        sensitivities=tuple(sensitivities(streams, axes, prices)),
        break_evens=tuple(break_evens(streams, prices)),
    )


def cost_lab(measured: Sequence[Measured], asked: Scenario, prices: PriceTable, *, along: str = ALONG[0]) -> CostLab:
    """Simulate one scenario. Raises InvalidRequest for an impossible setting, or without streams."""
    streams = _streams(measured)
    check_axes({name: [value] for name, value in asked.changes.items()}, prices)
    if along not in ALONG:
        raise InvalidRequest(
            "cannot simulate costs, the setting to draw along is unknown", along=repr(along), known=",".join(ALONG)
        )
    places = {_place(streams, asked, along), _place(streams, Scenario(), along)}
    steps = sorted(step for step in {*STEPS[along], *places} if step is not None and step != FOR_EVER_MS)

    def curve(variant: Scenario, field: str, values: Iterable[int | float]) -> Curve:
        at = {value: replace(variant, **{field: value}) for value in values}  # type: ignore[arg-type]
        return tuple((value, cost_of(streams, each, prices)) for value, each in at.items())

    return CostLab(
        measured=tuple(measured),
        streams=tuple(streams),
        prices=prices,
        today=cost_of(streams, Scenario(), prices),
        chosen=cost_of(streams, asked, prices),
        along=along,
        curve=curve(asked, along, steps),
        curve_today=curve(Scenario(), along, steps),
        by_class={
            name: curve(replace(asked, storage_class=name), "read_share", READ_SHARES)
            for name in offered_classes(prices)
        },
        sensitivities=tuple(sensitivities(streams, default_axes(streams, prices), prices)),
        break_evens=tuple(break_evens([changed(each, asked) for each in streams], prices)),
    )


def _streams(measured: Sequence[Measured]) -> list[Stream]:
    """Return the streams. Without any, raises the reason of the first topic that stores data."""
    streams = [each.stream for each in measured if each.stream is not None]
    if streams:
        return streams
    topics = ",".join(each.topic for each in measured) or None
    warning = next((each.warning for each in measured if each.warning is not None), None)
    kind: type[LogError] = Unavailable if any(each.is_unread for each in measured) else InvalidRequest
    why = "no tiered topic has stored records yet" if warning is None else warning
    raise kind(f"cannot simulate costs, {why}", topics=topics)


def _largest(streams: Sequence[Stream]) -> Stream:
    return max(streams, key=lambda each: each.workload.bytes_per_month * each.partitions)


def _place(streams: Sequence[Stream], variant: Scenario, along: str) -> int | float | None:
    requested = variant.changes.get(along)
    values = {requested} if requested is not None else {_value_of(each, along) for each in streams}
    value = values.pop() if len(values) == 1 else None
    return value if isinstance(value, (int, float)) else None


def _value_of(stream: Stream, field: str) -> Value:
    rules, workload = stream.rules, stream.workload
    values: dict[str, Value | None] = {
        "retention_ms": rules.log_limits.ms,
        "local_retention_ms": rules.local_limits.ms,
        "segment_bytes": workload.segment_bytes,
        "compression": "zstd" if workload.stored_share < 1 else "none",
        "storage_class": stream.storage_class,
        "read_share": stream.read_share,
    }
    found = values[field]
    return FOR_EVER_MS if found is None else found


def read_scenario(query: Mapping[str, str]) -> Scenario:
    """Parse a URL query; an empty setting stays as it is today. Raises InvalidRequest."""
    given = {field: text for field, axis in AXES.items() if (text := query.get(axis.option, "").strip())}
    return Scenario(**{field: _read(field, text) for field, text in given.items()})  # type: ignore[arg-type]


def _read(field: str, text: str) -> Value:
    axis, value = AXES[field], AXES[field].read(text)
    if isinstance(value, str):
        return value
    low, high = _BOUNDS[field.rpartition("_")[2]]
    is_for_ever = field == "retention_ms" and value == FOR_EVER_MS
    if value is None or not (is_for_ever or low <= value <= high):
        raise InvalidRequest(
            f"cannot simulate costs, {axis.option} has a value that cannot be simulated", text=repr(text)
        )
    return value


def default_axes(streams: Sequence[Stream], prices: PriceTable) -> dict[str, list[Value]]:
    largest = _largest(streams)
    retention, local = largest.rules.log_limits.ms, largest.rules.local_limits.ms
    segment = largest.workload.segment_bytes
    found: dict[str, list[Value]] = {
        "retention_ms": [retention // 2, retention * 2] if retention is not None else [30 * DAY_MS, 90 * DAY_MS],
        "local_retention_ms": [each for each in (DAY_MS // 24, DAY_MS // 4, DAY_MS) if local is None or each < local],
        "segment_bytes": [segment // 4, segment * 4] if segment < 1 << 30 else [segment // 4],
        "compression": ["zstd"] if any(each.zstd_share is not None for each in streams) else [],
        "storage_class": [name for name in offered_classes(prices) if name != largest.storage_class],
    }
    return {name: values for name, values in found.items() if values}


def offered_classes(prices: PriceTable) -> list[str]:
    return [name for name, of in prices.classes.items() if of.is_readable]


def check_axes(axes: Axes, prices: PriceTable) -> None:
    count = 1
    for name, values in axes.items():
        if name not in AXES:
            raise InvalidRequest("cannot simulate costs, the setting is unknown", setting=name, known=",".join(AXES))
        count *= len(values)
        for value in values:
            _check_value(name, value, prices)
    if not 0 < count <= VARIANTS_MAX:
        raise InvalidRequest(
            "cannot simulate costs, there are too many combinations", combinations=count, at_most=VARIANTS_MAX
        )


def _check_value(name: str, value: Value, prices: PriceTable) -> None:
    if name == "storage_class" and value not in offered_classes(prices):
        cold = "objects of this storage class must be restored before a read"
        why = cold if value in prices.classes else "the storage class is unknown"
        known = ",".join(offered_classes(prices))
        raise InvalidRequest(f"cannot simulate costs, {why}", storage_class=value, known=known)
    if name == "compression" and value not in ("none", "zstd"):
        raise InvalidRequest("cannot simulate costs, the compression is unknown", compression=value, known="none,zstd")
    if name.endswith("_bytes") and not (isinstance(value, int) and value > 0):
        raise InvalidRequest("cannot simulate costs, a size must be above 0", setting=name, value=value)
    if name == "read_share" and not (isinstance(value, (int, float)) and 0 <= value <= READ_SHARE_MOST):
        raise InvalidRequest(
            "cannot simulate costs, a share of reads must be 0 or more", value=value, at_most=READ_SHARE_MOST
        )
    if name in _LEAST_MS and not (isinstance(value, int) and value >= _LEAST_MS[name]):
        facts = {"setting": AXES[name].key, "value": value, "least": _LEAST_MS[name]}
        raise InvalidRequest("cannot simulate costs, invalid retention: -1 is no limit", **facts)
