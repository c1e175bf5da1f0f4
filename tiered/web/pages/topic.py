"""The pages of a topic and of a partition.

A topic has its partitions, settings and problems; a partition its segments in both tiers, drawn over offsets and time,
and as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from local.names import TopicPartition
from local.segment.segment_info import SegmentInfo
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry
from tiered.config.units import counted, format_bytes, format_count
from tiered.node.topic_registry import Topic
from tiered.status.status_report import Row, StatusReport, partition_row, status_facts, topic_row
from tiered.web.html import Child, Html, tag
from tiered.web.pages.history import HistoryData, history_section
from tiered.web.pages.overview import dollars, lag, remote, shown, state
from tiered.web.pages.parts import (
    Heading,
    figures,
    frame,
    numbers,
    paged,
    pager,
    partition_path,
    pauses,
    problem_boxes,
    stamp,
    table,
    topic_path,
    worst_problems,
)
from tiered.web.pages.segment_map import Window, records_left, remote_kind, segment_map

_PARTITIONS = (
    Heading("Partition"),
    *numbers("Log start", "Local from", "Remote to", "Next", "Local", "Remote", "Upload lag", "At risk", "$ a month"),
    Heading("State"),
)


_REMOTE_STATES = {"expired": "expired, unlinked next", "compacted": "readable, compacted", "remote": "readable"}
_SEGMENTS = (
    *numbers("From offset", "To"),
    Heading("Tier"),
    Heading("Size", is_number=True),
    Heading("Newest record", is_short=True),
    Heading("State"),
)


def topic_page(
    report: StatusReport, topic: Topic, query: Mapping[str, str], note: Child = None, history: HistoryData | None = None
) -> str:
    """The page of one topic; `report` is for that topic alone, `history` has its notes."""
    names = topic.partitions()
    page, some = paged(names, query)
    problems = [each for each in report.problems if each.partition is None or each.partition.topic == topic.name]
    counts = Counter(each.partition for each in problems)
    settings = [[tag("code", key), tag("code", value)] for key, value in sorted(topic.properties.items())]
    return frame(
        topic.name,
        topic_path(topic.name),
        report.now_ms,
        note,
        worst_problems(report, problems, topic.name),
        pauses(report, [topic_row(report, topic)]),
        table(counted(len(names), "partition"), _PARTITIONS, (_cells(report, name, counts[name]) for name in some)),
        pager(topic_path(topic.name), {"span": query.get("span", "")}, page, len(names)),
        _over_time(report, topic, query, history),
        tag("h2", "Topic settings"),
        table("All other settings have their defaults", (Heading("Setting"), Heading("Value")), settings)
        if settings
        else tag("p", "None: all settings have their defaults."),
    )


def _over_time(report: StatusReport, topic: Topic, query: Mapping[str, str], history: HistoryData | None) -> Child:
    if history is None:
        return None
    return history_section(history, topic.name, report.now_ms, topic_path(topic.name), query, {})


def topic_facts(report: StatusReport, topic: Topic) -> dict[str, object]:
    """The same for programs: ``tiered status -p TOPIC -o json``."""
    return {
        **msgspec.structs.asdict(status_facts(report)),
        "partitions": [partition_row(report, name) for name in topic.partitions()],
    }


def _cells(report: StatusReport, name: TopicPartition, problems: int) -> list[Child]:
    row = partition_row(report, name)
    return [
        tag("a", str(name), href=partition_path(name)),
        shown(row, "log_start_offset"),
        shown(row, "local_start_offset"),
        shown(row, "remote_next_offset"),
        shown(row, "next_offset"),
        shown(row, "local_bytes", format_bytes),
        remote(row),
        lag(row),
        shown(row, "at_risk_bytes", format_bytes),
        dollars(row),
        state(problems),
    ]


# -- a partition -------------------------------------------------------------------------------------------------------


def partition_page(
    report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str], note: Child = None
) -> str:
    """The page of one partition; `report` is for its topic."""
    name = snapshot.partition
    here = partition_path(name)
    window = Window.of(snapshot, query)
    rows = segment_rows(snapshot, window)
    page, some = paged(rows, query)
    return frame(
        str(name),
        here,
        report.now_ms,
        note,
        tag("p", "A partition of ", tag("a", name.topic, href=topic_path(name.topic))),
        problem_boxes(report, [each for each in report.problems if each.partition in (None, name)]),
        _partition_figures(partition_row(report, name)),
        segment_map(snapshot, window, here),
        table(f"{_counted_rows(rows, snapshot)}, oldest first", _SEGMENTS, map(_segment_cells, some)),
        pager(here, window.query, page, len(rows)),
    )


def partition_facts(report: StatusReport, name: TopicPartition) -> dict[str, object]:
    """For programs: ``tiered status -p -o json`` of this partition alone."""
    return {**msgspec.structs.asdict(status_facts(report)), "partitions": [partition_row(report, name)]}


def segment_rows(snapshot: PartitionSnapshot, window: Window) -> list[Row]:
    """The content of each tier in a window, by offset.

    It lists local segments, segment entries, and manifest pages whose entries are not loaded.
    """
    local = [("local", each, _local_state(snapshot, each)) for each in snapshot.segments]
    remote = [("remote", each, _remote_state(snapshot, each)) for each in snapshot.committed_parts]
    found: list[Row] = [
        {
            "tier": tier,
            "base_offset": part.base_offset,
            "next_offset": part.next_offset,
            "size_bytes": part.size_bytes,
            "max_timestamp_ms": part.max_timestamp_ms,
            "state": state,
        }
        for tier, part, state in (*local, *remote)
        if window.holds(part.base_offset, part.next_offset)
    ]
    return sorted(found, key=lambda row: (int(str(row["base_offset"])), str(row["tier"])))


def _counted_rows(rows: list[Row], snapshot: PartitionSnapshot) -> str:
    return f"{len(rows):,} segments and pages of segments" if snapshot.pages else counted(len(rows), "segment")


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


def _segment_cells(row: Row) -> list[Child]:
    newest = row["max_timestamp_ms"]
    return [
        shown(row, "base_offset"),
        shown(row, "next_offset"),
        str(row["tier"]),
        shown(row, "size_bytes", format_bytes),
        stamp(newest) if isinstance(newest, int) else None,
        str(row["state"]),
    ]


def _partition_figures(row: Row) -> Html:
    return figures(
        {
            "Log start": shown(row, "log_start_offset", format_count),
            "Next offset": shown(row, "next_offset"),
            "Local": shown(row, "local_bytes", format_bytes),
            "Remote": remote(row),
            "Upload lag": lag(row),
            "At risk": shown(row, "at_risk_bytes", format_bytes),
            "$ a month": dollars(row),
        }
    )
