"""`tiered dump --index` shows the index of the chosen segment, in either tier."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local.errors import InvalidRequest
from tiered.cli.main import invoke
from tiered.inspect.dump_sources import Index, index_of_segment


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two segments in both tiers, and an active segment on the disk."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["-q", "init"]) == 0
    small = ["-X", "segment.bytes=4KiB", "-X", "index.interval.bytes=64"]
    assert invoke(["-q", "topic", "create", "orders", *small]) == 0
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(1000)))
    assert invoke(["-q", "append", "orders", "lines", "--batch", "50"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0
    return tmp_path


def shown(capfd: pytest.CaptureFixture[str], *words: str) -> list[dict[str, int]]:
    capfd.readouterr()
    assert invoke(["dump", *words, "--index", "-o", "json"]) == 0
    body = json.loads(capfd.readouterr().out)
    return next(value for value in body.values() if isinstance(value, list))


def test_index_is_the_same_for_every_way_to_name_its_segment(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = sorted((home / "data" / "orders-0").glob("*.log"))
    stored = sorted((home / "bucket").rglob("*.log"))
    assert len(logs) == len(stored) + 1 > 2
    found = []
    for log, there in zip(logs, stored, strict=False):
        base = int(log.stem)
        ways = [
            shown(capfd, str(log)),
            shown(capfd, str(log.with_suffix(".index"))),
            shown(capfd, there.as_uri()),
            shown(capfd, f"orders/0@{base + 3}"),
            shown(capfd, f"orders/0@{base}", "--remote", (home / "bucket").as_uri()),
        ]
        assert all(each == ways[0] for each in ways)
        found.append(ways[0])
        offsets = [row["offset"] for row in ways[0]]
        assert offsets == sorted(offsets)
        assert offsets[0] > base
    assert shown(capfd, "orders/0") == found[0]
    assert found[0] != found[1]


def test_index_of_a_dropped_segment_is_read_from_the_bucket(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = shown(capfd, "orders/0@3")
    assert invoke(["-q", "topic", "alter", "orders", "-X", "local.retention.ms=1"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0
    assert not (home / "data" / "orders-0" / f"{0:020d}.index").exists()
    assert shown(capfd, "orders/0@3") == before


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("d/00.log", ("d/00.index", None)),
        ("d/00.index", ("d/00.index", None)),
        ("d/00-09-1-U.log.zst.enc", ("d/00-09-1-U.indexes", "offset")),
        ("s3://b/x.log", ("s3://b/x.indexes", "offset")),
        ("s3://b/x.indexes", ("s3://b/x.indexes", "offset")),
    ],
)
def test_index_of_a_file_is_in_the_same_directory(target: str, found: Index) -> None:
    assert index_of_segment(target) == found


def test_dump_index_refuses_files_without_an_index_and_other_output_options(home: Path) -> None:
    with pytest.raises(InvalidRequest):
        index_of_segment("data/topics.json")
    for more in (["--batches"], ["--records"], ["--hex"], ["--section", "time"], ["--print"]):
        assert invoke(["dump", "orders/0", "--index", *more]) == 2
    assert invoke(["dump", "orders/0@5000", "--index"]) == 1
    assert invoke(["dump", "orders", "--index"]) == 2
    assert invoke(["dump", "data/orders-0/leader-epoch-checkpoint", "--index"]) == 2
