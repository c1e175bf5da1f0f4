"""Independent clients consume a node over both tiers while it works, and see what this project's reader sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import aiokafka
import pytest
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, TIERED, World, send, settle
from served_bucket import TOPICS, fill, log_of
from served_node import CLIENTS, Client, KafkaPython, Seen, read_here, serving_node

from local.format.record import Record
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager

import kafka  # isort: skip - its first import, with a warning, is that of served_node

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
LIMIT_S = 60.0
LOCAL = {"remote.storage.enable": "false"}
CLEANED = {**COMPACTED, "min.compaction.lag.ms": "0"}
BOTH = {**CLEANED, "cleanup.policy": "compact,delete"}


@pytest.fixture
def manager() -> Iterator[LogManager]:
    with World().open() as manager:
        yield manager


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("isolation", list(Isolation))
def test_clients_see_every_kind_of_topic_over_both_tiers(
    manager: LogManager, client: Client, isolation: Isolation
) -> None:
    fill(manager)
    settle(manager, NOW + HOUR)
    for topic in TOPICS:
        send(manager, 60, topic=topic, start=1000)
    with serving_node(manager) as (address, _):
        for name in (name for topic in manager.topics.all() for name in topic.partitions()):
            expected = read_here(manager, name, 0, isolation)
            assert manager.partitions.find(name).log.local_log_start_offset > 0
            assert expected, f"{name}: there must be records"
            with closing(client(address, name, isolation)) as consumer:
                consumer.seek(0)
                assert consumer.read_to_end() == expected, name


def _append(manager: LogManager, at: int) -> None:
    send(manager, 40, start=at * 40, keys=7)


def _roll(manager: LogManager, at: int) -> None:
    manager.partitions.roll("t", now_ms=NOW)


def _maintain(manager: LogManager, at: int) -> None:
    """Clean, copy, drop, expire and delete what is due."""
    settle(manager, NOW + at * HOUR)


def _delete_records(manager: LogManager, at: int) -> None:
    start, end = manager.reader().offsets(NAME)
    manager.maintenance.delete_records({NAME: (start + end) // 2}, now_ms=NOW + at * HOUR)


def _transactions(manager: LogManager, at: int) -> None:
    log = log_of(manager, "t")
    for each in range(3):
        producer = Producer(producer_id=at * 3 + each, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append([Record(b"t%d" % each, b"in %d" % at, NOW)] * 2, now_ms=NOW, producer=producer)
    for each in range(3):
        log.append_marker(at * 3 + each, 0, commit=each != 1, now_ms=NOW)


STEPS: tuple[Callable[[LogManager, int], None], ...] = (
    *(_append, _roll, _append, _maintain, _append, _transactions, _roll, _maintain, _append, _delete_records),
    *(_append, _maintain, _roll, _append, _transactions, _maintain, _delete_records, _append, _append, _maintain),
)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("settings", [TIERED, BOTH, LOCAL], ids=["tiered", "compacted", "local"])
def test_connected_clients_see_each_step_of_a_node(
    manager: LogManager, client: Client, isolation: Isolation, settings: dict[str, str]
) -> None:
    """After each step one consumer reads on from its position, and another reads the whole log."""
    manager.topics.create("t", 1, settings, now_ms=NOW)
    with (
        serving_node(manager) as (address, _),
        closing(client(address, NAME, isolation)) as follower,
        closing(client(address, NAME, isolation)) as other,
    ):
        position = 0
        follower.seek(position)
        for at, step in enumerate(STEPS):
            step(manager, at)
            start, end = manager.reader(isolation).offsets(NAME)
            assert follower.read_to_end() == read_here(manager, NAME, position, isolation), (at, step.__name__)
            position = end
            other.seek(start)
            assert other.read_to_end() == read_here(manager, NAME, start, isolation), (at, step.__name__)
    assert start > 0, "records were deleted"
    assert settings is LOCAL or start < log_of(manager, "t").local_log_start_offset, "both tiers have records"


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_race_with_appends_cleaning_copies_and_drops(manager: LogManager, client: Client) -> None:
    """Appends and maintenance run in threads of their own until the consumers have read to the end."""
    names = {each: TopicPartition(each, 0) for each in ("plain", "compacted")}
    manager.topics.create("plain", 1, TIERED, now_ms=NOW)
    manager.topics.create("compacted", 1, CLEANED, now_ms=NOW)
    appended: dict[str, list[Record]] = {each: [] for each in names}
    have_ended = threading.Event()

    def append() -> None:
        for at in range(60):
            for topic, records in appended.items():
                records += send(manager, 20, topic=topic, start=at * 20, keys=11)
                if at % 3 == 2:
                    manager.partitions.roll(topic, now_ms=NOW)

    def maintain() -> None:
        at = 0
        while not have_ended.is_set():
            at += 1
            manager.tick(NOW + at * HOUR)

    with serving_node(manager) as (address, _):
        threads = [threading.Thread(target=append), threading.Thread(target=maintain)]
        for each in threads:
            each.start()
        found: dict[str, list[Seen]] = {}
        try:
            for topic, name in names.items():
                with closing(client(address, name)) as consumer:
                    consumer.seek(0)
                    found[topic] = consumer.read_to(60 * 20)
        finally:
            threads[0].join()
            have_ended.set()
            threads[1].join()
    assert manager.problems == {}
    sent = {
        topic: [(at, each.key, each.value) for at, each in enumerate(records)] for topic, records in appended.items()
    }
    assert [each[:3] for each in found["plain"]] == sent["plain"]
    seen = [each[:3] for each in found["compacted"]]
    assert seen == [sent["compacted"][offset] for offset, _, _ in seen], "each record as it was appended"
    assert [offset for offset, _, _ in seen] == sorted({offset for offset, _, _ in seen})
    newest = {key: offset for offset, key, _ in sent["compacted"]}
    assert set(newest.values()) <= {offset for offset, _, _ in seen}, "the newest record of every key"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("settings", [TIERED, LOCAL], ids=["tiered", "local"])
def test_clients_race_with_retention_and_deletions(
    manager: LogManager, client: Client, settings: dict[str, str]
) -> None:
    """A consumer that is overtaken continues at the log start offset, and sees each record at most once, in order."""
    limits = {"retention.ms": "-1", "retention.bytes": "4000"}
    manager.topics.create("t", 1, {**settings, **limits}, now_ms=NOW)
    sent: list[Record] = []
    have_ended = threading.Event()

    def append() -> None:
        for at in range(60):
            sent.extend(send(manager, 20, start=at * 20))
            if at % 10 == 9:
                start, end = manager.reader().offsets(NAME)
                manager.maintenance.delete_records({NAME: (start + 3 * end) // 4}, now_ms=NOW)

    def maintain() -> None:
        at = 0
        while not have_ended.is_set():
            at += 1
            manager.tick(NOW + at * HOUR)

    with (
        serving_node(manager) as (address, _),
        closing(client(address, NAME, auto_offset_reset="earliest")) as consumer,
    ):
        consumer.seek(0)
        threads = [threading.Thread(target=append), threading.Thread(target=maintain)]
        for each in threads:
            each.start()
        try:
            found = [each[:3] for each in consumer.read_to(60 * 20)]
        finally:
            threads[0].join()
            have_ended.set()
            threads[1].join()
    assert manager.problems == {}
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    assert found == [(offset, sent[offset].key, sent[offset].value) for offset in offsets]
    start, end = manager.reader().offsets(NAME)
    assert 0 < start <= offsets[-1] == end - 1


@pytest.mark.parametrize("client", CLIENTS)
def test_committed_readers_race_with_transactions(manager: LogManager, client: Client) -> None:
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    log = log_of(manager, "t")
    committed: list[bytes | None] = []
    have_ended = threading.Event()

    def append() -> None:
        for at in range(120):
            values = [b"%d of %d" % (number, at) for number in range(5)]
            producer = Producer(producer_id=at % 4, producer_epoch=0, base_sequence=at // 4 * 5, is_transactional=True)
            log.append([Record(b"k", each, NOW) for each in values], now_ms=NOW, producer=producer)
            is_committed = at % 3 != 1
            committed.extend(values if is_committed else [])
            log.append_marker(at % 4, 0, commit=is_committed, now_ms=NOW)

    def maintain() -> None:
        at = 0
        while not have_ended.is_set():
            at += 1
            manager.tick(NOW + at * HOUR)

    with serving_node(manager) as (address, _), closing(client(address, NAME, Isolation.READ_COMMITTED)) as consumer:
        consumer.seek(0)
        threads = [threading.Thread(target=append), threading.Thread(target=maintain)]
        for each in threads:
            each.start()
        try:
            found = consumer.read_to(120 * 6)
        finally:
            threads[0].join()
            have_ended.set()
            threads[1].join()
    assert manager.problems == {}
    assert [value for _, _, value, _, _ in found] == committed


@pytest.mark.parametrize("client", CLIENTS)
def test_a_read_at_an_offset_that_compaction_removed_returns_the_next_record(
    manager: LogManager, client: Client
) -> None:
    manager.topics.create("t", 1, CLEANED, now_ms=NOW)
    send(manager, 300)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager, NOW + HOUR)
    settle(manager, NOW + 2 * HOUR)
    send(manager, 30, start=300)
    everything = read_here(manager, NAME, 0)
    removed = sorted(set(range(330)) - {offset for offset, *_ in everything})
    assert removed, "compaction must have removed records"
    with serving_node(manager) as (address, _), closing(client(address, NAME)) as consumer:
        for at in (removed[0], removed[len(removed) // 2], removed[-1]):
            consumer.seek(at)
            assert consumer.read_to_end() == [each for each in everything if each[0] >= at], at


@pytest.mark.parametrize("settings", [{**TIERED, "retention.ms": "1d"}, {**LOCAL, "retention.ms": "1d"}])
def test_an_offset_below_the_log_start_after_retention_is_out_of_range(
    manager: LogManager, settings: dict[str, str]
) -> None:
    manager.topics.create("t", 1, settings, now_ms=NOW)
    send(manager, 100)
    here = kafka.TopicPartition("t", 0)
    with serving_node(manager) as (address, _), closing(KafkaPython(address, NAME)) as reader:
        reader.seek(0)
        assert len(reader.read_to(50)) >= 50
        manager.partitions.roll("t", now_ms=NOW)
        manager.append("t", [Record(b"k", b"v", NOW + DAY)] * 10, 0, now_ms=NOW + DAY)
        settle(manager, NOW + DAY)
        settle(manager, NOW + DAY + HOUR)
        start, end = manager.reader().offsets(NAME)
        assert 50 < start < end
        reader.seek(20)
        with pytest.raises(kafka.errors.OffsetOutOfRangeError):
            reader.read_to_end()
        with closing(KafkaPython(address, NAME, auto_offset_reset="earliest")) as resetting:
            resetting.seek(20)
            assert resetting.read_to_end() == read_here(manager, NAME, start)
        assert reader.consumer.beginning_offsets([here]) == {here: start}


def test_an_append_answers_a_long_poll_at_once(manager: LogManager) -> None:
    """The poll of the client ends long before the fetch of a minute would."""
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    waits = {"fetch_max_wait_ms": 60_000, "request_timeout_ms": 90_000, "connections_max_idle_ms": 300_000}
    with serving_node(manager) as (address, source), closing(KafkaPython(address, NAME, **waits)) as reader:
        reader.seek(0)
        sent: list[Record] = []

        def append() -> None:
            assert source.is_watched.wait(LIMIT_S)
            sent.extend(send(manager, 10))

        thread = threading.Thread(target=append)
        thread.start()
        found = reader.consumer.poll(timeout_ms=30_000)
        thread.join()
        assert [each.value for each in found[kafka.TopicPartition("t", 0)]] == [each.value for each in sent]


def test_a_marker_answers_the_long_poll_of_a_committed_reader(manager: LogManager) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    log = log_of(manager, "t")
    producer = Producer(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
    waits = {"fetch_max_wait_ms": 60_000, "request_timeout_ms": 90_000, "connections_max_idle_ms": 300_000}
    with (
        serving_node(manager) as (address, source),
        closing(KafkaPython(address, NAME, Isolation.READ_COMMITTED, **waits)) as reader,
    ):
        reader.seek(0)

        def commit() -> None:
            assert source.is_watched.wait(LIMIT_S)
            log.append_marker(1, 0, commit=True, now_ms=NOW)

        thread = threading.Thread(target=commit)
        thread.start()
        found = reader.consumer.poll(timeout_ms=30_000)
        thread.join()
        assert [each.offset for each in found[kafka.TopicPartition("t", 0)]] == [0]


def test_a_connected_client_finds_a_topic_that_is_created_later(manager: LogManager) -> None:
    manager.topics.create("first", 1, LOCAL, now_ms=NOW)

    async def read() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(
            "first", bootstrap_servers=address, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        try:
            assert await consumer.topics() == {"first"}
            await asyncio.to_thread(manager.topics.create, "t", 2, LOCAL, now_ms=NOW)
            await asyncio.to_thread(send, manager, 10)
            assert await consumer.topics() == {"first", "t"}
            consumer.subscribe(["t"])
            found: list[bytes | None] = []
            while len(found) < 10:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found += [each.value for each in records]
            assert consumer.partitions_for_topic("t") == {0, 1}
            return found
        finally:
            await consumer.stop()

    with serving_node(manager) as (address, _):
        assert asyncio.run(read()) == [b"value %d" % at for at in range(10)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_that_is_created_again_has_its_own_records(manager: LogManager, client: Client) -> None:
    with serving_node(manager) as (address, _):
        for count in (30, 20):
            manager.topics.create("t", 1, TIERED, now_ms=NOW)
            send(manager, count)
            with closing(client(address, NAME)) as consumer:
                consumer.seek(0)
                assert len(consumer.read_to_end()) == count
            manager.topics.delete("t", now_ms=NOW)
            settle(manager)
