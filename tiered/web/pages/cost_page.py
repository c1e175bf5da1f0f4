"""The cost of other settings: bars in a terminal, a file without scripts or network, the cost lab.

The lab shows today's bill next to the bill of other settings, simulated from the topics' own history. Its controls are
a form; with the script (`lab.js`) they are sliders that update the part with the id ``results``. Topics are measured at
most once a minute and simulated on request.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import log

from local.errors import InvalidRequest
from policies.cost.prices import PriceTable
from policies.cost.scenarios import KINDS, BreakEven, ScenarioCost
from policies.cost.workload import OUTSIDE
from tiered.config.price_file import configured_prices
from tiered.config.units import format_bytes, format_count, format_dollars, format_ms
from tiered.cost.cost_history import Measured, measured_streams, read_rates
from tiered.cost.cost_simulation import (
    ALONG,
    AXES,
    FIELD_OF,
    FOR_EVER_MS,
    STEPS,
    CostLab,
    CostSimulation,
    class_word,
    cost_fields,
    cost_lab,
    read_scenario,
    shown,
    shown_value,
    value_words,
)
from tiered.manager.manager import LogManager
from tiered.web.charts import Line, Mark, bar, line_chart, text_bar
from tiered.web.html import (
    Child,
    Heading,
    Html,
    asset,
    button,
    choice,
    commands,
    document,
    field,
    figures,
    frame,
    link,
    numbers,
    table,
    tag,
)
from tiered.web.pages.manager_cache import DataLoader, Loaded, ManagerCache, PageDeadline, age_banner, age_facts

HERE = "/cost"
TOPICS_MAX = 3  # topics simulated at a time unless one is named
MEASURED_MS = 60_000  # how long a measurement stays valid for simulations
ANSWER_MS = 60_000
_MARKS = dict(zip(KINDS, "█▒░▓◆x─", strict=True))  # of the bars in a terminal
_NAMES = {kind: kind.replace("_", " ") for kind in KINDS}
_Basis = tuple[Sequence[Measured], int, PriceTable]  # measured topics, the number of the others, the prices


def chart_lines(simulation: CostSimulation, width: int) -> list[str]:
    """Return bars of dollars a month, scaled to the most expensive one, and a legend of the marks."""
    costs = [simulation.today, *simulation.found]
    labels = [shown(each.variant, is_short=True) for each in costs]
    dollars = [format_dollars(each.total) for each in costs]
    label_width = min(max(map(len, labels)), max(12, width // 2))
    dollars_width = max(map(len, dollars))
    room = max(8, width - label_width - dollars_width - 2)
    most = max(each.total for each in costs) or 1.0
    lines = []
    for cost, label, text in zip(costs, labels, dollars, strict=True):
        short = label if len(label) <= label_width else label[: label_width - 1] + "…"
        drawn = text_bar([(_MARKS[kind], getattr(cost, kind)) for kind in KINDS], most, room)
        lines.append(f"{short:<{label_width}} {text:>{dollars_width}} {drawn}".rstrip())
    return [*lines, *_legend(_used_kinds(costs), width)]


def _used_kinds(costs: Sequence[ScenarioCost]) -> list[str]:
    return [kind for kind in KINDS if any(getattr(each, kind) > 0 for each in costs)]


def _legend(kinds: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for kind in kinds:
        word = f"{_MARKS[kind]} {_NAMES[kind]}"
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
    """Return the page. Every figure of a bar is also in its row, readable without colours."""
    prices, today = simulation.prices, simulation.today
    costs = [(shown(each.variant), each) for each in (today, *simulation.found)]
    more = (
        _figure("Saved", lambda cost: format_dollars(today.total - cost.total)),
        _figure("In both tiers", lambda cost: format_dollars(cost.double)),
        _figure("When idle", lambda cost: format_dollars(cost.idle)),
        _figure("In the bucket", lambda cost: format_bytes(round(cost.stored_bytes))),
        _figure("Requests", lambda cost: format_count(round(cost.counts.billed))),
    )
    sensitivities = [
        tag("li", tag("strong", shown(each)), f" saves {format_dollars(dollars)} a month")
        for each, dollars in simulation.largest_sensitivities
    ]
    basis = f"{prices.region}, prices of {prices.as_of}; simulated from the segments and requests of the topics."
    return document(
        "Cost simulation",
        tag("style", Html(asset("page.css"))),
        tag(
            "body",
            tag("h1", f"What {', '.join(simulation.topics)} would cost"),
            tag("p", f"Dollars a month. {basis}"),
            [tag("p", tag("strong", each.warning)) for each in simulation.measured if each.warning is not None],
            tag("h2", "The largest sensitivities"),
            tag("ol", sensitivities) if sensitivities else tag("p", "None of these changes saves money."),
            tag("h2", "Figures"),
            _kinds("Dollars a month by kind", costs, more),
            tag("h2", "Break-even"),
            _break_evens("Break-even points of storage classes and sizes", simulation.break_evens),
            tag("h2", "What it rests on"),
            tag("ul", [tag("li", f"{each.topic}: {'; '.join(each.basis)}") for each in simulation.measured]),
        ),
    )


def _figure(title: str, show: Callable[[ScenarioCost], str]) -> Heading:
    return Heading(title, is_number=True, cell=lambda row: show(row[1]))


def _kinds(caption: str, costs: Sequence[tuple[str, ScenarioCost]], more: Sequence[Heading] = ()) -> Html:
    most = max(cost.total for _, cost in costs) or 1.0
    kinds = _used_kinds([cost for _, cost in costs])
    headings = (
        Heading("Settings", cell=lambda row: row[0]),
        Heading("Share", cell=lambda row: bar([(f"k-{kind}", float(getattr(row[1], kind))) for kind in KINDS], most)),
        _figure("$ a month", lambda cost: format_dollars(cost.total)),
        *(_figure(_NAMES[kind], partial(_dollars_of, kind)) for kind in kinds),
        *more,
    )
    key = [
        tag("span", tag("span", "■", class_=f"key k-{kind}", aria_hidden="true"), f" {_NAMES[kind]} ") for kind in kinds
    ]
    return tag("div", table(caption, headings, costs), tag("p", key), id="kinds")


def _dollars_of(kind: str, cost: ScenarioCost) -> str:
    return format_dollars(getattr(cost, kind))


def _break_evens(caption: str, lines: Iterable[BreakEven]) -> Html:
    headings = (Heading("Between"), *numbers("Here", "Break-even"), Heading("So"))
    rows = ([each.what, number(each.value, each.unit), number(each.limit, each.unit), each.verdict] for each in lines)
    return tag("div", table(caption, headings, rows), id="lines")


class Laboratory:
    """The cost lab over a manager. Thread safe."""

    def __init__(self, cache: ManagerCache, loader: DataLoader, now_ms: Callable[[], int]) -> None:
        self._cache, self._loader, self._now_ms = cache, loader, now_ms

    def page(self, query: Mapping[str, str]) -> str:
        """Raises InvalidRequest for invalid settings, NotFound for an unknown topic."""
        deadline = self._loader.deadline()
        basis = self._measured(query, deadline)
        measured, left_out, _ = basis.value
        if not any(each.stream is not None for each in measured):
            note = age_banner(self._cache, basis, self._now_ms(), cache_ms=MEASURED_MS)
            why = [each.warning for each in measured if each.warning is not None]
            return nothing_page(basis.at_ms, query, why, note)
        loaded = self._lab(query, basis, deadline)
        note = age_banner(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS)
        return lab_page(loaded.value, query, loaded.at_ms, left_out, note)

    def facts(self, query: Mapping[str, str]) -> dict[str, object]:
        """The page's facts for programs. Also raises InvalidRequest if there is nothing to simulate."""
        deadline = self._loader.deadline()
        loaded = self._lab(query, self._measured(query, deadline), deadline)
        return {**age_facts(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS), **lab_facts(loaded.value)}

    def _lab(self, query: Mapping[str, str], basis: Loaded[_Basis], deadline: PageDeadline) -> Loaded[CostLab]:
        selection, along = read_scenario(query), _along(query)
        measured, _, prices = basis.value

        def read() -> CostLab:
            return cost_lab(measured, selection, prices, along=along)

        key = f"lab?{_topic(query)}&{query.get('rate', '')}&{along}&{selection}&{basis.at_ms}"
        loaded = self._loader.get(key, read, keep_ms=ANSWER_MS, deadline=deadline)
        return replace(loaded, read_ms=basis.data_ms)

    def _measured(self, query: Mapping[str, str], deadline: PageDeadline) -> Loaded[_Basis]:
        topic, rates_text = _topic(query), query.get("rate", "").strip()
        rates = read_rates(rates_text.split(",")) if rates_text else {}  # as ``--rate`` has them

        def read(manager: LogManager) -> _Basis:
            tiered = [each.name for each in manager.topics.all() if each.was_tiered]
            selected = [topic] if topic else largest_topics(manager, tiered)
            found = measured_streams(manager, self._now_ms(), selected, may_ask=False, rates=rates)
            return found, 0 if topic else len(tiered) - len(selected), configured_prices(manager.config)

        key = f"measured?{topic}&{sorted(rates.items(), key=str)}"
        return self._cache.load(self._loader, key, read, keep_ms=MEASURED_MS, deadline=deadline)


