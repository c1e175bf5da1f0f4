"""``tiered view`` and ``tiered consume --read-compacted``, from the command line to the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered.cli.main import invoke


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def answer(capfd, *words: str, what: str = "partitions", code: int = 0) -> dict[str, object]:
    assert invoke([*words, "-o", "json"]) == code
    (row,) = json.loads(capfd.readouterr().out)[what]
    return row


def test_view_build_does_what_its_dry_run_shows(at: list[str], capfd) -> None:
    told = answer(capfd, *at, "view", "build", "t", "--dry-run")
    assert answer(capfd, *at, "view", "status", what="views")["state"] == "never run"
    done = answer(capfd, *at, "view", "build", "t")
    assert (done["state"], done["horizon_offset"], done["key_count"]) == ("success", told["upto_offset"], 20)
    status = answer(capfd, *at, "view", "status", "t", what="views")
    assert (status["records_out"], status["backlog_bytes"], status["error"], status["gap"]) == (20, 0, None, None)
    assert invoke([*at, "view", "build", "t", "--dry-run"]) == 0
    assert "nothing to build" in capfd.readouterr().err


def test_consume_of_a_view_gives_the_newest_values_and_then_the_log(at: list[str], tmp_path: Path, capfd) -> None:
    horizon = int(str(answer(capfd, *at, "view", "build", "t")["horizon_offset"]))
    assert invoke([*at, "consume", "t", "--read-compacted", "-f", "%o %k %v\\n"]) == 0
    shown = [line.split(" ", 2) for line in capfd.readouterr().out.splitlines()]
    expected = {f"key{at % 20}": at for at in range(horizon)}
    assert {key: int(offset) for offset, key, _ in shown if int(offset) < horizon} == expected
    assert [int(offset) for offset, _, _ in shown if int(offset) >= horizon] == list(range(horizon, 2000))
    capfd.readouterr()
    assert invoke(["consume", "t", "--read-compacted", "--remote", f"file://{tmp_path}/bucket", "-n", "20"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 20


@pytest.mark.parametrize("more", [[], ["--remote"]])
def test_consume_of_a_missing_view_exits_1_and_prints_no_records(
    at: list[str], tmp_path: Path, capfd, more: list[str]
) -> None:
    where = [*more, f"file://{tmp_path}/bucket"] if more else []
    assert invoke([*at, "consume", "t", "--read-compacted", *where]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "build it with 'tiered view build t'" in shown.err


def test_view_option_without_read_compacted_is_refused(at: list[str], capfd) -> None:
    assert invoke([*at, "consume", "t", "--view", "other"]) == 2
    assert "without it the full log is read" in capfd.readouterr().err


def test_view_gap_is_reported_by_every_command_until_the_loss_is_accepted(at: list[str], capfd) -> None:
    horizon = int(str(answer(capfd, *at, "view", "build", "t")["horizon_offset"]))
    assert invoke([*at, "delete-records", "t/0", "--before", str(horizon + 5), "--yes"]) == 0
    capfd.readouterr()
    assert answer(capfd, *at, "view", "status", what="views", code=10)["gap"] == [horizon, horizon + 5]
    assert invoke([*at, "consume", "t", "--read-compacted"]) == 1
    assert "the log no longer holds the records that follow it" in capfd.readouterr().err
    assert invoke([*at, "view", "build", "t"]) == 2
    assert f"lost=[{horizon}, {horizon + 5})" in capfd.readouterr().err
    assert answer(capfd, *at, "view", "status", what="views", code=10)["state"] == "error"
    assert answer(capfd, *at, "view", "build", "t", "--accept-loss")["lost"] == [[horizon, horizon + 5]]
    assert invoke([*at, "view", "status"]) == 0
    assert "were lost before the view included them" in capfd.readouterr().err
    assert invoke([*at, "consume", "t", "--read-compacted", "-n", "1"]) == 0
    assert "were lost before the view included them" in capfd.readouterr().err


def test_view_drop_needs_yes(at: list[str], capfd) -> None:
    answer(capfd, *at, "view", "build", "t")
    assert invoke([*at, "view", "drop", "t"]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke([*at, "view", "drop", "t", "--yes"]) == 0
    assert invoke([*at, "consume", "t", "--read-compacted"]) == 1
    assert invoke([*at, "view", "drop", "t", "--yes"]) == 1
    assert invoke([*at, "view", "build", "t", "--name", "a/b"]) == 2


def test_view_threshold_makes_maintenance_build_the_view(at: list[str], capfd) -> None:
    assert invoke([*at, "topic", "alter", "t", "-X", "compaction.view.threshold=1KiB"]) == 0
    capfd.readouterr()
    assert invoke([*at, "plan", "-o", "json"]) == 0
    decided = {each["decision"]: each for each in json.loads(capfd.readouterr().out)["decisions"]}
    assert "compaction.view.threshold=1024" in decided["BuildView"]["reason"]
    assert invoke([*at, "run", "--once"]) == 0
    capfd.readouterr()
    assert answer(capfd, *at, "view", "status", what="views")["state"] == "success"
