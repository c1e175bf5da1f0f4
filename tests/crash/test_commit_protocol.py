"""The commit protocol with every fault, and with another writer, at every store call.

After each fault:

1. A fresh reader finds an undamaged chain of manifests.
2. Every acknowledged segment is there, and every entry is readable in full. Nothing is half done.
3. The work can be repeated until it succeeds.

See DESIGN's I7, I8 and the crash table of `remote.manifest.commit_protocol`.
"""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from local.errors import Fenced, InvalidRequest, LogError, Unavailable
from remote.keys import DATA, MANIFESTS, parse_data_key
from remote.manifest.manifest_changes import add_segments, set_properties
from remote.manifest.writer_roles import WriterState
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment

sys.path.insert(0, str(Path(__file__).parent))
from fault_store import KILLS, Fault, FaultStore, Killed
from protocol_world import CHUNK, PREFIX, TOPIC, TOPIC_ID, Writer, chain, check, entries_of, segment_of
from run_profile import sampled

CALL_STRIDE = 1  # of the calls of a flow: all in both profiles


def flow_open(writer: Writer) -> None:
    writer.open()


def flow_copy(writer: Writer) -> None:
    writer.open()
    writer.copy(100)
    writer.copy(110)


def flow_expire(writer: Writer) -> None:
    writer.open()
    writer.copy(100)
    writer.copy(110)
    writer.expire(100)
    writer.delete_pending()


FLOWS = [flow_open, flow_copy, flow_expire]


def prepared(takeover: bool) -> MemoryStore:
    """A store without a writer so far, or one in which a writer left one segment and an unnamed object."""
    store = MemoryStore()
    if takeover:
        before = Writer(store, "before")
        before.open()
        before.copy(90)
        copy_segment(store, PREFIX, segment_of(100), epoch=1, now_ms=0, chunk_bytes=CHUNK)
    return store


def calls_of(flow, takeover: bool) -> int:
    store = FaultStore(prepared(takeover))
    flow(Writer(store))
    return len(store.calls)


# --- one fault at a time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("fault", list(Fault))
def test_commit_protocol_with_any_fault_at_any_call_stays_consistent(fault, flow, takeover):
    for at in sampled(range(calls_of(flow, takeover)), CALL_STRIDE, fault, flow):
        inner = prepared(takeover)
        store = FaultStore(inner, at, fault)
        writer = Writer(store)
        expected = Killed if fault in KILLS else Unavailable
        failed = True
        with suppress(expected):
            flow(writer)
            failed = False
        latest = check(inner, writer)
        if fault in (Fault.BEFORE, Fault.OUTAGE, Fault.KILL_BEFORE) and at == 0:
            assert (latest.epoch if latest else 0) == (1 if takeover else 0)
        store.deliver(10**9)
        check(inner, writer)
        # Then the work is finished: by the same writer, or by another one after a crash.
        again = Writer(inner, "b") if fault in KILLS else writer
        epoch = latest.epoch if latest else 0
        again.use(inner)
        flow(again)
        final = check(inner, writer, again)
        assert final is not None
        assert final.epoch > epoch or not failed or again is writer
        assert [entry.base_offset for entry in entries_of(again.log, final)] == expected_rows(flow, takeover)
        # A commit in doubt is repeated; the objects of the second upload are unlinked.
        assert not final.pending_deletes or fault is Fault.OUTAGE
        again.delete_pending()
        left = {entry.data_key for entry in entries_of(again.log, final)}
        found = {info.key.removeprefix(PREFIX) for info in inner.list(PREFIX + DATA) if info.key.endswith(".log")}
        assert left <= found
        assert len(found - left) <= 1 + takeover, "objects are left over that are no uploads without a commit"


def expected_rows(flow, takeover: bool) -> list[int]:
    before = [90] if takeover else []
    return before + {flow_open: [], flow_copy: [100, 110], flow_expire: [110]}[flow]