def largest_topics(manager: LogManager, names: Sequence[str]) -> list[str]:
    """Return the TOPICS_MAX largest topics by bytes in both tiers, from the manager's memory."""
    sizes = dict.fromkeys(names, 0)
    for held in manager.partitions.all(names):
        manifest = held.manifest()
        if manifest is not None:
            sizes[held.name.topic] += sum(each.stored_bytes for each in manifest.segments)
            sizes[held.name.topic] += sum(each.stored_bytes for each in manifest.pages)
        sizes[held.name.topic] += held.log.size_bytes
    return sorted(sorted(names), key=lambda name: -sizes[name])[:TOPICS_MAX]


def _topic(query: Mapping[str, str]) -> str:
    return query.get("topic", "").strip()


def _along(query: Mapping[str, str]) -> str:
    text = query.get("along", "")
    if not text:
        return ALONG[0]
    if text not in FIELD_OF:
        raise InvalidRequest("invalid setting to draw along", along=repr(text), known=",".join(FIELD_OF))
    return FIELD_OF[text]


def lab_page(lab: CostLab, query: Mapping[str, str], now_ms: int, left_out: int = 0, note: Child = None) -> str:
    """Return the page; `left_out` is the number of tiered topics that are not simulated."""
    topics = ", ".join(lab.topics)
    words = f"The monthly cost of {topics} under other settings, simulated from their segments and requests."
    rest = f" Smaller topics ({left_out:,}) are not included; name one to see it." if left_out else ""
    return frame(
        "Cost lab",
        HERE,
        now_ms,
        note,
        tag("p", words, rest),
        _form(lab, query),
        tag("section", _results(lab, query), id="results", aria_label="Results"),
        refresh_s=None,
        script="/lab.js",
    )


