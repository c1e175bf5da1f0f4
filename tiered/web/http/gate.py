"""Access control of the pages: known host names, and a token where other machines can connect.

| guard | against |
|---|---|
| Host | DNS rebinding: only known names and plain addresses pass |
| Origin | a form that a page of another site sends |
| token | any client that can reach the address; a header for programs, a form and a cookie for browsers |

The cookie holds a random word of this process, never the token. It lasts until the process or the browser ends. Beyond
one machine, TLS of the server, a proxy or a tunnel must protect both in transit.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from local.errors import InvalidRequest

TOKEN_LETTERS_MIN = 16
COOKIE = "tiered-session"
LOOK_UP_S = 2.0
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def check_token(token: str, **facts: object) -> str:
    """Return the token. Raises InvalidRequest, with these facts, if it is easy to guess."""
    if len(token) < TOKEN_LETTERS_MIN or not token.isascii() or not token.isprintable():
        told = {**facts, "letters_at_least": TOKEN_LETTERS_MIN}
        raise InvalidRequest("invalid token, it is too short or has other characters than plain letters", **told)
    return token


class Gate:
    """Checks requests by their headers alone. Thread safe: immutable."""

    def __init__(self, *, token: str | None = None, hosts: Collection[str] = ()) -> None:
        """`hosts` are further names of this server. Raises InvalidRequest if the token is easy to guess."""
        self._token = None if token is None else check_token(token)
        self._session = secrets.token_urlsafe(32)
        self._hosts = frozenset(each.casefold() for each in hosts)

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this server. A plain address passes: a name server cannot forge it."""
        name = host_name(header).casefold()
        if name in _LOCAL or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self.wants_token
        except ValueError:
            return False

    def is_own(self, headers: Mapping[str, str]) -> bool:
        """Whether a form was sent from a page of this server."""
        origin = headers.get("Origin")
        return origin is None or origin.partition("://")[2] == headers.get("Host", "")

    def may_see(self, headers: Mapping[str, str]) -> bool:
        """Whether the request has the token or the cookie that stands for it."""
        if self._token is None:
            return True
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if kind.casefold() == "bearer" and self.is_token(given.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self._session)

    def is_token(self, text: str) -> bool:
        return self._token is not None and _same(text, self._token)

    def token_of(self, body: bytes) -> str:
        """Return the token in a form body."""
        return parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()

    def cookie(self, *, is_encrypted: bool) -> str:
        """Return the Set-Cookie header after a valid token; `Secure` if the connection is encrypted."""
        return f"{COOKIE}={self._session}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if is_encrypted else ''}"


def own_names() -> set[str]:
    """This machine's names: the host name, the host name without its domain, and the looked-up full name.

    A name server that does not answer does not delay the start: then only the first two are known.
    """
    name, found = socket.gethostname(), list[str]()
    looking = threading.Thread(target=lambda: found.append(socket.getfqdn()), name="tiered-own-name", daemon=True)
    looking.start()
    looking.join(LOOK_UP_S)
    return {name, name.partition(".")[0], *found}


def names_here(header: str, hosts: Collection[str]) -> bool:
    """Whether a Host header is one of `hosts` (lower case), a name of this machine, a plain address, or empty.

    A browser in a DNS rebinding attack sends none of these.
    """
    name = host_name(header).casefold()
    if not name or name in _LOCAL or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port and the final dot."""
    name = header if header.endswith("]") or ":" not in header else header.rpartition(":")[0]
    return name.strip("[]").removesuffix(".")


def _same(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
