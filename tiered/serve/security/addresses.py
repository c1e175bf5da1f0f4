"""Addresses to listen at, and which of them only this machine can reach. For every server of the project."""

from __future__ import annotations

import ipaddress
import socket
import threading

from local.errors import InvalidRequest

LOOPBACK = "127.0.0.1"
LOOK_UP_S = 2.0
_PORT_DIGITS = 5


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``:9464`` (loopback), ``0.0.0.0:9464`` (all) or ``[::1]:9464``. Raises InvalidRequest."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
    if not colon or not is_number or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InvalidRequest("invalid address", text=repr(text), expected="[HOST]:PORT, such as :9464")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    return host.casefold() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_names() -> set[str]:
    """Return this machine's names; without the full name if its look-up takes longer than LOOK_UP_S."""
    name, found = socket.gethostname(), list[str]()
    looking = threading.Thread(target=lambda: found.append(socket.getfqdn()), name="tiered-own-name", daemon=True)
    looking.start()
    looking.join(LOOK_UP_S)
    return {name, name.partition(".")[0], *found}
