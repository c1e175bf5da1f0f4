"""The cost lab: today's bill next to the bill of other settings, simulated from the topics' own history.

The controls are a form, so all works without the script. With the script they are sliders, and results update as they
move (`lab.js`). Only the part with the id ``results`` changes then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.cost.scenarios import KINDS, ScenarioCost
from tiered.cost.cost_lab import ALONG, FOR_EVER_MS, NAME_OF, STEPS, CostLab
from tiered.cost.cost_simulation import shown
from tiered.web.html import Child, Html, tag
from tiered.web.pages.forms import button, choice, field
from tiered.web.pages.lab_results import request_count, results
from tiered.web.pages.lab_words import HERE, LABELS, class_word, shown_value, value_words
from tiered.web.pages.parts import commands, frame, link

TOPICS_MAX = 3  # topics simulated at a time unless one is named


def lab_page(lab: CostLab, query: Mapping[str, str], now_ms: int, left_out: int = 0, note: Child = None) -> str:
    """The page; `left_out` is the number of tiered topics that are not simulated."""
    topics = ", ".join(each.topic for each in lab.measured if each.stream is not None)
    words = f"The monthly cost of {topics} under other settings, simulated from their segments and requests."
    rest = f" Smaller topics ({left_out:,}) are not included; name one to see it." if left_out else ""
    return frame(
        "Cost lab",
        HERE,
        now_ms,
        note,
        tag("p", words, rest),
        _form(lab, query),
        tag("section", results(lab, query), id="results", aria_label="Results"),
        refresh_s=None,
        script="/lab.js",
    )


def nothing_page(now_ms: int, query: Mapping[str, str], why: Sequence[str], note: Child = None) -> str:
    """The page without anything to simulate; `why` has a line for each topic with stored data."""
    if why:
        asked = tag(
            "form", _asked_of(query), tag("div", button("Simulate"), class_="do"), method="get", action=HERE,
            id="lab", aria_label='Settings to try', class_="fields",
        )  # fmt: skip
        lines = tag("ul", [tag("li", each) for each in why], id="nothing")
        return frame("Cost lab", HERE, now_ms, note, tag("p", "Nothing to simulate:"), lines, asked)
    steps = commands(
        "tiered topic create orders -p 2 -X remote.storage.enable=true",
        "tiered append orders events.txt",
        "tiered run --once",
    )
    how = "The lab measures the data that tiered topics have stored. To begin:"
    words = "Nothing to simulate: no tiered topic has stored records yet."
    return frame("Cost lab", HERE, now_ms, note, tag("p", words, id="nothing"), how, steps)


def lab_facts(lab: CostLab) -> dict[str, object]:
    """The same as facts for programs and other charts."""

    def drawn(cost: ScenarioCost) -> dict[str, object]:
        return {
            "changes": shown(cost.variant),
            "dollars_per_month": cost.total,
            **{f"{kind}_dollars": getattr(cost, kind) for kind in KINDS},
            "double_storage_dollars": cost.double,
            "idle_dollars": cost.idle,
            "stored_bytes": round(cost.stored_bytes),
            "local_bytes": round(cost.local_bytes),
            "objects": round(cost.objects),
            "requests_per_month": request_count(cost),
        }

    return {
        "prices": {"as_of": lab.prices.as_of, "region": lab.prices.region},
        "topics": [each.topic for each in lab.measured if each.stream is not None],
        "today": drawn(lab.today),
        "chosen": drawn(lab.chosen),
        "saved_dollars": lab.today.total - lab.chosen.total,
        "along": lab.along,
        "curve": [{"value": value, **drawn(cost)} for value, cost in lab.curve],
        "curve_today": [{"value": value, **drawn(cost)} for value, cost in lab.curve_today],
        "by_class": {
            name: [{"read_share": share, "dollars_per_month": cost.total} for share, cost in costs]
            for name, costs in lab.by_class.items()
        },
        "sensitivities": [{"changes": shown(each), "saved_dollars": dollars} for each, dollars in lab.sensitivities],
        "break_evens": [
            {
                "what": each.what,
                "value": None if each.value == float("inf") else each.value,
                "limit": each.limit,
                "unit": each.unit,
                "verdict": each.verdict,
            }
            for each in lab.break_evens
        ],
        "measured": [
            {"topic": each.topic, "basis": list(each.basis), "warning": each.warning} for each in lab.measured
        ],
    }


# -- controls ------------------------------------------------------------------------------------------------------


def _form(lab: CostLab, query: Mapping[str, str]) -> Html:
    sliders = [_slider(lab, field_, query) for field_ in LABELS]
    asked_class = lab.chosen.variant.storage_class
    today = f"current ({class_word(str(lab.value_today('storage_class')))})"
    codec = {"": f"current ({lab.value_today('compression')})", "none": "none", "zstd": "zstd"}
    again = tag("a", "Current", href=link(HERE, {name: query.get(name, "") for name in ("topic", "rate")}))
    along = {NAME_OF[each]: LABELS[each] for each in ALONG}
    return tag(
        "form",
        _asked_of(query),
        sliders,
        choice("codec", "Codec in the bucket", codec, lab.chosen.variant.compression or ""),
        choice(
            "class",
            "Storage class",
            {"": today, **{class_word(name): name for name in lab.by_class}},
            "" if asked_class is None else class_word(asked_class),
        ),
        choice("along", "Draw along", along, NAME_OF[lab.along]),
        tag("div", button("Simulate"), again, class_="do"),
        tag("p", "", id="lab-status", role="status", class_="faint"),
        method="get",
        action=HERE,
        id="lab",
        aria_label="Settings to try",
        class_="fields",
    )


def _asked_of(query: Mapping[str, str]) -> list[Html]:
    """The topic, and its rate if it cannot be measured."""
    return [
        field("topic", "Topic", query.get("topic", ""), example=f"the largest {TOPICS_MAX}"),
        field("rate", "Arrival rate", query.get("rate", ""), example="measured; 20GiB/d"),
    ]


def _slider(lab: CostLab, field_: str, query: Mapping[str, str]) -> Html:
    """The steps in order, with today's value among them; ``""`` is today's value."""
    today, asked = lab.value_today(field_), getattr(lab.chosen.variant, field_)
    values = {_rank(value): value for value in STEPS[field_]}
    if asked is not None:
        values[_rank(asked)] = asked
    options: dict[str, str] = {}
    now = _rank(today) if isinstance(today, (int, float)) else float("inf")
    is_told = False
    for rank in sorted(values):
        if not is_told and now <= rank:
            options[""], is_told = f"{shown_value(field_, today)} (current)", True
        if rank != now or asked is not None:
            options[value_words(field_, values[rank])] = shown_value(field_, values[rank])
    if not is_told:
        options[""] = f"{shown_value(field_, today)} (current)"
    chosen = "" if asked is None else value_words(field_, asked)
    return choice(NAME_OF[field_], LABELS[field_], options, chosen, class_="slider")


def _rank(value: int | float) -> float:
    """Sort key; unlimited is last."""
    return float("inf") if value == FOR_EVER_MS else float(value)
