"""Jobs whose process is killed between two of their effects, for real: what is left is sound, and run again they end.

A sample of the points; all of them: ``python tests/crash/driver_kills.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("driver_kills.py")
STEP = 35  # of some 430 points


def swept(*words: object) -> tuple[int, dict[str, dict[str, object]]]:
    command = [sys.executable, SCRIPT, *words]
    done = subprocess.run(map(str, command), capture_output=True, text=True, check=False, timeout=580)
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_a_job_that_is_killed_between_any_two_effects_is_ended_by_running_it_again() -> None:
    code, found = swept("--step", STEP, "--phase", 11)
    assert {name: each["wrong"] for name, each in found.items()} == {name: [] for name in found}
    assert code == 0
    assert sorted(found) == ["compaction", "copy", "ingest", "merge", "pipeline", "recode"]
    assert all(each["effects"] >= 15 and each["points"] for each in found.values()), found


def test_a_job_that_deletes_before_it_commits_is_found() -> None:
    """The rule broken by hand."""
    code, found = swept("--careless", "--flow", "merge", "--point", "5:before")
    assert code == 1
    assert found["merge"]["wrong"]
