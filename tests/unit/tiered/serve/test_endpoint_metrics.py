"""The counters of a Kafka endpoint: requests, nested error codes, bytes by tier, refused connections, the text."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from fake_source import CALL, FakeSource, run
from manager_world import NOW, World

from tiered.observe.metrics import METRICS, Form, endpoint_samples, endpoint_text
from tiered.serve.connection import Limits
from tiered.serve.endpoint_metrics import EndpointMetrics, error_codes
from tiered.serve.groups.lag import SeenGroup, lag_figures
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import ApiVersionsResponse
from tiered.serve.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered.serve.server import KafkaServer


def values(metrics: EndpointMetrics) -> dict[tuple[str, ...], float]:
    """Value by name and labels; a histogram is represented by its count."""
    return {
        (each.name, *(value for _, value in each.labels)): (
            each.value if isinstance(each.value, int | float) else each.value.count
        )
        for each in endpoint_samples(metrics)
    }


def test_every_metric_of_an_endpoint_is_in_the_table_and_exported() -> None:
    metrics = EndpointMetrics()
    metrics.answered("fetch", FetchResponse(error_code=Error.INVALID_REQUEST), 0.25)
    metrics.fetched("orders", 100, is_remote=True)
    with World().open() as manager:
        manager.topics.create("orders", 1, {}, now_ms=NOW)
        snapshots = {each.partition: each for each in manager.snapshots(NOW)}
    group = SeenGroup(group="g", state="Stable", members=1, committed=dict.fromkeys(snapshots, 0))
    metrics.group_figures = lambda: lag_figures([group], snapshots)
    assert {name for name, *_ in values(metrics)} == {
        each.name for each in {each.name: each for each in METRICS}.values() if each.is_of_endpoint
    }
    for form in Form:
        text = endpoint_text(metrics, form)
        assert 'tiered_kafka_sent_bytes_total{topic="orders",tier="remote"} 100' in text
        assert 'tiered_kafka_request_duration_seconds_bucket{api="fetch",le="0.1"} 0' in text
        assert 'tiered_kafka_request_duration_seconds_bucket{api="fetch",le="0.25"} 1' in text


def test_error_codes_of_a_response_are_found_at_every_depth() -> None:
    aborted = (AbortedTransaction(producer_id=1, first_offset=0),)
    partitions = (
        PartitionData(partition_index=0, records=(b"batch",), aborted_transactions=aborted),
        PartitionData(partition_index=1, error_code=Error.OFFSET_OUT_OF_RANGE),
    )
    response = FetchResponse(
        error_code=Error.INVALID_REQUEST, responses=(FetchableTopicResponse(topic="t", partitions=partitions),)
    )
    assert [*error_codes(response)] == [Error.INVALID_REQUEST, Error.OFFSET_OUT_OF_RANGE]
    assert [*error_codes(ApiVersionsResponse(api_keys=()))] == []
    assert [*error_codes(None)] == [], "a produce request with acks=0 has no response"


def test_a_fetch_counts_the_bytes_of_each_topic_that_it_returns() -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic="orders", partitions=(partition,)), FetchTopic(topic="none", partitions=(partition,)))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)

    async def work(service: Service) -> EndpointMetrics:
        await fetch(service, request, CALL)
        return service.metrics

    sent = {key: value for key, value in values(run(FakeSource(orders=3), work)).items() if "_sent_" in key[0]}
    assert sent == {("tiered_kafka_sent_bytes_total", "orders", "local"): 300}


def test_a_server_counts_requests_connections_and_refusals() -> None:
    service = Service(source=FakeSource(orders=1))
    server = KafkaServer("127.0.0.1", 0, service, limits=Limits(connections_max=1))
    server.start()
    try:
        with socket.create_connection(server.address, 30) as client:
            client.settimeout(30)
            for version, expected in ((0, 0), (99, Error.UNSUPPORTED_VERSION)):
                frame = struct.pack(">hhih", Api.API_VERSIONS, version, 7, -1)
                client.sendall(struct.pack(">i", len(frame)) + frame)
                (length,) = struct.unpack(">i", received(client, 4))
                assert struct.unpack_from(">ih", received(client, length)) == (7, expected)
            assert values(service.metrics)["tiered_kafka_connections",] == 1
            with socket.create_connection(server.address, 30) as refused:
                refused.settimeout(30)
                with suppress(ConnectionResetError):
                    assert refused.recv(1) == b""
            found = values(service.metrics)
            assert found["tiered_kafka_connections_refused_total", "limit"] == 1
            # The count of a request follows its response and precedes the response of the next request.
            assert found["tiered_kafka_requests_total", "api_versions"] == 1
            assert found["tiered_kafka_request_errors_total", "api_versions", "UNSUPPORTED_VERSION"] == 1
    finally:
        server.close()


def received(client: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        found += client.recv(length - len(found))
    return found
