"""The client's side of a SCRAM exchange. Source: RFC 5802, RFC 7677 (SHA-256), kafka `ScramSaslClient`.

| step | message of the server | result |
|---|---|---|
| `first` | none | client-first |
| `final` | server-first: nonce, salt, iterations | client-final with the proof |
| `check` | server-final | none: the server knows the key of the password |

Channel binding is not used, and texts are not prepared (SASLprep), as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from tiered.serve.security.credentials import ITERATIONS_MIN, MECHANISMS
from tiered.serve.security.scram import AuthenticationFailed

ITERATIONS_MAX = 1 << 20  # a server must not keep this processor busy
_SERVER_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[0-9]{1,9})(?:,.*)?")
_SERVER_FINAL = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,.*)?")
_HEADER = "n,,"  # no channel binding, no other identity


class ScramClient:
    """One exchange: `first`, `final`, `check`, each once. Raises AuthenticationFailed, without a part of a secret."""

    def __init__(self, user: str, password: str, mechanism: str, nonce: str | None = None) -> None:
        self._password, self._digest = password, MECHANISMS[mechanism]
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_HEADER + self._bare).encode()

    def final(self, reply: bytes) -> bytes:
        """The answer to server-first. Takes a processor for milliseconds."""
        text = _text(reply)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the first message of the server is malformed")
        nonce, iterations = found["nonce"], int(found["count"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the server did not extend the nonce")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(f"the server asks for {iterations} iterations")
        salted = hashlib.pbkdf2_hmac(self._digest, self._password.encode(), _bytes(found["salt"]), iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        bare = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        message = f"{self._bare},{text},{bare}".encode()
        proof = bytes(a ^ b for a, b in zip(client_key, hmac.digest(stored_key, message, self._digest), strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._digest), message, self._digest)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, reply: bytes) -> None:
        """Check the signature of server-final: only a server with the key of the password can make it."""
        found = _SERVER_FINAL.fullmatch(_text(reply))
        if found is None or not self._signature:
            raise AuthenticationFailed("the final message of the server is malformed")
        if not hmac.compare_digest(_bytes(found["signature"]), self._signature):
            raise AuthenticationFailed("the signature of the server is wrong: it does not know the password")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message of the server is not UTF-8") from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a value of the server is not base64") from None
