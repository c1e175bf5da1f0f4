"""Sending the parts of large uploads side by side: a bounded number at once, over all uploads of a store together.

Whatever the size of a segment and however many are copied at once, `parts_max` parts are being sent, and each upload
holds one more, which it made while it waited for its turn. So an upload never waits for memory that only itself could
free, and the next part is there as soon as a place is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from remote.store.protocol import Body

PARTS_MAX = 8  # in flight: a fast link is full with 4; S3's latency wants 8 to 16, each of which holds 8 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A part that the store has: its number, from 1, and what the store calls it."""

    number: int
    tag: str
    size_bytes: int


class PartSender:
    """Thread safe; one for a store, so that all uploads of it share the places. Threads live as long as an upload."""

    def __init__(self, parts_max: int = PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._places = threading.BoundedSemaphore(parts_max)

    def send(self, parts: Iterable[Body], send_one: Callable[[int, Body], SentPart]) -> list[SentPart]:
        """What `send_one(number, body)` answered for every part, in order; the calls go side by side.

        Raises what `parts` or the first failing call raises; by then no call is under way any more, and no more parts
        were asked for than had been.
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
