"""``tiered compact`` and ``tiered compaction``, from the command line to the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local import names
from tiered.cli.main import invoke


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text('[local]\ndir = "data"\n[defaults]\n"segment.bytes" = "4KiB"\n')
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-X", "cleanup.policy=compact", "-X", "append.batch.bytes=512"]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    capfd.readouterr()
    return words


def answer(capfd, *words: str, code: int = 0) -> dict[str, object]:
    assert invoke([*words, "-o", "json"]) == code
    body: dict[str, object] = json.loads(capfd.readouterr().out)
    return body


def one(capfd, *words: str, code: int = 0) -> dict[str, object]:
    (row,) = answer(capfd, *words, code=code)["partitions"]  # type: ignore[misc]
    return row


def test_compact_does_what_its_dry_run_shows(at: list[str], tmp_path: Path, capfd) -> None:
    files = {path: path.stat().st_size for path in (tmp_path / "data").rglob("*")}
    told = one(capfd, *at, "compact", "t", "--dry-run")
    assert {path: path.stat().st_size for path in (tmp_path / "data").rglob("*")} == files
    assert told["distinct_keys"] == 20
    assert str(told["basis"]).startswith("all ")
    done = one(capfd, *at, "compact", "t")
    assert done["is_cleaned"] is True
    assert done["bytes_before"] == told["bytes_before"]
    assert abs(float(done["size_reduction"]) - float(told["size_reduction"])) < 0.1  # type: ignore[arg-type]
    again = one(capfd, *at, "compact", "t")
    assert again["is_cleaned"] is False
    assert one(capfd, *at, "compact", "t", "--roll")["is_cleaned"] is True


def test_compaction_status_shows_the_state_and_the_last_pass_in_kafkas_words(at: list[str], capfd) -> None:
    before = one(capfd, *at, "compaction", "status")
    assert (before["state"], before["dirty_ratio"], before["last_run_ms"]) == ("due", 1.0, None)
    assert invoke([*at, "compact", "t"]) == 0
    capfd.readouterr()
    after = one(capfd, *at, "compaction", "status", "t")
    assert (after["state"], after["dirty_ratio"], after["cleanable_bytes"]) == ("clean", 0.0, 0)
    assert float(str(after["size_reduction"])) > 0.5
    assert invoke([*at, "compaction", "status", "--runs", "3"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("Log cleaner thread 0 cleaned log t-0 (dirty section = [0, ")
    assert "size reduction" in text
    (run,) = answer(capfd, *at, "compaction", "status", "--runs", "3")["runs"]  # type: ignore[misc]
    assert run["error"] is None
    metrics = {row["name"]: row["value"] for row in answer(capfd, *at, "compaction", "status", "--metrics")["metrics"]}  # type: ignore[attr-defined]
    assert metrics["max-dirty-percent"] == 0
    assert metrics["uncleanable-partitions-count"] == 0


def test_uncleanable_partition_is_reported_with_its_cause_and_exit_10(at: list[str], tmp_path: Path, capfd) -> None:
    first = min((tmp_path / "data" / "t-0").glob("*.log"))
    body = bytearray(first.read_bytes())
    body[100] ^= 0xFF
    first.write_bytes(body)
    assert invoke([*at, "compact", "t"]) == 4
    assert "! t/0: " in capfd.readouterr().err
    row = one(capfd, *at, "compaction", "status", code=10)
    assert row["state"] == "uncleanable"
    assert "crc" in str(row["uncleanable_reason"])
    assert invoke([*at, "compaction", "status"]) == 10
    assert "! t/0: uncleanable: " in capfd.readouterr().err


def test_uncleanable_partitions_with_one_cause_are_one_line(at: list[str], tmp_path: Path, capfd) -> None:
    for topic in ("u", "v"):
        compacted = ["-X", "cleanup.policy=compact", "-X", "append.batch.bytes=512"]
        assert invoke([*at, "topic", "create", topic, *compacted]) == 0
        assert invoke([*at, "append", topic, "lines", "-K", ":"]) == 0
    for topic in ("t", "u", "v"):
        first = min((tmp_path / "data" / f"{topic}-0").glob("*.log"))
        body = bytearray(first.read_bytes())
        body[100] ^= 0xFF
        first.write_bytes(body)
        assert invoke([*at, "compact", topic]) == 4
    capfd.readouterr()
    assert invoke([*at, "compaction", "status"]) == 10
    told = [line for line in capfd.readouterr().err.splitlines() if "uncleanable" in line]
    assert len(told) == 1
    assert told[0].startswith("! 3 partitions (t/0, u/0, v/0): uncleanable: ")


def test_compaction_advise_exits_3_with_advice_and_0_without(at: list[str], tmp_path: Path, capfd) -> None:
    assert invoke([*at, "compaction", "advise"]) == 0
    assert "no advice" in capfd.readouterr().err
    run = {"topic": "t", "partition": 0, "at_ms": 1, "buffer_utilization": 0.9, "distinct_keys": 7, "is_cut": True}
    (tmp_path / "data" / names.CLEANER_HISTORY).write_text(json.dumps(run) + "\n")
    (advice,) = answer(capfd, *at, "compaction", "advise", code=3)["advice"]  # type: ignore[misc]
    assert (advice["rule"], advice["setting"]) == ("full-buffer", "log.cleaner.dedupe.buffer.size")


def test_compact_refuses_invalid_arguments(at: list[str], capfd) -> None:
    assert invoke([*at, "topic", "create", "plain"]) == 0
    assert invoke([*at, "compact", "plain"]) == 2
    assert "its cleanup.policy does not include compact" in capfd.readouterr().err
    assert invoke([*at, "compact", "t", "--dry-run", "--roll"]) == 2
    assert invoke([*at, "compact", "nowhere"]) == 1
    assert invoke([*at, "compaction", "status", "nowhere"]) == 1


def test_records_without_a_key_are_removed_and_counted_when_the_topic_allows_it(
    at: list[str], tmp_path: Path, capfd
) -> None:
    (tmp_path / "bare").write_text("no key\n" * 7)
    assert invoke([*at, "append", "t", "bare"]) == 2
    assert "has no key" in capfd.readouterr().err
    assert invoke([*at, "topic", "alter", "t", "-X", "compaction.records.without.key=drop"]) == 0
    assert invoke([*at, "append", "t", "bare"]) == 0
    (tmp_path / "more").write_text("".join(f"key{at}:value {at}\n" for at in range(600)))
    # this also closes the segment with the records without a key
    assert invoke([*at, "append", "t", "more", "-K", ":"]) == 0
    capfd.readouterr()
    assert one(capfd, *at, "compact", "t", "--dry-run")["invalid_records"] == 7
    assert one(capfd, *at, "compact", "t")["invalid_records"] == 7
    assert one(capfd, *at, "compaction", "status")["invalid_records"] == 7
    assert invoke([*at, "compaction", "status", "--runs", "1"]) == 0
    assert "Found 7 invalid messages during compaction." in capfd.readouterr().out
    assert invoke([*at, "consume", "t", "-o", "jsonl"]) == 0
    assert "no key" not in capfd.readouterr().out
