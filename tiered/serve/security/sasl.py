"""The mechanisms of SASL as exchanges of messages: PLAIN, OAUTHBEARER, and SCRAM (`scram`).

An exchange gets the client's messages one by one. It ends with a principal, or with AuthenticationFailed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from tiered.serve.security.credentials import MECHANISMS, NAME_BYTES_MAX, PASSWORD_BYTES_MAX, Credentials
from tiered.serve.security.oauth import Token, TokenVerifier
from tiered.serve.security.principals import Principal
from tiered.serve.security.scram import AuthenticationFailed, ScramExchange

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
NAMES = (PLAIN, *MECHANISMS, OAUTHBEARER)
T = TypeVar("T")
Offload = Callable[[Callable[[], T]], Awaitable[T]]  # runs a call that takes a processor for milliseconds
_PASSWORD_MESSAGE = "Authentication failed: Invalid username or password"  # noqa: S105 - Kafka's words for clients
# gs2-header, then pairs between 0x01. Source: RFC 7628, section 3.1; kafka `OAuthBearerClientInitialResponse`.
_BEARER = re.compile(r"[ny],(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_TOKEN = re.compile(r"Bearer ([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


class Exchange(Protocol):
    @property
    def principal(self) -> Principal | None:
        """The authenticated principal; None before the end."""

    @property
    def expires_s(self) -> float | None:
        """When the client's token expires, in seconds since the epoch; None: it does not."""

    async def step(self, message: bytes) -> bytes:
        """The reply. Raises AuthenticationFailed."""


class PlainExchange:
    """Source: RFC 4616, kafka `PlainSaslServer`. The check of a password takes milliseconds, so it is offloaded."""

    expires_s = None

    def __init__(self, credentials: Credentials, offload: Offload[bool]) -> None:
        self._credentials, self._offload = credentials, offload
        self.principal: Principal | None = None

    async def step(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != 3 or len(parts[1]) > NAME_BYTES_MAX or len(parts[2]) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("the message is malformed", _PASSWORD_MESSAGE)
        try:
            identity, user, password = (each.decode() for each in parts)
        except UnicodeDecodeError:
            raise AuthenticationFailed("the message is not UTF-8", _PASSWORD_MESSAGE) from None
        if not user or not password:
            raise AuthenticationFailed("the user or the password is empty", _PASSWORD_MESSAGE)
        is_valid = await self._offload(partial(self._credentials.check_password, user, password))
        if not is_valid:
            raise AuthenticationFailed("wrong user or password", _PASSWORD_MESSAGE)
        if identity not in ("", user):
            wrong = "Authentication failed: Client requested an authorization id that is different from username"
            raise AuthenticationFailed("the client demands the rights of another user", wrong)
        self.principal = Principal(user)
        return b""


class OauthExchange:
    """Source: RFC 7628, kafka `OAuthBearerSaslServer`: a refused token is answered with its status, then the client
    sends one byte, and the exchange fails."""

    def __init__(self, verifier: TokenVerifier, now_s: Callable[[], float]) -> None:
        self._verifier, self._now_s = verifier, now_s
        self._token: Token | None = None
        self._failure: AuthenticationFailed | None = None

    @property
    def principal(self) -> Principal | None:
        return self._token.principal if self._token is not None else None

    @property
    def expires_s(self) -> float | None:
        return self._token.expires_s if self._token is not None else None

    async def step(self, message: bytes) -> bytes:
        if self._failure is not None:
            raise self._failure
        token = _bearer(message)
        try:
            self._token = self._verifier.check(token.text, self._now_s())
        except AuthenticationFailed as error:
            self._failure = error
            return json.dumps({"status": "invalid_token"}).encode()
        if token.authzid not in ("", self._token.principal.name):
            self._token = None
            raise AuthenticationFailed("the client demands the rights of another user")
        return b""


class ScramSteps:
    """`ScramExchange` as an `Exchange`."""

    expires_s = None

    def __init__(self, exchange: ScramExchange) -> None:
        self._exchange = exchange

    @property
    def principal(self) -> Principal | None:
        return self._exchange.principal

    async def step(self, message: bytes) -> bytes:
        return self._exchange.step(message)


class _Bearer:
    def __init__(self, text: str, authzid: str) -> None:
        self.text, self.authzid = text, authzid


def _bearer(message: bytes) -> _Bearer:
    try:
        found = _BEARER.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    pairs = found["pairs"].split("\x01") if found is not None else []
    values = [each.partition("=")[2] for each in pairs if each.startswith("auth=")]
    token = _TOKEN.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or token is None:
        raise AuthenticationFailed("the message has no bearer token")
    return _Bearer(token[1], found["authzid"] or "")
