"""Signed tokens of OAUTHBEARER, checked with keys from a JWKS file; without a network.

| check | Source |
|---|---|
| three parts of base64url, a header and claims in JSON | RFC 7519 |
| `alg` is RS256 or ES256, and fits the key; `crit` is refused | RFC 7515, RFC 8725 |
| the key: that with the token's `kid`; without one, the only key of the algorithm | RFC 7517 |
| signature | RFC 7518 |
| `exp` is there and not over; `nbf` and `iat` are not in the future; each with the clock skew | RFC 7519, kafka |
| `iss` and `aud` as expected, if the settings name them | kafka `sasl.oauthbearer.expected.*` |
| the claim of the principal is a text | kafka `sasl.oauthbearer.sub.claim.name` |

`cryptography` checks the signatures, and only this module imports it here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from local.errors import InvalidRequest
from tiered.config.user_files import read_given
from tiered.serve.security.principals import Principal
from tiered.serve.security.scram import AuthenticationFailed

TOKEN_BYTES_MAX = 16 << 10
KEYS_MAX = 100
NAME_MAX = 1024
_RSA_BITS_MIN, _RSA_BITS_MAX = 2048, 8192
_P256_BYTES = 32

Verify = Callable[[bytes, bytes], bool]  # (signature, signed bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    kid: str | None
    algorithm: str
    verify: Verify


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """`issuer` None and no `audiences`: not checked."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: float = 30.0
    principal_claim: str = "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A valid token: whose it is, and when it expires, in seconds since the epoch."""

    principal: Principal
    expires_s: float


class TokenVerifier:
    def __init__(self, keys: tuple[_Key, ...], rules: TokenRules) -> None:
        self._keys, self._rules = keys, rules

    def check(self, token: str, now_s: float) -> Token:
        """Raises AuthenticationFailed."""
        if len(token) > TOKEN_BYTES_MAX or token.count(".") != 2:
            raise AuthenticationFailed("the token is not a signed JWT")
        signed, _, signature = token.rpartition(".")
        head, _, body = signed.partition(".")
        header, claims = _json(head), _json(body)
        if "crit" in header or not isinstance(header.get("alg"), str):
            raise AuthenticationFailed("the head of the token is not supported")
        key = self._key(header)
        if not key.verify(_decoded(signature), signed.encode()):
            raise AuthenticationFailed("the signature of the token is wrong")
        return self._checked(claims, now_s)

    def _key(self, header: Mapping[str, Any]) -> _Key:
        kid, algorithm = header.get("kid"), header["alg"]
        found = [each for each in self._keys if each.algorithm == algorithm and kid in (None, each.kid)]
        if len(found) != 1:
            raise AuthenticationFailed("no key of the JWKS file fits the token")
        return found[0]

    def _checked(self, claims: Mapping[str, Any], now_s: float) -> Token:
        rules, skew_s = self._rules, self._rules.clock_skew_s
        expires_s = _time(claims, "exp")
        if expires_s is None:
            raise AuthenticationFailed("the token never expires")
        if now_s >= expires_s + skew_s:
            raise AuthenticationFailed("the token has expired")
        for claim in ("nbf", "iat"):
            begin_s = _time(claims, claim)
            if begin_s is not None and begin_s > now_s + skew_s:
                raise AuthenticationFailed("the token is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise AuthenticationFailed("the token has another issuer")
        audiences = claims.get("aud")
        audiences = audiences if isinstance(audiences, list) else [audiences]
        if rules.audiences and not any(each in rules.audiences for each in audiences if isinstance(each, str)):
            raise AuthenticationFailed("the token has another audience")
        subject = claims.get(rules.principal_claim)
        if not isinstance(subject, str) or not subject.strip() or len(subject) > NAME_MAX or not subject.isprintable():
            raise AuthenticationFailed("the token names no principal")
        return Token(principal=Principal(subject), expires_s=expires_s)


def read_keys(path: str) -> tuple[_Key, ...]:
    """The RS256 and ES256 keys of a JWKS file; others are left out. Raises NotFound, AccessDenied, InvalidRequest."""
    body = read_given(path, "cannot read the keys of tokens", "a JWKS file, as identity providers publish it")
    try:
        listed = json.loads(body)["keys"]
        if len(listed) > KEYS_MAX:
            raise ValueError
        keys = tuple(key for each in listed if (key := _parsed_key(each)) is not None)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest("cannot read the keys of tokens, the file is no JWKS", file=path) from None
    if not keys:
        raise InvalidRequest("cannot read the keys of tokens, none is for RS256 or ES256", file=path)
    return keys


def _parsed_key(found: Mapping[str, Any]) -> _Key | None:
    kid = found.get("kid")
    if found.get("use", "sig") != "sig" or "verify" not in found.get("key_ops", ["verify"]):
        return None
    match found["kty"], found.get("crv"), found.get("alg"):
        case "RSA", _, None | "RS256":
            return _Key(kid=kid, algorithm="RS256", verify=_rsa(_number(found["n"]), _number(found["e"])))
        case "EC", "P-256", None | "ES256":
            return _Key(kid=kid, algorithm="ES256", verify=_p256(_number(found["x"]), _number(found["y"])))
    return None


def _rsa(modulus: int, exponent: int) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
    from cryptography.hazmat.primitives.hashes import SHA256

    if not _RSA_BITS_MIN <= modulus.bit_length() <= _RSA_BITS_MAX or exponent.bit_length() > 32:
        raise ValueError
    key = RSAPublicNumbers(exponent, modulus).public_key()

    def verify(signature: bytes, signed: bytes) -> bool:
        try:
            key.verify(signature, signed, PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return True

    return verify


def _p256(x: int, y: int) -> Verify:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicNumbers
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    key = EllipticCurvePublicNumbers(x, y, SECP256R1()).public_key()

    def verify(signature: bytes, signed: bytes) -> bool:
        if len(signature) != 2 * _P256_BYTES:
            return False
        r, s = (int.from_bytes(each) for each in (signature[:_P256_BYTES], signature[_P256_BYTES:]))
        try:
            key.verify(encode_dss_signature(r, s), signed, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True

    return verify


def _number(text: str) -> int:
    return int.from_bytes(_raw(text))


def _raw(text: str) -> bytes:
    """Decode base64url without padding. Raises ValueError."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError from None


def _decoded(text: str) -> bytes:
    try:
        return _raw(text)
    except ValueError:
        raise AuthenticationFailed("the token is not a signed JWT") from None


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(_decoded(text), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise AuthenticationFailed("the token is not a signed JWT") from None
    if not isinstance(found, dict):
        raise AuthenticationFailed("the token is not a signed JWT")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    found = claims.get(name)
    if found is None:
        return None
    try:
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return float(found)
    except OverflowError:
        pass
    raise AuthenticationFailed(f"the token has an invalid {name}")
