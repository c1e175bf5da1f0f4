"""The overview (topics, bytes at risk, problems, dollars) and the page of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tiered.config.units import counted, format_bytes, format_count, format_dollars
from tiered.node.problems import ProblemGroup, group_problems, same_cause
from tiered.status.status_report import Row, StatusReport, status_facts, topic_row
from tiered.web.html import Child, Html, tag
from tiered.web.pages.history import HistoryData, history_section
from tiered.web.pages.parts import (
    Heading,
    boxes,
    commands,
    figures,
    frame,
    lasted,
    link,
    paged,
    pager,
    pauses,
    stamp,
    table,
    topic_path,
    worst_problems,
)

_HEADINGS = (
    Heading("Topic", sort="topic"),
    Heading("Partitions", is_number=True, sort="partitions"),
    Heading("Offsets", is_number=True, sort="offsets"),
    Heading("Local", is_number=True, sort="local_bytes"),
    Heading("Remote", is_number=True, sort="remote_bytes"),
    Heading("Upload lag", is_number=True, sort="lag_bytes"),
    Heading("At risk", is_number=True, sort="at_risk_bytes"),
    Heading("$ a month", is_number=True, sort="dollars_per_month"),
    Heading("State"),
)
NOT_READ = "unknown"
SORTS = tuple(each.sort for each in _HEADINGS if each.sort is not None)


def overview(
    report: StatusReport,
    query: Mapping[str, str],
    *,
    has_remote: bool,
    note: Child = None,
    history: HistoryData | None = None,
) -> str:
    """The page; `query` may hold ``q`` (part of a name), ``sort`` (a column, largest first), ``page`` and ``span``."""
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
        _over_time(report, query, history),
        tag("h2", "Topics"),
        tag("div", topic_list(everything, query, problem_counts(report)), id="topics"),
        _fine_print(report),
    )


def topic_list(everything: Sequence[Row], query: Mapping[str, str], problems: Mapping[str, int]) -> list[Html]:
    """A search, the requested page of the list, and links to the others; `problems` counts problems by topic."""
    selection = _selection(query)
    rows = _sorted(_found(everything, selection["q"]), selection["sort"])
    page, shown = paged(rows, query)
    sorts = {name: link("/", {**selection, "sort": "" if name == "topic" else name}) for name in SORTS}
    caption = counted(len(everything), "topic")
    caption = f"{len(rows):,} of {caption}" if selection["q"] else caption
    sorted_by = selection["sort"] if selection["sort"] in SORTS else "topic"
    cells = (_cells(row, problems) for row in shown)
    found = [_search(selection), table(caption, _HEADINGS, cells, sorts=sorts, sorted_by=sorted_by)]
    if selection["q"] and not rows:
        found.append(
            tag("p", "No topic has ", tag("q", selection["q"]), " in its name. ", tag("a", "Show all", href="/"))
        )
    return [*found, pager("/", selection, page, len(rows))]


def _selection(query: Mapping[str, str]) -> dict[str, str]:
    """The query parts that every link to the same page repeats."""
    return {name: query.get(name, "") for name in ("q", "sort", "span")}


def _over_time(report: StatusReport, query: Mapping[str, str], history: HistoryData | None) -> Html | None:
    if history is None:
        return None
    return history_section(history, None, report.now_ms, "/", query, _selection(query))


def found_topics(report: StatusReport, query: Mapping[str, str]) -> dict[str, object]:
    """The same for programs: ``tiered status -o json`` of the topics that match a search, all pages at once."""
    rows = _found([topic_row(report, topic) for topic in report.topics], query.get("q", ""))
    return {**msgspec.structs.asdict(status_facts(report)), "topics": _sorted(rows, query.get("sort", ""))}


def problems_page(report: StatusReport, query: Mapping[str, str], note: Child = None) -> str:
    """All problems, or all of one ``topic``, grouped by cause; a ``page`` of them.

    ``alike`` is a place: list each place that has the same problem as it.
    """
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


def unknown_remote(row: Row) -> bool:
    """Whether no bucket state was read for any partition, so that the remote tier has no figures."""
    return bool(row.get("is_tiered")) and row.get("remote_segments") is None


def shown(row: Row, name: str, show: Callable[[int], str] = format_count) -> str:
    """Format a figure of a row; a dash for None."""
    value = row.get(name)
    return show(value) if isinstance(value, int) else "-"


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


def state(problems: int) -> Child:
    """The text of the last column: a word, never only a colour."""
    return tag("span", f"{problems:,} stuck", class_="bad") if problems else "ok"


def _found(rows: Sequence[Row], text: str) -> list[Row]:
    wanted = text.strip().casefold()
    return [row for row in rows if wanted in str(row["topic"]).casefold()]


def _sorted(rows: list[Row], name: str) -> list[Row]:
    """Sort largest first; by name without a requested order."""
    if name not in SORTS or name == "topic":
        return rows
    return sorted(rows, key=lambda row: float(str(row.get(name) or 0)), reverse=True)


def _cells(row: Row, problems: Mapping[str, int]) -> list[Child]:
    return [
        tag("a", str(row["topic"]), href=topic_path(str(row["topic"]))),
        shown(row, "partitions"),
        shown(row, "offsets"),
        shown(row, "local_bytes", format_bytes),
        remote(row),
        lag(row),
        shown(row, "at_risk_bytes", format_bytes),
        dollars(row),
        state(problems.get(str(row["topic"]), 0)),
    ]


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
        """The sum over topics with a known figure, and the number of the other topics."""
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
    """The first steps for an empty directory."""
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
        gone = counted(len(report.deleted), "deleted topic")
        words += f"Objects of {gone} in the bucket still cost money and are not in these figures: tiered cost show. "
    return tag("p", words, dollars_of, class_="faint")
