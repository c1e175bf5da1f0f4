"""One cost question in full detail: today's settings against others, with curves around them.

For interactive use, one setting after another (`tiered.web.pages.lab`). `tiered.cost.cost_simulation` prices many
variants at once. The functions are pure; the input is measured before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from local.errors import InvalidRequest
from policies.cost.prices import PriceTable
from policies.cost.scenarios import (
    BreakEven,
    Scenario,
    ScenarioCost,
    Stream,
    break_evens,
    changed,
    cost_of,
    sensitivities,
)
from policies.cost.storage_cost import DAY_MS
from tiered.config.units import parse_bytes, parse_duration
from tiered.cost.cost_history import Measured
from tiered.cost.cost_simulation import (
    CLASS_NAMES,
    HOUR_MS,
    check_axes,
    default_axes,
    nothing_to_simulate,
    offered_classes,
)

MIB = 1 << 20
FOR_EVER_MS = -1
# Values of each setting on the page, by the field of a variant.
STEPS: Mapping[str, tuple[int | float, ...]] = {
    "retention_ms": (
        *(hours * HOUR_MS for hours in (1, 6, 12)),
        *(days * DAY_MS for days in (1, 2, 3, 7, 14, 30, 60, 90, 180, 365, 730)),
        FOR_EVER_MS,
    ),
    "local_retention_ms": (
        *(hours * HOUR_MS for hours in (1, 2, 6, 12)),
        *(days * DAY_MS for days in (1, 2, 3, 7, 14, 30)),
    ),
    "segment_bytes": tuple(size * MIB for size in (4, 16, 64, 128, 256, 512, 1024)),
    "part_bytes": tuple(size * MIB for size in (5, 8, 16, 32, 64)),
    "read_share": (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0),
}
ALONG = ("retention_ms", "local_retention_ms", "segment_bytes", "part_bytes")
READ_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
_NAMES = {  # names in a URL, as the options of `tiered cost simulate`
    "retention": "retention_ms",
    "local": "local_retention_ms",
    "segment": "segment_bytes",
    "part": "part_bytes",
    "codec": "compression",
    "class": "storage_class",
    "reads": "read_share",
}
# A value beyond these bounds is a typing error, and would keep the simulator busy for long.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "ms": (60_000, 36_525 * DAY_MS),
    "bytes": (4096, 1 << 40),
    "share": (0.0, 1000.0),
}
NAME_OF = {field: name for name, field in _NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLab:
    """`chosen` settings against `today`'s, in dollars a month.

    `curve` has the cost of the chosen settings at each step `along` one setting. `curve_today` has the same with
    today's other settings. The values of `chosen` and of today are steps too, so `chosen` is on the curve. `by_class`
    is the cost of each class by the share that is read in a month, with the other settings as chosen. `sensitivities`
    are single changes of today's settings, the largest saving first.
    """

    measured: tuple[Measured, ...]
    streams: tuple[Stream, ...]
    prices: PriceTable
    today: ScenarioCost
    chosen: ScenarioCost
    along: str
    curve: tuple[tuple[int | float, ScenarioCost], ...]
    curve_today: tuple[tuple[int | float, ScenarioCost], ...]
    by_class: Mapping[str, tuple[tuple[float, ScenarioCost], ...]]
    sensitivities: tuple[tuple[Scenario, float], ...]
    break_evens: tuple[BreakEven, ...]

    @property
    def largest_sensitivities(self) -> list[tuple[Scenario, float]]:
        """The two changes with the largest savings, if they save anything."""
        return [(each, dollars) for each, dollars in self.sensitivities if dollars > 0][:2]

    def value_today(self, field: str) -> int | float | str | None:
        """Return today's value of a setting, in the largest stream; no limit of time is FOR_EVER_MS."""
        stream = max(self.streams, key=lambda each: each.workload.bytes_per_month * each.partitions)
        return _value_of(stream, field)

    @property
    def chosen_at(self) -> int | float | None:
        """Position of `chosen` on the `curve`; None if the streams differ and no value was chosen."""
        return _place(self.streams, self.chosen.variant, self.along)


