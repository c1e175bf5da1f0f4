"""Damage found by a scrub is repaired or hopeless; a repair never adds or changes records."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest
import rot
from care_world import KEYS, MODES, NOW, all_kinds, named
from run_profile import each_call

from local.errors import LogError
from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import ImmutableStore
from tiered.health.repair import RepairPlan, plan_repair, run_repair
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import Found
from tiered.migrate.fork import plan_fork, run_fork
from tiered.read.bucket_reader import RemoteLog

CASES = int(os.environ.get("TIERED_ROT_CASES", "240"))
TOPICS = (*MODES, "paged", "viewed")


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    found = all_kinds().store
    assert isinstance(found, MemoryStore)
    return found


def _records(store: MemoryStore, topic: str) -> list[tuple[int, bytes | None]]:
    with RemoteLog(store, keys=KEYS) as bucket:
        reader, name = bucket.reader(), TopicPartition(topic, 0)
        return [(record.offset, record.value) for record in reader.records(name, reader.offsets(name)[0])]


@dataclass
class Tally:
    healed: int = 0
    needless: int = 0
    hopeless: int = 0
    wrong: list[str] = field(default_factory=list)


def _of_history(found: Found) -> bool:
    """Whether the finding is about manifests before the newest, which only readers with a pin use."""
    return found.object.startswith("meta/head/") or found.what.startswith(
        "a manifest names an object again after it was unlinked"
    )


def _heal(store: MemoryStore, topic: str) -> RepairPlan:
    plan = plan_repair(store, rot.scrubbed(store, topic), keys=KEYS)
    done = run_repair(store, plan, now_ms=lambda: NOW + 1, keys=KEYS)
    assert done.failed == ()
    return plan


@pytest.mark.parametrize("topic", TOPICS)
def test_every_drawn_corruption_is_repaired_or_hopeless_and_no_record_changes(store: MemoryStore, topic: str) -> None:
    truth, drawn, tally = _records(store, topic), rot.Rot(store, topic), Tally()
    for seed in range(3_000, 3_000 + CASES // len(TOPICS)):
        bad, what = drawn.of(seed)
        plan = _heal(bad, topic)
        if plan.pages:  # a lost page hid its entries: scrub again
            again = _heal(bad, topic)
            plan = replace(again, pages=plan.pages, segments=plan.segments + again.segments)
        left = rot.scrubbed(bad, topic).of("corrupt")
        known = {each.object for each in (*plan.hopeless, *plan.needless)}
        if plan.hopeless:
            tally.hopeless += 1
            try:
                found = _records(bad, topic)
            except LogError:
                continue
            assert set(found) <= set(truth), what
            continue
        if any(not _of_history(each) and each.object not in known for each in left):
            tally.wrong.append(f"{seed}: {what}: {[(each.object, each.what) for each in left]}")
        assert _records(bad, topic) == truth, what
        tally.healed += bool(plan.segments or plan.pages)
        tally.needless += bool(plan.needless and not (plan.segments or plan.pages))
    assert tally.wrong == [], "\n".join(tally.wrong)
    assert tally.healed > 0, tally


def test_the_plan_for_a_repaired_bucket_is_empty(store: MemoryStore) -> None:
    bad = MemoryStore("memory://b", now_ms=lambda: NOW)
    bad._objects = dict(store._objects)
    prefix = named("raw").prefix
    entry = MetadataLog(bad, prefix).refresh().segments[1]
    bad.delete([prefix + entry.indexes_key])
    report = rot.scrubbed(bad, "raw")
    plan = plan_repair(bad, report, keys=KEYS)
    assert [(each.source, each.object) for each in plan.segments] == [("bucket", entry.data_key)]
    run_repair(bad, plan, now_ms=lambda: NOW + 1, keys=KEYS)
    fresh = MetadataLog(bad, prefix).refresh().segments[1]
    same = ("base_offset", "next_offset", "size_bytes", "record_count", "epochs", "content_crc32c", "cleaned_through",
            "max_timestamp_ms", "min_timestamp_ms", "committed_ms", "made_by")  # fmt: skip
    assert [getattr(fresh, name) for name in same] == [getattr(entry, name) for name in same]
    assert fresh.data_key != entry.data_key
    again = plan_repair(bad, report, keys=KEYS)
    assert (again.segments, again.pages, again.hopeless) == ((), (), ())
    with pytest.raises(FrozenInstanceError):
        again.pages = plan.pages  # type: ignore[misc]
    assert rot.scrubbed(bad, "raw").findings == []


@pytest.mark.parametrize("heads_left", [True, False])
def test_a_lost_page_is_restored_from_older_manifests_or_from_the_objects(heads_left: bool) -> None:
    from care_world import PLAIN_ENCODING, SMALL_PAGES, CareWorld, fill

    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 12, SMALL_PAGES)
    store = world.store
    assert isinstance(store, MemoryStore)
    truth, prefix = _records(store, "t"), named("t").prefix
    if not heads_left:
        from remote.gc.delayed_delete import collect_manifests

        log = world.logs["t"]
        collect_manifests(store, prefix, log, log.refresh().sequence - 1, now_ms=NOW)
    lost = MetadataLog(store, prefix).refresh().pages[1]
    body = store.get(prefix + lost.key)
    store.delete([prefix + lost.key])
    plan = plan_repair(store, rot.scrubbed(store, "t"))
    assert [each.source for each in plan.pages] == ["older manifest" if heads_left else "objects"]
    run_repair(store, plan, now_ms=lambda: NOW + 1)
    if heads_left:
        assert store.get(prefix + lost.key) == body
    assert _records(store, "t") == truth
    assert rot.scrubbed(store, "t").of("corrupt") == []


@pytest.mark.parametrize("what", ["indexes", "page"])
def test_a_repair_stopped_at_any_call_is_finished_by_a_second_run(what: str) -> None:
    from care_world import PLAIN_ENCODING, SMALL_PAGES, CareWorld, fill
    from fault_kinds import Clock, FaultStore, Kind

    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 12, SMALL_PAGES)
    assert isinstance(world.store, MemoryStore)
    truth, prefix = _records(world.store, "t"), named("t").prefix
    log = MetadataLog(world.store, prefix)
    manifest = log.refresh()
    lost = manifest.pages[1].key if what == "page" else list(log.index(manifest).entries())[3].indexes_key
    world.store.delete([prefix + lost])

    def cut(at: int, kind: Kind | None) -> int:
        bad = MemoryStore("memory://b", now_ms=lambda: NOW)
        bad._objects = dict(world.store._objects)  # type: ignore[attr-defined]
        faults = FaultStore(bad, Clock(NOW))
        faults.arm(at, kind)
        try:
            run_repair(faults, plan_repair(faults, rot.scrubbed(bad, "t")), now_ms=lambda: NOW + 1)
        except LogError:
            assert kind is not None
        calls = len(faults.calls)
        faults.heal()
        run_repair(bad, plan_repair(bad, rot.scrubbed(bad, "t")), now_ms=lambda: NOW + 2)
        assert _records(bad, "t") == truth
        assert rot.scrubbed(bad, "t").of("corrupt") == []
        return calls

    kinds = (Kind.ERROR_BEFORE, Kind.ERROR_AFTER)
    for at, kind in each_call([(at, kind) for at in range(cut(-1, None)) for kind in kinds], what):
        cut(at, kind)


def test_other_valid_bytes_under_the_name_are_not_a_good_copy() -> None:
    """Batches with valid CRCs, at the same offsets; only the checksum in the entry differs."""
    from care_world import CareWorld, batches

    world = CareWorld.empty()
    assert isinstance(world.store, MemoryStore)
    entries = [world.add("t", b"".join(batches(base, (4, 5), seed=1)), base + 10) for base in (0, 10)]
    other = b"".join(batches(0, (4, 5), seed=2))
    assert len(other) == entries[0].size_bytes
    prefix = named("t").prefix
    world.store.put(prefix + entries[0].data_key, other)
    world.store.delete([prefix + entries[0].indexes_key])
    plan = plan_repair(world.store, rot.scrubbed(world.store, "t"))
    assert plan.segments == ()
    assert ["its data is also damaged" in each.why for each in plan.hopeless] == [True]
    assert plan.hopeless[0].offsets == (0, 10)


def test_a_page_of_rewritten_entries_is_not_restored_with_the_entries_before() -> None:
    """Older manifests hold the same offsets in other entries, whose objects are pending deletes."""
    from care_world import PLAIN_ENCODING, SMALL_PAGES, CareWorld, fill

    from remote.manifest.manifest import AppliedJob
    from remote.manifest.manifest_changes import replace_tiled
    from tiered.jobs.rewriting import plan_recode, rewrite_group

    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 12, SMALL_PAGES)
    store, prefix = world.store, named("t").prefix
    assert isinstance(store, MemoryStore)
    truth = _records(store, "t")
    plan = plan_recode(store, named("t"), now_ms=NOW, codec="zstd")
    done = [rewrite_group(plan, group, store) for group in plan.groups]
    replaced = [each.replacement for each in done if each.replacement is not None]
    change = replace_tiled(replaced, cleaned_through=0, bound=None, note=AppliedJob(job_id="j"), keeps_maker=True)
    world.commit("t", change, touches=(0, 2000))  # as a manager with small pages: new pages in the same manifest
    log = MetadataLog(store, prefix)
    before = [entry.data_key for entry in log.index(log.refresh()).entries()]
    lost = log.refresh().pages[1]
    store.delete([prefix + lost.key])
    plan_of_pages = plan_repair(store, rot.scrubbed(store, "t"))
    assert [each.source for each in plan_of_pages.pages] == ["objects"]
    run_repair(store, plan_of_pages, now_ms=lambda: NOW + 1)
    log = MetadataLog(store, prefix)
    assert [entry.data_key for entry in log.index(log.refresh()).entries()] == before
    assert _records(store, "t") == truth
    assert rot.scrubbed(store, "t").of("corrupt") == []


def test_a_page_from_objects_counts_as_redacted_so_that_the_disk_replaces_none_of_its_entries() -> None:
    """The objects do not name the job that wrote them. Local copies may have records that a redaction erased."""
    from care_world import PLAIN_ENCODING, SMALL_PAGES, CareWorld, fill

    from remote.manifest.manifest import AppliedJob
    from remote.manifest.manifest_changes import replace_tiled
    from tiered.jobs.rewriting import plan_recode, rewrite_group

    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 12, SMALL_PAGES)
    store, prefix = world.store, named("t").prefix
    plan = plan_recode(store, named("t"), now_ms=NOW, codec="zstd")
    done = [rewrite_group(plan, group, store) for group in plan.groups]
    replaced = [each.replacement for each in done if each.replacement is not None]
    change = replace_tiled(replaced, cleaned_through=0, bound=None, note=AppliedJob(job_id="redact-j"))
    world.commit("t", change, touches=(0, 2000))
    log = MetadataLog(store, prefix)
    assert all(entry.is_redacted for entry in log.index(log.refresh()).entries())
    store.delete([prefix + log.refresh().pages[1].key])
    plan_of_pages = plan_repair(store, rot.scrubbed(store, "t"))
    assert [each.source for each in plan_of_pages.pages] == ["objects"]
    run_repair(store, plan_of_pages, now_ms=lambda: NOW + 1)
    log = MetadataLog(store, prefix)
    assert all(entry.is_redacted for entry in log.index(log.refresh()).entries())
    assert rot.scrubbed(store, "t").of("corrupt") == []


def test_a_page_from_objects_with_the_bytes_of_the_lost_page_has_its_makers() -> None:
    from care_world import SMALL_PAGES, CareWorld, batches

    from remote.gc.delayed_delete import collect_manifests

    world = CareWorld.empty()
    world.writer("t", SMALL_PAGES)
    for base in range(0, 200, 10):
        world.add("t", batches(base, (10,))[0], base + 10)
    store, prefix, log = world.store, named("t").prefix, world.logs["t"]
    collect_manifests(store, prefix, log, log.refresh().sequence - 1, now_ms=NOW)
    lost = prefix + log.refresh().pages[1].key
    body = store.get(lost)
    store.delete([lost])
    plan = plan_repair(store, rot.scrubbed(store, "t"))
    assert [each.source for each in plan.pages] == ["objects"]
    run_repair(store, plan, now_ms=lambda: NOW + 1)
    assert store.get(lost) == body


def test_a_damaged_page_of_an_immutable_bucket_is_replaced_under_a_new_name() -> None:
    """The damaged object cannot be overwritten."""
    from care_world import PLAIN_ENCODING, SMALL_PAGES, CareWorld, fill

    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 12, SMALL_PAGES)
    store = world.store
    assert isinstance(store, MemoryStore)
    truth, prefix = _records(store, "t"), named("t").prefix
    page = MetadataLog(store, prefix).refresh().pages[1].key
    body = bytearray(store.get(prefix + page))
    body[len(body) // 2] ^= 1
    store.put(prefix + page, bytes(body))
    locked = ImmutableStore(store)
    plan = plan_repair(locked, rot.scrubbed(store, "t"))
    done = run_repair(locked, plan, now_ms=lambda: NOW + 1)
    assert (len(done.done), done.failed) == (1, ())
    assert store.get(prefix + page) == bytes(body)
    assert _records(store, "t") == truth
    assert plan_repair(locked, rot.scrubbed(store, "t")).pages == ()


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_is_repaired_like_its_source(mode: str) -> None:
    """Both name the damaged object; the upload that repairs one does not repair the other."""
    from care_world import CareWorld, fill

    world = CareWorld.empty()
    fill(world, mode, MODES[mode])
    store = world.store
    assert isinstance(store, MemoryStore)
    run_fork(store, plan_fork(store, [named(mode)], "f", known=[]), now_ms=lambda: NOW)
    names = [named(mode), next(name for name in list_partitions(store) if name.topic == "f")]
    truth = _records(store, mode)
    entry = MetadataLog(store, named(mode).prefix).refresh().segments[1]
    key = named(mode).prefix + (entry.indexes_key if mode == "raw" else entry.data_key)
    body = bytearray(store.get(key))
    body[len(body) // 2] ^= 1
    store.put(key, bytes(body))
    for _ in range(2):
        scrub = plan_scrub(store, names, deep=True)
        results = run_scrub(store, scrub, keys=KEYS)
        assert results is not None
        report = report_of(store, scrub, results, started_ms=NOW, now_ms=NOW)
        plan = plan_repair(store, report, keys=KEYS)
        run_repair(store, plan, now_ms=lambda: NOW + 1, keys=KEYS)
    if mode == "raw":
        assert _records(store, mode) == _records(store, "f") == truth
        assert plan.segments == plan.hopeless == ()
    else:
        assert {each.name.topic for each in plan.hopeless} == {mode, "f"}
        assert not any(
            "its entry has other offsets than the names of its objects" in each.why for each in plan.hopeless
        )
