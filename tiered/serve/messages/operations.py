"""The messages of our own APIs: operations that a command asks a running node for.

An operation is a job of the node. StartOperation begins it, AwaitOperation waits for its progress and its outcome. The
bodies are JSON, so that a command and a node of different versions understand each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from tiered.serve.messages.base import OwnApi, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """`body` is the JSON of `Start` or `Await`."""

    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationResponse:
    """`body` is the JSON of `State`."""

    body: bytes


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Begin `operation` with its own parameters."""

    operation: str
    parameters: msgspec.Raw


class Await(msgspec.Struct, frozen=True, kw_only=True):
    """Wait for news of a job, at most `wait_ms`. `messages_seen` are not sent again. `cancels` asks the job to end."""

    job: int
    messages_seen: int = 0
    wait_ms: int = 0
    cancels: bool = False


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the project: the name of its class, its code, its text and its facts."""

    kind: str
    attempt: str
    code: str | None = None
    facts: dict[str, object] = {}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A job: its progress so far, and its outcome once it `is_done`: `result` or `failure`."""

    job: int
    is_done: bool = False
    done: int = 0
    expected: int = 0
    unit: str = ""
    messages: list[str] = []
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


# Built at import: building them in two threads in parallel ends the process (msgspec 0.22).
DECODE_START = msgspec.json.Decoder(Start)
DECODE_AWAIT = msgspec.json.Decoder(Await)
DECODE_STATE = msgspec.json.Decoder(State)

APIS: Mapping[int, Versions] = MappingProxyType(
    dict.fromkeys(OwnApi, Versions(0, 0, OperationRequest, OperationResponse))
)
