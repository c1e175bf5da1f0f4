"""Who may see pages: names that lead here, and a token where anybody could reach them.

| guard | against |
|---|---|
| Host | a page elsewhere whose name is made to lead here (DNS rebinding): only known names and plain addresses pass |
| Origin | a page elsewhere that sends a form here |
| token | whoever can reach the address; as a header for programs, by a form and a cookie for browsers |

The cookie holds a random word of this process, never the token; it lasts until the process or the browser ends. Beyond
one machine TLS, of the server itself, of a proxy or a tunnel, keeps both from being read on the way.
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
    """The same. Raises InvalidRequest, with these facts, for one that could be guessed."""
    if len(token) < TOKEN_LETTERS_MIN or not token.isascii() or not token.isprintable():
        told = {**facts, "letters_at_least": TOKEN_LETTERS_MIN}
        raise InvalidRequest("reading the token, too short or not plain letters", **told)
    return token


class Gate:
    """Looks at headers alone. Thread safe: nothing in it changes."""

    def __init__(self, *, token: str | None = None, hosts: Collection[str] = ()) -> None:
        """`hosts` are further names that lead here. Raises InvalidRequest for a token that could be guessed."""
        self._token = None if token is None else check_token(token)
        self._session = secrets.token_urlsafe(32)
        self._hosts = frozenset(each.casefold() for each in hosts)

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this place. A plain address is nobody's name, so no name server can lie of it."""
        name = host_name(header).casefold()
        if name in _LOCAL or name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self.wants_token
        except ValueError:
            return False

    def is_own(self, headers: Mapping[str, str]) -> bool:
        """Whether a form was sent from a page of this place."""
        origin = headers.get("Origin")
        return origin is None or origin.partition("://")[2] == headers.get("Host", "")

    def may_see(self, headers: Mapping[str, str]) -> bool:
        """Whether the token came along, or the cookie that stands for it."""
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
        """What a form holds."""
        return parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()

    def cookie(self, *, is_encrypted: bool) -> str:
        """A Set-Cookie header for whoever has shown the token; where the way is encrypted it goes no other."""
        return f"{COOKIE}={self._session}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if is_encrypted else ''}"


def own_names() -> set[str]:
    """This machine's: as it calls itself, the same without its domain, which its neighbours leave out, as looked up.

    A name server that does not answer holds up no start: then only the first two are known.
    """
    name, found = socket.gethostname(), list[str]()
    looking = threading.Thread(target=lambda: found.append(socket.getfqdn()), name="tiered-own-name", daemon=True)
    looking.start()
    looking.join(LOOK_UP_S)
    return {name, name.partition(".")[0], *found}


def names_here(header: str, hosts: Collection[str]) -> bool:
    """Whether a Host header is one of `hosts` (in lower case), this machine for itself, a plain address, or nothing:
    no browser that was led here under another's name sends one of those."""
    name = host_name(header).casefold()
    if not name or name in _LOCAL or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """The name in a Host header, without its port, nor the dot at the end of one that is whole."""
    name = header if header.endswith("]") or ":" not in header else header.rpartition(":")[0]
    return name.strip("[]").removesuffix(".")


def _same(one: str, other: str) -> bool:
    """In a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
