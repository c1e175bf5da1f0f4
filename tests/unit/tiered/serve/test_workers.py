"""Serving processes: a SIGHUP between their start and their handlers ends none of them, and no reload is lost."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = textwrap.dedent(
    """
    import os, signal
    from tiered.cli.session import stop_signals
    from tiered.serve.workers import Supervisor, fork_workers

    real_fork = os.fork

    def fork():
        pid = real_fork()
        os.kill(os.getpid(), signal.SIGHUP)  # in both processes, before anything else
        return pid

    os.fork = fork
    found = fork_workers(1)
    os.kill(os.getpid(), signal.SIGHUP)  # and after it
    with stop_signals(reloads=True) as stop:
        if isinstance(found, Supervisor):
            raise SystemExit(found.supervise(stop, print, "here"))
        found.report_ready()
        while not stop.take_reload() and not stop.is_set:
            stop.wait(None, found.parent_fd)
    raise SystemExit(7)  # it has reloaded
    """
)


def test_a_sighup_before_the_handlers_of_two_processes_reloads_and_ends_neither() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.splitlines()[-1] == "a serving process ended, exit code 7: all end"
