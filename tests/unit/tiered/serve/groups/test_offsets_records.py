"""Keys and values of ``__consumer_offsets``: bytes of Kafka 4.1, every version, bytes that are no records."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.errors import Corrupt, InvalidRequest
from tiered.serve.groups.coordinator_records import decode_offsets_record
from tiered.serve.groups.offsets_records import (
    GroupKey,
    GroupValue,
    Key,
    MemberValue,
    OffsetKey,
    OffsetValue,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

T = 0x01A21F7EBAF6
MEMBER = MemberValue(
    member_id="aiokafka-1",
    client_id="aiokafka",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=6000,
    session_timeout_ms=6000,
    subscription=b"\0\0\0\0\0\1\0\2t1",
    assignment=b"\0\0",
)
OFFSET_KEY, GROUP_KEY = OffsetKey("g1", "t1", 0), GroupKey("g1")
# Written by Apache Kafka 4.1.1
KAFKAS = [
    (
        GROUP_KEY,
        GroupValue(protocol_type="", generation=0, state_ms=T),
        "000200026731",
        "0003000000000000ffffffff000001a21f7ebaf600000000",
    ),
    (
        OFFSET_KEY,
        OffsetValue(offset=5, commit_ms=0x01A21F7EBF06),
        "00010002673100027431" + "00000000",
        "00040000000000000005ffffffff01000001a21f7ebf0600",
    ),
    (
        OffsetKey("simple", "t1", 0),
        OffsetValue(offset=3, commit_ms=0x01A21F7EBF36, expire_ms=0x01A21F8E0176),
        "0001000673696d706c6500027431" + "00000000",
        "000100000000000000030000000001a21f7ebf36000001a21f8e0176",
    ),
    (
        GROUP_KEY,
        GroupValue(
            protocol_type="consumer",
            generation=1,
            protocol="roundrobin",
            leader="aiokafka-1",
            state_ms=T,
            members=(MEMBER,),
        ),
        "000200026731",
        "00030008636f6e73756d657200000001000a726f756e64726f62696e000a61696f6b61666b612d31000001a21f7ebaf600000001"
        "000a61696f6b61666b612d31ffff000861696f6b61666b61000a2f3132372e302e302e310000177000001770"
        "0000000a000000000001000274310000000200" + "00",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), KAFKAS)
def test_records_are_those_of_kafka(key: Key, value: Value, key_hex: str, value_hex: str) -> None:
    assert encode_key(key).hex() == key_hex
    assert encode_value(value).hex() == value_hex
    assert decode_key(bytes.fromhex(key_hex)) == key
    assert decode_value(key, bytes.fromhex(value_hex)) == value


@pytest.mark.parametrize(
    ("key", "value_hex", "expected"),
    [
        (OFFSET_KEY, "0000" + "0000000000000007" + "00026869" + "0000000000000009", (7, -1, "hi", 9, None)),
        (OFFSET_KEY, "0001" + "0000000000000007" + "0000" + "0000000000000009" + "00" * 7 + "63", (7, -1, "", 9, 99)),
        (OFFSET_KEY, "0001" + "0000000000000007" + "0000" + "0000000000000009" + "ff" * 8, (7, -1, "", 9, None)),
        (OFFSET_KEY, "0002" + "0000000000000007" + "00026869" + "0000000000000009", (7, -1, "hi", 9, None)),
        (OFFSET_KEY, "0003" + "0000000000000007" + "00000004" + "00026869" + "0000000000000009", (7, 4, "hi", 9, None)),
        (
            OFFSET_KEY,
            "0004" + "0000000000000007" + "00000004" + "036869" + "0000000000000009" + "00",
            (7, 4, "hi", 9, None),
        ),
    ],
)
def test_every_version_of_an_offset_is_read(key: Key, value_hex: str, expected: tuple[object, ...]) -> None:
    value = decode_value(key, bytes.fromhex(value_hex))
    assert isinstance(value, OffsetValue)
    assert (value.offset, value.leader_epoch, value.metadata, value.commit_ms, value.expire_ms) == expected


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    text = (
        (lambda each: bytes([len(each) + 1]) + each)
        if version == 4
        else (lambda each: b"\0" + bytes([len(each)]) + each)
    )
    data = (
        (lambda each: bytes([len(each) + 1]) + each)
        if version == 4
        else (lambda each: b"\0\0\0" + bytes([len(each)]) + each)
    )
    null, end = (b"\0", b"\0") if version == 4 else (b"\xff\xff", b"")
    count = b"\x02" if version == 4 else b"\0\0\0\1"
    member = text(b"m") + (null if version >= 3 else b"") + text(b"c") + text(b"/h")
    member += ((8).to_bytes(4, "big") if version else b"") + (9).to_bytes(4, "big") + data(b"sub") + data(b"give") + end
    body = text(b"consumer") + (3).to_bytes(4, "big") + text(b"range") + text(b"m")
    body += (T.to_bytes(8, "big") if version >= 2 else b"") + count + member + end
    found = decode_value(GROUP_KEY, version.to_bytes(2, "big") + body)
    assert found == GroupValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        state_ms=T if version >= 2 else None,
        members=(
            MemberValue(
                member_id="m",
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=8 if version else 9,
                session_timeout_ms=9,
                subscription=b"sub",
                assignment=b"give",
            ),
        ),
    )


def test_the_topic_id_of_an_offset_is_a_tagged_field() -> None:
    value = OffsetValue(offset=1, commit_ms=2, topic_id=UUID(int=7))
    assert decode_value(OFFSET_KEY, encode_value(value)) == value
    assert encode_value(value).endswith(b"\1\0\x10" + UUID(int=7).bytes)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
LONG = st.integers(0, 2**63 - 1)


@given(TEXT, TEXT, LONG, st.integers(-1, 2**31 - 1), TEXT, LONG, st.one_of(st.none(), LONG))
def test_an_offset_is_read_as_it_was_written(
    group: str, topic: str, offset: int, epoch: int, metadata: str, commit_ms: int, expire_ms: int | None
) -> None:
    key = OffsetKey(group, topic, 3)
    epoch = -1 if expire_ms is not None else epoch
    value = OffsetValue(offset=offset, leader_epoch=epoch, metadata=metadata, commit_ms=commit_ms, expire_ms=expire_ms)
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encode_value(value)) == value
    named, fields = decode_offsets_record(encode_key(key), encode_value(value))
    assert named["data"] == {"group": group, "topic": topic, "partition": 3}
    assert fields is not None
    assert isinstance(fields["data"], dict)
    assert fields["data"]["offset"] == offset


@given(st.binary(max_size=60), st.sampled_from([OFFSET_KEY, GROUP_KEY]), st.integers(-1, 5))
def test_bytes_that_are_no_record_are_corrupt(data: bytes, key: Key, version: int) -> None:
    for call in (lambda: decode_key(data), lambda: decode_value(key, version.to_bytes(2, "big", signed=True) + data)):
        try:
            call()
        except Corrupt:
            continue


def test_keys_of_newer_protocols_are_skipped_and_missing_keys_are_corrupt() -> None:
    assert decode_key(b"\0\x03\0\1g") is None
    with pytest.raises(Corrupt, match="missing"):
        decode_key(None)
    with pytest.raises(Corrupt, match="type"):
        decode_key(b"\xff\xff")


def test_a_text_that_a_record_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        encode_key(GroupKey("x" * 40_000))
