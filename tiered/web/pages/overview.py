"""The pages of topics: the overview with the page of problems, a topic, and a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

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
from tiered.web.html import (
    Child,
    Heading,
    Html,
    boxes,
    commands,
    figure,
    figures,
    frame,
    lasted,
    link,
    paged,
    pager,
    partition_path,
    pauses,
    problem_boxes,
    shown,
    stamp,
    table,
    tag,
    topic_path,
    worst_problems,
)
from tiered.web.pages.history import HistoryData, history_section
from tiered.web.pages.segment_map import Window, records_left, remote_kind, segment_map

NOT_READ = "unknown"


def unknown_remote(row: Row) -> bool:
    """Whether the bucket was read for no partition, so that the remote tier has no figures."""
    return bool(row.get("is_tiered")) and row.get("remote_segments") is None


def lag(row: Row) -> str:
    """Format the copy lag as ``tiered status`` does."""
    if not row.get("is_tiered"):
        return "-"
    if unknown_remote(row):
        return NOT_READ
    waits = f"{shown(row, 'lag_segments')} seg {shown(row, 'lag_bytes', format_bytes)}" if row["lag_segments"] else "ok"
    return f"paused, {waits if row['lag_segments'] else 'nothing waits'}" if row.get("is_paused") else waits


def remote(row: Row) -> str:
    return NOT_READ if unknown_remote(row) else shown(row, "remote_bytes", format_bytes)


def dollars(row: Row) -> str:
    value = row.get("dollars_per_month")
    if unknown_remote(row):
        return NOT_READ
    return format_dollars(value) if isinstance(value, float) else "-"


def problem_counts(report: StatusReport) -> Counter[str]:
    """Count the problems of each topic."""
    return Counter(each.partition.topic for each in report.problems if each.partition is not None)


def _state(row: Row) -> Child:
    return tag("span", f"{row['stuck']:,} stuck", class_="bad") if row["stuck"] else "ok"


_FIGURES = (
    figure("Local", "local_bytes", format_bytes),
    Heading("Remote", is_number=True, sort="remote_bytes", cell=remote),
    Heading("Upload lag", is_number=True, sort="lag_bytes", cell=lag),
    figure("At risk", "at_risk_bytes", format_bytes),
    Heading("$ a month", is_number=True, sort="dollars_per_month", cell=dollars),
    Heading("State", cell=_state),
)
_TOPICS = (
    Heading("Topic", sort="topic", cell=lambda row: tag("a", row["topic"], href=topic_path(row["topic"]))),
    figure("Partitions", "partitions"),
    figure("Offsets", "offsets"),
    *_FIGURES,
)
SORTS = tuple(each.sort for each in _TOPICS if each.sort is not None)


def overview(
    report: StatusReport,
    query: Mapping[str, str],
    *,
    has_remote: bool,
    note: Child = None,
    history: HistoryData | None = None,
) -> str:
    """Return the page. `query` has ``q`` (part of a name), ``sort`` (largest first), ``page``, ``span``."""
    if not report.topics:
        problems = worst_problems(report, report.problems)
        return frame("Overview", "/", report.now_ms, note, _work(report), problems, _begin(has_remote))
    everything = [topic_row(report, topic) for topic in report.topics]
    return frame(
        "Overview",
        "/",
        report.now_ms,
        note,
        _work(report),
        worst_problems(report, report.problems),
        pauses(report, everything),
        _sums(report, everything),
        history_section(history, None, report.now_ms, "/", query, _selection(query)),
        tag("h2", "Topics"),
        tag("div", topic_list(everything, query, problem_counts(report)), id="topics"),
        _fine_print(report),
    )


def topic_list(everything: Sequence[Row], query: Mapping[str, str], problems: Mapping[str, int]) -> list[Html]:
    """Return a search, the requested page of the list, and links; `problems` counts problems by topic."""
    selection = _selection(query)
    rows = _sorted(_found(everything, selection["q"]), selection["sort"])
    page, some = paged(rows, query)
    sorts = {name: link("/", {**selection, "sort": "" if name == "topic" else name}) for name in SORTS}
    caption = counted(len(everything), "topic")
    caption = f"{len(rows):,} of {caption}" if selection["q"] else caption
    sorted_by = selection["sort"] if selection["sort"] in SORTS else "topic"
    cells = ({**row, "stuck": problems.get(str(row["topic"]), 0)} for row in some)
    found = [_search(selection), table(caption, _TOPICS, cells, sorts=sorts, sorted_by=sorted_by)]
    if selection["q"] and not rows:
        found.append(
            tag("p", "No topic has ", tag("q", selection["q"]), " in its name. ", tag("a", "Show all", href="/"))
        )
    return [*found, pager("/", selection, page, len(rows))]


def _selection(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query.get(name, "") for name in ("q", "sort", "span")}


def found_topics(report: StatusReport, query: Mapping[str, str]) -> dict[str, object]:
    """Return ``tiered status -o json`` of the topics that match a search, all pages at once."""
    rows = _found([topic_row(report, topic) for topic in report.topics], query.get("q", ""))
    return {**msgspec.structs.asdict(status_facts(report)), "topics": _sorted(rows, query.get("sort", ""))}


def problems_page(report: StatusReport, query: Mapping[str, str], note: Child = None) -> str:
    """Return the problems by cause: all, those of ``topic``, or those with the cause of place ``alike``."""
    here, now, topic, alike = "/troubles", report.now_ms, query.get("topic", ""), query.get("alike", "")
    problems = [each for each in report.problems if not topic or (each.partition and each.partition.topic == topic)]
    problems = same_cause(problems, alike) if alike else problems
    parts = [("of", topic), ("like that of", alike)]
    filters = " ".join(f"{words} {name}" for words, name in parts if name)
    of_some = tag("p", f"Only those {filters}. ", tag("a", "Show all", href=here)) if filters else None
    if not problems:
        return frame("Troubles", here, now, note, _work(report), of_some, tag("p", "There are no problems."))
    groups = [ProblemGroup((each,)) for each in problems] if alike else group_problems(problems)
    page, some = paged(groups, query)
    selection = {"topic": topic, "alike": alike}
    pages = pager(here, selection, page, len(groups))
    return frame("Troubles", here, now, note, _work(report), of_some, boxes(report, some, {"topic": topic}), pages)


def _found(rows: Sequence[Row], text: str) -> list[Row]:
    wanted = text.strip().casefold()
    return [row for row in rows if wanted in str(row["topic"]).casefold()]


def _sorted(rows: list[Row], name: str) -> list[Row]:
    if name not in SORTS or name == "topic":
        return rows
    return sorted(rows, key=lambda row: float(str(row.get(name) or 0)), reverse=True)


def _search(selection: Mapping[str, str]) -> Html:
    keeps = [
        tag("input", type="hidden", name=each, value=selection[each]) for each in ("sort", "span") if selection[each]
    ]
    return tag(
        "form",
        tag("label", "Topics with", for_="search"),
        tag("input", type="search", id="search", name="q", value=selection["q"]),
        keeps,
        tag("button", "Search"),
        method="get",
        action="/",
        role="search",
    )


def _sums(report: StatusReport, rows: Sequence[Row]) -> Html:
    def total(name: str, show: Callable[[float], str]) -> str:
        known = [float(str(row[name])) for row in rows if row.get(name) is not None]
        missing = len(rows) - len(known)
        if not known:
            return NOT_READ
        return show(sum(known)) + (f" and {counted(missing, 'topic')} {NOT_READ}" if missing else "")

    def in_bytes(name: str) -> str:
        return total(name, lambda value: format_bytes(int(value)))

    return figures(
        {
            "Topics": format_count(len(rows)),
            "Partitions": total("partitions", lambda value: format_count(int(value))),
            "Local": in_bytes("local_bytes"),
            "Remote": in_bytes("remote_bytes"),
            "Upload lag": in_bytes("lag_bytes"),
            "At risk": in_bytes("at_risk_bytes"),
            "$ a month": total("dollars_per_month", format_dollars) if report.prices is not None else "-",
            "Problems": tag("a", format_count(len(report.problems)), href="/troubles")
            if report.problems
            else "nothing",
        }
    )


def _work(report: StatusReport) -> Html:
    work, silent = report.work, report.silent_holder
    if silent is not None:
        return tag("p", f"{silent[0].upper()}{silent[1:]}.")
    if work is None:
        return tag("p", "No maintenance round has run here yet.")
    age = lasted(report.now_ms - work.seen_ms)
    ago = "just now" if report.now_ms - work.seen_ms < 1000 else f"{age} ago"
    words = (
        f"The running manager finished a maintenance round {ago}."
        if report.is_at_work
        else f"No manager runs, since {age}."
    )
    return tag("p", words, f" Last round at {stamp(work.seen_ms)}.")


def _begin(has_remote: bool) -> list[Html]:
    words = "There is no topic yet. Create one and append to it in another terminal, in the same directory:"
    tiering = " -X remote.storage.enable=true" if has_remote else ""
    steps = commands(
        f"tiered topic create orders -p 2{tiering}",
        "tiered append orders events.txt",
        "tiered status",
    )
    bucket = "Segments of topics with remote.storage.enable are copied to the bucket automatically."
    no_bucket = (
        "No bucket is configured, so all data stays on this disk: set url in [remote] of tiered.toml to tier topics."
    )
    return [tag("h2", "First steps"), tag("p", words), steps, tag("p", bucket if has_remote else no_bucket)]


def _fine_print(report: StatusReport) -> Html:
    prices = report.prices
    if prices is None:
        dollars_of = "Dollars are not shown, because the price file (cost.prices) is unreadable: tiered doctor."
    else:
        dollars_of = (
            f"Dollars are for storage in the bucket, including pending deletes; {prices.region}, "
            f"prices of {prices.as_of}."
        )
    words = "At risk: bytes that exist on this disk only. Offset counts include gaps. "
    if report.deleted:
        deleted = counted(len(report.deleted), "deleted topic")
        words += f"Objects of {deleted} in the bucket still cost money and are not in these figures: tiered cost show. "
    return tag("p", words, dollars_of, class_="faint")


_PARTITIONS = (
    Heading("Partition", cell=lambda row: tag("a", str(row["name"]), href=partition_path(row["name"]))),
    figure("Log start", "log_start_offset"),
    figure("Local from", "local_start_offset"),
    figure("Remote to", "remote_next_offset"),
    figure("Next", "next_offset"),
    *_FIGURES,
)
_SEGMENTS = (
    figure("From offset", "base_offset"),
    figure("To", "next_offset"),
    Heading("Tier", cell=lambda row: row["tier"]),
    figure("Size", "size_bytes", format_bytes),
    Heading(
        "Newest record",
        is_short=True,
        cell=lambda row: None if row["max_timestamp_ms"] is None else stamp(row["max_timestamp_ms"]),
    ),
    Heading("State", cell=lambda row: row["state"]),
)
_REMOTE_STATES = {"expired": "expired, unlinked next", "compacted": "readable, compacted", "remote": "readable"}


def topic_page(
    report: StatusReport, topic: Topic, query: Mapping[str, str], note: Child = None, history: HistoryData | None = None
) -> str:
    """Return the page of one topic; `report` and `history` are for that topic."""
    names, here = topic.partitions(), topic_path(topic.name)
    page, some = paged(names, query)
    problems = [each for each in report.problems if each.partition is None or each.partition.topic == topic.name]
    counts = Counter(each.partition for each in problems)
    rows = ({**partition_row(report, name), "name": name, "stuck": counts[name]} for name in some)
    settings = [[tag("code", key), tag("code", value)] for key, value in sorted(topic.properties.items())]
    return frame(
        topic.name,
        here,
        report.now_ms,
        note,
        worst_problems(report, problems, topic.name),
        pauses(report, [topic_row(report, topic)]),
        table(counted(len(names), "partition"), _PARTITIONS, rows),
        pager(here, {"span": query.get("span", "")}, page, len(names)),
        history_section(history, topic.name, report.now_ms, here, query, {}),
        tag("h2", "Topic settings"),
        table("All other settings have their defaults", (Heading("Setting"), Heading("Value")), settings)
        if settings
        else tag("p", "None: all settings have their defaults."),
    )


def topic_facts(report: StatusReport, topic: Topic) -> dict[str, object]:
    """Return ``tiered status -p TOPIC -o json``."""
    return {
        **msgspec.structs.asdict(status_facts(report)),
        "partitions": [partition_row(report, name) for name in topic.partitions()],
    }


def partition_page(
    report: StatusReport, snapshot: PartitionSnapshot, query: Mapping[str, str], note: Child = None
) -> str:
    """Return the page of one partition; `report` is for its topic."""
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
        table(f"{_counted_rows(rows, snapshot)}, oldest first", _SEGMENTS, some),
        pager(here, window.query, page, len(rows)),
    )


def partition_facts(report: StatusReport, name: TopicPartition) -> dict[str, object]:
    """Return ``tiered status -p -o json`` of this partition alone."""
    return {**msgspec.structs.asdict(status_facts(report)), "partitions": [partition_row(report, name)]}


def segment_rows(snapshot: PartitionSnapshot, window: Window) -> list[Row]:
    """Return local segments, segment entries, and pages with unloaded entries in a window, by offset."""
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
