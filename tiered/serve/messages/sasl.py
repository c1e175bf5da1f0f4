"""The messages of SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tiered.serve.messages.base import Api, Error, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    error_code: Error = Error.NONE
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    auth_bytes: bytes = field(repr=False)  # may hold a password


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    error_code: Error = Error.NONE
    error_message: str | None = None
    auth_bytes: bytes = field(default=b"", repr=False)
    session_lifetime_ms: int = 0


# Both APIs keep their oldest version in Apache Kafka 4 (KIP-896).
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.SASL_HANDSHAKE: Versions(0, 1, SaslHandshakeRequest, SaslHandshakeResponse),
        Api.SASL_AUTHENTICATE: Versions(0, 2, SaslAuthenticateRequest, SaslAuthenticateResponse),
    }
)
