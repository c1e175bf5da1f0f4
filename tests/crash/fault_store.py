"""An object store that fails one chosen call in one chosen way, and runs a callback before each call.

| fault | effect of the call | its answer |
|---|---|---|
| BEFORE | none | Unavailable |
| AFTER | happens | Unavailable |
| EXISTS | happens (creates only; others as AFTER) | AlreadyExists, as from a client that retried internally |
| LATE_1, LATE_3 | happens one or three calls later, as a request delayed in the network | Unavailable |
| OUTAGE | none, and none for each of the next calls | Unavailable |
| KILL_BEFORE, KILL_AFTER | none; happens | the process ends: `Killed` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from local.errors import AlreadyExists, LogError, Unavailable
from remote.store import Body, GetRange, ObjectInfo, ObjectStore, UploadSource

OUTAGE_CALLS = 12


class Killed(BaseException):
    """The process ended here. No handler of the product may catch it."""


class Fault(Enum):
    BEFORE = "before"
    AFTER = "after"
    EXISTS = "exists"
    LATE_1 = "late by one call"
    LATE_3 = "late by three calls"
    OUTAGE = "outage"
    KILL_BEFORE = "kill before"
    KILL_AFTER = "kill after"


LATE = {Fault.LATE_1: 1, Fault.LATE_3: 3}
KILLS = {Fault.KILL_BEFORE, Fault.KILL_AFTER}


class FaultStore:
    """Wraps a store; call `at` (from 0) meets `fault`. `before_call(n)` runs before each call.

    `calls` lists all calls so far, so the length after a clean run is the number of calls that can fail.
    """

    def __init__(
        self,
        inner: ObjectStore,
        at: int = -1,
        fault: Fault | None = None,
        *,
        before_call: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self._at = at
        self._fault = fault
        self._before_call = before_call
        self._held_up: list[tuple[int, Callable[[], Any]]] = []
        self._dead = False

    @property
    def url(self) -> str:
        return self.inner.url

    def _do(self, name: str, effect: Callable[[], Any]) -> Any:
        if self._dead:
            raise Killed
        number = len(self.calls)
        self.calls.append(name)
        self._before_call(number)
        self.deliver(number)
        fault = self._fault if number == self._at else None
        if self._fault is Fault.OUTAGE and self._at <= number < self._at + OUTAGE_CALLS:
            fault = Fault.BEFORE
        trouble = Unavailable("injected fault", call=number, verb=name)
        match fault:
            case None:
                return effect()
            case Fault.BEFORE | Fault.OUTAGE:
                raise trouble
            case Fault.AFTER:
                effect()
                raise trouble
            case Fault.EXISTS:
                effect()
                raise AlreadyExists("injected fault", call=number) if name == "put_if_absent" else trouble
            case Fault.LATE_1 | Fault.LATE_3:
                self._held_up.append((number + LATE[fault], effect))
                raise trouble
            case Fault.KILL_BEFORE | Fault.KILL_AFTER:
                self._dead = True
                if fault is Fault.KILL_AFTER:
                    effect()
                raise Killed

    def deliver(self, up_to: int) -> None:
        """Apply the delayed requests that are due by call `up_to`. Their answers are discarded."""
        due = [effect for when, effect in self._held_up if when <= up_to]
        self._held_up = [each for each in self._held_up if each[0] > up_to]
        for effect in due:
            with suppress(LogError):
                effect()

    def put(self, key: str, body: Body) -> None:
        self._do("put", lambda: self.inner.put(key, body))

    def put_if_absent(self, key: str, body: Body) -> None:
        self._do("put_if_absent", lambda: self.inner.put_if_absent(key, body))

    def upload(self, key: str, source: UploadSource) -> None:
        self._do("upload", lambda: self.inner.upload(key, source))

    def get(self, key: str) -> bytes:
        return self._do("get", lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", lambda: self.inner.get_range(key, start, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        return self._do("get_ranges", lambda: self.inner.get_ranges(key, ranges))

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        return self._do("get_each", lambda: self.inner.get_each(ranges))

    def head(self, key: str) -> ObjectInfo:
        return self._do("head", lambda: self.inner.head(key))

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._do("list_prefixes", lambda: self.inner.list_prefixes(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        self._do("delete", lambda: self.inner.delete(wanted))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(self._do("list", lambda: tuple(self.inner.list(prefix, start_after=start_after))))

    def close(self) -> None:
        self.inner.close()
