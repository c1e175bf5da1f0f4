"""SaslHandshake and SaslAuthenticate: the messages of a connection's `Session`."""

from __future__ import annotations

from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def sasl_handshake(service: Service, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse:
    assert call.session is not None, "every connection of a secured server has a session"
    error, mechanisms = call.session.handshake(request.mechanism, call.version, service.offload)
    return SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)


async def sasl_authenticate(service: Service, request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
    assert call.session is not None, "every connection of a secured server has a session"
    outcome = await call.session.authenticate(request.auth_bytes)
    return SaslAuthenticateResponse(
        error_code=outcome.error,
        error_message=outcome.message,
        auth_bytes=outcome.reply,
        session_lifetime_ms=outcome.lifetime_ms,
    )
