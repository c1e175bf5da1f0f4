"""A cost simulation drawn: bars for a terminal, and one HTML page without scripts, fonts or network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.cost.scenarios import KINDS, BreakEven, ScenarioCost
from tiered.config.units import format_bytes, format_count, format_dollars, format_ms
from tiered.cost.cost_simulation import CostSimulation, shown
from tiered.web.charts import text_bar
from tiered.web.html import Child, Html, tag

_KINDS = {  # (mark in a terminal, colour on the page)
    "storage": ("█", "#2c6fbb"),
    "index": ("▒", "#7fb2e5"),
    "waiting": ("░", "#b9c4cf"),
    "requests": ("▓", "#d9822b"),
    "retrieval": ("◆", "#c23b3b"),
    "early_deletion": ("x", "#8a4fbe"),
    "disk": ("─", "#4f9a5b"),
}
_NAMES = {kind: kind.replace("_", " ") for kind in KINDS}
_BAR_MAX = 20  # bars on the page, in addition to today's
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; color: #1c2329; background: #fff }
main { max-width: 1080px; margin: 0 auto; padding: 1.5rem }
div { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #dde3e8; white-space: nowrap }
th[scope=row] { text-align: left; font-weight: 600 }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { body { color: #e3e8ec; background: #14191d } svg text { fill: #e3e8ec }
th, td { border-color: #333c44 } }
"""


def chart_lines(simulation: CostSimulation, width: int) -> list[str]:
    """Return bars of dollars a month, scaled to the most expensive one, and a legend of the marks."""
    costs = [simulation.today, *simulation.found]
    labels = [shown(each.variant, is_short=True) for each in costs]
    figures = [format_dollars(each.total) for each in costs]
    label_width = min(max(map(len, labels)), max(12, width // 2))
    figure_width = max(map(len, figures))
    room = max(8, width - label_width - figure_width - 2)
    most = max(each.total for each in costs) or 1.0
    lines = []
    for cost, label, figure in zip(costs, labels, figures, strict=True):
        short = label if len(label) <= label_width else label[: label_width - 1] + "…"
        bar = text_bar([(_KINDS[kind][0], getattr(cost, kind)) for kind in KINDS], most, room)
        lines.append(f"{short:<{label_width}} {figure:>{figure_width}} {bar}".rstrip())
    used = [kind for kind in KINDS if any(getattr(each, kind) > 0 for each in costs)]
    return [*lines, *_legend(used, width)]


def _legend(kinds: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for kind in kinds:
        word = f"{_KINDS[kind][0]} {_NAMES[kind]}"
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def number(value: float | None, unit: str) -> str:
    """Format a value of a break-even line."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "for ever"
    match unit:
        case "bytes":
            return format_bytes(round(value))
        case "days":
            return format_ms(round(value * 86_400_000))
        case _:
            return f"{value:.2f}"


def cost_page(simulation: CostSimulation) -> str:
    """Return the page. Every figure of the drawing is in a table too, so it is readable without colours."""
    prices, warnings = simulation.prices, [each.warning for each in simulation.measured if each.warning is not None]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Cost simulation"),
        tag("style", Html(_STYLE)),
    )
    basis = f"{prices.region}, prices of {prices.as_of}; simulated from the segments and requests of the topics."
    main = tag(
        "main",
        tag("h1", f"What {', '.join(simulation.topics)} would cost"),
        tag("p", f"Dollars a month. {basis}"),
        [tag("p", tag("strong", warning)) for warning in warnings],
        _levers(simulation),
        _drawing([simulation.today, *simulation.found[:_BAR_MAX]]),
        tag("h2", "Figures"),
        _figures(simulation),
        tag("h2", "Break-even"),
        _table(("", "here", "break-even", ""), map(_break_even, simulation.break_evens)),
        tag("h2", "What it rests on"),
        tag("ul", [tag("li", f"{each.topic}: {'; '.join(each.basis)}") for each in simulation.measured]),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", main), lang="en") + "\n"


def _levers(simulation: CostSimulation) -> Child:
    saving = simulation.largest_sensitivities
    if not saving:
        return tag("p", "None of these changes saves money.")
    items = [
        tag("li", tag("strong", shown(each)), f" saves {format_dollars(dollars)} a month") for each, dollars in saving
    ]
    return [tag("h2", "The largest sensitivities"), tag("ol", items)]


def _drawing(costs: Sequence[ScenarioCost]) -> Html:
    """Return a bar for each variant, with its kinds one after another."""
    row, left, width = 26, 330, 1000
    most = max(each.total for each in costs) or 1.0
    height = row * len(costs) + 40
    drawn: list[Html] = []
    for at, cost in enumerate(costs):
        y, x = at * row, float(left)
        drawn.append(tag("text", shown(cost.variant, is_short=True)[:52], x=left - 8, y=y + 17, text_anchor="end"))
        for kind in KINDS:
            dollars = float(getattr(cost, kind))
            long = dollars / most * (width - left - 90)
            if long > 0:
                title = tag("title", f"{_NAMES[kind]}: {format_dollars(dollars)}")
                drawn.append(_box(title, x=round(x, 1), y=y + 4, width=round(long, 1), height=row - 8, kind=kind))
                x += long
        drawn.append(tag("text", format_dollars(cost.total), x=round(x + 6, 1), y=y + 17))
    for at, kind in enumerate(KINDS):
        x = left + at * 95
        drawn.append(_box(None, x=x, y=height - 24, width=10, height=10, kind=kind))
        drawn.append(tag("text", _NAMES[kind], x=x + 14, y=height - 15))
    label = "dollars a month by variant and kind"
    return tag("svg", drawn, role="img", aria_label=label, viewBox=f"0 0 {width} {height}")


def _box(title: Child, *, x: float, y: float, width: float, height: float, kind: str) -> Html:
    return tag("rect", title, x=x, y=y, width=width, height=height, fill=_KINDS[kind][1])


def _figures(simulation: CostSimulation) -> Html:
    headings = ("", "$/month", "saved", *_NAMES.values(), "double", "idle", "stored", "requests")
    rows = [
        [
            shown(cost.variant),
            format_dollars(cost.total),
            format_dollars(simulation.today.total - cost.total),
            *(format_dollars(getattr(cost, kind)) for kind in KINDS),
            format_dollars(cost.double),
            format_dollars(cost.idle),
            format_bytes(round(cost.stored_bytes)),
            format_count(round(cost.counts.billed)),
        ]
        for cost in (simulation.today, *simulation.found)
    ]
    return _table(headings, rows)


def _break_even(line: BreakEven) -> list[str]:
    return [line.what, number(line.value, line.unit), number(line.limit, line.unit), line.verdict]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    head = tag("thead", tag("tr", [tag("th", each, scope="col") for each in headings]))
    lines = [tag("tr", tag("th", name, scope="row"), [tag("td", each) for each in cells]) for name, *cells in rows]
    return tag("div", tag("table", head, tag("tbody", lines)))
