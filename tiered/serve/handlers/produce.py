"""Produce and InitProducerId.

| acks | the response is sent |
|---|---|
| 0 | never; an error closes the connection, as Kafka does |
| 1 | after the batches are written |
| -1 (all) | after they are durable: on the disk, or in the bucket with ``append.acks=remote`` |

A response that waits for durability longer than the request's `timeout_ms` has REQUEST_TIMED_OUT; the batches stay in
the log. All requests that wait for one log share its fsync.

Order of checks, as Kafka's: transactional id → topic and partition → one batch of format 2 → acks → the batch
(`tiered.serve.node.batch_validation`) → the producer (`local.log.producer_state`). A failed partition does not fail the
others.

Kafka 4 never sends UNKNOWN_PRODUCER_ID: a producer that the log does not know, for example after its expiration, may
begin with any sequence. UNSUPPORTED_FOR_MESSAGE_FORMAT cannot occur: every log takes format 2.

Source: kafka `KafkaApis.handleProduceRequest`, `ReplicaManager.appendRecords`, `DelayedProduce`,
`TransactionCoordinator.handleInitProducerId`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from local.errors import (
    ErrorCode,
    Fenced,
    InvalidRequest,
    LogError,
    NotFound,
    OutOfOrderSequence,
    ProducerFenced,
)
from local.names import TopicPartition
from tiered.serve.handlers.repeated_errors import RepeatedErrors
from tiered.serve.handlers.service import Call, Service, served_partition
from tiered.serve.handlers.transactions import init_transactional_producer
from tiered.serve.messages.base import Error
from tiered.serve.messages.produce import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchIndexAndErrorMessage,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tiered.serve.record_sink import Appended, RecordSink, RefusedBatch, check_produced
from tiered.serve.record_source import INTERNAL_TOPICS, ServedTopic
from tiered.serve.transactions.coordinator import Check, TransactionCoordinator
from tiered.serve.transactions.transaction import ProducerOf

NO_RESPONSE, WRITTEN, DURABLE = 0, 1, -1  # the values of acks
APPENDS_IN_A_ROW = 8  # in the event loop, then the other connections are served
ADDS_PARTITIONS_SINCE, _KNOWS_ABORTABLE_SINCE = 12, 11  # versions of Produce
_TRY_AGAIN = (Error.CONCURRENT_TRANSACTIONS, Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE)
# Source: kafka `ReplicaManager.appendRecordsToLocalLog`
_WITHOUT_LOG_START = frozenset(
    {
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.UNKNOWN_TOPIC_ID,
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.MESSAGE_TOO_LARGE,
        Error.RECORD_LIST_TOO_LARGE,
        Error.CORRUPT_MESSAGE,
        Error.KAFKA_STORAGE_ERROR,
    }
)
_ADMIN_CLIENT = "__admin_client"  # kafka AdminUtils: may append to internal topics
_log = logging.getLogger(__name__)
_errors = RepeatedErrors(_log, attempt="cannot append for a client")


@dataclass(slots=True)
class _Share:
    """The batch of one partition; `response` is the answer so far."""

    data: PartitionProduceData
    topic_id: UUID | None
    response: PartitionProduceResponse
    partition: TopicPartition | None = None
    producer: tuple[int, int] | None = None  # producer id and epoch of a transactional batch
    next_offset: int | None = None  # of the appended batch
    is_refused: bool = False  # by the log
    waits: bool = False  # until the batch is durable

    @property
    def records(self) -> memoryview:
        """The bytes of the batch; empty if the request has none."""
        (found,) = self.data.records or (memoryview(b""),)
        return found

    def fail(self, error: Error) -> None:
        self.response = replace(self.response, error_code=error)


async def produce(service: Service, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    assert service.sink is not None, "offered with a sink only"
    shares = [[*_shares(topic, waits=request.acks == DURABLE)] for topic in request.topic_data]
    all_shares = [each for of_topic in shares for each in of_topic]
    await _find_partitions(service, request, all_shares)
    for each in all_shares:
        _check_form(each, call)
    _check_transaction(request, all_shares)
    open_shares = [each for each in all_shares if each.response.error_code is Error.NONE]
    if request.acks not in (NO_RESPONSE, WRITTEN, DURABLE):
        for each in open_shares:
            each.fail(Error.INVALID_REQUIRED_ACKS)
    elif open_shares:
        if waiting := await _append_now(service, open_shares):
            name = request.transactional_id
            append = partial(_append_shares, service.sink, service.transactions, name, call.version, waiting)
            await asyncio.shield(service.appends.run(waiting[0].partition, object(), append))
        await _state_log_starts(service, open_shares)
    if request.acks == NO_RESPONSE:
        errors = {each.response.error_code.name for each in all_shares} - {Error.NONE.name}
        if errors:
            wrong = "a request to produce without acknowledgement failed, closing is the only answer"
            raise InvalidRequest(wrong, errors=",".join(sorted(errors)))
        return None
    if request.acks == DURABLE:
        call.proceed()  # the appends are in order
        await _wait_until_durable(service, open_shares, request.timeout_ms)
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(each.response for each in of_topic),
            )
            for topic, of_topic in zip(request.topic_data, shares, strict=True)
        )
    )


async def init_producer_id(service: Service, request: InitProducerIdRequest, call: Call) -> InitProducerIdResponse:
    """A new id for an idempotent producer. The transaction coordinator answers for a transactional id."""
    assert service.sink is not None, "offered with a sink only"
    if (request.producer_id == NO_PRODUCER_ID) is not (request.producer_epoch == NO_PRODUCER_EPOCH):
        return InitProducerIdResponse(error_code=Error.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await init_transactional_producer(service, request, call)
    try:
        new_id = await asyncio.shield(service.appends.run("producer ids", object(), service.sink.new_producer_id))
    except Exception as error:  # noqa: BLE001 - one client's error
        return InitProducerIdResponse(error_code=append_error(error, "producer ids"))
    return InitProducerIdResponse(producer_id=new_id, producer_epoch=0)


def _durable(service: Service, share: _Share) -> asyncio.Future[None]:
    """Done when the records of an appended share are durable, as its topic asks. Its exception is a LogError.

    Records of a transaction wait for the disk only: the bucket gets them after the end of their transaction, which the
    producer requests after their acknowledgement.
    """
    partition, next_offset = share.partition, share.next_offset
    assert service.sink is not None and partition is not None and next_offset is not None, "appended by it"  # noqa: PT018
    try:
        waits_for_bucket = share.producer is None and service.sink.is_acked_by_bucket(partition)
    except LogError as error:  # its disk failed, or the topic was deleted
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed
    on_disk = service.group_flush.wait(partition, next_offset, service.sink.flush)
    if not waits_for_bucket:
        return on_disk
    return asyncio.ensure_future(_wait_for_both(service.sink, partition, next_offset, on_disk))


async def _wait_for_both(
    sink: RecordSink, partition: TopicPartition, next_offset: int, on_disk: asyncio.Future[None]
) -> None:
    await on_disk
    await _wait_for_bucket(sink, partition, next_offset)


async def _wait_for_bucket(sink: RecordSink, partition: TopicPartition, next_offset: int) -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if held.done():
            return  # the request timed out
        if error is None:
            held.set_result(None)
        else:
            held.set_exception(error)

    def notify(error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settle, error)

    cancel = sink.when_in_bucket(partition, next_offset, notify)
    try:
        await held
    finally:
        cancel()


def append_error(error: BaseException, where: object) -> Error:
    """Kafka's code for an error of a sink. Logs errors that are not the client's."""
    match error:
        case RefusedBatch():
            return error.error
        case OutOfOrderSequence():
            return Error.OUT_OF_ORDER_SEQUENCE_NUMBER
        case ProducerFenced():
            return Error.INVALID_PRODUCER_EPOCH
        case InvalidRequest() if error.code is ErrorCode.TRANSACTION_OPEN:
            return Error.INVALID_TXN_STATE
        case NotFound():
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        case Fenced():
            _errors.warn(where, error)
            return Error.NOT_LEADER_OR_FOLLOWER
        case LogError():
            _errors.warn(where, error)
            return Error.KAFKA_STORAGE_ERROR
        case Exception():
            _log.error("cannot append for a client: partition=%s", where, exc_info=error)
            return Error.UNKNOWN_SERVER_ERROR
        case _:
            raise error


def _shares(topic: TopicProduceData, *, waits: bool) -> Iterator[_Share]:
    for data in topic.partition_data:
        yield _Share(data, topic.topic_id, PartitionProduceResponse(index=data.index), waits=waits)


async def _find_partitions(service: Service, request: ProduceRequest, shares: Sequence[_Share]) -> None:
    """Set the partition or the error of each share. Known topics need no new list of all topics."""
    if service.known_topics is None or not _named_in(service.known_topics, service.names_by_id, request, shares):
        try:
            topics = await service.topics()
        except LogError as error:
            code = append_error(error, "all")
            for each in shares:
                each.fail(code)
            return
        _named_in(topics, service.names_by_id, request, shares)


def _named_in(
    topics: Mapping[str, ServedTopic], names: Mapping[UUID, str], request: ProduceRequest, shares: Sequence[_Share]
) -> bool:
    """Set the partitions that `topics` has, and the errors of the others; return whether all are there."""
    waiting = iter(shares)
    is_whole = True
    for topic in request.topic_data:
        name = topic.name if topic.topic_id is None else names.get(topic.topic_id)
        missing = Error.UNKNOWN_TOPIC_ID if name is None else Error.UNKNOWN_TOPIC_OR_PARTITION
        for _ in topic.partition_data:
            share = next(waiting)
            share.partition = served_partition(topics, name, share.data.index)
            share.fail(Error.NONE if share.partition is not None else missing)
            is_whole &= share.partition is not None
    return is_whole


def _check_form(share: _Share, call: Call) -> None:
    if share.partition is None:
        return
    try:
        header = check_produced(share.records, call.version)
    except RefusedBatch as error:
        share.response = replace(share.response, error_code=error.error, error_message=error.message)
    else:
        share.producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        if share.partition.topic in INTERNAL_TOPICS and call.client_id != _ADMIN_CLIENT:
            share.fail(Error.INVALID_TOPIC_EXCEPTION)


def _check_transaction(request: ProduceRequest, shares: Sequence[_Share]) -> None:
    """Refuse transactional batches without a transactional id or of several producers.

    Source: kafka `KafkaApis.handleProduceRequest`, `ReplicaManager.handleProduceAppend`.
    """
    producers = {each.producer for each in shares if each.producer is not None}
    if producers and request.transactional_id is None:
        for each in shares:
            each.fail(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif len(producers) > 1:
        for each in shares:
            each.fail(Error.INVALID_PRODUCER_ID_MAPPING)


def _append_shares(
    sink: RecordSink, transactions: TransactionCoordinator | None, name: str | None, version: int, shares: list[_Share]
) -> None:
    """Append in the order of the request, transactional batches as the coordinator admits them. Runs in a pool."""
    transactional = [each for each in shares if each.producer is not None and each.partition is not None]
    if not transactional:
        return _append_all(sink, shares)
    if transactions is None:
        for each in transactional:
            each.fail(Error.INVALID_TXN_STATE)
        return _append_all(sink, [each for each in shares if each.producer is None])
    (producer_id, epoch), *_ = (each.producer for each in transactional if each.producer is not None)
    producer = ProducerOf(transactional_id=name or "", producer_id=producer_id, producer_epoch=epoch)
    partitions = [each.partition for each in transactional if each.partition is not None]
    with transactions.appending(producer, partitions, _check_of(version)) as verdicts:
        for each in transactional:
            if each.partition is not None:
                each.response = _admitted(each, verdicts[each.partition], version)
        return _append_all(sink, [each for each in shares if each.response.error_code is Error.NONE])


def _check_of(version: int) -> Check:
    if version >= ADDS_PARTITIONS_SINCE:
        return Check.ADD
    return Check.VERIFY_ABORTABLE if version >= _KNOWS_ABORTABLE_SINCE else Check.VERIFY


def _admitted(share: _Share, verdict: Error, version: int) -> PartitionProduceResponse:
    """The verdict, or an error after which every client repeats. Source: kafka `ReplicaManager.handleProduceAppend`."""
    message = "Partition was not added to the transaction" if verdict is Error.INVALID_TXN_STATE else None
    is_known = verdict is Error.CONCURRENT_TRANSACTIONS and version >= ADDS_PARTITIONS_SINCE
    if verdict in _TRY_AGAIN and not is_known:
        message = f"Unable to verify the partition has been added to the transaction: {verdict.name}"
        verdict = Error.NOT_ENOUGH_REPLICAS
    return replace(share.response, error_code=verdict, error_message=message)


async def _append_now(service: Service, shares: list[_Share]) -> list[_Share]:
    """Append what needs no wait. Returns the shares from the first one on that may need one: the order stays."""
    if service.prompt_sink is None or any(each.producer is not None for each in shares):
        return shares
    for at, each in enumerate(shares):
        if not _appended(each, partial(service.prompt_sink.append_now, waits=each.waits)):
            return shares[at:]
        if at % APPENDS_IN_A_ROW == APPENDS_IN_A_ROW - 1:
            await asyncio.sleep(0)
    return []


def _append_all(sink: RecordSink, shares: Sequence[_Share]) -> None:
    """Append in the order of the request, in the thread of a pool."""
    for each in shares:
        _appended(each, partial(_append_checked, sink, waits=each.waits))


def _append_checked(
    sink: RecordSink, partition: TopicPartition, records: memoryview, *, topic_id: UUID | None, waits: bool
) -> Appended:
    if waits:
        sink.check_acks(partition)
    return sink.append(partition, records, topic_id=topic_id)


def _appended(share: _Share, append: Callable[..., Appended | None]) -> bool:
    """Append a share and set its response. False: `append` left it to another one."""
    assert share.partition is not None, "checked before"
    try:
        found = append(share.partition, share.records, topic_id=share.topic_id)
    except Exception as error:  # noqa: BLE001 - one partition must not fail the others
        share.is_refused = True
        share.response = _refused(share, error)
        return True
    if found is None:
        return False
    share.next_offset = found.next_offset
    share.response = _accepted(share, found)
    return True


def _accepted(share: _Share, found: Appended) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=share.data.index,
        base_offset=found.base_offset,
        log_append_time=found.log_append_time_ms,
        log_start_offset=found.log_start_offset,
    )


def _refused(share: _Share, error: Exception) -> PartitionProduceResponse:
    code = append_error(error, share.partition)
    if isinstance(error, NotFound) and share.topic_id is not None:
        code = Error.UNKNOWN_TOPIC_ID
    records = error.records if isinstance(error, RefusedBatch) else ()
    return PartitionProduceResponse(
        index=share.data.index,
        error_code=code,
        record_errors=tuple(
            BatchIndexAndErrorMessage(batch_index=each.position, batch_index_error_message=each.message)
            for each in records
        ),
        error_message=error.message if isinstance(error, RefusedBatch) else None,
    )


async def _state_log_starts(service: Service, shares: Sequence[_Share]) -> None:
    """Add the log start offset to the errors with which Kafka states it."""
    for each in shares:
        if each.is_refused and each.partition is not None and each.response.error_code not in _WITHOUT_LOG_START:
            find = partial(service.source.bounds, each.partition)
            with suppress(LogError):
                bounds = await service.call(each.partition, ("bounds", each.partition), find)
                each.response = replace(each.response, log_start_offset=bounds.log_start_offset)


async def _wait_until_durable(service: Service, shares: Sequence[_Share], timeout_ms: int) -> None:
    waiting = {_durable(service, each): each for each in shares if each.next_offset is not None}
    if not waiting:
        return
    try:
        await asyncio.wait(waiting, timeout=max(timeout_ms, 0) / 1000)
        for wait, share in waiting.items():
            if not wait.done():
                share.fail(Error.REQUEST_TIMED_OUT)
            elif (error := wait.exception()) is not None:
                share.response = _refused(share, error)  # type: ignore[arg-type]  # a LogError or another Exception
    finally:
        for wait in waiting:
            wait.cancel()