def nothing_page(now_ms: int, query: Mapping[str, str], why: Sequence[str], note: Child = None) -> str:
    """Return the page without anything to simulate; `why` has a line for each topic with stored data."""
    if why:
        form = _settings_form(_topic_fields(query), tag("div", button("Simulate"), class_="do"))
        lines = tag("ul", [tag("li", each) for each in why], id="nothing")
        return frame("Cost lab", HERE, now_ms, note, tag("p", "Nothing to simulate:"), lines, form)
    steps = commands(
        "tiered topic create orders -p 2 -X remote.storage.enable=true",
        "tiered append orders events.txt",
        "tiered run --once",
    )
    how = "The lab measures the data that tiered topics have stored. To begin:"
    words = "Nothing to simulate: no tiered topic has stored records yet."
    return frame("Cost lab", HERE, now_ms, note, tag("p", words, id="nothing"), how, steps)


def lab_facts(lab: CostLab) -> dict[str, object]:
    """Return the page's facts for programs."""

    def fields_of(cost: ScenarioCost) -> dict[str, object]:
        return {**cost_fields(cost), "requests_per_month": round(cost.counts.billed)}

    return {
        "prices": {"as_of": lab.prices.as_of, "region": lab.prices.region},
        "topics": lab.topics,
        "today": fields_of(lab.today),
        "chosen": fields_of(lab.chosen),
        "saved_dollars": lab.today.total - lab.chosen.total,
        "along": lab.along,
        "curve": [{"value": value, **fields_of(cost)} for value, cost in lab.curve],
        "curve_today": [{"value": value, **fields_of(cost)} for value, cost in lab.curve_today],
        "by_class": {
            name: [{"read_share": share, "dollars_per_month": cost.total} for share, cost in costs]
            for name, costs in lab.by_class.items()
        },
        "sensitivities": [{"changes": shown(each), "saved_dollars": dollars} for each, dollars in lab.sensitivities],
        "break_evens": [
            {**asdict(each), "value": None if each.value == float("inf") else each.value} for each in lab.break_evens
        ],
        "measured": [
            {"topic": each.topic, "basis": list(each.basis), "warning": each.warning} for each in lab.measured
        ],
    }


