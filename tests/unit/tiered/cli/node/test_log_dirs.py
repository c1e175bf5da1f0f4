"""``tiered log-dirs``: the contents of each log directory, and moves of partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered.cli.main import invoke
from tiered.node.problems import REPORT_FILE


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text('[local]\ndirs = ["one", "two"]\ncordoned = ["two"]\n')
    (tmp_path / "lines").write_text("".join(f"value {at}\n" for at in range(50)))
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-p", "2"]) == 0
    assert invoke([*words, "append", "t/1", "lines"]) == 0
    capfd.readouterr()
    return words


def rows(capfd, *words: str) -> list[dict[str, object]]:
    assert invoke([*words, "-o", "json"]) == 0
    body = json.loads(capfd.readouterr().out)
    return body.get("directories") or body["partitions"]


def test_log_dirs_shows_state_and_size_of_each_directory(at: list[str], tmp_path: Path, capfd) -> None:
    one, two = rows(capfd, *at, "log-dirs")
    assert (one["path"], one["state"], one["partitions"]) == (str(tmp_path / "one"), "online", 2)
    assert (two["state"], two["partitions"], two["size_bytes"]) == ("cordoned", 0, 0)
    total = sum(path.stat().st_size for path in (tmp_path / "one").glob("t-*/*"))
    assert one["size_bytes"] == total > 0
    assert 0 < one["free_bytes"] <= one["total_bytes"]
    assert rows(capfd, *at, "log-dirs", "--topic", "other")[0]["size_bytes"] == 0


def test_log_dirs_move_moves_a_partition_with_its_records(at: list[str], tmp_path: Path, capfd) -> None:
    assert invoke([*at, "log-dirs", "move", "t/1", "--to", "two"]) == 0
    assert capfd.readouterr().err == f"moved t/1 to {tmp_path}/two\n"
    found = rows(capfd, *at, "log-dirs", "-p")
    assert [(Path(str(row["path"])).name, row["partition"]) for row in found] == [("one", 0), ("two", 1)]
    assert not any(row["is_future"] or row["is_deleted"] for row in found)
    assert invoke([*at, "consume", "t/1", "-f", "%v\\n"]) == 0
    assert capfd.readouterr().out == "".join(f"value {at}\n" for at in range(50))
    assert invoke([*at, "log-dirs", "move", "t/1", "--to", "two"]) == 2
    assert "the partition is already in this log directory" in capfd.readouterr().err
    assert invoke([*at, "log-dirs", "move", "t/1", "--to", "three"]) == 2
    assert "the log directory is not configured" in capfd.readouterr().err


def test_log_dirs_distinguishes_a_future_replica_from_its_partition(at: list[str], tmp_path: Path, capfd) -> None:
    future = tmp_path / "two" / f"t-1.{'a' * 32}-future"
    future.mkdir()
    (future / "00000000000000000000.log").write_bytes(b"12345")
    found = rows(capfd, *at, "log-dirs", "-p", "--topic", "t")
    assert [(row["partition"], row["is_future"]) for row in found] == [(0, False), (1, False), (1, True)]
    assert found[-1]["size_bytes"] == 5


def test_offline_directory_exits_10_and_is_named(at: list[str], tmp_path: Path, capfd) -> None:
    (tmp_path / "two").rename(tmp_path / "away")
    assert invoke([*at, "log-dirs", "-o", "jsonl"]) == 10
    out, err = capfd.readouterr()
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["online", "offline"]
    assert "two: the log directory does not exist" in err


def test_log_dirs_of_an_empty_node_shows_an_empty_directory(tmp_path: Path, capfd) -> None:
    (tmp_path / "tiered.toml").write_text("")
    (row,) = rows(capfd, "-C", str(tmp_path), "log-dirs")
    assert (row["state"], row["partitions"], row["size_bytes"]) == ("online", 0, 0)


@pytest.mark.parametrize("is_full_too", [False, True])
def test_status_check_is_healthy_as_soon_as_the_directory_is_online_again(
    at: list[str], tmp_path: Path, capfd, is_full_too
) -> None:
    """A problem recorded by an ended process counts only while the directory is offline."""
    assert invoke([*at, "log-dirs", "move", "t/1", "--to", "two"]) == 0
    (tmp_path / "two").rename(tmp_path / "away")
    invoke([*at, "run", "--once"])
    assert invoke([*at, "status", "--check"]) == 10
    (tmp_path / "away").rename(tmp_path / "two")
    if is_full_too:  # a problem of appends, which a read-only open cannot disprove
        path = next(tmp_path.glob(f"one/{REPORT_FILE}"))
        report = json.loads(path.read_bytes())
        assert report["troubles"]
        report["troubles"] = [{**each, "code": None} for each in report["troubles"]]
        path.write_bytes(json.dumps(report).encode())
    capfd.readouterr()
    assert invoke([*at, "status", "--check"]) == (10 if is_full_too else 0), capfd.readouterr().err
