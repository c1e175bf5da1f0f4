"""The demo, small, started like by a user: twice in the same directory, with no process left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from json_schemas import SCHEMAS

from local.errors import InvalidRequest
from tiered.demo.main_job import workshop

pytestmark = pytest.mark.server


def _tiered(*arguments: str, mark: str = "none") -> subprocess.CompletedProcess[str]:
    """Run a command. `mark` is put into the environment, which every child process inherits."""
    command = [sys.executable, "-m", "tiered", *arguments]
    environment = {**os.environ, "DEMO_TEST_MARK": mark}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)


def _left_running(mark: str) -> list[str]:
    """Command lines of the processes that have the mark."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if f"DEMO_TEST_MARK={mark}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text(errors="replace"))
    return found


@pytest.mark.deep("the whole demo, twice")
@pytest.mark.spark
def test_demo_runs_twice_in_one_directory_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "tiered-demo-test"
    for _ in range(2):
        done = _tiered("demo", "--dir", str(folder), "--limit", "60000", "-o", "json", mark=str(tmp_path))
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        msgspec.convert(told, SCHEMAS["demo"])
        steps = {step["step"]: step for step in told["steps"]}
        assert {"append", "compact", "upload to S3", "read back, both tiers"} < set(steps)
        assert any("Spark" in name for name in steps)
        tiers = {(row["topic"], row["tier"]): row["records"] for row in told["tiers"]}
        assert tiers["flights", "remote"] > tiers["flights", "local"]
        assert sum(count for (topic, _), count in tiers.items() if topic == "flights") == 60_000
        assert _left_running(str(tmp_path)) == []
        assert [path.name for path in folder.rglob("*.deleted")] == [], (
            "files scheduled for deletion must be deleted at the end"
        )
    status = _tiered("-C", str(folder), "status", "-o", "json")
    assert status.returncode == 0, status.stderr
    consumed = _tiered("-C", str(folder), "consume", "flights/0", "-n", "3", "-o", "jsonl")
    assert [json.loads(line)["offset"] for line in consumed.stdout.splitlines()] == [0, 1, 2]


def test_search_for_leftover_processes_finds_one(tmp_path: Path) -> None:
    """So the check of the demo test can fail."""
    environment = {**os.environ, "DEMO_TEST_MARK": str(tmp_path)}
    program = [sys.executable, "-c", "print('begun', flush=True); input()"]
    stays = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert stays.stdout is not None
    try:
        assert stays.stdout.readline() == b"begun\n"  # the system shows no environment before the program begins
        assert len(_left_running(str(tmp_path))) == 1
    finally:
        stays.communicate(b"\n")
    assert _left_running(str(tmp_path)) == []


def test_demo_refuses_a_directory_with_other_files_and_leaves_it_unchanged(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(InvalidRequest, match="choose another folder with --dir"), workshop(str(tmp_path)):
        raise AssertionError("the demo must refuse the directory")
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]
