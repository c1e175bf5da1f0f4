"""A bucket as a source of records: as new as its refresh, equal to the project's own reader, usable without a store."""

from __future__ import annotations

from collections.abc import Generator
from uuid import UUID

import pytest
from manager_world import COMPACTED, HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle
from served_bucket import TOPICS, filled_store

from local import kernels
from local.errors import NotFound, OffsetOutOfRange, Unavailable
from local.format.batch_header import read_header
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.read.partition_source import PartitionSource
from tiered.serve import bucket_source
from tiered.serve.bucket_source import BucketSource
from tiered.serve.open_streams import STREAMS_MAX, Stream, gap

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


@pytest.fixture(scope="module")
def bucket() -> RemoteLog:
    return RemoteLog(filled_store())


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _grow(manager: LogManager, start: int, count: int = 100) -> None:
    send(manager, count, start=start)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)


def _read_all(source: BucketSource, name: TopicPartition, isolation: Isolation, bytes_max: int) -> list[int]:
    """The offsets of a consumer that reads on from one read to the next, in the order of the reads."""
    found: list[int] = []
    offset = source.bounds(name).log_start_offset
    while True:
        read = source.read(name, offset, isolation=isolation, bytes_max=bytes_max)
        if not read.runs:
            return found
        for run in read.runs:
            assert read.size_bytes <= bytes_max or len(read.runs) == 1
            columns = kernels.decode_columns(run, verify=True)
            found += [int(each) for each in columns.offsets if each >= offset]
            offset = int(kernels.scan_batches(run).last_offsets[-1]) + 1


@pytest.mark.parametrize("bytes_max", [1, 700, 5000, 1 << 20])
def test_reads_that_continue_see_every_stored_record_once(bucket: RemoteLog, bytes_max: int) -> None:
    source = BucketSource(bucket, Clock())
    for name in (name for topic in TOPICS for name in bucket.partitions(topic)):
        stored = [int(each) for run in bucket.reader().columns(name, 0) for each in run.offsets]
        read = _read_all(source, name, UNCOMMITTED, bytes_max)
        data_offsets = [each.offset for each in bucket.reader().records(name, 0)]
        assert set(data_offsets) <= set(read)
        assert [each for each in read if each in set(stored)] == stored
    source.close()


def test_committed_reads_name_the_aborted_transactions_of_their_range(bucket: RemoteLog) -> None:
    source, name = BucketSource(bucket, Clock()), TopicPartition("banking", 0)
    for offset in (0, 30, 100):
        read = source.read(name, offset, isolation=COMMITTED, bytes_max=2000)
        end = int(kernels.scan_batches(read.runs[-1]).last_offsets[-1]) + 1
        assert list(read.aborted or ()) == bucket.reader(COMMITTED).aborted_transactions(name, offset, end)
    assert source.read(name, 0, isolation=UNCOMMITTED, bytes_max=2000).aborted is None
    source.close()


def test_committed_reads_end_at_the_last_stable_offset_without_a_batch_for_the_rest(
    bucket: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionSource, "stable_end", lambda self: 42)  # a batch begins there
    source, name = BucketSource(bucket, Clock()), TopicPartition("banking", 0)
    assert source.bounds(name).last_stable_offset == 42 < source.bounds(name).high_watermark
    assert max(_read_all(source, name, COMMITTED, 1 << 20)) == 41
    for offset in (42, 50):
        assert not source.read(name, offset, isolation=COMMITTED, bytes_max=100).runs
        assert source.read(name, offset, isolation=UNCOMMITTED, bytes_max=100).runs
    source.close()


