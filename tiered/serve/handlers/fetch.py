"""Fetch: reads of several partitions, with Kafka's limits and its long poll.

| limit | meaning |
|---|---|
| `partition_max_bytes` | of one partition; its first batch may be larger |
| `max_bytes`, `Load` | of the response; the first batch in it may be larger (KIP-74) |
| `min_bytes`, `max_wait_ms` | the response waits until it has as many bytes, an error, or the time is over |
| READ_WAIT_S | with a shorter `max_wait_ms` the response waits this long for its reads |

A read that is late does not delay the response: it continues, and the next fetch at the same offset joins it.

There are no fetch sessions: every response has the session id 0, as Kafka's has if all its session slots are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from local.errors import LogError, NotFound
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.serve.handlers.offsets import isolation_of
from tiered.serve.handlers.service import READ_WAIT_S, Call, Service, epoch_error, error_of, served_partition
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered.serve.record_source import Bounds, ReadBatches, ServedTopic

WAIT_S_MAX = 60.0
READS_AT_ONCE = 8  # of one request
_FINAL_EPOCH, _FIRST_EPOCH = -1, 0


@dataclass(slots=True)
class _Wanted:
    """One requested partition. `partition` is None if it is not served; `error` is the answer so far."""

    requested: FetchPartition
    partition: TopicPartition | None
    error: Error = Error.NONE
    found: ReadBatches | None = None


async def fetch(service: Service, request: FetchRequest, call: Call) -> FetchResponse:
    if request.session_id != 0 or request.session_epoch not in (_FINAL_EPOCH, _FIRST_EPOCH):
        return FetchResponse(error_code=Error.FETCH_SESSION_ID_NOT_FOUND)
    try:
        topics, names, failure = await service.topics(), service.names_by_id, None
    except LogError as error:
        error_of(error, "all")
        topics, names, failure = {}, {}, Error.KAFKA_STORAGE_ERROR
    wanted = [[*_wanted(topics, names, failure, topic)] for topic in request.topics]
    await _read_until_enough(service, request, [each for of_topic in wanted for each in of_topic])
    is_committed = isolation_of(request.isolation_level) is Isolation.READ_COMMITTED
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=tuple(_answer(service, each, is_committed=is_committed) for each in of_topic),
        )
        for topic, of_topic in zip(request.topics, wanted, strict=True)
    ]
    return FetchResponse(responses=tuple(responses))


def _wanted(
    topics: Mapping[str, ServedTopic], names: Mapping[UUID, str], failure: Error | None, topic: FetchTopic
) -> Iterator[_Wanted]:
    name, missing = topic.topic, failure or Error.UNKNOWN_TOPIC_OR_PARTITION
    if topic.topic is None:
        name = None if topic.topic_id is None else names.get(topic.topic_id)
        missing = missing if failure or name is not None else Error.UNKNOWN_TOPIC_ID
    for requested in topic.partitions:
        partition = served_partition(topics, name, requested.partition)
        yield _Wanted(requested, partition, Error.NONE if partition is not None else missing)


async def _read_until_enough(service: Service, request: FetchRequest, wanted: list[_Wanted]) -> None:
    """Read all partitions, again after news of one, until there is enough to answer."""
    loop = asyncio.get_running_loop()
    wait_s = min(max(request.max_wait_ms, 0) / 1000, WAIT_S_MAX)
    deadline_s = loop.time() + wait_s
    readable = [each for each in wanted if each.partition is not None]
    news = asyncio.Event()
    with ExitStack() as stack:
        if wait_s and readable:
            # Before the first read: news between a read and the wait are not lost.
            names = {each.partition for each in readable if each.partition is not None}
            stack.enter_context(service.source.watch(names, partial(_notify, loop, news)))
        while True:
            news.clear()
            await _read_all(service, request, readable, max(deadline_s, loop.time() + READ_WAIT_S))
            size_bytes = sum(each.found.size_bytes for each in readable if each.found is not None)
            remaining_s = deadline_s - loop.time()
            is_enough = size_bytes >= request.min_bytes or any(each.error is not Error.NONE for each in wanted)
            if is_enough or remaining_s <= 0 or not readable:
                return
            try:
                await asyncio.wait_for(news.wait(), remaining_s)
            except TimeoutError:
                return


def _notify(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop was closed
        loop.call_soon_threadsafe(news.set)


async def _read_all(service: Service, request: FetchRequest, readable: list[_Wanted], deadline_s: float) -> None:
    """Read in the order of the request, several at once, within the bytes of the response.

    A read reserves its limit, and returns the rest when it ends. Reads that are late at `deadline_s` are left running.
    """
    loop, isolation = asyncio.get_running_loop(), isolation_of(request.isolation_level)
    remaining = bytes_max = max(1, min(request.max_bytes, service.load.response_bytes_max))
    waiting = iter(readable)
    pending: dict[asyncio.Future[ReadBatches], tuple[list[_Wanted], int]] = {}
    for partition in readable:
        partition.found = None
    while True:
        while remaining > 0 and len(pending) < READS_AT_ONCE and (each := next(waiting, None)) is not None:
            limit = max(1, min(each.requested.partition_max_bytes, remaining))
            read = _started(service, each, isolation, limit)
            same = pending.setdefault(read, ([], limit))
            same[0].append(each)
            remaining -= limit if len(same[0]) == 1 else 0
        if not pending:
            break
        done = await _some_done(pending, max(0.0, deadline_s - loop.time()))
        if not done:
            break
        for read in done:
            partitions, limit = pending.pop(read)
            for partition in partitions:
                _take(service, partition, read)
            remaining += limit - (partitions[0].found.size_bytes if partitions[0].found is not None else 0)
    _cut(readable, bytes_max)


async def _some_done(
    pending: Collection[asyncio.Future[ReadBatches]], timeout_s: float
) -> set[asyncio.Future[ReadBatches]]:
    done, _ = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done


def _started(service: Service, each: _Wanted, isolation: Isolation, limit: int) -> asyncio.Future[ReadBatches]:
    partition, offset = each.partition, each.requested.fetch_offset
    assert partition is not None, "only served partitions are read"
    read = partial(service.source.read, partition, offset, isolation=isolation, bytes_max=limit)
    return service.pool.run(partition, ("read", partition, offset, isolation, limit), read)


def _take(service: Service, each: _Wanted, read: asyncio.Future[ReadBatches]) -> None:
    partition, error = each.partition, read.exception()
    assert partition is not None, "only served partitions are read"
    if isinstance(error, NotFound) and "object" in error.facts:
        each.error = Error.KAFKA_STORAGE_ERROR  # the segment was replaced: the next read finds the new one
    elif error is not None:
        each.error = error_of(error, partition)
    else:
        found = read.result()
        service.bounds[partition] = found.bounds
        each.error = epoch_error(each.requested.current_leader_epoch, found.bounds)
        each.found = found if each.error is Error.NONE else None


def _cut(readable: list[_Wanted], max_bytes: int) -> None:
    """Leave out what exceeds the response: a first batch above its limit is sent only as the first one."""
    total = 0
    for each in readable:
        if each.found is None:
            continue
        if total and total + each.found.size_bytes > max_bytes:
            each.found = ReadBatches(bounds=each.found.bounds)
        total += each.found.size_bytes


def _answer(service: Service, each: _Wanted, *, is_committed: bool) -> PartitionData:
    bounds: Bounds | None = None
    if each.partition is not None and each.error in (Error.NONE, Error.OFFSET_OUT_OF_RANGE):
        bounds = each.found.bounds if each.found is not None else service.bounds.get(each.partition)
    found = each.found if each.found is not None and each.error is Error.NONE else None
    aborted = found.aborted or () if found is not None else ()
    return PartitionData(
        partition_index=each.requested.partition,
        error_code=each.error,
        high_watermark=bounds.high_watermark if bounds is not None else -1,
        last_stable_offset=bounds.last_stable_offset if bounds is not None else -1,
        log_start_offset=bounds.log_start_offset if bounds is not None else -1,
        aborted_transactions=(
            tuple(AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in aborted)
            if is_committed
            else None
        ),
        records=found.runs if found is not None else (),
    )