def _form(lab: CostLab, query: Mapping[str, str]) -> Html:
    asked_class = lab.chosen.variant.storage_class
    today = f"current ({class_word(str(lab.value_today('storage_class')))})"
    codecs = {"": f"current ({lab.value_today('compression')})", "none": "none", "zstd": "zstd"}
    classes = {"": today, **{class_word(name): name for name in lab.by_class}}
    again = tag("a", "Current", href=link(HERE, {name: query.get(name, "") for name in ("topic", "rate")}))
    along = {AXES[each].option: AXES[each].label for each in ALONG}
    return _settings_form(
        _topic_fields(query),
        [_slider(lab, name) for name in STEPS],
        choice("codec", AXES["compression"].label, codecs, lab.chosen.variant.compression or ""),
        choice("class", AXES["storage_class"].label, classes, "" if asked_class is None else class_word(asked_class)),
        choice("along", "Draw along", along, AXES[lab.along].option),
        tag("div", button("Simulate"), again, class_="do"),
        tag("p", "", id="lab-status", role="status", class_="faint"),
    )


def _settings_form(*controls: Child) -> Html:
    return tag("form", controls, method="get", action=HERE, id="lab", aria_label="Settings to try", class_="fields")


def _topic_fields(query: Mapping[str, str]) -> list[Html]:
    return [
        field("topic", "Topic", query.get("topic", ""), example=f"the largest {TOPICS_MAX}"),
        field("rate", "Arrival rate", query.get("rate", ""), example="measured; 20GiB/d"),
    ]


def _slider(lab: CostLab, name: str) -> Html:
    """The steps in order, with today's value among them as ``""``."""
    today, selection = lab.value_today(name), getattr(lab.chosen.variant, name)
    today_rank = _rank(today) if isinstance(today, (int, float)) else float("inf")
    labels = {_rank(value): (value_words(name, value), shown_value(name, value)) for value in STEPS[name]}
    if selection is None:
        labels.pop(today_rank, None)
    else:
        labels[_rank(selection)] = (value_words(name, selection), shown_value(name, selection))
    # Today's value precedes an equal one that was requested.
    ranked = sorted([(today_rank, 0, ("", f"{shown_value(name, today)} (current)")),
                     *((rank, 1, label) for rank, label in labels.items())])  # fmt: skip
    selected = "" if selection is None else value_words(name, selection)
    return choice(AXES[name].option, AXES[name].label, dict(label for *_, label in ranked), selected, class_="slider")


