"""Several processes that serve one address: the kernel spreads the connections over them (`SO_REUSEPORT`).

`fork_workers` returns in every worker, which then serves as a single process does, and in the process that supervises
them. All end together:

| event | effect |
|---|---|
| a worker ends | the supervisor ends the others and has the worker's exit code |
| the supervisor is asked to stop | it ends all workers with SIGTERM, after END_S with SIGKILL |
| the supervisor gets SIGHUP | every worker gets it, after all are ready: each reads its files again |
| the supervisor gets SIGHUP before `supervise` | the signal waits until then |
| a worker gets SIGHUP before its handler is set | nothing: it reads its files after that |
| the supervisor is killed | every worker finds `parent_fd` readable, and ends |

Call `fork_workers` before any thread starts and before a bucket is opened: neither survives a fork.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

END_S = 10.0
KILLED = 128  # added to the number of the signal that ended a worker, as a shell does


class Stop(Protocol):
    """The request to end, of which the supervisor is told by a signal."""

    @property
    def is_set(self) -> bool: ...

    def take_reload(self) -> bool:
        """Whether a SIGHUP came since the last call."""

    def wait(self, timeout_s: float | None, fd: int | None = None) -> bool:
        """Wait for the request or until `fd` is readable."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the serving processes, in itself. `parent_fd` becomes readable when the supervisor ends."""

    number: int
    parent_fd: int
    _state_fd: int  # the supervisor sees it closed when this process ends

    def report_ready(self) -> None:
        os.write(self._state_fd, b"+")

    def directory_in(self, root: str | None) -> str | None:
        """A directory of this worker alone, created; None without a root."""
        if root is None:
            return None
        own = os.path.join(root, f"worker-{self.number}")
        os.makedirs(own, exist_ok=True)
        return own


class Supervisor:
    """The workers, in the process that started them."""

    def __init__(self, pids: Sequence[int], state_fds: Sequence[int], lifeline_fd: int) -> None:
        self._running = dict(zip(state_fds, pids, strict=True))
        self._ready: set[int] = set()
        self._lifeline_fd = lifeline_fd
        self._epoll = select.epoll()
        for fd in state_fds:
            self._epoll.register(fd, select.EPOLLIN)
        self.exit_code: int | None = None  # of the worker that ended first

    def supervise(self, stop: Stop, say: Callable[[str], None], where: str) -> int:
        """Wait for the end, end all workers, and return the exit code. Set a handler of SIGHUP first."""
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            is_serving = False
            while not stop.is_set:
                stop.wait(None, self._epoll.fileno())
                if not self.look():
                    if not stop.is_set:
                        say(f"a serving process ended, exit code {self.exit_code}: all end")
                    return self.exit_code or 1
                if self.are_ready and not is_serving:
                    is_serving = True
                    say(f"serving Kafka clients at {where} until Ctrl-C")
                if is_serving and stop.take_reload():  # one that starts ignores it
                    self._signal(signal.SIGHUP)
            return 0
        finally:
            self.close()

    @property
    def are_ready(self) -> bool:
        return self._ready >= set(self._running)

    def look(self) -> bool:
        """Take notice of workers that became ready. False once one has ended: call `close`."""
        for fd, _ in self._epoll.poll(0):
            if os.read(fd, 1):
                self._ready.add(fd)
            elif self.exit_code is None:
                self.exit_code = self._reap(fd)
        return self.exit_code is None

    def close(self) -> None:
        """End all workers, and return when none is left."""
        self._signal(signal.SIGTERM)
        due_s = time.monotonic() + END_S
        for fd in list(self._running):
            ended = select.poll()
            ended.register(fd, select.POLLHUP)  # a byte of readiness does not count
            if not ended.poll(max(0.0, due_s - time.monotonic()) * 1000):
                os.kill(self._running[fd], signal.SIGKILL)
            self._reap(fd)
        self._epoll.close()
        os.close(self._lifeline_fd)

    def _signal(self, number: int) -> None:
        for pid in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self, fd: int) -> int:
        self._epoll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(self._running.pop(fd), 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else KILLED - code


def fork_workers(count: int) -> Worker | Supervisor:
    """Start `count` workers. Returns once in each of them and once in the calling process.

    SIGHUP is ignored in a worker until it has a handler, and blocked in the calling process until `supervise`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    parent_fd, lifeline_fd = os.pipe()
    pids, state_fds = list[int](), list[int]()
    for number in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # drops one that came since the fork
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            for fd in (*state_fds, reading, lifeline_fd):
                os.close(fd)
            return Worker(number, parent_fd, writing)
        os.close(writing)
        pids.append(pid)
        state_fds.append(reading)
    os.close(parent_fd)
    return Supervisor(pids, state_fds, lifeline_fd)
