"""``tiered repair``, from the command line to the exit code."""

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


def _flip(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(body))


def _read(at: list[str], tmp_path: Path, capfd) -> str:
    assert invoke([*at, "consume", "t", "--remote", f"file://{tmp_path}/bucket", "-f", "%o %k %v\\n"]) == 0
    return str(capfd.readouterr().out)


def test_repair_of_a_scrub_report_makes_the_bucket_sound(at: list[str], tmp_path: Path, capfd) -> None:
    """Data is restored from the disk, indexes are built from the data.
    A reader of the bucket then sees all records."""
    before = _read(at, tmp_path, capfd)
    data = sorted((tmp_path / "bucket").glob("t-*/0/data/*.log"))
    _flip(data[1], 1000)
    data[2].with_suffix(".indexes").unlink()
    assert invoke([*at, "scrub", "--deep", "--report", "r.json"]) == 4
    capfd.readouterr()
    assert invoke([*at, "repair", "r.json", "--dry-run", "-o", "json"]) == 3
    planned = json.loads(capfd.readouterr().out)["repairs"]
    assert [(each["state"], each["source"]) for each in planned] == [("to do", "local"), ("to do", "local")]
    assert invoke([*at, "repair", "r.json"]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke([*at, "repair", "r.json", "--yes"]) == 0
    assert invoke([*at, "scrub", "--deep"]) == 0
    assert _read(at, tmp_path, capfd).endswith(before)


def test_repair_without_a_good_copy_names_the_lost_offsets_and_exits_4(at: list[str], tmp_path: Path, capfd) -> None:
    data = sorted((tmp_path / "bucket").glob("t-*/0/data/*.log"))
    _flip(data[1], 1000)
    data[2].with_suffix(".indexes").unlink()
    alone = ["--remote", f"file://{tmp_path}/bucket"]
    assert invoke([*at, "scrub", "--deep", "--report", "r.json", *alone]) == 4
    capfd.readouterr()
    assert invoke([*at, "repair", "r.json", "--yes", "-o", "json", *alone]) == 4
    out, said = capfd.readouterr()
    states = {each["object"]: (each["state"], each["source"]) for each in json.loads(out)["repairs"]}
    assert states[f"data/{data[1].name}"] == ("hopeless", None)
    assert states[f"data/{data[2].name}"] == ("repaired", "bucket")
    assert "no good copy offsets=" in said


def test_repair_refuses_a_missing_and_an_invalid_report(at: list[str], tmp_path: Path, capfd) -> None:
    assert invoke([*at, "repair", "no.json"]) == 1
    (tmp_path / "x.json").write_text("{}")
    assert invoke([*at, "repair", "x.json"]) == 2
    said = capfd.readouterr().err
    assert "the file has another format" in said
    assert "run 'tiered scrub --report FILE'" in said
