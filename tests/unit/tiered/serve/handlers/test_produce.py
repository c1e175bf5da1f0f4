"""Produce and InitProducerId: acks, shared flushes, time limits, errors and their order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest
from fake_sink import FakeSink
from fake_source import CALL, IDS, ORDERS, SLOW, FakeSource
from fake_transactions import DISK_FULL, ID, World

from local.errors import (
    DiskFailed,
    Diverged,
    ErrorCode,
    Fenced,
    InvalidRequest,
    NotFound,
    OutOfOrderSequence,
    ProducerFenced,
    Unavailable,
)
from local.format.batch_header import read_header, seal
from local.format.compression import Codec
from local.format.record import Record
from local.names import TopicPartition
from local.records.batch import encode_batch, encode_marker
from tiered.serve.handlers.produce import init_producer_id, produce
from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.produce import (
    BatchIndexAndErrorMessage,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tiered.serve.record_sink import Appended, RecordError, RefusedBatch
from tiered.serve.transactions.transaction import Transaction

T = TypeVar("T")
BY_NAME = replace(CALL, version=12)
BY_ID = replace(CALL, version=13)
ONE = encode_batch([Record(b"k", b"v", 1)])
TWO = encode_batch([Record(b"k", b"v", 1)] * 2)


def run(sink: FakeSink, work: Callable[[Service], Coroutine[object, object, T]], source: FakeSource | None = None) -> T:
    service = Service(source=source or FakeSource(orders=0, slow=0), sink=sink)
    try:
        return asyncio.run(work(service))
    finally:
        for gate in (*sink.gates.values(), *sink.append_gates.values()):
            gate.set()
        service.close()


def request(
    *batches: tuple[str, bytes | None], acks: int = -1, timeout_ms: int = 60_000, transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            TopicProduceData(
                name=name,
                partition_data=(
                    PartitionProduceData(index=0, records=None if batch is None else (memoryview(bytearray(batch)),)),
                ),
            )
            for name, batch in batches
        ),
    )


async def answers(service: Service, asked: ProduceRequest, call: Call = BY_NAME) -> Sequence[PartitionProduceResponse]:
    response = await produce(service, asked, call)
    assert response is not None
    return [each for topic in response.responses for each in topic.partition_responses]


def errors(sink: FakeSink, asked: ProduceRequest, call: Call = BY_NAME) -> list[Error]:
    return [each.error_code for each in run(sink, lambda service: answers(service, asked, call))]


@pytest.mark.parametrize(("acks", "durable"), [(-1, 2), (1, None)])
def test_acks_decides_whether_the_response_waits_for_the_disk(acks: int, durable: int | None) -> None:
    sink = FakeSink()
    sink.ends[ORDERS] = 5
    (found,) = run(sink, lambda service: answers(service, request(("orders", TWO), acks=acks)))
    assert (found.error_code, found.base_offset, found.log_append_time, found.log_start_offset) == (0, 5, -1, 0)
    assert sink.durable.get(ORDERS) == (None if durable is None else 7)


def test_without_acknowledgement_there_is_no_response_and_an_error_ends_the_connection() -> None:
    sink = FakeSink()
    assert run(sink, lambda service: produce(service, request(("orders", ONE), acks=0), BY_NAME)) is None
    assert sink.appends == [(ORDERS, 0)]
    with pytest.raises(InvalidRequest, match="errors=UNKNOWN_TOPIC_OR_PARTITION"):
        run(sink, lambda service: produce(service, request(("orders", ONE), ("nope", ONE), acks=0), BY_NAME))
    assert sink.appends == [(ORDERS, 0), (ORDERS, 1)], "the other partition has its batch"


def test_requests_during_a_flush_share_the_next_one() -> None:
    sink = FakeSink()
    sink.gates[ORDERS] = threading.Event()

    async def work(service: Service) -> Sequence[Sequence[PartitionProduceResponse]]:
        first = asyncio.ensure_future(answers(service, request(("orders", ONE))))
        await asyncio.to_thread(sink.has_flush.wait, 60)
        others = [asyncio.ensure_future(answers(service, request(("orders", ONE)))) for _ in range(50)]
        while len(sink.appends) < 51:
            await asyncio.sleep(0)
        sink.gates[ORDERS].set()
        return await asyncio.gather(first, *others)

    found = run(sink, work)
    assert {each.error_code for (each,) in found} == {Error.NONE}
    assert sorted(each.base_offset for (each,) in found) == list(range(51))
    assert 2 <= len(sink.flushes) <= 3
    assert sink.durable[ORDERS] == 51


def test_a_flush_above_the_time_limit_is_an_error_and_the_records_stay() -> None:
    sink = FakeSink()
    sink.gates[SLOW] = threading.Event()
    asked = request(("slow", ONE), ("orders", ONE), timeout_ms=50)
    found = run(sink, lambda service: answers(service, asked))
    assert [(each.error_code, each.base_offset) for each in found] == [(Error.REQUEST_TIMED_OUT, 0), (Error.NONE, 0)]
    assert sink.ends == {ORDERS: 1, SLOW: 1}


def test_a_failed_flush_and_a_truncated_log_are_storage_errors() -> None:
    sink = FakeSink()
    sink.flush_errors[ORDERS] = DiskFailed("fsync")
    assert errors(sink, request(("orders", ONE))) == [Error.KAFKA_STORAGE_ERROR]
    sink = FakeSink()
    sink.flush = lambda partition: 0  # type: ignore[method-assign]
    assert errors(sink, request(("orders", ONE))) == [Error.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutOfOrderSequence("x"), Error.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (ProducerFenced("x"), Error.INVALID_PRODUCER_EPOCH),
        (InvalidRequest("x").with_code(ErrorCode.TRANSACTION_OPEN), Error.INVALID_TXN_STATE),
        (NotFound("x"), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (Fenced("x"), Error.NOT_LEADER_OR_FOLLOWER),
        (Diverged("x"), Error.KAFKA_STORAGE_ERROR),
        (Unavailable("x"), Error.KAFKA_STORAGE_ERROR),
        (DiskFailed("x", cause="enospc"), Error.KAFKA_STORAGE_ERROR),
        (ZeroDivisionError(), Error.UNKNOWN_SERVER_ERROR),
        (RefusedBatch("x", error=Error.MESSAGE_TOO_LARGE), Error.MESSAGE_TOO_LARGE),
    ],
)
def test_an_error_of_one_partition_has_its_code_and_fails_no_other(error: Exception, code: Error) -> None:
    sink = FakeSink()
    sink.errors[SLOW] = error
    assert errors(sink, request(("slow", ONE), ("orders", ONE))) == [code, Error.NONE]


def test_refused_records_are_listed() -> None:
    sink = FakeSink()
    refused = [RecordError(3, "too old"), RecordError(5, "too new")]
    sink.errors[ORDERS] = RefusedBatch("x", error=Error.INVALID_TIMESTAMP, records=refused, message="told")
    (found,) = run(sink, lambda service: answers(service, request(("orders", ONE))))
    assert found.error_message == "told"
    assert found.record_errors == (
        BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="too old"),
        BatchIndexAndErrorMessage(batch_index=5, batch_index_error_message="too new"),
    )


def _with(data: bytes, **fields: int) -> bytes:
    header = read_header(data)
    assert header is not None
    return seal(header._replace(**fields), data[61:])


ZSTD = encode_batch([Record(b"k", b"v", 1)], codec=Codec.ZSTD)


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (None, 12, Error.INVALID_RECORD),
        (b"", 12, Error.INVALID_RECORD),
        (ONE[:40], 12, Error.INVALID_RECORD),
        (ONE + ONE, 12, Error.INVALID_RECORD),
        (ONE + ONE[:30], 12, Error.NONE),
        (ONE[:16] + b"\1" + ONE[17:], 12, Error.INVALID_RECORD),
        (ONE[:16] + b"\3" + ONE[17:], 12, Error.CORRUPT_MESSAGE),
        (ONE[:8] + bytes(4) + ONE[12:], 12, Error.CORRUPT_MESSAGE),
        (ONE[:8] + b"\0\0\0\x14" + ONE[12:], 12, Error.CORRUPT_MESSAGE),
        (ZSTD, 6, Error.UNSUPPORTED_COMPRESSION_TYPE),
        (ZSTD, 7, Error.NONE),
    ],
)
def test_a_partition_has_exactly_one_batch_of_format_2(records: bytes | None, version: int, code: Error) -> None:
    assert errors(FakeSink(), request(("orders", records)), replace(CALL, version=version)) == [code]


def test_unknown_acks_are_refused_after_the_checks_of_the_request() -> None:
    sink = FakeSink()
    asked = request(("nope", ONE), ("orders", None), ("slow", ONE), acks=2)
    expected = [Error.UNKNOWN_TOPIC_OR_PARTITION, Error.INVALID_RECORD, Error.INVALID_REQUIRED_ACKS]
    assert errors(sink, asked) == expected
    assert sink.appends == []


def test_topics_are_named_by_id_in_new_versions() -> None:
    def by_id(topic_id: UUID) -> ProduceRequest:
        asked = request(("", ONE))
        return replace(asked, topic_data=(replace(asked.topic_data[0], name=None, topic_id=topic_id),))

    sink = FakeSink()
    assert errors(sink, by_id(IDS["orders"]), BY_ID) == [Error.NONE]
    assert errors(sink, by_id(UUID(int=99)), BY_ID) == [Error.UNKNOWN_TOPIC_ID]
    sink.errors[ORDERS] = NotFound("another topic has this name now")
    assert errors(sink, by_id(IDS["orders"]), BY_ID) == [Error.UNKNOWN_TOPIC_ID]


def test_a_new_topic_is_found_although_the_known_topics_lack_it() -> None:
    source = FakeSource(orders=0)

    async def work(service: Service) -> list[Error]:
        before = await answers(service, request(("slow", ONE)))
        source.counts[SLOW] = 0
        return [each.error_code for each in (*before, *await answers(service, request(("slow", ONE))))]

    assert run(FakeSink(), work, source) == [Error.UNKNOWN_TOPIC_OR_PARTITION, Error.NONE]


def test_known_topics_are_not_listed_again() -> None:
    source = FakeSource(orders=0)

    async def work(service: Service) -> None:
        await answers(service, request(("orders", ONE)))
        source.topics_error = Unavailable("a listing")
        (found,) = await answers(service, request(("orders", ONE)))
        assert found.error_code is Error.NONE
        (missing,) = await answers(service, request(("nope", ONE)))
        assert missing.error_code is Error.KAFKA_STORAGE_ERROR

    run(FakeSink(), work, source)


def test_clients_cannot_write_to_the_topics_of_the_coordinators() -> None:
    source = FakeSource(__consumer_offsets=0)
    sink = FakeSink()
    asked = request(("__consumer_offsets", ONE))
    (found,) = run(sink, lambda service: answers(service, asked), source)
    assert found.error_code is Error.INVALID_TOPIC_EXCEPTION
    admin = replace(BY_NAME, client_id="__admin_client")
    (found,) = run(sink, lambda service: answers(service, asked, admin), source)
    assert found.error_code is Error.NONE


def test_transactional_batches_are_refused_without_a_coordinator() -> None:
    batch = encode_batch(
        [Record(b"k", b"v", 1)], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    sink = FakeSink()
    asked = request(("orders", ONE), ("slow", batch))
    assert errors(sink, asked) == [Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    asked = replace(asked, transactional_id="mine")
    assert errors(sink, asked) == [Error.NONE, Error.INVALID_TXN_STATE]
    marker = encode_marker(base_offset=0, is_commit=True, timestamp_ms=1, producer_id=1, producer_epoch=0)
    assert errors(sink, request(("orders", marker))) == [Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


def transactional(epoch: int = 0, *, producer_id: int = 1001) -> bytes:
    return encode_batch(
        [Record(b"k", b"v", 1)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        is_transactional=True,
    )


def admitted(world: World, asked: ProduceRequest, version: int) -> list[PartitionProduceResponse]:
    async def work(service: Service) -> list[PartitionProduceResponse]:
        service.transactions = world.coordinator
        return [*await answers(service, asked, replace(CALL, version=version))]

    return run(FakeSink(), work)


@pytest.mark.parametrize(
    ("version", "error"), [(10, Error.INVALID_TXN_STATE), (11, Error.TRANSACTION_ABORTABLE), (12, Error.NONE)]
)
def test_the_coordinator_admits_transactional_batches(version: int, error: Error) -> None:
    world = World()
    asked = request(("slow", ONE), ("orders", transactional()), transactional_id=world.producer().transactional_id)
    plain, found = admitted(world, asked, version)
    assert (plain.error_code, found.error_code) == (Error.NONE, error)
    assert (found.error_message is not None) is (error is Error.INVALID_TXN_STATE)
    described = world.coordinator.describe(ID)
    assert isinstance(described, Transaction)
    assert described.partitions == (frozenset((ORDERS,)) if version == 12 else frozenset())


@pytest.mark.parametrize(("version", "error"), [(11, Error.NOT_ENOUGH_REPLICAS), (12, Error.CONCURRENT_TRANSACTIONS)])
def test_a_batch_during_the_end_of_its_transaction_is_sent_again(version: int, error: Error) -> None:
    world = World()
    producer = world.producer()
    world.coordinator.add_partitions(producer, [ORDERS])
    world.log.failures[ORDERS] = DISK_FULL  # the marker is missing
    assert world.coordinator.end(producer, commit=True).error is Error.NONE
    (found,) = admitted(world, request(("orders", transactional()), transactional_id=ID), version)
    assert found.error_code is error


def test_transactional_records_do_not_wait_for_the_bucket() -> None:
    """A segment is copied after the end of its transactions, and the client ends them after the acknowledgement."""
    world, sink = World(), FakeSink()
    sink.bucket[ORDERS] = []
    asked = request(("orders", transactional()), transactional_id=world.producer().transactional_id)

    async def work(service: Service) -> Sequence[PartitionProduceResponse]:
        service.transactions = world.coordinator
        return await answers(service, asked)

    (found,) = run(sink, work)
    assert (found.error_code, sink.durable[ORDERS]) == (Error.NONE, 1)


def test_an_older_epoch_and_two_producers_in_one_request_are_refused() -> None:
    world = World()
    world.producer()
    world.producer()
    (found,) = admitted(world, request(("orders", transactional()), transactional_id=ID), 12)
    assert found.error_code is Error.INVALID_PRODUCER_EPOCH
    two = request(("orders", transactional()), ("slow", transactional(producer_id=5)), transactional_id=ID)
    assert [each.error_code for each in admitted(world, two, 12)] == [Error.INVALID_PRODUCER_ID_MAPPING] * 2


def test_the_coordinator_answers_for_a_transactional_id() -> None:
    world = World()

    def asked(version: int = 5, **more: object) -> tuple[Error, int, int]:
        async def work(service: Service) -> InitProducerIdResponse:
            service.transactions = world.coordinator
            sent = InitProducerIdRequest(**{"transactional_id": ID, "transaction_timeout_ms": 1000, **more})
            return await init_producer_id(service, sent, replace(CALL, version=version))

        found = run(FakeSink(), work)
        return found.error_code, found.producer_id, found.producer_epoch

    assert asked() == (Error.NONE, 1001, 0)
    assert asked(producer_id=1001, producer_epoch=0) == (Error.NONE, 1001, 1)
    assert asked(producer_id=1001, producer_epoch=7) == (Error.PRODUCER_FENCED, -1, -1)
    assert asked(3, producer_id=1001, producer_epoch=7) == (Error.INVALID_PRODUCER_EPOCH, -1, -1)
    assert asked(transactional_id="") == (Error.INVALID_REQUEST, -1, -1)
    assert asked(transaction_timeout_ms=0) == (Error.INVALID_TRANSACTION_TIMEOUT, -1, -1)
    assert asked(6, enable2_pc=True) == (Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
    assert asked(6, keep_prepared_txn=True) == (Error.UNSUPPORTED_VERSION, -1, -1)


def test_an_idempotent_producer_gets_a_new_id_with_epoch_0() -> None:
    async def work(service: Service) -> list[InitProducerIdResponse]:
        return [await init_producer_id(service, InitProducerIdRequest(), CALL) for _ in range(2)]

    found = run(FakeSink(), work)
    assert [(each.error_code, each.producer_id, each.producer_epoch) for each in found] == [(0, 0, 0), (0, 1, 0)]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (InitProducerIdRequest(producer_id=5), Error.INVALID_REQUEST),
        (InitProducerIdRequest(producer_epoch=5), Error.INVALID_REQUEST),
        (InitProducerIdRequest(producer_id=5, producer_epoch=5), Error.NONE),
        (InitProducerIdRequest(transactional_id="mine"), Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_an_impossible_request_for_an_id_is_refused(asked: InitProducerIdRequest, code: Error) -> None:
    assert run(FakeSink(), lambda service: init_producer_id(service, asked, CALL)).error_code is code


def test_a_topic_acknowledged_by_the_bucket_waits_for_it_after_the_disk() -> None:
    sink = FakeSink()
    sink.bucket[ORDERS] = []

    async def work(service: Service) -> Sequence[PartitionProduceResponse]:
        waiting = asyncio.ensure_future(answers(service, request(("orders", TWO))))
        await asyncio.to_thread(sink.has_bucket_wait.wait, 60)
        assert sink.durable[ORDERS] == 2
        ((next_offset, notify),) = sink.bucket[ORDERS]
        assert (next_offset, waiting.done()) == (2, False)
        await asyncio.to_thread(notify, None)
        return await waiting

    (found,) = run(sink, work)
    assert (found.error_code, found.base_offset) == (Error.NONE, 0)


def test_errors_of_the_bucket_before_and_after_the_append() -> None:
    sink = FakeSink()
    sink.bucket[ORDERS] = []
    sink.acks_errors[SLOW] = RefusedBatch("paused", error=Error.NOT_ENOUGH_REPLICAS)
    late = RefusedBatch("fenced", error=Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def refuse(partition: TopicPartition, next_offset: int, notify: Callable[[Exception], None]) -> Callable[[], None]:
        notify(late)
        return lambda: None

    sink.when_in_bucket = refuse  # type: ignore[method-assign, assignment]
    found = errors(sink, request(("orders", ONE), ("slow", ONE)))
    assert found == [Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Error.NOT_ENOUGH_REPLICAS]
    assert sink.appends == [(ORDERS, 0)]
    assert errors(sink, request(("slow", ONE), acks=1)) == [Error.NONE], "without acks=all the bucket is not asked"


def test_an_acknowledgement_of_the_bucket_after_the_time_limit_changes_nothing() -> None:
    sink = FakeSink()
    sink.bucket[ORDERS] = []

    async def work(service: Service) -> Error:
        (found,) = await answers(service, request(("orders", ONE), timeout_ms=20))
        await asyncio.sleep(0)
        assert sink.cancelled == [ORDERS]
        sink.bucket[ORDERS][0][1](None)
        await asyncio.sleep(0)
        return found.error_code

    assert run(sink, work) is Error.REQUEST_TIMED_OUT


class FakePromptSink:
    """Appends to a `FakeSink` at once, but to the partitions of `slow`."""

    def __init__(self, sink: FakeSink, *slow: TopicPartition) -> None:
        self.sink, self.slow = sink, slow
        self.appended: list[TopicPartition] = []

    def append_now(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, waits: bool = False
    ) -> Appended | None:
        if partition in self.slow:
            return None
        found = self.sink.append(partition, batches, topic_id=topic_id)
        self.appended.append(partition)
        return found


def test_appends_that_need_no_wait_are_done_in_the_event_loop() -> None:
    sink = FakeSink()
    prompt = FakePromptSink(sink)

    async def work(service: Service) -> Sequence[PartitionProduceResponse]:
        service.prompt_sink = prompt
        return await answers(service, request(("orders", ONE), ("slow", TWO)))

    found = run(sink, work)
    assert [(each.error_code, each.base_offset) for each in found] == [(Error.NONE, 0)] * 2
    assert prompt.appended == [ORDERS, SLOW]
    assert sink.durable == {ORDERS: 1, SLOW: 2}


def test_an_append_that_has_to_wait_and_those_after_it_keep_their_order() -> None:
    sink = FakeSink()
    prompt = FakePromptSink(sink, SLOW)
    sink.errors[ORDERS] = OutOfOrderSequence("x")

    async def work(service: Service) -> list[Error]:
        service.prompt_sink = prompt
        asked = request(("orders", ONE), ("slow", ONE), ("orders", ONE), ("slow", ONE))
        return [each.error_code for each in await answers(service, asked)]

    refused = Error.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert run(sink, work) == [refused, Error.NONE, refused, Error.NONE]
    assert (prompt.appended, sink.appends) == ([], [(SLOW, 0), (SLOW, 1)])


def test_a_partition_that_is_offline_after_its_append_fails_no_other() -> None:
    sink = FakeSink()

    def is_acked_by_bucket(partition: TopicPartition) -> bool:
        if partition == SLOW:
            raise DiskFailed("offline")
        return False

    sink.is_acked_by_bucket = is_acked_by_bucket  # type: ignore[method-assign]
    found = errors(sink, request(("slow", ONE), ("orders", ONE)))
    assert found == [Error.KAFKA_STORAGE_ERROR, Error.NONE]
