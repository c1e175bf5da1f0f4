"""A store with short deadlines while a command opens, so that an unavailable store delays no command.

| phase | a call | after an unanswered call |
|---|---|---|
| in haste (`haste`) | is tried once, for HASTE_S at most | every further call fails at once, until the phase ends |
| afterwards | is tried as any other store's | is tried as any other store's |

A store that answers, however many calls it takes, is used as usual: only an unanswered call ends the calls.

`BriefStore` is for commands that show figures and change nothing. Their unanswered waits are bounded in total, over all
partitions and all calls:

| the store | unanswered waits, in total | then |
|---|---|---|
| has answered no call | CALL_DEADLINE_S | every further call fails at once |
| has answered a call | ANSWERED_S | every further call fails at once |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from local.errors import LogError, Unavailable
from remote.store import ObjectStore
from remote.store.middleware.deadline_store import Deadlines, Watchdog, WatchedStore
from remote.store.middleware.retrying_store import RetryBudget, RetryPolicy
from tiered.config.config import Config
from tiered.stores.configured_store import configured_store

HASTE_S = 2.0  # about as long as a person waits without output (`remote.store.middleware.retrying_store`)
CALL_DEADLINE_S = 5.0  # a connection over a slow network, and two attempts
ANSWERED_S = 60.0  # one call to a store that answers (`remote.store.middleware.deadline_store`): a large object
RETRIES_MAX = 4.0  # retries of all calls together, until other calls succeed
CLOSE_S = 1.0  # for the client of a store that did not answer


class ShortDeadlineStore:
    """A store with a `haste` phase of short calls. Thread safe, except that one thread enters `haste`."""

    def __init__(self, inner: ObjectStore, budget: RetryBudget, limit_s: float = HASTE_S) -> None:
        """`budget` is that of the retries below `inner`."""
        self._inner = inner
        self._budget = budget
        self._brief = WatchedStore(inner, deadlines=Deadlines(call_s=limit_s))
        self._is_hasty = False
        self._silent: Unavailable | None = None

    @classmethod
    def of(cls, config: Config) -> ShortDeadlineStore | None:
        """The configured store; None without one. Raises as `configured_store`."""
        policy = RetryPolicy()
        store = configured_store(config, policy=policy)
        return cls(store, policy.budget) if store is not None else None

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def as_store(self) -> ObjectStore:
        """This store as the protocol: it forwards every method to the inner store."""
        return cast(ObjectStore, self)

    @contextmanager
    def haste(self) -> Iterator[None]:
        """A phase in which calls are short (module text)."""
        self._is_hasty, self._silent = True, None
        try:
            with self._budget.closed():
                yield
        finally:
            self._is_hasty = False

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*args: object, **more: object) -> object:
            if not self._is_hasty:
                return getattr(self._inner, verb)(*args, **more)
            if self._silent is not None:
                raise self._silent.restated("the store did not reply to an earlier call", **self._silent.facts)
            return self._noted(lambda: getattr(self._brief, verb)(*args, **more))

        return call

    def _noted(self, ask: Callable[[], object]) -> object:
        try:
            found = ask()
        except Unavailable as error:
            self._silent = error
            raise
        return self._listed(found) if isinstance(found, Iterator) else found

    def _listed(self, found: Iterator[object]) -> Iterator[object]:
        """A listing sends its requests while it is read."""
        try:
            yield from found
        except Unavailable as error:
            self._silent = error
            raise


class BriefStore:
    """A store that bounds the sum of unanswered waits. Thread safe."""

    def __init__(
        self, inner: ObjectStore, limit_s: float = CALL_DEADLINE_S, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner, self._limit_s, self._elapsed_s = inner, limit_s, elapsed_s
        self._watchdog = Watchdog()
        self._lock = threading.Lock()
        self._vain_s, self._has_answered = 0.0, False
        self._silent: Unavailable | None = None

    @classmethod
    def of(cls, config: Config) -> BriefStore | None:
        """The configured store; None without one. Raises as `configured_store`."""
        policy = RetryPolicy(deadline_s=CALL_DEADLINE_S / 2, budget=RetryBudget(RETRIES_MAX))
        store = configured_store(config, policy=policy)
        return cls(store) if store is not None else None

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def as_store(self) -> ObjectStore:
        """This store as the protocol: it forwards every method to the inner store."""
        return cast(ObjectStore, self)

    @property
    def is_away(self) -> bool:
        """Whether the store has answered no call so far and failed one."""
        return self._silent is not None and not self._has_answered

    def close(self) -> None:
        if self._silent is None:
            self._inner.close()
            return
        with suppress(Unavailable):
            self._watchdog.run(self._inner.close, CLOSE_S, "closing a store that did not reply")

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*args: object, **more: object) -> object:
            return self._timed(lambda left_s: getattr(self._within(left_s), verb)(*args, **more))

        return call

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[object]:
        """A listing sends its requests while it is read."""
        infos: Iterator[object] | None = None
        end = object()

        def following(left_s: float) -> object:
            nonlocal infos
            if infos is None:
                infos = self._within(left_s).list(prefix, start_after=start_after)
            return next(infos, end)

        while (info := self._timed(following)) is not end:
            yield info

    def _within(self, left_s: float) -> WatchedStore:
        return WatchedStore(self._inner, self._watchdog, Deadlines(call_s=left_s))

    def _timed(self, ask: Callable[[float], object]) -> object:
        """The result of `ask`, which gets the seconds left for unanswered calls."""
        with self._lock:
            left_s = (ANSWERED_S if self._has_answered else self._limit_s) - self._vain_s
            silent = self._silent
        if silent is not None and left_s <= 0:
            raise silent.restated(silent.attempt, **silent.facts)
        begun_s = self._elapsed_s()
        try:
            found = ask(left_s)
        except Unavailable as error:
            with self._lock:
                self._vain_s += self._elapsed_s() - begun_s
                self._silent = self._silent or error
            raise
        except LogError:
            self._has_answered = True
            raise
        self._has_answered = True
        return found
