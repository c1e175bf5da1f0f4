"""kill -9 in each stage of `tiered view build` without a remote tier: the old view or the new one is readable."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COUNT = 20_000
KEYS = 3_000
TIMEOUT_S = 60.0


def tiered(at: Path, *words: str, code: int = 0) -> str:
    ran = subprocess.run([*COMMAND, *words], cwd=at, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == code, ran.stderr
    return ran.stdout


COMMAND = [sys.executable, "-m", "tiered"]
OLD = {f"k{at % KEYS}": at for at in range(COUNT)}
NEW = {**OLD, **{f"k{at % 100}": at for at in range(COUNT, COUNT + 5_000)}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("view")
    (at / "tiered.toml").write_text(
        '[local]\ndir = "data"\n[defaults]\n"segment.bytes" = "16KiB"\n"append.batch.bytes" = "2KiB"\n'
        '"file.delete.delay.ms" = "0"\n'
    )
    (at / "first").write_text("".join(f"k{each % KEYS}:{each}\n" for each in range(COUNT)))
    (at / "later").write_text("".join(f"k{each % 100}:{each}\n" for each in range(COUNT, COUNT + 5_000)))
    tiered(at, "topic", "create", "t")
    tiered(at, "append", "t", "first", "-K", ":")
    tiered(at, "view", "build", "t")
    tiered(at, "append", "t", "later", "-K", ":")
    return at


@pytest.fixture
def place(built: Path, tmp_path: Path) -> Path:
    """A copy for each test, with a view that is behind its log."""
    return shutil.copytree(built, tmp_path / "place")


def read(at: Path) -> tuple[dict[str, int], int]:
    """The view by key, and its horizon."""
    (row,) = json.loads(tiered(at, "view", "status", "t", "-o", "json"))["views"]
    horizon = row["horizon_offset"]
    lines = tiered(at, "consume", "t", "--read-compacted", "-f", "%o %k %v\\n").splitlines()
    rows = [line.split() for line in lines]
    return {key: int(value) for offset, key, value in rows if int(offset) < horizon}, horizon


def catalog_of(at: Path) -> bytes:
    return (at / "data/t-0/view-catalog").read_bytes()


STAGES: dict[str, Callable[[Path, set[str], bytes], bool]] = {
    "the run is noted": lambda at, parts, catalog: catalog_of(at) != catalog,
    "a part is put together": lambda at, parts, catalog: any((at / "data/t-0").glob("*.cleaned")),
    "a part is in its place": lambda at, parts, catalog: bool(files(at) - parts),
    "several parts are": lambda at, parts, catalog: len(files(at) - parts) > 6,
}


def files(at: Path) -> set[str]:
    return {str(each) for each in (at / "data/t-0/view").rglob("*.log")}


@pytest.mark.deep("a view build killed in each stage")
@pytest.mark.parametrize("stage", STAGES)
def test_killed_view_build_leaves_the_old_or_the_new_view_complete(place: Path, stage: str) -> None:
    parts, catalog = files(place), catalog_of(place)
    process = subprocess.Popen([*COMMAND, "view", "build", "t"], cwd=place, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < give_up and not STAGES[stage](place, parts, catalog):
        pass
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found, horizon = read(place)
    assert found == (OLD if horizon == COUNT else NEW)
    tiered(place, "run", "--once")
    assert (
        "corrupt=0"
        in subprocess.run(
            [*COMMAND, "verify"], cwd=place, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stderr
    )
    assert not list((place / "data/t-0").glob("*.cleaned"))
    tiered(place, "view", "build", "t")
    assert read(place) == (NEW, COUNT + 5_000)
    tiered(place, "topic", "delete", "t", "--yes")
    tiered(place, "run", "--once")
    assert not list((place / "data").glob("t-*"))
