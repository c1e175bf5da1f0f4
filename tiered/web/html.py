"""HTML that is escaped by construction, and the common parts of all pages.

Every value that is not `Html` is untrusted text and enters a page only through `tag`, which escapes content and
attributes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from local.names import TopicPartition
from tiered.config.units import counted, format_bytes, format_count, format_ms
from tiered.node.problems import Problem, ProblemGroup, group_problems
from tiered.status.status_report import Row, StatusReport

VOID = frozenset({"meta", "link", "input"})
REFRESH_S = 30
SOON_S = 8  # refresh interval while data is not ready
ROWS_ON_A_PAGE = 100
GROUPS_SHOWN = 5  # problems at the top of a page
MEMBERS_SHOWN = 50  # of an opened group
PAUSES_SHOWN = 5
SECTIONS = {
    "/": "Overview",
    "/plan": "Plan",
    "/cost": "Cost lab",
    "/compaction": "Compaction",
    "/troubles": "Troubles",
}

T = TypeVar("T")


class Html(str):
    """Markup. Only `tag` and `join` make it."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """``<name ...>children</name>``. `class_` is class, `aria_label` aria-label; None and False omit one."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Concatenate children; escape all that are not markup."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, (str, int)):
        return Html(escape(str(children)))
    return Html("".join(map(join, children)))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


@dataclass(frozen=True, slots=True)
class Heading:
    """A column. `is_short`: text that must not wrap. `sort` is the name by which a link sorts.

    `cell` makes a cell from a row; without it rows are sequences of cells.
    """

    title: str
    is_number: bool = False
    sort: str | None = None
    is_short: bool = False
    cell: Callable[[Any], Child] | None = None

    @property
    def style(self) -> str | None:
        """The CSS class of its cells."""
        return "number" if self.is_number else "short" if self.is_short else None


def numbers(*titles: str) -> tuple[Heading, ...]:
    """Return the columns of these titles, all of numbers."""
    return tuple(Heading(title, is_number=True) for title in titles)


def figure(title: str, name: str, show: Callable[[int], str] = format_count) -> Heading:
    """Return the column of a whole number of a `Row`, sorted by its name."""
    return Heading(title, is_number=True, sort=name, cell=lambda row: shown(row, name, show))


def shown(row: Row, name: str, show: Callable[[int], str] = format_count) -> str:
    """Format a figure of a row; a dash for None."""
    value = row.get(name)
    return show(value) if isinstance(value, int) else "-"


def frame(
    title: str, here: str, now_ms: int, *children: Child, refresh_s: int | None = REFRESH_S, script: str | None = None
) -> str:
    """A whole document with the stylesheet, `script` as a module, and the navigation.

    `here` is the path of the page's section. A page with `refresh_s` refreshes with and without the script.
    """
    head = [
        _LINKS,
        tag("script", src="/page.js", defer=True),
        tag("script", src=script, type="module") if script is not None else None,
        tag("noscript", tag("meta", http_equiv="refresh", content=refresh_s)) if refresh_s else None,
    ]
    links = [
        tag("a", name, href=path, aria_current="page" if path == here else None) for path, name in SECTIONS.items()
    ]
    body = tag(
        "body",
        _SKIP,
        tag("header", tag("strong", "tiered"), tag("nav", links, aria_label="Pages")),
        tag("main", tag("h1", title), children, id="content"),
        tag("footer", tag("p", f"Computed at {stamp(now_ms)}. Read-only.", id="asked", role="status")),
        data_refresh=refresh_s,
    )
    return document(f"{title} · tiered", head, body)


def bare_page(title: str, inner: Child) -> str:
    """A document without any data of the logs, for clients without access."""
    main = tag("main", tag("h1", title), inner, id="content")
    body = tag("body", _SKIP, tag("header", tag("strong", "tiered")), main)
    return document(f"{title} · tiered", _LINKS, body)


_SKIP = tag("a", "Skip to the content", href="#content", class_="skip")
_LINKS = [
    tag("link", rel="stylesheet", href="/page.css"),
    tag("link", rel="icon", href="/favicon.svg", type="image/svg+xml"),
]


def document(title: str, head: Child, body: Html) -> str:
    """A document in English; `head` are further parts of its head."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        head,
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


@cache
def asset(name: str) -> str:
    """Return a file of the pages: the stylesheet, a script or the icon."""
    return files("tiered.web.pages").joinpath(name).read_text(encoding="utf-8")


def table(
    caption: str,
    headings: Sequence[Heading],
    rows: Iterable[Any],
    *,
    sorts: Mapping[str, str] | None = None,
    sorted_by: str | None = None,
) -> Html:
    """Rows under headings; the first cell names its row.

    `sorts` are links by a heading's `sort`; numbers sort largest first, names alphabetically.
    """
    links = sorts or {}
    head = [_heading(each, links, is_sorted=each.sort is not None and each.sort == sorted_by) for each in headings]
    lines = [tag("tr", map(_cell, range(len(headings)), _cells(row, headings), headings)) for row in rows]
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", head)), tag("tbody", lines))
    return tag("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption)


def figures(facts: Mapping[str, Child]) -> Html:
    """Names and values next to each other."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()], class_="figures")


def problem_boxes(report: StatusReport, problem: Iterable[Problem]) -> list[Html]:
    """A box for each problem."""
    return [problem_box(report, each) for each in problem]


