"""The page of a topic: its partitions, settings and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from local.names import TopicPartition
from tiered.config.units import counted, format_bytes
from tiered.node.topic_registry import Topic
from tiered.status.status_report import StatusReport
from tiered.status.status_rows import partition_row, status_facts, topic_row
from tiered.web.html import Child, tag
from tiered.web.pages.grouping import worst_problems
from tiered.web.pages.history import HistoryData, history_section
from tiered.web.pages.overview import dollars, lag, remote, shown, state
from tiered.web.pages.parts import (
    ROWS_ON_A_PAGE,
    Heading,
    frame,
    page_count,
    pager,
    partition_path,
    requested_page,
    table,
    topic_path,
)
from tiered.web.pages.pauses import pauses

_HEADINGS = (
    Heading("Partition"),
    Heading("Log start", is_number=True),
    Heading("Local from", is_number=True),
    Heading("Remote to", is_number=True),
    Heading("Next", is_number=True),
    Heading("Local", is_number=True),
    Heading("Remote", is_number=True),
    Heading("Upload lag", is_number=True),
    Heading("At risk", is_number=True),
    Heading("$ a month", is_number=True),
    Heading("State"),
)


def topic_page(
    report: StatusReport, topic: Topic, query: Mapping[str, str], note: Child = None, history: HistoryData | None = None
) -> str:
    """The page of one topic; `report` is for that topic alone, `history` has its notes."""
    names = topic.partitions()
    page, asked = min(page_count(len(names)), requested_page(query)), {"span": query.get("span", "")}
    some = names[(page - 1) * ROWS_ON_A_PAGE : page * ROWS_ON_A_PAGE]
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
        table(counted(len(names), "partition"), _HEADINGS, (_cells(report, name, counts[name]) for name in some)),
        pager(topic_path(topic.name), asked, page, len(names)),
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
