"""The byte budget: parts in their order, parts above the limit, and cancelled callers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from tiered.serve.handlers.byte_budget import ByteBudget

T = TypeVar("T")


async def begun(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    task = asyncio.create_task(work)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task


def test_parts_are_given_in_their_order_even_if_a_later_one_would_fit() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        await budget.take(6)
        large, small = await begun(budget.take(5)), await begun(budget.take(1))
        assert not large.done()
        assert not small.done()
        budget.give_back(6)
        await asyncio.gather(large, small)
        assert budget.used_bytes == 6

    asyncio.run(work())


def test_a_part_above_the_limit_is_given_alone() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        await budget.take(1)
        large = await begun(budget.take(50))
        assert not large.done()
        budget.give_back(1)
        await large
        after = await begun(budget.take(1))
        assert not after.done()
        budget.give_back(50)
        await after

    asyncio.run(work())


@pytest.mark.parametrize("is_given", [False, True])
def test_a_cancelled_caller_leaves_its_part_to_the_others(is_given: bool) -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        await budget.take(10)
        first, second = await begun(budget.take(8)), await begun(budget.take(8))
        if is_given:
            budget.give_back(10)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        if not is_given:
            budget.give_back(10)
        await second
        assert budget.used_bytes == 8

    asyncio.run(work())
