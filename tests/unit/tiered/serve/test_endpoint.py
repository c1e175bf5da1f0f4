"""The number of connections that the limit of open files admits."""

from __future__ import annotations

import logging
import os
import resource
import time
from contextlib import closing
from pathlib import Path

import pytest
from fake_source import FakeSource

from local.errors import InvalidRequest, LogError
from tiered.serve.endpoint import connections_that_fit, group_node, parse_endpoint, serving
from tiered.serve.groups.group_node import GroupNode
from tiered.serve.handlers.service import Endpoint, Service
from tiered.serve.security.security import Security


def limited(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, may_raise: bool = True) -> list[int]:
    """Set the limits of open files as the endpoint sees them; the soft limits that it sets."""
    found: list[int] = []

    def set_limits(kind: int, limits: tuple[int, int]) -> None:
        if not may_raise:
            raise OSError
        found.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    monkeypatch.setattr(os, "listdir", lambda path: ["0"] * 24)
    return found


def test_the_soft_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = limited(monkeypatch, 1024, 8192)
    assert (connections_that_fit(1000), raised) == (1000, [8192])


@pytest.mark.parametrize(("hard", "may_raise"), [(1024, True), (8192, False)])
def test_half_of_the_free_descriptors_are_for_connections(
    hard: int, may_raise: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised = limited(monkeypatch, 1024, hard, may_raise=may_raise)
    with caplog.at_level(logging.WARNING):
        assert (connections_that_fit(1000), raised) == (250, [])
    assert "limit=250 usual=1000 open_files_max=1024" in caplog.text


def test_a_connection_may_need_a_socket_a_copy_of_it_and_a_connection_to_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy: while the client has no room. Without a node no connection to one."""
    limited(monkeypatch, 1224, 1224)
    for node, most in ((None, 300), (GroupNode(endpoint=Endpoint(host="node", port=1)), 200)):
        service = Service(source=FakeSource(orders=1), group_node=node)
        with serving(service, "127.0.0.1", 0) as server:
            assert server._limits.connections_max == most


@pytest.mark.parametrize(
    ("address", "config", "reason"),
    [("node", None, "invalid --groups"), (None, "x", "add --groups"), ("node:9092", "none", "does not exist")],
)
def test_the_node_of_the_groups_needs_an_address_and_a_readable_file(
    address: str | None, config: str | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(LogError, match=reason):
        group_node(address, config and str(tmp_path / config))
    assert group_node(None, None) is None
    assert group_node("node:9092", None) == GroupNode(endpoint=Endpoint(host="node", port=9092))


@pytest.mark.parametrize(
    "host", ["a" * 64, "a..b", "é" * 64, "a\0b", "a\udce9"], ids=["label", "dots", "IDNA", "NUL", "bytes"]
)
@pytest.mark.parametrize("option", ["--advertise", "--groups", "--peers"])
def test_a_host_that_cannot_be_a_name_is_no_address(option: str, host: str) -> None:
    """A connection to it raises no OSError: each request, and each probe of a peer, would fail as an internal error."""
    with pytest.raises(InvalidRequest, match=f"invalid {option}"):
        parse_endpoint(option, f"{host}:9092")


@pytest.mark.parametrize("host", ["node", "node-1.example.", "127.0.0.1", "[::1]", "[fe80::1%eth0]", "münchen.example"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert parse_endpoint("--groups", f"{host}:9092") == Endpoint(host=host.strip("[]"), port=9092)


def test_without_a_limit_of_open_files_all_connections_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_that_fit(1000) == 1000


@pytest.mark.server
def test_the_security_file_raises_the_limit_of_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20, 1 << 20))
    path = tmp_path / "security.toml"
    for value, most in ((2000, 2000), (5, 1000)):
        path.write_text(f"max.connections = {value}")
        with (
            closing(Security(str(path), time.monotonic, time.time)) as security,
            serving(Service(source=FakeSource(orders=1), security=security), "127.0.0.1", 0) as server,
        ):
            assert server._limits.connections_max == most, "Admission has the lower limit, which a reload changes"
