"""The authentication of one connection. Source: kafka `SaslServerAuthenticator`, KIP-43, KIP-152, KIP-368.

| state | requests that are accepted | next state |
|---|---|---|
| HANDSHAKE | ApiVersions | HANDSHAKE |
| | SaslHandshake with an enabled mechanism, with another one | EXCHANGE, FAILED |
| EXCHANGE | SaslAuthenticate: more messages follow, the client is authenticated, it is not | EXCHANGE, READY, FAILED |
| READY | all; SaslHandshake of a session that can expire begins another exchange | READY, EXCHANGE |
| READY, expired | SaslHandshake | EXCHANGE |
| FAILED | none: the connection is closed after the response | |

Any other request closes the connection. After a SaslHandshake of version 0 the messages of the exchange have no head of
Kafka (`takes_raw`). A further exchange must have the mechanism and the principal of the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from local.errors import InvalidRequest
from tiered.serve.messages.base import Api, Error
from tiered.serve.security.principals import ANONYMOUS, Principal
from tiered.serve.security.sasl import Exchange, Offload
from tiered.serve.security.scram import AuthenticationFailed

REAUTHENTICATION_S_MIN = 1.0
MESSAGE_BYTES_MAX = 512 << 10  # of a request before the authentication; kafka `sasl.server.max.receive.size`


class State(Enum):
    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one message of an exchange, as SaslAuthenticate returns it."""

    error: Error = Error.NONE
    message: str | None = None
    reply: bytes = b""
    lifetime_ms: int = 0


class Authority(Protocol):
    """What a session needs of `tiered.serve.security.security.Security`."""

    @property
    def mechanisms(self) -> tuple[str, ...]: ...

    def exchange(self, mechanism: str, offload: Offload[bool]) -> Exchange: ...

    def lifetime_s(self, expires_s: float | None) -> float | None:
        """How long a session may last whose token expires at this time; None: without end."""

    def failed(self, address: str, mechanism: str, cause: str) -> float:
        """Log a failure, and return the seconds until its answer."""


class Session:
    """`principal` is ANONYMOUS until the client is authenticated. `clock` returns seconds that never fall."""

    def __init__(
        self,
        authority: Authority | None,
        clock: Callable[[], float],
        address: str,
        *,
        principal: Principal = ANONYMOUS,
        state: State = State.READY,
    ) -> None:
        self._authority, self._clock, self._address = authority, clock, address
        self.principal, self.state = principal, state
        self.takes_raw = False
        self.delay_s = 0.0  # until the response of a failure is sent
        self._mechanism: str | None = None
        self._exchange: Exchange | None = None
        self._is_authenticated = state is State.READY
        self._expires_s: float | None = None
        self._began_s: float | None = None  # the last further exchange

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    @property
    def is_failed(self) -> bool:
        return self.state is State.FAILED

    def check(self, api: int) -> None:
        """Raises InvalidRequest if the state does not accept a request of this API."""
        if self.state is State.READY:
            if self._expires_s is None or api == Api.SASL_HANDSHAKE or self._clock() <= self._expires_s:
                return
            raise InvalidRequest("the session has expired, and the client did not authenticate again")
        accepted = {
            State.HANDSHAKE: (Api.API_VERSIONS, Api.SASL_HANDSHAKE),
            State.EXCHANGE: (Api.SASL_AUTHENTICATE,),
        }.get(self.state, ())
        if api not in accepted or self.takes_raw:
            raise InvalidRequest("the request is not allowed before the authentication", api=api)

    def handshake(self, mechanism: str, version: int, offload: Offload[bool]) -> tuple[Error, tuple[str, ...]]:
        """Begin an exchange. Returns the error, and the mechanisms for the response."""
        authority = self._authority
        mechanisms = authority.mechanisms if authority is not None else ()
        if self.state is State.READY and not self._may_begin_again():
            return Error.ILLEGAL_SASL_STATE, ()
        mechanisms = mechanisms if self._mechanism is None else (self._mechanism,)
        if authority is None or mechanism not in mechanisms:
            self.state = State.FAILED
            return Error.UNSUPPORTED_SASL_MECHANISM, mechanisms
        self._mechanism, self.state = mechanism, State.EXCHANGE
        self._exchange = authority.exchange(mechanism, offload)
        self.takes_raw = version == 0
        return Error.NONE, mechanisms

    async def authenticate(self, message: bytes) -> Outcome:
        """Pass one message of the client to the exchange."""
        exchange, authority, mechanism = self._exchange, self._authority, self._mechanism
        if self.state is not State.EXCHANGE or exchange is None or authority is None or mechanism is None:
            wrong = "SaslAuthenticate request received after successful authentication"
            return Outcome(error=Error.ILLEGAL_SASL_STATE, message=wrong)
        try:
            reply = await exchange.step(message)
            principal = exchange.principal
            if principal is None:
                return Outcome(reply=reply)
            if self._is_authenticated and principal != self.principal:
                raise AuthenticationFailed("another principal in a further exchange")
        except AuthenticationFailed as error:
            self.state, self._exchange, self.takes_raw = State.FAILED, None, False
            self.delay_s = authority.failed(self._address, mechanism, error.cause)
            begun = "re-authentication" if self._is_authenticated else "authentication"
            wrong = f"Authentication failed during {begun} due to invalid credentials with SASL mechanism {mechanism}"
            return Outcome(error=Error.SASL_AUTHENTICATION_FAILED, message=error.message or wrong)
        lifetime_s = authority.lifetime_s(exchange.expires_s)
        self._expires_s = None if lifetime_s is None else self._clock() + lifetime_s
        self.principal, self.state, self._is_authenticated = principal, State.READY, True
        self._exchange, self.takes_raw = None, False
        return Outcome(reply=reply, lifetime_ms=int((lifetime_s or 0.0) * 1000))

    def _may_begin_again(self) -> bool:
        now_s = self._clock()
        if self._expires_s is None:
            return False
        if self._began_s is not None and now_s - self._began_s < REAUTHENTICATION_S_MIN:
            return False
        self._began_s = now_s
        return True
