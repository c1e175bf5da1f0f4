"""Changes of a node: one at a time, in the order of arrival, within the time limit of the client.

| at the time limit a change | is answered | and |
|---|---|---|
| has ended | with its result | |
| runs | REQUEST_TIMED_OUT | continues: the client asks again, and sees its effect |
| has not begun | REQUEST_TIMED_OUT | is not made |

Source: kafka `ControllerApis` and `QuorumController`, whose events have the deadline of the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from local.errors import Diverged, InvalidRequest, LogError, NotFound
from local.names import check_topic
from tiered.serve.admin import Admin, Refused
from tiered.serve.handlers.service import Service, error_of
from tiered.serve.messages.base import Error

WAIT_MS_MAX = 10 * 60_000
WITHOUT_TIMEOUT_MS = 60_000  # of requests that state none
_NOT_BEGUN = "the time limit of the request ended before the change began: nothing was changed"
_CONTINUES = "the time limit of the request ended before the change did: it continues"
T = TypeVar("T")


def admin_of(service: Service) -> Admin:
    assert service.admin is not None, "a server without it does not offer these APIs"
    return service.admin


async def run_changes(
    service: Service, calls: Sequence[Callable[[], T]], timeout_ms: int = WITHOUT_TIMEOUT_MS
) -> list[T | Exception]:
    """Run blocking calls one after the other. Returns each result, or why there is none."""
    found: list[T | Exception] = [Refused(Error.REQUEST_TIMED_OUT, _NOT_BEGUN) for _ in calls]
    is_late = threading.Event()

    def work() -> None:
        for at, call in enumerate(calls):
            if is_late.is_set():
                return
            found[at] = Refused(Error.REQUEST_TIMED_OUT, _CONTINUES)
            try:
                found[at] = call()
            except Exception as error:  # noqa: BLE001 - one change must not fail the others
                found[at] = error

    if calls and timeout_ms > 0:
        ended = service.changes.run("changes", object(), work)
        try:
            await asyncio.wait([ended], timeout=min(timeout_ms, WAIT_MS_MAX) / 1000)
        finally:
            is_late.set()
    return list(found)


def failure_of(error: Exception, where: object) -> tuple[Error, str | None]:
    """Kafka's code for an error of a change, and the message for the user of the client."""
    match error:
        case Refused():
            return error.error, error.message
        case NotFound():
            return Error.UNKNOWN_TOPIC_OR_PARTITION, str(error)
        case Diverged():
            return Error.POLICY_VIOLATION, str(error)
        case LogError():
            return error_of(error, where), str(error)
    return error_of(error, where), "an internal error, which is in the log of the server"


def name_failure(name: str) -> tuple[Error, str | None] | None:
    """The failure of a topic name that Kafka refuses."""
    try:
        check_topic(name)
    except InvalidRequest as error:
        return Error.INVALID_TOPIC_EXCEPTION, str(error)
    return None
