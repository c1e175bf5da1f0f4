"""Fetch: limits of bytes, the long poll, isolation, errors, and reads that hang."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from fake_source import BATCH, CALL, IDS, ORDERS, SLOW, FakeSource, run

from local.errors import AccessDenied, Corrupt, LogError, NotFound, Unavailable
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.serve.handlers import fetch as fetching
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.service import LEAST_BYTES, UNSENT_BYTES_MAX, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tiered.serve.record_source import ReadBatches


@pytest.fixture(autouse=True)
def no_read_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than the real limit."""
    monkeypatch.setattr(fetching, "READ_WAIT_S", 60.0)


def request(*partitions: tuple[str, int], **changes: object) -> FetchRequest:
    """A fetch of partition 0 of topics, each from an offset."""
    limit = changes.pop("partition_max_bytes", 10 * BATCH)
    epoch = changes.pop("current_leader_epoch", -1)
    topics = tuple(
        FetchTopic(
            topic=topic,
            partitions=(
                FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=epoch),
            ),
        )
        for topic, offset in partitions
    )
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics, **changes})


def fetched(source: FakeSource, asked: FetchRequest) -> list[PartitionData]:
    return parts(run(source, lambda service: fetch(service, asked, CALL)))


def parts(response: FetchResponse) -> list[PartitionData]:
    assert response.error_code is Error.NONE
    return [partition for topic in response.responses for partition in topic.partitions]


def offsets(data: PartitionData) -> list[int]:
    return [int(bytes(run)) for run in data.records]


def test_batches_from_the_offset_up_to_the_limit_of_the_partition() -> None:
    (found,) = fetched(FakeSource(orders=50), request(("orders", 7), partition_max_bytes=3 * BATCH + 1))
    assert offsets(found) == [7, 8, 9]
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (50, 50, 0)
    assert found.aborted_transactions is None


def test_a_batch_larger_than_all_limits_is_sent_first_but_not_second() -> None:
    source = FakeSource(orders=50, slow=50)
    asked = request(("orders", 7), ("slow", 8), partition_max_bytes=1, max_bytes=10)
    assert [offsets(each) for each in fetched(source, asked)] == [[7], []]


def test_max_bytes_bounds_all_partitions_together() -> None:
    source = FakeSource(orders=50, slow=50)
    asked = request(("orders", 0), ("slow", 0), max_bytes=12 * BATCH)
    assert [len(offsets(each)) for each in fetched(source, asked)] == [10, 2]


def test_bytes_that_slow_clients_hold_reduce_the_response() -> None:
    source = FakeSource(orders=5000)

    async def work(service: Service) -> FetchResponse:
        with service.load.sending(UNSENT_BYTES_MAX):
            return await fetch(service, request(("orders", 0), partition_max_bytes=1 << 20), CALL)

    (found,) = parts(run(source, work))
    assert len(found.records) * BATCH <= LEAST_BYTES


def test_committed_reads_end_at_the_last_stable_offset_and_name_aborted_transactions() -> None:
    source = FakeSource(orders=50)
    source.stable[ORDERS] = 3
    source.aborted = [AbortedTransaction(producer_id=9, first_offset=1, last_offset=2, last_stable_offset=3)]
    (found,) = fetched(source, request(("orders", 0), isolation_level=1))
    assert offsets(found) == [0, 1, 2]
    assert (found.high_watermark, found.last_stable_offset) == (50, 3)
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()] == [(9, 1)]


@pytest.mark.parametrize("offset", [3, 51])
def test_an_offset_outside_the_log_is_an_error_with_no_wait(offset: int) -> None:
    source = FakeSource(orders=50)
    source.starts[ORDERS] = 10
    (found,) = fetched(source, request(("orders", offset), max_wait_ms=1 << 30))
    assert (found.error_code, found.records) == (Error.OFFSET_OUT_OF_RANGE, ())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("down"), Error.KAFKA_STORAGE_ERROR),
        (AccessDenied("no key"), Error.KAFKA_STORAGE_ERROR),
        (NotFound("replaced", object="x"), Error.KAFKA_STORAGE_ERROR),
        (NotFound("deleted"), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (Corrupt("damaged"), Error.CORRUPT_MESSAGE),
    ],
)
def test_an_error_of_one_partition_leaves_the_others_readable(error: LogError, code: Error) -> None:
    source = FakeSource(orders=50, slow=50)
    source.errors[SLOW] = error
    slow, orders = fetched(source, request(("slow", 0), ("orders", 0)))
    assert (slow.error_code, slow.records) == (code, ())
    assert len(offsets(orders)) == 10


