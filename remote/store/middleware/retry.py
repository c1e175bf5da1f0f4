"""Retries after the first failure of a store call: waits and further tries, until success or a limit.

The only use of tenacity. `remote.store.middleware.retrying_store` describes the rules and the cost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import tenacity

from local.errors import Unavailable, describe, forget_locals

if TYPE_CHECKING:
    from remote.store.middleware.retrying_store import RetryPolicy

T = TypeVar("T")
log = logging.getLogger(__name__)


def retry_call(
    policy: RetryPolicy, attempt: Callable[[], T], first: Unavailable, begun_s: float, facts: dict[str, object]
) -> T:
    """Return the result of the next successful `attempt`.

    `first` is the error of the first try, which began at `begun_s` of the monotonic clock. Raises the last Unavailable,
    with the number of tries. `facts` describe the call in the log.
    """
    try:
        found = _tries(policy, attempt, first, begun_s, facts)
        policy.budget.earn()
        return found
    except Unavailable as error:
        forget_locals(error)  # tenacity stores every error where the error's own frames refer to it
        raise


def _tries(
    policy: RetryPolicy, attempt: Callable[[], T], first: Unavailable, begun_s: float, facts: dict[str, object]
) -> T:
    spent_s = time.monotonic() - begun_s
    retrying = tenacity.Retrying(
        stop=_Stop(policy, spent_s),
        wait=tenacity.wait_random_exponential(multiplier=policy.wait_first_s, max=policy.wait_max_s),
        retry=tenacity.retry_if_exception(_may_try_again),
        sleep=policy.sleep,
        before_sleep=_Telling(policy.warn_after_s - spent_s, facts),
        reraise=True,
    )
    failed: list[Unavailable] = [first]

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


class _Stop:
    """The stop rule after a failed try. The budget is asked last, because asking spends it."""

    def __init__(self, policy: RetryPolicy, spent_s: float) -> None:
        self._budget = policy.budget
        left_s = policy.deadline_s - spent_s
        self._is_over = tenacity.stop_after_attempt(policy.attempts_max) | tenacity.stop_before_delay(left_s)

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        return self._is_over(state) or not self._budget.spend()


class _Telling:
    """Logs one line before a wait, for a slow call, so that waiting is never silent."""

    def __init__(self, after_s: float, facts: dict[str, object]) -> None:
        self._after_s = after_s
        self._facts = facts
        self._told = False

    def __call__(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self._told or (state.seconds_since_start or 0.0) + state.upcoming_sleep < self._after_s:
            return
        assert isinstance(error, Unavailable)
        self._told = True
        cause = error.facts.get("cause") or error.attempt
        log.warning(
            "%s",
            describe("retrying a call to the store", {**self._facts, "attempts": state.attempt_number, "cause": cause}),
        )


def _may_try_again(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and "attempts" not in error.facts
