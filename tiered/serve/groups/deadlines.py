"""Deadlines by key, in ms of one clock: the earliest one in O(log n), a later one for the same key in O(1).

A key has one entry in the heap. If its deadline was moved to a later time, the entry is pushed again when it surfaces.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []  # the number makes the order of equal times that of their pushes
        self._entries: dict[K, tuple[int, int]] = {}  # of each key: its entry that counts
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due_ms: int) -> None:
        self._due[key] = due_ms
        entry = self._entries.get(key)
        if entry is None or due_ms < entry[0]:
            self._push(key, due_ms)

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)
        self._entries.pop(key, None)
        if len(self._heap) > 2 * len(self._due) + 16:
            self._heap = [each for each in self._heap if self._entries.get(each[2]) == each[:2]]
            heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        while self._heap:
            at_ms, number, key = self._heap[0]
            if self._entries.get(key) == (at_ms, number):
                if self._due[key] == at_ms:
                    return at_ms
                heapq.heappop(self._heap)
                self._push(key, self._due[key])
            else:
                heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield each key whose deadline is not after `now_ms`, the earliest first."""
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key], self._entries[key]
            yield key

    def _push(self, key: K, due_ms: int) -> None:
        self._pushed += 1
        self._entries[key] = due_ms, self._pushed
        heapq.heappush(self._heap, (due_ms, self._pushed, key))
