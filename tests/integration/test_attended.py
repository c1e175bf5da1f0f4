"""A server started by a test run ends with it, for any end of the run."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ATTENDED = Path(__file__).parents[2] / "localstack" / "attended.py"
RUN = """
import signal, subprocess, sys
for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(kind, signal.SIG_DFL)  # a shell's background job ignores some, and so would we
server = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
child = subprocess.Popen([sys.executable, sys.argv[1], *server], stdin=subprocess.PIPE)
child.wait()
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_signal_to_the_process_group_of_a_run_ends_its_servers(end: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN, str(ATTENDED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        assert run.stdout is not None
        watch = os.pidfd_open(int(run.stdout.readline()))
        # SIGKILL to the group would kill the attendant too, so SIGKILL is sent to the run alone.
        os.kill(run.pid, end) if end is signal.SIGKILL else os.killpg(run.pid, end)
        ready, _, _ = select.select([watch], [], [], 60)  # readable when the process has ended
        os.close(watch)
    assert ready
