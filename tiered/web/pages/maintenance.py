"""The pages of maintenance: the plan and the state of compaction. Read-only.

The query of a plan can give another moment, one topic, and other settings; the page ends with the equivalent command
line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from local.cleaner.cleaner_history import CleaningRun
from local.errors import InvalidRequest
from local.names import TopicPartition
from policies.cleaner_advice import Advice
from tiered.config.units import counted, format_bytes, format_count, format_dollars, format_ms, parse_duration
from tiered.manager.manager import LogManager
from tiered.node.problems import shared_places, unread_rows
from tiered.plans.planning import VERBS, PricedPlan, Row, decision_row, kind_of, total_rows
from tiered.status.compaction_status import (
    CleanerMetrics,
    LogCleaningStatus,
    cleaner_metrics,
    compaction_advice,
    compaction_status,
    log_row,
)
from tiered.status.status_report import causes, deferral_rows, ends
from tiered.web.charts import bar
from tiered.web.html import (
    Child,
    Heading,
    Html,
    button,
    choice,
    commands,
    field,
    figure,
    figures,
    frame,
    lasted,
    link,
    page_count,
    paged,
    pager,
    partition_path,
    stamp,
    table,
    tag,
    topic_path,
)
from tiered.web.pages.overview import NOT_READ

HERE = "/plan"
MOMENTS = {"": "now", "1d": "in a day", "7d": "in a week", "30d": "in 30 days"}
SETTINGS = ("retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes")
_SIGNS = {"+": "makes", "-": "saves", "~": "changes"}
COMPACTION = "/compaction"
RUNS_SHOWN = 30
ADVICE_SHOWN = 20
_LogRow = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The parameters of a plan. `after_ms` counts from now; `settings` are overrides as of ``-X``."""

    topic: str = ""
    after: str = ""
    kind: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Selection:
        """Parse a query. Raises InvalidRequest for an invalid moment. The user of the settings checks them."""
        settings = tuple((name, query[name].strip()) for name in SETTINGS if query.get(name, "").strip())
        kind = query.get("kind", "")
        found = cls(
            topic=query.get("topic", "").strip(),
            after=query.get("after", "").strip(),
            kind=kind if kind in VERBS else "",
            settings=settings,
        )
        if found.after_ms is None:
            raise InvalidRequest("invalid delay, it is not a duration such as 7d", after=repr(found.after))
        return found

    @property
    def after_ms(self) -> int | None:
        if not self.after:
            return 0
        value = parse_duration(self.after)
        return value if value is not None and value >= 0 else None

    @property
    def topics(self) -> list[str] | None:
        return [self.topic] if self.topic else None

    @property
    def query(self) -> dict[str, str]:
        return {"topic": self.topic, "after": self.after, "kind": self.kind, **dict(self.settings)}

    @property
    def key(self) -> str:
        """Equal for equal plans."""
        return "&".join([self.topic, self.after, *(f"{name}={value}" for name, value in self.settings)])


def plan_page(
    priced: PricedPlan, selection: Selection, query: Mapping[str, str], now_ms: int, note: Child = None
) -> str:
    """Return the page; `note` is shown above the plan."""
    lines = [each for each in priced.cost.lines if selection.kind in ("", kind_of(each))]
    page, some = paged(lines, query)
    found: list[Child] = [note, _left_out(priced), _form(selection), _sums(priced)]
    if priced.plan.is_empty:
        words = "Nothing to do for the other partitions." if priced.missing else "Nothing to do."
        found.append(tag("p", words, id="nothing"))
    else:
        found += [
            tag("h2", "By kind"),
            table("Next maintenance round", _TOTALS, _totals(priced, selection)),
            tag("h2", "Decisions"),
            table(_caption(len(lines), selection), _DECISIONS, map(decision_row, some)),
            pager(HERE, selection.query, page, len(lines)),
            tag("h2", "Commands"),
            tag("p", "This page changes nothing. The running manager applies due decisions; by command:"),
            commands(*_commands(selection)),
        ]
    found += _put_off(priced)
    return frame("Plan", HERE, now_ms, found, tag("p", _fine_print(priced), class_="faint"))


