"""The cost of other settings: bars in a terminal, a file without scripts or network, the cost lab.

The lab's controls are a form; with the script (`lab.js`) they are sliders that update the part with the id ``results``.
Topics are measured at most once a minute and simulated on request.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import log

from local.errors import InvalidRequest
from policies.cost.prices import PriceTable
from policies.cost.scenarios import KINDS, Scenario, ScenarioCost
from policies.cost.workload import OUTSIDE
from tiered.config.price_file import configured_prices
from tiered.config.units import format_bytes, format_dollars, format_ms
from tiered.cost.cost_history import Measured, measured_streams, read_rates
from tiered.cost.cost_simulation import (
    ALONG,
    AXES,
    FIELD_OF,
    FOR_EVER_MS,
    READ_SHARES,
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
from tiered.web.charts import Line, bar, line_chart, text_bar
from tiered.web.html import REFRESH_S, DataAge, Html, asset, render, render_bare
from tiered.web.pages.manager_cache import DataLoader, Loaded, ManagerCache, data_age

HERE = "/cost"
TOPICS_MAX = 3  # topics simulated at a time unless one is named
MEASURED_MS = 60_000  # how long a measurement stays valid for simulations
ANSWER_MS = 60_000
_MARKS = dict(zip(KINDS, "█▒░▓◆x─", strict=True))  # of the bars in a terminal
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
        word = f"{_MARKS[kind]} {kind.replace('_', ' ')}"
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def number(value: float | None, unit: str) -> str:
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
    """Return the page of a simulation. Every figure of a bar is also in its row, readable without colours."""
    return render_bare(
        "cost_simulation.html",
        "Cost simulation",
        style=Html(asset("page.css")),
        simulation=simulation,
        sensitivities=[(shown(each), dollars) for each, dollars in simulation.largest_sensitivities],
        **_kinds([(shown(each.variant), each) for each in (simulation.today, *simulation.found)]),
        number=number,
    )


def _kinds(costs: Sequence[tuple[str, ScenarioCost]]) -> dict[str, object]:
    most = max(cost.total for _, cost in costs) or 1.0
    rows = [(name, cost, bar([(f"k-{kind}", getattr(cost, kind)) for kind in KINDS], most)) for name, cost in costs]
    return {"costs": rows, "kinds": _used_kinds([cost for _, cost in costs])}


class Laboratory:
    def __init__(self, cache: ManagerCache, loader: DataLoader, now_ms: Callable[[], int]) -> None:
        self._cache, self._loader, self._now_ms = cache, loader, now_ms

    def page(self, query: Mapping[str, str]) -> str:
        """Return the page. Raises InvalidRequest for invalid settings, NotFound for an unknown topic."""
        deadline = self._loader.deadline()
        basis = self._measured(query, deadline)
        measured, left_out, _ = basis.value
        if any(each.stream is not None for each in measured):
            loaded = self._lab(query, basis, deadline)
            age = data_age(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS)
            return lab_page(loaded.value, query, loaded.at_ms, left_out, age)
        age = data_age(self._cache, basis, self._now_ms(), cache_ms=MEASURED_MS)
        why = [each.warning for each in measured if each.warning is not None]  # a line for each topic with data
        return _page(query, basis.at_ms, age, lab=None, why=why)

    def facts(self, query: Mapping[str, str]) -> dict[str, object]:
        """The page's facts for programs. Also raises InvalidRequest if there is nothing to simulate."""
        deadline = self._loader.deadline()
        loaded = self._lab(query, self._measured(query, deadline), deadline)
        age = data_age(self._cache, loaded, self._now_ms(), cache_ms=MEASURED_MS)
        return {**asdict(age), **lab_facts(loaded.value)}

    def _lab(self, query: Mapping[str, str], basis: Loaded[_Basis], deadline: float) -> Loaded[CostLab]:
        selection, along = read_scenario(query), _along(query)
        measured, _, prices = basis.value
        key = f"lab?{_topic(query)}&{query.get('rate', '')}&{along}&{selection}&{basis.at_ms}"
        read = partial(cost_lab, measured, selection, prices, along=along)
        return replace(self._loader.get(key, read, keep_ms=ANSWER_MS, deadline=deadline), read_ms=basis.data_ms)

    def _measured(self, query: Mapping[str, str], deadline: float) -> Loaded[_Basis]:
        topic, rates_text = _topic(query), query.get("rate", "").strip()
        rates = read_rates(rates_text.split(",")) if rates_text else {}  # in the form of ``--rate``

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


