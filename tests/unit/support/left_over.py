"""Processes that a run of the tests started, directly or not, and that must not outlive it.

Every process of a run has the run's `MARK` in its environment, whoever started it: workers of pytest-xdist, Spark's JVM
and its Python workers, the drivers and clusters of tests/spark. `end_with_run` starts a process that waits until the
run's first process has ended, in whatever way, SIGKILL included, and then kills what still has the mark. Linux only:
elsewhere there is no /proc, and nothing is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

MARK = "TIERED_TEST_RUN"
GRACE_S = 2.0  # for those that end by themselves once their parent has
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
            continue  # it ended, or is another user's
        if is_ours:
            found.append(int(name))
    return found


def end_with_run(mark: str) -> None:
    """Start the process that ends what is left of the run that the caller is. Call once, in the run's first process."""
    if not os.path.isdir("/proc/self"):
        return
    os.environ[MARK] = mark
    environment = {name: value for name, value in os.environ.items() if name != MARK}  # it must not kill itself
    reading, _held_open = os.pipe()
    subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), mark],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # a Ctrl-C is not for it
    )
    os.close(reading)
    # `_held_open` stays open as long as this process lives, and no child has it: descriptors are not inheritable.


def _end(mark: str) -> None:
    """Wait for the run's end, then kill what is left of it."""
    while os.read(0, 1):
        pass
    until = time.monotonic() + GRACE_S
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    for _ in range(_LOOKS):  # one that is starting another process may be overtaken
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
