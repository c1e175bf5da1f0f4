"""The same work on several things at once, by a bounded number of threads, and nobody waits longer than he wants to.

The threads of `concurrent.futures` are waited for when a process ends, and when its pool is left. What waits for a
store that hangs would so keep a process from ending that was told to. These are daemons: whoever is interrupted while
he waits for them goes at once, and what they are at is left to itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

LOOK_S = 0.5  # how long a signal may lie unseen


def side_by_side(work: Callable[[T], R], things: Sequence[T], *, threads: int, name: str) -> list[R]:
    """What `work` gives for each thing, in order. Raises the first error there was: nothing is begun after it, what was
    under way is waited for. An interrupt of the caller begins nothing more either, and waits for nothing."""
    waiting = deque(enumerate(things))
    done: dict[int, R] = {}
    errors: list[BaseException] = []

    def take_turns() -> None:
        while waiting and not errors:
            try:
                at, thing = waiting.popleft()
            except IndexError:
                return  # somebody else was faster
            try:
                done[at] = work(thing)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                errors.append(error)

    workers = [threading.Thread(target=take_turns, name=f"{name}_{at}", daemon=True) for at in range(threads)]
    try:
        for each in workers[: len(things)]:
            each.start()
        for each in workers[: len(things)]:
            while each.is_alive():  # CPython lets a signal lie that comes just before it falls asleep for good
                each.join(LOOK_S)
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    return [done[at] for at in range(len(things))]
