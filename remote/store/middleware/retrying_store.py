"""The one retry layer: a store that retries `Unavailable` until a deadline, with exponential backoff and full jitter.

An outer layer never retries the final error, so nesting is harmless. The clients' own retries are disabled, because two
layers would multiply. All calls share a **budget** of retries: successes earn them, failures spend them. So an outage
does not multiply the load that may have caused it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from local.errors import Unavailable, describe, forget_locals
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import DELETE_PAGE, LIST_PAGE, ObjectInfo, ObjectStore

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")
log = logging.getLogger(__name__)


class RetryBudget:
    """The retries left: `capacity` at first, plus `earned` for a success. Thread safe. Source: gRPC (A6), AWS SDKs."""

    def __init__(self, capacity: float = 64.0, earned: float = 0.5) -> None:
        self._capacity = capacity
        self._earned = earned
        self._left = capacity
        self._is_closed = False
        self._lock = threading.Lock()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within this context every call is tried once. For one thread."""
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = False

    def earn(self) -> None:
        with self._lock:
            self._left = min(self._capacity, self._left + self._earned)

    def spend(self) -> bool:
        with self._lock:
            if self._left < 1 or self._is_closed:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries and waits, in seconds.

    No try begins later than `deadline_s` after the first; a running try ends by its own deadline. A call that has taken
    `warn_after_s`, the next wait included, logs once why it waits.
    """

    attempts_max: int = 8
    deadline_s: float = 30.0
    wait_first_s: float = 0.1
    wait_max_s: float = 5.0
    warn_after_s: float = 2.0  # about as long as a person waits without a sign of progress
    sleep: Callable[[float], None] = time.sleep
    budget: RetryBudget = field(default_factory=RetryBudget, repr=False, compare=False)

    def call(self, attempt: Callable[[], T], *, verb: str | None = None, key: str | None = None) -> T:
        """Return the first successful result, or raise the last Unavailable with the number of tries."""
        begun_s = time.monotonic()
        try:
            found = attempt()
        except Unavailable as first:
            if "attempts" in first.facts:
                raise
            try:
                found = _next_tries(self, attempt, first, time.monotonic() - begun_s, {"verb": verb, "key": key})
            except Unavailable as error:
                forget_locals(error)  # tenacity stores every error where the error's own frames refer to it
                raise
        self.budget.earn()
        return found


class RetryingStore(StoreWrapper):
    """A store with retries. A page of a listing, and DELETE_PAGE keys of a delete, are one operation."""

    def __init__(self, inner: ObjectStore, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        return self._policy.call(call, verb=operation, key=key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        listing = _Listing(self._inner, prefix, start_after)
        page = None
        while page is None or len(page) == LIST_PAGE:  # a shorter page is the last
            page = self._policy.call(listing.page, verb="list", key=prefix)
            yield from page

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        for at in range(0, len(wanted), DELETE_PAGE):
            page = wanted[at : at + DELETE_PAGE]
            self._policy.call(partial(self._inner.delete, page), verb="delete", key=page[0])


class _Listing:
    """A listing in pages. After an error it restarts after the last page it returned."""

    def __init__(self, store: ObjectStore, prefix: str, start_after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._last = start_after
        self._infos: Iterator[ObjectInfo] | None = None

    def page(self) -> list[ObjectInfo]:
        infos, self._infos = self._infos, None  # an iterator that raised is unusable
        if infos is None:
            infos = self._store.list(self._prefix, start_after=self._last)
        page = list(itertools.islice(infos, LIST_PAGE))
        if page:
            self._infos, self._last = infos, page[-1].key
        return page


def _next_tries(
    policy: RetryPolicy, attempt: Callable[[], T], first: Unavailable, spent_s: float, facts: dict[str, object]
) -> T:
    """The next successful result after `first`; raises the last Unavailable. `facts` are for the log."""
    import tenacity  # here, because nearly all calls succeed at once, and many commands have no others

    is_over = tenacity.stop_after_attempt(policy.attempts_max) | tenacity.stop_before_delay(policy.deadline_s - spent_s)
    retrying = tenacity.Retrying(
        stop=lambda state: is_over(state) or not policy.budget.spend(),  # asked last, because asking spends it
        wait=tenacity.wait_random_exponential(multiplier=policy.wait_first_s, max=policy.wait_max_s),
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, Unavailable) and "attempts" not in error.facts
        ),
        sleep=policy.sleep,
        before_sleep=_Warning(policy.warn_after_s - spent_s, facts),
        reraise=True,
    )
    failed = [first]

    def next_try() -> T:
        if failed:
            raise failed.pop()
        return attempt()

    try:
        return retrying(next_try)
    except Unavailable as error:
        if "attempts" in error.facts:
            raise
        tries = retrying.statistics.get("attempt_number", 1)
        raise error.restated(error.attempt, **error.facts, attempts=tries) from error


class _Warning:
    def __init__(self, after_s: float, facts: dict[str, object]) -> None:
        self._after_s, self._facts = after_s, facts
        self._is_logged = False

    def __call__(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self._is_logged or (state.seconds_since_start or 0.0) + state.upcoming_sleep < self._after_s:
            return
        assert isinstance(error, Unavailable)
        self._is_logged = True
        cause = error.facts.get("cause") or error.attempt
        facts = {**self._facts, "attempts": state.attempt_number, "cause": cause}
        log.warning("%s", describe("retrying a call to the store", facts))
