"""Fetch: reads of several partitions, with Kafka's limits and its long poll.

| limit | meaning |
|---|---|
| `partition_max_bytes` | of one partition; the first batch of the first partition with records may be larger (KIP-74) |
| `max_bytes`, `Load` | of the response; the first batch in it may be larger (KIP-74) |
| `min_bytes`, `max_wait_ms` | the response waits until it has as many bytes, a read failed, or the time is over |
| READ_WAIT_S | with a shorter `max_wait_ms` the response waits this long for its reads |

A read that is late does not delay the response: it continues, and the next fetch at the same offset joins it. While
the response waits, only partitions with news are read again. A partition that does not exist ends no wait, as in Kafka.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from local.errors import LogError, NotFound, OffsetOutOfRange
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.serve.handlers.fetch_sessions import NO_SESSION, Fetching, Requested
from tiered.serve.handlers.offsets import isolation_of
from tiered.serve.handlers.service import READ_WAIT_S, Call, Service, epoch_error, error_of, served_partition
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tiered.serve.record_source import Bounds, ReadBatches, RecordSource, ServedTopic

WAIT_S_MAX = 60.0
# The first versions of Fetch that name topics by their ids, and the current leader after an old epoch (KIP-951).
_TOPIC_IDS_SINCE, _LEADERS_SINCE = 13, 16
READS_AT_ONCE = 8  # of one request
READS_IN_A_ROW = 64  # without a wait; then the other connections are served
_NO_ID = UUID(int=0)


@dataclass(slots=True)
class _Wanted:
    """One requested partition. `partition` is None if it is not served; `error` is the answer so far."""

    place: Requested
    partition: TopicPartition | None
    error: Error = Error.NONE
    found: ReadBatches | None = None

    @property
    def requested(self) -> FetchPartition:
        return self.place.fetch


class _News:
    """The partitions that changed since the last `take`. Called from any thread; `take` and `wait` in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._partitions: set[TopicPartition] = set()
        self._has_some = asyncio.Event()

    def __call__(self, partition: TopicPartition) -> None:
        with self._lock:
            is_first = not self._partitions
            self._partitions.add(partition)
        if is_first:  # one wake-up of the loop, however many appends come before it
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._has_some.set)

    def take(self) -> set[TopicPartition]:
        self._has_some.clear()
        with self._lock:
            taken, self._partitions = self._partitions, set()
        return taken

    async def wait(self, timeout_s: float) -> bool:
        """Whether there are news before the time is over."""
        try:
            async with asyncio.timeout(timeout_s):  # `wait_for` of Python 3.11 may lose a cancellation
                await self._has_some.wait()
        except TimeoutError:
            return False
        return True


def _opened(service: Service, request: FetchRequest, call: Call) -> Fetching | Error:
    now_ms = asyncio.get_running_loop().time() * 1000
    return service.sessions.open(request, uses_topic_ids=call.version >= _TOPIC_IDS_SINCE, now_ms=now_ms)


def throttled_fetch(service: Service, request: FetchRequest, call: Call) -> FetchResponse:
    """A response without partitions. The session of the request continues: its news come later.

    Source: kafka `FetchContext.getThrottledResponse`.
    """
    opened = _opened(service, request, call)
    if isinstance(opened, Error):
        return FetchResponse(error_code=opened)
    return FetchResponse(session_id=opened.session.session_id if opened.session is not None else NO_SESSION)


async def fetch(service: Service, request: FetchRequest, call: Call) -> FetchResponse:
    opened = _opened(service, request, call)
    if isinstance(opened, Error):
        return FetchResponse(error_code=opened)
    try:
        topics, names, failure = await service.topics(), service.names_by_id, None
    except LogError as error:
        error_of(error, "all")
        topics, names, failure = {}, {}, Error.KAFKA_STORAGE_ERROR
    wanted = [_wanted(topics, names, failure, each) for each in opened.requested]
    await _read_until_enough(service, request, wanted)
    is_committed = isolation_of(request.isolation_level) is Isolation.READ_COMMITTED
    response = opened.response([(each.place, _answer(service, each, is_committed=is_committed)) for each in wanted])
    stale = [each.place for each in wanted if each.error is Error.FENCED_LEADER_EPOCH]
    return _with_leaders(service, response, call) if stale and call.version >= _LEADERS_SINCE else response