def plan_facts(priced: PricedPlan, selection: Selection, query: Mapping[str, str]) -> dict[str, object]:
    """Return the page's facts for programs, a page of decisions at a time."""
    lines = [each for each in priced.cost.lines if selection.kind in ("", kind_of(each))]
    page, some = paged(lines, query)
    cost = priced.cost
    return {
        "prices": {"as_of": priced.prices.as_of, "region": priced.prices.region} if priced.prices is not None else None,
        "at_ms": priced.plan.now_ms,
        **priced.totals(),
        "missing": unread_rows(priced.missing),
        "unread": [str(each) for each in priced.unread],
        "problems": {str(name): text for name, text in priced.problems.items()},
        "deferrals": deferral_rows(priced.plan.deferrals),
        "totals": [_plain(row) for row in total_rows(cost.lines)],
        "decisions": [_plain(decision_row(each)) for each in some],
        "page": page,
        "pages": page_count(len(lines)),
    }


def _totals(priced: PricedPlan, selection: Selection) -> list[Row]:
    return [
        {
            **row,
            "href": link(HERE, {**selection.query, "kind": str(row["decision"])}),
            "is_selected": row["decision"] == selection.kind,
        }
        for row in total_rows(priced.cost.lines)
    ]


def _put_off(priced: PricedPlan) -> list[Child]:
    found = causes(priced.plan.deferrals)
    if not found:
        return []
    headings = (*_DEFERRALS, Heading("Ends", cell=lambda each: ends(each, priced.plan.now_ms) or "-"))
    return [tag("h2", "Not cleanable yet"), table("Deferrals, with their reasons", headings, found)]


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "sign"}


def _form(selection: Selection) -> Html:
    names = {"retention.ms": "7d", "retention.bytes": "50GiB", "local.retention.ms": "6h"}
    given = dict(selection.settings)
    inputs = [
        field(name.replace(".", "-"), name, given.get(name, ""), name=name, example=names.get(name, "5GiB"))
        for name in SETTINGS
    ]
    kind = tag("input", type="hidden", name="kind", value=selection.kind) if selection.kind else None
    again = tag("a", "Reset", href=HERE) if any(selection.query.values()) else None
    moments = MOMENTS if selection.after in MOMENTS else {**MOMENTS, selection.after: f"in {selection.after}"}
    return tag(
        "form",
        field("topic", "Topic", selection.topic, example="all"),
        choice("after", "When", moments, selection.after),
        inputs,
        kind,
        tag("div", button("Plan"), again, class_="do"),
        method="get",
        action=HERE,
        aria_label="Options of the plan",
        class_="fields",
    )


def _sums(priced: PricedPlan) -> Html:
    cost = priced.cost
    change = cost.then_dollars - cost.now_dollars
    if priced.missing:
        now = priced.totals()["now_disk_bytes"]
        names = ("$ a month now", "$ a month after", "$ once", "Bucket now", "Bucket after", "Disk after")
        known = {"Decisions": f"{format_count(len(cost.lines))} known"}
        return figures({**known, **dict.fromkeys(names, NOT_READ), "Disk now": _known_bytes(now)})
    return figures(
        {
            "Decisions": format_count(len(cost.lines)),
            "$ a month now": _dollars(cost.now_dollars),
            "$ a month after": f"{_dollars(cost.then_dollars)} ({_signed(change)})",
            "$ once": _dollars(cost.dollars),
            "Requests": format_count(round(sum(cost.sum_of(name) for name in ("puts", "gets", "lists", "deletes")))),
            "Uploaded": format_bytes(round(cost.sum_of("bytes_in"))),
            "Bucket now": format_bytes(cost.now_bytes),
            "Bucket after": format_bytes(cost.then_bytes),
            "Disk now": format_bytes(cost.now_disk_bytes),
            "Disk after": format_bytes(cost.then_disk_bytes),
        }
    )


