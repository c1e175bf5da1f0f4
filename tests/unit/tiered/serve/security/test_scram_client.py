"""The client of SCRAM by the example of the RFC, against this project's server, and against servers that cheat."""

from __future__ import annotations

import pytest
from kafka_security import PASSWORDS, credentials

from tiered.serve.security.credentials import MECHANISMS
from tiered.serve.security.principals import Principal
from tiered.serve.security.scram import AuthenticationFailed, ScramExchange
from tiered.serve.security.scram_client import ITERATIONS_MAX, ScramClient

# RFC 7677, section 3
NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def of_the_rfc() -> ScramClient:
    return ScramClient("user", "pencil", "SCRAM-SHA-256", NONCE)


def test_the_exchange_of_rfc_7677_has_its_messages() -> None:
    client = of_the_rfc()
    assert client.first() == f"n,,n=user,r={NONCE}".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.final(SERVER_FIRST.encode()) == f"c=biws,r={NONCE}{SERVER_NONCE},p={proof}".encode()
    client.check(SERVER_FINAL.encode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", PASSWORDS)
def test_a_user_authenticates_at_the_server_of_this_project(user: str, mechanism: str) -> None:
    server, client = ScramExchange(credentials(), mechanism), ScramClient(user, PASSWORDS[user], mechanism)
    client.check(server.step(client.final(server.step(client.first()))))
    assert server.principal == Principal(user)


def test_a_name_with_a_comma_and_an_equals_sign_is_one_name() -> None:
    name, mechanism = "a,b=c", "SCRAM-SHA-256"
    server = ScramExchange(credentials().with_user(name, "word", iterations=4096), mechanism)
    client = ScramClient(name, "word", mechanism)
    client.check(server.step(client.final(server.step(client.first()))))
    assert server.principal == Principal(name)


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "4095 iterations"),
        (f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={ITERATIONS_MAX + 1}", "iterations"),
        (f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6g,i=4096", "base64"),
        ("e=unknown-user", "malformed"),
        ("", "malformed"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_wrong_first_message_gets_no_proof(reply: str, cause: str) -> None:
    with pytest.raises(AuthenticationFailed, match=cause) as caught:
        of_the_rfc().final(reply.encode(errors="surrogateescape"))
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("v=" + "A" * 43 + "=", "signature"),
        ("v=6rri", "signature"),
        ("e=invalid-proof", "malformed"),
        ("", "malformed"),
    ],
)
def test_a_server_without_the_key_of_the_password_is_refused(reply: str, cause: str) -> None:
    client = of_the_rfc()
    client.first()
    client.final(SERVER_FIRST.encode())
    with pytest.raises(AuthenticationFailed, match=cause):
        client.check(reply.encode())


def test_a_signature_before_the_proof_proves_nothing() -> None:
    with pytest.raises(AuthenticationFailed, match="malformed"):
        of_the_rfc().check(SERVER_FINAL.encode())