def _wanted(
    topics: Mapping[str, ServedTopic], names: Mapping[UUID, str], failure: Error | None, place: Requested
) -> _Wanted:
    name, missing = place.topic, failure or Error.UNKNOWN_TOPIC_OR_PARTITION
    if not isinstance(name, str):
        name = None if name is None else names.get(name)
        missing = missing if failure or name is not None else Error.UNKNOWN_TOPIC_ID
    partition = served_partition(topics, name, place.fetch.partition)
    return _Wanted(place, partition, Error.NONE if partition is not None else missing)


async def _read_until_enough(service: Service, request: FetchRequest, wanted: list[_Wanted]) -> None:
    """Read all partitions, and those with news again, until there is enough to answer."""
    loop = asyncio.get_running_loop()
    wait_s = min(max(request.max_wait_ms, 0) / 1000, WAIT_S_MAX)
    deadline_s = loop.time() + wait_s
    readable = due = [each for each in wanted if each.partition is not None]
    if request.min_bytes <= 1 or not wait_s:
        # Most requests need one byte and find it. After a read that found none, all partitions are watched and read
        # again: news between the first read and the watch are not lost.
        await _read_all(service, request, readable, due, max(deadline_s, loop.time() + READ_WAIT_S))
        if _is_enough(request, readable) or deadline_s <= loop.time():
            return
    news = _News(loop)
    with service.source.watch({each.partition for each in readable if each.partition is not None}, news):
        while True:
            await _read_all(service, request, readable, due, max(deadline_s, loop.time() + READ_WAIT_S))
            if _is_enough(request, readable):
                return
            due = []
            while not due:
                remaining_s = deadline_s - loop.time()
                if remaining_s <= 0 or not await news.wait(remaining_s):
                    return
                changed = news.take()
                due = [each for each in readable if each.partition in changed]


def _is_enough(request: FetchRequest, readable: list[_Wanted]) -> bool:
    """Whether there is enough to answer: bytes, an error, or nothing to read."""
    size_bytes = sum([each.found.size_bytes for each in readable if each.found is not None])
    return size_bytes >= request.min_bytes or not readable or any(each.error is not Error.NONE for each in readable)


async def _read_all(
    service: Service, request: FetchRequest, readable: list[_Wanted], due: list[_Wanted], deadline_s: float
) -> None:
    """Read the `due` ones in the order of the request, several at once, within the bytes of the response.

    A read reserves its limit, and returns the rest when it ends. Reads that are late at `deadline_s` are left running.
    """
    loop, isolation = asyncio.get_running_loop(), isolation_of(request.isolation_level)
    for each in due:
        each.found = None
    bytes_max = max(1, min(request.max_bytes, service.load.response_bytes_max))
    remaining = bytes_max - sum(each.found.size_bytes for each in readable if each.found is not None)
    late, remaining = await _read_now(service, isolation, due, remaining)
    waiting = iter(late)
    pending: dict[asyncio.Future[ReadBatches], tuple[list[_Wanted], int]] = {}
    while True:
        while remaining > 0 and len(pending) < READS_AT_ONCE and (next_one := next(waiting, None)) is not None:
            limit = max(1, min(next_one.requested.partition_max_bytes, remaining))
            read = _started(service, next_one, isolation, limit)
            same = pending.setdefault(read, ([], limit))
            same[0].append(next_one)
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


async def _read_now(
    service: Service, isolation: Isolation, due: list[_Wanted], remaining: int
) -> tuple[list[_Wanted], int]:
    """Read what needs no wait. Returns the partitions that are left to read, and the bytes.

    A partition that is left reserves its limit: those after it in the request take no bytes from it.
    """
    if service.prompt is None:
        return due, remaining
    late, reserved = list[_Wanted](), 0
    for count, each in enumerate(due, 1):
        assert each.partition is not None, "only served partitions are read"
        if remaining <= 0:
            break
        limit = max(1, min(each.requested.partition_max_bytes, remaining))
        offset = each.requested.fetch_offset
        found = service.prompt.read_now(each.partition, offset, isolation=isolation, bytes_max=limit)
        if found is None:
            late.append(each)
            remaining, reserved = remaining - limit, reserved + limit
        else:
            _accept(service, each, each.partition, found)
            remaining -= each.found.size_bytes if each.found is not None else 0
        if count % READS_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return late, remaining + reserved


async def _some_done(
    pending: Collection[asyncio.Future[ReadBatches]], timeout_s: float
) -> set[asyncio.Future[ReadBatches]]:
    done, _ = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done