def test_a_commit_with_a_lost_answer_is_found_and_not_repeated():
    for fault in (Fault.AFTER, Fault.EXISTS, Fault.LATE_1):
        inner = MemoryStore()
        writer = Writer(inner)
        writer.open()
        writer.use(FaultStore(inner, 0, fault))
        manifest = writer.log.commit(set_properties({"x": fault.value}), now_ms=5)
        assert manifest.sequence == 2
        assert len(chain(inner)) == 2


def test_a_commit_that_failed_and_took_effect_later_is_the_base_of_the_next():
    inner = MemoryStore()
    writer = Writer(inner)
    writer.open()
    held = FaultStore(inner, 0, Fault.LATE_3)
    outage = FaultStore(held, 1, Fault.OUTAGE)
    writer.use(outage)
    with pytest.raises(Unavailable):
        writer.log.commit(set_properties({"first": "1"}), now_ms=5)
    held.deliver(10**9)
    writer.use(inner)
    manifest = writer.log.commit(
        lambda manifest: replace(manifest, properties={**manifest.properties, "second": "2"}), now_ms=6
    )
    assert (manifest.sequence, manifest.properties) == (3, {"first": "1", "second": "2"})


def test_a_segment_copied_again_after_a_late_commit_has_one_entry():
    inner = MemoryStore()
    writer = Writer(inner)
    writer.open()
    held = FaultStore(inner, 3 + 1, Fault.LATE_3)  # upload, HEAD, put, HEAD come before the commit's create
    writer.use(FaultStore(held, 5, Fault.OUTAGE))
    with pytest.raises(Unavailable):
        writer.copy(100)
    held.deliver(10**9)
    assert len(chain(inner)) == 2  # the commit took effect, and the writer does not know
    writer.use(inner)
    writer.copy(100)
    latest = check(inner, writer)
    assert [entry.base_offset for entry in entries_of(writer.log, latest)] == [100]
    assert len(latest.pending_deletes) == 2
    writer.delete_pending()
    assert len(list(inner.list(PREFIX + "data/"))) == 2


def test_a_writer_continues_after_a_store_outage():
    inner = MemoryStore()
    writer = Writer(inner)
    writer.open()
    writer.use(FaultStore(inner, 0, Fault.OUTAGE))
    with pytest.raises(Unavailable, match=r"injected fault|the store does not answer"):
        writer.log.commit(set_properties({"x": "1"}), now_ms=5)
    writer.use(inner)
    assert writer.log.commit(set_properties({"x": "2"}), now_ms=6).properties == {"x": "2"}


# --- other writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("flow", FLOWS)
def test_a_second_writer_between_any_two_calls_fences_the_first(flow, takeover):
    for at in range(calls_of(flow, takeover)):
        inner = prepared(takeover)
        second = Writer(inner, "second")
        store = FaultStore(
            inner, before_call=lambda number, at=at, second=second: second.open() if number == at else None
        )
        first = Writer(store, "first")
        fenced = False
        try:
            flow(first)
        except Fenced:
            fenced = True
        check(inner, first, second)
        if first.log.state is WriterState.WRITER and first.log.epoch > second.log.epoch:
            # The first was not a writer yet when the second took over, so the first took over from the second.
            assert not fenced
            with pytest.raises(Fenced):
                second.log.commit(set_properties({"x": "y"}), now_ms=9)
            continue
        assert_fenced_for_good(first, inner)
        flow(second)
        check(inner, first, second)


