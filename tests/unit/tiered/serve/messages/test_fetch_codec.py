"""The faster codec of Fetch: the same messages and bytes as `kio` and as the codec of all messages."""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import types
from collections.abc import Sequence
from typing import Any, Union, get_args, get_origin
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from local.errors import InvalidRequest
from tiered.serve.messages import fetch_codec
from tiered.serve.messages.base import Api
from tiered.serve.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tiered.serve.protocol import SERVED, Header, Received, encode, encode_request, parse, read_response

VERSIONS = range(SERVED[Api.FETCH].min_version, SERVED[Api.FETCH].max_version + 1)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20) | st.sampled_from(["", "orders", "x" * 126, "x" * 127, "é" * 100])
PLAIN: dict[str | None, st.SearchStrategy[Any]] = {
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": INT32,
    "int64": INT64,
    "string": TEXTS,
    "uuid": st.uuids() | st.none(),
    "error_code": st.sampled_from(ErrorCode),
    "records": st.binary(max_size=300),
    "timedelta_i32": INT32.map(lambda ms: datetime.timedelta(milliseconds=ms)),
}


def messages(schema: type) -> st.SearchStrategy[Any]:
    """Instances of a `kio` class. Their tagged fields have the defaults, as in usual messages."""
    fields = [each for each in dataclasses.fields(schema) if each.metadata.get("tag") is None]
    values = {each.name: _values(each) for each in fields}
    if "preferred_read_replica" in values:
        values["preferred_read_replica"] = st.just(-1)  # of every response of this server
    return st.builds(schema, **values)


def _values(field: Any) -> st.SearchStrategy[Any]:
    hint, kind = field.type, field.metadata.get("kafka_type")
    is_nullable = get_origin(hint) in (Union, types.UnionType)
    if is_nullable:
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    is_array = get_origin(hint) is tuple
    values = PLAIN[kind] if kind is not None else messages(get_args(hint)[0] if is_array else hint)
    values = st.lists(values, max_size=3).map(tuple) if is_array else values
    return values | st.none() if is_nullable and kind not in ("uuid", "records") else values


REQUESTS = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), messages(load_request_schema(Api.FETCH, version)))
)
RESPONSES = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), messages(load_response_schema(Api.FETCH, version)))
)


def _written(schema_of: Any, head: Any, message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(head))(buffer, head)
    entity_writer(schema_of)(buffer, message)
    return buffer.getvalue()


def frame_of(version: int, request: Any, client_id: str | None) -> bytes:
    head = type(request).__header_schema__(
        request_api_key=Api.FETCH, request_api_version=version, correlation_id=77, client_id=client_id
    )
    return _written(type(request), head, request)


def slowly(frame: bytes) -> Received | None:
    """The request as the codec of all messages reads it; None for a refused one."""
    with patch.object(fetch_codec, "read", lambda frame: None):
        return quickly(frame)


def quickly(frame: bytes | bytearray) -> Received | None:
    try:
        found = parse(frame)
    except InvalidRequest:
        return None
    return found if isinstance(found, Received) else None


def joined(pieces: Sequence[Any]) -> bytes:
    return b"".join(pieces)


@given(REQUESTS, st.none() | st.text(max_size=20), st.binary(max_size=3))
def test_drawn_requests_are_read_as_by_the_codec_of_all_messages(
    drawn: tuple[int, Any], client_id: str | None, rest: bytes
) -> None:
    version, request = drawn
    frame = frame_of(version, request, client_id) + rest
    assert quickly(bytearray(frame)) == slowly(frame) is not None
    is_usual = not getattr(request, "forgotten_topics_data", ()) and all(
        len((getattr(each, "topic", None) or "").encode()) < 127 for each in request.topics
    )
    is_usual = is_usual and len(getattr(request, "rack_id", "").encode()) < 127
    assert not is_usual or fetch_codec.read(frame) is not None


@given(REQUESTS, st.integers(0, 10**6), st.binary(min_size=1, max_size=4), st.booleans())
def test_damaged_requests_are_read_or_refused_as_by_the_codec_of_all_messages(
    drawn: tuple[int, Any], at: int, damage: bytes, is_truncated: bool
) -> None:
    frame = frame_of(*drawn, "tester")
    at = 4 + at % (len(frame) - 4)
    damaged = frame[:at] if is_truncated else frame[:at] + damage + frame[at + len(damage) :]
    assert quickly(damaged) == slowly(damaged)


@given(RESPONSES)
def test_drawn_responses_have_the_bytes_of_kio(drawn: tuple[int, Any]) -> None:
    version, message = drawn
    expected = _written(type(message), type(message).__header_schema__(correlation_id=77), message)
    response: Any = read_response(
        Header(api_key=Api.FETCH, api_version=version, correlation_id=77), memoryview(expected)
    )
    pieces = fetch_codec.write(version, 77, response, 1 << 20)
    is_usual = version < 12 or all(
        len((getattr(each, "topic", None) or "").encode()) < 127 for each in message.responses
    )
    assert (pieces is not None) >= is_usual
    if pieces is not None:
        assert joined(pieces) == struct.pack(">i", len(expected)) + expected


def test_an_unusual_response_is_left_to_the_codec_of_all_messages() -> None:
    data = PartitionData(partition_index=0, current_leader=LeaderIdAndEpoch(leader_id=0, leader_epoch=5))
    topic = FetchableTopicResponse(topic="orders", partitions=(data,))
    here = NodeEndpoint(node_id=0, host="localhost", port=9092)
    for response in (FetchResponse(responses=(topic,)), FetchResponse(node_endpoints=(here,))):
        assert fetch_codec.write(16, 1, response, 1 << 20) is None


@pytest.mark.parametrize("version", [11, 12, 13])
def test_a_response_has_its_limit_without_the_records(version: int) -> None:
    data = PartitionData(partition_index=0, records=(bytes(10_000), memoryview(bytes(300))))
    response = FetchResponse(responses=(FetchableTopicResponse(topic="orders", partitions=(data,)),))
    pieces = fetch_codec.write(version, 1, response, 200)
    header = Header(api_key=Api.FETCH, api_version=version, correlation_id=1)
    with patch.object(fetch_codec, "write", lambda *words: None):
        expected = encode(header, response)
    assert pieces == expected
    small = sum(len(each) for each in expected) - 10_300
    assert fetch_codec.write(version, 1, response, small) is not None
    assert fetch_codec.write(version, 1, response, small - 1) is None


def test_a_large_request_is_left_to_the_codec_of_all_messages() -> None:
    partitions = tuple(FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in range(200))
    topics = (FetchTopic(topic="orders", partitions=partitions),)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=topics)
    header = Header(api_key=Api.FETCH, api_version=11, correlation_id=1)
    frame = joined(encode_request(header, request))[4:]
    assert len(frame) > fetch_codec.BYTES_MAX
    with patch.object(fetch_codec, "read", lambda frame: pytest.fail("a large frame was read")):
        assert quickly(frame) == Received(header=header, request=request)


def test_a_response_above_its_limit_is_not_written_to_its_end() -> None:
    """The event loop writes it: it stops at the limit, also within one topic."""
    count, put = 0, fetch_codec._put_partition

    def counted(*words: Any) -> int:
        nonlocal count
        count += 1
        return put(*words)

    parts = tuple(PartitionData(partition_index=each) for each in range(1000))
    response = FetchResponse(responses=(FetchableTopicResponse(topic="orders", partitions=parts),))
    with patch.object(fetch_codec, "_put_partition", counted):
        assert fetch_codec.write(11, 1, response, 1000) is None
    assert count < 50
