"""A number of bytes that all connections share: each takes its part in the order of the requests, and waits for it."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Belongs to one event loop. A part above `limit_bytes` is given when no other part is in use."""

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> None:
        """Wait for `size_bytes`, which the caller must give back. A cancelled caller has nothing to give back."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                self._waiting.remove((size_bytes, turn))
                self._serve()
            raise

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.used_bytes += size_bytes
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._limit_bytes
