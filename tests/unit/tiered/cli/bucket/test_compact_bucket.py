"""``tiered compact --bucket``, from the command line to the exit code, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bucket_truth import assert_sound

from remote.store.open_store import open_store
from tiered.cli.main import invoke


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    """A node whose cleaner has not run: the bucket has all records."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n'
        '[defaults]\n"segment.bytes" = "4KiB"\n"append.batch.bytes" = "512"\n"remote.storage.enable" = "true"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    for topic in ("t", "plain"):
        assert invoke([*words, "topic", "create", topic, "-p", "1"]) == 0
        assert invoke([*words, "append", topic, "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _answer(capfd, *words: str) -> dict[str, object]:
    assert invoke([*words, "-o", "json"]) == 0
    return json.loads(capfd.readouterr().out)


def _values(at: list[str], tmp_path: Path, capfd) -> list[str]:
    assert invoke([*at, "consume", "t", "--remote", f"file://{tmp_path}/bucket", "-f", "%k %v\\n"]) == 0
    return str(capfd.readouterr().out).splitlines()


@pytest.mark.parametrize("where", [["--bucket"], ["--remote"]])
def test_compact_bucket_cleans_a_topic_and_a_repeated_job_does_nothing(at, where, tmp_path, capfd) -> None:
    if where == ["--remote"]:
        where = ["--remote", f"file://{tmp_path}/bucket"]
    at = [*at, "-X", "cleanup.policy=compact"]
    before = len(_values(at, tmp_path, capfd))
    told = _answer(capfd, *at, "compact", "t/0", *where, "--dry-run", "--resume", "nightly")
    (planned,) = told["partitions"]
    assert planned["segments"] > 5
    assert 0 < planned["dirty_bytes"] == planned["size_bytes"]
    assert len(_values(at, tmp_path, capfd)) == before, "a dry run changes nothing"
    done = _answer(capfd, *at, "compact", "t", *where, "--resume", "nightly")
    (row,) = done["partitions"]
    assert (done["job"], row["was_done"], row["is_cut"]) == ("nightly", False, False)
    assert (row["records_before"], row["records_after"]) == (before, 20)
    assert row["segments_before"] == planned["segments"]
    assert len(_values(at, tmp_path, capfd)) == 20
    (again,) = _answer(capfd, *at, "compact", "t", *where, "--resume", "nightly")["partitions"]
    assert again["was_done"]
    store = open_store(f"file://{tmp_path}/bucket")
    assert_sound(store)
    store.close()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["plain", "--bucket"], 2, "does not include compact"),
        (["t", "--bucket", "--roll"], 2, "closed"),
        (["t", "--resume", "a"], 2, "apply to the bucket"),
        (["t", "--bucket", "--resume", "a/b"], 2, "invalid --resume"),
        (["nowhere", "--bucket"], 1, "not in the bucket"),
    ],
)
def test_compact_bucket_refuses_invalid_arguments(at, words, code, why, capfd) -> None:
    assert invoke([*at, "compact", *words]) == code
    assert why in capfd.readouterr().err