def _known_bytes(size: float | None) -> str:
    return NOT_READ if size is None else format_bytes(round(size))


def _left_out(priced: PricedPlan) -> list[Html]:
    found = []
    if priced.problems:
        some = ", ".join(map(str, sorted(priced.problems)[:3]))
        words = f"{counted(len(priced.problems), 'partition')} with problems ({some}): planned decisions may fail. "
        found.append(tag("div", words, tag("a", "Troubles", href="/troubles"), class_="trouble"))
    if priced.unread:
        some = ", ".join(map(str, priced.unread[:3]))
        words = (
            f"Old segment entries of {counted(len(priced.unread), 'partition')} ({some}) are in "
            "manifest pages that this page does not read: more may expire than is shown. The command "
            "tiered plan reads them."
        )
        found.append(tag("p", words, id="unread"))
    return found


def _sign(row: Row) -> Html:
    sign = str(row["sign"])
    return tag("span", sign, " ", class_="sign", title=_SIGNS[sign])


def _caption(count: int, selection: Selection) -> Html | str:
    if not selection.kind:
        return f"{counted(count, 'decision')}, in order"
    return f"{counted(count, 'decision')}: {VERBS[selection.kind][1]}"


def _commands(selection: Selection) -> Sequence[str]:
    words = ["tiered", "plan", *([selection.topic] if selection.topic else [])]
    for name, value in selection.settings:
        words += ["-X", f"{name}={value}"]
    if selection.after:
        return (shlex.join([*words, "--at", f"+{selection.after}"]),)
    return shlex.join([*words, "--out", "plan.json"]), "tiered apply plan.json"


def _dollars(value: object) -> str:
    return format_dollars(value) if isinstance(value, int | float) and not isnan(value) else "-"


def _signed(value: object) -> str:
    if not isinstance(value, int | float) or isnan(value):
        return "-"
    sign = "+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else ""
    return f"{sign}{format_dollars(abs(value))}"


def _fine_print(priced: PricedPlan) -> str:
    signs = ", ".join(f"{sign} {word}" for sign, word in _SIGNS.items())
    prices, dollars = priced.prices, "Dollars are not shown, because the price file (cost.prices) is unreadable."
    if prices is not None:
        dollars = f"Dollars a month are of storage in the bucket; {prices.region}, prices of {prices.as_of}."
    moment = f"Planned for {stamp(priced.plan.now_ms)}, if nothing is appended or changed until then."
    return f"{moment} {signs}. {dollars}"


