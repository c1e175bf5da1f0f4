"""The server's side of a SCRAM exchange. Source: RFC 5802, RFC 7677 (SHA-256), kafka `ScramSaslServer`.

| state | message of the client | reply | next state |
|---|---|---|---|
| FIRST | client-first | server-first: nonce, salt, iterations | FINAL |
| FINAL | client-final with a valid proof | server-final: the server's signature | DONE |
| any | anything else | AuthenticationFailed | FAILED |

An unknown user gets a salt and fails at the proof, as a wrong password does. Channel binding is not offered, and names
are not prepared (SASLprep), as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from enum import Enum

from tiered.serve.security.credentials import MECHANISMS, Credential, Credentials
from tiered.serve.security.principals import Principal

MESSAGE_BYTES_MAX = 8192
NONCE_MAX = 512
# gs2-cbind-flag "," [authzid] "," [reserved-mext] username "," nonce ["," extensions]
_NONCE = r"r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]*)*"
_FIRST = re.compile(rf"(?P<gs2>(?P<flag>[ny]|p=[^,]*),(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<user>[^,]*),{_NONCE})")
_FINAL = re.compile(rf"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),{_NONCE}),p=(?P<proof>[A-Za-z0-9+/=]+)")


class AuthenticationFailed(Exception):
    """The client is not who it claims to be. `cause` is for the log: it has no secret and is not sent."""

    def __init__(self, cause: str, message: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.message = message  # for the client, if it may know more than that it failed


class _State(Enum):
    FIRST = "first"
    FINAL = "final"
    DONE = "done"
    FAILED = "failed"


class ScramExchange:
    """One exchange. `nonce` makes the server's part of the nonce."""

    def __init__(
        self, credentials: Credentials, mechanism: str, nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    ) -> None:
        self._credentials, self._mechanism, self._make_nonce = credentials, mechanism, nonce
        self._digest = MECHANISMS[mechanism]
        self._state = _State.FIRST
        self._user = self._gs2 = self._nonce = self._signed = ""
        self._credential: Credential | None = None
        self._is_known = False

    @property
    def principal(self) -> Principal | None:
        """The authenticated principal; None before the end of the exchange."""
        return Principal(self._user) if self._state is _State.DONE else None

    def step(self, message: bytes) -> bytes:
        """The reply to the client's next message. Raises AuthenticationFailed, after which every call does."""
        state, self._state = self._state, _State.FAILED
        if len(message) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed("a message is too long")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a message is not UTF-8") from None
        match state:
            case _State.FIRST:
                reply, self._state = self._first(text), _State.FINAL
            case _State.FINAL:
                reply, self._state = self._final(text), _State.DONE
            case _:
                raise AuthenticationFailed("a message follows the end of the exchange")
        return reply.encode()

    def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None or len(found["nonce"]) > NONCE_MAX:
            raise AuthenticationFailed("the first message is malformed")
        if found["flag"].startswith("p"):
            raise AuthenticationFailed("the client demands channel binding, which is not offered")
        self._user = _name(found["user"])
        if found["authzid"] and _name(found["authzid"]) != self._user:
            wrong = "Authentication failed: Client requested an authorization id that is different from username"
            raise AuthenticationFailed("the client demands the rights of another user", wrong)
        self._gs2, self._nonce = found["gs2"], found["nonce"] + self._make_nonce()
        self._credential, self._is_known = self._credentials.find(self._user, self._mechanism)
        salt = base64.b64encode(self._credential.salt).decode()
        reply = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._signed = f"{found['bare']},{reply},"
        return reply

    def _final(self, text: str) -> str:
        credential = self._credential
        assert credential is not None, "the first message sets it"
        found = _FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the final message is malformed")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce of the final message differs")
        if _base64(found["binding"]) != self._gs2.encode():
            raise AuthenticationFailed("the channel binding of the final message differs")
        message = (self._signed + found["bare"]).encode()
        signature = hmac.digest(credential.stored_key, message, self._digest)
        proof = _base64(found["proof"])
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_valid = hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), credential.stored_key)
        if not (is_valid and self._is_known and len(proof) == len(signature)):
            raise AuthenticationFailed("wrong password" if self._is_known else "unknown user")
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, message, self._digest)).decode()


def _name(text: str) -> str:
    """Decode a saslname: ``=2C`` is a comma, ``=3D`` an equals sign, another ``=`` is an error."""
    if re.search(r"=(?!2C|3D)", text) or not text:
        raise AuthenticationFailed("the user name is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a value is not base64") from None
