"""What pages are made from, gathered in threads: a reader waits for DEADLINE_S at most, whatever the manager waits for.

Looks that are asked for at the same time are one. What is not there by the deadline goes on being gathered, and is
there for whoever asks next; until then there is the last that was found, however old, or `Unavailable`. No more than
THREADS_MAX looks go on at a time: one that hangs for ever costs a thread, not the page.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from local.errors import Unavailable

DEADLINE_S = 3.0
THREADS_MAX = 6
KEPT_MAX = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """What was found, begun at `at_ms`. `late_since_ms`: a newer look began then and has not ended.

    `read_ms` is when the tiers were read that it was made from, None for `at_ms`.
    """

    value: T
    at_ms: int
    late_since_ms: int | None = None
    read_ms: int | None = None

    @property
    def data_ms(self) -> int:
        """Of when the data is."""
        return self.at_ms if self.read_ms is None else min(self.at_ms, self.read_ms)


class Patience:
    """What one reader waits in all, over as many looks as the page needs."""

    def __init__(self, deadline_s: float, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._until_s = elapsed_s() + deadline_s

    def left_s(self) -> float:
        return max(0.0, self._until_s - self._elapsed_s())


class Gathering:
    """Finds by key. Thread safe."""

    def __init__(self, now_ms: Callable[[], int], *, deadline_s: float = DEADLINE_S) -> None:
        self._now_ms, self._deadline_s = now_ms, deadline_s
        self._lock = threading.Lock()
        self._found: OrderedDict[str, Told[object]] = OrderedDict()
        self._running: dict[str, _Look] = {}

    def patience(self) -> Patience:
        """A whole deadline, to be shared by the looks of a page that needs one after the other."""
        return Patience(self._deadline_s)

    def get(self, key: str, make: Callable[[], T], *, keep_ms: int = 0, patience: Patience | None = None) -> Told[T]:
        """What `make` gives, or gave less than `keep_ms` ago under this key (0: what is found is only of use to
        those who waited for it). Waits for a deadline of its own, or for what is left of a `patience`.

        Raises what `make` raises, and Unavailable for what is not there by the deadline and never was.
        """
        now = self._now_ms()
        with self._lock:
            known = cast("Told[T] | None", self._found.get(key))
            if known is not None and 0 <= now - known.at_ms < keep_ms:
                return known
            look = self._running.get(key) or self._begin(key, make, now)
        wait_s = self._deadline_s if patience is None else patience.left_s()
        if look is not None and look.done.wait(wait_s):
            if look.error is not None:
                raise look.error
            return Told(cast(T, look.value), look.since_ms)
        since = look.since_ms if look is not None else now
        if known is not None:
            return Told(known.value, known.at_ms, since)
        why = "too many others go on" if look is None else "the disk does not answer, or this machine is busy"
        raise Unavailable(f"looking at the logs, not there yet and tried on: {why}", waited_ms=self._now_ms() - since)

    def _begin(self, key: str, make: Callable[[], object], now_ms: int) -> _Look | None:
        if len(self._running) >= THREADS_MAX:
            return None
        look = _Look(now_ms)
        try:
            threading.Thread(target=self._run, args=(key, look, make), name=f"tiered-page {key}", daemon=True).start()
        except RuntimeError:
            return None  # the process can have no thread now; whoever asks next begins it
        self._running[key] = look  # under the lock, which it needs to end
        return look

    def _run(self, key: str, look: _Look, make: Callable[[], object]) -> None:
        try:
            look.value = make()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            look.error = error
        with self._lock:
            del self._running[key]
            if look.error is None:
                self._found[key] = Told(look.value, look.since_ms)
                self._found.move_to_end(key)
                while len(self._found) > KEPT_MAX:
                    self._found.popitem(last=False)
        look.done.set()


class _Look:
    """One that goes on."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.done = threading.Event()
        self.value: object = None
        self.error: Exception | None = None
