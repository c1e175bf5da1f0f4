"""Waits for durable records that share flushes: order, errors, cancelled waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from local.errors import DiskFailed, Unavailable
from local.names import TopicPartition
from tiered.serve.handlers.group_flush import GroupFlush
from tiered.serve.read_pool import ReadPool

ORDERS, SLOW = TopicPartition("orders", 0), TopicPartition("slow", 0)


class Disk:
    """A log end, the flushes that saw it, and a gate that holds a flush back."""

    def __init__(self) -> None:
        self.end = 0
        self.flushed: list[int] = []
        self.has_begun, self.gate = threading.Event(), threading.Event()

    def flush(self, partition: TopicPartition) -> int:
        end = self.end
        self.flushed.append(end)
        self.has_begun.set()
        assert self.gate.wait(60), "the test must open the gate"
        return end


def run(work: Callable[[GroupFlush], Awaitable[None]]) -> None:
    async def main() -> None:
        pool = ReadPool(2, partition_max=1)
        try:
            await work(GroupFlush(pool))
        finally:
            pool.close()

    asyncio.run(main())


def test_appends_before_the_flush_begins_share_it_and_later_ones_share_the_next() -> None:
    disk = Disk()

    async def work(group: GroupFlush) -> None:
        disk.end = 3
        first = [group.wait(ORDERS, at, disk.flush) for at in (1, 2, 3)]
        await asyncio.to_thread(disk.has_begun.wait, 60)
        disk.end = 5
        second = [group.wait(ORDERS, at, disk.flush) for at in (4, 5)]
        assert not any(each.done() for each in first + second)
        disk.gate.set()
        await asyncio.gather(*first, *second)

    run(work)
    assert disk.flushed == [3, 5]


def test_a_log_that_hangs_does_not_delay_another_one() -> None:
    hanging, disk = Disk(), Disk()
    hanging.end = disk.end = 1
    disk.gate.set()

    async def work(group: GroupFlush) -> None:
        slow = group.wait(SLOW, 1, hanging.flush)
        await group.wait(ORDERS, 1, disk.flush)
        assert not slow.done()
        hanging.gate.set()
        await slow

    run(work)


def test_an_error_fails_the_waits_of_its_flush_and_the_next_flush_is_tried() -> None:
    disk = Disk()
    disk.end = 2
    disk.gate.set()

    def fail(partition: TopicPartition) -> int:
        raise DiskFailed("fsync")

    async def work(group: GroupFlush) -> None:
        failed = [group.wait(ORDERS, at, fail) for at in (1, 2)]
        for each in failed:
            with pytest.raises(DiskFailed):
                await each
        await group.wait(ORDERS, 2, disk.flush)

    run(work)


def test_a_truncated_log_fails_only_the_records_above_its_end() -> None:
    disk = Disk()
    disk.end = 2
    disk.gate.set()

    async def work(group: GroupFlush) -> None:
        durable, lost = group.wait(ORDERS, 2, disk.flush), group.wait(ORDERS, 3, disk.flush)
        await durable
        with pytest.raises(Unavailable, match="truncated"):
            await lost

    run(work)


def test_a_cancelled_wait_changes_nothing_for_the_others() -> None:
    disk = Disk()
    disk.end = 1

    async def work(group: GroupFlush) -> None:
        cancelled, other = group.wait(ORDERS, 1, disk.flush), group.wait(ORDERS, 1, disk.flush)
        await asyncio.to_thread(disk.has_begun.wait, 60)
        cancelled.cancel()
        disk.gate.set()
        await other
        assert cancelled.cancelled()

    run(work)
    assert disk.flushed == [1]


def test_a_flush_that_hangs_collects_no_cancelled_waits() -> None:
    disk = Disk()
    disk.end = 1

    async def work(group: GroupFlush) -> None:
        covered = group.wait(ORDERS, 1, disk.flush)
        await asyncio.to_thread(disk.has_begun.wait, 60)
        for _ in range(3):
            group.wait(ORDERS, 1, disk.flush).cancel()
        await asyncio.sleep(0)
        assert not group._waiting[ORDERS]
        disk.gate.set()
        await covered

    run(work)
