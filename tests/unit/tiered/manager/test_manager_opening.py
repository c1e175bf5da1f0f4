"""Opening a manager: restarts, other machines, damage and changed settings."""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import Conflict, Corrupt, InvalidRequest, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.log.log_appender import LogAppender
from local.log.log_removal import LogRemoval
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments


@pytest.fixture
def world() -> World:
    return World()


def test_manager_on_an_empty_disk_continues_at_the_end_of_the_bucket(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        sent = send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    fresh = world.other_disk()
    with world.open(disk=fresh) as manager:
        assert manager.reader().offsets(NAME) == (0, 300)
        sent += send(manager, 100, start=300)
        settle(manager)
        assert values(manager.reader()) == [(at, record.value) for at, record in enumerate(sent)]
    with world.open(disk=fresh) as manager:
        assert values(manager.reader()) == [(at, record.value) for at, record in enumerate(sent)]


@pytest.mark.parametrize(
    ("taken", "restarts"),
    [(0, False), (0, True), (1, False), (1, True), (400, False), (400, True)],
)
def test_old_copy_of_a_disk_continues_only_if_its_records_are_in_the_bucket(
    world: World, taken: int, *, restarts: bool
) -> None:
    """It appends while the bucket is away.
    In the same epoch the bucket has other records at these offsets."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    old.locks.clear()
    away = SwitchableStore(world.store)
    manifests = [info.key for info in world.store.list("") if "/head/" in info.key]
    manager = world.open(disk=old, store=away)  # type: ignore[arg-type]
    send(manager, taken, start=1000)
    if restarts:
        manager.close()
        manager = world.open(disk=old)
    away.is_down = False
    with manager:
        manager.tick(NOW)
        log = manager.partitions.find(NAME).log
        if taken:
            assert isinstance(manager.problems[NAME], Conflict)
            assert [record.value for record in log.records(20)] == [b"value %d" % (1000 + at) for at in range(taken)]
            assert [info.key for info in world.store.list("") if "/head/" in info.key] == manifests, (
                "no writer may be fenced"
            )
        else:
            assert manager.problems == {}
            assert log.next_offset == 320


def test_old_copy_of_a_disk_is_not_compared_where_the_cleaner_has_been(world: World) -> None:
    """The old copy has no record that the bucket lacks.
    Its last batch was cleaned, so it differs from the batch in the bucket."""
    with world.open() as manager:
        keeps = {"local.retention.ms": "-1", "remote.recompaction.min.saved.bytes": "1000000"}
        manager.topics.create("t", 1, {**TIERED, **keeps, "min.cleanable.dirty.ratio": "0"}, now_ms=NOW)
        send(manager, 20)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        manager.topics.alter("t", {"cleanup.policy": "compact"}, now_ms=NOW)
        settle(manager, NOW + HOUR)
        held = manager.partitions.find(NAME)
        assert held.log.cleaner_reach == 20
        manager.topics.alter("t", {"cleanup.policy": "delete"}, now_ms=NOW)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + HOUR)
        manifest = held.manifest()
        assert manifest is not None
        assert manifest.segments[0].cleaned_through is None
    old.locks.clear()
    with world.open(disk=old) as manager:
        assert manager.problems == {}
        assert manager.partitions.find(NAME).log.next_offset == 320


def test_append_just_before_a_log_starts_over_is_kept_and_is_a_conflict(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append was admitted before the bucket was read. It was acknowledged without a comparison."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
    old = deepcopy(world.disk)
    with world.open() as manager:
        send(manager, 300, start=20)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    real = LogRemoval.restart_at

    def overtaken(log: LogRemoval, *args: object, **more: object) -> None:
        LogAppender(log._state).append([Record(b"k", b"late", NOW)], now_ms=NOW)
        real(log, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(LogRemoval, "restart_at", overtaken)
    with world.open(disk=old) as manager:
        assert isinstance(manager.problems[NAME], Conflict)
        log = manager.partitions.find(NAME).log
        assert (log.local_log_start_offset, log.next_offset) == (0, 21)
        assert [record.value for record in log.records(20)] == [b"late"]


def test_returning_writer_with_contradicting_records_is_refused_and_keeps_them(world: World) -> None:
    first = world.open()
    first.topics.create("t", 1, TIERED, now_ms=NOW)
    send(first, 100)
    settle(first)
    send(first, 50, start=100)
    first.close()
    mine = {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")}
    other = world.other_disk()
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        settle(second)
    manifests = [info.key for info in world.store.list("") if "/head/" in info.key]
    with world.open() as manager:
        assert isinstance(manager.problems[NAME], Conflict)
        for use in (lambda: send(manager, 1), lambda: values(manager.reader())):
            with pytest.raises(Conflict, match="another writer committed other records"):
                use()
        manager.tick(NOW)
    assert [info.key for info in world.store.list("") if "/head/" in info.key] == manifests, (
        "the other writer must not be fenced"
    )
    assert {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")} == mine


def test_older_epoch_in_the_bucket_contradicts_a_newer_local_epoch(world: World) -> None:
    """A takeover makes the first writer the writer again.
    The second one has appended at the same offsets before."""
    first = world.open()
    first.topics.create("t", 1, TIERED, now_ms=NOW)
    send(first, 100)
    settle(first)
    send(first, 200, start=100)
    first.close()
    other = world.other_disk()
    with world.open(disk=other) as second:
        end = second.reader().offsets(NAME)[1]
        send(second, 20, start=5000)
        own = values(second.reader(), end)
    with world.open(takes_over=True) as manager:
        settle(manager)
    with world.open(disk=other) as second:
        assert isinstance(second.problems[NAME], Conflict)
        second.tick(NOW)
        held = second.partitions.all()[0].log
        assert [(at, record.value) for at, record in enumerate(held.records(end), start=end)] == own


def test_all_records_are_readable_after_a_clean_restart(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        sent = send(manager, 300)
        settle(manager)
    with world.open() as manager:
        assert values(manager.reader()) == [(at, record.value) for at, record in enumerate(sent)]
        assert manager.topics.get("t").properties == TIERED


def test_read_only_manager_writes_nothing(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        effects, objects = world.disk.effects, len(list(world.store.list("")))
        with world.open(read_only=True) as seen:
            assert len(values(seen.reader())) == 300
            assert seen.plan(NOW).is_empty
            for change in (
                lambda: seen.append("t", [Record(None, b"v", 0)], now_ms=NOW),
                lambda: seen.tick(NOW),
                lambda: seen.topics.create("u", now_ms=NOW),
            ):
                with pytest.raises(InvalidRequest, match="read-only"):
                    change()
        assert (world.disk.effects, len(list(world.store.list("")))) == (effects, objects)


# -- one damaged partition -----------------------------------------------------------------------------------------


def _damage(world: World, path: str) -> None:
    world.disk.names[path].data += b"rubbish\n"


@pytest.mark.parametrize("read_only", [False, True])
def test_damaged_partition_does_not_affect_other_partitions(world: World, read_only: bool) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, {}, now_ms=NOW)
            send(manager, 20, topic=topic)
    _damage(world, "./data/t-0/leader-epoch-checkpoint")
    with world.open(read_only=read_only) as manager:
        assert list(manager.problems) == [NAME]
        assert isinstance(manager.problems[NAME], Corrupt)
        assert len(list(manager.reader().records(TopicPartition("u", 0), 0))) == 20
        assert [each.partition.topic for each in manager.snapshots(NOW)] == ["u"]
        with pytest.raises(Corrupt, match="leader-epoch-checkpoint"):
            values(manager.reader())
        if not read_only:
            send(manager, 10, topic="u", start=20)
            with pytest.raises(Corrupt, match="leader-epoch-checkpoint"):
                send(manager, 1)
            with pytest.raises(Corrupt, match="leader-epoch-checkpoint"):
                manager.partitions.roll("t", now_ms=NOW)
            manager.flush()
            manager.tick(NOW)
            assert list(manager.problems) == [NAME]


def test_directory_with_an_unopened_partition_is_not_marked_clean(world: World) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, {}, now_ms=NOW)
            send(manager, 20, topic=topic)
    marker = "./data/.kafka_cleanshutdown"
    assert marker in world.disk.names
    _damage(world, "./data/t-0/leader-epoch-checkpoint")
    world.open().close()
    assert marker not in world.disk.names, "the next start would trust its torn tail"
    world.disk.unlink("./data/t-0/leader-epoch-checkpoint")
    with world.open() as manager:
        assert manager.problems == {}
        assert len(values(manager.reader())) == 20


@pytest.mark.damages_bucket
def test_damaged_manifest_affects_only_its_partition(world: World) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, TIERED, now_ms=NOW)
            send(manager, 100, topic=topic)
        settle(manager)
    manifest = max(info.key for info in world.store.list("") if info.key.startswith("t-") and "/head/" in info.key)
    world.store.put(manifest, b"rubbish")
    with world.open() as manager:
        assert list(manager.problems) == [NAME]
        for use in (lambda: send(manager, 1), lambda: values(manager.reader())):
            with pytest.raises(Corrupt, match="head"):
                use()
        send(manager, 100, topic="u", start=100)
        manager.tick(NOW)
        assert list(manager.problems) == [NAME]
        assert len(list(manager.reader().records(TopicPartition("u", 0), 0))) == 200


# -- the tier disabled and enabled again ------------------------------------------------------------------------


def _write_and_tier(world: World, **settings: str) -> list[tuple[int, bytes | None]]:
    with world.open(**settings) as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "7d"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert manager.snapshots(NOW)[0].segments[0].base_offset == 300
        return values(manager.reader())


def test_tier_disabled_and_enabled_again_loses_no_record(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tiered")  # an earlier command in this process may have disabled the logger
    all_of_it = _write_and_tier(world)
    for _ in range(2):
        with world.open(remote_storage_enable="false") as manager:
            assert "remote.log.copy.disable" in caplog.text, "a warning must name the setting"
            assert manager.topics.get("t").was_tiered
            assert manager.reader().offsets(NAME)[0] == 0
            assert values(manager.reader())[:300] == all_of_it
            send(manager, 100)
            manager.partitions.roll("t", now_ms=NOW)
            copied = manager.snapshots(NOW)[0].remote_next_offset
            settle(manager)
            assert manager.snapshots(NOW)[0].remote_next_offset == copied, (
                "nothing may be copied while the tier is disabled"
            )
        with world.open(remote_storage_enable="false", read_only=True) as manager:
            assert values(manager.reader())[:300] == all_of_it
    with world.open() as manager:
        settle(manager)
        assert manager.reader().offsets(NAME) == (0, 500)
        assert values(manager.reader())[:300] == all_of_it
        assert manager.snapshots(NOW)[0].remote_next_offset == 500


def test_log_start_offset_raised_only_on_the_disk_expires_nothing_in_the_bucket(world: World) -> None:
    """An older version left this state after the tier had been disabled for a while."""
    all_of_it = _write_and_tier(world)
    world.disk.names["./data/log-start-offset-checkpoint"].data[:] = b"0\n1\nt 0 300\n"
    with world.open() as manager:
        settle(manager)
        assert manager.snapshots(NOW)[0].log_start_offset == 0
        assert values(manager.reader()) == all_of_it


def test_topic_is_recorded_as_tiered_before_its_first_remote_object(world: World) -> None:
    before = SwitchableStore(world.store, is_down=False)
    with world.open(store=before) as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        assert not manager.topics.get("t").was_tiered
        before.is_down = True
        with pytest.raises(Unavailable):
            manager.topics.alter("t", TIERED, now_ms=NOW)
    with world.open(store=before) as manager:
        topic = manager.topics.get("t")
        assert topic.was_tiered == (topic.properties == TIERED)
    with world.open(remote_storage_enable="true") as manager:
        assert manager.topics.get("t").was_tiered


def test_topic_list_of_an_older_version_is_read(world: World) -> None:
    _write_and_tier(world)
    file = world.disk.names["./data/topics.json"]
    before = bytes(file.data)
    file.data[:] = b"\n".join(line for line in before.splitlines() if b"was_tiered" not in line).replace(
        b"},\n", b"}\n"
    )
    assert b"was_tiered" not in file.data
    with world.open(read_only=True) as manager:
        assert len(values(manager.reader())) == 300
    with world.open() as manager:
        assert manager.topics.get("t").was_tiered
        assert len(values(manager.reader())) == 300


def test_log_start_offset_of_a_newly_tiered_topic_is_in_its_manifest(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "12h"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        offsets = manager.reader().offsets(NAME)
        assert offsets[0] > 0
        manager.topics.alter("t", {"retention.ms": "7d", "remote.storage.enable": "true"}, now_ms=NOW)
        assert manager.snapshots(NOW)[0].log_start_offset == offsets[0]
        assert manager.reader().offsets(NAME) == offsets
        with pytest.raises(OffsetOutOfRange):
            values(manager.reader(), 0)


def test_local_records_that_no_entry_covers_are_kept_and_a_conflict(world: World) -> None:
    """The bucket of an older version has an offset gap.
    This disk lost its tail but has the missing records."""
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        ends = [segment.next_offset for segment in manager.snapshots(NOW)[0].segments]
    log = manager.snapshots(NOW)[0]
    prefix = f"t-{manager.topics.get('t').topic_id}/0/"
    tamper = MetadataLog(world.store, prefix)
    tamper.become_writer("x", NOW, topic="t", topic_id=manager.topics.get("t").topic_id, partition=0)
    tamper.commit(expire_segments([log.remote[0].ulid], now_ms=NOW), NOW)
    for base in ends[1:]:
        for suffix in (".log", ".index", ".timeindex"):
            world.disk.names.pop(f"./data/t-0/{base:020d}{suffix}", None)
    before = {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")}
    manifests = len([info for info in world.store.list("") if "/head/" in info.key])
    with world.open() as manager:
        assert isinstance(manager.problems[NAME], Conflict)
        assert f"[0, {ends[0]})" in str(manager.problems[NAME])
    assert {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")} == before
    assert len([info for info in world.store.list("") if "/head/" in info.key]) == manifests


def test_leader_epochs_never_decrease_after_tiering_a_log_with_many_epochs(world: World) -> None:
    """The log is like one of a Kafka broker. The next machine knows only the epoch in the bucket."""
    with world.open() as first:
        first.topics.create("t", 1, {}, now_ms=NOW)
        first.partitions.find(NAME).log.begin_epoch(37)
        send(first, 40)
        first.partitions.roll("t", now_ms=NOW)
        first.topics.alter("t", {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        settle(first)
        send(first, 10, start=40)
        manifest = first.partitions.find(NAME).manifest()
        assert manifest is not None
        assert manifest.epoch > 37
    with world.open(disk=world.other_disk()) as second:
        send(second, 10, start=900)
        second.partitions.roll("t", now_ms=NOW)
        settle(second)
        manifest = second.partitions.find(NAME).manifest()
        assert manifest is not None
        epochs = [epoch for epoch, _ in manifest.lineage]
        assert epochs == sorted(epochs)
    with world.open() as first:
        assert isinstance(first.problems[NAME], Conflict), "its last records must contradict the bucket"


@pytest.mark.parametrize("count", [0, 40])
def test_read_only_open_of_a_disk_that_ends_before_the_bucket_reads_the_bucket(count):
    """The disk has only its topic list, or is an old copy.
    A regression: the remaining records were left out without an error."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        if count:
            send(manager, count)
    old = deepcopy(world.disk)
    with world.open() as manager:
        send(manager, 70 - count, start=count)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert manager.partitions.find(NAME).manifest().next_offset == 70
    expected = [(at, b"value %d" % at) for at in range(70)]
    with world.open(disk=old, read_only=True) as looker:
        assert looker.partitions.find(NAME).log.next_offset == count
        for isolation in Isolation:
            reader = looker.reader(isolation)
            assert values(reader) == expected
            assert values(reader, 55) == expected[55:]
            assert reader.offsets(NAME) == (0, 70)
        assert looker.reader().offset_for_timestamp(NAME, NOW - DAY + 60) == 60
