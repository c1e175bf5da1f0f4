"""The records of consumer groups: golden bytes, round trips, other bytes."""

from __future__ import annotations

from uuid import UUID

import pytest

from local.errors import Corrupt, InvalidRequest
from tiered.serve.groups.consumer.records import (
    ConsumerKey,
    ConsumerValue,
    Current,
    GroupEpoch,
    Kind,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    Target,
    TargetEpoch,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)

TOPIC = UUID(int=1)
_TOPIC_BYTES = b"\0" * 15 + b"\1"
MEMBER = MemberMetadata(
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    topics=("a", "b"),
    regex="x.*",
    rebalance_timeout_ms=9,
    assignor="range",
)
CASES: list[tuple[Kind, ConsumerValue, bytes]] = [
    (Kind.GROUP, GroupEpoch(5), b"\0\0\0\0\0\5\0"),
    (Kind.GROUP, GroupEpoch(5, -2), b"\0\0\0\0\0\5\1\0\x08" + b"\xff" * 7 + b"\xfe"),
    (Kind.MEMBER, MEMBER, b"\0\0\2i\0\2c\3/h\3\2a\2b\4x.*\0\0\0\x09\6range\0"),
    (Kind.TARGET_EPOCH, TargetEpoch(6), b"\0\0\0\0\0\6\0"),
    (Kind.TARGET, Target({TOPIC: frozenset({2, 1})}), b"\0\0\2" + _TOPIC_BYTES + b"\3\0\0\0\1\0\0\0\2\0\0"),
    (
        Kind.CURRENT,
        Current(epoch=4, previous_epoch=3, state=MemberState.UNREVOKED_PARTITIONS, revoking={TOPIC: frozenset({300})}),
        b"\0\0\0\0\0\4\0\0\0\3\1\1\2" + _TOPIC_BYTES + b"\2\0\0\1\x2c\0\0",
    ),
    (Kind.REGEX, ResolvedRegex(("a",), 7, 8), b"\0\0\2\2a\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\x08\0"),
]


@pytest.mark.parametrize(("kind", "value", "data"), CASES)
def test_values_have_the_bytes_of_kafkas_format(kind: Kind, value: ConsumerValue, data: bytes) -> None:
    assert encode_consumer_value(value) == data
    assert decode_consumer_value(ConsumerKey(kind, "g", "m"), data) == value


@pytest.mark.parametrize("kind", list(Kind))
def test_keys_name_their_group_and_what_they_are_of(kind: Kind) -> None:
    named = kind in (Kind.MEMBER, Kind.TARGET, Kind.CURRENT, Kind.REGEX)
    key = ConsumerKey(kind, "g", "m" if named else "")
    data = bytes((0, kind)) + b"\0\1g" + (b"\0\1m" if named else b"")
    assert (encode_consumer_key(key), decode_consumer_key(data)) == (data, key)


def test_other_types_are_none_and_damaged_records_are_corrupt() -> None:
    assert decode_consumer_key(b"\0\x09\0\1g") is None
    assert decode_consumer_value(ConsumerKey(Kind.PARTITION_METADATA, "g"), b"\0\0\1\0") is None
    for data in (b"\0\3\0\2g", b"\0\3\0\1gg", b"\0"):
        with pytest.raises(Corrupt):
            decode_consumer_key(data)
    state = encode_consumer_value(Current())
    for kind, value in (
        (Kind.GROUP, b"\0\1\0\0\0\5\0"),
        (Kind.GROUP, b"\0\0\0\0"),
        (Kind.TARGET, b"\0\0\xff\xff\xff\xff\x0f"),
        (Kind.CURRENT, state[:10] + b"\x07" + state[11:]),
    ):
        with pytest.raises(Corrupt):
            decode_consumer_value(ConsumerKey(kind, "g", "m"), value)


def test_long_texts_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        encode_consumer_key(ConsumerKey(Kind.MEMBER, "g", "x" * 40_000))
    with pytest.raises(InvalidRequest):
        encode_consumer_value(MemberMetadata(client_id="x" * 40_000))