def test_a_manifest_that_ends_earlier_during_a_read_makes_no_empty_batch(
    bucket: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, name = BucketSource(bucket, Clock()), TopicPartition("plain", 0)
    source.bounds(name)
    monkeypatch.setattr(PartitionSource, "next_offset", lambda self: 100)
    assert not source.read(name, 100, isolation=UNCOMMITTED, bytes_max=100).runs
    source.close()


def test_a_consumer_that_reads_on_uses_one_stream(bucket: RemoteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    class CountedStream(Stream):
        def __init__(self, runs: Generator[memoryview], offset: int) -> None:
            opened.append(offset)
            super().__init__(runs, offset)

    monkeypatch.setattr(bucket_source, "Stream", CountedStream)
    source, name = BucketSource(bucket, Clock()), TopicPartition("plain", 0)
    assert len(_read_all(source, name, UNCOMMITTED, 700)) == 400
    assert opened == [0]
    source.close()


def test_a_read_at_once_continues_the_stream_of_a_consumer(bucket: RemoteLog) -> None:
    source, name = BucketSource(bucket, Clock()), TopicPartition("plain", 0)
    assert source.read_now(name, 0, isolation=UNCOMMITTED, bytes_max=700) is None, "the partition is not known"
    expected, found, at_once, offset = _read_all(source, name, UNCOMMITTED, 700), list[int](), 0, 0
    while offset < source.bounds(name).high_watermark:
        read = source.read_now(name, offset, isolation=UNCOMMITTED, bytes_max=700)
        at_once += read is not None
        read = read or source.read(name, offset, isolation=UNCOMMITTED, bytes_max=700)
        for run in read.runs:
            found += [int(each) for each in kernels.decode_columns(run).offsets if each >= offset]
            offset = int(kernels.scan_batches(run).last_offsets[-1]) + 1
    assert found == expected
    assert at_once > 10
    source.close()


def test_the_end_is_read_at_once_until_the_manifest_is_old(bucket: RemoteLog) -> None:
    clock = Clock()
    source, name = BucketSource(bucket, clock), TopicPartition("banking", 0)
    assert source.topics_now() is None
    topics, bounds = source.topics(), source.bounds(name)
    assert source.topics_now() is topics
    ends = {UNCOMMITTED: bounds.high_watermark, COMMITTED: bounds.last_stable_offset}
    for isolation, end in ends.items():
        read = source.read_now(name, end, isolation=isolation, bytes_max=1)
        assert read is not None
        assert (read.bounds, list(read.runs)) == (bounds, [])
        for outside in (-1, bounds.high_watermark + 1):
            assert source.read_now(name, outside, isolation=isolation, bytes_max=1) is None
    assert source.read_now(name, 0, isolation=COMMITTED, bytes_max=1) is None
    clock.now_s = bucket_source.REFRESH_S
    assert source.read_now(name, bounds.high_watermark, isolation=UNCOMMITTED, bytes_max=1) is None
    clock.now_s = bucket_source.LIST_S
    assert source.topics_now() is None
    source.close()


def test_offsets_outside_the_log_are_refused_and_its_end_is_empty(bucket: RemoteLog) -> None:
    source, name = BucketSource(bucket, Clock()), TopicPartition("plain", 0)
    end = source.bounds(name).high_watermark
    assert not source.read(name, end, isolation=UNCOMMITTED, bytes_max=100).runs
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRange):
            source.read(name, offset, isolation=UNCOMMITTED, bytes_max=100)
    source.close()


def test_topics_have_their_ids_and_partitions(bucket: RemoteLog) -> None:
    source = BucketSource(bucket, Clock())
    topics = source.topics()
    assert {name: each.partitions for name, each in topics.items()} == {
        name: (0, 1) if name == "plain" else (0,) for name in TOPICS
    }
    assert len({each.topic_id for each in topics.values()}) == len(TOPICS)
    assert all(isinstance(each.topic_id, UUID) for each in topics.values())
    assert len(source.cluster_id) == 22
    source.close()


def test_epochs_are_those_of_the_segment_entries() -> None:
    world = World()
    for start in (0, 100):  # every open raises the epoch
        with world.open() as manager:
            if not start:
                manager.topics.create("t", 1, TIERED, now_ms=NOW)
            _grow(manager, start)
    source = BucketSource(RemoteLog(world.store), Clock())
    epochs = source.epochs(NAME)
    assert [start for _, start in epochs] == [0, 100]
    assert epochs[0][0] < epochs[1][0] == source.bounds(NAME).leader_epoch
    source.close()


def test_a_manifest_is_requested_again_after_the_refresh_time() -> None:
    world, clock = World(), Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        _grow(manager, 0)
        source = BucketSource(RemoteLog(world.store), clock, refresh_s=5, list_s=5)
        assert source.bounds(NAME).high_watermark == 100
        _grow(manager, 100)
        clock.now_s = 4.9
        assert source.bounds(NAME).high_watermark == 100
        clock.now_s = 5
        assert source.bounds(NAME).high_watermark == 200
        source.close()


def test_a_watch_is_notified_only_of_its_partitions_and_only_of_news() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        _grow(manager, 0)
        source, calls = BucketSource(RemoteLog(world.store), Clock(), refresh_s=1e6), list[str]()
        source.bounds(NAME)
        other = TopicPartition("other", 0)
        with (
            source.watch([NAME], lambda name: calls.append("t")),
            source.watch([other], lambda name: calls.append("other")),
        ):
            source.refresh([NAME])
            assert calls == []
            _grow(manager, 100)
            source.refresh([NAME])
            assert calls == ["t"]
            assert source.bounds(NAME).high_watermark == 200
        source.refresh([NAME])
        assert calls == ["t"]
        source.close()


def test_known_records_are_served_while_the_store_is_down() -> None:
    world, clock = World(), Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        _grow(manager, 0)
    store = SwitchableStore(world.store, is_down=False)
    source = BucketSource(RemoteLog(store), clock, refresh_s=5, list_s=5)  # type: ignore[arg-type]
    assert len(source.topics()) == 1
    before = source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1 << 20)
    store.is_down = True
    clock.now_s = 100
    assert len(source.topics()) == 1
    after = source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=1 << 20)
    assert [bytes(each) for each in after.runs] == [bytes(each) for each in before.runs]
    source.close()
    cold = BucketSource(RemoteLog(store), clock)  # type: ignore[arg-type]
    for call in (cold.topics, lambda: cold.bounds(NAME)):
        with pytest.raises(Unavailable):
            call()


