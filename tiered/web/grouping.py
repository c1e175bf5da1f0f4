"""Troubles of one kind taken together: a bucket that is out of reach is one trouble, however many partitions wait."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiered.status_report import StatusReport, Stuck
from tiered.units import counted
from tiered.web.html import Child, Html, tag
from tiered.web.parts import lasted, link, place, since, trouble

SHOWN = 5  # groups at the head of a page
MEMBERS_SHOWN = 50  # of a group that is opened
_FACTS = re.compile(r"\b(?!(?:cause|class|code|status)=)\w+=\S+")  # where it is; not what it is
_WHATS = {"upload": "uploads wait", "deletion": "deletions wait past the grace time"}


@dataclass(frozen=True, slots=True)
class Group:
    """Troubles that say the same of different places, those that last longest first."""

    members: tuple[Stuck, ...]

    @property
    def first(self) -> Stuck:
        return self.members[0]

    @property
    def what(self) -> str:
        """What is the matter with all of them."""
        return _WHATS.get(self.first.kind) or " ".join(_alike(self.first).split()).strip(" :")


def grouped(stuck: Iterable[Stuck], now_ms: int) -> list[Group]:
    """In the order of the oldest of each."""
    found: dict[tuple[str, str, str], list[Stuck]] = {}
    for each in sorted(stuck, key=lambda each: each.since_ms if each.since_ms is not None else now_ms):
        found.setdefault(_key(each), []).append(each)
    return [Group(tuple(each)) for each in found.values()]


def group_of(stuck: Sequence[Stuck], where: str) -> list[Stuck]:
    """Those that say the same as the trouble of that place does; none where it has none."""
    keys = {_key(each) for each in stuck if each.where == where}
    return [each for each in stuck if _key(each) in keys]


def boxes(report: StatusReport, groups: Iterable[Group], query: Mapping[str, str]) -> list[Html]:
    """A box for each group; one of several places says how many, and opens."""
    return [trouble(report, each.first) if len(each.members) == 1 else _box(report, each, query) for each in groups]


def worst_troubles(report: StatusReport, stuck: Sequence[Stuck], topic: str = "") -> list[Html]:
    """Those that last longest; a link to the page of all, of one `topic` alone where it is named."""
    found = grouped(stuck, report.now_ms)
    rest = sum(len(each.members) for each in found[SHOWN:])
    query = {"topic": topic}
    to_all = tag("p", tag("a", counted(rest, "more trouble"), href=link("/troubles", query)))
    return [*boxes(report, found[:SHOWN], query), *([to_all] if rest else [])]


def _box(report: StatusReport, group: Group, query: Mapping[str, str]) -> Html:
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
            tag("summary", "Which, and since when"),
            tag("ul", some),
            rest,
            data_kept=f"{first.kind} {group.what}",
        ),
        class_="trouble",
    )


def _key(stuck: Stuck) -> tuple[str, str, str]:
    return stuck.kind, stuck.next_step, _alike(stuck)


def _alike(stuck: Stuck) -> str:
    """What is the matter, without where."""
    if stuck.kind in _WHATS:
        return stuck.kind
    return re.sub(rf"\b{re.escape(stuck.where)}\b", "", _FACTS.sub("", stuck.what))
