"""Permissions of callers, for the rules of all APIs (`tiered.serve.authorization.rules`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from local.errors import InvalidRequest
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import NO_OPERATIONS, Error
from tiered.serve.security.acl import CLUSTER_NAME, Kind, Operation
from tiered.serve.security.principals import LOCAL

AuthorizationRule = Callable[[Service, Any, Call, Handler], Awaitable[object]]
T = TypeVar("T")
DENIED = Error.TOPIC_AUTHORIZATION_FAILED
DENIED_MESSAGE = "Topic authorization failed."


async def ANYONE(service: Service, request: object, call: Call, handler: Handler) -> object:  # noqa: N802 - a constant
    return await handler(service, request, call)


async def COMMANDS(service: Service, request: object, call: Call, handler: Handler) -> object:  # noqa: N802 - a constant
    """The commands of this machine, on the Unix socket alone."""
    if call.principal != LOCAL:
        raise InvalidRequest("the request is for the Unix socket of a node")
    return await handler(service, request, call)


def may_cluster(service: Service, call: Call, operation: Operation, *, logs: bool = True) -> bool:
    return service.may(call, operation, Kind.CLUSTER, CLUSTER_NAME, logs=logs)


def split(
    service: Service, call: Call, operation: Operation, kind: Kind, items: Iterable[T], name_of: Callable[[T], str]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """The items whose names the caller may use, and the other ones, each in their order."""
    permitted: list[T] = []
    refused: list[T] = []
    for each in items:
        (permitted if service.may(call, operation, kind, name_of(each)) else refused).append(each)
    return tuple(permitted), tuple(refused)


def operations(service: Service, call: Call, kind: Kind, name: str, offered: int) -> int:
    """The bits of `offered` whose operations the caller may do."""
    if offered == NO_OPERATIONS:
        return offered
    return sum(
        1 << each for each in Operation if offered >> each & 1 and service.may(call, each, kind, name, logs=False)
    )


def cluster_operations(service: Service, call: Call, offered: int) -> int:
    """As `operations`, for the cluster; none without DESCRIBE."""
    if offered == NO_OPERATIONS:
        return offered
    may_describe = may_cluster(service, call, Operation.DESCRIBE)
    return operations(service, call, Kind.CLUSTER, CLUSTER_NAME, offered) if may_describe else 0