def _started(service: Service, each: _Wanted, isolation: Isolation, limit: int) -> asyncio.Future[ReadBatches]:
    partition, offset, claimed = each.partition, each.requested.fetch_offset, each.requested.current_leader_epoch
    assert partition is not None, "only served partitions are read"
    read = partial(_read, service.source, partition, offset, isolation, limit, claimed)
    return service.pool.run(partition, ("read", partition, offset, isolation, limit, claimed), read)


class _WrongEpoch(Exception):
    """The client claims another leader epoch than that of `bounds`."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.bounds = bounds


def _read(
    source: RecordSource, partition: TopicPartition, offset: int, isolation: Isolation, limit: int, claimed: int
) -> ReadBatches:
    try:
        found = source.read(partition, offset, isolation=isolation, bytes_max=limit)
        bounds = found.bounds
    except OffsetOutOfRange:
        bounds = source.bounds(partition)
        if epoch_error(claimed, bounds) is Error.NONE:
            raise
    if epoch_error(claimed, bounds) is not Error.NONE:  # it counts more than the offset
        raise _WrongEpoch(bounds)
    return found


def _take(service: Service, each: _Wanted, read: asyncio.Future[ReadBatches]) -> None:
    partition, error = each.partition, read.exception()
    assert partition is not None, "only served partitions are read"
    if isinstance(error, _WrongEpoch):
        service.bounds[partition] = error.bounds
        each.error = epoch_error(each.requested.current_leader_epoch, error.bounds)
    elif isinstance(error, NotFound) and "object" in error.facts:
        each.error = Error.KAFKA_STORAGE_ERROR  # the segment was replaced: the next read finds the new one
    elif error is not None:
        each.error = error_of(error, partition)
    else:
        _accept(service, each, partition, read.result())


def _accept(service: Service, each: _Wanted, partition: TopicPartition, found: ReadBatches) -> None:
    service.bounds[partition] = found.bounds
    each.error = epoch_error(each.requested.current_leader_epoch, found.bounds)
    each.found = found if each.error is Error.NONE else None


def _cut(readable: list[_Wanted], max_bytes: int) -> None:
    """Leave out what exceeds a limit: a first batch above its limit is sent only as the first one of the response."""
    total = 0
    for each in readable:
        if each.found is None:
            continue
        size_bytes = each.found.size_bytes
        if total and (size_bytes > each.requested.partition_max_bytes or total + size_bytes > max_bytes):
            each.found = ReadBatches(bounds=each.found.bounds)
        total += each.found.size_bytes


def _answer(service: Service, each: _Wanted, *, is_committed: bool) -> PartitionData:
    number = each.requested.partition
    if each.partition is None:
        return PartitionData(partition_index=number, error_code=each.error, aborted_transactions=())
    if each.error is not Error.NONE:
        return PartitionData(partition_index=number, error_code=each.error)
    bounds = each.found.bounds if each.found is not None else service.bounds.get(each.partition)
    aborted = each.found.aborted if each.found is not None and is_committed else None
    if each.found is not None:
        service.metrics.fetched(each.partition.topic, each.found.size_bytes, is_remote=each.found.is_remote)
    return PartitionData(
        partition_index=number,
        high_watermark=bounds.high_watermark if bounds is not None else -1,
        last_stable_offset=bounds.last_stable_offset if bounds is not None else -1,
        log_start_offset=bounds.log_start_offset if bounds is not None else -1,
        aborted_transactions=(
            tuple(AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in aborted)
            if aborted is not None
            else None
        ),
        records=each.found.runs if each.found is not None else (),
    )


def _with_leaders(service: Service, response: FetchResponse, call: Call) -> FetchResponse:
    """Name this server as the current leader to clients with an old epoch: they need no request of metadata."""

    def led(topic: FetchableTopicResponse, data: PartitionData) -> PartitionData:
        name = topic.topic if topic.topic is not None else service.names_by_id.get(topic.topic_id or _NO_ID)
        bounds = service.bounds.get(TopicPartition(name, data.partition_index)) if name is not None else None
        if data.error_code is not Error.FENCED_LEADER_EPOCH or bounds is None or bounds.leader_epoch is None:
            return data
        leader = LeaderIdAndEpoch(leader_id=service.broker_id, leader_epoch=bounds.leader_epoch)
        return replace(data, current_leader=leader)

    here = NodeEndpoint(node_id=service.broker_id, host=call.endpoint.host, port=call.endpoint.port)
    topics = [
        replace(each, partitions=tuple(led(each, data) for data in each.partitions)) for each in response.responses
    ]
    return replace(response, responses=tuple(topics), node_endpoints=(here,))