@pytest.mark.parametrize(
    ("claimed", "code"),
    [(-1, Error.NONE), (5, Error.NONE), (4, Error.FENCED_LEADER_EPOCH), (6, Error.UNKNOWN_LEADER_EPOCH)],
)
def test_a_leader_epoch_other_than_the_current_one_is_refused(claimed: int, code: Error) -> None:
    (found,) = fetched(FakeSource(orders=50), request(("orders", 0), current_leader_epoch=claimed))
    assert found.error_code is code


@pytest.mark.parametrize(("claimed", "code"), [(4, Error.FENCED_LEADER_EPOCH), (6, Error.UNKNOWN_LEADER_EPOCH)])
def test_a_wrong_leader_epoch_counts_more_than_a_wrong_offset(claimed: int, code: Error) -> None:
    (found,) = fetched(FakeSource(orders=50), request(("orders", 99), current_leader_epoch=claimed))
    assert (found.error_code, found.high_watermark, found.aborted_transactions) == (code, -1, None)


@pytest.mark.parametrize(("version", "claimed", "is_named"), [(16, 4, True), (15, 4, False), (16, 6, False)])
def test_an_old_epoch_is_answered_with_the_current_leader(version: int, claimed: int, is_named: bool) -> None:
    asked = request(("orders", 0), current_leader_epoch=claimed)
    response = run(FakeSource(orders=50), lambda service: fetch(service, asked, replace(CALL, version=version)))
    (found,) = parts(response)
    assert found.current_leader == (LeaderIdAndEpoch(leader_id=0, leader_epoch=5) if is_named else None)
    assert response.node_endpoints == ((NodeEndpoint(node_id=0, host="broker", port=9092),) if is_named else ())


def test_only_the_first_partition_with_records_may_exceed_its_own_limit() -> None:
    source = FakeSource(orders=50, slow=50)
    asked = request(("orders", 50), ("slow", 8), ("orders", 7), partition_max_bytes=BATCH - 1)
    assert [offsets(each) for each in fetched(source, asked)] == [[], [8], []]


def test_unknown_topics_are_refused_by_name_and_by_id() -> None:
    source = FakeSource(orders=50)
    (found,) = fetched(source, request(("nope", 0)))
    assert found.error_code is Error.UNKNOWN_TOPIC_OR_PARTITION
    partition = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=BATCH)
    wanted = tuple(FetchTopic(topic_id=each, partitions=(partition,)) for each in (IDS["orders"], IDS["slow"], None))
    asked = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=wanted)
    codes = [(each.error_code, offsets(each)) for each in fetched(source, asked)]
    assert codes == [(Error.NONE, [1]), (Error.UNKNOWN_TOPIC_ID, []), (Error.UNKNOWN_TOPIC_ID, [])]
    assert {name for name, _, _ in source.reads} == {ORDERS}, "an unknown partition must not reach the source"


def test_a_bucket_that_cannot_be_listed_is_an_error_that_clients_retry() -> None:
    source = FakeSource(orders=50)
    source.topics_error = Unavailable("down")
    (found,) = fetched(source, request(("orders", 0)))
    assert found.error_code is Error.KAFKA_STORAGE_ERROR


def test_only_partitions_with_news_are_read_again() -> None:
    source = FakeSource(orders=3, slow=3)

    async def work(service: Service) -> FetchResponse:
        asked = request(("orders", 3), ("slow", 3), max_wait_ms=60_000, min_bytes=2 * BATCH)
        fetching_now = asyncio.create_task(fetch(service, asked, CALL))
        while len(source.reads) < 2:
            await asyncio.sleep(0)
        source.extend(ORDERS, 1)
        while len(source.reads) < 3:
            await asyncio.sleep(0)
        source.extend(SLOW, 1)
        return await fetching_now

    assert [offsets(each) for each in parts(run(source, work))] == [[3], [3]]
    assert [name for name, *_ in source.reads] == [ORDERS, SLOW, ORDERS, SLOW]


def test_an_unknown_topic_does_not_end_the_wait_of_the_others() -> None:
    source = FakeSource(orders=3)

    async def work(service: Service) -> FetchResponse:
        asked = request(("nope", 0), ("orders", 3), max_wait_ms=60_000)
        fetching_now = asyncio.create_task(fetch(service, asked, CALL))
        while not source.reads:
            await asyncio.sleep(0)
        assert not fetching_now.done()
        source.extend(ORDERS, 1)
        return await fetching_now

    missing, found = parts(run(source, work))
    assert (missing.error_code, offsets(found)) == (Error.UNKNOWN_TOPIC_OR_PARTITION, [3])


