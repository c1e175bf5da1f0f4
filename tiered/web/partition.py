"""The page of a partition: its segments in both tiers drawn on a line of offsets, and the same as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.head import SpillRow
from tiered.status_report import StatusReport
from tiered.status_rows import Row, partition_row, status_facts
from tiered.units import format_bytes, format_count
from tiered.web.html import Child, Html, tag
from tiered.web.overview import dollars, lag, remote, shown
from tiered.web.parts import (
    ROWS_ON_A_PAGE,
    Heading,
    asked_page,
    figures,
    frame,
    page_count,
    pager,
    partition_path,
    stamp,
    table,
    topic_path,
    troubles,
)

WIDTH = 1000  # of the line, in its own units; what lies closer together is drawn as one
_HEADINGS = (
    Heading("From offset", is_number=True),
    Heading("To", is_number=True),
    Heading("Tier"),
    Heading("Size", is_number=True),
    Heading("Newest record"),
    Heading("State"),
)


def partition_page(report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str]) -> str:
    """The page of one partition; `report` is of its topic."""
    name = snapshot.partition
    here = partition_path(name)
    rows = segment_rows(snapshot)
    page = min(page_count(len(rows)), asked_page(query))
    some = rows[(page - 1) * ROWS_ON_A_PAGE : page * ROWS_ON_A_PAGE]
    return frame(
        str(name),
        here,
        report.now_ms,
        tag("p", "A partition of ", tag("a", name.topic, href=topic_path(name.topic))),
        troubles(report, [each for each in report.stuck if each.partition in (None, name)]),
        _figures(partition_row(report, name)),
        offset_line(snapshot),
        table(f"{len(rows):,} segments and pages of segments, oldest first", _HEADINGS, map(_cells, some)),
        pager(here, {}, page, len(rows)),
    )


def partition_facts(report: StatusReport, name: TopicPartition) -> dict[str, object]:
    """For programs: ``tiered status -p -o json`` of this partition alone."""
    return {**status_facts(report), "partitions": [partition_row(report, name)]}


def segment_rows(snapshot: PartitionSnapshot) -> list[Row]:
    """What each tier holds, by offset: local segments, rows of the store, pages of rows that are not known singly."""
    here: list[Row] = [
        {
            "tier": "local",
            "base_offset": each.base_offset,
            "next_offset": each.next_offset,
            "size_bytes": each.size_bytes,
            "max_timestamp_ms": each.max_timestamp_ms,
            "state": _local_state(snapshot, each.base_offset, each.next_offset, is_active=each is snapshot.active),
        }
        for each in snapshot.segments
    ]
    there: list[Row] = [
        {
            "tier": "remote",
            "base_offset": each.base_offset,
            "next_offset": each.next_offset,
            "size_bytes": each.size_bytes,
            "max_timestamp_ms": each.max_timestamp_ms,
            "state": _remote_state(snapshot, each.next_offset)
            + (f", {each.segment_count:,} segments" if isinstance(each, SpillRow) else ""),
        }
        for each in snapshot.committed_parts
    ]
    return sorted([*here, *there], key=lambda row: (int(str(row["base_offset"])), str(row["tier"])))


def offset_line(snapshot: PartitionSnapshot) -> Html:
    """Both tiers from the oldest offset to the log's end; the table below says the same in words."""
    local = [(each.base_offset, each.next_offset) for each in snapshot.segments]
    stored = sorted(snapshot.remote_ranges)
    begin = min([snapshot.log_start_offset, *(start for start, _ in [*local, *stored])])
    end = max(snapshot.next_offset, begin + 1)
    words = f"Offsets {begin:,} to {end:,}: {len(local):,} local segments, {snapshot.committed_count:,} remote"
    picture = tag(
        "svg",
        _bars(local, begin, end, "local", 10),
        _bars(stored, begin, end, "remote", 55),
        viewBox=f"0 0 {WIDTH} 90",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
    key = tag("p", "Above: ", tag("span", "local", class_="key local"), ", below: ", _remote_word(), ". ", words, ".")
    return tag("section", tag("h2", "Segments"), picture, key)


def _remote_word() -> Html:
    return tag("span", "remote", class_="key remote")


def _bars(ranges: Iterable[tuple[int, int]], begin: int, end: int, tier: str, top: int) -> list[Html]:
    """At most WIDTH bars and the ground: two neighbours that are narrower than two units together are one."""
    scale = WIDTH / (end - begin)
    drawn: list[list[float]] = []
    for start, stop in ranges:
        left, right = (start - begin) * scale, (stop - begin) * scale
        if right <= left:
            continue
        if drawn and (left < drawn[-1][1] or right - drawn[-1][0] < 2):
            drawn[-1][1] = max(drawn[-1][1], right)
        else:
            drawn.append([left, right])
    back = tag("rect", class_="back", x=0, y=top, width=WIDTH, height=25)
    bars = [
        tag("rect", class_=tier, x=round(left, 2), y=top, width=round(max(0.7, right - left - 1), 2), height=25)
        for left, right in drawn
    ]
    return [back, *bars]


def _local_state(snapshot: PartitionSnapshot, base_offset: int, next_offset: int, *, is_active: bool) -> str:
    words = ["active"] if is_active else []
    if not snapshot.is_committed(base_offset, next_offset):
        words.append("only on this disk")
    elif next_offset > base_offset:
        words.append("in both tiers")
    return ", ".join(words)


def _remote_state(snapshot: PartitionSnapshot, next_offset: int) -> str:
    return "expired, leaves" if next_offset <= snapshot.log_start_offset else "readable"


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
            "$ a month, storage": dollars(row),
        }
    )
