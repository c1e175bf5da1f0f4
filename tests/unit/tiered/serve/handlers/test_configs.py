"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: Kafka's errors, each resource apart."""

from __future__ import annotations

from typing import Any

import pytest
from fake_admin import FakeAdmin, refusing, run
from fake_source import CALL

from tiered.serve.admin import Refused
from tiered.serve.handlers import service as services
from tiered.serve.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from tiered.serve.messages.base import Error
from tiered.serve.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def described(admin: FakeAdmin, *resources: tuple[int, str], keys: Any = None, **more: bool) -> Any:
    wanted = tuple(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in resources
    )
    request = DescribeConfigsRequest(resources=wanted, **more)
    return run(admin, lambda service: describe_configs(service, request, CALL)).results


def altered(admin: FakeAdmin, *resources: AlterConfigsResource, is_old: bool = False, is_dry: bool = False) -> Any:
    request = AlterConfigsRequest(resources=resources, validate_only=is_dry)
    handler = alter_configs if is_old else incremental_alter_configs
    return run(admin, lambda service: handler(service, request, CALL)).responses


def resource(name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC) -> AlterConfigsResource:
    configs = [AlterableConfig(name=key, config_operation=verb, value=value) for key, verb, value in changes]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=tuple(configs))


def test_settings_have_values_sources_and_only_the_requested_extras() -> None:
    admin = FakeAdmin(orders=1)
    (plain,) = described(admin, (TOPIC, "orders"))
    assert (plain.error_code, plain.error_message) == (Error.NONE, "")
    assert [(each.name, each.value, each.config_source, each.config_type) for each in plain.configs] == [
        ("retention.ms", "7", 4, 5),
        ("cleanup.policy", "delete", 5, 7),
    ]
    assert {(each.synonyms, each.documentation) for each in plain.configs} == {((), None)}
    (whole,) = described(admin, (TOPIC, "orders"), include_synonyms=True, include_documentation=True)
    assert [(each.name, each.value, each.source) for each in whole.configs[0].synonyms] == [
        ("log.retention.ms", "7", 4)
    ]
    assert whole.configs[0].documentation == "how long"


@pytest.mark.parametrize(
    ("keys", "names"),
    [(None, ["retention.ms", "cleanup.policy"]), ((), ["retention.ms", "cleanup.policy"]), (("nope",), [])],
)
def test_keys_select_settings_and_no_keys_select_all(keys: Any, names: list[str]) -> None:
    (found,) = described(FakeAdmin(orders=1), (TOPIC, "orders"), keys=keys)
    assert [each.name for each in found.configs] == names


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nope", Error.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", Error.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", Error.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", Error.INVALID_REQUEST),
        (BROKER, "x", Error.INVALID_REQUEST),
        (BROKER, "²", Error.INVALID_REQUEST),
        (BROKER, "9" * 5000, Error.INVALID_REQUEST),
        (LOGGER, "0", Error.INVALID_REQUEST),
        (99, "", Error.INVALID_REQUEST),
    ],
)
def test_a_resource_that_is_not_there_does_not_hide_the_others(kind: int, name: str, error: Error) -> None:
    wrong, topic, broker = described(FakeAdmin(orders=1), (kind, name), (TOPIC, "orders"), (BROKER, "0"))
    assert (wrong.error_code, wrong.configs) == (error, ())
    assert wrong.error_message
    assert (topic.error_code, len(topic.configs)) == (Error.NONE, 2)
    assert [(each.name, each.read_only) for each in broker.configs] == [("log.dirs", True)]


def test_a_response_beyond_the_limit_is_cut_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RESPONSE_BYTES_MAX", 150)
    monkeypatch.setattr(services, "LEAST_BYTES", 100)
    found = described(FakeAdmin(orders=1), *[(TOPIC, "orders")] * 5)
    assert [each.error_code for each in found] == [Error.NONE] + [Error.POLICY_VIOLATION] * 4


def test_changes_are_made_for_each_topic() -> None:
    admin = FakeAdmin(a=1, b=1)
    changes = ("retention.ms", SET, "7"), ("segment.ms", DELETE, "ignored"), ("cleanup.policy", APPEND, "compact")
    found = altered(admin, resource("a", *changes), resource("b", ("cleanup.policy", SUBTRACT, "delete")), is_dry=True)
    assert [(each.error_code, each.error_message, each.resource_name) for each in found] == [
        (Error.NONE, None, "a"),
        (Error.NONE, None, "b"),
    ]
    wanted = [("retention.ms", "SET", "7"), ("segment.ms", "DELETE", None), ("cleanup.policy", "APPEND", "compact")]
    assert admin.calls == [
        ("alter", "a", wanted, True),
        ("alter", "b", [("cleanup.policy", "SUBTRACT", "delete")], True),
    ]


def test_the_old_request_replaces_all_settings() -> None:
    admin = FakeAdmin(a=1)
    altered(admin, resource("a", ("retention.ms", SET, "7")), is_old=True)
    assert admin.calls == [("replace", "a", {"retention.ms": "7"}, False)]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (resource("bad name", ("retention.ms", SET, "7")), Error.INVALID_TOPIC_EXCEPTION),
        (resource("", ("retention.ms", SET, "7")), Error.INVALID_REQUEST),
        (resource("x", ("retention.ms", SET, None)), Error.INVALID_REQUEST),
        (resource("x", ("retention.ms", 9, "7")), Error.INVALID_REQUEST),
        (resource("x", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)), Error.INVALID_REQUEST),
        (resource("0", ("log.retention.ms", SET, "7"), kind=BROKER), Error.INVALID_REQUEST),
        (resource("7", ("log.retention.ms", SET, "7"), kind=BROKER), Error.INVALID_REQUEST),
        (resource("", ("log.retention.ms", SET, "7"), kind=BROKER), Error.INVALID_REQUEST),
        (resource("0", ("root", SET, "DEBUG"), kind=LOGGER), Error.INVALID_REQUEST),
    ],
)
def test_a_refused_change_is_explained_and_the_others_are_made(wrong: AlterConfigsResource, error: Error) -> None:
    admin = FakeAdmin(fine=1)
    refused, other = altered(admin, wrong, resource("fine", ("retention.ms", SET, "7")))
    assert (refused.error_code, other.error_code) == (error, Error.NONE)
    assert refused.error_message
    assert [each[1] for each in admin.calls] == ["fine"]


def test_removals_of_settings_of_the_node_have_nothing_to_remove() -> None:
    admin = FakeAdmin()
    throttles = resource("0", ("leader.replication.throttled.rate", DELETE, None), kind=BROKER)
    assert [each.error_code for each in altered(admin, throttles)] == [Error.NONE]
    assert admin.calls == []


def test_a_resource_may_appear_once_and_errors_of_the_node_are_explained() -> None:
    admin = refusing("a", Refused(Error.INVALID_CONFIG, "no"), a=1, b=1)
    twice = [resource("b", ("retention.ms", SET, value)) for value in "12"]
    found = altered(admin, *twice, resource("a", ("retention.ms", SET, "7")))
    assert [each.error_code for each in found] == [Error.INVALID_REQUEST] * 2 + [Error.INVALID_CONFIG]
    assert found[2].error_message == "no"
