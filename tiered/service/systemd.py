"""Words to systemd: ready, reloading, stopping, still alive. Nothing where nobody listens.

The protocol is a datagram of ``KEY=value`` lines to the socket that ``NOTIFY_SOCKET`` names (sd_notify(3)); a name that
begins with ``@`` is in Linux's abstract namespace. With ``WATCHDOG_USEC`` systemd wants to hear of us that often, and
restarts what stays silent: `Heartbeat` tells it from a thread, as long as there is something to be seen of the work.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

_log = logging.getLogger(__name__)

SILENCE_S = 900.0  # work of which nothing was seen for so long hangs: every call to a store ends before


class ServiceManager:
    """Tells whoever started us. Never raises: a service that nobody hears still has to serve. Thread safe."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        """`watchdog_s` is how often something wants to be heard, None for never."""
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    @classmethod
    def of(cls, environ: Mapping[str, str], *, pid: int | None = None) -> ServiceManager:
        """As the environment says. A watchdog that is meant for another process (``WATCHDOG_PID``) is not ours."""
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
        """Everything is open; also said after a reload."""
        self.tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=ending the step under way")

    def alive(self) -> None:
        self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """One datagram."""
        if self._address is None:
            return
        body = "\n".join(line.replace("\n", " ") for line in lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(self._address)
                to.send(body)
        except OSError as error:
            _log.warning("telling the service manager failed: cause=%s", error.strerror)


class Heartbeat:
    """Tells the watchdog, twice in its time, that we live: while `last_seen_s` is recent. A context manager."""

    def __init__(
        self,
        service: ServiceManager,
        last_seen_s: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`last_seen_s` is when, by `clock`, something was last seen of the work; infinity while it rests."""
        self._service, self._last_seen_s, self._clock, self._silence_s = service, last_seen_s, clock, silence_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tiered-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._service.is_listening and self._service.watchdog_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self) -> bool:
        """Tell it once, if there is something to tell."""
        if self._clock() - self._last_seen_s() > self._silence_s:
            return False
        self._service.alive()
        return True

    def _beat(self) -> None:
        assert self._service.watchdog_s is not None, "started with one"
        while not self._end.wait(self._service.watchdog_s / 2):
            if not self.beat():
                _log.error("nothing was seen of the work for long: seconds=%.0f", self._silence_s)
