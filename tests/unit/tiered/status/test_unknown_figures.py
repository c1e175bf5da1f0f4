"""A figure that could not be read is null, the output names the unread partitions, and the exit code is not 0 (I11)."""

from __future__ import annotations

import json
import os
from http import HTTPStatus
from pathlib import Path

import pytest
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, settle
from web_pages import data, page, site

from local.errors import AccessDenied, Corrupt, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.cli.errors import Exit, unread_code
from tiered.cli.main import invoke
from tiered.cost.topic_cost import cost_report
from tiered.node.problems import group_problems, problems_of
from tiered.observe.metrics import Metrics
from tiered.plans.planning import priced_plan
from tiered.service.observations import Observations
from tiered.status.status_report import unread_partitions

OF_REMOTE = ("remote_bytes", "segments", "storage_dollars", "dollars_per_month", "idle_dollars", "double_bytes")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiered topic of two partitions with segments in the bucket, and a topic that is not tiered."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    tiered = ["-X", "remote.storage.enable=true", "-X", "segment.bytes=1KiB"]
    assert invoke(["topic", "create", "orders", "-p", "2", *tiered]) == 0
    assert invoke(["topic", "create", "plain", "-X", "remote.storage.enable=false"]) == 0
    (tmp_path / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(100)))
    assert invoke(["append", "orders", "lines", "-K", ":", "--batch", "10"]) == 0
    assert invoke(["append", "plain", "lines", "-K", ":", "--batch", "10"]) == 0
    assert invoke(["run", "--once"]) == 0
    return tmp_path


