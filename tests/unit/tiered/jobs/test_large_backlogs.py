"""Backlogs larger than one commit (64 MiB, 100 segments), on every path that commits in groups."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pytest
from bucket_samples import run_copy
from disk_model import ModelDisk
from manager_world import COMPACTED, NAME, NOW, TIERED, World
from run_profile import one_of_each

from local.format.record import Record
from local.records.record_columns import of_arrow
from policies.decisions import CopySegment
from policies.tiering import COMMIT_BYTES, COMMIT_SEGMENTS_MAX
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.segments.encryption import NO_KEYS
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs.bucket_copying import plan_copy
from tiered.jobs.compaction_passes import compact_partition
from tiered.jobs.ingest import commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.jobs.rewriting import plan_recode, run_rewrite
from tiered.manager.manager import LogManager
from tiered.manager.remote_acks import wait_for_bucket
from tiered.migrate.fork import plan_fork, run_fork
from tiered.plans.saved_plan import apply_saved, decode_plan, encode_plan, save_plan
from tiered.read.bucket_reader import RemoteLog

SEGMENTS = 110
VALUE = bytes(640 << 10)  # One record fills a segment, and two records do not fit: cleaning merges no segments.
LARGE = {"segment_bytes": str(1 << 20), "index_interval_bytes": "4096", "append_batch_bytes": "16384"}
LIMIT_S = 120.0  # far more than any path needs: a path that hangs fails
Path = Callable[[LogManager], None]


def _rounds(manager: LogManager) -> None:
    while manager.tick(NOW):
        pass


def _tasks(manager: LogManager) -> None:
    for _ in range(20):
        is_busy = manager.tick(NOW, waits=False)
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        if not is_busy:
            return


def _applied(manager: LogManager) -> None:
    """Cleaning and copying need two plans: no plan holds both."""
    for _ in range(3):
        manager.apply(manager.plan(NOW))


def _saved(manager: LogManager) -> None:
    from tiered.plans.planning import priced_plan

    for _ in range(3):
        saved = save_plan(priced_plan(manager, NOW), made_ms=NOW, settings={})
        apply_saved(manager, decode_plan(encode_plan(saved)), now_ms=NOW)


def _acknowledged(manager: LogManager) -> None:
    ends = {NAME: manager.partitions.find(NAME).log.next_offset}
    assert wait_for_bucket(manager, ends, clock=lambda: NOW, pause=lambda _: None) is not None


COPYING: dict[str, tuple[dict[str, str], Path]] = {
    "rounds": (TIERED, _rounds),
    "tasks": (TIERED, _tasks),
    "apply": (TIERED, _applied),
    "saved plan": (TIERED, _saved),
    "acks": (TIERED, _acknowledged),
    "compacted, rounds": (COMPACTED, _rounds),
    "compacted, tasks": (COMPACTED, _tasks),
    "compacted, apply": (COMPACTED, _applied),
    "compacted, saved plan": (COMPACTED, _saved),
}


def _backlog(world: World, properties: dict[str, str], keys: int = SEGMENTS) -> LogManager:
    manager = world.open(**LARGE)
    manager.topics.create("t", 1, properties, now_ms=NOW)
    for at in range(SEGMENTS):
        manager.append("t", [Record(b"k%d" % (at % keys), VALUE, NOW - SEGMENTS + at)], 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
    return manager


def _manifest(manager: LogManager) -> Manifest:
    manifest = manager.partitions.find(NAME).manifest()
    assert manifest is not None
    return manifest


def _check(store: ObjectStore, topic: str = "t") -> None:
    """Asserts that the bucket has all records, in more segments and bytes than one commit holds."""
    (name,) = [each for each in list_partitions(store) if each.topic == topic]
    entries = list(MetadataLog(store, name.prefix).index(MetadataLog(store, name.prefix).refresh()).entries())
    assert len(entries) == SEGMENTS > COMMIT_SEGMENTS_MAX
    assert sum(entry.size_bytes for entry in entries) > COMMIT_BYTES
    assert all(one.next_offset == other.base_offset for one, other in pairwise(entries))
    records = RemoteLog(store).reader().records(name.topic_partition, 0)
    assert [(each.offset, each.key) for each in records] == [(at, b"k%d" % at) for at in range(SEGMENTS)]


@pytest.mark.parametrize("path", one_of_each(3, sorted(COPYING)))
def test_backlog_of_several_commits_is_copied_completely(path: str) -> None:
    world, (properties, copy) = World(), COPYING[path]
    with _backlog(world, properties) as manager:
        copy(manager)
        assert manager.problems == {}
        assert not [each for each in manager.plan(NOW).decisions.get(NAME, ()) if isinstance(each, CopySegment)]
        assert _manifest(manager).next_offset == SEGMENTS
    _check(world.store)


@pytest.fixture(scope="module")
def bucket() -> MemoryStore:
    world = World()
    World.made.remove(world)  # shared by the tests of this module, and each of them checks its own result
    with _backlog(world, TIERED) as manager:
        _rounds(manager)
    return world.store


def _copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore(store.url, now_ms=lambda: NOW)
    for info in store.list(""):
        copy.put_if_absent(info.key, store.get(info.key))
    return copy


def _name(store: ObjectStore):
    return next(iter(list_partitions(store)))


def test_bucket_copy_of_several_commits_is_complete(bucket: MemoryStore) -> None:
    target = MemoryStore("memory://other", now_ms=lambda: NOW)
    plan = plan_copy(bucket, target, _name(bucket), now_ms=NOW)
    assert run_copy(bucket, target, plan, now_ms=lambda: NOW).is_complete
    _check(target)


def test_rewrite_of_several_commits_is_complete(bucket: MemoryStore) -> None:
    store = _copy_of(bucket)
    run_rewrite(store, plan_recode(store, _name(store), now_ms=NOW, codec="zstd"), now_ms=lambda: NOW)
    _check(store)


def test_fork_of_more_segments_than_one_commit_is_complete(bucket: MemoryStore) -> None:
    store = _copy_of(bucket)
    run_fork(store, plan_fork(store, [_name(store)], "f", known=[]), now_ms=lambda: NOW)
    _check(store, "f")


def test_bucket_compaction_of_several_groups_keeps_the_newest_records() -> None:
    world, disk = World(), ModelDisk()
    with _backlog(world, TIERED, keys=60) as manager:
        _rounds(manager)
    disk.make_directory("./pass")
    policy = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
    compact_partition(
        world.store,
        _name(world.store),
        now_ms=NOW,
        storage=disk,
        directory="./pass",
        group_bytes=8 << 20,
        settings=policy,
    )
    records = RemoteLog(world.store).reader().records(NAME, 0)
    assert [(each.offset, each.key) for each in records] == [(at, b"k%d" % (at % 60)) for at in range(50, SEGMENTS)]


def test_ingest_of_more_segments_than_one_commit_is_complete() -> None:
    store, disk = MemoryStore("memory://ingest"), ModelDisk()
    disk.make_directory("./task")
    settings = {"segment.bytes": str(1 << 20), "append.batch.bytes": "16384", "retention.ms": "-1"}
    plan = plan_ingest(store, "t", now_ms=NOW, settings=settings, create_partitions=1, job_id="job")
    work = IngestTask(store, plan, 0, storage=disk, directory="./task", keys=NO_KEYS)
    for at in range(SEGMENTS):
        columns = {"key": [b"k%d" % at], "value": [VALUE], "timestamp": [NOW - SEGMENTS + at]}
        for chunk in of_arrow(pa.table(columns), now_ms=NOW):
            work.add(0, chunk)
    commit_ingest(store, plan, [work.end()], now_ms=NOW)
    _check(store)
