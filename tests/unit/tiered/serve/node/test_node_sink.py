"""Appends to the logs of a manager: durability, duplicates, markers, and the states that refuse them."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from manager_world import NAME, NOW, TIERED, World

from local.errors import DiskFailed, Fenced, InvalidRequest, NotFound, OutOfOrderSequence, ProducerFenced
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Error
from tiered.serve.node.node_sink import FAILED_PAUSE_S, PROMPT_BYTES_MAX, SLOW_PAUSE_S, SLOW_S, NodeSink
from tiered.serve.node.producer_ids import AHEAD, BLOCK, FOREIGN_END, IGNORED_FROM
from tiered.serve.record_sink import Appended, RefusedBatch

RECORDS = [Record(b"k%d" % at, b"v%d" % at, NOW - at) for at in range(3)]


@pytest.fixture(autouse=True)
def the_distance_of_foreign_ids_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda below: 0)


@pytest.fixture
def manager() -> Iterator[LogManager]:
    with World().open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        yield manager


def sink(manager: LogManager, now_ms: int = NOW) -> NodeSink:
    return NodeSink(manager, lambda: now_ms)


def batch(
    sequence: int | None = None, *, epoch: int = 0, producer_id: int = 7, is_transactional: bool = False
) -> memoryview:
    producer = (
        {} if sequence is None else {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    )
    return memoryview(bytearray(encode_batch(RECORDS, is_transactional=is_transactional, **producer)))


def values(manager: LogManager, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes | None]:
    return [each.value for each in manager.reader(isolation).records(NAME, 0)]


def test_batches_are_stored_at_the_log_end_with_offsets_and_leader_epoch(manager: LogManager) -> None:
    made = sink(manager)
    assert made.append(NAME, batch()) == Appended(base_offset=0, next_offset=3, log_start_offset=0)
    assert made.append(NAME, batch()) == Appended(base_offset=3, next_offset=6, log_start_offset=0)
    stored = bytes(manager.partitions.find(NAME).log.read(3))
    expected = encode_batch(RECORDS, base_offset=3, leader_epoch=manager.partitions.find(NAME).log.leader_epoch)
    assert stored == expected
    assert values(manager) == [b"v0", b"v1", b"v2"] * 2


def test_a_flush_makes_all_appends_durable(manager: LogManager) -> None:
    made = sink(manager)
    log = manager.partitions.find(NAME).log
    made.append(NAME, batch())
    assert log.recovery_point == 0
    assert made.flush(NAME) == 3
    assert log.recovery_point == 3
    assert made.flush(NAME) == 3


def test_a_repeated_batch_of_a_producer_has_its_first_offsets(manager: LogManager) -> None:
    made = sink(manager)
    firsts = [made.append(NAME, batch(3 * at)) for at in range(6)]
    for at in range(1, 6):
        found = made.append(NAME, batch(3 * at))
        assert (found.base_offset, found.next_offset) == (firsts[at].base_offset, firsts[at].next_offset)
        assert (found.is_duplicate, found.log_append_time_ms) == (True, NOW), "as Kafka: the time of the batch"
    with pytest.raises(OutOfOrderSequence):
        made.append(NAME, batch(0))
    with pytest.raises(OutOfOrderSequence):
        made.append(NAME, batch(21))
    made.append(NAME, batch(0, epoch=1))
    with pytest.raises(ProducerFenced):
        made.append(NAME, batch(18))
    assert len(values(manager)) == 21


@pytest.mark.parametrize("others", [0, 40], ids=["alone", "with batches of others between"])
def test_batches_that_a_producer_repeats_after_a_restart_have_their_first_offsets(others: int) -> None:
    """The snapshot that a start reads has only the last batch of each producer."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        made, firsts = sink(manager), []
        for at in range(7):
            firsts.append(made.append(NAME, batch(3 * at)))
            for _ in range(others):
                made.append(NAME, batch())
            if at % 2:
                manager.partitions.find(NAME).log.roll(now_ms=NOW)
    with world.open() as manager:
        made, end = sink(manager), manager.partitions.find(NAME).log.next_offset
        for at in range(2, 7):
            assert made.append_now(NAME, batch(3 * at)) is None or at == 6
            found = made.append(NAME, batch(3 * at))
            assert (found.base_offset, found.next_offset) == (firsts[at].base_offset, firsts[at].next_offset)
            assert found.is_duplicate
        for wrong in (batch(3), batch(4), batch(24), batch(15, epoch=1)):
            with pytest.raises(OutOfOrderSequence):
                made.append(NAME, wrong)
        assert manager.partitions.find(NAME).log.next_offset == end
        assert made.append(NAME, batch(21)).base_offset == end