_AMOUNTS = (
    figure("Bytes", "size_bytes", format_bytes),
    figure("Requests", "requests"),
    Heading("$ once", is_number=True, cell=lambda row: _dollars(row["once"])),
    Heading("$ a month", is_number=True, cell=lambda row: _signed(row["dollars_per_month"])),
)
_DECISIONS = (
    Heading("What", is_short=True, cell=lambda row: [_sign(row), row["verb"]]),
    Heading(
        "Partition", cell=lambda row: tag("a", row["where"], href=f"{topic_path(row['topic'])}/{row['partition']}")
    ),
    Heading("Range", is_short=True, cell=lambda row: row["what"]),
    *_AMOUNTS,
    Heading("Why", cell=lambda row: row["reason"]),
)
_TOTALS = (
    Heading(
        "What",
        is_short=True,
        cell=lambda row: [
            _sign(row),
            tag("a", row["verb"], href=row["href"], aria_current="true" if row["is_selected"] else None),
        ],
    ),
    figure("Count", "count"),
    *_AMOUNTS,
)
_DEFERRALS = (
    Heading("Segments", is_number=True, cell=lambda each: format_count(each.segments)),
    Heading("Bytes", is_number=True, cell=lambda each: format_bytes(each.size_bytes)),
    Heading("Partitions", cell=lambda each: shared_places(each.partitions)),
    Heading("What", cell=lambda each: each.words),
    Heading("Why", cell=lambda each: each.why),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The state of compaction at one moment; `runs` oldest first."""

    logs: Sequence[LogCleaningStatus]
    metrics: CleanerMetrics
    advice: Sequence[Advice]
    runs: Sequence[CleaningRun]
    now_ms: int


def compaction_data(manager: LogManager, now_ms: int) -> Compaction:
    """Collect the state of compaction without a store request, dirtiest logs first."""
    found = compaction_status(manager, now_ms, may_ask=False).values()
    return Compaction(
        logs=sorted(found, key=_urgency),
        metrics=cleaner_metrics(manager, now_ms, may_ask=False),
        advice=compaction_advice(manager, now_ms, may_ask=False),
        runs=manager.cleaning.runs,
        now_ms=now_ms,
    )


def compaction_page(found: Compaction, query: Mapping[str, str], note: Child = None) -> str:
    if not found.logs:
        words = "No topic is compacted. A topic with cleanup.policy=compact retains the newest record of each key:"
        first = commands("tiered topic create profiles -p 2 -X cleanup.policy=compact")
        return frame("Compaction", COMPACTION, found.now_ms, note, tag("p", words), first)
    page, some = paged(found.logs, query)
    return frame(
        "Compaction",
        COMPACTION,
        found.now_ms,
        note,
        _figures(found),
        _advice(found.advice),
        tag("h2", "Logs"),
        table(
            f"{counted(len(found.logs), 'compacted log')}, the dirtiest first",
            _LOGS,
            (log_row(each, found.now_ms) for each in some),
        ),
        pager(COMPACTION, {}, page, len(found.logs)),
        tag("h2", "Last passes"),
        _passes(found),
        tag(
            "p",
            (
                "Dirty is the share of bytes above the cleaner checkpoint, of all bytes that a pass may "
                "clean. A pass is due above min.cleanable.dirty.ratio, or after max.compaction.lag.ms. "
                "Not cleanable yet: the active segment, min.compaction.lag.ms, open transactions."
            ),
            class_="faint",
        ),
    )


def compaction_facts(found: Compaction, query: Mapping[str, str]) -> dict[str, object]:
    """Return the page's facts for programs, one page of logs at a time."""
    page, some = paged(found.logs, query)
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
        "partitions": [log_row(each, found.now_ms) for each in some],
        "runs": [asdict(each) for each in found.runs[-RUNS_SHOWN:]],
        "page": page,
        "pages": page_count(len(found.logs)),
    }


def _urgency(each: LogCleaningStatus) -> tuple[bool, float, TopicPartition]:
    return each.uncleanable is None, -each.log.dirty_ratio, each.log.partition


def _figures(found: Compaction) -> Html:
    of = found.metrics
    due = sum(each.log.is_eligible for each in found.logs)
    ago = "none yet" if of.time_since_last_run_ms is None else f"{lasted(of.time_since_last_run_ms)} ago"
    uncleanable = tag("span", format_count(of.uncleanable_partitions_count), class_="bad")
    return figures(
        {
            "Compacted logs": format_count(len(found.logs)),
            "Due": format_count(due),
            "Dirtiest": f"{max(each.log.dirty_ratio for each in found.logs):.0%}",
            "Cleanable": format_bytes(sum(each.log.cleanable_bytes for each in found.logs)),
            "Uncleanable": uncleanable if of.uncleanable_partitions_count else "none",
            "Fullest buffer": f"{of.max_buffer_utilization_percent}%",
            "Longest last pass": f"{of.max_clean_time_secs} s",
            "Last pass": ago,
        }
    )


