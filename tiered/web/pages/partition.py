"""The page of a partition: its segments in both tiers, drawn over offsets and time, and as a table."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from local.names import TopicPartition
from local.segment.segment_info import SegmentInfo
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry
from tiered.config.units import counted, format_bytes, format_count
from tiered.status.status_report import StatusReport
from tiered.status.status_rows import Row, partition_row, status_facts
from tiered.web.html import Child, Html, tag
from tiered.web.pages.overview import dollars, lag, remote, shown
from tiered.web.pages.parts import (
    ROWS_ON_A_PAGE,
    Heading,
    figures,
    frame,
    page_count,
    pager,
    partition_path,
    problem_boxes,
    requested_page,
    stamp,
    table,
    topic_path,
)
from tiered.web.pages.segment_map import Window, records_left, remote_kind, segment_map

_REMOTE_STATES = {"expired": "expired, unlinked next", "compacted": "readable, compacted", "remote": "readable"}
_HEADINGS = (
    Heading("From offset", is_number=True),
    Heading("To", is_number=True),
    Heading("Tier"),
    Heading("Size", is_number=True),
    Heading("Newest record", is_short=True),
    Heading("State"),
)


def partition_page(
    report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str], note: Child = None
) -> str:
    """The page of one partition; `report` is for its topic."""
    name = snapshot.partition
    here = partition_path(name)
    window = Window.of(snapshot, query)
    rows = segment_rows(snapshot, window)
    page = min(page_count(len(rows)), requested_page(query))
    some = rows[(page - 1) * ROWS_ON_A_PAGE : page * ROWS_ON_A_PAGE]
    return frame(
        str(name),
        here,
        report.now_ms,
        note,
        tag("p", "A partition of ", tag("a", name.topic, href=topic_path(name.topic))),
        problem_boxes(report, [each for each in report.problems if each.partition in (None, name)]),
        _figures(partition_row(report, name)),
        segment_map(snapshot, window, here),
        table(f"{_counted_rows(rows, snapshot)}, oldest first", _HEADINGS, map(_cells, some)),
        pager(here, window.query, page, len(rows)),
    )


def partition_facts(report: StatusReport, name: TopicPartition) -> dict[str, object]:
    """For programs: ``tiered status -p -o json`` of this partition alone."""
    return {**msgspec.structs.asdict(status_facts(report)), "partitions": [partition_row(report, name)]}


def segment_rows(snapshot: PartitionSnapshot, window: Window) -> list[Row]:
    """The content of each tier in a window, by offset.

    It lists local segments, segment entries, and manifest pages whose entries are not loaded.
    """
    here: list[Row] = [
        {
            "tier": "local",
            "base_offset": each.base_offset,
            "next_offset": each.next_offset,
            "size_bytes": each.size_bytes,
            "max_timestamp_ms": each.max_timestamp_ms,
            "state": _local_state(snapshot, each),
        }
        for each in snapshot.segments
        if window.holds(each.base_offset, each.next_offset)
    ]
    there: list[Row] = [
        {
            "tier": "remote",
            "base_offset": each.base_offset,
            "next_offset": each.next_offset,
            "size_bytes": each.size_bytes,
            "max_timestamp_ms": each.max_timestamp_ms,
            "state": _remote_state(snapshot, each),
        }
        for each in snapshot.committed_parts
        if window.holds(each.base_offset, each.next_offset)
    ]
    return sorted([*here, *there], key=lambda row: (int(str(row["base_offset"])), str(row["tier"])))


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


def _cells(row: Row) -> list[Child]:
    newest = row["max_timestamp_ms"]
    return [
        shown(row, "base_offset"),
        shown(row, "next_offset"),
        str(row["tier"]),
        shown(row, "size_bytes", format_bytes),
        stamp(newest) if isinstance(newest, int) else None,
        str(row["state"]),
    ]


def _figures(row: Row) -> Html:
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
