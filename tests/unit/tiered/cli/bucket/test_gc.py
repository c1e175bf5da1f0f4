"""``tiered gc``, from the command line to the exit code."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from remote.keys import data_key
from tiered.cli.main import invoke


@pytest.fixture
def at(tmp_path: Path, monkeypatch, capfd) -> list[str]:
    """A bucket with an old and a new orphan of an older epoch, and an object of another program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("a\nb\n")
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-X", "remote.storage.enable=true"]) == 0
    assert invoke([*words, "append", "t", "lines"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    prefix = next((tmp_path / "bucket").glob("t-*")) / "0"
    (prefix / "data").mkdir(exist_ok=True)
    for ulid in ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"):
        (prefix / data_key(90, 99, 1, ulid)).write_bytes(b"left behind")
    old = prefix / data_key(90, 99, 1, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 4 * 86400))
    (prefix / "data" / "notes.txt").write_text("mine")
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _objects(tmp_path: Path) -> set[Path]:
    return {path for path in (tmp_path / "bucket").rglob("*") if path.is_file()}


def test_gc_costs_use_the_configured_prices(at: list[str], tmp_path: Path, capfd) -> None:
    dear = {"classes": {"STANDARD": {"storage_bands": [[None, float(1 << 30)]]}}}  # one dollar per byte
    (tmp_path / "mine.json").write_text(json.dumps(dear))
    assert invoke([*at, "-X", f"cost.prices={tmp_path}/mine.json", "gc", "-o", "json"]) == 3
    told = json.loads(capfd.readouterr().out)
    assert told["dollars_per_month"] == told["size_bytes"] == 22


@pytest.mark.parametrize("body", [None, "{"])
def test_gc_without_a_readable_price_file_uses_the_built_in_prices_and_says_so(
    at: list[str], tmp_path: Path, capfd, body: str | None
) -> None:
    assert invoke([*at, "gc", "-o", "json"]) == 3
    told = json.loads(capfd.readouterr().out)
    if body is not None:
        (tmp_path / "mine.json").write_text(body)
    assert invoke([*at, "-X", f"cost.prices={tmp_path}/mine.json", "gc", "-o", "json"]) == 3
    out, said = capfd.readouterr()
    assert json.loads(out)["dollars_per_month"] == told["dollars_per_month"] > 0
    assert "! dollars use the built-in prices" in said


def test_gc_lists_orphans_and_deletes_only_listed_ones_that_are_old_enough(
    at: list[str], tmp_path: Path, capfd
) -> None:
    before = _objects(tmp_path)
    assert invoke([*at, "gc", "--delete", "--yes"]) == 1
    assert "run 'tiered gc' first" in capfd.readouterr().err
    assert invoke([*at, "gc", "-o", "json"]) == 3
    out, said = capfd.readouterr()
    told = json.loads(out)
    assert [each["size_bytes"] for each in told["orphans"]] == [11, 11]
    assert told["size_bytes"] == 22
    assert told["dollars_per_month"] > 0
    assert "2 orphans" in said
    assert "1 old enough" in said
    assert _objects(tmp_path) == before
    assert invoke([*at, "gc", "--delete"]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke([*at, "gc", "--delete", "--yes"]) == 0
    assert "deleted 1, 11 B; kept 1 younger than 3d" in capfd.readouterr().err
    assert len(before - _objects(tmp_path)) == 1
    assert invoke([*at, "gc", "--delete", "--yes", "--older-than", "0"]) == 0
    assert len(before - _objects(tmp_path)) == 2
    assert invoke([*at, "gc", "t"]) == 0
    assert invoke([*at, "scrub", "--deep", "--report", "r.json"]) == 3  # the object of another program


def test_gc_refuses_arguments_that_contradict_each_other(at: list[str], capfd) -> None:
    assert invoke([*at, "gc", "t", "--delete", "--yes"]) == 2
    assert invoke([*at, "gc", "--older-than", "soon"]) == 2
    assert "invalid --older-than" in capfd.readouterr().err


@pytest.fixture
def beside_secret(at: list[str], tmp_path: Path, capfd) -> list[str]:
    """The same bucket with an encrypted topic, and a configuration whose key ring lacks its key."""
    (tmp_path / "ring").write_text("k1 " + base64.b64encode(bytes(range(32))).decode())
    (tmp_path / "ring").chmod(0o600)
    config = tmp_path / "tiered.toml"
    plain = config.read_text()
    config.write_text(plain.replace("[remote]\n", '[remote]\nkey_ring = "ring"\n'))
    settings = ["-X", "remote.storage.enable=true", "-X", "remote.encryption.key.id=k1"]
    assert invoke([*at, "topic", "create", "secret", *settings]) == 0
    assert invoke([*at, "append", "secret", "lines"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    config.write_text(plain)
    capfd.readouterr()
    return at


def test_gc_names_a_partition_it_cannot_open_and_lists_the_others(beside_secret: list[str], capfd) -> None:
    assert invoke([*beside_secret, "gc", "-o", "json"]) == 1
    out, said = capfd.readouterr()
    assert {each["topic"] for each in json.loads(out)["orphans"]} == {"t"}
    (line,) = (line for line in said.splitlines() if line.startswith("! "))
    assert line.startswith("! secret-")
    assert "cannot be checked" in line
    assert "k1" in line


def test_gc_delete_leaves_the_objects_of_a_partition_it_cannot_open(
    beside_secret: list[str], tmp_path: Path, capfd
) -> None:
    assert invoke([*beside_secret, "gc", "-o", "json"]) == 1
    found = json.loads((tmp_path / "gc-list.json").read_text())
    assert list(found["refused"]) == [f"{next((tmp_path / 'bucket').glob('secret-*')).name}/0/"]
    (secret,) = (tmp_path / "bucket").glob("secret-*")
    ours = found["entries"][0] | {"topic": "secret", "topic_id": secret.name.removeprefix("secret-")}
    (tmp_path / "gc-list.json").write_text(json.dumps(found | {"entries": [*found["entries"], ours]}))
    capfd.readouterr()
    assert invoke([*beside_secret, "gc", "--delete", "--yes", "-o", "json"]) == 1
    out, said = capfd.readouterr()
    assert {each["topic"] for each in json.loads(out)["deleted"]} == {"t"}
    assert "! secret-" in said
    assert "its objects stay" in said


@pytest.mark.parametrize("command", ["status", "topic describe secret", "plan", "cost show"])
def test_problem_of_a_missing_key_names_the_next_step(beside_secret: list[str], capfd, command: str) -> None:
    assert invoke([*beside_secret, *command.split()]) != 0
    said = capfd.readouterr().err
    (line,) = (line for line in said.splitlines() if line.startswith("! secret/0"))
    assert "next: add the key k1 to the key ring" in line
    assert "TIERED_KEY_RING" in line
    assert "credential" not in line
