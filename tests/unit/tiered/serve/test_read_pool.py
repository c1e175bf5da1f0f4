"""The pool of blocking reads: shared results, and slow partitions that leave threads to the others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from local.errors import Unavailable
from tiered.serve.read_pool import ReadPool


def test_calls_with_one_key_share_one_result() -> None:
    gate, calls = threading.Event(), list[int]()

    def call() -> int:
        gate.wait(60)
        calls.append(1)
        return len(calls)

    async def work() -> list[int]:
        pool = ReadPool(2)
        futures = [pool.run("p", "key", call) for _ in range(5)]
        gate.set()
        found = [await each for each in futures]
        found.append(await pool.run("p", "key", call))
        pool.close()
        return found

    assert asyncio.run(work()) == [1] * 5 + [2]


def test_a_partition_that_hangs_leaves_threads_to_the_others() -> None:
    gate = threading.Event()

    async def work() -> list[int]:
        pool = ReadPool(3, partition_max=2)
        hanging = [pool.run("slow", ("slow", at), lambda: gate.wait(60)) for at in range(10)]
        found = [await pool.run("fast", ("fast", at), lambda at=at: at) for at in range(20)]  # type: ignore[misc]
        assert not any(each.done() for each in hanging)
        gate.set()
        assert all([await each for each in hanging])
        pool.close()
        return found

    assert asyncio.run(work()) == list(range(20))


def test_an_error_belongs_to_the_callers_that_wait() -> None:
    def fail() -> None:
        raise Unavailable("down")

    async def work() -> None:
        pool = ReadPool(1)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await pool.run("p", "key", fail)
        pool.close()

    asyncio.run(work())


def test_a_call_after_the_end_of_another_gets_a_new_result() -> None:
    """The other call may have ended although its callbacks have not run yet: its result is older than the new call."""
    gate = threading.Event()

    async def work() -> int:
        pool = ReadPool(2)
        ended = pool.run("p", "key", lambda: gate.wait(60))
        ended.set_result(True)
        found = await pool.run("p", "key", lambda: 2)
        gate.set()
        assert await pool.run("p", "key", lambda: 3) == 3
        pool.close()
        return found

    assert asyncio.run(work()) == 2
