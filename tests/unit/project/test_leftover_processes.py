"""Processes started by a test run end with it, and a plain run has the same order every time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import leftover_processes
import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
RUN = """
import subprocess, sys
import leftover_processes
leftover_processes.end_with_run(sys.argv[1])
grandchild = "import sys; sys.stdout.write('here'); sys.stdout.flush(); import threading; threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", grandchild], start_new_session=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc to find processes in")


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGKILL], ids=["by itself", "SIGTERM", "SIGKILL"])
def test_ended_run_leaves_no_process_behind(how: signal.Signals | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != leftover_processes.MARK}
    environment["PYTHONPATH"] = str(Path(leftover_processes.__file__).parent)
    mark = uuid4().hex
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.read(4) == b"here"
    assert len(leftover_processes.marked(mark)) == 1, "the grandchild in its own session must run"
    if how is not None:
        run.send_signal(how)
    run.stdin.close()
    run.wait(WAIT_S)
    assert run.stdout.read() == b"", "the pipe must reach its end, because the grandchild no longer holds it open"
    run.stdout.close()
    assert leftover_processes.marked(mark) == []


def test_child_processes_inherit_the_mark_of_the_run() -> None:
    mark = os.environ[leftover_processes.MARK]
    program = [sys.executable, "-c", "print('begun', flush=True); input()"]
    child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"begun\n"  # the system shows no environment before the program begins
        assert child.pid in leftover_processes.marked(mark)
    finally:
        child.communicate(b"\n")


def _order(*more: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    files = ["tests/unit/tiered/config/test_units.py", "tests/unit/local/test_names.py"]
    words = ["-n0", "--collect-only", "-q", *files, *more]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_plain_runs_have_one_order_and_random_runs_another() -> None:
    plain = _order()
    assert len(plain) > 50
    assert _order() == plain
    drawn = _order("--hypothesis-profile=random"), _order("--hypothesis-profile=random")
    assert sorted(drawn[0]) == sorted(plain)
    assert len({tuple(plain), *map(tuple, drawn)}) == 3


def test_hypothesis_examples_are_fixed_except_in_the_random_profile() -> None:
    assert settings.get_profile("fixed").derandomize
    assert settings.get_profile("fixed").database is None
    assert not settings.get_profile("random").derandomize
