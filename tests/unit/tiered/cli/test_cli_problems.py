"""Partitions with a problem, and cancelled commands: output, messages and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from local.errors import AccessDenied, DiskFailed, Fenced, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.cli.main import invoke
from tiered.cli.session import now_ms
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.node.problems import WorkJournal
from tiered.service.worker import Worker
from tiered.web.pages.site import Site


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """Two partitions with a hundred records in small segments, none of them copied yet."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
    (tmp_path / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(100)))
    assert invoke(["append", "orders", "lines", "-K", ":", "--batch", "10"]) == 0
    return tmp_path


@pytest.fixture
def troubled(home: Path) -> Path:
    """Partition 0 of ``orders`` cannot be opened. ``bills`` has no problem."""
    assert invoke(["topic", "create", "bills"]) == 0
    (home / "data" / "orders-0" / "leader-epoch-checkpoint").write_text("rubbish")
    return home


def test_status_shows_readable_partitions_and_names_the_problem(troubled: Path, capfd) -> None:
    capfd.readouterr()
    assert invoke(["-q", "status", "-o", "json"]) == 4
    told = capfd.readouterr()
    facts = json.loads(told.out)
    rows = {row["topic"]: row for row in facts["topics"]}
    assert (rows["orders"]["partitions"], len(rows["orders"]["problems"])) == (2, 1)
    assert rows["orders"]["offsets"] is None, "the offsets of the topic are unknown while one partition is unread"
    assert [each["partitions"] for each in facts["unread"]] == [["orders/0"]]
    assert rows["bills"]["problems"] == []
    (line,) = told.err.splitlines()
    assert line.startswith("! orders/0: ")
    assert "leader-epoch-checkpoint" in line
    assert invoke(["status", "-p", "-o", "json"]) == 4
    rows = {(row["topic"], row["partition"]): row for row in json.loads(capfd.readouterr().out)["partitions"]}
    assert list(rows) == [("bills", 0), ("orders", 0), ("orders", 1)]
    assert (rows["orders", 0]["next_offset"], len(rows["orders", 0]["problems"])) == (None, 1)
    assert rows["orders", 1]["next_offset"] > 0, "the other partition has figures"
    for form in ("table", "csv", "jsonl"):
        assert invoke(["status", "-p", "-o", form]) == invoke(["status", "-o", form]) == 4


@pytest.mark.parametrize(
    ("topics", "code"), [([], 10), (["orders"], 10), (["bills"], 0), (["bills", "orders"], 10)], ids=str
)
def test_status_check_exits_10_for_a_partition_with_a_problem(
    troubled: Path, capfd, topics: list[str], code: int
) -> None:
    assert invoke(["status", "--check", *topics]) == code
    assert ("! orders/0: " in capfd.readouterr().err) == bool(code)


def test_topic_without_a_readable_partition_is_still_listed(troubled: Path, capfd) -> None:
    (troubled / "data" / "orders-1" / "leader-epoch-checkpoint").write_text("rubbish")
    capfd.readouterr()
    assert invoke(["status", "-o", "json"]) == 4
    rows = {row["topic"]: row for row in json.loads(capfd.readouterr().out)["topics"]}
    assert (rows["orders"]["offsets"], len(rows["orders"]["problems"])) == (None, 2)
    assert invoke(["status"]) == 4


@pytest.mark.parametrize(
    "words", [["plan"], ["plan", "--summary"], ["plan", "orders"], ["topic", "describe", "orders"]]
)
def test_read_only_command_names_the_problem_and_shows_the_rest(troubled: Path, capfd, words: list[str]) -> None:
    capfd.readouterr()
    assert invoke(words) == 4
    told = capfd.readouterr()
    assert "! orders/0: " in told.err
    assert len(told.out.splitlines()) > 1


def test_problem_is_printed_once(troubled: Path) -> None:
    for words in (["status"], ["plan"], ["consume", "orders"]):
        done = subprocess.run([sys.executable, "-m", "tiered", *words], capture_output=True, text=True, timeout=60)
        assert done.stderr.count("leader-epoch-checkpoint") == 1, done.stderr


def test_topic_list_and_settings_need_no_store_and_no_log(troubled: Path, capfd) -> None:
    (troubled / "tiered.toml").write_text('[local]\ndir = "data"\n[remote]\nurl = "s3://nowhere"\n')
    capfd.readouterr()
    assert invoke(["topic", "list", "-o", "json"]) == 0
    assert [row["topic"] for row in json.loads(capfd.readouterr().out)["topics"]] == [
        "bills",
        "orders",
    ]
    assert invoke(["topic", "describe", "orders", "--settings"]) == 0


# -- cancelled


