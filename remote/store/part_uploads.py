"""Concurrent sending of the parts of large uploads, bounded over all uploads of a store.

For any size of segments and any number of copies, `parts_max` parts are sent at once. Each upload holds one more part,
made while it waits for a slot. So an upload never waits for memory that only it could free, and the next part is ready
when a slot is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from remote.store.protocol import Body

PARTS_MAX = 8  # in flight: 4 fill a fast link; S3's latency needs 8 to 16, each with 8 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A part that the store has accepted: its number, from 1, and the store's tag for it."""

    number: int
    tag: str
    size_bytes: int


class PartSender:
    """Sends parts for all uploads of one store, which share its slots. Thread safe.

    Threads live as long as an upload.
    """

    def __init__(self, parts_max: int = PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._places = threading.BoundedSemaphore(parts_max)

    def send(self, parts: Iterable[Body], send_one: Callable[[int, Body], SentPart]) -> list[SentPart]:
        """Return the answer of `send_one(number, body)` for every part, in order; calls run concurrently.

        Raises the error of `parts` or of the first failing call. At that point no call is running, and no further part
        was requested.
        """
        under_way: list[Future[SentPart]] = []
        has_failed = threading.Event()

        def done(future: Future[SentPart]) -> None:
            self._places.release()
            if future.cancelled() or future.exception() is not None:
                has_failed.set()

        with ThreadPoolExecutor(self._parts_max, thread_name_prefix="tiered-upload") as pool:
            try:
                for number, body in enumerate(parts, 1):
                    self._places.acquire()
                    if has_failed.is_set():
                        self._places.release()
                        break
                    under_way.append(pool.submit(send_one, number, body))
                    under_way[-1].add_done_callback(done)
                return [future.result() for future in under_way]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
