"""A store that is asked once and briefly while a command opens, so that a store that is away holds no command up.

| phase | a call | after a call that was not answered |
|---|---|---|
| in haste (`haste`) | is tried once, and for HASTE_S at most | every further call fails at once, until the phase ends |
| afterwards | is tried as any other store's | is tried as any other store's |

A store that answers, however many calls it takes, is used as ever: only a call that is not answered ends the asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from local.errors import Unavailable
from remote.retrying_store import RetryBudget, RetryPolicy
from remote.store import ObjectStore
from remote.watched_store import Deadlines, WatchedStore
from tiered.config import Config
from tiered.configured_store import configured_store

HASTE_S = 2.0  # about as long as a person watches nothing happen (`remote.retrying_store`)


class HastyStore:
    """See the module text. Thread safe but for `haste`, which one thread enters."""

    def __init__(self, inner: ObjectStore, budget: RetryBudget, limit_s: float = HASTE_S) -> None:
        """`budget` is that of the retries below `inner`."""
        self._inner = inner
        self._budget = budget
        self._brief = WatchedStore(inner, deadlines=Deadlines(call_s=limit_s))
        self._is_hasty = False
        self._silent: Unavailable | None = None

    @classmethod
    def of(cls, config: Config) -> HastyStore | None:
        """The configured store; None where none is. Raises as `configured_store`."""
        policy = RetryPolicy()
        store = configured_store(config, policy=policy)
        return cls(store, policy.budget) if store is not None else None

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def as_store(self) -> ObjectStore:
        """This store as the protocol: its verbs are those of the inner store."""
        return cast(ObjectStore, self)

    @contextmanager
    def haste(self) -> Iterator[None]:
        """Inside, calls are brief (module text)."""
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
                raise self._silent.restated("the store did not answer an earlier call", **self._silent.facts)
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
        """A listing is asked for while it is read."""
        try:
            yield from found
        except Unavailable as error:
            self._silent = error
            raise
