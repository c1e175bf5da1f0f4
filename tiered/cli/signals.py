"""Signal handling: stop on SIGTERM or Ctrl-C, reload the configuration on SIGHUP.

| signal | effect |
|---|---|
| first SIGTERM or SIGINT | remembered, wakes a sleeper; work in progress ends and all is closed in order |
| first one within `Stop.breaking_off` (a start) | interrupts: a start has no work to finish |
| second one | interrupts at once |
| any number of SIGHUP | remembered once, wakes a sleeper |

Only for the main thread, which receives signals.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
WAIT_MS_MAX = 2**31 - 1  # limit of poll(2); about 25 days


class Terminated(KeyboardInterrupt):
    """The second signal was a SIGTERM."""


class Stop:
    """The signal that asked the process to stop, None before the first."""

    def __init__(self, wake_fd: int) -> None:
        self.signal: int | None = None
        self._is_to_reload = False
        self._is_breaking_off = False
        self._count = 0
        self._wake_fd = wake_fd

    @property
    def is_set(self) -> bool:
        return self.signal is not None

    @property
    def was_asked_once(self) -> bool:
        """Whether no second signal has come."""
        return self._count == 1

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Within the block the first signal interrupts, too: raises KeyboardInterrupt, or Terminated for a SIGTERM."""
        self._is_breaking_off = True
        try:
            if self.signal is not None:
                raise self._interrupt(self.signal)
            yield
        finally:
            self._is_breaking_off = False

    def take_reload(self) -> bool:
        """Whether a SIGHUP came since the last call."""
        is_to_reload, self._is_to_reload = self._is_to_reload, False
        return is_to_reload

    def wait(self, timeout_s: float | None, fd: int | None = None) -> bool:
        """Sleep until `fd` is readable, a signal comes or the time is over (None: never); whether `fd` is readable.

        Waits 25 days at most. A signal that came just before is not missed: it is a byte in a pipe.
        """
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        timeout_ms = None if timeout_s is None else min(max(0.0, timeout_s * 1000), WAIT_MS_MAX)
        found = [ready for ready, _ in poll.poll(timeout_ms)]
        if self._wake_fd in found and not self.is_set:
            os.read(self._wake_fd, 512)  # a SIGHUP wakes once
        return fd is not None and fd in found

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._is_to_reload = True
            return
        self._count += 1
        self.signal = number if self.signal is None else self.signal
        if self._count > 1 or self._is_breaking_off:
            raise self._interrupt(number)

    @staticmethod
    def _interrupt(number: int) -> KeyboardInterrupt:
        return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def stop_signals(*, reloads: bool = False) -> Iterator[Stop]:
    """Route SIGTERM and SIGINT, and with `reloads` SIGHUP, to a `Stop` within the block."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    stop = Stop(wake_read)
    wake_before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    numbers = (*SIGNALS, signal.SIGHUP) if reloads else SIGNALS
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wake_before)
        os.close(wake_read)
        os.close(wake_write)