def _rank(value: int | float) -> float:
    return float("inf") if value == FOR_EVER_MS else float(value)


def _results(lab: CostLab, query: Mapping[str, str]) -> list[Child]:
    return [
        *(tag("p", each.warning, class_="trouble") for each in lab.measured if each.warning is not None),
        _figures(lab),
        tag("h2", "The largest sensitivities", id="sensitivities"),
        _sensitivities(lab, query),
        tag("h2", "Cost by kind"),
        _kinds("Dollars a month by kind, now and with the changes", [("Now", lab.today), ("Chosen", lab.chosen)]),
        tag("div", _curve(lab), _classes(lab), class_="charts"),
        tag("h2", "Break-even lines"),
        _break_evens("Break-even points of storage classes and sizes, with the changes", lab.break_evens),
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
            "Requests a month": format_count(round(then.counts.billed)),
        }
    )


def _sensitivities(lab: CostLab, query: Mapping[str, str]) -> Html:
    found = lab.largest_sensitivities
    if not found:
        return tag("p", "None of the single changes saves money.")
    items = []
    for variant, dollars in found:
        selection = {name: value for name, value in query.items() if name in ("topic", "along", "rate")}
        selection |= {AXES[name].option: value_words(name, value) for name, value in variant.changes.items()}
        words = f" saves $ {format_dollars(dollars)} a month"
        items.append(tag("li", tag("a", shown(variant), href=link(HERE, selection)), words))
    return tag("ol", items)


def _curve(lab: CostLab) -> Html:
    name = AXES[lab.along].label
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
    headings = [Heading(name), *numbers("$ with the changes", *(["$ others unchanged"] if is_other else []))]
    rows: list[list[Child]] = [
        [shown_value(lab.along, value), format_dollars(cost.total), *([format_dollars(now.total)] if is_other else [])]
        for (value, cost), (_, now) in zip(lab.curve, lab.curve_today, strict=True)
    ]
    return tag("div", tag("h2", f"Along {name.lower()}"), _drawing(chart), _figures_of(words, headings, rows))


def _drawing(chart: Html) -> Html:
    return tag("div", chart, class_="drawing", tabindex=0, role="group", aria_label="Chart")


def _figures_of(words: str, headings: Sequence[Heading], rows: Iterable[Sequence[Child]]) -> Html:
    return tag("details", tag("summary", "The figures of this chart"), table(words, headings, rows))


def _at(value: int | float) -> float:
    return log(max(1.0, float(value)))


def _classes(lab: CostLab) -> Html:
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
    headings = [Heading("Class"), *numbers(*(f"{s:.0%} read" for s, _ in lab.by_class[names[0]]))]
    rows: list[list[Child]] = [
        [name, *(format_dollars(cost.total) for _, cost in costs)] for name, costs in lab.by_class.items()
    ]
    upright = tag("p", "Vertical lines: the read share at which reads cost as much as a class saves.", class_="faint")
    return tag("div", tag("h2", "Storage classes"), _drawing(chart), upright, _figures_of(words, headings, rows))


def _merged(rules: list[tuple[float, str]]) -> list[tuple[float, str]]:
    found: dict[float, str] = {}
    for at, name in rules:
        key = round(at, 2)
        found[key] = f"{found[key]}, {name}" if key in found else name
    return sorted(found.items())


def _commands(lab: CostLab, query: Mapping[str, str]) -> list[str]:
    words = ["tiered", "cost", "simulate", *lab.topics]
    for name, value in lab.chosen.variant.changes.items():
        words += [f"--{AXES[name].option}", value_words(name, value)]
    for rate in query.get("rate", "").split(","):
        words += ["--rate", rate.strip()] if rate.strip() else []
    return [shlex.join([*words, "--html", "costs.html"])]
