"""Runs a command as long as somebody holds this process's stdin: ``python attended.py COMMAND [ARGUMENT ...]``.

A server that a test started must not outlive the test run, however that ends. The run holds a pipe; when it closes,
by intent or by a SIGKILL, the command and everything it started are killed. Signals that end the whole group of the run
are for the run: this process lives until the pipe tells that it is gone. Exits with the command's status.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress


def main(command: list[str]) -> int:
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, lambda *_: None)  # not SIG_IGN, which the command would inherit
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - our own commands
    ended = os.pidfd_open(child.pid)
    try:
        ready, _, _ = select.select([sys.stdin, ended], [], [])
        while ended not in ready and os.read(sys.stdin.fileno(), 1024):
            ready, _, _ = select.select([sys.stdin, ended], [], [])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
