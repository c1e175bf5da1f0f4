"""The pages of topics: the overview with the page of problems, a topic, and a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry
from tiered.config.units import counted, format_bytes, format_count, format_dollars
from tiered.node.problems import ProblemGroup, group_problems, same_cause
from tiered.node.topic_registry import Topic
from tiered.status.status_report import Row, StatusReport, partition_row, status_facts, topic_row
from tiered.web.html import DataAge, ListPage, partition_path, render, topic_path
from tiered.web.pages.history import HistoryData, history_section
from tiered.web.pages.segment_map import Window, records_left, remote_kind, segment_map

NOT_READ = "unknown"
SORTS = (
    *("topic", "partitions", "offsets", "local_bytes", "remote_bytes", "lag_bytes", "at_risk_bytes"),
    "dollars_per_month",
)
_REMOTE_STATES = {"expired": "expired, unlinked next", "compacted": "readable, compacted", "remote": "readable"}


def _shown(row: Row, stuck: int) -> Row:
    """Return the row with its number of problems, and with words for figures of an unread bucket."""
    if row["is_tiered"] and row["remote_segments"] is None:
        return {**row, "stuck": stuck, "remote": NOT_READ, "lag": NOT_READ, "dollars": NOT_READ}
    remote_bytes, dollars = row["remote_bytes"], row["dollars_per_month"]
    return {
        **row,
        "stuck": stuck,
        "remote": format_bytes(remote_bytes) if isinstance(remote_bytes, int) else "-",
        "lag": _lag(row) if row["is_tiered"] else "-",
        "dollars": format_dollars(dollars) if isinstance(dollars, float) else "-",
    }


def _lag(row: Row) -> str:
    size_bytes = row["lag_bytes"]
    waits = f"{row['lag_segments']:,} seg {format_bytes(size_bytes)}" if isinstance(size_bytes, int) else "-"
    if row["is_paused"]:
        return f"paused, {waits if row['lag_segments'] else 'nothing waits'}"
    return waits if row["lag_segments"] else "ok"


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
    topics = ListPage(_sorted(_found(everything, selection["q"]), selection["sort"]), query)
    stuck = Counter(each.partition.topic for each in report.problems if each.partition is not None)
    return render(
        "overview.html",
        "Overview",
        "/",
        report.now_ms,
        age,
        report=report,
        groups=group_problems(report.problems),
        has_remote=has_remote,
        paused=[row for row in everything if row["is_paused"]],
        sums=_sums(report, everything),
        history=history_section(history, None, report.now_ms, "/", query, selection),
        selection=selection,
        topics=topics,
        rows=[_shown(row, stuck[str(row["topic"])]) for row in topics.rows],
        sorted_by=selection["sort"] if selection["sort"] in SORTS else "topic",
    )


def found_topics(report: StatusReport, query: Mapping[str, str]) -> dict[str, object]:
    """Return ``tiered status -o json`` of the topics that match a search, all pages at once."""
    rows = _found([topic_row(report, topic) for topic in report.topics], query.get("q", ""))
    return {**msgspec.structs.asdict(status_facts(report)), "topics": _sorted(rows, query.get("sort", ""))}


def problems_page(report: StatusReport, query: Mapping[str, str], age: DataAge | None = None) -> str:
    """Return the page of problems by cause: all, those of ``topic``, or each one with the cause of ``alike``."""
    topic, alike = query.get("topic", ""), query.get("alike", "")
    problems = [each for each in report.problems if not topic or (each.partition and each.partition.topic == topic)]
    if alike:
        groups = [ProblemGroup((each,)) for each in same_cause(problems, alike)]
    else:
        groups = group_problems(problems)
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


def _sums(report: StatusReport, rows: Sequence[Row]) -> dict[str, str]:
    def total(name: str, show: Callable[[float], str]) -> str:
        known = [float(str(row[name])) for row in rows if row.get(name) is not None]
        missing = len(rows) - len(known)
        if not known:
            return NOT_READ
        return show(sum(known)) + (f" and {counted(missing, 'topic')} {NOT_READ}" if missing else "")

    def in_bytes(name: str) -> str:
        return total(name, lambda value: format_bytes(int(value)))

    return {
        "Topics": format_count(len(rows)),
        "Partitions": total("partitions", lambda value: format_count(int(value))),
        "Local": in_bytes("local_bytes"),
        "Remote": in_bytes("remote_bytes"),
        "Upload lag": in_bytes("lag_bytes"),
        "At risk": in_bytes("at_risk_bytes"),
        "$ a month": total("dollars_per_month", format_dollars) if report.prices is not None else "-",
    }


def topic_page(
    report: StatusReport,
    topic: Topic,
    query: Mapping[str, str],
    age: DataAge | None = None,
    history: HistoryData | None = None,
) -> str:
    """Return the page of one topic; `report` and `history` are for that topic."""
    here = topic_path(topic.name)
    partitions = ListPage(topic.partitions(), query)
    problems = [each for each in report.problems if each.partition is None or each.partition.topic == topic.name]
    stuck = Counter(each.partition for each in problems)
    row = topic_row(report, topic)
    return render(
        "topic.html",
        topic.name,
        here,
        report.now_ms,
        age,
        topic=topic,
        groups=group_problems(problems),
        paused=[row] if row["is_paused"] else [],
        partitions=partitions,
        rows=[{**_shown(partition_row(report, name), stuck[name]), "name": name} for name in partitions.rows],
        span=query.get("span", ""),
        history=history_section(history, topic.name, report.now_ms, here, query, {}),
    )


def partition_facts(report: StatusReport, names: Iterable[TopicPartition]) -> dict[str, object]:
    """Return ``tiered status -p -o json`` of these partitions alone."""
    rows = [partition_row(report, name) for name in names]
    return {**msgspec.structs.asdict(status_facts(report)), "partitions": rows}


def partition_page(
    report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str], age: DataAge | None = None
) -> str:
    """Return the page of one partition; `report` is for its topic."""
    name = snapshot.partition
    here, window = partition_path(name), Window.of(snapshot, query)
    rows = _segment_rows(snapshot, window)
    return render(
        "partition.html",
        str(name),
        here,
        report.now_ms,
        age,
        topic=name.topic,
        problems=[each for each in report.problems if each.partition in (None, name)],
        row=_shown(partition_row(report, name), 0),
        map=segment_map(snapshot, window, here),
        counted_segments=f"{len(rows):,} segments and pages of segments"
        if snapshot.pages
        else counted(len(rows), "segment"),
        segments=ListPage(rows, query),
        window=window.query,
    )


def _segment_rows(
    snapshot: PartitionSnapshot, window: Window
) -> list[tuple[str, SegmentInfo | SegmentEntry | PageEntry, str]]:
    """Return (tier, segment, state) of a window by offset; a page stands for its unloaded entries."""
    local = [("local", each, _local_state(snapshot, each)) for each in snapshot.segments]
    remote = [("remote", each, _remote_state(snapshot, each)) for each in snapshot.committed_parts]
    found = [row for row in (*local, *remote) if window.holds(row[1].base_offset, row[1].next_offset)]
    return sorted(found, key=lambda row: (row[1].base_offset, row[0]))


def _local_state(snapshot: PartitionSnapshot, segment: SegmentInfo) -> str:
    words = ["active"] if segment is snapshot.active else []
    if segment.is_clean:
        words.append("compacted")
    if not snapshot.is_committed(segment.base_offset, segment.next_offset):
        words.append("only on this disk")
    elif segment.next_offset > segment.base_offset:
        words.append("in both tiers")
    return ", ".join(words)


def _remote_state(snapshot: PartitionSnapshot, row: SegmentEntry | PageEntry) -> str:
    words = [_REMOTE_STATES[remote_kind(snapshot, row)]]
    if row.cleaned_through is not None and records_left(row) < 1:
        words.append(f"{counted(row.record_count, 'record')} left")
    if isinstance(row, PageEntry):
        words.append(counted(row.segment_count, "segment"))
    return ", ".join(words)
