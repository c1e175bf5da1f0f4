"""Charts of a cost simulation: text bars, and one HTML page without scripts, fonts or network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from policies.cost.scenarios import KINDS, BreakEven, ScenarioCost
from tiered.config.units import format_bytes, format_count, format_dollars, format_ms
from tiered.cost.cost_simulation import CostSimulation, shown

_MARKS = {
    "storage": "█",
    "index": "▒",
    "waiting": "░",
    "requests": "▓",
    "retrieval": "◆",
    "early_deletion": "x",
    "disk": "─",
}
_COLOURS = {
    "storage": "#2c6fbb",
    "index": "#7fb2e5",
    "waiting": "#b9c4cf",
    "requests": "#d9822b",
    "retrieval": "#c23b3b",
    "early_deletion": "#8a4fbe",
    "disk": "#4f9a5b",
}
_BAR_MAX = 20  # bars on the page, in addition to today's


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
        lines.append(f"{short:<{label_width}} {figure:>{figure_width}} {_bar(cost, room, most)}".rstrip())
    used = [kind for kind in KINDS if any(getattr(each, kind) > 0 for each in costs)]
    return [*lines, *_legend(used, width)]


def _bar(cost: ScenarioCost, room: int, most: float) -> str:
    """Draw the kinds one after another. Each ends at its cumulative sum, so rounding errors do not add up."""
    bar, reached = "", 0.0
    for kind in KINDS:
        reached += getattr(cost, kind)
        bar += _MARKS[kind] * (round(reached / most * room) - len(bar))
    return bar


def _legend(kinds: Sequence[str], width: int) -> list[str]:
    lines, line = [], ""
    for kind in kinds:
        word = f"{_MARKS[kind]} {kind.replace('_', ' ')}"
        if line and len(line) + 2 + len(word) > width:
            lines.append(line)
            line = ""
        line += f"  {word}" if line else word
    return [*lines, line] if line else lines


def cost_page(simulation: CostSimulation) -> str:
    """Return the page. Every figure of the drawing is in a table too, so it is readable without colours."""
    table = simulation.prices
    topics = ", ".join(each.topic for each in simulation.measured if each.stream is not None)
    parts = [
        _MANIFEST,
        f"<h1>What {escape(topics)} would cost</h1>",
        (
            f"<p>Dollars a month. {escape(table.region)}, prices of {escape(table.as_of)}; simulated "
            "from the segments and requests of the topics.</p>"
        ),
        *(
            f"<p><strong>{escape(each.warning)}</strong></p>"
            for each in simulation.measured
            if each.warning is not None
        ),
        _levers(simulation),
        _drawing([simulation.today, *simulation.found[:_BAR_MAX]]),
        _figures(simulation),
        _lines(simulation.break_evens),
        _basis(simulation),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _levers(simulation: CostSimulation) -> str:
    saving = [(each, dollars) for each, dollars in simulation.sensitivities if dollars > 0][:2]
    if not saving:
        return "<p>None of these changes saves money.</p>"
    items = "".join(
        f"<li><strong>{escape(shown(each))}</strong> saves {format_dollars(dollars)} a month</li>"
        for each, dollars in saving
    )
    return f"<h2>The largest sensitivities</h2><ol>{items}</ol>"


def _drawing(costs: Sequence[ScenarioCost]) -> str:
    """Return inline SVG: a bar for each variant, with its kinds one after another."""
    row, left, width = 26, 330, 1000
    most = max(each.total for each in costs) or 1.0
    height = row * len(costs) + 40
    drawn = []
    for at, cost in enumerate(costs):
        y, x = at * row, float(left)
        label = shown(cost.variant, is_short=True)
        drawn.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{escape(label[:52])}</text>')
        for kind in KINDS:
            long = getattr(cost, kind) / most * (width - left - 90)
            if long > 0:
                title = f"{kind.replace('_', ' ')}: {format_dollars(getattr(cost, kind))}"
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y + 4}" width="{long:.1f}" height="{row - 8}" fill="{_COLOURS[kind]}">'
                    f"<title>{title}</title></rect>"
                )
                x += long
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 17}">{format_dollars(cost.total)}</text>')
    for at, kind in enumerate(KINDS):
        x = left + at * 95
        drawn.append(f'<rect x="{x}" y="{height - 24}" width="10" height="10" fill="{_COLOURS[kind]}"/>')
        drawn.append(f'<text x="{x + 14}" y="{height - 15}">{kind.replace("_", " ")}</text>')
    return (
        f'<svg role="img" aria-label="dollars a month by variant and kind" viewBox="0 0 {width} {height}">'
        f"{''.join(drawn)}</svg>"
    )


def _figures(simulation: CostSimulation) -> str:
    manifests = [
        "",
        "$/month",
        "saved",
        *(kind.replace("_", " ") for kind in KINDS),
        "double",
        "idle",
        "stored",
        "requests",
    ]
    rows = []
    for cost in (simulation.today, *simulation.found):
        cells = [
            format_dollars(cost.total),
            format_dollars(simulation.today.total - cost.total),
            *(format_dollars(getattr(cost, kind)) for kind in KINDS),
            format_dollars(cost.double),
            format_dollars(cost.idle),
            format_bytes(round(cost.stored_bytes)),
            format_count(round(cost.counts.puts + cost.counts.gets + cost.counts.lists)),
        ]
        numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr><th scope=row>{escape(shown(cost.variant))}</th>{numbers}</tr>")
    header = "".join(f"<th scope=col>{escape(manifest)}</th>" for manifest in manifests)
    return f"<h2>Figures</h2><div><table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _lines(lines: Sequence[BreakEven]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(each.what)}</th><td>{number(each.value, each.unit)}</td>"
        f"<td>{number(each.limit, each.unit)}</td><td>{escape(each.verdict)}</td></tr>"
        for each in lines
    )
    header = "".join(f"<th scope=col>{manifest}</th>" for manifest in ("", "here", "break-even", ""))
    return f"<h2>Break-even</h2><div><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"


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


def _basis(simulation: CostSimulation) -> str:
    items = "".join(f"<li>{escape(each.topic)}: {escape('; '.join(each.basis))}</li>" for each in simulation.measured)
    return f"<h2>What it rests on</h2><ul>{items}</ul>"


_MANIFEST = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cost simulation</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; color: #1c2329; background: #fff }
main { max-width: 1080px; margin: 0 auto; padding: 1.5rem }
div { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #dde3e8; white-space: nowrap }
th[scope=row] { text-align: left; font-weight: 600 }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { body { color: #e3e8ec; background: #14191d } svg text { fill: #e3e8ec }
th, td { border-color: #333c44 } }
</style></head><body><main>"""
