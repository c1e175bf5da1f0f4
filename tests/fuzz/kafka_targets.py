"""The fuzzing targets of the Kafka endpoint: requests, and the messages of clients that authenticate."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from local.errors import InvalidRequest
from tiered.serve.messages.base import Api
from tiered.serve.protocol import SERVED, parse
from tiered.serve.security.credentials import Credentials
from tiered.serve.security.oauth import TokenRules, TokenVerifier
from tiered.serve.security.principals import ANONYMOUS
from tiered.serve.security.sasl import (
    NAMES,
    OAUTHBEARER,
    PLAIN,
    Exchange,
    OauthExchange,
    Offload,
    PlainExchange,
    ScramSteps,
)
from tiered.serve.security.scram import ScramExchange
from tiered.serve.security.session import Session, State

USERS = Credentials(users={}, secret=b"fuzz" * 8)
END = b"\xfe\xfd"  # between the messages of one exchange


def run_request(data: bytes) -> None:
    try:
        parse(data)
    except InvalidRequest:
        return


def request_seeds() -> list[bytes]:
    heads = [struct.pack(">hhih", key, each.max_version, 7, -1) for key, each in SERVED.items()]
    metadata = struct.pack(">hhihi", Api.METADATA, 1, 8, -1, 1) + b"\0\6orders"
    return [*(head + bytes(24) for head in heads), metadata, struct.pack(">hhihi", Api.METADATA, 1, 8, -1, -1)]


class _Authority:
    """Nobody is known, and no key is trusted."""

    mechanisms = NAMES

    def exchange(self, mechanism: str, offload: Offload[bool]) -> Exchange:
        if mechanism == PLAIN:
            return PlainExchange(USERS, offload)
        if mechanism == OAUTHBEARER:
            return OauthExchange(TokenVerifier((), TokenRules()), lambda: 0.0)
        return ScramSteps(ScramExchange(USERS, mechanism))

    def lifetime_s(self, expires_s: float | None) -> float | None:
        return None

    def failed(self, address: str, mechanism: str, cause: str) -> float:
        assert cause.isprintable(), "a cause goes to the log"
        return 0.0


async def _wrong(call: Callable[[], bool]) -> bool:
    return False  # without the cost of a derivation


def run_sasl(data: bytes) -> None:
    """The first byte selects the mechanism, END separates messages."""
    mechanism = NAMES[data[0] % len(NAMES)] if data else PLAIN
    session = Session(_Authority(), lambda: 0.0, "fuzz", state=State.HANDSHAKE)
    session.handshake(mechanism, 1, _wrong)
    for message in data[1:].split(END)[:4]:
        asyncio.run(session.authenticate(message))
    assert session.principal == ANONYMOUS
    assert not session.is_ready


def sasl_seeds() -> list[bytes]:
    token = b".".join((b"eyJhbGciOiJSUzI1NiJ9", b"eyJleHAiOjF9", b"AAAA"))
    return [
        b"\0\0alice\0secret",
        b"\1n,,n=alice,r=abc" + END + b"c=biws,r=abc,p=AAAA",
        b"\2n,a=alice,n=alice,r=abc",
        b"\3n,,\1auth=Bearer " + token + b"\1\1" + END + b"\1",
    ]
