"""Deleting objects of ingested partitions: stopped and interleaved at every call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from bucket_truth import assert_sound
from care_world import SMALL_PAGES, TOPIC_ID, named, to_copy
from disk_model import ModelDisk
from fault_kinds import Clock, FaultStore, Kind
from fault_store import FaultStore as Watched
from run_profile import CALL_STRIDE, each_call

from local.errors import Conflict, Fenced, LogError, NotFound
from local.records.batch import encode_batch
from local.records.record_columns import of_arrow
from policies import retention
from policies.decisions import ExpirePage
from remote.gc.orphan_search import find_orphans
from remote.gc.pins import pin_newest
from remote.keys import BOUNDARIES, MANIFESTS, PINS, manifest_key, parse_manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest
from remote.manifest.manifest_changes import append_entries, set_properties
from remote.manifest.page_out import PageRule, named_by
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.jobs import bucket_deletion
from tiered.jobs.bucket_deletion import QUIET_MS, Freed, delete_pending, plan_deletion
from tiered.jobs.bucket_retention import commit_retention, plan_retention
from tiered.jobs.ingest import Ingested, IngestPlan, commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.migrate.fork import plan_fork, run_fork
from tiered.read.bucket_reader import RemoteLog

DAY, HOUR = 86_400_000, 3_600_000
NOW = 1_800_000_000_000
INGESTED, RETAINED = NOW - 3 * DAY, NOW - 2 * DAY
NAME = named("t")
SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(5 * DAY)}
SEGMENTS, EXPIRED = 12, 7
NODE = "host-0123abcd-00000001"


def ingested(*, writer: str = "ingest-job", rule: PageRule | None = SMALL_PAGES, note: bool = True) -> MemoryStore:
    """A topic of twelve segments a day apart, written by a finished ingest."""
    store = MemoryStore("memory://b", now_ms=lambda: NOW)
    log = MetadataLog(store, NAME.prefix, rule=rule)
    log.become_writer(writer, INGESTED, topic="t", topic_id=TOPIC_ID, partition=0, properties=SETTINGS)
    entries = []
    for number in range(SEGMENTS):
        at = RETAINED - (SEGMENTS - 1 - number) * DAY
        data = encode_batch([(b"k", b"v" * 50, at + each, ()) for each in range(4)], base_offset=number * 10)
        facts = {"max_timestamp_ms": at + 3, "min_timestamp_ms": at, "record_count": 4}
        made = to_copy(data, number * 10 + 10, **facts)  # type: ignore[arg-type]
        entries.append(copy_segment(store, NAME.prefix, made, epoch=log.epoch, now_ms=INGESTED))
    if note:
        log.commit(append_entries(entries, start_offset=0, note=AppliedJob(job_id="job")), INGESTED)
    return store


def retained(store: ObjectStore) -> int:
    """Expire the oldest entries, as whole pages and one by one; return the number of pages."""
    pages = 0
    for _ in range(8):
        plan = plan_retention(store, NAME, SETTINGS, now_ms=RETAINED + 10)
        commit_retention(store, plan, now_ms=RETAINED)
        pages += sum(isinstance(each, ExpirePage) for each in plan.leaving)
        if not plan.log_start_offset:
            break
    return pages


def waiting(*, pinned: bool = False, **more: object) -> MemoryStore:
    """The same with objects past their grace period; optionally with an older pin of a reader."""
    store = ingested(**more)  # type: ignore[arg-type]
    if pinned:
        log = MetadataLog(store, NAME.prefix)
        pin_newest(store, NAME.prefix, log, now_ms=INGESTED, expires_ms=NOW + DAY, holder="reader")
    retained(store)
    return store


def copied(store: MemoryStore) -> MemoryStore:
    other = MemoryStore("memory://b", now_ms=lambda: NOW)
    other._objects = dict(store._objects)
    return other


def free(store: ObjectStore, now_ms: int = NOW, *, takes_over: bool = False) -> Freed:
    return delete_pending(
        store, plan_deletion(store, NAME, SETTINGS, now_ms=now_ms, takes_over=takes_over), now_ms=now_ms
    )


def manifest(store: ObjectStore) -> Manifest:
    return MetadataLog(store, NAME.prefix).refresh(exact=True)


def objects(store: ObjectStore) -> set[str]:
    """The data objects, indexes and pages in the store."""
    keys = {info.key.removeprefix(NAME.prefix) for info in store.list(NAME.prefix)}
    return {key for key in keys if not key.startswith((MANIFESTS, PINS, BOUNDARIES))}


def offsets(store: ObjectStore, topic: str = "t") -> set[int]:
    with RemoteLog(store) as bucket:
        reader, name = bucket.reader(), NAME.topic_partition
        name = type(name)(topic, 0)
        start, end = reader.offsets(name)
        return {record.offset for record in reader.records(name, start)} if start < end else set()


LIVE = {number * 10 + each for number in range(EXPIRED, SEGMENTS) for each in range(4)}


def calls(made: MemoryStore) -> int:
    rehearsal = Watched(copied(made))
    free(rehearsal)
    return len(rehearsal.calls)


@pytest.mark.parametrize("rule", [None, SMALL_PAGES], ids=["rows", "pages"])
def test_expired_segments_of_an_ingested_topic_are_deleted_after_the_grace_period(rule: PageRule | None) -> None:
    store = ingested(rule=rule)
    assert (retained(store) > 0) == (rule is not None)
    before, of_job = objects(store), manifest(store)
    assert free(store, RETAINED + DAY - 1) == Freed(), "objects are deleted within the grace period"
    assert manifest(store) == of_job, "the epoch was taken although no object was due"
    freed = free(store, RETAINED + DAY)
    there, now = objects(store), manifest(store)
    assert freed.objects == len(before - there) >= 2 * EXPIRED
    assert freed.size_bytes > 0
    assert there == named_by(now, MetadataLog(store, NAME.prefix).page_entries), (
        "the store must hold exactly the named objects"
    )
    assert not now.pending_deletes
    assert not now.pending_page_deletes
    assert now.epoch == of_job.epoch + 1
    assert offsets(store) == LIVE
    assert free(store, NOW + DAY) == Freed()
    assert manifest(store) == now
    assert_sound(store)


def test_a_second_deletion_of_a_partition_without_a_writer_waits_for_no_other_grace() -> None:
    store = waiting()
    free(store)
    head_after = manifest(store)
    later = {**SETTINGS, "retention.ms": str(2 * DAY)}
    commit_retention(store, plan_retention(store, NAME, later, now_ms=NOW), now_ms=NOW)
    assert free(store, NOW + DAY).objects
    assert manifest(store).epoch == head_after.epoch + 1
    assert_sound(store)


@pytest.mark.parametrize(
    ("writer", "note", "at_ms", "why"),
    [
        (NODE, True, NOW, None),
        ("restore-01234567", True, NOW, None),
        ("deletion-01ARZ3NDEKTSV4RRFFQ69G5FAV", True, NOW, None),
        ("ingest-other", True, NOW, "not committed"),
        ("ingest-job", True, RETAINED + QUIET_MS - 1, "may be a running stream"),
    ],
)
def test_a_partition_that_may_have_a_writer_is_skipped_unless_takeover_is_requested(
    writer: str, note: bool, at_ms: int, why: str | None
) -> None:
    store = waiting(writer=writer, note=note)
    settings = {**SETTINGS, "remote.log.delete.grace.ms": str(HOUR)}
    before = manifest(store)
    plan = plan_deletion(store, NAME, settings, now_ms=at_ms)
    assert why in plan.skip_reason if why else not plan.objects  # type: ignore[operator]
    assert delete_pending(store, plan, now_ms=at_ms) == Freed()
    assert manifest(store) == before
    if why is None:  # the grace period of another writer is unknown
        unknown = plan_deletion(store, NAME, SETTINGS, now_ms=at_ms, takes_over=True)
        assert "is unknown" in str(unknown.skip_reason)
    taken = plan_deletion(store, NAME, settings, now_ms=at_ms, takes_over=True)
    assert delete_pending(store, taken, now_ms=at_ms).objects == taken.objects > 0
    has_no_manager = manifest(store).writer_id.startswith("ingest-deletion-")
    assert has_no_manager == writer.startswith("ingest-"), "deletion must leave a manager's partition to its manager"
    assert offsets(store) == LIVE


def test_pinned_objects_are_not_deleted_and_no_epoch_is_taken_for_them() -> None:
    store = waiting(pinned=True)
    before, of_job = objects(store), manifest(store)
    plan = plan_deletion(store, NAME, SETTINGS, now_ms=NOW)
    assert "pin" in str(plan.skip_reason)
    assert free(store) == Freed()
    assert (objects(store), manifest(store)) == (before, of_job)
    assert free(store, NOW + 2 * DAY).objects, "objects are not deleted although the pin has expired"
    assert_sound(store)


def test_objects_that_a_fork_names_leave_the_pending_deletes_and_are_not_deleted() -> None:
    store = ingested()
    run_fork(store, plan_fork(store, [NAME], "forked", known=[]), now_ms=lambda: INGESTED)
    retained(store)
    assert free(store).objects
    now = manifest(store)
    assert not now.pending_deletes
    assert not now.pending_page_deletes
    assert offsets(store) == LIVE
    assert offsets(store, "forked") == {number * 10 + each for number in range(SEGMENTS) for each in range(4)}
    assert_sound(store)


def test_a_deletion_stopped_at_any_call_is_finished_by_the_next_and_loses_nothing() -> None:
    assert _cut_anywhere(waiting()) > 100 // CALL_STRIDE


def _cut_anywhere(made: MemoryStore) -> int:
    live = offsets(made)
    faults, cases = FaultStore(copied(made), Clock(NOW)), 0
    free(faults)
    found = [(at, kind) for at, verb in enumerate(faults.calls) for kind in Kind if verb in kind.verbs]
    for at, kind in each_call([each for each in found if each[1] is not Kind.HANG]):
        store = copied(made)
        faults = FaultStore(store, Clock(NOW))
        faults.follow(lambda number, verb, at=at, kind=kind: kind if number == at else None)  # type: ignore[misc]
        with suppress(LogError):
            free(faults)
        faults.heal()
        assert offsets(store) == live, (at, kind)
        free(store)
        now = manifest(store)
        assert not now.pending_deletes, (at, kind)
        assert not now.pending_page_deletes, (at, kind)
        log = MetadataLog(store, NAME.prefix)
        left = objects(store) - named_by(now, log.page_entries)
        assert left <= {each.key for each in find_orphans(store, NAME.prefix, log, now_ms=NOW)}, (at, kind)
        assert not left or kind in (Kind.SILENT_DELETE, Kind.CHANGED_OBJECT), (at, kind)
        assert offsets(store) == live, (at, kind)
        if cases % 10 == 0:
            assert_sound(store)
        cases += 1
    return cases


def begun(store: ObjectStore) -> tuple[IngestPlan, list[Ingested]]:
    """Another ingest that has taken over and uploaded, and has not committed."""
    plan = plan_ingest(store, "t", now_ms=NOW, job_id="next", span=None)
    return plan, [written(store, plan, 0, count=5)]


def written(store: ObjectStore, plan: IngestPlan, turn: int, *, count: int = 1) -> Ingested:
    """The upload of one task."""
    import pyarrow as pa

    disk = ModelDisk()
    disk.make_directory("./task")
    work = IngestTask(store, plan, 0, storage=disk, directory="./task")
    for columns in of_arrow(pa.table({"value": [b"new %d" % turn] * count}), now_ms=NOW):
        work.add(0, columns)
    return work.end()


def _ingest_begins(store: ObjectStore) -> Callable[[], set[int]]:
    plan, parts = begun(store)

    def end() -> set[int]:
        commit_ingest(store, plan, parts, now_ms=NOW)
        return {*range(SEGMENTS * 10, SEGMENTS * 10 + 5)}

    return end


def _ingest_runs(store: ObjectStore) -> Callable[[], set[int]]:
    new = _ingest_begins(store)()
    return lambda: new


def _manager_starts(store: ObjectStore) -> Callable[[], set[int]]:
    log = MetadataLog(store, NAME.prefix)
    log.become_writer(NODE, NOW, topic="t", topic_id=TOPIC_ID, partition=0)

    def end() -> set[int]:
        data = encode_batch([(b"k", b"new", NOW, ())], base_offset=SEGMENTS * 10)
        made = to_copy(data, SEGMENTS * 10 + 1, record_count=1)
        entry = copy_segment(store, NAME.prefix, made, epoch=log.epoch, now_ms=NOW)
        log.commit(append_entries([entry], start_offset=SEGMENTS * 10, note=AppliedJob(job_id="m")), NOW)
        return {SEGMENTS * 10}

    return end


def _reader_pins(store: ObjectStore) -> Callable[[], set[int]]:
    log = MetadataLog(store, NAME.prefix)
    _, pinned = pin_newest(store, NAME.prefix, log, now_ms=NOW, expires_ms=NOW + 9 * DAY, holder="reader")

    def end() -> set[int]:
        assert all(key in objects(store) for key in _named_live(pinned, store)), (
            "objects of the pinned manifest are missing"
        )
        return set()

    return end


def _fork_is_made(store: ObjectStore) -> Callable[[], set[int]]:
    run_fork(store, plan_fork(store, [NAME], "forked", known=[]), now_ms=lambda: NOW)

    def end() -> set[int]:
        assert offsets(store, "forked") == LIVE
        return set()

    return end


def _another_deletion(store: ObjectStore) -> Callable[[], set[int]]:
    with suppress(Conflict, Fenced):
        free(store)
    return set


def _named_live(pinned: Manifest, store: ObjectStore) -> set[str]:
    listed = {each.key for each in pinned.pending_deletes} | {each.page.key for each in pinned.pending_page_deletes}
    return named_by(pinned, MetadataLog(store, NAME.prefix).page_entries) - listed - _rows_of_pages(pinned, store)


def _rows_of_pages(pinned: Manifest, store: ObjectStore) -> set[str]:
    from remote.manifest.page_out import keys_of

    found: set[str] = set()
    for page in pinned.pending_page_deletes:
        with suppress(LogError):
            found |= set(keys_of(MetadataLog(store, NAME.prefix).page_entries(page.page)))
    return found


EVENTS = {
    "an ingest begins": _ingest_begins,
    "an ingest runs": _ingest_runs,
    "a manager starts": _manager_starts,
    "a reader pins": _reader_pins,
    "a fork is made": _fork_is_made,
    "another deletion": _another_deletion,
}


@pytest.mark.parametrize("event", list(EVENTS))
def test_another_process_between_two_calls_of_a_deletion_is_not_disturbed(event: str) -> None:
    """A process that starts to write is never fenced: its commit after the deletion succeeds.

    Either the process or the deletion stops.
    """
    _let_everyone_in(waiting(), event)


def _let_everyone_in(made: MemoryStore, event: str) -> None:
    for at in each_call(range(calls(made) + 1), event):
        store, ends = copied(made), []

        def meanwhile(number: int, at: int = at, store: MemoryStore = store, ends: list = ends) -> None:  # type: ignore[type-arg]
            if number == at:
                ends.append(EVENTS[event](store))

        with suppress(Conflict, Fenced):
            free(Watched(store, before_call=meanwhile))
        for end in ends or [EVENTS[event](store)]:
            new = end()
            assert offsets(store) == LIVE | new, at
        if at % 4 == 0:
            assert_sound(store)


@pytest.mark.usefixtures("every_call")
def test_a_deletion_without_a_check_of_the_writer_fences_a_started_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken by hand: the epoch is taken from any writer."""
    monkeypatch.setattr(bucket_deletion, "_check_newest", lambda plan, now_ms, manifest: None)
    with pytest.raises(Fenced):
        test_another_process_between_two_calls_of_a_deletion_is_not_disturbed("an ingest begins")


