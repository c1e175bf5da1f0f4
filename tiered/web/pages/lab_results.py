"""The results of the cost lab: figures, levers, charts with tables, break-even lines, and the basis."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from math import log

from policies.cost.scenarios import KINDS, ScenarioCost
from policies.cost.workload import OUTSIDE
from tiered.config.units import format_bytes, format_count, format_dollars
from tiered.cost.cost_chart import number
from tiered.cost.cost_lab import FOR_EVER_MS, NAME_OF, CostLab
from tiered.cost.cost_simulation import shown
from tiered.web.charts.charts import Line, Mark, bar, line_chart
from tiered.web.html import Child, Html, tag
from tiered.web.pages.lab_words import HERE, LABELS, class_word, shown_value, value_words
from tiered.web.pages.parts import Heading, commands, figures, link, table

_WORDS_OF_KINDS = {
    "storage": "storage",
    "index": "index",
    "waiting": "waiting for deletion",
    "requests": "requests",
    "retrieval": "retrieval",
    "early_deletion": "early deletion",
    "disk": "disk",
}


def results(lab: CostLab, query: Mapping[str, str]) -> list[Child]:
    return [
        *(tag("p", each.warning, class_="trouble") for each in lab.measured if each.warning is not None),
        _figures(lab),
        tag("h2", "The largest sensitivities", id="sensitivities"),
        _levers(lab, query),
        tag("h2", "Cost by kind"),
        _kinds(lab),
        tag("div", _curve(lab), _classes(lab), class_="charts"),
        tag("h2", "Break-even lines"),
        _break_evens(lab),
        tag("h2", "Assumptions"),
        tag("ul", [tag("li", each.warning or f"{each.topic}: {'; '.join(each.basis)}") for each in lab.measured]),
        tag("p", "The same in a terminal, and as one page:"),
        commands(*_commands(lab, query)),
        tag(
            "p",
            f"{lab.prices.region}, prices of {lab.prices.as_of}; a month of 30 days, the steady state of each setting; "
            f"simulated, not metered. Not simulated: {'; '.join(OUTSIDE)}.",
            class_="faint",
        ),
    ]


def _figures(lab: CostLab) -> Html:
    now, then = lab.today, lab.chosen
    saved = now.total - then.total
    share = f" ({-saved / now.total:+.0%})" if now.total and abs(saved) >= 0.005 * now.total else ""
    return figures(
        {
            "$ a month now": tag("span", format_dollars(now.total), id="dollars-now"),
            "$ a month with the changes": tag("span", format_dollars(then.total), share, id="dollars-chosen"),
            "Saved" if saved >= 0 else "More": tag("span", format_dollars(abs(saved)), id="dollars-saved"),
            "In both tiers, $": tag("span", format_dollars(then.double), id="dollars-double"),
            "When idle, $": tag("span", format_dollars(then.idle), id="dollars-idle"),
            "In the bucket": format_bytes(round(then.stored_bytes)),
            "On the disk": format_bytes(round(then.local_bytes)),
            "Objects": format_count(round(then.objects)),
            "Requests a month": format_count(request_count(then)),
        }
    )


def _levers(lab: CostLab, query: Mapping[str, str]) -> Html:
    found = lab.largest_sensitivities
    if not found:
        return tag("p", "None of the single changes saves money.")
    items = []
    for variant, dollars in found:
        asked = {name: value for name, value in query.items() if name in ("topic", "along", "rate")}
        asked |= {NAME_OF[name]: value_words(name, value) for name, value in variant.changes.items()}
        words = f" saves $ {format_dollars(dollars)} a month"
        items.append(tag("li", tag("a", shown(variant), href=link(HERE, asked)), words))
    return tag("ol", items)


def _kinds(lab: CostLab) -> Html:
    headings = (
        Heading(""),
        Heading("Share"),
        Heading("$ a month", is_number=True),
        *(Heading(_WORDS_OF_KINDS[kind], is_number=True) for kind in _used(lab)),
    )
    most = max(lab.today.total, lab.chosen.total)
    rows: list[list[Child]] = [
        [
            words,
            bar([(f"k-{kind}", float(getattr(cost, kind))) for kind in KINDS], most),
            format_dollars(cost.total),
            *(format_dollars(getattr(cost, kind)) for kind in _used(lab)),
        ]
        for words, cost in (("Now", lab.today), ("Chosen", lab.chosen))
    ]
    key = [
        tag("span", tag("span", "■", class_=f"key k-{kind}", aria_hidden="true"), f" {_WORDS_OF_KINDS[kind]} ")
        for kind in _used(lab)
    ]
    named = tuple(Heading("Settings") if not each.title else each for each in headings)
    return tag(
        "div", table("Dollars a month by kind, now and with the changes", named, rows), tag("p", key), id="kinds"
    )


def _used(lab: CostLab) -> list[str]:
    return [kind for kind in KINDS if getattr(lab.today, kind) > 0 or getattr(lab.chosen, kind) > 0]


def _curve(lab: CostLab) -> Html:
    """The cost of each step of one setting."""
    name = LABELS[lab.along]
    lines = [Line(name="with the changes", points=[(_at(value), cost.total) for value, cost in lab.curve])]
    is_other = any(field_ != lab.along for field_ in lab.chosen.variant.changes)
    if is_other:
        lines.append(
            Line(name="others unchanged", points=[(_at(value), cost.total) for value, cost in lab.curve_today])
        )
    marks = []
    chosen = lab.chosen_at
    if chosen is not None and chosen != FOR_EVER_MS:
        marks.append(Mark(words="with the changes", x=_at(chosen), y=lab.chosen.total))
    by_cost = sorted(lab.curve, key=lambda each: each[1].total)
    least, most = (
        f"{format_dollars(cost.total)} at {shown_value(lab.along, value)}"
        for value, cost in by_cost[:: len(by_cost) - 1]
    )
    words = f"Dollars a month along {name.lower()}: least {least}, most {most}."
    chart = line_chart(
        "curve",
        f"Cost along {name.lower()}",
        words,
        lines,
        [(_at(value), shown_value(lab.along, value).replace(".0", "")) for value, _ in lab.curve],
        x_name=name,
        y_name="$ a month",
        marks=marks,
    )
    headings = [Heading(name), Heading("$ with the changes", is_number=True)]
    if is_other:
        headings.append(Heading("$ others unchanged", is_number=True))
    rows: list[list[Child]] = [
        [shown_value(lab.along, value), format_dollars(cost.total), *([format_dollars(now.total)] if is_other else [])]
        for (value, cost), (_, now) in zip(lab.curve, lab.curve_today, strict=True)
    ]
    figures_ = tag("details", tag("summary", "The figures of this chart"), table(words, headings, rows))
    return tag("div", tag("h2", f"Along {name.lower()}"), _drawing(chart), figures_)


def _drawing(chart: Html) -> Html:
    """A wide chart: on a small screen it scrolls, also by keyboard."""
    return tag("div", chart, class_="drawing", tabindex=0, role="group", aria_label="Chart")


def _at(value: int | float) -> float:
    """Return the logarithm of a step, because steps grow by factors."""
    return log(max(1.0, float(value)))


def _classes(lab: CostLab) -> Html:
    """The cost of each storage class by read volume: where lines cross, another class becomes cheaper."""
    names = [name for name in lab.by_class if name != "EXPRESS_ONEZONE"]  # so expensive that it would hide all others
    lines = [
        Line(name=class_word(name), points=[(share, cost.total) for share, cost in lab.by_class[name]])
        for name in names
    ]
    rules = [
        (each.limit, class_word(each.what.partition(":")[0]))
        for each in lab.break_evens
        if each.unit == "share" and each.limit is not None
    ]
    share = lab.streams[0].read_share if lab.chosen.variant.read_share is None else lab.chosen.variant.read_share
    at_once = {name: {s: cost.total for s, cost in costs} for name, costs in lab.by_class.items()}
    best = {s: min(names, key=lambda name: at_once[name][s]) for s, _ in lab.by_class[names[0]]}
    never, much = min(best), max(best)
    words = (
        f"Dollars a month of each storage class by the share of the data read in a month. Cheapest when nothing is "
        f"read: {best[never]}; when {much:.0%} is read: {best[much]}."
    )
    chart = line_chart(
        "classes",
        "Storage classes by share of the data read",
        words,
        lines,
        [(s, f"{s:.0%}") for s, _ in lab.by_class[names[0]]],
        x_name="share of the data read in a month",
        y_name="$ a month",
        marks=[Mark(words="here", x=share, y=lab.chosen.total)] if share <= much else [],
        rules=_merged(rules),
    )
    headings = [Heading("Class"), *(Heading(f"{s:.0%} read", is_number=True) for s, _ in lab.by_class[names[0]])]
    rows: list[list[Child]] = [
        [name, *(format_dollars(cost.total) for _, cost in costs)] for name, costs in lab.by_class.items()
    ]
    figures_ = tag("details", tag("summary", "The figures of this chart"), table(words, headings, rows))
    upright = "Vertical lines: the read share at which reads cost as much as a class saves."
    return tag("div", tag("h2", "Storage classes"), _drawing(chart), tag("p", upright, class_="faint"), figures_)


def _merged(rules: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Merge the names of lines at the same place."""
    found: dict[float, str] = {}
    for at, name in rules:
        key = round(at, 2)
        found[key] = f"{found[key]}, {name}" if key in found else name
    return sorted(found.items())


def _break_evens(lab: CostLab) -> Html:
    headings = (
        Heading("Between"),
        Heading("Here", is_number=True),
        Heading("Break-even", is_number=True),
        Heading("So"),
    )
    rows: list[list[Child]] = [
        [each.what, number(each.value, each.unit), number(each.limit, each.unit), each.verdict]
        for each in lab.break_evens
    ]
    return tag(
        "div", table("Break-even points of storage classes and sizes, with the changes", headings, rows), id="lines"
    )


def request_count(cost: ScenarioCost) -> int:
    counts = cost.counts
    return round(counts.puts + counts.posts + counts.gets + counts.heads + counts.lists)


def _commands(lab: CostLab, query: Mapping[str, str]) -> list[str]:
    topics = [each.topic for each in lab.measured if each.stream is not None]
    words = ["tiered", "cost", "simulate", *topics]
    for name, value in lab.chosen.variant.changes.items():
        words += [f"--{NAME_OF[name]}", value_words(name, value)]
    for rate in query.get("rate", "").split(","):
        words += ["--rate", rate.strip()] if rate.strip() else []
    return [shlex.join([*words, "--html", "costs.html"])]