def test_an_unknown_producer_may_begin_with_any_sequence(manager: LogManager) -> None:
    assert sink(manager).append(NAME, batch(1000)).base_offset == 0


def test_a_repeated_batch_under_log_append_time_has_the_time_of_its_first_append(manager: LogManager) -> None:
    manager.topics.create("timed", 1, {"message.timestamp.type": "LogAppendTime"}, now_ms=NOW)
    timed = TopicPartition("timed", 0)
    assert sink(manager, NOW + 1).append(timed, batch(0)).log_append_time_ms == NOW + 1
    assert sink(manager, NOW + 9).append(timed, batch(0)).log_append_time_ms == NOW + 1
    assert sink(manager, NOW + 9).append(timed, batch(3)).log_append_time_ms == NOW + 9
    (found,) = {(each.timestamp_ms, each.timestamp_type) for each in list(manager.reader().records(timed, 0))[:3]}
    assert found == (NOW + 1, TimestampType.LOG_APPEND_TIME)


def test_the_settings_of_the_topic_apply(manager: LogManager) -> None:
    manager.topics.create("packed", 1, {"compression.type": "zstd", "cleanup.policy": "compact"}, now_ms=NOW)
    packed = TopicPartition("packed", 0)
    sink(manager).append(packed, batch())
    from log_world import header_of

    assert header_of(bytes(manager.partitions.find(packed).log.read(0))).codec is Codec.ZSTD
    with pytest.raises(RefusedBatch) as caught:
        sink(manager).append(packed, memoryview(bytearray(encode_batch([Record(None, b"v", NOW)]))))
    assert caught.value.error is Error.INVALID_RECORD


def test_a_marker_ends_a_transaction(manager: LogManager) -> None:
    made = sink(manager)
    for producer_id, is_commit in ((1, True), (2, False)):
        made.append(NAME, batch(0, producer_id=producer_id, is_transactional=True))
        with pytest.raises(InvalidRequest):
            made.append(NAME, batch(3, producer_id=producer_id))
        found = made.append_marker(NAME, producer_id, 0, is_commit=is_commit, coordinator_epoch=0)
        assert found.next_offset == found.base_offset + 1
    assert values(manager, Isolation.READ_COMMITTED) == [b"v0", b"v1", b"v2"]
    with pytest.raises(ProducerFenced):
        made.append_marker(NAME, 1, -1, is_commit=True, coordinator_epoch=0)


def test_a_coordinator_may_append_without_a_sequence(manager: LogManager) -> None:
    made = sink(manager)
    for _ in range(2):
        made.append(NAME, batch(-1, is_transactional=True), is_client=False)
    with pytest.raises(RefusedBatch):
        made.append(NAME, batch(-1, is_transactional=True))


def test_a_topic_that_was_created_again_is_another_topic(manager: LogManager) -> None:
    with pytest.raises(NotFound):
        sink(manager).append(NAME, batch(), topic_id=UUID(int=5))
    with pytest.raises(NotFound):
        sink(manager).append(TopicPartition("nope", 0), batch())


def test_a_fenced_partition_refuses_appends() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        for _ in range(30):
            sink(manager).append(NAME, batch())
        manager.partitions.roll("t", now_ms=NOW)
        with world.open(disk=world.other_disk()):
            manager.tick(NOW)
            with pytest.raises(Fenced):
                sink(manager).append(NAME, batch())


def test_producer_ids_begin_above_those_in_the_logs(manager: LogManager) -> None:
    made = sink(manager)
    made.append(NAME, batch(0, producer_id=500))
    assert [made.new_producer_id(), made.new_producer_id()] == [501 + AHEAD, 502 + AHEAD]


