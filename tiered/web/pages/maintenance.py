"""The pages of maintenance: the plan and the state of compaction. Read-only.

The query of a plan can give another moment, one topic, and other settings; the page ends with the equivalent command
line.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from local.cleaner.cleaner_history import CleaningRun
from local.errors import InvalidRequest
from policies.cleaner_advice import Advice
from policies.cost.plan_cost import DecisionCost
from tiered.config.units import parse_duration
from tiered.manager.manager import LogManager
from tiered.node.problems import shared_places, unread_rows
from tiered.plans.planning import VERBS, PricedPlan, decision_row, kind_of, known_amount, total_rows
from tiered.status.compaction_status import (
    CleanerMetrics,
    LogCleaningStatus,
    cleaner_metrics,
    compaction_advice,
    compaction_status,
    log_row,
)
from tiered.status.status_report import Row, causes, deferral_rows, ends
from tiered.web.charts import bar
from tiered.web.html import DataAge, ListPage, render

MOMENTS = {"": "now", "1d": "in a day", "7d": "in a week", "30d": "in 30 days"}
SETTINGS = {  # with an example
    "retention.ms": "7d",
    "retention.bytes": "50GiB",
    "local.retention.ms": "6h",
    "local.retention.bytes": "5GiB",
}
RUNS_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The parameters of a plan. `after_ms` counts from now; `settings` are overrides, like those of ``-X``."""

    topic: str = ""
    after: str = ""
    after_ms: int = 0
    kind: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Selection:
        """Parse a query. Raises InvalidRequest for an invalid moment; does not check the settings."""
        settings = tuple((name, query[name].strip()) for name in SETTINGS if query.get(name, "").strip())
        kind, after = query.get("kind", ""), query.get("after", "").strip()
        after_ms = parse_duration(after) if after else 0
        if after_ms is None or after_ms < 0:
            raise InvalidRequest("invalid delay, it is not a duration such as 7d", after=repr(after))
        return cls(
            topic=query.get("topic", "").strip(),
            after=after,
            after_ms=after_ms,
            kind=kind if kind in VERBS else "",
            settings=settings,
        )

    @property
    def query(self) -> dict[str, str]:
        return {"topic": self.topic, "after": self.after, "kind": self.kind, **dict(self.settings)}

    @property
    def key(self) -> str:
        """Return a key that is equal for equal plans; `kind` does not count."""
        return "&".join([self.topic, self.after, *(f"{name}={value}" for name, value in self.settings)])


def plan_page(
    priced: PricedPlan, selection: Selection, query: Mapping[str, str], now_ms: int, age: DataAge | None = None
) -> str:
    cost, decisions = priced.cost, _decisions(priced, selection, query)
    after = selection.after
    return render(
        "plan.html",
        "Plan",
        "/plan",
        now_ms,
        age,
        priced=priced,
        selection=selection,
        settings=SETTINGS,
        moments=MOMENTS if after in MOMENTS else {**MOMENTS, after: f"in {after}"},
        known_amount=known_amount,
        requests=round(sum(cost.sum_of(name) for name in ("puts", "gets", "lists", "deletes"))),
        totals=total_rows(cost.lines),
        decisions=decisions,
        rows=list(map(decision_row, decisions.rows)),
        kind_verb=VERBS[selection.kind][1] if selection.kind else "",
        commands=_commands(selection),
        deferrals=[
            (each, shared_places(each.partitions), ends(each, priced.plan.now_ms))
            for each in causes(priced.plan.deferrals)
        ],
    )


def plan_facts(priced: PricedPlan, selection: Selection, query: Mapping[str, str]) -> dict[str, object]:
    decisions = _decisions(priced, selection, query)
    return {
        "prices": {"as_of": priced.prices.as_of, "region": priced.prices.region} if priced.prices is not None else None,
        "at_ms": priced.plan.now_ms,
        **priced.totals(),
        "missing": unread_rows(priced.missing),
        "unread": [str(each) for each in priced.unread],
        "problems": {str(name): text for name, text in priced.problems.items()},
        "deferrals": deferral_rows(priced.plan.deferrals),
        "totals": [_plain(row) for row in total_rows(priced.cost.lines)],
        "decisions": [_plain(decision_row(each)) for each in decisions.rows],
        "page": decisions.number,
        "pages": decisions.last,
    }


def _decisions(priced: PricedPlan, selection: Selection, query: Mapping[str, str]) -> ListPage[DecisionCost]:
    return ListPage([each for each in priced.cost.lines if selection.kind in ("", kind_of(each))], query)


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "sign"}


def _commands(selection: Selection) -> Sequence[str]:
    words = ["tiered", "plan", *([selection.topic] if selection.topic else [])]
    for name, value in selection.settings:
        words += ["-X", f"{name}={value}"]
    if selection.after:
        return (shlex.join([*words, "--at", f"+{selection.after}"]),)
    return shlex.join([*words, "--out", "plan.json"]), "tiered apply plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    logs: Sequence[LogCleaningStatus]
    metrics: CleanerMetrics
    advice: Sequence[Advice]
    runs: Sequence[CleaningRun]
    now_ms: int


def compaction_data(manager: LogManager, now_ms: int) -> Compaction:
    """Collect the state of compaction without a store request, dirtiest logs first."""
    found = compaction_status(manager, now_ms, may_ask=False).values()
    return Compaction(
        logs=sorted(found, key=lambda each: (each.uncleanable is None, -each.log.dirty_ratio, each.log.partition)),
        metrics=cleaner_metrics(manager, now_ms, may_ask=False),
        advice=compaction_advice(manager, now_ms, may_ask=False),
        runs=manager.cleaning.runs,
        now_ms=now_ms,
    )


def compaction_page(found: Compaction, query: Mapping[str, str], age: DataAge | None = None) -> str:
    logs = ListPage(found.logs, query)
    return render(
        "compaction.html",
        "Compaction",
        "/compaction",
        found.now_ms,
        age,
        state=found,
        logs=logs,
        rows=[log_row(each, found.now_ms) for each in logs.rows],
        bar=bar,
        RUNS_SHOWN=RUNS_SHOWN,
    )


def compaction_facts(found: Compaction, query: Mapping[str, str]) -> dict[str, object]:
    logs = ListPage(found.logs, query)
    return {
        "now_ms": found.now_ms,
        "metrics": asdict(found.metrics),
        "advice": [
            {
                "rule": each.rule,
                "topic": each.partition.topic if each.partition is not None else None,
                "partition": each.partition.partition if each.partition is not None else None,
                "setting": each.setting,
                "text": each.text,
            }
            for each in found.advice
        ],
        "partitions": [log_row(each, found.now_ms) for each in logs.rows],
        "runs": [asdict(each) for each in found.runs[-RUNS_SHOWN:]],
        "page": logs.number,
        "pages": logs.last,
    }
