"""Keys and values of ``__consumer_offsets`` in Kafka's own record format.

| key type | key | value, None for a tombstone |
|---|---|---|
| 0, 1 | group, topic, partition | `OffsetValue` |
| 2 | group | `GroupValue` |
| 3 and up | of newer group protocols | see `tiered.serve.groups.consumer.records` |

A value begins with the version of its layout. All versions up to 4 are read. Written are those that Kafka 4.1 writes:
offsets in version 4 (in version 1 with a retention of their own), groups in version 3. From version 4 a length is an
unsigned varint of length + 1, and tagged fields end a structure.

Source: kafka ``OffsetCommitKey.json``, ``OffsetCommitValue.json``, ``GroupMetadataKey.json``,
``GroupMetadataValue.json``, `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from local.errors import Corrupt, InvalidRequest
from tiered.serve.groups.coordinator_records import FieldReader

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_OFFSET_KEY, _GROUP_KEY = 1, 2
_OFFSET_VERSION, _EXPIRING_VERSION, _GROUP_VERSION, _NEWEST_VERSION = 4, 1, 3, 4
_TEXT_BYTES_MAX = 2**15 - 1
_TOPIC_ID_TAG = 0
_NO_UUID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """A committed offset. `expire_ms` is the retention of an old client (OffsetCommit up to version 4)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int
    expire_ms: int | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberValue:
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """A group at the begin of a generation. `state_ms` is the time of its last change; None in versions 0 and 1."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    state_ms: int | None = None
    members: tuple[MemberValue, ...] = ()


Key = OffsetKey | GroupKey
Value = OffsetValue | GroupValue


def encode_key(key: Key) -> bytes:
    """Raises InvalidRequest for a name above 32,767 bytes."""
    match key:
        case OffsetKey():
            return _SHORT.pack(_OFFSET_KEY) + _text(key.group) + _text(key.topic) + _INT.pack(key.partition)
        case GroupKey():
            return _SHORT.pack(_GROUP_KEY) + _text(key.group)


def encode_value(value: Value) -> bytes:
    """Raises InvalidRequest for a text above 32,767 bytes."""
    match value:
        case GroupValue():
            return _group_bytes(value)
        case OffsetValue(expire_ms=None):
            epoch, time = _INT.pack(value.leader_epoch), _LONG.pack(value.commit_ms)
            head = _SHORT.pack(_OFFSET_VERSION) + _LONG.pack(value.offset) + epoch
            return head + _compact_text(value.metadata) + time + _topic_id_tag(value.topic_id)
        case OffsetValue(expire_ms=int() as expire_ms):
            times = _LONG.pack(value.commit_ms) + _LONG.pack(expire_ms)
            return _SHORT.pack(_EXPIRING_VERSION) + _LONG.pack(value.offset) + _text(value.metadata) + times
    raise AssertionError(value)


def decode_key(data: bytes | memoryview | None) -> Key | None:
    """The key of a record; None for a type of a newer protocol. Raises Corrupt."""
    if data is None:
        raise Corrupt("cannot read the key of a group record, it is missing")
    body = FieldReader(bytes(data), "cannot read the key of a group record")
    kind = body.number(2)
    if kind < 0:
        raise Corrupt("cannot read the key of a group record, its type is unknown", type=kind)
    if kind > _GROUP_KEY:
        return None
    group = body.text()
    key: Key = GroupKey(group) if kind == _GROUP_KEY else OffsetKey(group, body.text(), body.number(4))
    body.end()
    return key


def decode_value(key: Key, data: bytes | memoryview) -> Value:
    """The value of a record that is no tombstone. Raises Corrupt."""
    body = FieldReader(bytes(data), "cannot read the value of a group record")
    version = body.number(2)
    if not 0 <= version <= _NEWEST_VERSION:
        facts = {"version": version, "newest": _NEWEST_VERSION}
        raise Corrupt("cannot read the value of a group record, its version is unknown", **facts)
    body.is_flexible = version == _NEWEST_VERSION
    value = _read_offset(body, version) if isinstance(key, OffsetKey) else _read_group(body, version)
    body.end()
    return value


def _read_offset(body: FieldReader, version: int) -> OffsetValue:
    offset = body.number(8)
    leader_epoch = body.number(4) if version >= 3 else -1
    metadata, commit_ms = body.text(), body.number(8)
    expire_ms = body.number(8) if version == _EXPIRING_VERSION else -1
    topic_id = body.tags().get(_TOPIC_ID_TAG, b"")
    return OffsetValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_ms=commit_ms,
        expire_ms=None if expire_ms == -1 else expire_ms,
        topic_id=UUID(bytes=topic_id) if len(topic_id) == len(_NO_UUID.bytes) else None,
    )


def _read_group(body: FieldReader, version: int) -> GroupValue:
    protocol_type, generation = body.text(), body.number(4)
    protocol, leader = body.nullable_text(), body.nullable_text()
    state_ms = body.number(8) if version >= 2 else -1
    members = _items(body, lambda: _read_member(body, version))
    body.tags()
    return GroupValue(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_ms=None if state_ms == -1 else state_ms,
        members=members,
    )


def _read_member(body: FieldReader, version: int) -> MemberValue:
    member_id = body.text()
    instance_id = body.nullable_text() if version >= 3 else None
    client_id, client_host = body.text(), body.text()
    rebalance_timeout_ms = body.number(4) if version >= 1 else None
    session_timeout_ms = body.number(4)
    subscription, assignment = body.take(body.length(4)), body.take(body.length(4))
    body.tags()
    return MemberValue(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def _items(body: FieldReader, read: Callable[[], MemberValue]) -> tuple[MemberValue, ...]:
    found = body.items(read)
    return tuple(each for each in found or () if isinstance(each, MemberValue))


def _group_bytes(value: GroupValue) -> bytes:
    state_ms = -1 if value.state_ms is None else value.state_ms
    parts = [
        _SHORT.pack(_GROUP_VERSION),
        _text(value.protocol_type),
        _INT.pack(value.generation),
        _nullable_text(value.protocol),
        _nullable_text(value.leader),
        _LONG.pack(state_ms),
        _INT.pack(len(value.members)),
    ]
    for each in value.members:
        parts += [
            _text(each.member_id),
            _nullable_text(each.instance_id),
            _text(each.client_id),
            _text(each.client_host),
            _INT.pack(each.rebalance_timeout_ms),
            _INT.pack(each.session_timeout_ms),
            _INT.pack(len(each.subscription)) + each.subscription,
            _INT.pack(len(each.assignment)) + each.assignment,
        ]
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _TEXT_BYTES_MAX:
        raise InvalidRequest("cannot write a group record, a text is too long", bytes=len(data), most=_TEXT_BYTES_MAX)
    return _SHORT.pack(len(data)) + data


def _nullable_text(text: str | None) -> bytes:
    return _SHORT.pack(-1) if text is None else _text(text)


def _compact_text(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def _topic_id_tag(topic_id: UUID | None) -> bytes:
    if topic_id is None or topic_id == _NO_UUID:
        return _uvarint(0)
    return _uvarint(1) + _uvarint(_TOPIC_ID_TAG) + _uvarint(len(topic_id.bytes)) + topic_id.bytes


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
