"""Kafka's tiering scenarios with a whole manager: the numbered cases of its tests, and subtle ones.
Leader epochs are the epochs of the manifests, which begin at 1. A broker's leader epochs begin at 0.
The scenarios of the cleaner are in `test_cleaner_scenarios`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NAME, NOW, World, settle, values

from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.format.record import Record
from local.records.offset_spec import FoundOffset, OffsetSpec
from remote.store import Body, GetRange, read_if_there
from remote.store.memory_store import MemoryStore
from tiered.maintenance import apply
from tiered.manager.manager import LogManager
from tiered.read.offset_listing import EARLIEST_PENDING_UPLOAD, LATEST_TIERED

KEEP_ACTIVE = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "remote.log.delete.grace.ms": "0",
    "message.timestamp.after.max.ms": str(2 * DAY),
}


class CountingStore:
    """A store that counts reads of segment data. A fetch of one remote segment is one call."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.fetches = 0

    def get_ranges(self, key: str, ranges: object) -> object:
        self.fetches += 1
        return self.inner.get_ranges(key, ranges)  # type: ignore[arg-type]

    def get_each(self, asked: Sequence[GetRange]) -> Sequence[Body | None]:
        """Of several reads at once only data reads count. Manifests and index bundles are not counted."""
        return [read_if_there(self, each) for each in asked]  # type: ignore[arg-type]

    def __getattr__(self, verb: str) -> object:
        return getattr(self.inner, verb)


@pytest.fixture
def world() -> World:
    return World()


def write(manager: LogManager, *counts: int, start: int = 0, step_ms: int = 1) -> None:
    """Writes one segment per count with one batch per record, of value ``k<offset>``.
    The last one stays active."""
    offset = start
    for at, count in enumerate(counts):
        for _ in range(count):
            record = Record(b"k", b"k%d" % offset, NOW + offset * step_ms)
            manager.append("t", [record], 0, now_ms=NOW)
            offset += 1
        if at < len(counts) - 1:
            manager.partitions.roll("t", now_ms=NOW)


def bases(manager: LogManager) -> list[int]:
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    return [entry.base_offset for entry in manifest.segments]


def ask(manager: LogManager, spec: int) -> object:
    return manager.list_offsets({NAME: spec})[NAME]


def offset_of(manager: LogManager, spec: int) -> int | None:
    found = manager.list_offsets({NAME: spec})[NAME]
    return None if found is None else found.offset


def read_cold(world: World, start: int) -> tuple[int, int]:
    """The number of records and of remote fetches of a read without a cache."""
    store = CountingStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        store.fetches = 0
        return len(values(manager.reader(), start)), store.fetches


# --- 1 to 9: the cases of Kafka's test harness ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "remote", "local_start", "records", "fetches"),
    [((1, 1, 1), [0, 1], 2, 2, 1), ((2, 2, 1), [0, 2], 4, 4, 2)],
    ids=["a batch a segment", "two batches a segment"],
)
def test_case_1_copied_segments_are_read_after_a_restart_with_one_fetch_each(
    world: World, counts: tuple[int, ...], remote: list[int], local_start: int, records: int, fetches: int
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, *counts)
        settle(manager)
        assert bases(manager) == remote
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == local_start
    assert read_cold(world, 1) == (records, fetches)


