"""The pages over a manager: overview, problems, topics, partitions, both tiers over time. Read-only.

Charts show the notes of running managers (`tiered.status.tier_history`). A line is broken where no manager ran or the
bucket was not read. Before the first note a dotted line is a lower bound: the bytes in the bucket today that existed.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from tiered.config.units import counted, format_bytes, format_dollars, format_ms
from tiered.node.problems import ProblemGroup, group_problems, same_cause
from tiered.node.topic_registry import Topic
from tiered.status.status_report import Row, StatusReport, partition_row, status_facts, topic_row
from tiered.status.tier_history import DAY_MS, TierHistory, TierPoint, TierSeries, history_of, stretches
from tiered.web.charts import Run, TimeLine, binary_top, bytes_label, dollars_label, nice_top, thinned, time_chart
from tiered.web.html import DataAge, Html, ListPage, component, partition_path, render, topic_path
from tiered.web.pages.segment_map import Segment, Window, records_left, remote_kind, segment_map

SORTS = (
    *("topic", "partitions", "offsets", "local_bytes", "remote_bytes", "lag_bytes", "at_risk_bytes"),
    "dollars_per_month",
)
SPANS = {  # ms, title, period of a row of the table, and its time
    "6h": (DAY_MS // 4, "6 hours", "five minutes", "%Y-%m-%d %H:%M"),
    "2d": (2 * DAY_MS, "2 days", "hour", "%Y-%m-%d %H"),
    "30d": (30 * DAY_MS, "30 days", "day", "%Y-%m-%d"),
    "3y": (1096 * DAY_MS, "3 years", "month", "%Y-%m"),
}
_WORST = frozenset({"lag_bytes", "at_risk_bytes"})
# Columns of each chart: name and style of the line, field, name in the description.
_TIERS = (("bucket", "t-remote", "remote_bytes", "In the bucket"), ("disk", "t-local", "local_bytes", "On the disk"))
_WAITING = (
    ("waits", "t-lag", "lag_bytes", "Waiting for upload"),
    ("at risk", "t-risk", "at_risk_bytes", "On this disk alone"),
)
_DOLLARS = (("bucket", "t-dollars", "dollars_per_month", "Dollars a month"),)


def overview(
    report: StatusReport,
    query: Mapping[str, str],
    *,
    has_remote: bool,
    age: DataAge | None = None,
    history: HistoryData | None = None,
) -> str:
    """Return the page. `query` has ``q`` (part of a name), ``sort`` (largest first), ``page``, ``span``."""
    everything = [topic_row(report, topic) for topic in report.topics]
    selection = {name: query.get(name, "") for name in ("q", "sort", "span")}
    return render(
        "overview.html",
        "Overview",
        "/",
        report.now_ms,
        age,
        report=report,
        groups=group_problems(report.problems),
        has_remote=has_remote,
        everything=everything,
        stuck=Counter(each.partition.topic for each in report.problems if each.partition is not None),
        history=history_section(history, None, report.now_ms, "/", query, selection),
        selection=selection,
        topics=ListPage(_sorted(_found(everything, selection["q"]), selection["sort"]), query),
        sorted_by=selection["sort"] if selection["sort"] in SORTS else "topic",
    )


def found_topics(report: StatusReport, query: Mapping[str, str]) -> dict[str, object]:
    """Return ``tiered status -o json`` of the topics that match a search, all pages at once."""
    rows = _found([topic_row(report, topic) for topic in report.topics], query.get("q", ""))
    return {
        **msgspec.structs.asdict(status_facts(report)),
        "groups": None,
        "topics": _sorted(rows, query.get("sort", "")),
    }


def problems_page(report: StatusReport, query: Mapping[str, str], age: DataAge | None = None) -> str:
    """Return the page of problems by cause: all, those of ``topic``, or each one with the cause of ``alike``."""
    topic, alike = query.get("topic", ""), query.get("alike", "")
    problems = [each for each in report.problems if not topic or (each.partition and each.partition.topic == topic)]
    groups = [ProblemGroup((each,)) for each in same_cause(problems, alike)] if alike else group_problems(problems)
    return render(
        "troubles.html",
        "Troubles",
        "/troubles",
        report.now_ms,
        age,
        report=report,
        topic=topic,
        alike=alike,
        groups=ListPage(groups, query),
    )


def _found(rows: Sequence[Row], text: str) -> list[Row]:
    wanted = text.strip().casefold()
    return [row for row in rows if wanted in str(row["topic"]).casefold()]


def _sorted(rows: list[Row], name: str) -> list[Row]:
    if name not in SORTS or name == "topic":
        return rows
    return sorted(rows, key=lambda row: float(str(row.get(name) or 0)), reverse=True)


def topic_page(
    report: StatusReport,
    topic: Topic,
    query: Mapping[str, str],
    age: DataAge | None = None,
    history: HistoryData | None = None,
) -> str:
    here = topic_path(topic.name)
    partitions = ListPage(topic.partitions(), query)
    problems = [each for each in report.problems if each.partition is None or each.partition.topic == topic.name]
    return render(
        "topic.html",
        topic.name,
        here,
        report.now_ms,
        age,
        topic=topic,
        groups=group_problems(problems),
        row=topic_row(report, topic),
        stuck=Counter(each.partition for each in problems),
        partitions=partitions,
        rows=[(name, partition_row(report, name)) for name in partitions.rows],
        span=query.get("span", ""),
        history=history_section(history, topic.name, report.now_ms, here, query, {}),
    )


def partition_facts(report: StatusReport, names: Iterable[TopicPartition]) -> dict[str, object]:
    rows = [partition_row(report, name) for name in names]
    return {**msgspec.structs.asdict(status_facts(report)), "groups": None, "partitions": rows}


def partition_page(
    report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str], age: DataAge | None = None
) -> str:
    name = snapshot.partition
    here, window = partition_path(name), Window.of(snapshot, query)
    rows = _segments(snapshot, window)
    return render(
        "partition.html",
        str(name),
        here,
        report.now_ms,
        age,
        topic=name.topic,
        problems=[each for each in report.problems if each.partition in (None, name)],
        row=partition_row(report, name),
        map=segment_map(snapshot, window, here),
        counted_segments=f"{len(rows):,} segments and pages of segments"
        if snapshot.pages
        else counted(len(rows), "segment"),
        segments=ListPage(rows, query),
        window=window.query,
        snapshot=snapshot,
        remote_kind=remote_kind,
        records_left=records_left,
    )


def _segments(snapshot: PartitionSnapshot, window: Window) -> list[tuple[str, Segment]]:
    """Return (tier, segment) of a window by offset; a page stands for its unloaded entries."""
    local = [("local", each) for each in snapshot.segments]
    found = [*local, *(("remote", each) for each in snapshot.committed_parts)]
    visible = [row for row in found if window.holds(row[1].base_offset, row[1].next_offset)]
    return sorted(visible, key=lambda row: (row[1].base_offset, row[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    """Notes, and (time, bytes) of data still in the bucket (`tiered.status.tier_history.still_there`)."""

    series: TierSeries
    still: Sequence[tuple[int, int]]


def requested_span(query: Mapping[str, str], begun_ms: int | None, now_ms: int) -> str:
    """Return the requested span, else the shortest that shows everything, up to 30 days."""
    span = query.get("span", "")
    if span in SPANS:
        return span
    age_ms = now_ms - begun_ms if begun_ms is not None else SPANS["30d"][0]
    return next((name for name, (span_ms, *_) in SPANS.items() if age_ms <= span_ms and name != "3y"), "30d")


def history_section(
    history: HistoryData | None,
    topic: str | None,
    now_ms: int,
    path: str,
    query: Mapping[str, str],
    selection: Mapping[str, str],
) -> Html | None:
    """Return the part with the id ``history``; `path` and the query `selection` link to the same page."""
    if history is None:
        return None
    span = requested_span(query, history.series.of(topic).oldest_ms, now_ms)
    span_ms, _, period, _ = SPANS[span]
    found = history_of(history.series, topic, now_ms, span_ms)
    still = _still(history.still, found)
    charts: list[tuple[str, Html]] = []
    if found.points or still:
        charts.append(_figure(found, "history-tiers", "Bytes by tier", _TIERS, format_bytes, bytes_label, still=still))
    if found.points:
        title = "Waiting for upload, and at risk"
        charts.append(_figure(found, "history-risk", title, _WAITING, format_bytes, bytes_label))
        title, form = "$ a month for what is in the bucket", format_dollars
        charts.append(_figure(found, "history-dollars", title, _DOLLARS, form, dollars_label, top_of=nice_top))
    is_broken = len(list(stretches(found.points, found.step_ms))) > 1
    return component("section", "history.html")(
        span=span,
        spans={name: title for name, (_, title, *_) in SPANS.items()},
        path=path,
        selection=selection,
        charts=charts,
        found=found,
        is_broken=is_broken or any(each.remote_bytes is None for each in found.points),
        has_still=bool(still),
        rows=_rows(found, span),
        has_missing=any(each.missing_partitions for each in found.points),
        period=period,
        command=f"tiered status{'' if topic is None else f' {topic}'} --history {format_ms(span_ms)} -o csv",
    )


def _figure(
    found: TierHistory,
    id_: str,
    title: str,
    columns: Sequence[tuple[str, str, str, str]],
    form: Callable[[float], str] | Callable[[int], str],
    show: Callable[[float], str],
    *,
    top_of: Callable[[float], float] = binary_top,
    still: Run = (),
) -> tuple[str, Html]:
    lines = [_line(found, name, style, field) for name, style, field, _ in columns]
    lines += [TimeLine(name="", style="t-still", runs=[still])] if still else []
    rules = [(found.begun_ms, "first point")] if still and found.begun_ms is not None else []
    words = " ".join(_range(found, name, field, form) for _, _, field, name in columns)
    since, until = found.since_ms, found.until_ms
    return title, time_chart(id_, title, words, lines, since, until, show, top_of=top_of, rules=rules)


def _line(found: TierHistory, name: str, style: str, field: str) -> TimeLine:
    runs = [run for stretch in stretches(found.points, found.step_ms) for run in _known(stretch, field)]
    thin = [thinned(run, found.since_ms, found.until_ms, most=field in _WORST) for run in runs]
    return TimeLine(name=name, style=style, runs=thin)


def _known(stretch: Sequence[TierPoint], field: str) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[]]
    for point in stretch:
        value = getattr(point, field)
        if value is None:
            found.append([])
        else:
            found[-1].append((point.at_ms, float(value)))
    return [run for run in found if run]


def _still(still: Sequence[tuple[int, int]], found: TierHistory) -> Run:
    until = found.until_ms if found.begun_ms is None else min(found.begun_ms, found.until_ms)
    if until <= found.since_ms:
        return []
    before = [size for at, size in still if at < found.since_ms]
    run: list[tuple[int, float]] = [(found.since_ms, float(before[-1]))] if before else []
    for at, size in still:
        if found.since_ms <= at < until:
            run += [(at, run[-1][1] if run else 0.0), (at, float(size))]  # steps: the size is constant in between
    if not run or until - run[0][0] < (found.until_ms - found.since_ms) // 100:
        return []  # too short to be visible
    return [*thinned(run, found.since_ms, found.until_ms, most=True), (until, run[-1][1])]


def _range(found: TierHistory, name: str, field: str, show: Callable[[float], str] | Callable[[int], str]) -> str:
    values = [value for point in found.points if (value := getattr(point, field)) is not None]
    if not values:
        return f"{name}: unknown."
    last, least, most = (show(each) for each in (values[-1], min(values), max(values)))
    return f"{name}: {last} last, {least} at least, {most} at most."


def _rows(found: TierHistory, span: str) -> list[tuple[str, TierPoint, int | None, int | None, int]]:
    """Rows by period, newest first: last point, maximum of copy lag, bytes at risk, missing partitions."""
    periods: dict[str, list[TierPoint]] = {}
    for point in found.points:
        at = datetime.datetime.fromtimestamp(point.at_ms / 1000, datetime.UTC)
        periods.setdefault(at.strftime(SPANS[span][3]), []).append(point)
    return [
        (
            f"{key}:00" if len(key) == 13 else key,
            points[-1],
            max((each.lag_bytes for each in points if each.lag_bytes is not None), default=None),
            max((each.at_risk_bytes for each in points if each.at_risk_bytes is not None), default=None),
            max(each.missing_partitions for each in points),
        )
        for key, points in reversed(periods.items())
    ]