def test_a_deletion_without_a_check_of_pins_deletes_pinned_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken by hand."""
    monkeypatch.setattr("remote.gc.pins.list_pins", lambda store, prefix: [])
    with pytest.raises(AssertionError):
        test_pinned_objects_are_not_deleted_and_no_epoch_is_taken_for_them()


# --- old manifests ---------------------------------------------------------------------------------------------------

KEPT, AT_ONCE = 3, 4


@pytest.fixture
def few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", KEPT)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", AT_ONCE)


def grown(store: MemoryStore, manifests: int, at_ms: int = RETAINED) -> MemoryStore:
    """The same store with more manifests, committed by a co-writer."""
    log = MetadataLog(store, NAME.prefix)
    log.join()
    for number in range(manifests):
        log.commit(set_properties({"retention.ms": str(5 * DAY), "segment.ms": str(DAY + number)}), at_ms)
    return store


def manifests(store: ObjectStore) -> list[int]:
    names = [info.key.removeprefix(NAME.prefix) for info in store.list(NAME.prefix + MANIFESTS)]
    return [found for name in names if (found := parse_manifest_key(name)) is not None]


@pytest.mark.usefixtures("few_heads")
def test_old_manifests_without_a_writer_are_deleted_and_few_of_them_take_no_epoch() -> None:
    store = ingested(rule=None)
    before = manifest(store)
    assert manifests(store) == list(range(1, before.sequence + 1))
    assert free(store) == Freed()
    store = grown(store, KEPT + AT_ONCE - before.sequence - 1)
    few = manifest(store)
    assert free(store) == Freed()
    assert manifest(store) == few
    grown(store, 1)
    plan = plan_deletion(store, NAME, SETTINGS, now_ms=NOW)
    assert (plan.objects, plan.manifests, plan.is_due) == (0, AT_ONCE, True)
    assert free(store).manifests == AT_ONCE + 1, "expected one more: the takeover commits a manifest"
    now = manifest(store)
    assert (now.epoch, manifests(store)) == (few.epoch + 1, list(range(now.sequence - KEPT + 1, now.sequence + 1)))
    assert offsets(store) == {number * 10 + each for number in range(SEGMENTS) for each in range(4)}
    assert free(store) == Freed()
    assert manifest(store) == now
    assert_sound(store)


@pytest.mark.usefixtures("few_heads")
def test_old_manifests_of_a_partition_with_a_writer_are_left_to_the_writer() -> None:
    for writer, note, at_ms in ((NODE, True, NOW), ("ingest-job", False, NOW), ("ingest-job", True, RETAINED + 1)):
        store = ingested(writer=writer, rule=None, note=False)
        log = MetadataLog(store, NAME.prefix)
        log.join()
        log.commit(append_entries([], start_offset=0, note=AppliedJob(job_id="job" if note else "other")), INGESTED)
        grown(store, 2 * (KEPT + AT_ONCE))
        before = manifests(store)
        assert free(store, at_ms) == Freed()
        assert manifests(store) == before


@pytest.mark.usefixtures("few_heads")
def test_a_pinned_manifest_and_its_objects_outlive_garbage_collection() -> None:
    store = ingested()
    log = MetadataLog(store, NAME.prefix)
    _, pinned = pin_newest(store, NAME.prefix, log, now_ms=INGESTED, expires_ms=NOW + DAY, holder="reader")
    retained(store)
    grown(store, 2 * (KEPT + AT_ONCE))
    freed = free(store)
    assert (freed.objects, freed.manifests > AT_ONCE) == (0, True)
    assert store.get(NAME.prefix + manifest_key(pinned.sequence))
    named = named_by(pinned, MetadataLog(store, NAME.prefix).page_entries)
    assert named <= objects(store)
    now = manifest(store)
    assert manifests(store) == [pinned.sequence, *range(now.sequence - KEPT + 1, now.sequence + 1)]
    assert_sound(store)
    grown(store, AT_ONCE + 1)
    assert free(store, NOW + 2 * DAY).objects, "objects are not deleted although the pin has expired"
    assert pinned.sequence not in manifests(store)
    assert_sound(store)


@pytest.mark.usefixtures("few_heads")
def test_a_collection_of_manifests_stopped_at_any_call_is_finished_by_the_next() -> None:
    made = grown(ingested(rule=None), 2 * (KEPT + AT_ONCE))
    assert _cut_anywhere(made) > 50 // CALL_STRIDE
    kinds = (Kind.ERROR_BEFORE, Kind.ERROR_AFTER)
    for at, kind in each_call([(at, kind) for at in range(calls(made)) for kind in kinds]):
        store = copied(made)
        faults = FaultStore(store, Clock(NOW))
        faults.follow(lambda number, verb, at=at, kind=kind: kind if number == at else None)  # type: ignore[misc]
        with suppress(LogError):
            free(faults)
        faults.heal()
        grown(store, KEPT + AT_ONCE + 2)
        free(store, NOW + DAY)
        assert len(manifests(store)) == KEPT, at


@pytest.mark.usefixtures("few_heads")
@pytest.mark.parametrize("event", ["an ingest begins", "a manager starts", "a reader pins", "another deletion"])
def test_another_process_between_two_calls_of_a_collection_is_not_disturbed(event: str) -> None:
    _let_everyone_in(grown(waiting(), 2 * (KEPT + AT_ONCE)), event)


def test_a_collection_without_a_check_of_pins_deletes_a_pinned_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken by hand."""
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", KEPT)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr("remote.gc.delayed_delete.list_pins", lambda store, prefix: [])
    with pytest.raises((AssertionError, NotFound)):
        test_a_pinned_manifest_and_its_objects_outlive_garbage_collection()


