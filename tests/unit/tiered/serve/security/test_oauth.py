"""Tokens with each reason to refuse them, and the keys of a JWKS file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_security import AUDIENCE, ISSUER, encoded, jwks, signature, token

from local.errors import InvalidRequest, NotFound
from tiered.serve.security.oauth import TokenRules, TokenVerifier, read_keys
from tiered.serve.security.principals import Principal
from tiered.serve.security.scram import AuthenticationFailed

NOW_S = 1_700_000_000
VALID: dict[str, Any] = {"iat": NOW_S, "exp": NOW_S + 300}
RULES = TokenRules(issuer=ISSUER, audiences=(AUDIENCE, "other"), clock_skew_s=30)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps(jwks()))
    return read_keys(str(path))


@pytest.mark.parametrize(
    ("algorithm", "kid", "changes"),
    [
        ("RS256", "rsa-1", {}),
        ("ES256", "ec-1", {}),
        ("RS256", None, {}),
        ("RS256", "rsa-1", {"aud": ["x", AUDIENCE]}),
        ("RS256", "rsa-1", {"exp": NOW_S - 29}),
        ("RS256", "rsa-1", {"nbf": NOW_S + 29.5}),
        ("RS256", "rsa-1", {"iat": None}),
    ],
)
def test_a_valid_token_names_its_principal(keys: Any, algorithm: str, kid: str | None, changes: dict[str, Any]) -> None:
    found = TokenVerifier(keys, RULES).check(token(algorithm, kid, **{**VALID, **changes}), NOW_S)
    assert (found.principal, found.expires_s) == (Principal("alice"), {**VALID, **changes}["exp"])


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "never expires"),
        ({"exp": "soon"}, "invalid exp"),
        ({"exp": True}, "invalid exp"),
        ({"exp": 10**400}, "invalid exp"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "else"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": [1, {}]}, "audience"),
        ({"sub": None}, "principal"),
        ({"sub": ""}, "principal"),
        ({"sub": 7}, "principal"),
        ({"sub": "a\nb"}, "principal"),
        ({"head": {"alg": "none"}}, "no key"),
        ({"head": {"alg": "HS256"}}, "no key"),
        ({"head": {"alg": "ES256"}}, "no key"),
        ({"head": {"alg": 1}}, "not supported"),
        ({"head": {"kid": "shared"}}, "no key"),
        ({"head": {"kid": "unknown"}}, "no key"),
        ({"head": {"kid": 1}}, "no key"),
        ({"head": {"crit": ["exp"]}}, "not supported"),
    ],
)
def test_a_token_is_refused_with_its_cause(keys: Any, changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(AuthenticationFailed, match=cause):
        TokenVerifier(keys, RULES).check(token(**{**VALID, **changes}), NOW_S)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_changed_token_is_refused(keys: Any, part: int) -> None:
    parts = token(**VALID).split(".")
    parts[part] = ("B" if parts[part][10] == "A" else "A").join((parts[part][:10], parts[part][11:]))
    with pytest.raises(AuthenticationFailed):
        TokenVerifier(keys, RULES).check(".".join(parts), NOW_S)


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b'{"exp": NaN}', b'{"exp": Infinity}', b"[" * 9000, b"\xff"])
def test_a_signed_body_that_is_no_object_is_refused(keys: Any, body: bytes) -> None:
    signed = f"{encoded(json.dumps({'alg': 'RS256'}).encode())}.{encoded(body)}"
    made = f"{signed}.{encoded(signature('RS256', signed.encode()))}"
    with pytest.raises(AuthenticationFailed):
        TokenVerifier(keys, RULES).check(made, NOW_S)


@given(st.text(max_size=80) | st.lists(st.binary(max_size=40).map(encoded), min_size=3, max_size=3).map(".".join))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        TokenVerifier((), RULES).check(text, NOW_S)


def test_issuer_and_audience_are_checked_only_if_they_are_set(keys: Any) -> None:
    verifier = TokenVerifier(keys, TokenRules(principal_claim="azp"))
    assert verifier.check(token(iss=None, aud=None, azp="app"), time.time()).principal == Principal("app")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"keys": 1}',
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        '{"keys": [{"kty": "RSA", "e": "AQAB"}]}',
        '{"keys": [{"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"}]}',
        '{"keys": [{"kty": "EC", "crv": "P-256", "x": "%", "y": "AQAB"}]}',
        '{"keys": [1]}',
    ],
)
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, body: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(body)
    with pytest.raises(InvalidRequest, match="keys of tokens"):
        read_keys(str(path))


def test_encryption_keys_and_other_algorithms_are_left_out(tmp_path: Path) -> None:
    found = jwks()
    found["keys"][0]["use"] = "enc"
    found["keys"][1]["key_ops"] = ["verify"]
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(found))
    assert [each.kid for each in read_keys(str(path))] == ["ec-1"]
    with pytest.raises(NotFound):
        read_keys(str(tmp_path / "none"))
