"""A co-writer and a live writer: faults at every call of either, interleaving, takeovers.

The writer copies, expires and deletes as a manager does. The co-writer replaces an entry by another copy of its
segment. `protocol_world.check` holds the invariants: one chain of manifests, every acknowledged entry, every named
object whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from fault_store import Fault, FaultStore, Killed
from protocol_world import CHUNK, PREFIX, TOPIC, TOPIC_ID, Writer, check, entries_of, segment_of

from local.errors import Conflict, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from remote.gc.orphan_search import find_orphans
from remote.keys import parse_data_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest
from remote.manifest.manifest_changes import Replacement, append_entries, delete_partition, find_job, replace_tiled
from remote.manifest.view import CompactedView, tombstone_bound
from remote.manifest.writer_roles import WriterState
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment

NOW = 10


def begun(store: ObjectStore, entries: int = 4) -> Writer:
    writer = Writer(store)
    writer.open()
    for base in range(0, entries * 10, 10):
        writer.copy(base)
    return writer


def again(store: ObjectStore, co_writer: MetadataLog, base: int, epoch: int | None = None) -> SegmentEntry:
    """Upload another copy of a segment, under a name of the co-writer."""
    return copy_segment(store, PREFIX, segment_of(base), epoch=epoch or co_writer.epoch, now_ms=NOW, chunk_bytes=CHUNK)


def work(store: ObjectStore, base: int = 10, job: str = "job", upto: int = 40, bound: int | None = 0) -> Manifest:
    """A whole job: join, find the entry, upload its successor, commit. A second run does nothing."""
    co_writer = MetadataLog(store, PREFIX)
    manifest = co_writer.join()
    if find_job(manifest, job) is not None:
        return manifest
    old = next(entry for entry in entries_of(co_writer, manifest) if entry.base_offset == base)
    new = replace(again(store, co_writer, base), cleaned_through=upto)
    change = replace_tiled(
        [Replacement(ulids=(old.ulid,), entries=(new,))], cleaned_through=upto, bound=bound, note=AppliedJob(job_id=job)
    )
    return co_writer.commit(change, NOW, touches=(base, base + 10))


def newest(store: ObjectStore) -> Manifest:
    return MetadataLog(store, PREFIX).refresh(exact=True)


def made_by(manifest: Manifest) -> list[int]:
    return [entry.base_offset for entry in manifest.segments if entry.made_by is not None]


def test_co_writer_commits_in_the_writers_epoch_and_the_writer_continues() -> None:
    store = MemoryStore()
    writer = begun(store)
    epoch = writer.log.epoch
    manifest = work(store)
    assert (manifest.epoch, manifest.writer_id) == (epoch, "a")
    assert made_by(manifest) == [10]
    assert [each.job_id for each in manifest.jobs] == ["job"]
    writer.copy(40)  # based on an older cached manifest
    assert writer.log.state is WriterState.WRITER
    assert made_by(newest(store)) == [10]
    check(store, writer)


def test_objects_that_a_co_writer_replaced_are_deleted_only_by_the_writer() -> None:
    store = MemoryStore()
    writer = begun(store)
    manifest = work(store)
    assert len(manifest.pending_deletes) == 2
    co_writer = MetadataLog(store, PREFIX)
    co_writer.join()
    with pytest.raises(InvalidRequest):
        co_writer.check_still_writer()
    with pytest.raises(InvalidRequest):
        co_writer.set_gc_boundary(1)
    with pytest.raises(InvalidRequest):
        co_writer.become_writer("x", 1, topic=TOPIC, topic_id=TOPIC_ID, partition=0)
    writer.delete_pending()
    assert newest(store).pending_deletes == ()
    check(store, writer)


def test_a_job_run_twice_commits_once() -> None:
    store = MemoryStore()
    writer = begun(store)
    assert work(store).sequence == work(store).sequence
    co_writer = MetadataLog(store, PREFIX)
    manifest = co_writer.join()
    change = replace_tiled([], cleaned_through=40, bound=None, note=AppliedJob(job_id="job"))
    assert co_writer.commit(change, NOW) == manifest
    check(store, writer)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_a_co_writer_with_any_fault_never_harms_the_writer_and_a_second_run_finishes(fault: Fault) -> None:
    rehearsal = FaultStore(MemoryStore())
    begun(rehearsal.inner)
    work(rehearsal)
    for at in range(len(rehearsal.calls)):
        inner = MemoryStore()
        writer = begun(inner)
        store = FaultStore(inner, at, fault)
        with suppress(LogError, Killed):
            work(store)
        writer.copy(40)
        store.deliver(1 << 60)
        check(inner, writer)
        work(inner)
        assert made_by(newest(inner)) == [10], (at, fault)
        assert len(newest(inner).jobs) == 1
        writer.copy(50)
        check(inner, writer)


def _meanwhile(writer: Writer) -> dict[str, Callable[[], object]]:
    return {
        "copies": lambda: writer.copy(40),
        "expires the row": lambda: [writer.expire(base) for base in (0, 10)],
        "deletes what is unlinked": writer.delete_pending,
        "is succeeded": lambda: begun_anew(writer),
        "meets another job": lambda: work(writer.store, job="other"),
        "meets the same job twice": lambda: work(writer.store),
    }


def begun_anew(writer: Writer) -> None:
    other = Writer(writer.store, "b")
    other.open()


@pytest.mark.parametrize("event", list(_meanwhile(begun(MemoryStore()))))
def test_any_event_between_two_calls_of_a_co_writer_leaves_the_bucket_undamaged(event: str) -> None:
    rehearsal = FaultStore(MemoryStore())
    begun(rehearsal.inner)
    work(rehearsal)
    for at in range(len(rehearsal.calls)):
        inner = MemoryStore()
        writer = begun(inner)

        def meanwhile(number: int, at: int = at, writer: Writer = writer) -> None:
            if number == at:
                _meanwhile(writer)[event]()

        with suppress(Fenced, Conflict, StopIteration, NotFound):
            work(FaultStore(inner, before_call=meanwhile))
        check(inner, writer)
        entries = newest(inner).segments
        assert sum(entry.base_offset == 10 for entry in entries) == (0 if event == "expires the row" else 1)
        named = {entry.data_key for entry in entries}
        assert not named & {each.key for each in newest(inner).pending_deletes}


@pytest.mark.parametrize("fault", [None, Fault.AFTER, Fault.EXISTS, Fault.BEFORE, Fault.LATE_1])
def test_a_co_writer_commit_between_two_calls_of_a_writer_costs_only_a_rebase(fault: Fault | None) -> None:
    def story(writer: Writer) -> None:
        for step in (lambda: writer.copy(40), lambda: writer.expire(0), writer.delete_pending):
            for _ in range(3):
                try:
                    step()
                    break
                except Unavailable:
                    continue

    rehearsal = FaultStore(MemoryStore())
    writer = begun(rehearsal.inner)
    writer.use(rehearsal)
    story(writer)
    for at in range(len(rehearsal.calls)):
        inner = MemoryStore()
        writer = begun(inner)

        def meanwhile(number: int, at: int = at, inner: MemoryStore = inner) -> None:
            if number == at:
                work(inner, base=20)

        store = FaultStore(inner, at, fault, before_call=meanwhile)
        writer.use(store)
        story(writer)
        store.deliver(1 << 60)
        writer.use(inner)
        assert made_by(newest(inner)) == [20]
        writer.copy(50)
        check(inner, writer)


def test_of_two_jobs_on_one_entry_one_wins_and_the_others_objects_are_unlinked() -> None:
    store = MemoryStore()
    writer = begun(store)
    co_writer = MetadataLog(store, PREFIX)
    old = co_writer.join().segments[1]
    lost = again(store, co_writer, 10)
    work(store, job="other")
    group = Replacement(ulids=(old.ulid,), entries=(lost,))
    manifest = co_writer.commit(replace_tiled([group], cleaned_through=40, bound=0, note=AppliedJob(job_id="job")), NOW)
    assert {lost.data_key, lost.indexes_key} <= {each.key for each in manifest.pending_deletes}
    assert {each.job_id for each in manifest.jobs} == {"other"}, "a job that lost its group must stay due"
    check(store, writer)


def test_a_co_writer_of_an_older_epoch_is_fenced_and_its_objects_become_orphans() -> None:
    store = MemoryStore()
    begun(store)
    co_writer = MetadataLog(store, PREFIX)
    old = co_writer.join().segments[1]
    new = again(store, co_writer, 10)

    def orphans() -> list[str]:
        return [each.key for each in find_orphans(store, PREFIX, MetadataLog(store, PREFIX), now_ms=NOW)]

    assert orphans() == []
    other = Writer(store, "b")
    other.open()
    change = replace_tiled(
        [Replacement(ulids=(old.ulid,), entries=(new,))], cleaned_through=40, bound=0, note=AppliedJob(job_id="job")
    )
    with pytest.raises(Fenced):
        co_writer.commit(change, NOW)
    assert orphans() == sorted([new.data_key, new.indexes_key])
    assert made_by(newest(store)) == []
    with pytest.raises(Fenced):
        MetadataLog(store, PREFIX).join(epoch=1)
    check(store, other)


def test_every_object_name_in_a_manifest_has_its_epoch_or_an_older_one() -> None:
    store = MemoryStore()
    begun(store)
    begun_anew(Writer(store))
    for entry in work(store).segments:
        parsed = parse_data_key(entry.data_key)
        assert parsed is not None
        assert parsed.epoch == (2 if entry.made_by else 1)


def test_a_deleted_topic_refuses_co_writers_and_their_commits() -> None:
    store = MemoryStore()
    writer = begun(store)
    co_writer = MetadataLog(store, PREFIX)
    co_writer.join()
    writer.log.commit(delete_partition(now_ms=5), 5)
    with pytest.raises(Conflict):
        co_writer.commit(replace_tiled([], cleaned_through=40, bound=None, note=AppliedJob(job_id="job")), NOW)
    with pytest.raises(Conflict):
        MetadataLog(store, PREFIX).join()


def test_a_co_writer_cannot_join_without_a_manifest() -> None:
    with pytest.raises(NotFound):
        MetadataLog(MemoryStore(), PREFIX).join()


# --- changes ---------------------------------------------------------------------------------------------------------


def _bound(manifest: Manifest) -> int | None:
    return tombstone_bound(manifest.parts, manifest.views, manifest.log_start_offset)


def _clean(manifest: Manifest, *through: int | None) -> Manifest:
    entries = tuple(
        replace(entry, cleaned_through=each) for entry, each in zip(manifest.segments, through, strict=True)
    )
    return replace(manifest, segments=entries)


@pytest.mark.parametrize(
    ("through", "bound"),
    [
        ((40, 40, 40, 40), 40),
        ((40, 40, 40, None), 30),
        ((40, 40, 25, 40), 25),
        ((40, 40, 20, None), 20),
        ((40, 15, None, None), 15),
        ((40, None, 40, 40), 10),
        ((None, 40, 40, 40), 0),
        ((7, 40, 40, 40), 7),
    ],
)
def test_tombstone_bound_is_the_least_cleaned_offset_of_the_entries_below_it(
    through: tuple[int | None, ...], bound: int
) -> None:
    manifest = _clean(newest(begun(MemoryStore()).store), *through)
    assert _bound(manifest) == bound
    views = (CompactedView(name="v", horizon_offset=12), CompactedView(name="new"))
    assert _bound(replace(manifest, views=views[:1])) in (0, bound if bound < 12 else 12)
    assert _bound(replace(manifest, views=views)) == 0


def test_tombstone_bound_ignores_entries_below_the_log_start_offset() -> None:
    manifest = _clean(newest(begun(MemoryStore()).store), None, 40, 40, 40)
    assert _bound(replace(manifest, log_start_offset=10)) == 40
    assert _bound(replace(manifest, segments=())) is None


def test_a_commit_with_an_outdated_tombstone_bound_is_refused() -> None:
    store = MemoryStore()
    begun(store)
    before = newest(store)
    with pytest.raises(Conflict):
        work(store, bound=30)
    assert newest(store) == before


def test_replacements_that_do_not_tile_their_range_are_refused() -> None:
    store = MemoryStore()
    begun(store)
    co_writer = MetadataLog(store, PREFIX)
    entries = co_writer.join().segments
    new = again(store, co_writer, 10)
    wrong = [
        Replacement(ulids=(entries[0].ulid, entries[1].ulid), entries=(new,)),
        Replacement(ulids=(entries[0].ulid,), entries=(new,)),
        Replacement(ulids=(entries[1].ulid,), entries=(replace(new, next_offset=25),)),
        Replacement(ulids=(entries[1].ulid, entries[3].ulid), entries=(replace(new, next_offset=40),)),
        Replacement(ulids=(entries[1].ulid,), entries=(entries[1],)),
        Replacement(ulids=(entries[1].ulid,), entries=()),
        Replacement(ulids=(entries[1].ulid,), entries=(replace(new, next_offset=15), replace(new, base_offset=16))),
    ]
    for each in wrong:
        with pytest.raises(InvalidRequest):
            co_writer.commit(replace_tiled([each], cleaned_through=40, bound=0, note=AppliedJob(job_id="j")), NOW)


def test_entries_are_appended_exactly_at_the_end_or_refused() -> None:
    store = MemoryStore()
    writer = begun(store)
    co_writer = MetadataLog(store, PREFIX)
    co_writer.join()
    new = again(store, co_writer, 40)
    with pytest.raises(Conflict):
        co_writer.commit(append_entries([new], start_offset=50, note=AppliedJob(job_id="j")), NOW)
    manifest = co_writer.commit(append_entries([new], start_offset=40, note=AppliedJob(job_id="j")), NOW)
    assert co_writer.commit(append_entries([new], start_offset=40, note=AppliedJob(job_id="j")), NOW) == manifest
    assert manifest.segments[-1].made_by == "j"
    check(store, writer)


def test_only_the_newest_notes_of_jobs_are_retained() -> None:
    store = MemoryStore()
    begun(store)
    co_writer = MetadataLog(store, PREFIX)
    manifest = co_writer.join()
    for number in range(70):
        note = AppliedJob(job_id=f"j{number}" if number != 5 else "j4", turn=number)
        change = replace_tiled([], cleaned_through=0, bound=None, note=note)
        manifest = change(replace(manifest, sequence=manifest.sequence + 1))
    assert len(manifest.jobs) == 64
    assert manifest.jobs[-1].job_id == "j69"
    assert change(manifest) is manifest
