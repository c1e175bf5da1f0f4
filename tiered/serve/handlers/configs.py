"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs. Every resource succeeds or fails on its own.

The settings of the node are read-only here: they are in its ``tiered.toml``. Source: kafka `ConfigHelper`,
`ConfigAdminManager`, `ConfigurationControlManager`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tiered.serve.admin import Admin, Change, ConfigEntry, Configs, Operation, Refused
from tiered.serve.handlers.changes import admin_of, failure_of, name_failure, run_changes
from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC, BROKER = 2, 4  # kafka `ConfigResource.Type`
_ENTRY_BYTES = 24  # of an entry or a synonym, without its texts
_NODE = "settings of the node cannot be changed by a client: change its tiered.toml, and send it a SIGHUP"
_OPERATIONS = {each.value: each for each in Operation}


async def describe_configs(service: Service, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    configs = service.configs
    assert configs is not None, "a server without it does not offer this API"
    describe = partial(_describe_all, configs, request, service.broker_id, service.load.response_bytes_max)
    return DescribeConfigsResponse(results=tuple(await service.call("configs", object(), describe)))


async def incremental_alter_configs(service: Service, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    def alter(admin: Admin, resource: AlterConfigsResource) -> Callable[[], None]:
        changes = [_change(each) for each in resource.configs]
        if resource.resource_type == BROKER:
            return lambda: None
        return partial(admin.alter_topic, resource.resource_name, changes, validate_only=request.validate_only)

    return await _altered(service, request, alter)


async def alter_configs(service: Service, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    def replace(admin: Admin, resource: AlterConfigsResource) -> Callable[[], None]:
        changes = [_change(each) for each in resource.configs]
        if resource.resource_type == BROKER:
            return lambda: None
        settings = {each.name: each.value for each in changes if each.value is not None}
        return partial(admin.replace_settings, resource.resource_name, settings, validate_only=request.validate_only)

    return await _altered(service, request, replace)


async def _altered(
    service: Service,
    request: AlterConfigsRequest,
    change: Callable[[Admin, AlterConfigsResource], Callable[[], None]],
) -> AlterConfigsResponse:
    admin = admin_of(service)
    counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
    failures: dict[int, tuple[Error, str | None]] = {}
    calls: dict[int, Callable[[], None]] = {}
    for at, resource in enumerate(request.resources):
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise Refused(Error.INVALID_REQUEST, "Each resource must appear at most once.")
            _check(resource, service.broker_id)
            calls[at] = change(admin, resource)
        except Refused as refused:
            failures[at] = failure_of(refused, resource.resource_name)
    for at, outcome in zip(calls, await run_changes(service, list(calls.values())), strict=True):
        if isinstance(outcome, Exception):
            failures[at] = failure_of(outcome, request.resources[at].resource_name)
    return AlterConfigsResponse(
        responses=tuple(_altered_one(each, failures.get(at)) for at, each in enumerate(request.resources))
    )


def _altered_one(
    resource: AlterConfigsResource, failure: tuple[Error, str | None] | None
) -> AlterConfigsResourceResponse:
    error, message = failure or (Error.NONE, None)
    return AlterConfigsResourceResponse(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _check(resource: AlterConfigsResource, broker_id: int) -> None:
    keys = [each.name for each in resource.configs]
    if len(set(keys)) < len(keys):
        raise Refused(Error.INVALID_REQUEST, "Error due to duplicate config keys")
    for each in resource.configs:
        if each.value is None and each.config_operation != Operation.DELETE:
            raise Refused(Error.INVALID_REQUEST, f"Null value not supported for : {each.name}")
    match resource.resource_type:
        case 2 if resource.resource_name == "":
            raise Refused(Error.INVALID_REQUEST, "Default topic resources are not allowed.")
        case 2:
            if (failure := name_failure(resource.resource_name)) is not None:
                raise Refused(*failure)
        case 4:
            _check_broker(resource.resource_name, broker_id)
            # A client can set nothing, so there is nothing to remove: tools remove throttles that they never set.
            if any(each.config_operation != Operation.DELETE for each in resource.configs):
                raise Refused(Error.INVALID_REQUEST, _NODE)
        case other:
            raise Refused(Error.INVALID_REQUEST, f"Unknown resource type {other}")


def _check_broker(name: str, broker_id: int) -> None:
    if name and re.fullmatch(r"-?[0-9]{1,10}", name) is None:
        raise Refused(Error.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name[:20]}")
    if name and int(name) != broker_id:
        wrong = f"Unexpected broker id, expected {broker_id} or empty string, but received {name}"
        raise Refused(Error.INVALID_REQUEST, wrong)


def _change(config: AlterableConfig) -> Change:
    operation = _OPERATIONS.get(config.config_operation)
    if operation is None:
        raise Refused(Error.INVALID_REQUEST, f"Unknown operation type {config.config_operation} for {config.name}")
    return Change(name=config.name, operation=operation, value=None if operation is Operation.DELETE else config.value)


def _describe_all(
    configs: Configs, request: DescribeConfigsRequest, broker_id: int, bytes_max: int
) -> list[DescribeConfigsResult]:
    found, size_bytes = [], 0
    for resource in request.resources:
        failure: tuple[Error, str | None] | None = None
        entries: Sequence[ConfigEntry] = ()
        try:
            entries = _entries(configs, resource, broker_id)
            size_bytes += _size_bytes(entries, request)
            if size_bytes > bytes_max:
                raise Refused(Error.POLICY_VIOLATION, f"the response has more than {bytes_max} bytes: ask for less")
        except Exception as error:  # noqa: BLE001 - one resource must not fail the others
            failure, entries = failure_of(error, resource.resource_name), ()
        found.append(
            DescribeConfigsResult(
                error_code=failure[0] if failure else Error.NONE,
                error_message=failure[1] if failure else "",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_described(each, request) for each in entries),
            )
        )
    return found


def _entries(configs: Configs, resource: DescribeConfigsResource, broker_id: int) -> Sequence[ConfigEntry]:
    match resource.resource_type:
        case 2:
            if (failure := name_failure(resource.resource_name)) is not None:
                raise Refused(*failure)
            entries = configs.topic_configs(resource.resource_name)
        case 4:
            _check_broker(resource.resource_name, broker_id)
            # The empty name means the defaults that all brokers of a cluster share: there are none.
            entries = configs.broker_configs() if resource.resource_name else ()
        case other:
            raise Refused(Error.INVALID_REQUEST, f"Unsupported resource type: {other}")
    keys = resource.configuration_keys
    return [each for each in entries if each.name in keys] if keys else entries


def _size_bytes(entries: Iterable[ConfigEntry], request: DescribeConfigsRequest) -> int:
    size = 0
    for each in entries:
        size += _ENTRY_BYTES + len(each.name) + len(each.value)
        if request.include_documentation:
            size += len(each.documentation or "")
        if request.include_synonyms:
            size += sum(_ENTRY_BYTES + len(one.name) + len(one.value) for one in each.synonyms)
    return size


def _described(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        synonyms=tuple(
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
        ),
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
