"""A scrub: its findings, its resume after a cancel, and that it changes nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from care_world import KEYS, MODES, CareWorld, all_kinds, fill, named
from disk_model import ModelDisk
from remote_samples import forged

from local.errors import InvalidRequest
from remote.keys import manifest_key
from remote.manifest.catalog import chosen_partitions, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import expire_segments
from remote.segments.encryption import KeyRing
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.health.scrub import ScrubPlan, plan_scrub, report_of, run_scrub, scrub_segment
from tiered.health.scrub_report import ScrubReport, ScrubState, decode_report, encode_report
from tiered.migrate.fork import plan_fork, run_fork

NOW = 1_800_000_000_000


@pytest.fixture
def world() -> CareWorld:
    return all_kinds().copied()


def _plan(world: CareWorld, topic: str) -> ScrubPlan:
    return plan_scrub(world.store, [named(topic)], deep=True)


def _report(world: CareWorld, topic: str, **more: object) -> ScrubReport:
    plan = _plan(world, topic)
    results = run_scrub(world.store, plan, keys=KEYS, threads=2)
    assert results is not None
    return report_of(world.store, plan, results, started_ms=NOW, now_ms=NOW + 5, **more)  # type: ignore[arg-type]


def _flip(world: CareWorld, key: str, at: int) -> None:
    body = bytearray(world.store.get(key))
    body[at] ^= 1
    world.store.put(key, bytes(body))


def test_damaged_batch_is_reported_with_its_position_and_offsets(world: CareWorld) -> None:
    job = _plan(world, "raw").jobs[0]
    _flip(world, job.name, 700)
    found = _report(world, "raw").of("corrupt")
    chunk, batch = found[0], found[1]
    assert (chunk.object, chunk.at, chunk.length, chunk.ulid) == (job.entry.data_key, 512, 512, job.entry.ulid)
    assert "checksum differs" in chunk.what
    assert chunk.base_offset is not None
    assert 100 <= chunk.base_offset <= 105
    assert "crc" in batch.what.lower() or "checksum" in batch.what.lower()
    assert batch.at is not None
    assert batch.at <= 700


@pytest.mark.parametrize("topic", ["zstd", "encrypted", "both"])
def test_damage_of_an_encoded_segment_is_reported_by_the_stored_range(world: CareWorld, topic: str) -> None:
    job = _plan(world, topic).jobs[0]
    at = job.entry.stored_bytes - 5
    _flip(world, job.name, at)
    (found,) = _report(world, topic).of("corrupt")
    assert found.at is not None
    assert found.length is not None
    assert found.at <= at < found.at + found.length
    assert found.base_offset is not None
    assert found.base_offset > 100


def test_damage_is_reported_for_every_topic_of_the_object_and_a_wrong_entry_for_one() -> None:
    """A fork and its source name the same objects. A wrong entry of one is no finding of the other."""
    store = MemoryStore("memory://bucket", now_ms=lambda: NOW)
    source, fork = CareWorld(store, {}), named("zfork")
    fill(source, "raw", MODES["raw"])
    run_fork(store, plan_fork(store, [named("raw")], "zfork", known=[]), now_ms=lambda: NOW)
    names = [named("raw"), next(name for name in list_partitions(store) if name.topic == fork.topic)]

    def told(state: ScrubState | None = None) -> list[tuple[str, int | None]]:
        plan = plan_scrub(store, names, deep=True)
        results = run_scrub(store, plan, state=state)
        assert results is not None
        report = report_of(store, plan, results, started_ms=NOW, now_ms=NOW)
        return sorted({(each.topic, each.base_offset) for each in report.of("corrupt")})

    assert told() == []
    log = source.logs["raw"]
    sound = log.refresh(exact=True).segments[0]

    def lie(manifest: Manifest) -> Manifest:
        wrong = replace(manifest.segments[0], record_count=manifest.segments[0].record_count + 1)
        return replace(manifest, segments=(wrong, *manifest.segments[1:]))

    log.commit(lie, NOW)
    state = ScrubState(ModelDisk(), "./state", store.url, now_ms=NOW, resume=False)
    assert told(state) == [("raw", sound.base_offset)]
    body = bytearray(store.get(names[0].prefix + sound.data_key))
    body[700] ^= 1
    store.put(names[0].prefix + sound.data_key, bytes(body))
    assert {topic for topic, _ in told()} == {"raw", "zfork"}


def test_scrub_job_can_be_pickled_and_needs_only_store_and_keys(world: CareWorld) -> None:
    job = pickle.loads(pickle.dumps(_plan(world, "both").jobs[2]))
    result = pickle.loads(pickle.dumps(scrub_segment(job, world.store, KEYS)))
    assert (result.findings, result.read_bytes) == ((), job.entry.stored_bytes + job.entry.indexes_bytes)


def test_scrub_writes_nothing_to_the_store(world: CareWorld) -> None:
    assert isinstance(world.store, MemoryStore)
    before = dict(world.store._objects)
    for topic in ("raw", "paged", "viewed"):
        _report(world, topic)
    assert world.store._objects == before


def test_damage_of_an_entry_that_expired_during_the_scrub_is_no_finding() -> None:
    world = CareWorld.empty()
    fill(world, "raw", all_kinds_at_rest())
    plan = _plan(world, "raw")
    job = plan.jobs[0]
    _flip(world, job.name, 3)
    results = run_scrub(world.store, plan, keys=KEYS, threads=1)
    assert results is not None
    assert results[0].findings
    world.commit("raw", expire_segments([job.entry.ulid], now_ms=NOW, log_start_offset=job.entry.next_offset))
    assert report_of(world.store, plan, results, started_ms=NOW, now_ms=NOW).of("corrupt") == []


def all_kinds_at_rest():
    from care_world import MODES

    return MODES["raw"]


def test_missing_key_is_a_warning(world: CareWorld) -> None:
    plan = _plan(world, "encrypted")
    results = run_scrub(world.store, plan, keys=KeyRing({}), threads=1)
    assert results is not None
    report = report_of(world.store, plan, results, started_ms=NOW, now_ms=NOW)
    assert {each.severity for each in report.findings} == {"warning"}
    unread = [each for each in report.findings if "not in the key ring" in each.what]
    assert len(unread) == len(plan.jobs)
    assert ["not sealed" in each.what for each in report.findings if each not in unread] == [True]


def test_local_copy_is_looked_up_for_damaged_segments_of_the_log_only(world: CareWorld) -> None:
    jobs = _plan(world, "viewed").jobs
    for job in (jobs[0], jobs[-1]):  # one segment of the log, one of its view
        _flip(world, job.name, 3)
    asked = []

    def local_copy(name, entry):
        asked.append((name, entry.ulid))
        return True

    found = [each for each in _report(world, "viewed", local_copy=local_copy).of("corrupt") if each.at == 0]
    assert {each.good_copy for each in found if each.object.startswith("data/")} == {"local"}
    assert {each.good_copy for each in found if each.object.startswith("view/")} == {None}
    assert {ulid for _, ulid in asked} == {jobs[0].entry.ulid}


@pytest.mark.parametrize(
    ("changes", "deep", "what"),
    [
        ({"indexes": {}}, True, "the segment entry has another position of an index: section=offset"),
        ({"codec": "zstd"}, False, "the object name has another encoding: codec=zstd"),
        ({"wrapped_key": "AAAA"}, False, "or a key id without a data key"),
        ({"ulid": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, False, "the object name has another segment than its entry"),
    ],
)
def test_contradiction_between_an_entry_and_its_object_is_reported(
    world: CareWorld, changes: dict[str, object], deep: bool, what: str
) -> None:
    """Without `deep`, names and manifests alone show the contradiction."""
    prefix = named("raw").prefix
    log = MetadataLog(world.store, prefix)
    manifest = log.refresh()
    entries = (*manifest.segments[:-1], replace(manifest.segments[-1], **changes))  # type: ignore[arg-type]
    world.store.put(prefix + manifest_key(manifest.sequence), forged(replace(manifest, segments=entries)))
    plan = plan_scrub(world.store, [named("raw")], deep=deep)
    results = run_scrub(world.store, plan, keys=KEYS, threads=1)
    assert results is not None
    found = report_of(world.store, plan, results, started_ms=NOW, now_ms=NOW).of("corrupt")
    assert any(what in each.what for each in found), found


# --- cancelled and resumed ------------------------------------------------------------------------------------------


def _state(disk: ModelDisk, store: MemoryStore, *, resume: bool = True, now_ms: int = NOW) -> ScrubState:
    return ScrubState(disk, "./care/state", store.url, now_ms=now_ms, resume=resume)


def test_cancelled_scrub_resumes_with_the_same_result(world: CareWorld) -> None:
    plan = _plan(world, "paged")
    _flip(world, plan.jobs[1].name, 3)
    whole = run_scrub(world.store, plan, keys=KEYS, threads=1)
    assert whole is not None
    for stop_after in range(len(plan.jobs)):
        disk, metered = ModelDisk(), MeteredStore(world.store)
        left = iter(range(stop_after))
        with _state(disk, world.store) as state:
            stopped = run_scrub(
                metered, plan, keys=KEYS, state=state, threads=1, should_stop=lambda left=left: next(left, None) is None
            )
            assert stopped is None
        with _state(disk, world.store, now_ms=NOW + 9) as state:
            assert state.is_resumed
            assert state.started_ms == NOW
            told: list[int] = []
            assert run_scrub(metered, plan, keys=KEYS, state=state, threads=1, progress=told.append) == whole
        assert sum(told) == plan.size_bytes
        reads = metered.counts().gets
        assert reads <= run_requests(world, plan), "no segment may be read twice"


def run_requests(world: CareWorld, plan: ScrubPlan) -> int:
    metered = MeteredStore(world.store)
    run_scrub(metered, plan, keys=KEYS, threads=1)
    return metered.counts().gets


def test_scrub_state_torn_at_any_byte_costs_only_repeated_reads(world: CareWorld) -> None:
    plan, disk = _plan(world, "raw"), ModelDisk()
    _flip(world, plan.jobs[0].name, 3)
    with _state(disk, world.store) as state:
        whole = run_scrub(world.store, plan, keys=KEYS, state=state, threads=1)
    body = disk.read("./care/state")
    for length in range(0, len(body), 7):
        torn = ModelDisk()
        torn.make_directory("./care")
        torn.create("./care/state").append(body[:length])
        with _state(torn, world.store) as state:
            assert run_scrub(world.store, plan, keys=KEYS, state=state, threads=1) == whole
        with _state(torn, world.store) as state:
            assert len(state.results(job.identity for job in plan.jobs)) == len(plan.jobs)


def test_scrub_state_is_not_used_without_resume_or_for_another_store(world: CareWorld) -> None:
    plan, disk = _plan(world, "raw"), ModelDisk()
    with _state(disk, world.store) as state:
        run_scrub(world.store, plan, keys=KEYS, state=state, threads=1)
    with pytest.raises(InvalidRequest, match="another store"):
        ScrubState(disk, "./care/state", "memory://other", now_ms=NOW, resume=True)
    with _state(disk, world.store, resume=False, now_ms=NOW + 1) as state:
        assert (state.is_resumed, state.started_ms) == (False, NOW + 1)
        assert state.results(job.identity for job in plan.jobs) == {}
        state.remove()
    assert not disk.exists("./care/state")


# --- choice of partitions, and the report ----------------------------------------------------------------------------


def test_partitions_are_chosen_by_topic_number_and_id(world: CareWorld) -> None:
    other = CareWorld(world.store, {})
    other.store.put(f"raw-{'C' * 22}/0/meta/head/x", b"x")
    names = [(name.topic, name.topic_id) for name in chosen_partitions(world.store, [("raw", None)])]
    assert names == [("raw", "B" * 22), ("raw", "C" * 22)]
    chosen = chosen_partitions(world.store, [("raw", 0), ("zstd", 1)], topic_ids={"raw": "B" * 22})
    assert chosen == [named("raw")]
    assert len(chosen_partitions(world.store)) == 7


def test_report_is_read_back_from_its_file_and_another_version_is_refused(world: CareWorld) -> None:
    _flip(world, _plan(world, "raw").jobs[0].name, 3)
    report = _report(world, "raw")
    body = encode_report(report)
    assert decode_report(body, "f") == report
    with pytest.raises(InvalidRequest, match="another version"):
        decode_report(encode_report(replace_version(report)), "f")
    with pytest.raises(InvalidRequest, match="the file has another format"):
        decode_report(b"{}", "f")


def replace_version(report: ScrubReport) -> ScrubReport:
    import msgspec

    return msgspec.structs.replace(report, schema_version=2)


def test_offsets_of_a_finding_include_the_damaged_batch(world: CareWorld) -> None:
    """For every byte of a segment, the reported offsets include those of the batch with this byte."""
    from local import kernels
    from remote.fetch.range_reader import RemotePartition
    from remote.fetch.segment_check import offsets_between

    job = _plan(world, "raw").jobs[1]
    remote = RemotePartition(world.store, job.prefix)
    bundle = remote.indexes(job.entry)
    table = kernels.scan_batches(remote.read(job.entry, 0, job.entry.size_bytes))
    for at in range(0, job.entry.size_bytes, 3):
        batch = int((table.positions <= at).sum()) - 1
        low, high = offsets_between(job.entry, bundle, at, at + 1)
        assert low <= int(table.base_offsets[batch])
        assert int(table.last_offsets[batch]) < high
    assert offsets_between(replace(job.entry), bundle, 0, job.entry.size_bytes) == (200, 300)