def cost_lab(measured: Sequence[Measured], asked: Scenario, prices: PriceTable, *, along: str = ALONG[0]) -> CostLab:
    """Simulate. Raises InvalidRequest if there is nothing to simulate, or for an impossible setting."""
    streams = [each.stream for each in measured if each.stream is not None]
    if not streams:
        raise nothing_to_simulate(measured)
    check_axes({name: [value] for name, value in asked.changes.items()}, prices)
    if along not in ALONG:
        raise InvalidRequest(
            "cannot simulate costs, the setting to draw along is unknown", along=repr(along), known=",".join(ALONG)
        )
    axes = default_axes(streams, prices)

    places = {_place(streams, asked, along), _place(streams, Scenario(), along)} - {None, FOR_EVER_MS}

    def curve(variant: Scenario) -> tuple[tuple[int | float, ScenarioCost], ...]:
        steps = sorted({step for step in STEPS[along] if step != FOR_EVER_MS} | {each for each in places if each})
        at = [replace(variant, **{along: step}) for step in steps]  # type: ignore[arg-type]
        return tuple((step, cost_of(streams, each, prices)) for step, each in zip(steps, at, strict=True))

    return CostLab(
        measured=tuple(measured),
        streams=tuple(streams),
        prices=prices,
        today=cost_of(streams, Scenario(), prices),
        chosen=cost_of(streams, asked, prices),
        along=along,
        curve=curve(asked),
        curve_today=curve(Scenario()),
        by_class={
            name: tuple(
                (share, cost_of(streams, replace(asked, storage_class=name, read_share=share), prices))
                for share in READ_SHARES
            )
            for name in offered_classes(prices)
        },
        sensitivities=tuple(sensitivities(streams, axes, prices)),
        break_evens=tuple(break_evens([changed(each, asked) for each in streams], prices)),
    )


def _place(streams: Sequence[Stream], variant: Scenario, along: str) -> int | float | None:
    """Return the value of a setting under a variant; None if the streams differ."""
    asked = variant.changes.get(along)
    values = {asked} if asked is not None else {_value_of(each, along) for each in streams}
    value = values.pop() if len(values) == 1 else None
    return value if isinstance(value, (int, float)) else None


def _value_of(stream: Stream, field: str) -> int | float | str | None:
    """Return a setting of a stream; no limit of time is FOR_EVER_MS."""
    values: dict[str, Callable[[], int | float | str | None]] = {
        "retention_ms": lambda: stream.rules.log_limits.ms,
        "local_retention_ms": lambda: stream.rules.local_limits.ms,
        "segment_bytes": lambda: stream.workload.segment_bytes,
        "part_bytes": lambda: stream.workload.part_bytes,
        "compression": lambda: "zstd" if stream.workload.stored_share < 1 else "none",
        "storage_class": lambda: stream.storage_class,
        "read_share": lambda: stream.read_share,
    }
    found = values[field]()
    return FOR_EVER_MS if found is None and field.endswith("_ms") else found


def read_scenario(query: Mapping[str, str]) -> Scenario:
    """Parse the settings of a URL query: ``retention=7d&class=ia``. Raises InvalidRequest.

    An empty setting stays as it is today.
    """
    given = {name: query[name].strip() for name in _NAMES if query.get(name, "").strip()}
    return Scenario(**{_NAMES[name]: _read(name, text) for name, text in given.items()})  # type: ignore[arg-type]


def _read(name: str, text: str) -> int | float | str:
    field = _NAMES[name]
    if name == "class":
        return CLASS_NAMES.get(text.lower(), text.upper())
    if name == "codec":
        return text.lower()
    value = _share(text) if name == "reads" else parse_duration(text) if field.endswith("_ms") else parse_bytes(text)
    low, high = _BOUNDS[field.rpartition("_")[2]]
    is_for_ever = name == "retention" and value == FOR_EVER_MS
    if value is None or not (is_for_ever or low <= value <= high):
        raise InvalidRequest(f"cannot simulate costs, {name} has a value that cannot be simulated", text=repr(text))
    return value


def _share(text: str) -> float | None:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
