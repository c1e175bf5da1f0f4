"""The consumer groups of a directory for readers that show them, without slow imports where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from local.errors import Unavailable

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager
    from tiered.serve.groups.lag import GroupLag

OFFSETS_TOPIC = "__consumer_offsets"  # `tiered.serve.groups.offsets_log.OFFSETS_TOPIC`


def groups_of_directory(
    manager: LogManager, now_ms: int, topics: Sequence[str] = (), *, may_ask: bool = True
) -> list[GroupLag]:
    """As `group_lags.consumer_groups`. Raises also ImportError, if there may be groups and kio is not installed."""
    if all(each.name != OFFSETS_TOPIC for each in manager.topics.all()):
        return []
    from tiered.serve.node.group_lags import consumer_groups

    return consumer_groups(manager, now_ms, topics, may_ask=may_ask)


def groups_at_hand(manager: LogManager, now_ms: int) -> list[GroupLag]:
    """As `groups_of_directory`, without a request to the store. Raises Unavailable without kio."""
    try:
        return groups_of_directory(manager, now_ms, may_ask=False)
    except ImportError:
        raise Unavailable("consumer groups are unknown without a package: pip install 'tiered[kafka]'") from None
