"""The pipeline over several nodes in one process: stages, exemptions, safe repetition.
The same on Spark: tests/spark/test_spark_pipeline.py."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from bucket_truth import assert_sound
from care_world import SMALL_PAGES, CareWorld, batches, named
from fault_kinds import Clock, FaultStore, Kind
from hypothesis import example, given
from hypothesis import strategies as st
from pipeline_world import DAY, EVENTS, NOW, FleetWorld
from remote_samples import manifest, stored_row, ulid_of
from run_profile import CALL_STRIDE, each_call
from test_ingest import write

from local.errors import Fenced, InvalidRequest, LogError
from local.storage import DiskStorage
from policies.decisions import ExpirePage
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PageEntry
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import encode_page
from remote.segment_entry import SegmentEntry
from remote.store.open_store import open_store
from tiered.jobs.bucket_retention import commit_retention, plan_retention
from tiered.jobs.ingest import commit_ingest, plan_ingest
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.pipeline import Fleet, Stage, State, Unit, dirty_bytes, parts_around_clean_end
from tiered.jobs.pipeline_job import PipelineResult, PipelineState, by_size, plan_pipeline, run_pipeline
from tiered.jobs.runner import Here
from tiered.node.writer_ids import is_of_node, new_writer_id, node_mark
from tiered.read.bucket_reader import RemoteLog


def _run(world: FleetWorld, **more: object) -> PipelineResult:
    fleet = world.fleet(**more.pop("fleet", {}))  # type: ignore[arg-type]
    return run_pipeline(fleet, Here(), job_id="nightly", now_ms=lambda: NOW, **more)  # type: ignore[arg-type]


def _states(units: tuple[Unit, ...] | list[Unit], stage: Stage) -> list[State]:
    return [unit.state for unit in units if unit.stage is stage]


@pytest.fixture
def world(tmp_path):
    world = FleetWorld(tmp_path / "fleet")
    for number in range(2):
        world.fill(number)
    return world


def test_pipeline_cleans_copies_expires_compacts_and_merges(world):
    planned = plan_pipeline(world.fleet(), Here(), now_ms=NOW)
    assert _states(planned, Stage.CLEAN_AND_TIER) == [State.DUE, State.DUE]
    assert all(not found for found in world.records().values()), "a plan must change nothing"
    result = _run(world)
    assert result.is_complete
    assert not [unit for unit in result.units if unit.state is State.FAILED]
    assert _states(result.units, Stage.CLEAN_AND_TIER) == [State.DONE, State.DONE]
    world.check()
    again = _run(world)
    assert {unit.state for unit in again.units} <= {State.DONE}
    assert not [unit for unit in again.units if unit.stage is not Stage.CLEAN_AND_TIER], (
        "a second run must have nothing to do"
    )
    world.check()
    store = open_store(world.url)
    assert_sound(store)
    store.close()


def test_pipeline_stages_of_the_bucket_need_no_node(world):
    """The nodes copy their segments themselves.
    Later only the bucket is maintained, with the settings of the topics."""
    for number in range(2):
        with world.manager(number, NOW - 20 * DAY) as manager:
            while manager.tick(NOW - 20 * DAY):
                pass
            assert manager.problems == {}
    before = sum(len(found) for found in world.records().values())
    result = _run(world, fleet={"nodes": ()})
    assert {unit.stage for unit in result.units} >= {Stage.RETENTION, Stage.MERGE}
    assert not [unit for unit in result.units if unit.state is State.FAILED or unit.stage is Stage.CLEAN_AND_TIER]
    assert sum(len(found) for found in world.records().values()) < before
    world.check()


def test_pipeline_skips_a_locked_node_and_a_partition_of_another_writer(world, tmp_path):
    with world.manager(0):
        result = _run(world)
        assert _states(result.units, Stage.CLEAN_AND_TIER) == [State.LEFT_ALONE, State.DONE]
        (held,) = [unit for unit in result.units if unit.state is State.LEFT_ALONE]
        assert "another manager has the log directory open" in held.why
    store = open_store(world.url)
    prefix = next(iter(store.list_prefixes("")))
    assert prefix.startswith("events-0-")
    log = MetadataLog(store, f"{prefix}0/" if prefix.endswith("/") else f"{prefix}/0/")
    manifest = log.load()
    log.become_writer("elsewhere", NOW, topic=manifest.topic, topic_id=manifest.topic_id, partition=0)
    store.close()
    result = _run(world)
    (left,) = [unit for unit in result.units if unit.state is State.LEFT_ALONE]
    assert "was last written by another node: elsewhere" in left.why
    assert log.refresh(exact=True).writer_id == "elsewhere"
    result = _run(world, fleet={"takes_over": True})
    assert _states(result.units, Stage.CLEAN_AND_TIER) == [State.DONE]
    world.check()


def test_node_with_an_interrupted_swap_is_due(world):
    """A read-only open cannot finish the swap and sees nothing else of the partition.
    Maintenance of the node finishes it."""
    _run(world)
    assert _states(plan_pipeline(world.fleet(), Here(), now_ms=NOW), Stage.CLEAN_AND_TIER) == [State.NOTHING] * 2
    log = min(path for path in Path(world.nodes[0]).rglob("*.log") if path.parent.name.startswith("events-0"))
    log.rename(f"{log}.swap")
    planned = plan_pipeline(world.fleet(), Here(), now_ms=NOW)
    assert [unit.state for unit in planned if unit.unit == world.nodes[0]] == [State.DUE]
    assert "a segment swap is in progress" in next(unit.why for unit in planned if unit.unit == world.nodes[0])
    assert not [unit for unit in _run(world).units if unit.state is State.FAILED]
    assert log.exists()
    world.check()


def test_node_without_a_configuration_fails_and_one_of_another_bucket_is_left_alone(world, tmp_path):
    (tmp_path / "empty").mkdir()
    other = FleetWorld(tmp_path / "other", 1)
    other.fill(0)
    nodes = (world.nodes[0], str(tmp_path / "empty"), other.nodes[0])
    fleet = world.fleet()
    result = run_pipeline(replace(fleet, nodes=nodes), Here(), job_id="j", now_ms=lambda: NOW)
    found = {unit.unit: unit for unit in result.units if unit.stage is Stage.CLEAN_AND_TIER}
    assert [found[node].state for node in nodes] == [State.DONE, State.FAILED, State.LEFT_ALONE]
    assert "another bucket" in found[nodes[2]].why


@pytest.mark.parametrize("units", [0, 2, 5])
def test_cancelled_pipeline_resumes_with_the_units_that_are_not_done(world, tmp_path, units):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > units * 2

    path = str(tmp_path / "state.jsonl")
    with PipelineState(DiskStorage(), path, world.url, "nightly", now_ms=NOW) as state:
        fleet = world.fleet()
        first = run_pipeline(
            fleet,
            Here(stop),
            job_id="nightly",
            now_ms=lambda: NOW,
            state=state,
        )
    assert not first.is_complete
    with PipelineState(DiskStorage(), path, world.url, "nightly", now_ms=NOW) as state:
        over = {unit.unit for unit in first.units if unit.state is State.DONE and unit.stage is Stage.CLEAN_AND_TIER}
        assert all(state.is_over(Stage.CLEAN_AND_TIER, unit) for unit in over)
        second = _run(world, state=state)
    assert second.is_complete
    assert not over & {unit.unit for unit in second.units if unit.stage is Stage.CLEAN_AND_TIER}
    world.check()
    with pytest.raises(InvalidRequest, match="another store"):
        PipelineState(DiskStorage(), path, "s3://other", "nightly", now_ms=NOW)


def test_pipeline_job_id_gets_a_new_run_id_after_its_end(tmp_path):
    """Otherwise a job named nightly would compact only once.
    Its own note in the manifests would mark every later run as done."""
    path, ids = str(tmp_path / "state.jsonl"), []
    for number in range(3):
        state = PipelineState(DiskStorage(), path, "file:///bucket", "nightly", now_ms=NOW + number)
        ids.append(state.run_id)
        state.close() if number == 0 else state.remove()
    assert ids[0] == ids[1] != ids[2]


def test_pipeline_deletes_expired_ingested_segments_after_the_grace_period(tmp_path):
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    store = open_store(url)
    entries = {
        "segment.bytes": "4096",
        "append.batch.bytes": "512",
        "cleanup.policy": "delete",
        "retention.ms": str(DAY),
    }
    made = plan_ingest(store, "t", now_ms=NOW, settings=entries, create_partitions=1, job_id="job")
    commit_ingest(store, made, [write(store, made, 0, {0: 300})], now_ms=NOW)
    fleet, prefix = Fleet(bucket=Bucket(url=url)), made.targets[0].name.prefix

    def data() -> set[str]:
        return {info.key for info in store.list(prefix) if info.key.startswith(f"{prefix}data/")}

    def run(days):
        at_ms = NOW + days * DAY
        planned = [each for each in plan_pipeline(fleet, Here(), now_ms=at_ms) if each.stage is Stage.DELETION]
        result = run_pipeline(fleet, Here(), job_id="j", now_ms=lambda: at_ms)
        return planned, [each for each in result.units if each.stage is Stage.DELETION]

    before = data()
    assert len(before) == 4
    (planned,), done = run(5)
    assert (planned.state, done) == (State.NOTHING, [])
    assert data() == before, "the objects are within the grace period"
    (planned,), (done,) = run(7)
    assert (planned.state, done.state) == (State.DUE, State.DONE)
    assert (planned.why, planned.bytes_before) == (done.why, done.bytes_before)
    assert done.why == f"{len(before)} objects"
    assert done.bytes_before > 1000
    assert not data()
    (planned,), done = run(9)
    assert (planned.state, done) == (State.NOTHING, [])
    assert_sound(store)
    store.close()


def _aged(count=6, days=2, *, paged=False):
    """Segments `days` days apart. The newest one is from `NOW`."""
    from local.records.batch import encode_batch

    world = CareWorld.empty()
    world.writer("t", SMALL_PAGES if paged else None)
    for number in range(count):
        at = NOW - (count - 1 - number) * days * DAY
        data = encode_batch([(b"k", b"v" * 50, at + each, ()) for each in range(4)], base_offset=number * 10)
        world.add("t", data, number * 10 + 10, max_timestamp_ms=at + 3, min_timestamp_ms=at, record_count=4)
    return world


POLICY = {"cleanup.policy": "delete"}


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({**POLICY, "retention.ms": str(5 * DAY)}, 3),
        ({**POLICY, "retention.ms": "-1"}, 6),
        (POLICY, 6),  # the topic has no retention of its own, and Kafka's default of seven days must not apply
        ({"retention.ms": "1"}, 6),
        ({"cleanup.policy": "compact", "retention.ms": "1"}, 6),
        ({**POLICY, "retention.bytes": "900"}, None),
        ({**POLICY, "retention.ms": "1"}, 0),
    ],
)
def test_pipeline_retention_uses_only_known_settings(known, left):
    world = _aged()
    plan = plan_retention(world.store, named("t"), known, now_ms=NOW + 10)
    commit_retention(world.store, plan, now_ms=NOW)
    commit_retention(world.store, plan, now_ms=NOW)
    manifest = MetadataLog(world.store, named("t").prefix).refresh(exact=True)
    if left is None:
        assert sum(entry.size_bytes for entry in manifest.segments) >= 900
        assert 0 < len(manifest.segments) < 6
    else:
        assert len(manifest.segments) == left
        assert manifest.log_start_offset == (6 - left) * 10
    assert plan.entries == 6 - len(manifest.segments)
    assert len(manifest.pending_deletes) == 2 * plan.entries, "the objects must be pending deletes of the writer"
    assert_sound(world.store)


@pytest.mark.parametrize("kept", [0, 1, 5, 13, 20, 24])
def test_retention_unlinks_whole_expired_pages_and_single_entries(kept):
    """Repeats the retention until nothing is due. The entries and the log start offset agree each time."""
    world = _aged(24, days=1, paged=True)
    manifest = MetadataLog(world.store, named("t").prefix).refresh(exact=True)
    assert len(manifest.pages) > 3
    known, entries, pages = {**POLICY, "retention.ms": str(kept * DAY)}, 0, 0
    for _ in range(24):
        plan = plan_retention(world.store, named("t"), known, now_ms=NOW + 10)
        commit_retention(world.store, plan, now_ms=NOW)
        entries, pages = entries + plan.entries, pages + sum(isinstance(each, ExpirePage) for each in plan.leaving)
        if not plan.log_start_offset:
            break
    log = MetadataLog(world.store, named("t").prefix)
    manifest = log.refresh(exact=True)
    left = list(log.index(manifest).entries())
    assert [entry.base_offset for entry in left] == [number * 10 for number in range(24 - kept, 24)]
    assert (manifest.log_start_offset, entries) == ((24 - kept) * 10, 24 - kept)
    assert (pages > 0) == (kept <= 20)
    assert_sound(world.store)


def _retained(store):
    for _ in range(4):
        plan = plan_retention(store, named("t"), {**POLICY, "retention.ms": str(5 * DAY)}, now_ms=NOW + 10)
        commit_retention(store, plan, now_ms=NOW)
        if not plan.log_start_offset:
            break


def test_retention_interrupted_at_any_call_is_finished_by_the_next_run():
    aged, cases = _aged(12, days=1, paged=True), 0
    young = {record.offset for record in _records(aged.store) if record.offset >= 70}
    faults = FaultStore(aged.copied().store, Clock(NOW))
    _retained(faults)
    found = [(at, kind) for at, verb in enumerate(faults.calls) for kind in Kind if verb in kind.verbs]
    for at, kind in each_call([each for each in found if each[1] is not Kind.HANG]):
        world = aged.copied()
        faults = FaultStore(world.store, Clock(NOW))
        faults.follow(lambda number, verb, at=at, kind=kind: kind if number == at else None)
        with suppress(LogError):
            _retained(faults)
        faults.heal()
        assert {record.offset for record in _records(world.store)} >= young
        _retained(world.store)
        manifest = MetadataLog(world.store, named("t").prefix).refresh(exact=True)
        assert manifest.log_start_offset == 70
        assert {record.offset for record in _records(world.store)} == young
        if cases % 5 == 0:
            assert_sound(world.store)
        cases += 1
    assert cases > 40 // CALL_STRIDE


def _records(store):
    with RemoteLog(store) as bucket:
        reader = bucket.reader()
        name = named("t").topic_partition
        return list(reader.records(name, reader.offsets(name)[0]))


def test_retention_plan_of_an_older_epoch_is_fenced():
    world = _aged()
    plan = plan_retention(world.store, named("t"), {**POLICY, "retention.ms": "1"}, now_ms=NOW + 10)
    again = MetadataLog(world.store, named("t").prefix)
    again.become_writer("next", NOW, topic="t", topic_id=named("t").topic_id, partition=0)
    with pytest.raises(Fenced):
        commit_retention(world.store, plan, now_ms=NOW)
    assert len(again.refresh(exact=True).segments) == 6


def test_retention_skips_an_entry_that_was_replaced_after_the_plan():
    from tiered.jobs.rewriting import plan_merge, run_rewrite

    world = _aged()
    plan = plan_retention(world.store, named("t"), {**POLICY, "retention.ms": str(5 * DAY)}, now_ms=NOW + 10)
    merged = plan_merge(world.store, named("t"), now_ms=NOW, target_bytes=100_000)
    run_rewrite(world.store, merged, now_ms=lambda: NOW)
    commit_retention(world.store, plan, now_ms=NOW)
    manifest = MetadataLog(world.store, named("t").prefix).refresh(exact=True)
    assert manifest.log_start_offset == 30
    assert [(entry.base_offset, entry.next_offset) for entry in manifest.segments] == [(0, 60)]
    assert_sound(world.store)


def test_dirty_bytes_count_entries_not_yet_compared_with_older_ones():
    def dirty(*entries):
        found = [
            replace(sample, base_offset=base, next_offset=end, cleaned_through=clean) for base, end, clean in entries
        ]
        return dirty_bytes(found) / sample.size_bytes

    sample = CareWorld.empty().add("t", batches(0, (3,))[0], 10)
    assert dirty() == 0
    assert dirty((0, 10, None), (10, 20, None)) == 2
    assert dirty((0, 10, 20), (10, 20, 20)) == 0
    assert dirty((0, 10, 20), (10, 20, 20), (20, 30, None)) == 1
    assert dirty((0, 10, 10), (10, 20, 20), (20, 30, 30)) == 2
    assert dirty((0, 10, 30), (10, 20, None), (20, 30, 30)) == 2


def test_units_are_packed_by_size_the_largest_first():
    units = [
        Unit(stage=Stage.COMPACTION, unit=str(size), state=State.DUE, size_bytes=size) for size in (50, 9, 8, 2, 1)
    ]
    assert [[each.size_bytes for each in pack] for pack in by_size(units, 10)] == [[50], [9, 1], [8, 2]]


def test_writer_ids_of_a_node_have_its_mark_after_every_start(tmp_path):
    first, second = FleetWorld(tmp_path / "a", 1), FleetWorld(tmp_path / "b", 1)
    marks = [node_mark(DiskStorage(), [f"{world.nodes[0]}/data"]) for world in (first, second)]
    assert marks[0] != marks[1]
    ids = [new_writer_id(DiskStorage(), ["/nowhere", f"{first.nodes[0]}/data"]) for _ in range(2)]
    assert len(set(ids)) == 2
    assert all(is_of_node(each, marks[0]) and not is_of_node(each, marks[1]) for each in ids)
    assert not is_of_node("host-12345678", None)
    assert EVENTS["cleanup.policy"] == "delete"


def _index(entries: list[SegmentEntry], page_rows: int, log_start_offset: int) -> tuple[MetadataIndex, list[str]]:
    """An index over pages of `page_rows` entries, and the keys of the pages that it has read."""
    rows = [entries[at : at + page_rows] for at in range(0, len(entries) - 1, page_rows)] if entries else []
    pages = {encode_page(each, 1, ulid_of(f"P{number}"))[0]: each for number, each in enumerate(rows)}
    of_key, read = {page.key: each for page, each in pages.items()}, list[str]()
    segments = entries[sum(len(each) for each in rows) :]
    found = manifest(*segments, pages=tuple(pages), log_start_offset=log_start_offset)
    return MetadataIndex(found, lambda page: read.append(page.key) or of_key[page.key]), read  # type: ignore[func-returns-value]


@example([(1, 25), (1, 25), (1, 90), (1, 90), (1, 90)], 2, 0)  # the clean end is inside a page
@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 150)), max_size=15),
    st.integers(1, 6),
    st.integers(0, 150),
)
def test_dirty_bytes_by_parts_equal_those_by_entries(facts, page_rows, log_start_offset):
    entries = [
        stored_row(f"E{at}", 10 * at, 10 * at + 10, size_bytes=size, stored_bytes=size, cleaned_through=cleaned)
        for at, (size, cleaned) in enumerate(facts)
    ]
    index, _ = _index(entries, page_rows, log_start_offset)
    parts = parts_around_clean_end(index)
    readable = [entry for entry in entries if entry.base_offset >= log_start_offset]
    assert dirty_bytes(parts) == dirty_bytes(readable)
    assert sum(part.size_bytes for part in parts) == sum(entry.size_bytes for entry in readable)
    counts = [part.segment_count if isinstance(part, PageEntry) else 1 for part in parts]
    assert sum(counts) == len(readable)


@pytest.mark.parametrize("clean", [0, 700, 1500])
def test_dirty_bytes_of_many_pages_read_only_those_around_the_clean_end(clean):
    entries = [
        stored_row(f"E{at}", 10 * at, 10 * at + 10, cleaned_through=clean if 10 * at < clean else None)
        for at in range(150)
    ]
    index, read = _index(entries, 10, 0)
    parts = parts_around_clean_end(index)
    assert dirty_bytes(parts) == (1500 - clean) * 10
    assert len(set(read)) <= 2 < len(index.manifest.pages)
