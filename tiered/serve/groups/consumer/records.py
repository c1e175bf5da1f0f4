"""Records of consumer groups (KIP-848) in ``__consumer_offsets``, in Kafka's own format.

| key type | key | value, None for a tombstone |
|---|---|---|
| 3 | group | `GroupEpoch` |
| 4 | group | of brokers before 4.1; ignored |
| 5 | group, member | `MemberMetadata` |
| 6 | group | `TargetEpoch` |
| 7 | group, member | `Target` |
| 8 | group, member | `Current` |
| 16 | group, regular expression | `ResolvedRegex` |

Keys are not flexible. Values have version 0, which is flexible: a length is an unsigned varint of length + 1, and
tagged fields end a structure.

Source: kafka ``ConsumerGroup*Key.json``, ``ConsumerGroup*Value.json``, `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from local.errors import Corrupt, InvalidRequest
from tiered.serve.groups.coordinator_records import FieldReader
from tiered.serve.groups.offsets_records import GroupKey

Assignment = Mapping[UUID, frozenset[int]]  # partition numbers by topic id; never changed; without empty sets
NO_PARTITIONS: Assignment = MappingProxyType({})
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_TEXT_BYTES_MAX = 2**15 - 1
_HASH_TAG = 0
_UUID_BYTES = 16


class Kind(IntEnum):
    """Types of keys."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_NAMED = frozenset({Kind.MEMBER, Kind.TARGET, Kind.CURRENT, Kind.REGEX})


