"""Notifications to systemd: ready, reloading, stopping, alive. Without a socket nothing is sent.

The protocol is sd_notify(3). With ``WATCHDOG_USEC`` systemd restarts a service that is silent for such a period.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

SILENCE_S = 900.0  # work without progress for so long hangs: every call to a store ends before


class ServiceManager:
    """Sends notifications to the service manager. Never raises. Thread safe."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    @classmethod
    def of(cls, environ: Mapping[str, str], *, pid: int | None = None) -> ServiceManager:
        """The environment's service manager. A watchdog of another process (``WATCHDOG_PID``) is ignored."""
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and address[:1] not in ("/", "@"):
            address = None
        usec, for_pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        is_ours = for_pid in ("", str(os.getpid() if pid is None else pid))
        watchdog_s = int(usec) / 1e6 if usec.isdigit() and int(usec) > 0 and is_ours else None
        return cls(address, watchdog_s)

    @property
    def is_listening(self) -> bool:
        return self._address is not None

    def ready(self, status: str) -> None:
        self.send_state("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self.send_state("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self.send_state("STOPPING=1", "STATUS=finishing the current step")

    def alive(self) -> None:
        self.send_state("WATCHDOG=1")

    def send_state(self, *lines: str) -> None:
        if self._address is None:
            return
        body = "\n".join(line.replace("\n", " ") for line in lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(self._address)
                to.send(body)
        except OSError as error:
            _log.warning("cannot notify the service manager: cause=%s", error.strerror)


class Heartbeat:
    """Notifies the watchdog twice in its period while `last_seen_s` is recent. A context manager."""

    def __init__(
        self,
        service: ServiceManager,
        last_seen_s: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`last_seen_s` returns the time of the last progress, by `clock`; infinity while no work is due."""
        self._service, self._last_seen_s, self._clock, self._silence_s = service, last_seen_s, clock, silence_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tiered-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._service.is_listening and self._service.watchdog_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self) -> bool:
        if self._clock() - self._last_seen_s() > self._silence_s:
            return False
        self._service.alive()
        return True

    def _beat(self) -> None:
        assert self._service.watchdog_s is not None, "started with one"
        while not self._end.wait(self._service.watchdog_s / 2):
            if not self.beat():
                _log.error("maintenance has shown no progress for a long time: seconds=%.0f", self._silence_s)
