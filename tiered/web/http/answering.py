"""Compute responses in threads, at most ANSWER_S each, so that an event loop never blocks.

A slow disk or a held lock does not extend the wait.
Threads are daemons: a hanging thread keeps no process alive. At most ANSWERS_MAX responses are computed at a time,
further requests queue. The server's connection limit bounds the queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from http import HTTPStatus

from local.errors import Unavailable

ANSWER_S = 10.0
ANSWERS_MAX = 32

Answered = tuple[HTTPStatus, str, str]  # status, content type, body


class Answering:
    """Computes the responses of one server. Call it only in the thread of the server's loop."""

    def __init__(self, *, limit_s: float = ANSWER_S, count_max: int = ANSWERS_MAX) -> None:
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(count_max)

    async def of(self, make: Callable[[], Answered]) -> Answered:
        """Return the result of `make`. Raises its exceptions, and Unavailable if there is no result in time."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Answered] | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                await self._places.acquire()
                made = loop.create_future()
                self._begin(make, made, loop)
                return await made
        except TimeoutError:
            why = "it was not finished in time" if made is not None else "too many other replies are in progress"
            raise Unavailable(f"cannot reply, {why}", waited_s=self._limit_s) from None

    def _begin(
        self, make: Callable[[], Answered], made: asyncio.Future[Answered], loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            threading.Thread(target=self._run, args=(make, made, loop), name="tiered-answer", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise Unavailable("cannot reply, there is no free thread", cause=str(error)) from None

    def _run(
        self, make: Callable[[], Answered], made: asyncio.Future[Answered], loop: asyncio.AbstractEventLoop
    ) -> None:
        answer: Answered | None = None
        failed: Exception | None = None
        try:
            answer = make()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            failed = error
        try:
            loop.call_soon_threadsafe(self._done, made, answer, failed)
        except RuntimeError:
            return  # the server and its loop were closed before the result came

    def _done(self, made: asyncio.Future[Answered], answer: Answered | None, failed: Exception | None) -> None:
        self._places.release()
        if made.done():
            return  # the request was cancelled
        if failed is not None:
            made.set_exception(failed)
        else:
            assert answer is not None
            made.set_result(answer)
