"""Run one function on several values in bounded daemon threads, for which an interrupted process does not wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

POLL_S = 0.5  # longest delay of a signal


def side_by_side(work: Callable[[T], R], things: Sequence[T], *, threads: int, name: str) -> list[R]:
    """The results of `work`, in order. Raises the first error, after the end of the running calls."""
    if len(things) < 2:
        return [work(each) for each in things]
    waiting = deque(enumerate(things))
    done: dict[int, R] = {}
    errors: list[BaseException] = []

    def take_turns() -> None:
        while waiting and not errors:
            try:
                at, thing = waiting.popleft()
            except IndexError:
                return  # another thread took it
            try:
                done[at] = work(thing)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                errors.append(error)

    workers = [threading.Thread(target=take_turns, name=f"{name}_{at}", daemon=True) for at in range(threads)]
    try:
        for each in workers[: len(things)]:
            each.start()
        for each in workers[: len(things)]:
            while each.is_alive():  # CPython delays a signal that comes just before an unlimited wait
                each.join(POLL_S)
    finally:
        waiting.clear()
    if errors:
        raise errors[0]
    return [done[at] for at in range(len(things))]