@pytest.mark.usefixtures("few_heads")
def test_a_stream_deletes_the_old_manifests_of_its_own_commits() -> None:
    """There is no manager, and a stream may never be silent for long enough to count as finished."""
    store = MemoryStore("memory://b", now_ms=lambda: NOW)
    options = {"now_ms": NOW, "job_id": "stream", "span": None, "is_stream": True}
    plan_ingest(store, "t", create_partitions=1, settings=SETTINGS, topic_id=TOPIC_ID, **options)  # type: ignore[arg-type]
    for turn in range(5 * (KEPT + AT_ONCE)):
        plan = plan_ingest(store, "t", **options)  # type: ignore[arg-type]
        commit_ingest(store, plan, [written(store, plan, turn)], now_ms=NOW, turn=turn)
        assert len(manifests(store)) <= KEPT + AT_ONCE, turn
    assert manifest(store).epoch == 1
    assert len(offsets(store)) == 5 * (KEPT + AT_ONCE)
    assert_sound(store)


@pytest.mark.usefixtures("few_heads")
def test_a_stream_replaced_between_its_commit_and_its_collection_deletes_nothing() -> None:
    store = MemoryStore("memory://b", now_ms=lambda: NOW)
    options = {"now_ms": NOW, "job_id": "stream", "span": None, "is_stream": True}
    plan = plan_ingest(store, "t", create_partitions=1, settings=SETTINGS, topic_id=TOPIC_ID, **options)  # type: ignore[arg-type]
    grown(store, 2 * (KEPT + AT_ONCE))
    others: list[int] = []

    def meanwhile(number: int) -> None:
        newest = manifests(store)[-1]
        if not others and newest > 2 * (KEPT + AT_ONCE) + 1:  # the ingest has committed
            others.append(newest)
            MetadataLog(store, NAME.prefix).become_writer(NODE, NOW, topic="t", topic_id=TOPIC_ID, partition=0)

    part = written(store, plan, 0)
    commit_ingest(Watched(store, before_call=meanwhile), plan, [part], now_ms=NOW, turn=0)
    assert others
    assert manifests(store)[0] == 1
    assert manifest(store).writer_id == NODE
    assert_sound(store)
