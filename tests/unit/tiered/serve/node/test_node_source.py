"""A running node as a source of records: equal to its own reader, as new as the last append, honest about problems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest
from broken_disk import BrokenDisk
from manager_world import HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle
from served_bucket import TOPICS, fill, log_of

from local import kernels
from local.errors import DiskFailed, Diverged, Fenced, NotFound, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.handlers.service import BROKER_ID
from tiered.serve.node import node_source
from tiered.serve.node.node_source import NodeSource
from tiered.serve.open_streams import Stream
from tiered.serve.record_source import Leader

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
LOCAL = {"remote.storage.enable": "false"}


@pytest.fixture(scope="module")
def filled() -> Iterator[LogManager]:
    """Topics of every kind: most records in the bucket alone, the last ones on the disk alone."""
    with World().open() as manager:
        fill(manager)
        settle(manager, NOW + HOUR)
        for topic in TOPICS:
            send(manager, 90, topic=topic, start=1000)
        transaction(log_of(manager, "banking"), 900, commit=False)
        transaction(log_of(manager, "banking"), 901, commit=True)
        yield manager


@pytest.fixture
def manager() -> Iterator[LogManager]:
    with World().open() as manager:
        yield manager


def transaction(log: Log, producer_id: int, *, commit: bool | None) -> None:
    """Three records of a transaction, which stays open for None."""
    producer = Producer(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"v", NOW)] * 3, now_ms=NOW, producer=producer)
    if commit is not None:
        log.append_marker(producer_id, 0, commit=commit, now_ms=NOW)


def read_all(source: NodeSource, name: TopicPartition, isolation: Isolation, bytes_max: int) -> list[int]:
    """The offsets of a consumer that reads on from one read to the next, in the order of the reads."""
    found: list[int] = []
    offset = source.bounds(name).log_start_offset
    while True:
        read = source.read(name, offset, isolation=isolation, bytes_max=bytes_max)
        if not read.runs:
            return found
        for run in read.runs:
            assert read.size_bytes <= bytes_max or len(read.runs) == 1
            found += [int(each) for each in kernels.decode_columns(run, verify=True).offsets if each >= offset]
            offset = int(kernels.scan_batches(run).last_offsets[-1]) + 1


def names(manager: LogManager) -> list[TopicPartition]:
    return [name for topic in manager.topics.all() for name in topic.partitions()]


@pytest.mark.parametrize("bytes_max", [1, 700, 5000, 1 << 20])
@pytest.mark.parametrize("isolation", list(Isolation))
def test_reads_that_continue_see_both_tiers_once(filled: LogManager, isolation: Isolation, bytes_max: int) -> None:
    source = NodeSource(filled)
    for name in names(filled):
        log = filled.partitions.find(name).log
        stored = [int(each) for run in filled.reader().columns(name, 0) for each in run.offsets]
        assert stored[0] < log.local_log_start_offset
        assert read_all(source, name, isolation, bytes_max) == stored
    source.close()


def test_a_consumer_of_remote_records_uses_one_stream(filled: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    class CountedStream(Stream):
        def __init__(self, *words: object) -> None:
            opened.append(words[1])  # type: ignore[arg-type]
            super().__init__(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(node_source, "Stream", CountedStream)
    source = NodeSource(filled)
    read_all(source, TopicPartition("plain", 0), UNCOMMITTED, 700)
    assert opened == [0]
    assert len(source._streams) == 0, "a stream ends where the local log begins"


def test_committed_reads_name_the_aborted_transactions_of_their_range(filled: LogManager) -> None:
    source, name = NodeSource(filled), TopicPartition("banking", 0)
    reader = filled.reader(COMMITTED)
    local_start = filled.partitions.find(name).log.local_log_start_offset
    end = source.bounds(name).high_watermark
    for offset in (0, 30, 100, local_start, end - 8, end - 4):
        read = source.read(name, offset, isolation=COMMITTED, bytes_max=2000)
        read_end = int(kernels.scan_batches(read.runs[-1]).last_offsets[-1]) + 1
        assert list(read.aborted or ()) == reader.aborted_transactions(name, offset, read_end)
    assert source.read(name, 0, isolation=UNCOMMITTED, bytes_max=2000).aborted is None
    assert source.read(name, end - 8, isolation=COMMITTED, bytes_max=1).aborted, "the transaction on the disk"
    source.close()


def test_committed_reads_end_at_the_first_open_transaction(manager: LogManager) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    source, log = NodeSource(manager), log_of(manager, "t")
    send(manager, 20)
    transaction(log, 1, commit=None)
    bounds = source.bounds(NAME)
    assert (bounds.log_start_offset, bounds.last_stable_offset, bounds.high_watermark) == (0, 20, 23)
    for offset in (20, 22, 23):
        read = source.read(NAME, offset, isolation=COMMITTED, bytes_max=1000)
        assert (list(read.runs), read.aborted, read.bounds) == ([], [], bounds)
    assert source.read(NAME, 20, isolation=UNCOMMITTED, bytes_max=1000).runs
    log.append_marker(1, 0, commit=True, now_ms=NOW)
    assert source.bounds(NAME).last_stable_offset == 24


def test_bounds_have_the_real_log_start_and_the_current_epoch() -> None:
    world = World()
    for opens in (1, 2):
        with world.open() as manager:
            if opens == 1:
                manager.topics.create("t", 1, TIERED, now_ms=NOW)
                send(manager, 100)
            settle(manager)
            source = NodeSource(manager)
            epoch = source.bounds(NAME).leader_epoch
            assert epoch == manager.partitions.find(NAME).log.leader_epoch
    manager = world.open()
    source = NodeSource(manager)
    assert source.bounds(NAME).leader_epoch == epoch + 1 == source.epochs(NAME)[-1][0]
    assert source.epochs(NAME)[-1] == (epoch + 1, 100), "no record has it yet, as after an election in Kafka"
    assert source.leaders(source.topics()["t"]) == {0: Leader(epoch=epoch + 1)}
    manager.maintenance.delete_records({NAME: 37}, now_ms=NOW)
    bounds = source.bounds(NAME)
    assert (bounds.log_start_offset, bounds.high_watermark) == (37, 100)
    assert source.read(NAME, 37, isolation=UNCOMMITTED, bytes_max=1).runs
    for offset in (-1, 36, 101):
        with pytest.raises(OffsetOutOfRange):
            source.read(NAME, offset, isolation=UNCOMMITTED, bytes_max=1)
    manager.close()


@pytest.mark.parametrize("isolation", list(Isolation))
def test_every_named_offset_is_that_of_the_manager(filled: LogManager, isolation: Isolation) -> None:
    source = NodeSource(filled)
    for name in names(filled):
        log = filled.partitions.find(name).log
        for spec in (-2, -3, -4, -5, -6, 0, NOW - HOUR, NOW + HOUR):
            expected = filled.list_offsets({name: spec}, isolation=isolation)[name]
            assert source.find_offset(name, spec, isolation) == expected
        end = log.last_stable_offset if isolation is COMMITTED else log.next_offset
        assert source.find_offset(name, -1, isolation) == FoundOffset(end, None, log.leader_epoch)
        local, tiered, pending = (source.find_offset(name, spec, isolation) for spec in (-4, -5, -6))
        assert local is not None
        assert local.offset == log.local_log_start_offset > 0
        assert tiered is not None
        assert pending is not None
        assert pending.offset == tiered.offset + 1
    source.close()


def test_a_topic_without_a_remote_tier_has_no_tiered_offsets(manager: LogManager) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    send(manager, 10)
    source = NodeSource(manager)
    assert [source.find_offset(NAME, spec, UNCOMMITTED) for spec in (-5, -6)] == [None, None]
    assert source.find_offset(NAME, -4, UNCOMMITTED) == FoundOffset(0, None, 0)


def test_topics_are_those_of_the_registry_at_every_moment(manager: LogManager) -> None:
    source = NodeSource(manager)
    assert source.topics() == {}
    created = manager.topics.create("t", 3, TIERED, now_ms=NOW)
    first = source.topics()
    assert first["t"].partitions == (0, 1, 2)
    assert isinstance(first["t"].topic_id, UUID)
    assert source.topics() is first, "an unchanged list is the same object"
    manager.topics.delete("t", now_ms=NOW)
    assert source.topics() == {}
    with pytest.raises(NotFound):
        source.bounds(NAME)
    again = manager.topics.create("t", 1, TIERED, now_ms=NOW)
    assert again.topic_id != created.topic_id
    assert source.topics()["t"].topic_id != first["t"].topic_id
    assert (len(source.cluster_id), source.broker_id) == (22, 1)


def test_an_append_notifies_the_watches_of_its_partition(manager: LogManager) -> None:
    for topic in ("t", "other"):
        manager.topics.create(topic, 1, LOCAL, now_ms=NOW)
    source, calls = NodeSource(manager), list[str]()
    other = TopicPartition("other", 0)
    with (
        source.watch([NAME], lambda name: calls.append("t")),
        source.watch([NAME, other], lambda name: calls.append("both")),
    ):
        send(manager, 10)
        assert calls == ["t", "both"]
        send(manager, 10, topic="other")
        assert calls == ["t", "both", "both"]
        transaction(log_of(manager, "t"), 7, commit=True)
        assert calls[3:] == ["t", "both"] * 2, "one for the records, one for the marker"
    send(manager, 10)
    assert len(calls) == 7
    assert not source._watchers._of


def test_a_notified_reader_sees_the_record(manager: LogManager) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    source, seen = NodeSource(manager), list[int]()
    with source.watch([NAME], lambda name: seen.append(source.bounds(NAME).high_watermark)):
        send(manager, 30)
    assert seen == [10, 20, 30]


def test_a_watch_of_a_topic_that_is_created_again_is_notified(manager: LogManager) -> None:
    source, calls = NodeSource(manager), list[int]()
    for _ in range(2):
        manager.topics.create("t", 1, LOCAL, now_ms=NOW)
        with source.watch([NAME, TopicPartition("missing", 0)], lambda name: calls.append(1)):
            send(manager, 10)
        manager.topics.delete("t", now_ms=NOW)
    assert calls == [1, 1]


def test_a_callback_that_fails_does_not_fail_the_append(manager: LogManager) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    source, calls = NodeSource(manager), list[int]()

    def fail(name: TopicPartition) -> None:
        raise ValueError("a defect of the reader")

    with source.watch([NAME], fail), source.watch([NAME], lambda name: calls.append(1)):
        send(manager, 10)
    assert calls == [1]
    assert source.bounds(NAME).high_watermark == 10


def test_a_read_continues_in_the_bucket_when_its_segment_is_dropped(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 100)
    source, log = NodeSource(manager), log_of(manager, "t")
    read = log.read

    def drop_first(*words: object, **more: object) -> memoryview:
        monkeypatch.setattr(log, "read", read)
        settle(manager)
        return read(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "read", drop_first)
    found = source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1)
    assert log.local_log_start_offset > 0
    assert kernels.scan_batches(found.runs[0]).base_offsets[0] == 0


def test_records_that_expire_during_a_committed_read_are_out_of_range(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    source, log = NodeSource(manager), log_of(manager, "t")
    transaction(log, 1, commit=False)
    send(manager, 100)
    aborted = source._aborted

    def expire_first(*words: object) -> object:
        manager.maintenance.delete_records({NAME: 90}, now_ms=NOW)
        return []

    monkeypatch.setattr(source, "_aborted", expire_first)
    with pytest.raises(OffsetOutOfRange):
        source.read(NAME, 0, isolation=COMMITTED, bytes_max=100)
    monkeypatch.setattr(source, "_aborted", aborted)


def test_local_records_are_served_while_the_bucket_is_down() -> None:
    world = World()
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        send(manager, 20, start=100)
        source, log = NodeSource(manager), log_of(manager, "t")
        store.is_down = True
        assert source.bounds(NAME).high_watermark == 120
        assert source.read(NAME, log.local_log_start_offset, isolation=UNCOMMITTED, bytes_max=1).runs
        with pytest.raises(Unavailable):
            source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1)
        store.is_down = False
        assert source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1).runs


def test_a_fenced_partition_has_no_leader_here_and_others_are_served() -> None:
    world = World()
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        first.topics.create("local", 1, LOCAL, now_ms=NOW)
        send(first, 100)
        send(first, 10, topic="local")
        settle(first)
        source = NodeSource(first)
        with world.open(disk=world.other_disk()):
            send(first, 50, start=100)
            first.partitions.roll("t", now_ms=NOW)
            first.tick(NOW)
        assert isinstance(first.problems[NAME], Fenced)
        for call in (source.bounds, source.epochs, lambda name: source.find_offset(name, -1, UNCOMMITTED)):
            with pytest.raises(Fenced):
                call(NAME)
        leader = source.leaders(source.topics()["t"])[0]
        assert isinstance(leader.error, Fenced)
        assert not leader.is_offline
        assert source.read(TopicPartition("local", 0), 0, isolation=UNCOMMITTED, bytes_max=1).runs


def test_a_partition_on_an_offline_disk_has_no_leader_and_others_are_served() -> None:
    disk = BrokenDisk()
    config = replace(Config.load(None, {}, {}, local_dir="data"), data_dir="./a", more_data_dirs=("./b",))
    with LogManager.open(config, now_ms=NOW, storage=disk) as manager:
        manager.topics.create("t", 4, LOCAL, now_ms=NOW)
        for name in (TopicPartition("t", number) for number in range(4)):
            manager.append("t", [Record(b"k", b"v", NOW)] * 5, name.partition, now_ms=NOW)
        source = NodeSource(manager)
        lost, healthy = (manager.directories.partitions_of(root) for root in ("./a", "./b"))
        disk.broken["./a"] = "eio"
        with pytest.raises(DiskFailed):
            manager.append("t", [Record(b"k", b"v", NOW)], lost[0].partition, now_ms=NOW)
        leaders = source.leaders(source.topics()["t"])
        for name in lost:
            with pytest.raises(DiskFailed):
                source.read(name, 0, isolation=UNCOMMITTED, bytes_max=1)
            assert source.read_now(name, 0, isolation=UNCOMMITTED, bytes_max=1) is None
            assert leaders[name.partition].is_offline
            assert isinstance(leaders[name.partition].error, DiskFailed)
        for name in healthy:
            assert source.read(name, 0, isolation=UNCOMMITTED, bytes_max=1).runs
            assert leaders[name.partition] == Leader(epoch=0)
        with source.watch([*lost, *healthy], lambda name: None):
            pass
        del disk.broken["./a"]


def test_a_diverged_partition_raises_its_error(manager: LogManager) -> None:
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 100)
    source = NodeSource(manager)
    manager.partitions.note(NAME, Diverged("the tiers contradict each other", partition=NAME))
    with pytest.raises(Diverged):
        source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1)
    with source.watch([NAME], lambda name: None):
        pass


def test_the_end_of_the_log_is_empty_and_removed_records_at_it_are_one_batch(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.topics.create("t", 1, LOCAL, now_ms=NOW)
    send(manager, 10)
    source, log = NodeSource(manager), log_of(manager, "t")
    assert not source.read(NAME, 10, isolation=UNCOMMITTED, bytes_max=1).runs
    monkeypatch.setattr(log, "read", lambda *words, **more: memoryview(b""))
    (run,) = source.read(NAME, 4, isolation=UNCOMMITTED, bytes_max=1).runs
    assert (kernels.scan_batches(run).base_offsets[0], kernels.scan_batches(run).last_offsets[0]) == (4, 9)

    def cut(*words: object, **more: object) -> memoryview:
        log.cuts += 1  # the log end fell during the read
        return memoryview(b"")

    monkeypatch.setattr(log, "read", cut)
    assert not source.read(NAME, 4, isolation=UNCOMMITTED, bytes_max=1).runs


def test_read_only_source_of_a_directory_that_no_manager_has_written_to_has_no_ids() -> None:
    with World().open(read_only=True) as manager, closing(NodeSource(manager)) as source:
        assert (source.cluster_id, source.broker_id, source.topics()) == ("", BROKER_ID, {})
