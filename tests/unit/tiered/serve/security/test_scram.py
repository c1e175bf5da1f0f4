"""SCRAM by the examples of the RFCs, and every deviation from them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_security import PASSWORDS, credentials

from tiered.serve.security.credentials import MECHANISMS, Credentials, derive
from tiered.serve.security.principals import Principal
from tiered.serve.security.scram import AuthenticationFailed, ScramExchange

# RFC 7677, section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def of_the_rfc() -> ScramExchange:
    found = Credentials(users={"user": {"SCRAM-SHA-256": derive("pencil", "sha256", SALT, 4096)}})
    return ScramExchange(found, "SCRAM-SHA-256", nonce=lambda: SERVER_NONCE)


def test_the_exchange_of_rfc_7677_has_its_messages() -> None:
    exchange = of_the_rfc()
    assert exchange.step(FIRST.encode()).decode() == SERVER_FIRST
    assert exchange.principal is None
    assert exchange.step(FINAL.encode()).decode() == SERVER_FINAL
    assert exchange.principal == Principal("user")


def test_the_keys_of_rfc_5802_are_derived() -> None:
    made = derive("pencil", "sha1", base64.b64decode("QSXCR+Q6sek8bf92"), 4096)
    message = (
        b"n=user,r=fyko+d2lbbFgONRv9qkxdawL,"
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096,"
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    )
    assert hmac.digest(made.server_key, message, "sha1") == base64.b64decode("rmF9pqV8S7suAoZWja4dJRkFsKQ=")
    proof = base64.b64decode("v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=")
    client_key = bytes(a ^ b for a, b in zip(proof, hmac.digest(made.stored_key, message, "sha1"), strict=True))
    assert hashlib.sha1(client_key).digest() == made.stored_key


def final_message(first: str, reply: str, password: str, mechanism: str, gs2: bytes = b"n,,") -> str:
    """The client's part of the exchange, written here once more."""
    digest = MECHANISMS[mechanism]
    fields = dict(each.split("=", 1) for each in reply.split(","))
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    bare = f"c={base64.b64encode(gs2).decode()},r={fields['r']}"
    message = f"{first[first.index('n=', 3) :]},{reply},{bare}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    return f"{bare},p={proof}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", PASSWORDS)
def test_a_user_with_the_password_is_authenticated(user: str, mechanism: str) -> None:
    exchange = ScramExchange(credentials(), mechanism)
    first = f"n,,n={user},r=abc"
    reply = exchange.step(first.encode()).decode()
    exchange.step(final_message(first, reply, PASSWORDS[user], mechanism).encode())
    assert exchange.principal == Principal(user)


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "wrong"), ("nobody", "")])
def test_a_wrong_password_and_an_unknown_user_fail_at_the_proof(user: str, password: str) -> None:
    exchange = ScramExchange(credentials(), "SCRAM-SHA-256")
    first = f"n,,n={user},r=abc"
    reply = exchange.step(first.encode()).decode()
    assert ",i=4096" in reply
    with pytest.raises(AuthenticationFailed):
        exchange.step(final_message(first, reply, password, "SCRAM-SHA-256").encode())
    assert exchange.principal is None
    with pytest.raises(AuthenticationFailed):
        exchange.step(first.encode())


def test_an_unknown_user_has_the_same_salt_each_time_and_another_one_than_others() -> None:
    def salt(user: str) -> str:
        reply = ScramExchange(credentials(), "SCRAM-SHA-256").step(f"n,,n={user},r=abc".encode()).decode()
        return reply.split(",")[1]

    assert salt("nobody") == salt("nobody") != salt("other")
    assert len(salt("nobody")) == len(salt("alice"))


def test_escapes_in_names_are_decoded() -> None:
    found = Credentials().with_user("a,b=c", "secret", iterations=4096)
    exchange = ScramExchange(found, "SCRAM-SHA-256")
    first = "n,,n=a=2Cb=3Dc,r=abc"
    reply = exchange.step(first.encode()).decode()
    exchange.step(final_message(first, reply, "secret", "SCRAM-SHA-256").encode())
    assert exchange.principal == Principal("a,b=c")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=2,r=abc",
        b"n,,n=a=2c,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\x7f",
        b"n,a=other,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,,n=user,r=" + b"a" * 600,
        b"n,,n=" + b"a" * 9000 + b",r=abc",
    ],
)
def test_a_malformed_first_message_fails(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        of_the_rfc().step(message)


@pytest.mark.parametrize(
    "message",
    [
        "",
        FINAL.replace("biws", "eSws"),  # the head of a client that could bind channels
        FINAL.replace("biws", "%%%"),
        FINAL.replace("biws", "a"),
        FINAL.replace("r=rOpr", "r=sOpr"),
        FINAL.rpartition(",")[0],
        FINAL.rpartition("=")[0] + "A=",
        FINAL[:-8] + "AAAAAAA=",
        FINAL + "AAAA",
        FINAL.rpartition(",")[0] + ",p=dHzb",
        SERVER_FIRST,
    ],
)
def test_a_malformed_final_message_fails(message: str) -> None:
    exchange = of_the_rfc()
    exchange.step(FIRST.encode())
    with pytest.raises(AuthenticationFailed):
        exchange.step(message.encode())
    assert exchange.principal is None


@given(st.lists(st.binary(max_size=60) | st.sampled_from([FIRST.encode(), FINAL.encode()]), max_size=4))
def test_any_messages_authenticate_or_fail(messages: list[bytes]) -> None:
    exchange = of_the_rfc()
    try:
        for each in messages:
            exchange.step(each)
    except AuthenticationFailed:
        assert exchange.principal is None
    assert (exchange.principal is not None) == (messages == [FIRST.encode(), FINAL.encode()])