def _advice(advice: Sequence[Advice]) -> list[Html]:
    heading = tag("h2", "Advice", id="advice")
    if not advice:
        return [heading, tag("p", "None: cleaning keeps up, according to its history.")]
    items = [tag("li", _advised(each)) for each in advice[:ADVICE_SHOWN]]
    rest = len(advice) - ADVICE_SHOWN
    more = tag("p", f"{rest:,} more: ", tag("code", "tiered compaction advise")) if rest > 0 else None
    return [heading, tag("ul", items), *([more] if more is not None else [])]


def _advised(each: Advice) -> list[Child]:
    where = _link(each.partition) if each.partition is not None else "The cleaner"
    setting: Child = [" ", tag("code", each.setting)] if each.setting is not None else None
    return [tag("strong", where), ": ", each.text, setting]


def _passes(found: Compaction) -> Html:
    if not found.runs:
        return tag("p", "None yet.")
    some = list(reversed(found.runs[-RUNS_SHOWN:]))
    caption = f"Recorded passes, {len(some):,} of {len(found.runs):,}, the newest first"
    return table(caption, _RUNS, some)


def _state(row: _LogRow) -> Child:
    reason = row["uncleanable_reason"]
    return (
        row["state"] if reason is None else [tag("span", "uncleanable", class_="bad"), f": {' '.join(reason.split())}"]
    )


def _dirty_and_clean(row: _LogRow) -> Html:
    parts = [("dirty", float(row["cleanable_bytes"])), ("clean", float(row["clean_bytes"]))]
    return bar(parts, sum(value for _, value in parts))


def _result(run: CleaningRun) -> list[Child]:
    if run.error is not None:
        return [tag("span", "failed", class_="bad"), f": {run.error}"]
    return [f"{run.size_reduction:.0%} smaller"]


def _link(name: TopicPartition) -> Html:
    return tag("a", str(name), href=partition_path(name))


def _share(value: object) -> str:
    return f"{value:.0%}" if isinstance(value, float) else "-"


def _of_done(title: str, show: Callable[[CleaningRun], Child], *, is_number: bool = True) -> Heading:
    """A column of passes that came to their end; a dash for the others."""
    return Heading(title, is_number=is_number, cell=lambda run: show(run) if run.error is None else None)


_LOGS = (
    Heading("Partition", cell=lambda row: _link(TopicPartition(row["topic"], row["partition"]))),
    Heading("State", cell=_state),
    Heading("Dirty", is_number=True, cell=lambda row: _share(row["dirty_ratio"])),
    Heading("Dirty and clean", cell=_dirty_and_clean),
    figure("Clean", "clean_bytes", format_bytes),
    figure("Cleanable", "cleanable_bytes", format_bytes),
    figure("Not cleanable yet", "uncleanable_bytes", format_bytes),
    Heading("Late", is_number=True, cell=lambda row: format_ms(row["delay_ms"]) if row["delay_ms"] else None),
    Heading(
        "Last pass",
        is_number=True,
        cell=lambda row: "never" if row["ago_ms"] is None else f"{lasted(row['ago_ms'])} ago",
    ),
    Heading("Gained", is_number=True, cell=lambda row: _share(row["size_reduction"])),
)


_RUNS = (
    Heading("When", is_short=True, cell=lambda run: stamp(run.at_ms)),
    Heading("Partition", cell=lambda run: _link(run.name)),
    _of_done("Before", lambda run: format_bytes(run.bytes_before)),
    _of_done("After", lambda run: format_bytes(run.bytes_after)),
    _of_done(
        "Left",
        lambda run: bar([("clean", run.bytes_after)], max(run.bytes_before, run.bytes_after, 1)),
        is_number=False,
    ),
    _of_done("Records", lambda run: f"{run.records_before:,} to {run.records_after:,}"),
    Heading("Took", is_number=True, cell=lambda run: f"{run.seconds:.1f} s"),
    _of_done("Buffer", lambda run: _share(run.buffer_utilization)),
    Heading("Result", cell=_result),
)
