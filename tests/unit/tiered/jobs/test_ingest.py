"""Tasks of a job ingest records into the bucket in order and exactly once. A manager continues later."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from bucket_truth import assert_sound
from checked_bucket import check_bucket, damage
from disk_model import ModelDisk
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import Conflict, Fenced, InvalidRequest, NotFound, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from local.records.record_columns import of_arrow
from remote.gc.orphan_search import find_orphans
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest
from remote.manifest.manifest_changes import append_entries
from remote.manifest.sealing import keyed
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store.memory_store import MemoryStore
from tiered.jobs.compaction_passes import compact_partition
from tiered.jobs.ingest import Ingested, IngestPlan, abort_ingest, commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.read.bucket_reader import RemoteLog

SETTINGS = {"segment.bytes": "4096", "index.interval.bytes": "512", "append.batch.bytes": "512"}


def entries(task: int, count: int, partition: int = 0) -> list[tuple[bytes, bytes, int]]:
    return [(b"k%d" % (at % 5), b"%d/%d/%d" % (task, partition, at), NOW + at) for at in range(count)]


def write(
    store, plan: IngestPlan, task: int, counts: dict[int, int], *, end: bool = True, keys: KeyRing = NO_KEYS
) -> Ingested | IngestTask:
    disk = ModelDisk()
    disk.make_directory("./task")
    work = IngestTask(store, plan, task, storage=disk, directory="./task", keys=keys)
    for partition, count in counts.items():
        records = entries(task, count, partition)
        for at in range(0, count, 40):
            part = records[at : at + 40]
            columns = {"key": [r[0] for r in part], "value": [r[1] for r in part], "timestamp": [r[2] for r in part]}
            for chunk in of_arrow(pa.table(columns), now_ms=NOW):
                work.add(partition, chunk)
    if not end:
        return work
    done = work.end()
    assert disk.list("./task") == []
    return done


def read(store, partition: int = 0) -> list[tuple[int, bytes]]:
    log, name = RemoteLog(store), TopicPartition("t", partition)
    start, end = log.reader().offsets(name)
    return [(r.offset, r.value) for r in log.reader().records(name, start)] if start < end else []


def manifest(store, partition: int = 0) -> Manifest:
    return RemoteLog(store).manifest(TopicPartition("t", partition))


def plan(store, **more) -> IngestPlan:
    given = {"now_ms": NOW, "settings": SETTINGS, "create_partitions": 2, "job_id": "job"}
    return plan_ingest(store, "t", **{**given, **more})


def test_ingest_commits_the_records_of_all_tasks_in_order_and_segment_size() -> None:
    store = MemoryStore()
    made = plan(store)
    parts = [write(store, made, task, {0: 500, 1: 3}) for task in (2, 0, 1)]
    outcomes = commit_ingest(store, made, parts, now_ms=NOW)
    for partition, count in ((0, 500), (1, 3)):
        found = read(store, partition)
        assert [value for _, value in found] == [r[1] for task in range(3) for r in entries(task, count, partition)]
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert outcomes[partition].record_count == 3 * count
    segments = manifest(store).segments
    assert len(segments) > 6
    assert all(entry.size_bytes <= 4096 for entry in segments)
    assert all(one.next_offset == other.base_offset for one, other in pairwise(segments))
    assert {entry.made_by for entry in segments} == {"job"}
    (report, *_) = assert_sound(store)
    assert not [each for each in report.findings if each.severity.value == "warning"]
    assert manifest(store).properties == SETTINGS


def test_ingest_without_a_span_has_no_offset_gaps_and_one_task_per_partition() -> None:
    store = MemoryStore()
    made = plan(store, span=None)
    parts = [write(store, made, 5, {0: 500}), write(store, made, 9, {1: 100})]
    commit_ingest(store, made, parts, now_ms=NOW)
    assert [offset for offset, _ in read(store)] == list(range(500))
    again = plan(store, span=None, job_id="two")
    parts = [write(store, again, 0, {0: 1}), write(store, again, 1, {0: 1, 1: 4})]
    with pytest.raises(Conflict, match="two tasks"):
        commit_ingest(store, again, parts, now_ms=NOW)
    assert [len(read(store, partition)) for partition in (0, 1)] == [500, 104], "the other partition must be committed"
    assert_sound(store)


def test_ingest_task_with_more_records_than_its_span_is_refused() -> None:
    store = MemoryStore()
    made = plan(store, span=100)
    write(store, made, 0, {0: 100})
    with pytest.raises(InvalidRequest, match="more records"):
        write(store, made, 0, {0: 101})
    with pytest.raises(InvalidRequest, match="63 bits"):
        write(store, replace(made, span=1 << 62), 2, {0: 1})


def test_repeated_ingest_job_commits_only_the_partitions_left_by_the_first_run() -> None:
    store = MemoryStore()
    made = plan(store)
    part = write(store, made, 0, {0: 50, 1: 50})
    assert isinstance(part, Ingested)
    only_one = replace(made, targets=made.targets[:1])
    commit_ingest(store, only_one, [part], now_ms=NOW)
    again = plan(store)
    assert [target.is_done for target in again.targets] == [True, False]
    outcomes = commit_ingest(store, again, [write(store, again, 0, {0: 50, 1: 50})], now_ms=NOW)
    assert [each.was_done for each in outcomes] == [True, False]
    late = commit_ingest(store, made, [part], now_ms=NOW)
    assert [each.was_done for each in late] == [True, True]
    assert [len(read(store, partition)) for partition in (0, 1)] == [50, 50]
    assert_sound(store)


def test_streaming_ingest_commits_each_turn_once() -> None:
    store = MemoryStore()
    made = plan(store, is_stream=True)
    for turn in (0, 1, 1, 2, 0):
        outcomes = commit_ingest(store, made, [write(store, made, 0, {0: 10})], now_ms=NOW, turn=turn)
        assert manifest(store).jobs[-1].turn >= turn
    assert all(each.was_done for each in outcomes)
    assert len(read(store)) == 30
    resumed = plan(store, is_stream=True)
    assert [target.epoch for target in resumed.targets] == [target.epoch for target in made.targets]
    assert_sound(store)


def test_streaming_ingest_without_leadership_ends_after_a_takeover() -> None:
    store = MemoryStore()
    made = plan(store, is_stream=True, takes_leadership=False)
    commit_ingest(store, made, [write(store, made, 0, {0: 10})], now_ms=NOW)
    name = made.targets[0].name
    other = MetadataLog(store, name.prefix)
    other.become_writer("manager", NOW, topic="t", topic_id=name.topic_id, partition=0)
    with pytest.raises(Conflict, match="takeLeadership"):
        plan(store, is_stream=True, takes_leadership=False)
    again = plan(store, is_stream=True)
    assert [target.epoch for target in again.targets] == [3, 1]


def test_one_of_two_concurrent_runs_of_an_ingest_job_is_committed() -> None:
    store = MemoryStore()
    one, other = plan(store), plan(store)
    assert [target.epoch for target in one.targets] == [target.epoch for target in other.targets]
    parts = [write(store, each, 0, {0: 30}) for each in (one, other)]
    commit_ingest(store, one, [parts[0]], now_ms=NOW)
    assert commit_ingest(store, other, [parts[1]], now_ms=NOW)[0].was_done
    assert len(read(store)) == 30
    assert len(manifest(store).pending_deletes) == 2
    assert_sound(store)


def test_another_ingest_job_fences_this_one() -> None:
    store = MemoryStore()
    one = plan(store)
    part = write(store, one, 0, {0: 30, 1: 1})
    other = plan(store, job_id="two")
    with pytest.raises(Fenced):
        commit_ingest(store, one, [part], now_ms=NOW)
    assert read(store) == []
    commit_ingest(store, other, [write(store, other, 0, {0: 7})], now_ms=NOW)
    assert len(read(store)) == 7
    name = list_partitions(store)[0]
    found = find_orphans(store, name.prefix, MetadataLog(store, name.prefix), now_ms=NOW)
    assert len(found) == 2 * len(part.entries[0])
    assert_sound(store)


def test_aborted_ingest_unlinks_its_objects_and_can_never_be_committed() -> None:
    store = MemoryStore()
    made = plan(store)
    part = write(store, made, 0, {0: 30, 1: 5})
    abort_ingest(store, made, [part], now_ms=NOW)
    keys = {key for entry in part.entries[0] for key in (entry.data_key, entry.indexes_key)}
    assert keys == {each.key for each in manifest(store).pending_deletes}
    with pytest.raises(Conflict, match="were unlinked"):
        commit_ingest(store, made, [part], now_ms=NOW)
    commit_ingest(store, made, [write(store, made, 0, {0: 30, 1: 5})], now_ms=NOW)
    abort_ingest(store, made, [part], now_ms=NOW)
    assert len(read(store)) == 30
    assert_sound(store)


def test_abort_of_an_ingest_that_is_committed_changes_nothing() -> None:
    store = MemoryStore()
    made = plan(store)
    part = write(store, made, 0, {0: 30})
    commit_ingest(store, made, [part], now_ms=NOW)
    abort_ingest(store, made, [part], now_ms=NOW)
    assert manifest(store).pending_deletes == ()
    assert len(read(store)) == 30


def test_discarded_ingest_task_deletes_its_objects() -> None:
    store = MemoryStore()
    made = plan(store)
    before = {info.key for info in store.list("")}
    work = write(store, made, 0, {0: 60_000}, end=False)
    assert isinstance(work, IngestTask)
    assert {info.key for info in store.list("")} > before
    work.discard()
    assert {info.key for info in store.list("")} == before


def test_discarded_ingest_task_deletes_its_objects_if_its_file_cannot_be_closed() -> None:
    store = MemoryStore()
    made = plan(store)
    before = {info.key for info in store.list("")}
    work = write(store, made, 0, {0: 60_000}, end=False)

    def close() -> None:
        raise Unavailable("the disk is full")

    (known,) = work._partitions.values()
    known.file = SimpleNamespace(close=close)
    work.discard()
    assert {info.key for info in store.list("")} == before


def test_manager_continues_after_the_ingested_records() -> None:
    world = World()
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 50)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    manager.close()
    made = plan(world.store, create_partitions=None, settings={})
    assert made.targets[0].start_offset == 50
    parts = [write(world.store, made, task, {0: 100}) for task in range(2)]
    commit_ingest(world.store, made, parts, now_ms=NOW)
    end = manifest(world.store).next_offset
    manager = world.open(now_ms=NOW + HOUR)
    assert manager.reader().offsets(NAME) == (0, end)
    manager.append("t", [Record(b"last", b"value", NOW)], 0, now_ms=NOW + HOUR)
    assert manager.reader().offsets(NAME) == (0, end + 1)
    manager.partitions.roll("t", now_ms=NOW + HOUR)
    settle(manager, NOW + 2 * HOUR)
    found = [record.value for record in manager.reader().records(NAME, 0)]
    assert len(found) == 50 + 200 + 1
    assert found[50:250] == [r[1] for task in range(2) for r in entries(task, 100)]
    manager.close()
    assert_sound(world.store)


def test_manager_with_records_that_are_not_copied_is_refused_after_an_ingest() -> None:
    world = World()
    manager = world.open()
    manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
    send(manager, 10)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    send(manager, 20)
    made = plan(world.store, create_partitions=None, settings={})
    commit_ingest(world.store, made, [write(world.store, made, 0, {0: 100})], now_ms=NOW)
    manager.close()
    reopened = world.open(now_ms=NOW + HOUR)
    assert isinstance(reopened.problems[NAME], Conflict)
    reopened.close()


def test_ingest_into_a_remote_tier_that_is_being_removed_is_refused() -> None:
    """Entries of such a tier are unlinked step by step. Records ingested after them would be unlinked too."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 50)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        tier_disabled = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        manager.topics.alter("t", tier_disabled, now_ms=NOW)
        manager.tick(NOW)
        before = manifest(world.store)
        assert before.tier_disabled
        with pytest.raises(InvalidRequest, match="being disabled"):
            plan(world.store, create_partitions=None, settings={})
        assert manifest(world.store) == before, "the writer must not be fenced either"
        with pytest.raises(InvalidRequest, match="being disabled"):
            append_entries([], start_offset=50, note=AppliedJob(job_id="job"))(before)
        settle(manager)
        assert not manifest(world.store).tier_disabled
    assert plan(world.store, create_partitions=None, settings={}).targets[0].start_offset == 50