@pytest.fixture
def dead(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """The store does not answer any more."""

    def refuse(*args: object, **more: object) -> None:
        raise Unavailable("cannot read an object", endpoint="http://127.0.0.1:9", cause="connection refused")

    monkeypatch.setattr("remote.manifest.commit_protocol.MetadataLog.load", refuse)
    capfd.readouterr()
    return home


@pytest.mark.parametrize(
    "words",
    [
        "cost show",
        "plan",
        "plan --summary",
        "status",
        "status -p",
        "topic describe orders",
        "get-offsets orders --time latest-tiered",
        "get-offsets --time earliest-pending-upload",
        "view status",
        "cost advise",
    ],
)
def test_command_with_a_dead_store_lists_unread_partitions_and_exits_6(
    dead: Path, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    assert invoke([*words.split(), "-o", "json"]) == Exit.UNAVAILABLE
    out, err = capfd.readouterr()
    (unread,) = json.loads(out)["unread"]
    assert (unread["partitions"], unread["count"]) == (["orders/0", "orders/1"], 2)
    assert (unread["kind"], "connection refused" in unread["cause"]) == ("Unavailable", True)
    assert err.count("connection refused") == 1, "one cause must be one line"
    assert "! 2 partitions (orders/0, orders/1): " in err
    assert invoke(words.split()) == Exit.UNAVAILABLE, "the table must have the same exit code"


def test_cost_show_with_a_dead_store_has_null_remote_figures(dead: Path, capfd: pytest.CaptureFixture[str]) -> None:
    invoke(["cost", "show", "-o", "json"])
    facts = json.loads(capfd.readouterr().out)
    rows = {row["topic"]: row for row in facts["topics"]}
    assert facts["dollars_per_month"] is None
    assert {name: rows["orders"][name] for name in OF_REMOTE} == dict.fromkeys(OF_REMOTE)
    assert rows["orders"]["local_bytes"] > 0
    assert rows["plain"]["remote_bytes"] == 0, "the remote figure of an untiered topic is known to be zero"
    assert rows["plain"]["dollars_per_month"] > 0
    invoke(["cost", "show"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].split()[:3] == ["total", "-", "-"]


def test_plan_with_a_dead_store_has_null_sums(dead: Path, capfd: pytest.CaptureFixture[str]) -> None:
    invoke(["plan", "--summary", "-o", "json"])
    facts = json.loads(capfd.readouterr().out)
    names = ("now_dollars_per_month", "then_dollars_per_month", "dollars_once", "then_disk_bytes")
    assert {name: facts[name] for name in names} == dict.fromkeys(names)
    assert facts["now_disk_bytes"] > 0, "the local figure must be present"


def test_get_offsets_with_a_dead_store_has_a_row_for_each_partition(
    dead: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    invoke(["get-offsets", "--time", "latest-tiered", "-o", "json"])
    rows = json.loads(capfd.readouterr().out)["offsets"]
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        ("orders", 0, None),
        ("orders", 1, None),
        ("plain", 0, None),
    ]
    assert invoke(["get-offsets", "nope"]) == Exit.FAILED
    assert invoke(["get-offsets", "orders/7"]) == Exit.FAILED


def test_cost_simulate_with_a_dead_store_exits_6(dead: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["cost", "simulate", "orders", "--rate", "1GiB/d"]) == Exit.UNAVAILABLE
    assert "connection refused" in capfd.readouterr().err


def test_log_that_fails_to_open_has_null_figures_in_every_list(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["topic", "alter", "plain", "-X", "cleanup.policy=compact"]) == 0
    (home / "data" / "plain-0" / "leader-epoch-checkpoint").write_text("rubbish")
    capfd.readouterr()
    for words, what in (
        ("compaction status", "partitions"),
        ("topic describe plain", "partitions"),
        ("status -p", "partitions"),
        ("get-offsets plain", "offsets"),
    ):
        assert invoke([*words.split(), "-o", "json"]) == Exit.CORRUPTION, words
        facts = json.loads(capfd.readouterr().out)
        assert [each["partitions"] for each in facts["unread"]] == [["plain/0"]], words
        row = next(each for each in facts[what] if each.get("topic", "plain") == "plain" and each["partition"] == 0)
        assert all(row.get(name) is None for name in ("local_bytes", "next_offset", "offset", "clean_bytes")), words


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([], Exit.DONE),
        ([Unavailable("x")], Exit.UNAVAILABLE),
        ([AccessDenied("x")], Exit.UNHEALTHY),
        ([NotFound("x"), Unavailable("x")], Exit.UNAVAILABLE),
        ([Unavailable("x"), Corrupt("x")], Exit.CORRUPTION),
    ],
)
def test_exit_code_of_unread_figures_is_that_of_the_most_severe_cause(errors: list[LogError], code: Exit) -> None:
    assert unread_code(errors) is code


# -- library, metrics, web pages


@pytest.fixture
def world() -> World:
    made = World()
    with made.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.topics.create("p", 1, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    return made


def test_cost_report_without_the_store_has_no_total_but_one_for_untiered_topics(world: World) -> None:
    with world.open(read_only=True, store=SwitchableStore(world.store)) as manager:
        assert list(unread_partitions(manager)) == [NAME]
        assert cost_report(manager, NOW).total is None
        assert cost_report(manager, NOW, ["p"]).total is not None
        assert list(priced_plan(manager, NOW).missing) == [NAME]
        assert priced_plan(manager, NOW, ["p"]).totals()["now_dollars_per_month"] is not None
    with world.open(read_only=True) as manager:
        assert unread_partitions(manager) == {}
        assert (cost_report(manager, NOW).total or 0) > 0


def test_metrics_without_the_store_have_no_samples_of_remote_work(world: World) -> None:
    def actions(store: SwitchableStore) -> set[str]:
        with world.open(store=store) as manager:  # type: ignore[arg-type]
            samples = Metrics(manager, Observations()).samples(NOW)
            return {dict(each.labels)["action"] for each in samples if each.name == "tiered_todo_segments"}

    assert {"CopySegment", "ExpireRemote"} <= actions(SwitchableStore(world.store, is_down=False))
    assert actions(SwitchableStore(world.store)) == {"CleanLog"}


def test_web_tiles_without_the_store_show_unknown_instead_of_zero(world: World) -> None:
    with world.open(read_only=True, store=SwitchableStore(world.store)) as manager:  # type: ignore[arg-type]
        found = site(world, manager)
        body = page(found, "/")
        for tile in ("Remote", "Upload lag", "$ a month"):
            assert "and 1 topic unknown</dd>" in body.partition(f"<dt>{tile}</dt>")[2].partition("</div>")[0]
        facts = data(found, "/plan?format=json")
        assert (facts["now_dollars_per_month"], facts["then_disk_bytes"]) == (None, None)
        assert facts["missing"][0]["partitions"] == ["t/0"]
        assert "<dd>unknown</dd>" in page(found, "/plan")
        assert "its remote tier is unreadable" in page(found, "/cost", HTTPStatus.OK)


# -- one line for one cause


def test_problems_that_differ_only_in_partition_are_one_line_with_a_count() -> None:
    def error(number: int) -> Unavailable:
        key = f"t/{number}/head"
        return Unavailable("cannot read an object", key=key, endpoint="http://s3:9000", cause="refused")

    errors: dict[TopicPartition, LogError] = {TopicPartition("t", at): error(at) for at in range(200)}
    errors[TopicPartition("u", 0)] = Corrupt("cannot read an object", key="u/0/head", cause="refused")
    first, second = group_problems(problems_of(errors))
    assert first.line == (
        "200 partitions (t/0, t/1, t/2, ...): cannot read an object: endpoint=http://s3:9000 cause=refused"
    )
    assert second.line == "u/0: cannot read an object: key=u/0/head cause=refused"
