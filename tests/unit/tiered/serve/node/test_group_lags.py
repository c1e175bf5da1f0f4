"""The groups of a directory: from its log without a node, through the socket of a running one, in its metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from local.errors import Unavailable
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.commands.unix_socket import NodeSocket
from tiered.serve.endpoint_metrics import EndpointMetrics
from tiered.serve.node import group_lags
from tiered.serve.node.endpoint import serving_node

NOW = 1_795_176_000_000


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which a group has committed 2 of 5 offsets of one partition."""
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"{each}\n" for each in range(5)))
    for words in ("init", "topic create t -p 2", "append t/0 lines", "group reset-offsets g t/0 --to earliest --yes"):
        assert invoke(["-q", *words.split()]) == 0
    return tmp_path


@contextmanager
def opened(*, read_only: bool = True) -> Iterator[LogManager]:
    with LogManager.open(Config.load("tiered.toml", {}, {}), now_ms=NOW, read_only=read_only) as manager:
        yield manager


def status(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capfd.readouterr()
    assert invoke(["status", "-o", "json", *words]) == 0
    found: dict[str, object] = json.loads(capfd.readouterr().out)
    return found


EXPECTED = {"group": "g", "state": "Empty", "members": 0, "partitions": 1, "lag": 5, "expired_offsets": 0}


def test_status_shows_groups_with_and_without_a_node(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (alone,) = status(capfd)["groups"]  # type: ignore[misc]
    (by_partition,) = status(capfd, "-p")["groups"]  # type: ignore[misc]
    assert status(capfd, "__consumer_offsets")["groups"] == []
    metrics = EndpointMetrics()
    with (
        opened(read_only=False) as manager,
        closing(NodeSocket(manager.config.data_dirs)) as own,
        serving_node(manager, None, 0, own=own, now_ms=lambda: NOW, metrics=metrics),
    ):
        (beside,) = status(capfd)["groups"]  # type: ignore[misc]
        figures = {name: value for name, value, _ in metrics.figures()}
        assert figures["tiered_consumergroup_lag"] == figures["tiered_consumergroup_lag_sum"] == 5
        assert figures["tiered_consumergroups"] == 1
    for found in (alone, by_partition, beside):
        assert {name: found[name] for name in EXPECTED} == EXPECTED
        assert 0 <= found["retention_used"] < 1
    capfd.readouterr()
    assert invoke(["status", "--section", "groups"]) == 0
    out = capfd.readouterr().out
    assert out.split()[:3] == ["GROUP", "STATE", "MEMBERS"]
    assert "TOPIC" not in out


def test_groups_that_cannot_be_read_are_unknown(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("the bucket does not reply")

    monkeypatch.setattr(group_lags, "load", fail)
    capfd.readouterr()
    assert invoke(["status", "-o", "json"]) == 6
    out, said = capfd.readouterr()
    assert json.loads(out)["groups"] is None
    assert "! consumer groups: the bucket does not reply" in said


def test_status_without_groups_in_its_output_reads_none(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("groups were read")

    monkeypatch.setattr(group_lags, "consumer_groups", fail)
    for words in ("status", "status -p", "status --section lag", "status -o csv", "status -o jsonl"):
        assert invoke(words.split()) == 0, words
    assert "groups were read" not in capfd.readouterr().err
    assert invoke(["status", "--section", "groups"]) == 6


def test_status_without_the_extra_kafka_has_unknown_groups_and_all_the_rest(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'kio'", name="kio")

    capfd.readouterr()
    monkeypatch.setattr(group_lags, "consumer_groups", fail)
    assert invoke(["status"]) == 0
    assert "t" in capfd.readouterr().out.split()
    assert invoke(["status", "-o", "json"]) == 10
    out, said = capfd.readouterr()
    assert json.loads(out)["groups"] is None
    assert {each["topic"] for each in json.loads(out)["topics"]} == {"t", "__consumer_offsets"}
    assert "! consumer groups: a package is not installed: package=kio install=pip install 'tiered[kafka]'" in said
    monkeypatch.setitem(sys.modules, "tiered.serve.node.group_lags", None)
    assert invoke(["status", "-o", "json"]) == 10


def test_a_directory_without_groups_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["-q", "init"]) == 0
    assert status(capfd)["groups"] == []


def test_metrics_have_no_groups_before_the_coordinator_has_loaded(home: Path) -> None:
    with opened(read_only=False) as manager:
        metrics = EndpointMetrics()
        groups = group_lags.GroupCoordinator(None)  # type: ignore[arg-type]
        try:
            metrics.group_figures = group_lags.coordinator_figures(manager, groups, lambda: NOW)
            assert not any("consumergroup" in name for name, *_ in metrics.figures())
        finally:
            groups.close()
