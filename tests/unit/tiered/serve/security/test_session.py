"""The states of one connection's authentication, and its messages with any content."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_security import PASSWORDS, Clock, credentials, jwks, token

from local.errors import InvalidRequest
from tiered.serve.messages.base import Api, Error
from tiered.serve.security.oauth import TokenRules, TokenVerifier, _parsed_key
from tiered.serve.security.principals import ANONYMOUS, Principal
from tiered.serve.security.sasl import NAMES, Exchange, OauthExchange, PlainExchange, ScramSteps
from tiered.serve.security.scram import ScramExchange
from tiered.serve.security.session import Session, State

ALICE = b"\0alice\0" + PASSWORDS["alice"].encode()
BOB = b"\0bob\0" + PASSWORDS["bob"].encode()
VERIFIER = TokenVerifier(tuple(key for each in jwks()["keys"] if (key := _parsed_key(each))), TokenRules())


class FakeAuthority:
    mechanisms: tuple[str, ...] = NAMES

    def __init__(self) -> None:
        self.session_s: float | None = None
        self.failures: list[tuple[str, str, str]] = []

    def exchange(self, mechanism: str, offload: Any) -> Exchange:
        if mechanism == "PLAIN":
            return PlainExchange(credentials(), offload)
        if mechanism == "OAUTHBEARER":
            return OauthExchange(VERIFIER, time.time)
        return ScramSteps(ScramExchange(credentials(), mechanism))

    def lifetime_s(self, expires_s: float | None) -> float | None:
        return self.session_s

    def failed(self, address: str, mechanism: str, cause: str) -> float:
        self.failures.append((address, mechanism, cause))
        return 0.1


async def at_once(call: Callable[[], bool]) -> bool:
    return call()


def session(authority: FakeAuthority | None = None, clock: Clock | None = None) -> Session:
    return Session(authority or FakeAuthority(), clock or Clock(), "10.0.0.1", state=State.HANDSHAKE)


def run(work: Awaitable[Any]) -> Any:
    async def awaited() -> Any:
        return await work

    return asyncio.run(awaited())


def ready(authority: FakeAuthority, clock: Clock) -> Session:
    made = session(authority, clock)
    assert made.handshake("PLAIN", 1, at_once) == (Error.NONE, NAMES)
    assert run(made.authenticate(ALICE)).error is Error.NONE
    return made


def test_a_handshake_and_a_password_make_the_session_ready() -> None:
    made = session()
    for api, is_accepted in ((Api.API_VERSIONS, True), (Api.METADATA, False), (Api.SASL_AUTHENTICATE, False)):
        assert _accepts(made, api) is is_accepted
    made.handshake("PLAIN", 1, at_once)
    for api, is_accepted in ((Api.API_VERSIONS, False), (Api.SASL_HANDSHAKE, False), (Api.SASL_AUTHENTICATE, True)):
        assert _accepts(made, api) is is_accepted
    assert made.principal == ANONYMOUS
    outcome = run(made.authenticate(ALICE))
    assert (outcome.error, outcome.reply, outcome.lifetime_ms) == (Error.NONE, b"", 0)
    assert (made.principal, made.is_ready) == (Principal("alice"), True)
    assert all(_accepts(made, api) for api in Api)
    assert made.handshake("PLAIN", 1, at_once) == (Error.ILLEGAL_SASL_STATE, ())
    assert run(made.authenticate(ALICE)).error is Error.ILLEGAL_SASL_STATE
    assert made.is_ready


def _accepts(made: Session, api: int) -> bool:
    try:
        made.check(api)
    except InvalidRequest:
        return False
    return True


def test_an_unknown_mechanism_fails_and_lists_the_enabled_ones() -> None:
    made = session()
    assert made.handshake("GSSAPI", 1, at_once) == (Error.UNSUPPORTED_SASL_MECHANISM, NAMES)
    assert made.is_failed
    assert not any(_accepts(made, api) for api in Api)


@pytest.mark.parametrize(
    "message",
    [b"", b"alice", b"\0alice", b"\0\0x", b"\0alice\0", b"bob\0alice\0alice-secret", b"\0alice\0x", b"\0eve\0x",
     b"\0\xff\0x", b"\0a\0b\0c", b"\0alice\0" + b"x" * 2000],
)  # fmt: skip
def test_a_wrong_message_of_plain_fails_without_a_hint(message: bytes) -> None:
    authority = FakeAuthority()
    made = session(authority)
    made.handshake("PLAIN", 1, at_once)
    outcome = run(made.authenticate(message))
    assert outcome.error is Error.SASL_AUTHENTICATION_FAILED
    assert (made.is_failed, made.delay_s, len(authority.failures)) == (True, 0.1, 1)
    if not message.startswith(b"bob"):
        assert outcome.message == "Authentication failed: Invalid username or password"


def test_wrong_users_and_wrong_passwords_of_scram_get_the_same_answer() -> None:
    answers = set()
    for first in (b"n,,n=alice,r=abc", b"n,,n=eve,r=abc"):
        made = session()
        made.handshake("SCRAM-SHA-256", 1, at_once)
        reply = run(made.authenticate(first)).reply.decode()
        nonce = reply.split(",")[0]
        outcome = run(made.authenticate(f"c=biws,{nonce},p={'A' * 43}=".encode()))
        answers.add((outcome.error, outcome.message, len(reply)))
    assert len(answers) == 1


def test_a_refused_token_is_answered_with_its_status_before_the_failure() -> None:
    made = session()
    made.handshake("OAUTHBEARER", 1, at_once)
    outcome = run(made.authenticate(f"n,,\x01auth=Bearer {token(exp=1)}\x01\x01".encode()))
    assert (outcome.error, outcome.reply) == (Error.NONE, b'{"status": "invalid_token"}')
    assert not made.is_ready
    assert run(made.authenticate(b"\x01")).error is Error.SASL_AUTHENTICATION_FAILED
    assert made.is_failed


@pytest.mark.parametrize(
    ("message", "is_valid"),
    [
        ("n,,\x01auth=Bearer {}\x01\x01", True),
        ("n,a=alice,\x01host=h\x01auth=Bearer {}\x01port=1\x01\x01", True),
        ("y,,\x01auth=bearer {}\x01\x01", True),
        ("n,a=bob,\x01auth=Bearer {}\x01\x01", False),
        ("n,,\x01auth=Bearer {}\x01", False),
        ("n,,\x01auth=Bearer {0}\x01auth=Bearer {0}\x01\x01", False),
        ("n,,\x01auth=Basic {}\x01\x01", False),
        ("p=x,,\x01auth=Bearer {}\x01\x01", False),
        ("{}", False),
    ],
)
def test_a_message_of_oauthbearer(message: str, is_valid: bool) -> None:
    made = session()
    made.handshake("OAUTHBEARER", 1, at_once)
    run(made.authenticate(message.format(token()).encode()))
    assert made.is_ready is is_valid
    assert made.is_failed is not is_valid


def test_an_expired_session_accepts_only_another_exchange() -> None:
    authority, clock = FakeAuthority(), Clock()
    authority.session_s = 60.0
    made = ready(authority, clock)
    clock.now_s += 61
    assert [api for api in Api if _accepts(made, api)] == [Api.SASL_HANDSHAKE]
    assert made.handshake("PLAIN", 1, at_once) == (Error.NONE, ("PLAIN",))
    outcome = run(made.authenticate(ALICE))
    assert (outcome.error, outcome.lifetime_ms) == (Error.NONE, 60_000)
    assert _accepts(made, Api.METADATA)


def test_a_further_exchange_keeps_principal_mechanism_and_a_second_between_them() -> None:
    authority, clock = FakeAuthority(), Clock()
    authority.session_s = 60.0
    made = ready(authority, clock)
    made.handshake("PLAIN", 1, at_once)
    assert run(made.authenticate(BOB)).error is Error.SASL_AUTHENTICATION_FAILED
    assert made.is_failed
    made = ready(authority, clock)
    assert made.handshake("SCRAM-SHA-256", 1, at_once) == (Error.UNSUPPORTED_SASL_MECHANISM, ("PLAIN",))
    made = ready(authority, clock)
    made.handshake("PLAIN", 1, at_once)
    run(made.authenticate(ALICE))
    assert made.handshake("PLAIN", 1, at_once) == (Error.ILLEGAL_SASL_STATE, ())
    clock.now_s += 1
    assert made.handshake("PLAIN", 1, at_once)[0] is Error.NONE


def test_a_session_without_authority_is_ready() -> None:
    made = Session(None, Clock(), "10.0.0.1")
    assert all(_accepts(made, api) for api in Api)
    assert made.handshake("PLAIN", 1, at_once) == (Error.ILLEGAL_SASL_STATE, ())


MESSAGES = st.binary(max_size=80) | st.sampled_from([b"n,,n=alice,r=abc", b"n,,\x01auth=Bearer a.b.c\x01\x01", b"\x01"])


@given(st.sampled_from(NAMES), st.lists(MESSAGES, min_size=1, max_size=4))
def test_any_messages_fail_or_continue_but_authenticate_no_one(mechanism: str, messages: list[bytes]) -> None:
    made = session()
    made.handshake(mechanism, 1, at_once)
    for each in messages:
        run(made.authenticate(each))
    assert made.principal == ANONYMOUS
    assert not made.is_ready
