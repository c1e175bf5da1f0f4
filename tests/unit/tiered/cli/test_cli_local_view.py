"""``tiered view`` of a topic without a remote tier, from its creation to its deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiered.cli.main import invoke


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        '[local]\ndir = "data"\n[defaults]\n"segment.bytes" = "4KiB"\n"file.delete.delay.ms" = 0\n'
    )
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(1000)))
    (tmp_path / "more").write_text("".join(f"key{at % 5}:newer {at}\n" for at in range(1000, 1100)))
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-X", "append.batch.bytes=512"]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    capfd.readouterr()
    return words


def answer(capfd, *words: str, what: str = "partitions", code: int = 0) -> dict[str, object]:
    assert invoke([*words, "-o", "json"]) == code
    (row,) = json.loads(capfd.readouterr().out)[what]
    return row


def shown(capfd, at: list[str], *more: str) -> list[tuple[int, str, str]]:
    assert invoke([*at, "consume", "t", "--read-compacted", "-f", "%o %k %v\\n", *more]) == 0
    lines = (line.split(" ", 2) for line in capfd.readouterr().out.splitlines())
    return [(int(offset), key, value) for offset, key, value in lines]


def test_local_view_is_built_read_verified_and_deleted_with_its_topic(at: list[str], tmp_path: Path, capfd) -> None:
    assert invoke([*at, "view", "status"]) == 0
    assert "key" not in capfd.readouterr().out
    assert answer(capfd, *at, "view", "status", "t", what="views")["state"] == "never run"
    assert answer(capfd, *at, "view", "build", "t", "--dry-run")["upto_offset"] == 1000
    done = answer(capfd, *at, "view", "build", "t")
    assert (done["state"], done["horizon_offset"], done["key_count"], done["is_local"]) == ("success", 1000, 20, True)
    assert shown(capfd, at) == [(offset, f"key{offset % 20}", f"value {offset}") for offset in range(980, 1000)]

    assert invoke([*at, "append", "t", "more", "-K", ":"]) == 0
    capfd.readouterr()
    assert len(shown(capfd, at)) == 20 + 100
    answer(capfd, *at, "view", "build", "t")
    newest = {f"key{at % 20}": at for at in range(980, 1000)} | {f"key{at % 5}": at for at in range(1000, 1100)}
    assert {key: offset for offset, key, _ in shown(capfd, at)} == newest
    assert invoke([*at, "view", "build", "t", "--dry-run"]) == 0
    assert "nothing to build" in capfd.readouterr().err

    assert invoke([*at, "run", "--once"]) == 0
    parts = sorted(each.name for each in (tmp_path / "data/t-0/view/compacted").iterdir())
    assert len(parts) == 2 * int(str(answer(capfd, *at, "view", "status", what="views")["parts"]))
    assert invoke([*at, "verify"]) == 0
    capfd.readouterr()
    assert invoke([*at, "dump", str(tmp_path / "data/t-0/view/compacted" / parts[-1])]) == 0
    assert "baseOffset" in capfd.readouterr().out
    size = sum(each.stat().st_size for each in (tmp_path / "data/t-0").rglob("*") if each.is_file())
    assert invoke([*at, "log-dirs", "-p", "-o", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["partitions"]
    assert row["size_bytes"] == size

    assert invoke([*at, "topic", "delete", "t", "--yes"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    assert not list((tmp_path / "data").glob("t-*"))


def test_verify_finds_a_damaged_view_part_and_a_damaged_catalog(at: list[str], tmp_path: Path, capfd) -> None:
    answer(capfd, *at, "view", "build", "t")
    (part,) = (tmp_path / "data/t-0/view/compacted").glob("*.log")
    body = bytearray(part.read_bytes())
    body[100] ^= 1
    part.write_bytes(body)
    assert invoke([*at, "verify"]) == 4
    assert str(part.name)[:20] in capfd.readouterr().out
    body[100] ^= 1
    part.write_bytes(body)
    catalog = tmp_path / "data/t-0/view-catalog"
    catalog.write_bytes(catalog.read_bytes()[:-1])
    assert invoke([*at, "verify", "t"]) == 4
    assert "view-catalog" in capfd.readouterr().out
    for code, words in (
        (4, ["view", "build", "t"]),
        (10, ["view", "status"]),
        (4, ["consume", "t", "--read-compacted"]),
    ):
        assert invoke([*at, *words]) == code, words
        assert "tiered view drop" in capfd.readouterr().err, words
    assert invoke([*at, "view", "drop", "t", "--yes"]) == 0
    assert answer(capfd, *at, "view", "build", "t")["key_count"] == 20


def test_view_threshold_makes_maintenance_build_the_view_and_the_plan_shows_it(at: list[str], capfd) -> None:
    assert invoke([*at, "topic", "alter", "t", "-X", "compaction.view.threshold=1KiB"]) == 0
    capfd.readouterr()
    assert invoke([*at, "plan", "-o", "json"]) == 0
    decided = {each["decision"]: each for each in json.loads(capfd.readouterr().out)["decisions"]}
    assert "compaction.view.threshold=1024" in decided["BuildView"]["reason"]
    assert invoke([*at, "run", "--once"]) == 0
    capfd.readouterr()
    assert answer(capfd, *at, "view", "status", what="views")["state"] == "success"
