"""The groups of a node and their lags: from its coordinator, or for another process of the same machine.

| the directory | another process reads the groups |
|---|---|
| a node runs | through its Unix socket; while it loads they are unknown |
| no node, or a node of another user | from ``__consumer_offsets``, as the next start will |
| no topic ``__consumer_offsets`` | there are none (`directory_groups`) |

Ends, log starts and retention come from the manager of the process that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress

from local.errors import AccessDenied, Unavailable
from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from tiered.manager.manager import LogManager
from tiered.serve.commands.unix_socket import connect
from tiered.serve.endpoint_metrics import Figure
from tiered.serve.groups.commits import is_of_another_topic
from tiered.serve.groups.consumer.records import Kind
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState, Moment
from tiered.serve.groups.lag import GroupLag, SeenGroup, group_lags, lag_figures
from tiered.serve.groups.loader import load
from tiered.serve.groups.offsets_log import OFFSETS_TOPIC, TopicOffsetsLog
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource
from tiered.status.status_report import snapshots_at_hand

ANSWER_S = 10.0
READS_MAX = 10
_SETTINGS = GroupSettings()


def coordinator_figures(
    manager: LogManager, groups: GroupCoordinator, now_ms: Callable[[], int]
) -> Callable[[], Iterator[Figure]]:
    """The metrics of the groups of a running node; callable from any thread. None of them before it has loaded."""

    def figures() -> Iterator[Figure]:
        seen = _of_coordinator(groups)
        if seen is not None:
            yield from lag_figures(seen, _snapshots(manager, seen, now_ms()))

    return figures


def consumer_groups(
    manager: LogManager, now_ms: int, topics: Sequence[str] = (), *, may_ask: bool = True
) -> list[GroupLag]:
    """The groups of the manager's directory, in another process than their coordinator, or with none.

    Without `may_ask` no request is sent to the store. Raises Unavailable if they cannot be read now, and Corrupt.
    """
    seen = _of_running_node(manager)
    seen = _stored(manager, now_ms, may_ask=may_ask) if seen is None else seen
    return group_lags(seen, _snapshots(manager, seen, now_ms), topics)


def _snapshots(manager: LogManager, seen: Sequence[SeenGroup], now_ms: int) -> dict[TopicPartition, PartitionSnapshot]:
    existing = {each.name for each in manager.topics.all()}
    wanted = {name.topic for group in seen for name in group.committed or ()} & existing
    return {each.partition: each for each in snapshots_at_hand(manager, now_ms, sorted(wanted))}


def _of_coordinator(groups: GroupCoordinator) -> list[SeenGroup] | None:
    """From any thread: the event loop changes plain dicts, and a copy of one is a single step of the interpreter."""
    if groups.loading():
        return None
    for _ in range(READS_MAX):
        with suppress(RuntimeError):  # the members of a group changed while its state was computed
            return _seen(groups)
    return None


def _seen(groups: GroupCoordinator) -> list[SeenGroup]:
    return [
        SeenGroup(
            group=name,
            state=group.state.value,
            members=len(group.members),
            committed={where: found.value.offset for where, found in groups.offsets_of(name).items()},
        )
        for name, group in dict(groups.groups()).items()
    ]


def _of_running_node(manager: LogManager) -> list[SeenGroup] | None:
    """None: no node runs, or it belongs to another user."""
    from tiered.serve.commands.client import Client  # only a node has the package kio
    from tiered.serve.node.group_calls import seen_groups

    for _, root in manager.directories.places():
        try:
            connection = connect(root, ANSWER_S)
        except AccessDenied:
            return None
        if connection is not None:
            with Client(connection, timeout_s=ANSWER_S) as client:
                return seen_groups(client, timeout_s=ANSWER_S)
    return None


def _stored(manager: LogManager, now_ms: int, *, may_ask: bool) -> list[SeenGroup]:
    """The groups as the log has them. The members of a stable group are those of its last rebalance."""
    if not may_ask:
        for held in manager.partitions.all([OFFSETS_TOPIC]):
            start = held.log.local_log_start_offset
            if held.snapshot(now_ms, may_ask=False).log_start_offset < start:
                raise Unavailable("the offsets of groups are in the bucket, and no node runs", partition=held.name)
    with closing(NodeSource(manager)) as source:
        sink = NodeSink(manager, lambda: now_ms)
        _, loaded = load(TopicOffsetsLog(source, sink, lambda *_: None, 0))
        topics = source.topics()
    found = []
    for name in {*loaded.offsets.groups(), *loaded.groups, *loaded.consumers}:
        offsets = {
            where: each.value.offset
            for where, each in loaded.offsets.of(name).items()
            if not is_of_another_topic(each.value, where.topic, topics)
        }
        members = sum(key.kind is Kind.MEMBER for key in loaded.consumers.get(name, ()))
        state = GroupState.STABLE if members else GroupState.EMPTY
        if (value := loaded.groups.get(name)) is not None and name not in loaded.consumers:
            group = Group.stored(name, value, _SETTINGS, str, Moment(0, now_ms))
            members, state = len(group.members), group.state
        found.append(SeenGroup(group=name, state=state.value, members=members, committed=offsets))
    return found
