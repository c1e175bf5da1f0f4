"""The groups of a node over a real `LogManager`: their offsets follow the topics of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from manager_world import NOW, World

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.messages.base import Error
from tiered.serve.node.endpoint import group_coordinator
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource
from tiered.serve.node.operations import delete_topic

P0 = TopicPartition("t", 0)
GROUP = Committer(group_id="g")


class Work:
    def now_ms(self) -> int:
        return NOW


def run(work: Callable[[LogManager, GroupCoordinator], Awaitable[None]]) -> None:
    async def all_of_it(manager: LogManager) -> None:
        groups = coordinator(manager)
        try:
            assert await groups.load()
            await work(manager, groups)
        finally:
            groups.close()

    with World().open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        asyncio.run(all_of_it(manager))


def coordinator(manager: LogManager) -> GroupCoordinator:
    return group_coordinator(manager, NodeSource(manager), NodeSink(manager, lambda: NOW), lambda: NOW)


def test_the_offsets_of_a_topic_that_a_command_deletes_are_removed() -> None:
    async def work(manager: LogManager, groups: GroupCoordinator) -> None:
        assert await groups.commit(GROUP, [NewOffset(partition=P0, offset=1000)]) == [Error.NONE]
        delete_topic(manager, Work(), name="t")
        async with asyncio.timeout(60):
            while groups.offsets_of("g"):
                await asyncio.sleep(0.001)

    run(work)


def test_a_recreated_topic_has_no_committed_offsets_after_a_crash_before_the_tombstones() -> None:
    async def work(manager: LogManager, groups: GroupCoordinator) -> None:
        assert await groups.commit(GROUP, [NewOffset(partition=P0, offset=1000)]) == [Error.NONE]
        manager.topics.on_deleted = lambda name: None
        manager.topics.delete("t", now_ms=NOW)
        manager.topics.create("t", 1, {}, now_ms=NOW)
        assert groups.offsets_of("g") == {}
        again = coordinator(manager)
        try:
            assert await again.load()
            assert again.offsets_of("g") == {}
        finally:
            again.close()

    run(work)


def test_a_command_does_not_delete_the_topic_of_offsets() -> None:
    async def work(manager: LogManager, groups: GroupCoordinator) -> None:
        assert await groups.prepare() is Error.NONE
        with pytest.raises(InvalidRequest, match="holds the state of groups or transactions"):
            delete_topic(manager, Work(), name="__consumer_offsets")
        assert await groups.commit(GROUP, [NewOffset(partition=P0, offset=1)]) == [Error.NONE]

    run(work)
