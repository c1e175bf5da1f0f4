"""The manager over both tiers, with a simulated disk and a memory store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import Conflict, Corrupt, Fenced, NotFound, OffsetOutOfRange
from local.format.record import Record
from local.names import TopicPartition
from policies.decisions import CleanLog, CopySegment, DeletePending, ExpireRemote, Plan
from tiered.maintenance import apply
from tiered.manager.manager import LogManager
from tiered.partition.partition_status import partition_status
from tiered.read.bucket_reader import RemoteLog


@pytest.fixture
def world() -> World:
    return World()


def test_reader_returns_every_record_of_both_tiers_in_one_stream(world: World) -> None:
    with world.open() as manager:
        keep_some = {**TIERED, "local.retention.ms": "-2", "local.retention.bytes": "2500"}
        manager.topics.create("t", 1, keep_some, now_ms=NOW)
        sent = send(manager, 300)
        settle(manager)
        status = partition_status(manager.snapshots(NOW)[0])
        assert status.remote_segments >= 3
        assert 0 < status.local_start_offset < status.next_offset
        for start in (0, 1, 99, status.local_start_offset - 1, status.local_start_offset, 299):
            assert values(manager.reader(), start) == [(at, sent[at].value) for at in range(start, 300)]
        assert values(manager.reader(), 50, 60) == [(at, sent[at].value) for at in range(50, 60)]


def test_offset_in_both_tiers_is_read_without_the_store(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        counts = manager.store.counts()
        assert len(values(manager.reader())) == 300
        assert manager.reader().offset_for_timestamp(NAME, NOW - DAY + 100) == 100
        assert manager.store.counts() == counts


def test_idle_manager_sends_no_request(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 3, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        counts = manager.store.counts()
        for _ in range(5):
            assert not manager.tick(NOW)
        assert manager.store.counts() == counts


def test_timestamp_is_searched_in_both_tiers(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        sent = send(manager, 300)
        settle(manager)
        for target in (0, NOW - DAY, NOW - DAY + 1, NOW - DAY + 120, NOW - DAY + 299):
            expected = next(at for at, record in enumerate(sent) if record.timestamp_ms >= target)
            assert manager.reader().offset_for_timestamp(NAME, target) == expected
        assert manager.reader().offset_for_timestamp(NAME, NOW) is None


def test_bucket_alone_returns_the_copied_records(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        sent = send(manager, 300)
        settle(manager)
        end = partition_status(manager.snapshots(NOW)[0]).remote_next_offset
    bucket = RemoteLog(world.store)
    assert bucket.topics() == ["t"]
    assert bucket.partitions("t") == [NAME, TopicPartition("t", 1)]
    assert bucket.reader().offsets(NAME) == (0, end)
    assert values(bucket.reader()) == [(at, sent[at].value) for at in range(end or 0)]
    with pytest.raises(NotFound, match="topic=u"):
        bucket.partitions("u")


def test_offset_beyond_the_bucket_is_out_of_range_for_a_bucket_reader(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
    reader = RemoteLog(world.store).reader()
    with pytest.raises(OffsetOutOfRange, match="offset=101"):
        list(reader.batches(NAME, 101))


def test_compacted_topic_is_cleaned_before_its_first_upload(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
        sent = send(manager, 300, keys=9)
        manager.partitions.roll("t", now_ms=NOW)
        first = manager.plan(NOW).decisions[NAME]
        assert not any(isinstance(decision, CopySegment) for decision in first)
        settle(manager)
        snapshot = manager.snapshots(NOW)[0]
        assert all((entry.cleaned_through or 0) >= entry.next_offset for entry in snapshot.remote)
        assert sum(entry.record_count for entry in snapshot.remote) == 9
        assert snapshot.remote_next_offset == 300
        newest = {record.key: (at, record.value) for at, record in enumerate(sent)}
        assert {r.key: (r.offset, r.value) for r in manager.reader().records(NAME, 0)} == newest


def test_maintenance_of_a_compacted_topic_keeps_the_newest_records(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
        sent: list[Record] = []
        for turn in range(5):
            sent += send(manager, 100, start=turn * 100, keys=5 + turn)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
            newest = {record.key: record.value for record in sent}
            assert {r.key: r.value for r in manager.reader().records(NAME, 0)} == newest


def test_remote_retention_expires_entries_and_deletes_objects_after_the_grace_period(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        objects = len(list(world.store.list("")))
        later = NOW + 2 * DAY
        assert any(isinstance(decision, ExpireRemote) for decision in manager.plan(later).decisions[NAME])
        settle(manager, later)
        assert manager.reader().offsets(NAME) == (300, 300)
        assert partition_status(manager.snapshots(later)[0]).unlinked_bytes > 0
        assert len(list(world.store.list(""))) > objects
        with pytest.raises(OffsetOutOfRange):
            list(manager.reader().batches(NAME, 0))
        assert not manager.tick(later + HOUR - 1)
        assert any(isinstance(d, DeletePending) for d in manager.plan(later + HOUR).decisions[NAME])
        settle(manager, later + HOUR)
        assert [info.key for info in world.store.list("") if "/data/" in info.key] == []


def test_reader_with_an_old_manifest_reads_on_until_the_grace_period_ends(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        sent = send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        view = RemoteLog(world.store, cache_bytes=1)
        assert view.reader().offsets(NAME) == (0, 300)
        settle(manager, NOW + 2 * DAY)
        assert len(values(view.reader())) == len(sent)
        settle(manager, NOW + 2 * DAY + HOUR)
        with pytest.raises(OffsetOutOfRange, match="first_offset=300"):
            values(view.reader())


@pytest.mark.damages_bucket
def test_lost_object_that_a_manifest_names_is_corrupt(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    lost = next(info.key for info in world.store.list("") if info.key.endswith(".log"))
    world.store.delete([lost])
    with pytest.raises(Corrupt, match="its object is missing"):
        values(RemoteLog(world.store).reader())


@pytest.mark.damages_bucket
def test_flipped_bit_in_the_bucket_raises_corrupt(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    key = next(info.key for info in world.store.list("") if info.key.endswith(".log"))
    body = bytearray(world.store.get(key))
    body[len(body) // 2] ^= 4
    world.store.put(key, bytes(body))
    with pytest.raises(Corrupt, match="checksum differs"):
        values(RemoteLog(world.store).reader())


def test_corrupt_local_segment_is_never_copied_and_other_partitions_are(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("u", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        send(manager, 100, topic="u")
        path = "./data/t-0/00000000000000000000.log"
        world.disk.names[path].data[300] ^= 1
        while manager.tick(NOW):
            pass
        assert list(manager.problems) == [NAME]
        assert isinstance(manager.problems[NAME], Corrupt)
        assert path in str(manager.problems[NAME])
        statuses = {each.partition.topic: partition_status(each) for each in manager.snapshots(NOW)}
        assert statuses["t"].remote_segments == 0
        assert statuses["t"].local_start_offset == 0
        assert statuses["u"].remote_segments > 0


def test_second_manager_on_a_directory_is_refused_and_the_first_continues(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        with pytest.raises(Conflict, match=r"another manager has the log directory open.*directory=\./data"):
            world.open()
        send(manager, 10)
        settle(manager)


def test_second_manager_on_a_bucket_fences_the_first_which_loses_no_record(world: World) -> None:
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        settle(first)
        send(first, 100, start=100)
        elsewhere = world.other_disk()
        with world.open(disk=elsewhere) as second:
            entries = second.snapshots(NOW)[0].remote
            objects = {info.key for info in world.store.list("") if "/head/" in info.key}
            assert not any(result.done for result in first.apply(first.plan(NOW)).values())
            assert isinstance(first.problems[NAME], Fenced)
            assert {info.key for info in world.store.list("") if "/head/" in info.key} == objects
            assert second.snapshots(NOW)[0].remote == entries
        with pytest.raises(Fenced):
            send(first, 10, start=200)
        base_offset = first.snapshots(NOW)[0].segments[0].base_offset
        assert [at for at, _ in values_of_local(first)] == list(range(base_offset, 200))


def values_of_local(manager: LogManager) -> list[tuple[int, bytes | None]]:
    start = manager.snapshots(NOW)[0].segments[0].base_offset
    return [(r.offset, r.value) for r in manager.reader().records(NAME, start)]


def test_copy_of_segments_that_cleaning_merged_leaves_no_offset_gap(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning merges two segments that were to be copied. The third segment must wait for them.
    No plan contains such a copy any more, and a check refuses it. `apply` relies on neither."""
    monkeypatch.setattr(apply, "violations", lambda snapshot, decisions: [])
    settings = {**COMPACTED, "remote.copy.lag.ms": "1h", "local.retention.ms": "2h"}
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)

        def put(keys: str, count: int, at_ms: int, size: int) -> None:
            records = [Record(b"%s%d" % (key.encode(), at), b"v" * size, at_ms) for key in keys for at in range(count)]
            manager.append("t", records, 0, now_ms=at_ms)
            manager.partitions.roll("t", now_ms=at_ms)

        for keys in "abc":
            put(keys, 8 if keys != "c" else 9, NOW, 150)
        settle(manager, NOW + 3)
        later = NOW + HOUR + 1000
        put("ab", 7, later, 80)
        clean = next(each for each in manager.plan(later).decisions[NAME] if isinstance(each, CleanLog))
        copies = [
            CopySegment(base_offset=each.base_offset, next_offset=each.next_offset, size_bytes=1, reason="planned")
            for each in manager.snapshots(later)[0].closed[:3]
        ]
        assert [(each.base_offset, each.next_offset) for each in copies] == [(0, 8), (8, 16), (16, 25)]
        applied = manager.apply(Plan(now_ms=later, decisions={NAME: [clean, *copies]}))[NAME]
        assert (applied.done, applied.skipped) == ((clean,), tuple(copies))
        assert manager.snapshots(later)[0].remote == (), "the first entry would begin after an offset gap"
        settle(manager, later + 1000 * HOUR)
        mine = values(manager.reader())
    assert values(RemoteLog(world.store).reader()) == mine


def test_segment_is_not_copied_before_the_segments_below_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "violations", lambda snapshot, decisions: [])
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        plan = manager.plan(NOW)
        copies = [each for each in plan.decisions[NAME] if isinstance(each, CopySegment)]
        assert len(copies) >= 3
        applied = manager.apply(replace(plan, decisions={NAME: copies[1:]}))[NAME]
        assert (applied.done, applied.skipped) == ((), tuple(copies[1:]))
        assert manager.snapshots(NOW)[0].remote == ()
        settle(manager)
        assert len(values(manager.reader())) == 300


def test_timestamp_is_found_when_its_segment_is_dropped_during_the_lookup(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "1h"}, now_ms=NOW)
        send(manager, 300)
        log = manager.partitions.find(NAME).log
        real = log.offset_for_timestamp

        def after_a_round(timestamp_ms: int) -> int | None:
            settle(manager, NOW)
            return real(timestamp_ms)

        monkeypatch.setattr(log, "offset_for_timestamp", after_a_round)
        assert manager.reader().offset_for_timestamp(NAME, NOW - DAY + 5) == 5
        assert manager.snapshots(NOW)[0].segments[0].base_offset > 5