def test_ingest_that_must_not_take_leadership_leaves_the_writer_epoch() -> None:
    world = World()
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    epoch = manifest(world.store).epoch
    with pytest.raises(Conflict, match="takeLeadership"):
        plan(world.store, create_partitions=1, takes_leadership=False)
    assert manifest(world.store).epoch == epoch
    manager.close()
    store = MemoryStore()
    plan(store, takes_leadership=False)
    assert [target.epoch for target in plan(store, job_id="next", takes_leadership=False).targets] == [2, 2]


@pytest.mark.parametrize(
    "object_encoding",
    [
        {"remote.compression": "zstd"},
        {"remote.encryption.key.id": "a"},
        {"remote.encryption.key.id": "a", "remote.compression": "zstd"},
    ],
)
def test_ingest_and_compaction_use_the_object_encoding_of_the_topic(object_encoding: dict[str, str]) -> None:
    keys = KeyRing({"a": bytes(range(32))})
    store = keyed(MemoryStore(), keys)
    made = plan(store, settings={**SETTINGS, **object_encoding, "cleanup.policy": "compact"}, keys=keys)
    part = write(store, made, 0, {0: 400}, keys=keys)
    commit_ingest(store, made, [part], now_ms=NOW)
    before = manifest(store).segments
    disk = ModelDisk()
    disk.make_directory("./job")
    name = list_partitions(store)[0]
    outcome = compact_partition(store, name, now_ms=NOW, storage=disk, directory="./job", keys=keys)
    assert (outcome.records_before, outcome.records_after) == (400, 5)
    for entry in (*before, *manifest(store).segments):
        assert (entry.key_id, entry.codec) == (
            object_encoding.get("remote.encryption.key.id"),
            object_encoding.get("remote.compression", "none"),
        )
    log = RemoteLog(store, keys=keys)
    found = [record.value for record in log.reader().records(NAME, 0)]
    assert found == [r[1] for r in entries(0, 400)[-5:]]
    assert damage(check_bucket(store, keys=keys)) == []