def test_a_deleted_topic_ends_and_a_new_one_of_its_name_is_found() -> None:
    world, clock = World(), Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        _grow(manager, 0)
        source = BucketSource(RemoteLog(world.store), clock, refresh_s=1, list_s=1)
        first = source.topics()["t"].topic_id
        assert source.bounds(NAME).high_watermark == 100
        manager.topics.delete("t", now_ms=NOW)
        settle(manager)
        clock.now_s = 10
        with pytest.raises(NotFound):
            source.read(NAME, 0, isolation=UNCOMMITTED, bytes_max=100)
        assert "t" not in source.topics()
        manager.topics.create("t", 1, TIERED, now_ms=NOW + HOUR)
        _grow(manager, 0, 40)
        clock.now_s = 20
        assert source.topics()["t"].topic_id != first
        assert source.bounds(NAME).high_watermark == 40
        source.close()


def test_offsets_without_records_at_the_end_are_one_empty_batch() -> None:
    (run,) = gap(70, 100)
    header = read_header(run)
    assert header is not None
    assert (header.base_offset, header.last_offset, header.record_count, header.producer_id) == (70, 99, 0, -1)
    table = kernels.scan_batches(run, verify=True)
    assert (len(table), table.problem) == (1, None)
    assert len(kernels.decode_columns(run, verify=True)) == 0
    (run,) = gap(0, 2**40)
    assert read_header(run).last_offset == 2**31 - 1  # type: ignore[union-attr]


def test_a_bounded_number_of_streams_stays_open(bucket: RemoteLog) -> None:
    source, name = BucketSource(bucket, Clock()), TopicPartition("plain", 0)
    for offset in range(0, 380, 3):
        source.read(name, offset, isolation=UNCOMMITTED, bytes_max=1)
    assert len(source._streams) <= STREAMS_MAX
    source.close()
    assert not source._streams


def test_compaction_of_everything_but_the_end_is_crossed_in_one_read() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**COMPACTED, "min.compaction.lag.ms": "0"}, now_ms=NOW)
        send(manager, 400, keys=1)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        settle(manager)
    source = BucketSource(RemoteLog(world.store), Clock())
    bounds = source.bounds(NAME)
    read = source.read(NAME, bounds.log_start_offset, isolation=UNCOMMITTED, bytes_max=1 << 20)
    assert read.runs
    source.close()