def test_producer_ids_of_logs_with_records_of_no_known_producer_begin_far_above_0(manager: LogManager) -> None:
    """A client of the lost node may use the id 0, whose producer has expired in the restored log."""
    assert sink(manager)._highest_producer_id() == -1
    sink(manager).append(NAME, batch())
    assert sink(manager).new_producer_id() == 1 + AHEAD


def test_no_client_moves_the_producer_ids_to_the_end_of_their_range(manager: LogManager) -> None:
    made = sink(manager)
    for producer_id in (FOREIGN_END, 2**63 - 1):
        with pytest.raises(RefusedBatch) as caught:
            made.append(NAME, batch(0, producer_id=producer_id))
        assert caught.value.error is Error.INVALID_PRODUCER_ID_MAPPING
        with pytest.raises(RefusedBatch):
            made.append_marker(NAME, producer_id, 0, is_commit=True, coordinator_epoch=0)
    made.append(NAME, batch(0, producer_id=FOREIGN_END - 1))
    for _ in range(2):
        again = sink(manager)
        new_id = again.new_producer_id()
        assert FOREIGN_END <= new_id < FOREIGN_END + AHEAD + 10 * BLOCK
        again.append(NAME, batch(0, producer_id=new_id))
    assert sink(manager).append(NAME, batch(3, producer_id=new_id)).next_offset == 12, "after a restart too"


def test_producer_ids_at_the_end_of_their_range_in_the_log_of_a_broker_are_ignored(manager: LogManager) -> None:
    log = manager.partitions.find(NAME).log
    for producer_id in (500, IGNORED_FROM, 2**63 - 1):
        log.append_encoded([batch(0, producer_id=producer_id)], now_ms=NOW)
    assert sink(manager).new_producer_id() == 501 + AHEAD