def test_ingest_into_a_compacted_topic_needs_keys_and_is_not_yet_cleaned() -> None:
    store = MemoryStore()
    made = plan(store, settings={**SETTINGS, "cleanup.policy": "compact"})
    disk = ModelDisk()
    disk.make_directory("./task")
    work = IngestTask(store, made, 0, storage=disk, directory="./task")
    work.add(0, of_arrow(pa.table({"value": [b"x"]}), now_ms=NOW)[0])
    with pytest.raises(InvalidRequest):
        work.end()
    commit_ingest(store, made, [write(store, made, 0, {0: 10})], now_ms=NOW)
    assert {entry.cleaned_through for entry in manifest(store).segments} == {None}


def test_ingest_refuses_a_missing_or_ambiguous_topic_and_invalid_arguments() -> None:
    store = MemoryStore()
    with pytest.raises(NotFound):
        plan(store, create_partitions=None)
    with pytest.raises(InvalidRequest):
        plan(store, create_partitions=0)
    with pytest.raises(InvalidRequest):
        plan(store, settings={"segment.bytes": "1"})
    plan(store)
    with pytest.raises(InvalidRequest):
        plan(store, create_partitions=1, job_id="other")
    plan(store, topic_id="B" * 22)
    with pytest.raises(InvalidRequest, match="several"):
        plan(store)
    assert len(plan(store, topic_id="B" * 22, create_partitions=3).targets) == 3


def test_compaction_of_a_partition_without_entries_does_nothing() -> None:
    store = MemoryStore()
    plan(store, settings={**SETTINGS, "cleanup.policy": "compact"})
    before = manifest(store)
    disk = ModelDisk()
    disk.make_directory("./job")
    outcome = compact_partition(store, list_partitions(store)[0], now_ms=NOW, storage=disk, directory="./job")
    assert (outcome.rows_before, outcome.rows_after, outcome.upto_offset, outcome.was_done) == (0, 0, 0, False)
    assert manifest(store) == before
