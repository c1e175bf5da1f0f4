"""Frames of every served version, with `kio`'s own reader and writer as the oracle, and bytes that are no messages."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import struct
import tracemalloc
import types
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import pytest
from admin_samples import ADMIN_RESPONSES
from group_responses import GROUP_RESPONSES
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from local.errors import InvalidRequest
from tiered.serve.codec import ITEMS_MAX, TEXT_BYTES_MAX, FrameTooLarge
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from tiered.serve.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tiered.serve.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tiered.serve.messages.operations import OperationRequest, OperationResponse
from tiered.serve.messages.produce import (
    BatchIndexAndErrorMessage,
    InitProducerIdResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tiered.serve.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from tiered.serve.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    DescribedProducer,
    DescribedTransaction,
    DescribeProducersPartition,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsResponse,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsResponse,
    TopicData,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from tiered.serve.protocol import (
    OWN,
    SERVED,
    Header,
    Received,
    Unsupported,
    encode,
    encode_request,
    parse,
    read_response,
    supported,
)

VERSIONS = [(key, version) for key, each in SERVED.items() for version in range(each.min_version, each.max_version + 1)]
PRODUCE, FIND_COORDINATOR, CREATE_ACLS = 0, 10, 30
ADDED = AddPartitionsToTxnTopicResult(
    name="orders",
    results_by_partition=(
        AddPartitionsToTxnPartitionResult(partition_index=1, partition_error_code=Error.OPERATION_NOT_ATTEMPTED),
    ),
)
RESPONSES = {
    Api.SASL_HANDSHAKE: SaslHandshakeResponse(mechanisms=("PLAIN", "SCRAM-SHA-256")),
    Api.SASL_AUTHENTICATE: SaslAuthenticateResponse(
        error_code=Error.SASL_AUTHENTICATION_FAILED, error_message="no", auth_bytes=b"reply", session_lifetime_ms=5
    ),
    Api.PRODUCE: ProduceResponse(
        responses=(
            TopicProduceResponse(
                name="orders",
                topic_id=UUID(int=7),
                partition_responses=(
                    PartitionProduceResponse(
                        index=3, base_offset=10, log_append_time=1_700_000_000_000, log_start_offset=1
                    ),
                    PartitionProduceResponse(
                        index=4,
                        error_code=Error.INVALID_RECORD,
                        record_errors=(BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key"),),
                        error_message="one record is refused",
                    ),
                ),
            ),
        )
    ),
    Api.INIT_PRODUCER_ID: InitProducerIdResponse(producer_id=5, producer_epoch=0),
    Api.FETCH: FetchResponse(
        responses=(
            FetchableTopicResponse(
                topic="orders",
                topic_id=UUID(int=7),
                partitions=(
                    PartitionData(
                        partition_index=3,
                        high_watermark=10,
                        last_stable_offset=9,
                        log_start_offset=1,
                        aborted_transactions=(AbortedTransaction(producer_id=5, first_offset=2),),
                        records=(b"first run ", memoryview(b"second run" * 1000)),
                    ),
                    PartitionData(
                        partition_index=4,
                        error_code=Error.FENCED_LEADER_EPOCH,
                        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=6),
                    ),
                ),
            ),
        ),
        node_endpoints=(NodeEndpoint(node_id=1, host="node", port=9092),),
    ),
    Api.LIST_OFFSETS: ListOffsetsResponse(
        topics=(
            ListOffsetsTopicResponse(
                name="orders",
                partitions=(
                    ListOffsetsPartitionResponse(partition_index=1, timestamp=5, offset=6, leader_epoch=7),
                    ListOffsetsPartitionResponse(partition_index=2, error_code=Error.UNSUPPORTED_VERSION),
                ),
            ),
        )
    ),
    Api.METADATA: MetadataResponse(
        brokers=(MetadataResponseBroker(node_id=0, host="hôte", port=9092),),
        cluster_id="cluster",
        controller_id=0,
        topics=(
            MetadataResponseTopic(
                name="orders",
                topic_id=UUID(int=7),
                partitions=(
                    MetadataResponsePartition(partition_index=0, leader_id=0, replica_nodes=(0,), isr_nodes=(0,)),
                    MetadataResponsePartition(
                        error_code=Error.LEADER_NOT_AVAILABLE,
                        partition_index=1,
                        leader_id=-1,
                        leader_epoch=4,
                        replica_nodes=(0,),
                        isr_nodes=(0,),
                        offline_replicas=(0,),
                    ),
                ),
            ),
            MetadataResponseTopic(name=None, topic_id=UUID(int=8), error_code=Error.UNKNOWN_TOPIC_ID),
        ),
    ),
    Api.API_VERSIONS: ApiVersionsResponse(
        api_keys=(ApiVersion(api_key=1, min_version=4, max_version=18),),
        supported_features=(SupportedFeatureKey(name="transaction.version", min_version=1, max_version=2),),
        finalized_features_epoch=3,
        finalized_features=(FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2),),
    ),
    Api.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochResponse(
        topics=(
            OffsetForLeaderTopicResult(
                topic="orders", partitions=(EpochEndOffset(partition=1, leader_epoch=2, end_offset=3),)
            ),
        )
    ),
    Api.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnResponse(
        results_by_transaction=(AddPartitionsToTxnResult(transactional_id="id", topic_results=(ADDED,)),),
        results_by_topic_v3_and_below=(ADDED,),
    ),
    Api.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnResponse(error_code=Error.PRODUCER_FENCED),
    Api.TXN_OFFSET_COMMIT: TxnOffsetCommitResponse(
        topics=(
            TxnOffsetCommitResponseTopic(
                name="orders",
                partitions=(TxnOffsetCommitResponsePartition(partition_index=1, error_code=Error.INVALID_TXN_STATE),),
            ),
        )
    ),
    Api.END_TXN: EndTxnResponse(error_code=Error.PRODUCER_FENCED, producer_id=5, producer_epoch=6),
    Api.WRITE_TXN_MARKERS: WriteTxnMarkersResponse(
        markers=(
            WritableTxnMarkerResult(
                producer_id=5,
                topics=(
                    WritableTxnMarkerTopicResult(
                        name="orders", partitions=(WritableTxnMarkerPartitionResult(partition_index=1),)
                    ),
                ),
            ),
        )
    ),
    Api.DESCRIBE_PRODUCERS: DescribeProducersResponse(
        topics=(
            DescribeProducersTopicResponse(
                name="orders",
                partitions=(
                    DescribeProducersPartition(
                        partition_index=1,
                        active_producers=(
                            DescribedProducer(producer_id=5, producer_epoch=6, last_sequence=7, coordinator_epoch=8),
                        ),
                    ),
                ),
            ),
        )
    ),
    Api.DESCRIBE_TRANSACTIONS: DescribeTransactionsResponse(
        transaction_states=(
            DescribedTransaction(
                transactional_id="id",
                transaction_state="Ongoing",
                transaction_timeout_ms=60_000,
                transaction_start_time=1_700_000_000_123,
                producer_id=5,
                producer_epoch=6,
                topics=(TopicData(topic="orders", partitions=(1, 2)),),
            ),
        )
    ),
    Api.LIST_TRANSACTIONS: ListTransactionsResponse(
        unknown_state_filters=("Open",),
        transaction_states=(ListedTransaction(transactional_id="id", producer_id=5, transaction_state="Empty"),),
    ),
    **ADMIN_RESPONSES,
    **GROUP_RESPONSES,
    Api.DESCRIBE_CLUSTER: DescribeClusterResponse(
        cluster_id="cluster", controller_id=0, brokers=(DescribeClusterBroker(broker_id=0, host="h", port=1),)
    ),
}


def sample(schema: type) -> Any:
    """An instance of a `kio` class with a value in every field, from the field's position."""
    return schema(**{each.name: _value(each, at) for at, each in enumerate(dataclasses.fields(schema))})


