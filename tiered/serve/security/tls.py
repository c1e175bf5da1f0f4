"""TLS of a listener: PEM files, and the context that is made of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum

from local.errors import InvalidRequest

HANDSHAKE_S = 10.0


class ClientAuth(StrEnum):
    """Whether clients send certificates. Source: kafka ``ssl.client.auth``."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files: the certificate with its chain, and its key (None: in the same file).

    `client_ca` has the certificates that may issue those of clients; required unless `client_auth` is NONE.
    """

    certificate: str
    key: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """A context for new connections, TLS 1.2 or newer. Raises InvalidRequest for unusable files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.client_auth is not ClientAuth.NONE:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError, ValueError, TypeError) as error:
            raise unusable_tls(self, error) from None
        context.verify_mode = _VERIFY[self.client_auth]
        return context


def unusable_tls(tls: Tls, error: Exception) -> InvalidRequest:
    why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    return InvalidRequest(
        "cannot read the certificate and its key",
        certificate=tls.certificate,
        key=tls.key or tls.certificate,
        client_ca=tls.client_ca,
        cause=str(why).replace("_", " ").lower(),
    )


def _no_password() -> bytes:
    raise ValueError("the key is encrypted: a server has no prompt for its password")