def lab_page(lab: CostLab, query: Mapping[str, str], now_ms: int, left_out: int = 0, age: DataAge | None = None) -> str:
    codecs = {"": f"current ({lab.value_today('compression')})", "none": "none", "zstd": "zstd"}
    classes = {"": f"current ({class_word(str(lab.value_today('storage_class')))})"}
    classes |= {class_word(name): name for name in lab.by_class}
    chosen, along = lab.chosen.variant, {AXES[each].option: AXES[each].label for each in ALONG}
    return _page(
        query,
        now_ms,
        age,
        lab=lab,
        left_out=left_out,
        sliders=[_slider(lab, name) for name in STEPS],
        choices=[
            ("codec", AXES["compression"].label, codecs, chosen.compression or ""),
            ("class", AXES["storage_class"].label, classes, class_word(chosen.storage_class or "")),
            ("along", "Draw along", along, AXES[lab.along].option),
        ],
        sensitivities=[(shown(each), dollars, _selection(each, query)) for each, dollars in lab.largest_sensitivities],
        **_kinds([("Now", lab.today), ("Chosen", lab.chosen)]),
        charts=[_curve(lab), _classes(lab)],
        number=number,
        command=_command(lab, query),
        outside=OUTSIDE,
    )


def _page(query: Mapping[str, str], now_ms: int, age: DataAge | None, **facts: object) -> str:
    script = "/lab.js" if facts["lab"] is not None else None
    refresh_s = None if script is not None else REFRESH_S
    facts |= {"query": query, "topics_max": TOPICS_MAX}
    return render("cost_lab.html", "Cost lab", HERE, now_ms, age, refresh_s=refresh_s, script=script, **facts)


def lab_facts(lab: CostLab) -> dict[str, object]:

    def fields_of(cost: ScenarioCost) -> dict[str, object]:
        return {**cost_fields(cost), "requests_per_month": round(cost.counts.billed)}

    curves = {"curve": lab.curve, "curve_today": lab.curve_today}
    return {
        "prices": {"as_of": lab.prices.as_of, "region": lab.prices.region},
        "topics": lab.topics,
        "today": fields_of(lab.today),
        "chosen": fields_of(lab.chosen),
        "saved_dollars": lab.today.total - lab.chosen.total,
        "along": lab.along,
        **{name: [{"value": at, **fields_of(cost)} for at, cost in curve] for name, curve in curves.items()},
        "by_class": {
            name: [{"read_share": share, "dollars_per_month": cost.total} for share, cost in costs]
            for name, costs in lab.by_class.items()
        },
        "sensitivities": [{"changes": shown(each), "saved_dollars": dollars} for each, dollars in lab.sensitivities],
        "break_evens": [{**asdict(each), "value": each.known_value} for each in lab.break_evens],
        "measured": [{"topic": of.topic, "basis": list(of.basis), "warning": of.warning} for of in lab.measured],
    }