def test_the_long_poll_ends_with_news_of_a_watched_partition() -> None:
    source = FakeSource(orders=50, slow=50)

    async def work(service: Service) -> FetchResponse:
        waiting = asyncio.create_task(fetch(service, request(("orders", 50), ("slow", 50), max_wait_ms=60_000), CALL))
        while not (source.watched and len(source.reads) >= 2):
            await asyncio.sleep(0)
        source.extend(SLOW, 3)
        return await waiting

    orders, slow = parts(run(source, work))
    assert (offsets(orders), offsets(slow)) == ([], [50, 51, 52])
    assert source.watched == [], "the watch must end with the fetch"


def test_news_between_the_watch_and_the_first_read_are_not_lost() -> None:
    source = FakeSource(orders=50)
    source.on_watch = lambda: source.extend(ORDERS, 1)
    (found,) = fetched(source, request(("orders", 50), max_wait_ms=60_000))
    assert offsets(found) == [50]


def test_news_between_the_first_read_and_the_watch_are_not_lost() -> None:
    """Most requests are watched after a first read that found nothing; records before have no notification."""
    source = FakeSource(orders=50)
    source.on_watch = lambda: source.counts.update({ORDERS: 51})
    (found,) = fetched(source, request(("orders", 50), max_wait_ms=1000))
    assert offsets(found) == [50]


def test_a_fetch_that_finds_records_at_once_watches_nothing() -> None:
    source = FakeSource(orders=50)
    source.on_watch = lambda: pytest.fail("the fetch was watched")
    (found,) = fetched(source, request(("orders", 49), max_wait_ms=60_000))
    assert offsets(found) == [49]


def test_min_bytes_waits_for_as_many_bytes() -> None:
    source = FakeSource(orders=1)

    async def work(service: Service) -> FetchResponse:
        asked = request(("orders", 0), max_wait_ms=60_000, min_bytes=3 * BATCH)
        waiting = asyncio.create_task(fetch(service, asked, CALL))
        for reads in (1, 2):
            while len(source.reads) < reads:
                await asyncio.sleep(0)
            for at in range(20):  # as much work as reads without news would need
                await service.call("other", ("other", at), lambda: None)
            assert len(source.reads) == reads, "a read must wait for news"
            source.extend(ORDERS, 1)
        return await waiting

    (found,) = parts(run(source, work))
    assert offsets(found) == [0, 1, 2]


def test_a_partition_that_hangs_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_but_the_slow_one(pending, timeout_s: float):
        """The time is over once a single read is left."""
        if len(pending) == 1:
            return set()
        return (await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))[0]

    monkeypatch.setattr(fetching, "_some_done", all_but_the_slow_one)
    source = FakeSource(orders=50, slow=50)
    source.gates[SLOW] = threading.Event()

    async def work(service: Service) -> list[FetchResponse]:
        asked = request(("slow", 0), ("orders", 0))
        return [await fetch(service, asked, CALL) for _ in range(40)]

    for response in run(source, work):
        slow, orders = parts(response)
        assert (slow.error_code, offsets(slow)) == (Error.NONE, [])
        assert len(offsets(orders)) == 10
    assert len([name for name, _, _ in source.reads if name == SLOW]) == 1, (
        "later fetches must join the read that hangs"
    )


def test_a_partition_that_is_named_twice_is_read_once() -> None:
    source = FakeSource(orders=50)
    one, two = fetched(source, request(("orders", 0), ("orders", 0)))
    assert offsets(one) == offsets(two) == list(range(10))


def test_reads_that_need_no_wait_come_first_and_take_no_bytes_of_earlier_partitions() -> None:
    source = FakeSource(orders=50, slow=50)

    class Prompt:
        """Answers for one partition alone."""

        def topics_now(self) -> None:
            return None

        def read_now(
            self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int
        ) -> ReadBatches | None:
            return (
                source.read(partition, offset, isolation=isolation, bytes_max=bytes_max) if partition == SLOW else None
            )

    async def work(service: Service) -> FetchResponse:
        service.prompt = Prompt()
        return await fetch(service, request(("orders", 0), ("slow", 7), max_bytes=12 * BATCH), CALL)

    orders, slow = parts(run(source, work))
    assert (offsets(orders), offsets(slow)) == (list(range(10)), [7, 8])
    assert [(name, limit) for name, _, limit in source.reads] == [(SLOW, 2 * BATCH), (ORDERS, 10 * BATCH)]
