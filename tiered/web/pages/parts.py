"""Common parts of all pages: frame, tables, figures, problems, and pager links."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from local.names import TopicPartition
from tiered.config.units import format_ms
from tiered.status.status_report import StatusProblem, StatusReport
from tiered.web.html import Child, Html, join, tag

REFRESH_S = 30
SOON_S = 8  # refresh interval while data is not ready
ROWS_ON_A_PAGE = 100
SECTIONS = {
    "/": "Overview",
    "/plan": "Plan",
    "/cost": "Cost lab",
    "/compaction": "Compaction",
    "/troubles": "Troubles",
}


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its title, and whether it holds numbers or text that must not wrap.

    `sort` is the name by which a link sorts.
    """

    title: str
    is_number: bool = False
    sort: str | None = None
    is_short: bool = False

    @property
    def style(self) -> str | None:
        """The CSS class of its cells."""
        return "number" if self.is_number else "short" if self.is_short else None


def frame(
    title: str, here: str, now_ms: int, *children: Child, refresh_s: int | None = REFRESH_S, script: str | None = None
) -> str:
    """A whole document. `here` is the path of its section; a refreshing page refreshes with and without the script.

    `script` is the path of a module of this page.
    """
    by_itself = tag("noscript", tag("meta", http_equiv="refresh", content=refresh_s)) if refresh_s else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · tiered"),
        tag("link", rel="stylesheet", href="/page.css"),
        tag("link", rel="icon", href="/favicon.svg", type="image/svg+xml"),
        tag("script", src="/page.js", defer=True),
        tag("script", src=script, type="module") if script is not None else None,
        by_itself,
    )
    links = [
        tag("a", name, href=path, aria_current="page" if path == here else None) for path, name in SECTIONS.items()
    ]
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("strong", "tiered"), tag("nav", links, aria_label="Pages")),
        tag("main", tag("h1", title), children, id="content"),
        tag("footer", tag("p", f"Computed at {stamp(now_ms)}. Read-only.", id="asked", role="status")),
        data_refresh=refresh_s,
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def bare_page(title: str, inner: Child) -> str:
    """A document without any data of the logs, for clients without access."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · tiered"),
        tag("link", rel="stylesheet", href="/page.css"),
        tag("link", rel="icon", href="/favicon.svg", type="image/svg+xml"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("strong", "tiered")),
        tag("main", tag("h1", title), inner, id="content"),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def table(
    caption: str,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[Child]],
    *,
    sorts: Mapping[str, str] | None = None,
    sorted_by: str | None = None,
) -> Html:
    """Rows under headings; the first cell names its row.

    `sorts` are links by a heading's `sort`; numbers sort largest first, names alphabetically. `sorted_by` is the
    current
    order.
    """
    links = sorts or {}
    head = [_heading(each, links, is_sorted=each.sort is not None and each.sort == sorted_by) for each in headings]
    lines = [tag("tr", [_cell(at, each, headings[at]) for at, each in enumerate(row)]) for row in rows]
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", head)), tag("tbody", lines))
    return tag("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption)


def figures(facts: Mapping[str, Child]) -> Html:
    """Names and values next to each other."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()], class_="figures")


def problem_boxes(report: StatusReport, problem: Iterable[StatusProblem]) -> list[Html]:
    """A box for each problem."""
    return [problem_box(report, each) for each in problem]


def problem_box(report: StatusReport, problem: StatusProblem) -> Html:
    """Place, cause, start time and next step of a problem."""
    words = f": {problem.what} ({since(problem, report.now_ms)})"
    return tag("div", tag("strong", place(problem)), words, tag("div", "Next: ", problem.next_step), class_="trouble")


def place(problem: StatusProblem) -> Child:
    """The place of a problem; a link if the place has a page."""
    return (
        problem.where if problem.partition is None else tag("a", problem.where, href=partition_path(problem.partition))
    )


def since(problem: StatusProblem, now_ms: int) -> str:
    """``since 2026-01-01 10:00:00 UTC, for 11m, 22 rounds``."""
    if problem.since_ms is None:
        return "seen now, start time unknown"
    tries = f", {problem.count} rounds" if problem.count > 1 else ""
    return f"since {stamp(problem.since_ms)}, for {lasted(now_ms - problem.since_ms)}{tries}"


def pager(path: str, query: Mapping[str, str], page: int, count: int) -> Html:
    """Links to the pages of a list of `count` rows; nothing for a single page."""
    last = page_count(count)
    if last < 2:
        return Html("")
    first = (page - 1) * ROWS_ON_A_PAGE + 1
    steps = {"First": 1, "Previous": page - 1, "Next": page + 1, "Last": last}
    links = [
        tag("a", name, href=link(path, {**query, "page": str(to)}))
        for name, to in steps.items()
        if 1 <= to <= last and to != page
    ]
    shown = f"{first:,} to {min(count, first + ROWS_ON_A_PAGE - 1):,} of {count:,}"
    return tag("nav", tag("span", shown), links, aria_label="Pages of this list")


def requested_page(query: Mapping[str, str]) -> int:
    """The ``page`` of a query, from 1; 1 if it is missing or invalid."""
    text = query.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def page_count(count: int) -> int:
    return max(1, -(-count // ROWS_ON_A_PAGE))


def link(path: str, query: Mapping[str, str]) -> str:
    """A path with the query parts that are not empty."""
    said = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(said)}" if said else path


def topic_path(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}"


def stamp(ms: int) -> str:
    """Format a time in UTC, to the second."""
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # records may have any timestamp


def lasted(ms: int) -> str:
    return format_ms(max(0, ms) // 1000 * 1000)


def partition_path(name: TopicPartition) -> str:
    return f"{topic_path(name.topic)}/{name.partition}"


def commands(*lines: str) -> Html:
    return tag("pre", tag("code", "\n".join(lines)))


def _heading(heading: Heading, links: Mapping[str, str], *, is_sorted: bool) -> Html:
    to = links.get(heading.sort or "")
    title: Child = heading.title if to is None else tag("a", heading.title, href=to, title=f"Sort by {heading.title}")
    order = ("descending" if heading.is_number else "ascending") if is_sorted else None
    sign = tag("span", " ▼" if heading.is_number else " ▲", aria_hidden="true") if is_sorted else None
    return tag("th", title, sign, scope="col", class_=heading.style, aria_sort=order)


def _cell(at: int, content: Child, heading: Heading) -> Html:
    name = heading.style
    shown = join("-" if content is None else content)
    return tag("th", shown, scope="row", class_=name) if at == 0 else tag("td", shown, class_=name)
