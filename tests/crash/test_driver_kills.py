"""Processes of jobs killed between two effects: no damage, and a second run finishes.

A sample of the points. ``python tests/crash/driver_kills.py`` runs all of them.
"""

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


@pytest.mark.deep("a driver process for each effect")
@pytest.mark.timeout(600)
def test_a_job_killed_between_any_two_effects_is_finished_by_a_second_run() -> None:
    code, found = swept("--step", STEP, "--phase", 11)
    assert {name: each["wrong"] for name, each in found.items()} == {name: [] for name in found}
    assert code == 0
    assert sorted(found) == ["compaction", "copy", "ingest", "merge", "pipeline", "recode", "redact"]
    assert all(each["effects"] >= 15 and each["points"] for each in found.values()), found


def test_a_job_that_deletes_before_its_commit_is_detected() -> None:
    """The rule broken by hand."""
    code, found = swept("--careless", "--flow", "merge", "--point", "5:before")
    assert code == 1
    assert found["merge"]["wrong"]
