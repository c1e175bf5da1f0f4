"""Start and end of problems in a running manager: a log line for each cause, and counts for metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from local.errors import LogError
from local.names import TopicPartition
from tiered.config.units import format_ms
from tiered.node.problem_groups import Problem, flat, group_problems

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    problem: Problem
    since_ms: int


class ProblemWatch:
    """Compares the problems after each maintenance run with the ones before. Not thread safe.

    Counts are of partitions, by the class of the error.
    """

    def __init__(self) -> None:
        self.begun = Counter[str]()
        self.ended = Counter[str]()
        self._known: dict[TopicPartition | None, _Known] = {}

    @property
    def oldest_since_ms(self) -> int | None:
        """Start of the longest lasting problem; None without one."""
        return min((each.since_ms for each in self._known.values()), default=None)

    def note(self, problems: Mapping[TopicPartition, LogError], of_node: LogError | None, now_ms: int) -> None:
        """Compare with the previous maintenance run. An error of another class is another problem."""
        errors: dict[TopicPartition | None, LogError] = dict(problems.items())
        if of_node is not None:
            errors[None] = of_node
        met = {name: _problem(name, error) for name, error in errors.items()}
        is_same = {name for name, each in self._known.items() if name in met and met[name].kind == each.problem.kind}
        over = [each for name, each in self._known.items() if name not in is_same]
        new = [each for name, each in met.items() if name not in is_same]
        self._known = {
            name: _Known(problem=each, since_ms=self._known[name].since_ms if name in is_same else now_ms)
            for name, each in met.items()
        }
        self.begun.update(each.kind for each in new)
        self.ended.update(each.problem.kind for each in over)
        for group in group_problems(new):
            if len(group.places) > 1:  # a single one was logged where it occurred
                _log.error("problem: %s", group.line)
        self._log_over(over, now_ms)

    def _log_over(self, over: Iterable[_Known], now_ms: int) -> None:
        since = {each.problem.where: each.since_ms for each in over}
        for group in group_problems(each.problem for each in over):
            lasted = format_ms(max(0, now_ms - min(since[where] for where in group.places)) // 1000 * 1000)
            _log.warning("problem ended after %s: %s", lasted, group.line)


def _problem(name: TopicPartition | None, error: LogError) -> Problem:
    return Problem(where="node" if name is None else str(name), kind=type(error).__name__, message=flat(error))