class MemberState(IntEnum):
    """Source: kafka `MemberState`."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """`name` is a member id or a regular expression."""

    kind: Kind
    group: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """`metadata_hash` stands for the subscribed topics that exist, with their ids and numbers of partitions."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """`topics` are names, sorted. An empty `regex` is none. `rebalance_timeout_ms` is -1 before the first request."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class Target:
    partitions: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What a member has: `assigned`, and `revoking`, which it must revoke first."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """`version` is that of the metadata, which this project does not number."""

    topics: tuple[str, ...]
    version: int = 0
    resolved_ms: int = 0


ConsumerValue = GroupEpoch | MemberMetadata | TargetEpoch | Target | Current | ResolvedRegex


class Change(NamedTuple):
    """A record, and the value that the key had before. A `GroupKey`: the group was a classic one."""

    key: ConsumerKey | GroupKey
    value: ConsumerValue | None
    before: ConsumerValue | None


def epoch_first(changes: Iterable[Change]) -> list[Change]:
    """The epoch of the group before its members: a prefix of the records in the log makes the group assign anew."""

    def rank(change: Change) -> int:
        key = change.key
        return (2 if key.kind is not Kind.GROUP else 1) if isinstance(key, ConsumerKey) else 0

    return sorted(changes, key=rank)


def encode_consumer_key(key: ConsumerKey) -> bytes:
    """Raises InvalidRequest for a text above 32,767 bytes."""
    names = [key.group, key.name] if key.kind in _NAMED else [key.group]
    encoded = [_checked(each) for each in names]
    return _SHORT.pack(key.kind) + b"".join(_SHORT.pack(len(each)) + each for each in encoded)


def encode_consumer_value(value: ConsumerValue) -> bytes:
    """Raises InvalidRequest for a text above 32,767 bytes."""
    return _SHORT.pack(0) + b"".join(_parts(value))


def _parts(value: ConsumerValue) -> Iterable[bytes]:
    match value:
        case GroupEpoch(epoch, metadata_hash):
            tag = _uvarint(1) + _uvarint(_HASH_TAG) + _uvarint(_LONG.size) + _LONG.pack(metadata_hash)
            return _INT.pack(epoch), tag if metadata_hash else _uvarint(0)
        case MemberMetadata():
            return (
                *map(_text, (value.instance_id, value.rack_id, value.client_id, value.client_host)),
                _texts(value.topics),
                _text(value.regex),
                _INT.pack(value.rebalance_timeout_ms),
                _text(value.assignor),
                _uvarint(0),
            )
        case TargetEpoch(epoch):
            return _INT.pack(epoch), _uvarint(0)
        case Target(partitions):
            return _partitions(partitions), _uvarint(0)
        case Current():
            head = _INT.pack(value.epoch) + _INT.pack(value.previous_epoch) + bytes((value.state,))
            return head, _partitions(value.assigned), _partitions(value.revoking), _uvarint(0)
        case ResolvedRegex():
            return _texts(value.topics), _LONG.pack(value.version), _LONG.pack(value.resolved_ms), _uvarint(0)


def decode_consumer_key(data: bytes | memoryview | None) -> ConsumerKey | None:
    """The key of a record; None for another type. Raises Corrupt."""
    body = FieldReader(bytes(data or b""), "cannot read the key of a consumer group")
    number = body.number(2)
    if number not in tuple(Kind):
        return None
    kind = Kind(number)
    key = ConsumerKey(kind, body.text(), body.text() if kind in _NAMED else "")
    body.end()
    return key


def decode_consumer_value(key: ConsumerKey, data: bytes | memoryview) -> ConsumerValue | None:
    """The value of a record that is no tombstone; None for PARTITION_METADATA. Raises Corrupt."""
    body = FieldReader(bytes(data), "cannot read the value of a consumer group", is_flexible=True)
    if version := body.number(2):
        raise Corrupt("cannot read the value of a consumer group, its version is unknown", version=version)
    match key.kind:
        case Kind.PARTITION_METADATA:
            return None
        case Kind.GROUP:
            epoch = body.number(4)
            tag = body.tags().get(_HASH_TAG, b"")
            return GroupEpoch(epoch, int.from_bytes(tag, "big", signed=True))
        case Kind.MEMBER:
            return MemberMetadata(
                instance_id=body.nullable_text(),
                rack_id=body.nullable_text(),
                client_id=body.text(),
                client_host=body.text(),
                topics=_read_texts(body),
                regex=body.nullable_text(),
                rebalance_timeout_ms=body.number(4),
                assignor=body.nullable_text(),
            )
        case Kind.TARGET_EPOCH:
            return TargetEpoch(body.number(4))
        case Kind.TARGET:
            return Target(_read_partitions(body))
        case Kind.CURRENT:
            epoch, previous_epoch, state = body.number(4), body.number(4), body.number(1)
            if state not in tuple(MemberState):
                raise Corrupt("cannot read the value of a consumer group, a state is unknown", state=state)
            return Current(
                epoch=epoch,
                previous_epoch=previous_epoch,
                state=MemberState(state),
                assigned=_read_partitions(body),
                revoking=_read_partitions(body),
            )
        case Kind.REGEX:
            return ResolvedRegex(_read_texts(body), body.number(8), body.number(8))


def _read_texts(body: FieldReader) -> tuple[str, ...]:
    return tuple(str(each) for each in body.items(body.text) or ())


def _read_partitions(body: FieldReader) -> Assignment:
    found: dict[UUID, frozenset[int]] = {}

    def read() -> None:
        topic_id = UUID(bytes=body.take(_UUID_BYTES))
        numbers = frozenset(each for each in body.items(lambda: body.number(4)) or () if isinstance(each, int))
        body.tags()
        if numbers:
            found[topic_id] = numbers

    body.items(read)
    return found


def _partitions(assignment: Assignment) -> bytes:
    parts = [_uvarint(len(assignment) + 1)]
    for topic_id, numbers in assignment.items():
        body = struct.pack(f">{len(numbers)}i", *sorted(numbers))
        parts.append(topic_id.bytes + _uvarint(len(numbers) + 1) + body + _uvarint(0))
    return b"".join(parts)


def _texts(texts: Iterable[str]) -> bytes:
    found = [_text(each) for each in texts]
    return _uvarint(len(found) + 1) + b"".join(found)


def _text(text: str | None) -> bytes:
    data = b"" if text is None else _checked(text)
    return _uvarint(0) if text is None else _uvarint(len(data) + 1) + data


def _checked(text: str) -> bytes:
    data = text.encode()
    if len(data) > _TEXT_BYTES_MAX:
        raise InvalidRequest("cannot write a group record, a text is too long", bytes=len(data), most=_TEXT_BYTES_MAX)
    return data


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