def test_run_ends_cleanly_on_a_signal(home: Path, capfd, monkeypatch) -> None:
    from tiered.manager.manager import LogManager

    tick, finished = LogManager.tick, []
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

        def ticking(manager: LogManager, now_ms: int, number: int = number, **more: Callable[[], bool]) -> bool:
            signal.raise_signal(number)
            finished.append(number)
            return tick(manager, now_ms, **more)

        monkeypatch.setattr(LogManager, "tick", ticking)
        assert invoke(["-q", "run"]) == code
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        assert (home / "data" / ".kafka_cleanshutdown").exists()
    assert finished == [signal.SIGTERM, signal.SIGINT], "the running maintenance must finish"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_second_signal_interrupts_the_maintenance(home: Path, capfd, monkeypatch, number: int, code: int) -> None:
    from tiered.manager.manager import LogManager

    def interrupted(manager: LogManager, now_ms: int, **more: object) -> bool:
        signal.raise_signal(number)
        signal.raise_signal(number)
        raise AssertionError("the second signal must raise")

    monkeypatch.setattr(LogManager, "tick", interrupted)
    assert invoke(["-q", "run"]) == code


def test_run_cancelled_during_a_problem_exits_0_and_prints_the_problem(home: Path, capfd, monkeypatch) -> None:
    from tiered.manager.manager import LogManager

    def troubled(manager: LogManager, now_ms: int, **more: object) -> bool:
        manager.problems[TopicPartition("orders", 0)] = Unavailable("cannot read an object", key="x")
        signal.raise_signal(signal.SIGTERM)
        return False

    monkeypatch.setattr(LogManager, "tick", troubled)
    for words, code in ((["-q", "run"], 0), (["-q", "run", "--once"], 6)):
        assert invoke(words) == code
        assert "error: cannot read an object: key=x (partition orders/0)" in capfd.readouterr().err


def test_run_once_ended_by_a_signal_before_its_work_is_done_exits_143(home: Path, capfd, monkeypatch) -> None:
    from tiered.manager.manager import LogManager

    def busy(manager: LogManager, now_ms: int, **more: object) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr(LogManager, "tick", busy)
    assert invoke(["-q", "run", "--once"]) == 143


def test_running_maintenance_is_asked_to_stop(home: Path, capfd, monkeypatch) -> None:
    from tiered.manager.manager import LogManager

    asked = []

    def ticking(manager: LogManager, now_ms: int, *, should_stop: Callable[[], bool], waits: bool) -> bool:
        asked.append(should_stop())
        signal.raise_signal(signal.SIGTERM)
        asked.append(should_stop())
        return True

    monkeypatch.setattr(LogManager, "tick", ticking)
    assert invoke(["-q", "run"]) == 0
    assert asked == [False, True]


def test_run_ends_when_a_newer_writer_has_taken_over(home: Path, capfd, monkeypatch) -> None:
    from tiered.manager.manager import LogManager

    def fenced(manager: LogManager, now_ms: int, **more: object) -> bool:
        manager.problems[TopicPartition("orders", 0)] = Fenced("invalid manifest, a newer writer owns it", epoch=9)
        return True

    monkeypatch.setattr(LogManager, "tick", fenced)
    assert invoke(["run"]) == 5
    assert "error: invalid manifest, a newer writer owns it: epoch=9 (partition orders/0)" in capfd.readouterr().err