def expire_all_but_the_active_one(world: World, limit: dict[str, str]) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 1, 1, 1)
        manager.partitions.roll("t", now_ms=NOW)
        manager.append("t", [Record(b"k", b"k3", NOW + DAY)], 0, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [0, 1, 2]
        manager.topics.alter("t", limit, now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert bases(manager) == []
        assert manager.reader().offsets(NAME) == (3, 4)
        assert not [info for info in world.store.list("") if "/data/" in info.key]
        assert manager.partitions.all()[0].log.epochs.entries == ((1, 3),)
    assert read_cold(world, 3) == (1, 0)


def test_case_2_retention_by_size_expires_all_but_the_active_segment(world: World) -> None:
    expire_all_but_the_active_one(world, {"retention.bytes": "1"})


def test_case_3_retention_by_time_expires_all_but_the_active_segment(world: World) -> None:
    expire_all_but_the_active_one(world, {"retention.ms": "1", "local.retention.ms": "-2"})


@pytest.fixture
def deleted_upto_3(world: World) -> World:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 2, 2, 1)
        settle(manager)
        assert bases(manager) == [0, 2]
        manager.maintenance.delete_records({NAME: 3}, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [2]
    return world


def test_case_4_delete_records_unlinks_whole_segments_and_keeps_the_partial_one(deleted_upto_3: World) -> None:
    with deleted_upto_3.open() as manager:
        assert offset_of(manager, OffsetSpec.EARLIEST) == 3
        assert manager.partitions.all()[0].log.epochs.entries[0] == (1, 3)
        objects = {info.key.rsplit("/", 1)[-1][:20] for info in deleted_upto_3.store.list("") if "/data/" in info.key}
        assert objects == {f"{2:020d}"}
    assert read_cold(deleted_upto_3, 3) == (2, 1)


def test_case_5_delete_records_after_a_leader_change_unlinks_segments_of_both_epochs(deleted_upto_3: World) -> None:
    world = deleted_upto_3
    with world.open() as manager:  # another leader epoch
        write(manager, 1, 2, 2, start=5)
        settle(manager)
        assert bases(manager) == [2, 4, 6]
        manager.maintenance.delete_records({NAME: 7}, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [6]
    assert read_cold(world, 7) == (3, 1)


def test_case_6_lost_checkpoints_lose_no_record_and_copying_resumes(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 1, 1, 1)
        settle(manager)
    for name in [name for name in world.disk.names if "checkpoint" in name or "cleanshutdown" in name]:
        if "/t-0/" not in name:
            world.disk.unlink(name)
    assert read_cold(world, 0) == (3, 2)
    with world.open() as manager:
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert bases(manager) == [0, 1, 2]


def test_case_7_list_offsets_answers_over_both_tiers(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 2, 1)
    with world.open() as manager:
        write(manager, 1, 2, start=3)
        settle(manager)
        assert bases(manager) == [0, 2]
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 4
        named = (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL, LATEST_TIERED)
        found = [manager.list_offsets({NAME: spec})[NAME] for spec in named]
        assert [(each.offset, each.leader_epoch) for each in found if each] == [(0, 1), (4, 2), (3, 2)]
        assert offset_of(manager, OffsetSpec.LATEST) == 6
        assert offset_of(manager, EARLIEST_PENDING_UPLOAD) == 4
        times = [offset_of(manager, NOW + ms) for ms in (-1, 1, 3, 5, 6)]
        assert times == [0, 1, 3, 5, None]
        manager.maintenance.delete_records({NAME: 4}, now_ms=NOW)
        assert offset_of(manager, OffsetSpec.EARLIEST) == offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 4
        assert ask(manager, LATEST_TIERED) == FoundOffset(3, None, None), (
            "the offset has expired, so its epoch is unknown"
        )
        assert offset_of(manager, EARLIEST_PENDING_UPLOAD) == 4


@pytest.mark.parametrize("ends", ["delete-records", "retention"])
def test_latest_tiered_offset_is_unchanged_after_all_entries_have_expired(world: World, ends: str) -> None:
    """Also after restarts and on a node that has only the bucket. Source: KIP-1005."""
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 2, 2, 1)
        settle(manager)
        if ends == "retention":
            manager.topics.alter("t", {"retention.ms": "1", "local.retention.ms": "-2"}, now_ms=NOW)
            settle(manager, NOW + HOUR)
        else:
            manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert bases(manager) == []
        highest = 4 if ends == "retention" else 3  # retention rolls and copies the active segment first
        assert ask(manager, LATEST_TIERED) == FoundOffset(highest, None, None)
    with world.open() as manager:
        assert offset_of(manager, LATEST_TIERED) == highest
        start = offset_of(manager, OffsetSpec.EARLIEST)
        assert offset_of(manager, EARLIEST_PENDING_UPLOAD) == start == 5
    with world.open(disk=world.other_disk()) as manager:
        assert offset_of(manager, LATEST_TIERED) == highest
    with world.open() as manager:
        write(manager, 2, 1, start=5)
        settle(manager)
        assert offset_of(manager, LATEST_TIERED) == 6


def test_case_8_idle_active_segment_beyond_local_retention_is_rolled_and_copied(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**KEEP_ACTIVE, "local.retention.ms": "1"}, now_ms=NOW)
        write(manager, 1, 1, 2)
        settle(manager, NOW + HOUR)
        assert bases(manager) == [0, 1, 2]
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 4
    assert read_cold(world, 0)[0] == 4


def test_case_9_enabled_tier_copies_from_the_log_start_and_disabled_copying_stops(
    world: World,
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "-1"}, now_ms=NOW)
        assert offset_of(manager, EARLIEST_PENDING_UPLOAD) is None
        write(manager, 2, 2, 1)
        manager.maintenance.delete_records({NAME: 1}, now_ms=NOW)
        manager.topics.alter("t", KEEP_ACTIVE, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [0, 2]
        assert offset_of(manager, OffsetSpec.EARLIEST) == 1
        read_only = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
        manager.topics.alter("t", read_only, now_ms=NOW)
        write(manager, 1, 1, start=5)
        settle(manager)
        assert bases(manager) == [0, 2]
        assert len(values(manager.reader(), 1)) == 6
        manager.topics.alter("t", {"remote.log.copy.disable": "", "local.retention.bytes": "1"}, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [0, 2, 4]
        with pytest.raises(InvalidRequest, match="cannot disable the remote tier"):
            manager.topics.alter("t", {"remote.storage.enable": "false"}, now_ms=NOW)


def test_case_9_disabled_tier_with_deletion_is_emptied_and_the_disk_stays_readable(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 2, 2, 1)
        settle(manager)
        assert bases(manager) == [0, 2]
        write(manager, 1, 2, start=5)  # not copied yet: the tier is disabled before the next maintenance
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true", "local.retention.bytes": "-2"}
        manager.topics.alter("t", off, now_ms=NOW)
        settle(manager)
        assert bases(manager) == []
        assert not [info for info in world.store.list("") if "/data/" in info.key]
        assert manager.reader().offsets(NAME) == (4, 8)
        assert [offset for offset, _ in values(manager.reader(), 4)] == [4, 5, 6, 7]
        with pytest.raises(OffsetOutOfRange):
            values(manager.reader(), 3)
    with world.open() as manager:
        assert [offset for offset, _ in values(manager.reader(), 4)] == [4, 5, 6, 7]
        on = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        manager.topics.alter("t", on, now_ms=NOW)
        settle(manager)
        assert bases(manager) == [4], "copying starts at the log start offset"
        assert offset_of(manager, LATEST_TIERED) == 5
    assert read_cold(world, 4)[0] == 4


# --- 14 to 16, 18: unfinished copies do not count -------------------------------------------------------------------


def test_case_16_failed_copy_leaves_no_object_and_the_next_one_has_another_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's half_copied_bytes_never_count and failed_upload_is_collected (KAFKA-17062, A#590)."""
    with world.open() as manager:
        manager.topics.create("t", 1, {**KEEP_ACTIVE, "retention.bytes": "150"}, now_ms=NOW)
        write(manager, 1, 1, 1)
        tried: list[str] = []
        real = MemoryStore.put

        def fails(self: MemoryStore, key: str, body: bytes) -> None:
            tried.append(key)
            raise apply.InvalidRequest("refused", key=key)

        monkeypatch.setattr(MemoryStore, "put", fails)
        manager.tick(NOW)
        assert NAME in manager.problems
        assert not [info for info in world.store.list("") if "/data/" in info.key]
        assert bases(manager) == []
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 0, "a failed copy must not allow a drop"
        monkeypatch.setattr(MemoryStore, "put", real)
        settle(manager)
        names = [info.key for info in world.store.list("") if info.key.endswith(".indexes")]
        assert names
        assert not set(names) & set(tried)


# --- the subtle cases -----------------------------------------------------------------------------------------------


def test_subtle_a_timestamp_in_both_tiers_is_looked_up_without_the_store(world: World) -> None:
    both = {**KEEP_ACTIVE, "local.retention.bytes": "-2"}
    with world.open() as manager:
        manager.topics.create("t", 1, both, now_ms=NOW)
        write(manager, 2, 2, 1)
        settle(manager)
        assert bases(manager) == [0, 2]
    store = CountingStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        before = manager.store.counts()
        assert [offset_of(manager, NOW + at) for at in range(5)] == [0, 1, 2, 3, 4]
        assert len(values(manager.reader())) == 5
        assert manager.store.counts() == before


def test_subtle_b_segment_that_ends_with_an_offset_gap_is_dropped(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**KEEP_ACTIVE, "cleanup.policy": "compact"}, now_ms=NOW)
        for at in range(6):
            key = b"same" if at in (1, 2, 4) else b"k%d" % at
            manager.append("t", [Record(key, b"%d" % at, NOW)], 0, now_ms=NOW)
            if at in (2, 4):
                manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert [offset for offset, _ in values(manager.reader())] == [0, 3, 4, 5]
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 5
        assert bases(manager)


def test_subtle_c_log_start_beyond_uncopied_segments_deletes_them_then_copies_go_on(world: World) -> None:
    lag = {"remote.copy.lag.ms": "1h", "local.retention.ms": "2h", "local.retention.bytes": "-2"}
    with world.open() as manager:
        manager.topics.create("t", 1, {**KEEP_ACTIVE, **lag}, now_ms=NOW)
        write(manager, 2, 2, 2, 1)
        settle(manager, NOW + 60_000)
        assert bases(manager) == [], "no segment is due yet"
        assert offset_of(manager, EARLIEST_PENDING_UPLOAD) == 0
        assert offset_of(manager, LATEST_TIERED) is None
        manager.maintenance.delete_records({NAME: 5}, now_ms=NOW)
        settle(manager, NOW + 60_000)
        assert [segment.base_offset for segment in manager.partitions.all()[0].log.segments()] == [4, 6]
        settle(manager, NOW + 90 * 60_000)
        assert bases(manager) == [4]
        assert [offset for offset, _ in values(manager.reader(), 5)] == [5, 6]
        with pytest.raises(OffsetOutOfRange):
            values(manager.reader(), 4)


def test_subtle_d_epoch_without_records_is_in_no_lineage(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 1, 1)
    for _ in range(3):
        world.open().close()
    with world.open() as manager:
        manager.partitions.roll("t", now_ms=NOW)
        write(manager, 1, 1, start=2)
        settle(manager)
        entries = manager.partitions.all()[0].manifest().segments  # type: ignore[union-attr]
        assert [entry.epochs for entry in entries] == [((1, 0),), ((1, 1),), ((5, 2),)]
    with world.open() as manager:
        assert not manager.problems


def test_subtle_i_timestamp_lookup_scans_on_when_record_times_decrease(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        for at, ms in enumerate((50, 10, 60, 20, 70)):
            manager.append("t", [Record(b"k", b"%d" % at, NOW + ms)], 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        manager.append("t", [Record(b"k", b"5", NOW + 30)], 0, now_ms=NOW)
        settle(manager)
        assert offset_of(manager, OffsetSpec.EARLIEST_LOCAL) == 5
        found = [offset_of(manager, NOW + ms) for ms in (5, 50, 51, 61, 71)]
        assert found == [0, 0, 2, 4, None]


def test_subtle_j_torn_tail_is_truncated_on_the_disk_and_corrupt_in_the_bucket(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_ACTIVE, now_ms=NOW)
        write(manager, 1, 2)
        settle(manager)
    active = max(name for name in world.disk.names if name.endswith(".log"))
    _tear(world.disk, active)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        world.disk.unlink(f"./data/{name}")
    with world.open() as manager:
        assert manager.reader().offsets(NAME) == (0, 2), "the torn batch must be truncated"
        assert len(values(manager.reader())) == 2
    (key,) = [info.key for info in world.store.list("") if info.key.endswith(".log")]
    whole = world.store.get(key)
    world.store.put(key, whole[:-1])
    with world.open() as manager, pytest.raises(Exception, match="cannot read a remote segment"):
        values(manager.reader(), 0)
    world.store.put(key, whole)


def _tear(disk: ModelDisk, path: str) -> None:
    inode = disk.names[path]
    inode.data = inode.data[:-3]
    inode.sync()


def test_list_offsets_of_an_unknown_topic_is_refused(world: World) -> None:
    with world.open() as manager, pytest.raises(NotFound):
        ask(manager, OffsetSpec.LATEST)