def _slider(lab: CostLab, name: str) -> tuple[str, str, dict[str, str], str]:
    """Return option, label, steps in order with today's value among them as ``""``, and the selected one."""
    today, selection = lab.value_today(name), getattr(lab.chosen.variant, name)
    values = {*STEPS[name], selection} - {None} if selection is not None else {*STEPS[name]} - {today}
    # Today's value precedes an equal one that was requested.
    options = [(today, "", f"{shown_value(name, today)} (current)")]
    options += [(value, value_words(name, value), shown_value(name, value)) for value in values]
    options.sort(key=lambda each: (each[0] == FOR_EVER_MS, each[0], each[1] != ""))
    labels = {value: label for _, value, label in options}
    selected = "" if selection is None else value_words(name, selection)
    return AXES[name].option, AXES[name].label, labels, selected


def _selection(variant: Scenario, query: Mapping[str, str]) -> dict[str, str]:
    selection = {name: value for name, value in query.items() if name in ("topic", "along", "rate")}
    return selection | {AXES[name].option: value_words(name, value) for name, value in variant.changes.items()}


def _curve(lab: CostLab) -> dict[str, object]:
    name, chosen = AXES[lab.along].label, lab.chosen_at
    curves = {"with the changes": lab.curve}
    if any(field_ != lab.along for field_ in lab.chosen.variant.changes):
        curves["others unchanged"] = lab.curve_today
    lines = [Line(name=word, points=[(_at(at), cost.total) for at, cost in each]) for word, each in curves.items()]
    marks = []
    if chosen is not None and chosen != FOR_EVER_MS:
        marks.append((_at(chosen), lab.chosen.total, "with the changes"))
    by_cost = sorted(lab.curve, key=lambda each: each[1].total)
    ends = (by_cost[0], by_cost[-1])
    least, most = (f"{format_dollars(cost.total)} at {shown_value(lab.along, value)}" for value, cost in ends)
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
    rows = [
        (shown_value(lab.along, points[0][0]), [cost for _, cost in points])
        for points in zip(*curves.values(), strict=True)
    ]
    names = [name, *(f"$ {word}" for word in curves)]
    return {"title": f"Along {name.lower()}", "chart": chart, "words": words, "names": names, "rows": rows}


def _at(value: int | float) -> float:
    return log(max(1.0, float(value)))


def _classes(lab: CostLab) -> dict[str, object]:
    dollars = {name: {share: cost.total for share, cost in costs} for name, costs in lab.by_class.items()}
    names = [name for name in dollars if name != "EXPRESS_ONEZONE"]  # so expensive that it would hide all others
    lines = [Line(name=class_word(name), points=list(dollars[name].items())) for name in names]
    rules: dict[float, str] = {}
    for each in lab.break_evens:
        if each.unit == "share" and each.limit is not None:
            at, name = round(each.limit, 2), class_word(each.what.partition(":")[0])
            rules[at] = f"{rules[at]}, {name}" if at in rules else name
    share = lab.streams[0].read_share if lab.chosen.variant.read_share is None else lab.chosen.variant.read_share
    best = {s: min(names, key=lambda name: dollars[name][s]) for s in READ_SHARES}
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
        [(s, f"{s:.0%}") for s in READ_SHARES],
        x_name="share of the data read in a month",
        y_name="$ a month",
        marks=[(share, lab.chosen.total, "here")] if share <= much else [],
        rules=sorted(rules.items()),
    )
    return {
        "title": "Storage classes",
        "chart": chart,
        "words": words,
        "names": ["Class", *(f"{s:.0%} read" for s in READ_SHARES)],
        "rows": [(name, [cost for _, cost in costs]) for name, costs in lab.by_class.items()],
        "note": "Vertical lines: the read share at which reads cost as much as a class saves.",
    }


def _command(lab: CostLab, query: Mapping[str, str]) -> str:
    words = ["tiered", "cost", "simulate", *lab.topics]
    for name, value in lab.chosen.variant.changes.items():
        words += [f"--{AXES[name].option}", value_words(name, value)]
    for rate in query.get("rate", "").split(","):
        words += ["--rate", rate.strip()] if rate.strip() else []
    return shlex.join([*words, "--html", "costs.html"])
