"""Processes that a test run started directly or indirectly, and that must end with it.

Every process of a run has the `MARK` of the run in its environment: workers of pytest-xdist, Spark's JVM and Python
workers, the drivers and clusters of tests/spark. `end_with_run` starts a process that waits for the end of the run's
first process, including SIGKILL, and then kills every process with the mark. Linux only: without /proc it does
nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

MARK = "TIERED_TEST_RUN"
GRACE_S = 2.0  # for processes that end by themselves after their parent
_LOOKS = 20


def marked(mark: str) -> list[int]:
    """The processes that have the mark, without the caller."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                is_ours = wanted in file.read().split(b"\0")
        except OSError:
            continue  # it has ended, or belongs to another user
        if is_ours:
            found.append(int(name))
    return found


def end_with_run(mark: str) -> None:
    """Start the process that ends the remaining processes of this run. Call once, in the first process of the run."""
    if not os.path.isdir("/proc/self"):
        return
    os.environ[MARK] = mark
    # without the mark, so that it does not kill itself
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    reading, _held_open = os.pipe()
    subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), mark],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # not stopped by Ctrl-C
    )
    os.close(reading)
    # `_held_open` stays open while this process lives. Children do not inherit it.


def _end(mark: str) -> None:
    """Wait for the end of the run, then kill its remaining processes."""
    while os.read(0, 1):
        pass
    until = time.monotonic() + GRACE_S
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    for _ in range(_LOOKS):  # a process that is just being started may be missed
        left = marked(mark)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)


if __name__ == "__main__":
    _end(sys.argv[1])
