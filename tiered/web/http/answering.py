"""Answers that are made in threads, for a loop that may not wait: nobody waits longer than ANSWER_S, however long a
disk or a lock keeps the making.

Threads are daemons: one that hangs for ever keeps no process alive. ANSWERS_MAX are made at a time, others wait for
their turn; how many can wait is bounded by the connections that a server holds.
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
    """Makes answers of one server. Only for its loop's thread."""

    def __init__(self, *, limit_s: float = ANSWER_S, count_max: int = ANSWERS_MAX) -> None:
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(count_max)

    async def of(self, make: Callable[[], Answered]) -> Answered:
        """What `make` gives. Raises what it raises, and Unavailable when it does not in time."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Answered] | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                await self._places.acquire()
                made = loop.create_future()
                self._begin(make, made, loop)
                return await made
        except TimeoutError:
            why = "not done in time" if made is not None else "too many other answers are being made"
            raise Unavailable(f"answering, {why}", waited_s=self._limit_s) from None

    def _begin(
        self, make: Callable[[], Answered], made: asyncio.Future[Answered], loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            threading.Thread(target=self._run, args=(make, made, loop), name="tiered-answer", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise Unavailable("answering, there is no thread for it now", cause=str(error)) from None

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
            return  # the server was closed meanwhile, and its loop with it

    def _done(self, made: asyncio.Future[Answered], answer: Answered | None, failed: Exception | None) -> None:
        self._places.release()
        if made.done():
            return  # who waited for it has gone
        if failed is not None:
            made.set_exception(failed)
        else:
            assert answer is not None
            made.set_result(answer)