def assert_fenced_for_good(writer: Writer, store: MemoryStore) -> None:
    """I8: no attempt of a fenced writer changes the readers' view, and each attempt raises Fenced."""
    before = {info.key: store.get(info.key) for info in store.list(PREFIX + MANIFESTS)}
    for attempt in (
        lambda: writer.log.commit(set_properties({"evil": "1"}), now_ms=9),
        lambda: writer.log.check_still_writer(),
        lambda: writer.delete_pending(),
        lambda: writer.copy(500),
        lambda: writer.log.load(),
        lambda: writer.log.epoch,
        lambda: writer.log.become_writer("again", 1, topic=TOPIC, topic_id=TOPIC_ID, partition=0),
    ):
        with pytest.raises((Fenced, InvalidRequest)):
            attempt()
    with pytest.raises(Fenced, match=r"another writer took over.*epoch=\d+ ours=\d+ writer=second"):
        writer.log.commit(set_properties({"evil": "1"}), now_ms=9)
    assert {info.key: store.get(info.key) for info in store.list(PREFIX + MANIFESTS)} == before


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.EXISTS, Fault.LATE_1, Fault.LATE_3])
def test_a_lost_answer_with_a_takeover_before_the_retry_commits_at_most_once(fault):
    """The first commit took effect, its answer is lost, and a takeover precedes the next read."""
    for taking_over in range(1, 5):
        inner = MemoryStore()
        first, second = Writer(inner, "first"), Writer(inner, "second")
        first.open()
        store = FaultStore(
            inner, 0, fault, before_call=lambda number, at=taking_over, w=second: w.open() if number == at else None
        )
        first.use(store)
        with suppress(LogError):
            first.log.commit(set_properties({"x": "1"}), now_ms=5)
        store.deliver(10**9)
        manifests = chain(inner)
        second.open()
        assert sum(manifest.properties == {"x": "1"} and manifest.writer_id == "first" for manifest in manifests) <= 1
        assert chain(inner)[-1].epoch == 2
        first.use(inner)
        with pytest.raises(Fenced):
            first.log.commit(set_properties({"y": "1"}), now_ms=6)


@pytest.mark.parametrize("count", [2, 3])
def test_racing_writers_have_one_winner_for_every_sequence(count):
    for seed in range(20):
        store = MemoryStore()
        start = threading.Barrier(count)

        def race(number, store=store, start=start, seed=seed):
            writer = Writer(store, f"w{number}")
            rng = random.Random(seed * 10 + number)
            start.wait()
            writer.open()
            made = []
            try:
                for step in range(rng.randrange(1, 6)):
                    made.append(writer.log.commit(set_properties({"by": f"{number}.{step}"}), now_ms=step).commit_id)
            except Fenced:
                assert writer.log.state is WriterState.FENCED
            return writer, made

        with ThreadPoolExecutor(count) as pool:
            outcomes = list(pool.map(race, range(count)))
        manifests = chain(store)
        ids = {manifest.commit_id for manifest in manifests}
        assert all(set(made) <= ids for _, made in outcomes)  # every acknowledged commit is in the chain
        assert sum(len(made) for _, made in outcomes) + count == len(manifests)  # and no other commit
        epochs = [writer.log._epoch for writer, _ in outcomes]
        assert sorted(epochs) == list(range(1, count + 1))
        for writer, _ in outcomes:
            if writer.log._epoch < count:
                with pytest.raises(Fenced):
                    writer.log.commit(set_properties({"late": "1"}), now_ms=9)


def test_uploads_of_a_fenced_writer_are_never_named():
    store = MemoryStore()
    first, second = Writer(store, "first"), Writer(store, "second")
    first.open()
    entry = copy_segment(store, PREFIX, segment_of(100), epoch=1, now_ms=0, chunk_bytes=CHUNK)
    second.open()
    second.copy(100)
    with pytest.raises(Fenced):
        first.log.commit(add_segments([entry]), now_ms=2)
    latest = check(store, first, second)
    assert latest is not None
    assert [parse_data_key(each.data_key).epoch for each in entries_of(second.log, latest)] == [2]


def test_a_writer_that_lost_its_epoch_unnoticed_deletes_no_object():
    store = MemoryStore()
    first, second = Writer(store, "first"), Writer(store, "second")
    first.open()
    first.copy(100)
    first.expire(100)
    before = {info.key for info in store.list(PREFIX + "data/")}
    second.open()
    with pytest.raises(Fenced):
        first.delete_pending()
    assert {info.key for info in store.list(PREFIX + "data/")} == before != set()
