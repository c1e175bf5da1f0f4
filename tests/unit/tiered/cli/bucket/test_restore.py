"""``tiered restore``, from the command line to the exit code."""

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
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512", "-X", "local.retention.ms=1"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _read(words: list[str], capfd, *more: str) -> list[str]:
    assert invoke([*words, "consume", "t", "-f", "%o %k %v\\n", *more]) == 0
    return str(capfd.readouterr().out).splitlines()


def _configured(tmp_path: Path, directory: str) -> list[str]:
    home = tmp_path / "other"
    home.mkdir(exist_ok=True)
    text = (tmp_path / "tiered.toml").read_text().replace('dir = "data"', f'dir = "{tmp_path}/{directory}"')
    (home / "tiered.toml").write_text(text)
    return ["-C", str(home)]


def test_restore_does_what_its_dry_run_shows(at: list[str], tmp_path: Path, capfd) -> None:
    url, words = f"file://{tmp_path}/bucket", ["restore", "t", "--to", "there", "-o", "json"]
    in_bucket = _read(at, capfd, "--remote", url)
    assert invoke([*words, "--remote", url, "--dry-run"]) == 0
    (planned,) = json.loads(capfd.readouterr().out)["partitions"]
    assert not (tmp_path / "there").exists()
    assert planned["dollars"] > 0
    assert invoke([*words, "--remote", url]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke([*words, "--remote", url, "--yes"]) == 0
    (done,) = json.loads(capfd.readouterr().out)["partitions"]
    assert (done["next_offset"], done["size_bytes"]) == (planned["next_offset"], planned["size_bytes"])
    assert _read(_configured(tmp_path, "there"), capfd) == in_bucket
    assert invoke(["verify", "there"]) == 0
    assert invoke([*words, "--remote", url, "--yes"]) == 2
    assert "the directory already has it" in capfd.readouterr().err


def test_restore_with_takeover_gives_a_directory_that_can_be_appended_to(at: list[str], tmp_path: Path, capfd) -> None:
    words = [*at, "restore", "t", "--to", "there", "--take-over", "--local", "none", "--yes"]
    assert invoke(words) == 0
    other = _configured(tmp_path, "there")
    assert invoke([*other, "append", "t", "lines", "-K", ":"]) == 0
    capfd.readouterr()
    assert len(_read(other, capfd)) > 3500
    assert (tmp_path / "there" / "t-0").is_dir()


@pytest.mark.parametrize(("words", "code"), [
    (["--to-offset", "5", "--take-over"], 2),
    (["--local", "none"], 2),
    (["--to-time", "yesterday"], 2),
    (["--to-offset", "50", "--yes"], 0),
    (["--to-time", "-1h", "--yes"], 0),
])  # fmt: skip
def test_restore_accepts_or_refuses_combinations_of_options(at: list[str], capfd, words: list[str], code: int) -> None:
    assert invoke([*at, "restore", "t", "--to", "there", *words]) == code


def test_fork_is_readable_after_its_source_is_deleted(at: list[str], tmp_path: Path, capfd) -> None:
    url = f"file://{tmp_path}/bucket"
    assert invoke(["fork", "t", "f", "--remote", url, "--dry-run", "-o", "json"]) == 0
    (planned,) = json.loads(capfd.readouterr().out)["partitions"]
    assert invoke(["fork", "t", "f", "--remote", url]) == 2
    assert invoke(["fork", "t", "f", "--remote", url, "--yes", "-o", "json"]) == 0
    (done,) = json.loads(capfd.readouterr().out)["partitions"]
    assert done["segments"] == planned["segments"] > 3
    truth = _read(at, capfd, "--remote", url)
    assert invoke([*at, "topic", "delete", "t", "--yes"]) == 0
    capfd.readouterr()
    assert invoke(["consume", "f", "-f", "%o %k %v\\n", "--remote", url]) == 0
    assert str(capfd.readouterr().out).splitlines() == truth


def test_restore_refuses_a_directory_with_the_topic_before_it_asks_for_yes(
    at: list[str], tmp_path: Path, capfd
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    for more in ([], ["--yes"], ["--dry-run"]):
        assert invoke([*at, "restore", "t", "--to", "data", *more]) == 2
        said = capfd.readouterr().err
        assert "the directory already has it" in said
        assert "add --yes" not in said
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}.keys() == before.keys()


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_restore_exits_4_when_an_object_of_an_entry_is_lost(at: list[str], tmp_path: Path, capfd, suffix: str) -> None:
    min((tmp_path / "bucket").rglob(f"data/*.{suffix}")).unlink()
    assert invoke([*at, "restore", "t", "--to", "there", "--yes"]) == 4
    assert "the newest manifest names it" in capfd.readouterr().err
