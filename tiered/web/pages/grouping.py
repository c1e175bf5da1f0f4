"""Problems on a page: a box for each cause (`tiered.status.problem_rows`), which opens to list its places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tiered.config.units import counted
from tiered.status.problem_rows import StatusProblemGroup, cause_key, group_status_problems
from tiered.status.status_report import StatusProblem, StatusReport
from tiered.web.html import Child, Html, tag
from tiered.web.pages.parts import lasted, link, place, problem_box, since

SHOWN = 5  # groups at the top of a page
MEMBERS_SHOWN = 50  # of an opened group


def boxes(report: StatusReport, groups: Iterable[StatusProblemGroup], query: Mapping[str, str]) -> list[Html]:
    """A box for each group; a group of several places shows their number and opens."""
    return [problem_box(report, each.first) if len(each.members) == 1 else _box(report, each, query) for each in groups]


def worst_problems(report: StatusReport, problems: Sequence[StatusProblem], topic: str = "") -> list[Html]:
    """The oldest problems, and a link to the page of all problems, or of one `topic` if given."""
    found = group_status_problems(problems, report.now_ms)
    rest = sum(len(each.members) for each in found[SHOWN:])
    query = {"topic": topic}
    to_all = tag("p", tag("a", counted(rest, "more problem"), href=link("/troubles", query)))
    return [*boxes(report, found[:SHOWN], query), *([to_all] if rest else [])]


def _box(report: StatusReport, group: StatusProblemGroup, query: Mapping[str, str]) -> Html:
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
            data_kept=f"{first.kind} {cause_key(first)}",
        ),
        class_="trouble",
    )
