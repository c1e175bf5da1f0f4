"""Waits for durable records: all appends that wait for one log share its next flush.

| an append begins to wait | it is covered by |
|---|---|
| no flush of its log runs | the flush that begins after the event loop has handled what is ready now |
| a flush runs | the next one, which begins when the running one ends |

So each append is covered by a flush that begins after its write, and at most one flush of a log runs. A wait that its
caller cancels is dropped, so a flush that hangs does not collect waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from local.errors import Unavailable
from local.names import TopicPartition
from tiered.serve.read_pool import ReadPool

Waiting = dict[asyncio.Future[None], int]  # when records are durable → the offset after them


class GroupFlush:
    """Belongs to one event loop."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool
        self._waiting: dict[TopicPartition, Waiting] = {}  # of each log with a flush that runs or is about to

    def wait(
        self, partition: TopicPartition, next_offset: int, flush: Callable[[TopicPartition], int]
    ) -> asyncio.Future[None]:
        """Done when all records below `next_offset` are durable; the caller may cancel it.

        `flush` makes everything written before its call durable and returns the log end at the call. Its error is the
        result, or Unavailable if the log was truncated below `next_offset`.
        """
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = {}
            loop.call_soon(self._begin, partition, flush)
        waiting[durable] = next_offset
        durable.add_done_callback(partial(self._forget, partition))
        return durable

    def _forget(self, partition: TopicPartition, durable: asyncio.Future[None]) -> None:
        self._waiting.get(partition, {}).pop(durable, None)

    def _begin(self, partition: TopicPartition, flush: Callable[[TopicPartition], int]) -> None:
        covered, self._waiting[partition] = self._waiting[partition], {}
        running = self._pool.run(partition, object(), partial(flush, partition))
        running.add_done_callback(partial(self._end, partition, flush, covered))

    def _end(
        self,
        partition: TopicPartition,
        flush: Callable[[TopicPartition], int],
        covered: Waiting,
        ended: asyncio.Future[int],
    ) -> None:
        if self._waiting[partition]:
            self._begin(partition, flush)
        else:
            del self._waiting[partition]
        error = ended.exception()
        for durable, next_offset in covered.items():
            if durable.done():
                continue  # cancelled by its caller
            if error is None and ended.result() < next_offset:
                wrong = "cannot make records durable, the log was truncated"
                durable.set_exception(Unavailable(wrong, partition=partition))
            elif error is not None:
                durable.set_exception(error)
            else:
                durable.set_result(None)
