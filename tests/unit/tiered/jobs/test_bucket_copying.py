"""A topic is copied to another bucket: the same records, after any interruption.
A cleaned topic is never visible in part."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from bucket_samples import run_copy
from care_world import KEYS, MODES, NOW, SMALL_PAGES, TOPIC_ID, CareWorld, batches, named, small_chunks
from checked_bucket import check_bucket, damage
from fault_kinds import Clock, FaultStore, Kind
from manager_world import NAME, TIERED, World, send, settle
from rewrite_flows import WRITES, records, small_segments
from run_profile import each_call

from local.errors import AccessDenied, Conflict, Corrupt, InvalidRequest, LogError, NotFound
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments
from remote.manifest.sealing import keyed
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs import bucket_copying
from tiered.jobs.bucket_copying import CopyJob, CopyOutcome, compare, copy_entry, plan_copy
from tiered.jobs.job_bucket import OpenBucket
from tiered.jobs.runner import Here, run_job


@pytest.fixture(autouse=True)
def _several_chunks() -> Iterator[None]:
    with small_chunks():
        yield


def _target() -> ObjectStore:
    return keyed(MemoryStore("memory://other", now_ms=lambda: NOW), KEYS)


def _copy(source: ObjectStore, target: ObjectStore, **more: object) -> CopyOutcome:
    kept = {key: more.pop(key) for key in ("codec", "key_id", "storage_class") if key in more}
    plan = plan_copy(source, target, named("t"), now_ms=NOW, **kept)  # type: ignore[arg-type]
    return run_copy(source, target, plan, now_ms=lambda: NOW, keys=KEYS, **more)  # type: ignore[arg-type]


def _uncleaned(count: int = 6) -> CareWorld:
    world = CareWorld.empty()
    for number in range(count):
        world.add("t", b"".join(batches(number * 12, (4, 5), seed=number)), number * 12 + 12)
    return world


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("paged", [False, True])
def test_bucket_copy_has_the_same_records_entries_and_log_start_offset(mode: str, paged: bool) -> None:
    world, target = small_segments(mode, 7, paged=paged), _target()
    first = next(iter(MetadataLog(world.store, named("t").prefix).index(world.logs["t"].refresh()).entries()))
    expire = expire_segments([first.ulid], now_ms=NOW, log_start_offset=first.next_offset)
    world.commit("t", expire, touches=(first.base_offset, first.next_offset))
    outcome = _copy(world.store, target)
    assert (outcome.differences, outcome.behind, outcome.is_complete, outcome.entries) == ((), 0, True, 6)
    assert records(target) == records(world.store)
    manifests = [MetadataLog(store, named("t").prefix).refresh() for store in (world.store, target)]
    assert manifests[0].log_start_offset == manifests[1].log_start_offset
    assert manifests[0].properties == manifests[1].properties
    assert damage(check_bucket(target, keys=KEYS)) == []


def test_bucket_copy_with_another_codec_and_key_has_the_same_records() -> None:
    world, target = _uncleaned(), _target()
    assert _copy(world.store, target, codec="zstd", key_id="b").differences == ()
    entries = MetadataLog(target, named("t").prefix).refresh().segments
    assert {(entry.codec, entry.key_id) for entry in entries} == {("zstd", "b")}
    assert records(target) == records(world.store)


def test_bucket_copy_with_an_empty_key_id_or_codec_copies_nothing() -> None:
    """A regression: an empty key id copied plaintext, as if no key was given."""
    for wrong in ({"key_id": ""}, {"codec": ""}):
        world, target = _uncleaned(), _target()
        with pytest.raises((AccessDenied, InvalidRequest)):
            _copy(world.store, target, **wrong)
        assert not records(target)


def test_repeated_bucket_copy_copies_only_new_segments() -> None:
    world, target = _uncleaned(3), _target()
    _copy(world.store, target)
    world.add("t", b"".join(batches(36, (4, 5))), 48)
    assert compare(world.store, target, named("t")) == (1, [])
    assert _copy(world.store, target).entries == 1
    assert records(target) == records(world.store)
    assert _copy(world.store, target).entries == 0


@pytest.mark.parametrize("cleaned", [False, True])
def test_bucket_copy_interrupted_at_any_call_is_completed_by_a_second_run(cleaned: bool) -> None:
    """Faults hit the calls to the source and to the target.
    1. After the fault, the target holds a prefix of the source's records. A cleaned topic is complete or absent.
    2. After the second run the target holds all records.
    3. The source is unchanged."""
    world = small_segments("raw", 4) if cleaned else _uncleaned(4)
    truth = records(world.store)
    assert isinstance(world.store, MemoryStore)
    before = dict(world.store._objects)

    def cut(at: int, kind: Kind | None, *, of_source: bool) -> list[str]:
        inner = _target()
        target, source = FaultStore(inner, Clock(NOW)), FaultStore(world.store, Clock(NOW))  # type: ignore[arg-type]
        cut_one = source if of_source else target
        cut_one.arm(at, kind)
        try:
            _copy(source, target, entries_a_manifest=2)
        except LogError:
            assert kind is not None
        calls = list(cut_one.calls)
        target.heal()
        if MetadataLog(inner, named("t").prefix).load() is not None:
            seen = records(inner)
            assert seen == truth[: len(seen)]
            assert not cleaned or seen in ([], truth)
        assert _copy(world.store, inner).differences == ()
        assert records(inner) == truth
        assert damage(check_bucket(inner)) == []
        return calls

    for of_source in (False, True):
        cases = [
            (at, kind)
            for at, verb in enumerate(cut(-1, None, of_source=of_source))
            for kind in (Kind.ERROR_BEFORE, Kind.ERROR_AFTER, Kind.LATE_EFFECT, Kind.FALSE_CONFLICT)
            if verb in kind.verbs and (verb in WRITES or kind is Kind.ERROR_BEFORE)
        ]
        for at, kind in each_call(cases, of_source):
            cut(at, kind, of_source=of_source)
    assert world.store._objects == before


@pytest.mark.parametrize("cleaned", [False, True])
def test_cancelled_bucket_copy_of_a_cleaned_topic_leaves_no_part_of_it(cleaned: bool) -> None:
    world, target = small_segments("raw", 4) if cleaned else _uncleaned(4), _target()
    stops = iter([False, False, False, True])
    outcome = _copy(world.store, target, entries_a_manifest=2, should_stop=lambda: next(stops))
    assert (outcome.is_complete, outcome.entries) == (False, 0 if cleaned else 3)
    assert _copy(world.store, target).is_complete
    assert records(target) == records(world.store)


def test_bucket_copy_to_the_same_bucket_or_a_written_partition_is_refused() -> None:
    world, target = _uncleaned(), _target()
    with pytest.raises(InvalidRequest, match="source and target are the same"):
        plan_copy(world.store, world.store, named("t"), now_ms=NOW)
    with pytest.raises(NotFound):
        plan_copy(target, world.store, named("t"), now_ms=NOW)
    MetadataLog(target, named("t").prefix).become_writer("a manager", NOW, topic="t", topic_id=TOPIC_ID, partition=0)
    with pytest.raises(Conflict, match="another writer writes to the target"):
        plan_copy(world.store, target, named("t"), now_ms=NOW)


def test_bucket_copy_is_refused_when_the_source_was_rewritten_since_the_last_run() -> None:
    from tiered.jobs.rewriting import plan_merge, run_rewrite

    world, target = _uncleaned(4), _target()
    stops = iter([False, True])
    _copy(world.store, target, entries_a_manifest=1, should_stop=lambda: next(stops))
    merge = plan_merge(world.store, named("t"), now_ms=NOW, target_bytes=10_000)
    run_rewrite(world.store, merge, now_ms=lambda: NOW)
    with pytest.raises(Conflict, match="other segments for offsets"):
        plan_copy(world.store, target, named("t"), now_ms=NOW)
    assert compare(world.store, target, named("t"))[1] != []


def test_bucket_copy_ends_below_a_damaged_segment() -> None:
    world, target = _uncleaned(3), _target()
    before = records(world.store)
    entry = MetadataLog(world.store, named("t").prefix).refresh().segments[1]
    body = bytearray(world.store.get(named("t").prefix + entry.data_key))
    body[70] ^= 1
    world.store.put(named("t").prefix + entry.data_key, bytes(body))
    with pytest.raises(Corrupt):
        _copy(world.store, target)
    assert records(target) == [each for each in before if each[0] < entry.base_offset] != []


def test_bucket_copy_commits_no_entry_above_a_failed_commit(monkeypatch) -> None:
    """The entries that other threads have copied by then stay out."""
    world, target = _uncleaned(3), _target()
    commit, answers = bucket_copying.commit_entries, iter([Conflict("not now")])

    def commit_after_an_error(*given: object, **more: object) -> None:
        if (error := next(answers, None)) is not None:
            raise error
        commit(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket_copying, "commit_entries", commit_after_an_error)
    plan = plan_copy(world.store, target, named("t"), now_ms=NOW)
    buckets = {"source": OpenBucket.of(world.store, KEYS), "target": OpenBucket.of(target, KEYS)}
    with pytest.raises(Conflict, match="not now"):
        run_job(CopyJob(**buckets, plans=[plan], now_ms=lambda: NOW, batch_size=1), Here(threads=3))
    assert MetadataLog(target, named("t").prefix).refresh().segments == ()
    assert _copy(world.store, target).is_complete
    assert records(target) == records(world.store)


def test_copy_of_one_entry_works_with_a_pickled_plan() -> None:
    world, target = _uncleaned(2), _target()
    plan = pickle.loads(pickle.dumps(plan_copy(world.store, target, named("t"), now_ms=NOW)))
    entry = copy_entry(world.store, target, plan, plan.entries[1], epoch=1)
    assert entry.content_crc32c == plan.entries[1].entry.content_crc32c
    assert plan.cost.puts >= 2 * len(plan.entries) + 1
    assert plan.cost.dollars > 0


def test_bucket_copy_reads_pages_of_the_source_and_writes_its_own() -> None:
    world, target = small_segments("raw", 9, paged=True), _target()
    assert world.logs["t"].refresh().pages
    assert SMALL_PAGES.page_rows_max < 9
    assert _copy(world.store, target).differences == ()
    assert records(target) == records(world.store)


def test_manager_on_a_bucket_copy_continues_above_the_leader_epochs_of_the_source() -> None:
    world, target = World(), MemoryStore("memory://other", now_ms=lambda: NOW)
    for at in range(4):
        with world.open() as manager:
            if at == 0:
                manager.topics.create("t", 1, TIERED, now_ms=NOW)
            send(manager, 100, start=at * 100)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
    (name,) = list_partitions(world.store)
    run_copy(world.store, target, plan_copy(world.store, target, name, now_ms=NOW), now_ms=lambda: NOW)
    with world.open(disk=world.other_disk(), store=target) as manager:
        assert manager.problems == {}
        send(manager, 100, start=400)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(disk=world.other_disk(), store=target) as manager:
        assert manager.problems == {}
        assert [record.value for record in manager.reader().records(NAME, 0)] == [b"value %d" % at for at in range(500)]
    lineage = [epoch for epoch, _ in MetadataLog(target, name.prefix).refresh().lineage]
    assert lineage == sorted(lineage)
    assert lineage[-1] > 1000 > lineage[0]