def problem_box(report: StatusReport, problem: Problem) -> Html:
    """Return place, cause, start time and next step of a problem."""
    words = f": {problem.what} ({since(problem, report.now_ms)})"
    return tag("div", tag("strong", place(problem)), words, tag("div", "Next: ", problem.next_step), class_="trouble")


def place(problem: Problem) -> Child:
    """The place of a problem; a link if the place has a page."""
    return (
        problem.where if problem.partition is None else tag("a", problem.where, href=partition_path(problem.partition))
    )


def since(problem: Problem, now_ms: int) -> str:
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


def paged(rows: Sequence[T], query: Mapping[str, str]) -> tuple[int, Sequence[T]]:
    """Return the number of the requested page, or of the last one, and its rows."""
    page = min(page_count(len(rows)), requested_page(query))
    return page, rows[(page - 1) * ROWS_ON_A_PAGE : page * ROWS_ON_A_PAGE]


def link(path: str, query: Mapping[str, str]) -> str:
    """A path with the query parts that are not empty."""
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


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


def _cells(row: Any, headings: Sequence[Heading]) -> Iterable[Child]:  # noqa: ANN401 - a row of any type
    return row if headings[0].cell is None else [each.cell(row) for each in headings if each.cell is not None]


def _cell(at: int, content: Child, heading: Heading) -> Html:
    name = heading.style
    shown = join("-" if content is None else content)
    return tag("th", shown, scope="row", class_=name) if at == 0 else tag("td", shown, class_=name)


def field(id_: str, label: str, value: str, *, name: str | None = None, example: str = "") -> Html:
    """A text field."""
    control = tag("input", type="text", id=id_, name=name or id_, value=value, placeholder=example, size=10)
    return tag("div", tag("label", label, for_=id_), control)


def choice(id_: str, label: str, options: Mapping[str, str], chosen: str, *, class_: str | None = None) -> Html:
    """A choice: labels by value. With the script, class ``slider`` becomes a slider (`lab.js`)."""
    inner = [tag("option", words, value=value, selected=value == chosen) for value, words in options.items()]
    return tag("div", tag("label", label, for_=id_), tag("select", inner, id=id_, name=id_, class_=class_))


def button(words: str) -> Html:
    return tag("button", words)


def boxes(report: StatusReport, groups: Iterable[ProblemGroup], query: Mapping[str, str]) -> list[Html]:
    """A box for each group; a group of several places shows their number and opens."""
    return [problem_box(report, each.first) if len(each.members) == 1 else _box(report, each, query) for each in groups]


def worst_problems(report: StatusReport, problems: Sequence[Problem], topic: str = "") -> list[Html]:
    """The oldest problems, and a link to the page of all problems, or of one `topic` if given."""
    found = group_problems(problems)
    rest = sum(len(each.members) for each in found[GROUPS_SHOWN:])
    query = {"topic": topic}
    to_all = tag("p", tag("a", counted(rest, "more problem"), href=link("/troubles", query)))
    return [*boxes(report, found[:GROUPS_SHOWN], query), *([to_all] if rest else [])]


def _box(report: StatusReport, group: ProblemGroup, query: Mapping[str, str]) -> Html:
    first, count = group.first, len(group.members)
    things = "partition" if all(each.partition is not None for each in group.members) else "place"
    some = [
        tag("li", place(each), f": {each.what} ({since(each, report.now_ms)})")
        for each in group.members[:MEMBERS_SHOWN]
    ]
    all_of_them = tag("a", f"All {count:,}, a page at a time", href=link("/troubles", {**query, "alike": first.where}))
    rest: Child = tag("p", all_of_them) if count > MEMBERS_SHOWN else None
    oldest = "" if first.since_ms is None else f", the oldest for {lasted(report.now_ms - first.since_ms)}"
    return tag(
        "div",
        tag("strong", counted(count, things)),
        f": {group.what}{oldest}",
        tag("div", "Next: ", first.next_step),
        tag(
            "details",
            tag("summary", "Partitions and start times"),
            tag("ul", some),
            rest,
            data_kept=f"{first.kind} {first.cause}",
        ),
        class_="trouble",
    )


def pauses(report: StatusReport, rows: Sequence[Row]) -> list[Html]:
    """A line for each of the first topics with paused uploads, and the number of the others."""
    paused = [row for row in rows if row.get("is_paused")]
    found = [_pause_line(report, row) for row in paused[:PAUSES_SHOWN]]
    if paused[PAUSES_SHOWN:]:
        found.append(tag("p", f"Uploads of {counted(len(paused) - PAUSES_SHOWN, 'more topic')} are paused."))
    return found


def _known_bytes(size: object) -> str:
    return format_bytes(size) if isinstance(size, int) else "an unknown number of bytes"


def _pause_line(report: StatusReport, row: Row) -> Html:
    since_ms, reason = row.get("paused_since_ms"), row.get("pause_reason")
    words = f"Uploads of {row['topic']} are paused"
    words += f" since {stamp(since_ms)}, for {lasted(report.now_ms - since_ms)}" if isinstance(since_ms, int) else ""
    words += f" ({reason})" if reason else ""
    waits, risk = _known_bytes(row.get("lag_bytes")), _known_bytes(row.get("at_risk_bytes"))
    words += f". {waits[0].upper()}{waits[1:]} wait, {risk} exist on this disk only. To resume: "
    return tag("p", words, tag("code", "tiered resume"), class_="bad")