def test_status_watch_prints_until_it_is_interrupted(home: Path) -> None:
    words = [sys.executable, "-m", "tiered", "status", "--watch", "--interval", "100ms", "-o", "jsonl"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
    assert [json.loads(line)["topic"] for line in lines] == ["orders"] * 3


def test_status_section_shows_its_columns_and_an_unknown_one_is_refused(home: Path, capfd) -> None:
    capfd.readouterr()
    assert invoke(["status", "--section", "money"]) == 2
    assert "expected=local,remote,lag,cost" in capfd.readouterr().err
    assert invoke(["status", "--section", "remote"]) == 0
    assert capfd.readouterr().out.splitlines()[0].split() == ["TOPIC", "PARTITIONS", "OFFSETS", "REMOTE"]


@pytest.mark.parametrize("error", [AccessDenied, NotFound, Unavailable])
def test_read_only_commands_show_the_disk_when_the_bucket_cannot_be_read(
    home: Path, capfd, monkeypatch, error: type[LogError]
) -> None:
    assert invoke(["topic", "alter", "orders", "-X", "remote.storage.enable=true"]) == 0
    assert invoke(["run", "--once"]) == 0

    def refuse(*args: object, **more: object) -> None:
        raise error("cannot read an object, refused", store="file:bucket")

    monkeypatch.setattr("remote.manifest.commit_protocol.MetadataLog.load", refuse)
    capfd.readouterr()
    unread = 6 if error is Unavailable else 10
    assert invoke(["status", "-o", "json"]) == unread
    out, err = capfd.readouterr()
    (row,) = json.loads(out)["topics"]
    assert row["local_bytes"] == row["at_risk_bytes"] > 0
    assert (row["remote_bytes"], row["lag_bytes"], row["dollars_per_month"]) == (None, None, None)
    assert err.count("cannot read an object, refused") == 1
    assert "! 2 partitions (orders/0, orders/1): cannot read an object, refused" in err
    assert invoke(["status", "--check"]) == 10
    assert " - " in capfd.readouterr().out
    assert invoke(["plan"]) == unread
    assert "cannot read an object, refused" in capfd.readouterr().err
    assert invoke(["consume", "orders"]) == 0, "the disk has all records"
    assert capfd.readouterr().err.count("served without the remote tier") == 1


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_status_without_credentials_shows_the_disk_and_the_cause(home: Path, capfd, monkeypatch, client: str) -> None:
    toml = home / "tiered.toml"
    toml.write_text(re.sub('(?m)^url = ".*"', 'url = "s3://orders-archive"', toml.read_text()))
    for variable in [each for each in os.environ if each.startswith("AWS_") or each == "REQUESTS_CA_BUNDLE"]:
        monkeypatch.delenv(variable)
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(home / "nowhere"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    flag = ("-X", f"remote.s3.client={client}")
    capfd.readouterr()
    assert invoke([*flag, "status", "-o", "json"]) == 10
    told, said = capfd.readouterr()
    (row,) = json.loads(told)["topics"]
    assert row["local_bytes"] == row["at_risk_bytes"] > 0
    assert (row["remote_bytes"], row["dollars_per_month"]) == (None, None)
    assert said.count("no credentials") == 1, "one line for each cause"
    assert invoke([*flag, "topic", "describe", "orders", "-o", "json"]) == 10
    told, said = capfd.readouterr()
    for each in json.loads(told)["partitions"]:
        assert each["local_bytes"] > 0
        assert (each["remote_segments"], each["remote_bytes"]) == (None, None)
    assert said.count("no credentials") == 1
    config = Config.load(str(toml), {"remote.s3.client": client}, os.environ)
    with LogManager.open(config, now_ms=0, read_only=True) as manager:
        status, _, page = Site(manager, lambda: 0, deadline_s=60).answer("/")
    assert status == 200
    assert "no credentials" in str(page)
    assert "unknown" in str(page)


def test_manager_that_cannot_write_its_report_is_still_shown_as_running(home: Path, capfd, monkeypatch) -> None:
    """Another program has filled the disk. Status, pages and doctor use the lock of the directory instead."""

    def full(*words: object) -> None:
        raise DiskFailed("writing", cause="enospc")

    config, hour = Config.load(str(home / "tiered.toml"), {}, os.environ), 3_600_000
    with LogManager.open(config, now_ms=now_ms() - hour) as manager:
        worker = Worker(manager, now_ms=now_ms() - hour, interval_ms=30_000)
        worker.round(now_ms() - hour)
        monkeypatch.setattr(WorkJournal, "keep", full)
        worker.round(now_ms())
        capfd.readouterr()
        assert invoke(["status"]) == 0
        told = f"process {os.getpid()} runs on this directory; its report is "
        assert told in capfd.readouterr().err
        assert invoke(["doctor", "--no-probe"]) == 3
        assert told in capfd.readouterr().out
        status, _, page = Site(manager, now_ms, deadline_s=60).answer("/")
    assert status == 200
    assert f"P{told[1:]}" in page
    assert "No manager runs, since" not in page


def test_status_of_an_empty_directory_names_the_restore_of_a_lost_disk(home: Path, capfd) -> None:
    shutil.rmtree(home / "data")
    capfd.readouterr()
    assert invoke(["status"]) == 0
    err = capfd.readouterr().err
    assert "there is no topic; next: tiered topic create NAME" in err
    assert f"tiered restore TOPIC --to {home}/data --take-over" in err
    assert invoke(["-q", "status"]) == 0
    assert invoke(["status", "-o", "json"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing changed; next: tiered run --once"),
        (["--at", "+8d"], "nothing changed"),
        (["-X", "segment.ms=1"], "nothing changed; next: the same with --out FILE, then tiered apply FILE"),
        (["-X", "segment.ms=1", "--at", "+8d"], "nothing changed"),
        (["--out", "p"], "nothing changed; saved p; next: tiered apply p"),
    ],
)
def test_plan_suggests_only_a_command_that_applies_the_shown_plan(
    home: Path, capfd, words: list[str], told: str
) -> None:
    capfd.readouterr()
    assert invoke(["plan", *words]) == 0
    assert capfd.readouterr().err.splitlines()[-1] == told