def test_after_a_crash_acknowledged_records_are_there_and_repeated_batches_are_known() -> None:
    """Everything before a flush survives any crash of the disk, with the sequences of its producers."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        made = sink(manager)
        producer_id = made.new_producer_id()
        for at in range(20):
            made.append(NAME, batch(3 * at, producer_id=producer_id))
        acknowledged = made.flush(NAME)
        for at in range(20, 25):
            made.append(NAME, batch(3 * at, producer_id=producer_id))
        disks = [world.disk.crash(random.Random(seed)) for seed in range(30)]
    for disk in disks:
        with world.open(disk=disk) as manager:
            log = manager.partitions.find(NAME).log
            assert log.next_offset >= acknowledged
            again = sink(manager)
            found = again.append(NAME, batch(log.next_offset - 3, producer_id=producer_id))
            assert (found.is_duplicate, found.next_offset) == (True, log.next_offset)
            assert again.append(NAME, batch(log.next_offset, producer_id=producer_id)).base_offset == found.next_offset
            assert again.new_producer_id() > producer_id


def appended_now(made: NodeSink, records: memoryview | None = None, *, waits: bool = False) -> Appended | None:
    return made.append_now(NAME, batch() if records is None else records, waits=waits)


def test_an_append_without_a_wait_is_that_of_the_log(manager: LogManager) -> None:
    made = sink(manager)
    made.append(NAME, batch())  # the first leader epoch
    assert appended_now(made) == Appended(base_offset=3, next_offset=6, log_start_offset=0)
    assert values(manager) == [b"v0", b"v1", b"v2"] * 2
    assert appended_now(made, batch(0)) == Appended(base_offset=6, next_offset=9, log_start_offset=0)
    repeated = appended_now(made, batch(0))
    assert repeated is not None
    assert (repeated.base_offset, repeated.is_duplicate) == (6, True)
    assert appended_now(made, batch(9)) is None, "the search in the log may take long"
    with pytest.raises(OutOfOrderSequence):
        made.append(NAME, batch(9))
    with pytest.raises(NotFound):
        made.append_now(TopicPartition("nope", 0), batch())


def test_a_producer_id_that_the_ids_of_all_logs_decide_is_left_to_append(manager: LogManager) -> None:
    """The lock of the producer ids is taken before those of the logs: the other order is a deadlock."""
    made = sink(manager)
    made.append(NAME, batch())
    with made._producer_ids._lock:
        assert appended_now(made, batch(0, producer_id=FOREIGN_END)) is None
    with pytest.raises(RefusedBatch):
        made.append(NAME, batch(0, producer_id=FOREIGN_END))


def test_a_batch_that_may_repeat_one_under_log_append_time_is_left_to_append(manager: LogManager) -> None:
    manager.topics.create("timed", 1, {"message.timestamp.type": "LogAppendTime"}, now_ms=NOW)
    made, timed = sink(manager), TopicPartition("timed", 0)
    made.append(timed, batch())
    assert made.append_now(timed, batch()) is not None
    assert made.append_now(timed, batch(0)) is None


def test_after_a_failed_append_the_event_loop_appends_nothing_for_a_time(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    made = NodeSink(manager, lambda: NOW, lambda: now_s)
    made.append(NAME, batch())
    log = manager.partitions.find(NAME).log

    def fail(*args: object, **more: object) -> None:
        raise DiskFailed("cannot write", path="a")

    with monkeypatch.context() as patch:
        patch.setattr(log, "append_encoded", fail)
        with pytest.raises(DiskFailed):
            appended_now(made)
    assert appended_now(made) is None
    now_s = FAILED_PAUSE_S + 1
    assert appended_now(made) is not None


def test_the_first_append_of_a_leader_epoch_waits_for_its_file(manager: LogManager) -> None:
    made = sink(manager)
    assert appended_now(made) is None
    made.append(NAME, batch())
    assert appended_now(made) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"flush.messages": "1"},
        {"append.acks": "remote"},
        {"compression.type": "zstd"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_an_append_that_may_wait_for_a_disk_or_the_bucket_is_left_to_append(settings: dict[str, str]) -> None:
    with World().open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        made = sink(manager, NOW + 10)
        made.append(NAME, batch())
        assert appended_now(made, waits=True) is not None
        manager.topics.alter("t", settings, now_ms=NOW + 10)
        before = manager.partitions.find(NAME).log.next_offset
        records = batch()
        assert appended_now(made, records, waits=True) is None
        assert (records, manager.partitions.find(NAME).log.next_offset) == (batch(), before)


def test_large_and_compressed_batches_are_left_to_append(manager: LogManager) -> None:
    made = sink(manager)
    made.append(NAME, batch())
    compressed = encode_batch(RECORDS, codec=Codec.GZIP)
    assert appended_now(made, memoryview(bytearray(compressed))) is None
    large = encode_batch([Record(None, bytes(PROMPT_BYTES_MAX), NOW)])
    assert appended_now(made, memoryview(bytearray(large))) is None


def test_an_append_does_not_wait_for_another_thread(manager: LogManager) -> None:
    made, log = sink(manager), manager.partitions.find(NAME).log
    made.append(NAME, batch())
    has_lock, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with log.lock:
            has_lock.set()
            may_end.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert has_lock.wait(60)
        assert appended_now(made) is None
    finally:
        may_end.set()
        holder.join()
    assert appended_now(made) is not None


def test_after_a_slow_append_the_event_loop_appends_nothing_for_a_time(manager: LogManager) -> None:
    times = iter([0.0, 2 * SLOW_S, 3 * SLOW_S, 1.9 * SLOW_S + SLOW_PAUSE_S, 10.0, 10.0])
    made = NodeSink(manager, lambda: NOW, lambda: next(times))
    made.append(NAME, batch())
    assert appended_now(made) is not None
    assert appended_now(made) is None
    assert appended_now(made) is None
    assert appended_now(made) is not None


def test_a_roll_that_the_jitter_of_the_log_may_bring_forward_is_left_to_append() -> None:
    with World().open() as manager:
        manager.topics.create("t", 1, {"segment.ms": "1000", "segment.jitter.ms": "1000"}, now_ms=NOW)
        made = sink(manager)
        made.append(NAME, batch())
        later = [Record(b"k", b"v", NOW + 500)]
        assert appended_now(made, memoryview(bytearray(encode_batch(later)))) is None
        assert appended_now(made) is not None
