"""Problems grouped by cause: one line with a count, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiered.node.problem_groups import cause_of, group_line, shared_message
from tiered.status.status_report import StatusProblem

_WHATS = {"upload": "upload waits", "deletion": "deletion waits past the grace period"}


@dataclass(frozen=True, slots=True)
class StatusProblemGroup:
    """Problems in different places with one cause, the longest first."""

    members: tuple[StatusProblem, ...]

    @property
    def first(self) -> StatusProblem:
        return self.members[0]

    @property
    def what(self) -> str:
        """The common message of all members."""
        if len(self.members) == 1:
            return self.first.what
        return _WHATS.get(self.first.kind) or shared_message([(each.what, each.where) for each in self.members])

    @property
    def line(self) -> str:
        """The place, or the number of places and the first names, then the message."""
        thing = "partition" if all(each.partition is not None for each in self.members) else "place"
        return group_line([each.where for each in self.members], self.what, thing)


def group_status_problems(problems: Iterable[StatusProblem], now_ms: int) -> list[StatusProblemGroup]:
    """Group by cause, ordered by the oldest problem of each group."""
    found: dict[tuple[str, str, str], list[StatusProblem]] = {}
    for each in sorted(problems, key=lambda each: each.since_ms if each.since_ms is not None else now_ms):
        found.setdefault(_key(each), []).append(each)
    return [StatusProblemGroup(tuple(each)) for each in found.values()]


def group_of(problems: Sequence[StatusProblem], where: str) -> list[StatusProblem]:
    """Return the problems with the same cause as in `where`; none if there is no problem there."""
    keys = {_key(each) for each in problems if each.where == where}
    return [each for each in problems if _key(each) in keys]


def cause_key(problems: StatusProblem) -> str:
    """Return the cause without the place."""
    return problems.kind if problems.kind in _WHATS else cause_of(problems.what, problems.where)


def _key(problems: StatusProblem) -> tuple[str, str, str]:
    return problems.kind, problems.next_step, cause_key(problems)