def _value(field: Any, at: int) -> object:
    hint, kind = field.type, field.metadata.get("kafka_type")
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    is_array = get_origin(hint) is tuple
    item = get_args(hint)[0] if is_array else hint
    plain = {
        "string": f"text {at}",
        "bool": True,
        "uuid": UUID(int=at + 1),
        "bytes": b"bytes %d" % at,
        "records": b"records %d" % at,
        "error_code": ErrorCode(at),
    }
    value = sample(item) if kind is None else plain.get(kind, at)
    if kind is not None and kind.startswith("timedelta"):
        value = datetime.timedelta(milliseconds=at + 100)
    if kind == "datetime_i64":
        value = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return (value, value) if is_array else value


def _plain(value: Any) -> Any:
    """A message of either kind as plain values, to compare them."""
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            return (value - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
        case (memoryview() as view,):
            return bytes(view)  # records
        case tuple() | list():
            return [_plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value):
            return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value


def frame_of(key: int, version: int, request: Any, client_id: str | None = "tester") -> bytes:
    """The frame without its length, written by `kio`."""
    head = type(request).__header_schema__(
        request_api_key=key, request_api_version=version, correlation_id=77, client_id=client_id
    )
    buffer = io.BytesIO()
    entity_writer(type(head))(buffer, head)
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_request_is_read_as_kio_wrote_it(key: int, version: int) -> None:
    written = sample(load_request_schema(key, version))
    received = parse(frame_of(key, version, written))
    assert isinstance(received, Received)
    assert received.header == Header(api_key=key, api_version=version, correlation_id=77, client_id="tester")
    assert type(received.request) is SERVED[key].request
    _assert_same(_plain(received.request), _plain(written))


def _assert_same(ours: Any, theirs: Any) -> None:
    """Every field of ours that the version has must have the version's value."""
    if not isinstance(ours, dict):
        if isinstance(ours, list):
            assert len(ours) == len(theirs)
            for one, other in zip(ours, theirs, strict=True):
                _assert_same(one, other)
        else:
            assert ours == theirs
        return
    for name, value in ours.items():
        other = theirs.get(name.removesuffix("_ms"), None)
        if other is not None:
            _assert_same(value, other)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_response_is_read_by_kio_as_it_was_written(key: int, version: int) -> None:
    schema = load_response_schema(key, version)
    header = Header(api_key=key, api_version=version, correlation_id=77)
    pieces = encode(header, RESPONSES[Api(key)])
    data = b"".join(pieces)
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    head, size = entity_reader(schema.__header_schema__)(data, 4)
    assert head.correlation_id == 77
    found, length = entity_reader(schema)(data, 4 + size)
    assert 4 + size + length == len(data)
    expected = _plain(RESPONSES[Api(key)])
    for topic in expected["responses"] if key == Api.FETCH else ():
        for partition in topic["partitions"]:
            if partition["current_leader"] is None:
                partition["current_leader"] = {"leader_id": -1, "leader_epoch": -1}  # omitted
            partition["records"] = b"".join(bytes(each) for each in partition["records"])
    for topic in expected["topics"] if key == Api.METADATA else ():
        topic["name"] = topic["name"] if version >= 12 or topic["name"] is not None else ""
    _assert_all_of_theirs(_plain(found), expected)


def _assert_all_of_theirs(theirs: Any, ours: Any) -> None:
    for name, value in theirs.items():
        for suffix in ("", "_ms"):
            if name + suffix in ours:
                mine = ours[name + suffix]
                if isinstance(value, list) and value and isinstance(value[0], dict):
                    assert len(value) == len(mine), name
                    for one, other in zip(value, mine, strict=True):
                        _assert_all_of_theirs(one, other)
                else:
                    assert value == (None if value is None and mine == -1 else mine), name


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_request_is_read_by_kio_as_the_client_wrote_it(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    received = parse(frame_of(key, version, sample(schema)))
    assert isinstance(received, Received)
    data = b"".join(encode_request(received.header, received.request))
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    head, size = entity_reader(schema.__header_schema__)(data, 4)
    assert (head.request_api_key, head.request_api_version) == (key, version)
    assert (head.correlation_id, head.client_id) == (77, "tester")
    found, length = entity_reader(schema)(data, 4 + size)
    assert 4 + size + length == len(data)
    _assert_same(_plain(received.request), _plain(found))


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_response_is_read_by_the_client_as_kio_wrote_it(key: int, version: int) -> None:
    schema = load_response_schema(key, version)
    written = sample(schema)
    response = read_response(_header(key, version), memoryview(response_frame_of(written)))
    assert type(response) is SERVED[key].response
    _assert_same(_plain(response), _plain(written))


def response_frame_of(response: Any) -> bytes:
    """The frame without its length, written by `kio`."""
    buffer = io.BytesIO()
    head = type(response).__header_schema__(correlation_id=77)
    entity_writer(type(head))(buffer, head)
    entity_writer(type(response))(buffer, response)
    return buffer.getvalue()


def _header(key: int, version: int) -> Header:
    return Header(api_key=key, api_version=version, correlation_id=77)


@pytest.mark.parametrize("key", OWN)
def test_messages_of_the_projects_own_apis_are_read_as_they_were_written(key: int) -> None:
    header = Header(api_key=key, api_version=0, correlation_id=77, client_id="tiered")
    request, response = OperationRequest(body=b"{}"), OperationResponse(body=b"[]")
    frame = b"".join(encode_request(header, request))[4:]
    assert parse(frame, OWN) == Received(header=header, request=request)
    assert read_response(header, memoryview(b"".join(encode(header, response)))[4:]) == response
    with pytest.raises(InvalidRequest, match="not served"):
        parse(frame)


def test_the_response_to_another_request_is_refused() -> None:
    data = response_frame_of(sample(load_response_schema(Api.METADATA, 12)))
    header = Header(api_key=Api.METADATA, api_version=12, correlation_id=78)
    with pytest.raises(InvalidRequest, match=r"another request.*correlation_id=77 expected=78"):
        read_response(header, memoryview(data))


@given(st.sampled_from(VERSIONS), st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.booleans())
def test_damaged_responses_are_read_or_refused(
    target: tuple[int, int], at: int, damage: bytes, is_truncated: bool
) -> None:
    frame = response_frame_of(sample(load_response_schema(*target)))
    at %= len(frame)
    damaged = frame[:at] if is_truncated else frame[:at] + damage + frame[at + len(damage) :]
    with contextlib.suppress(InvalidRequest):
        read_response(_header(*target), memoryview(damaged))


def test_record_batches_are_not_copied() -> None:
    run = memoryview(bytes(1 << 20))
    response = FetchResponse(
        responses=(FetchableTopicResponse(partitions=(PartitionData(partition_index=0, records=(run,)),)),)
    )
    encode(Header(api_key=Api.FETCH, api_version=13, correlation_id=1), response)  # imports the version's classes
    tracemalloc.start()
    try:
        pieces = encode(Header(api_key=Api.FETCH, api_version=13, correlation_id=1), response)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert any(piece is run for piece in pieces)


def test_a_response_beyond_its_limit_ends_early_and_records_do_not_count() -> None:
    header = Header(api_key=Api.FETCH, api_version=12, correlation_id=1)
    partition = PartitionData(partition_index=0, records=(bytes(1 << 20),))
    topic = FetchableTopicResponse(topic="orders", partitions=(partition,))
    assert encode(header, FetchResponse(responses=(topic,) * 2), 1000) == encode(
        header, FetchResponse(responses=(topic,) * 2)
    )

    def topics() -> Any:
        for _ in range(30):
            yield topic
        pytest.fail("the response was written past its limit")

    class Topics(tuple[Any, ...]):
        def __iter__(self) -> Any:
            return topics()

    with pytest.raises(FrameTooLarge, match="too large"):
        encode(header, FetchResponse(responses=Topics((topic,) * 10_000)), 1000)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    frame = struct.pack(">hhi", Api.API_VERSIONS, 99, 5) + b"\xff whatever the newer version has"
    refused = parse(frame)
    assert isinstance(refused, Unsupported)
    data = b"".join(refused.pieces)
    schema = load_response_schema(Api.API_VERSIONS, 0)
    found, _ = entity_reader(schema)(data, 8)
    assert found.error_code is ErrorCode.unsupported_version
    assert {each.api_key: (each.min_version, each.max_version) for each in found.api_keys} == {
        key: (each.min_version, each.max_version) for key, each in SERVED.items()
    }
    assert {each.api_key for each in supported(SERVED).api_keys} == set(SERVED)


@pytest.mark.parametrize("version", range(4))
def test_an_api_that_is_not_served_gets_its_own_error_response(version: int) -> None:
    refused = parse(frame_of(FIND_COORDINATOR, version, sample(load_request_schema(FIND_COORDINATOR, version))), {})
    assert isinstance(refused, Unsupported)
    data = b"".join(refused.pieces)
    schema = load_response_schema(FIND_COORDINATOR, version)
    head, size = entity_reader(schema.__header_schema__)(data, 4)
    found, length = entity_reader(schema)(data, 4 + size)
    assert (head.correlation_id, found.error_code) == (77, ErrorCode.unsupported_version)
    assert 4 + size + length == len(data)


@pytest.mark.parametrize(
    ("key", "version"),
    [(CREATE_ACLS, 2), (PRODUCE, 2), (PRODUCE, 99), (999, 0), (-1, -1), (Api.FETCH, 3), (Api.FETCH, 99)],
)
def test_a_request_without_a_response_that_says_so_is_refused(key: int, version: int) -> None:
    with pytest.raises(InvalidRequest, match=r"unsupported request.*version="):
        parse(struct.pack(">hhi", key, version, 1) + b"\0" * 40)


@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes_are_a_request_or_refused(data: bytes) -> None:
    _parse_or_refuse(data)


@given(st.sampled_from(VERSIONS), st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.booleans())
def test_damaged_requests_are_read_or_refused(
    target: tuple[int, int], at: int, damage: bytes, is_truncated: bool
) -> None:
    frame = frame_of(*target, sample(load_request_schema(*target)))
    at %= len(frame)
    _parse_or_refuse(frame[:at] if is_truncated else frame[:at] + damage + frame[at + len(damage) :])


def _parse_or_refuse(data: bytes) -> None:
    try:
        parse(data)
    except InvalidRequest:
        return


@pytest.mark.parametrize("version", [1, 12])
def test_a_count_beyond_the_bytes_of_a_frame_allocates_nothing(version: int) -> None:
    head = struct.pack(">hhih", Api.METADATA, version, 1, -1)
    frame = head + (struct.pack(">i", 2**31 - 1) if version == 1 else b"\0\xff\xff\xff\xff\x07")
    _parse_or_refuse(frame)  # imports the version's classes
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="too many items"):
            parse(frame)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_more_items_than_the_limit_are_refused() -> None:
    count = ITEMS_MAX + 1
    frame = struct.pack(">hhihi", Api.METADATA, 1, 1, -1, count) + b"\0\0" * count
    with pytest.raises(InvalidRequest, match="too many items"):
        parse(frame)


@pytest.mark.parametrize("version", [9, 12])  # int16 and compact lengths
def test_a_string_has_at_most_32767_bytes_in_every_version(version: int) -> None:
    served = SERVED[Api.METADATA]
    schema = load_request_schema(Api.METADATA, version)
    assert served.min_version <= version <= served.max_version
    request = sample(schema)

    def named(length: int) -> bytes:
        (topic, *_) = request.topics
        changed = dataclasses.replace(request, topics=(dataclasses.replace(topic, name="x" * length),))
        return frame_of(Api.METADATA, version, changed)

    parse(named(TEXT_BYTES_MAX))
    with pytest.raises(InvalidRequest, match="a string is too long"):
        parse(named(TEXT_BYTES_MAX + 1))


def test_null_where_the_format_has_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="null"):
        parse(struct.pack(">hhihih", Api.METADATA, 1, 1, -1, 1, -1))


def test_bytes_after_a_request_are_ignored() -> None:
    """A Metadata request for all topics, as librdkafka 2.16 sends it."""
    received = parse(bytes.fromhex("0003000d00000003000772646b61666b610000000000010000"))
    assert isinstance(received, Received)
    assert isinstance(received.request, MetadataRequest)
    assert received.request.topics is None
