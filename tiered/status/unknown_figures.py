"""Figures that could not be read: their partitions and the reasons.

A figure that was not read is null, never 0 (I11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from tiered.node.problem_groups import UnreadPartitions, group_problems, problems_of
from tiered.status.tier_journal import is_unseen

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager


def unread_partitions(manager: LogManager, topics: Iterable[str] | None = None) -> dict[TopicPartition, LogError]:
    """Return the partitions of some topics (None: all) with an unreadable tier, and the errors.

    A partition that did not open has no figures of either tier. A partition with an unread manifest has none of the
    remote tier. A problem that leaves both tiers readable is not included.
    """
    problems = dict(manager.problems)
    wanted = None if topics is None else set(topics)
    opened = {each.name: each for each in manager.partitions()}
    return {
        name: error
        for name, error in sorted(problems.items())
        if (wanted is None or name.topic in wanted) and (name not in opened or is_unseen(manager, opened[name]))
    }


def unread_rows(unread: Mapping[TopicPartition, LogError]) -> list[UnreadPartitions]:
    """Return an object for each cause, with the partitions that have null figures."""
    return [
        UnreadPartitions(cause=each.cause, kind=each.kind, count=len(each.places), partitions=list(each.places))
        for each in group_problems(problems_of(unread))
    ]
