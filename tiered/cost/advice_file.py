"""File of cost advice: settings to alter, segments to move to a class.

``tiered apply`` carries out the steps of the file.

A step has all facts that show whether it is due, done, or based on a changed state (`tiered.cost.advice_applying`). The
only settings are those that `policies.cost.cost_advice` proposes: whatever such a file says, it cannot cause the loss
of a record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from local.errors import InvalidRequest
from policies.cost.cost_advice import SETTINGS
from tiered.config.user_files import write_given

SCHEMA_VERSION = 1
KIND = "tiered-advice"
WRITING = "cannot write the advice"
READING = "cannot read the saved advice"


class AlterStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step", tag="alter"):
    """A setting of a topic to alter.

    `before` is its value at the time of the advice. Dollars a month are the topic's, with this change alone. `puts` are
    sent to the bucket once, one for each partition.
    """

    topic: str
    key: str
    before: str
    value: str
    reason: str
    puts: int
    gets: int
    once_dollars: float
    now_dollars: float
    then_dollars: float

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def change(self) -> str:
        return f"{self.key}={self.value}"


class MovedSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment by its half-open offsets and its ULID."""

    partition: int
    base_offset: int
    next_offset: int
    ulid: str
    stored_bytes: int


class RecodeStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="step", tag="recode"):
    """Segments of a topic to move to another class, with the requests, the price once and a month."""

    topic: str
    storage_class: str
    segments: tuple[MovedSegment, ...]
    reason: str
    puts: int
    gets: int
    once_dollars: float
    now_dollars: float
    then_dollars: float

    @property
    def size_bytes(self) -> int:
        return sum(each.stored_bytes for each in self.segments)

    @property
    def change(self) -> str:
        return f"{len(self.segments)} segment{'s' if len(self.segments) != 1 else ''} to {self.storage_class}"


Step = AlterStep | RecodeStep


class SavedAdvice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps in the order of their execution, and the state that they depend on.

    `tiered.plans.plan_basis` describes `basis`.
    """

    schema_version: int
    kind: str
    made_ms: int
    fingerprint: str
    basis: dict[str, str]
    steps: tuple[Step, ...]


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(SavedAdvice)


class _Any(msgspec.Struct):
    kind: str = ""


_ANY = msgspec.json.Decoder(_Any)


def saved_advice(steps: tuple[Step, ...], basis: Mapping[str, str], made_ms: int) -> SavedAdvice:
    """Build the advice with its fingerprint."""
    return SavedAdvice(
        schema_version=SCHEMA_VERSION,
        kind=KIND,
        made_ms=made_ms,
        fingerprint=_fingerprint(steps, basis),
        basis=dict(basis),
        steps=steps,
    )


def _fingerprint(steps: tuple[Step, ...], basis: Mapping[str, str]) -> str:
    """Return 16 hex digits over all steps and the basis."""
    body = msgspec.json.encode([steps, sorted(basis.items())])
    return hashlib.blake2b(body, digest_size=8).hexdigest()


def encode_advice(saved: SavedAdvice) -> bytes:
    """Encode as indented JSON; `decode_advice` is the inverse."""
    return msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n"


def is_advice(body: bytes) -> bool:
    """Return whether a file is advice, not a saved plan."""
    try:
        return _ANY.decode(body).kind == KIND
    except msgspec.MsgspecError:
        return False


def decode_advice(body: bytes) -> SavedAdvice:
    """Decode a file of advice.

    Raises InvalidRequest for bytes that are no such file, for a file changed by hand, and for a setting that is never
    advised.
    """
    try:
        saved = _FILE.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            (f"{READING}, the file is not advice or is damaged; make it with 'tiered cost advise --out FILE'"),
            cause=error,
        ) from None
    if (saved.kind, saved.schema_version) != (KIND, SCHEMA_VERSION):
        raise InvalidRequest(f"{READING}, it is of another kind", kind=saved.kind, version=saved.schema_version)
    for step in saved.steps:
        if isinstance(step, AlterStep) and step.key not in SETTINGS:
            raise InvalidRequest(f"{READING}, it contains a setting that is never advised", setting=step.key)
    if saved.fingerprint != _fingerprint(saved.steps, saved.basis):
        raise InvalidRequest(f"{READING}, its fingerprint contradicts its steps: the file was edited")
    return saved


def write_advice(saved: SavedAdvice, path: str) -> None:
    """Write the file at `path` completely, replacing an existing one.

    Raises as `tiered.config.user_files.write_given`.
    """
    write_given(path, encode_advice(saved), WRITING)
