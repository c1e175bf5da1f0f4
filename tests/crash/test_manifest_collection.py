"""Garbage collection of manifests: sleeping writers and readers find only the newest one.

Every call of a collection fails in every way, and stale writers and readers run between any two calls.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from checked_bucket import check_partition

from local.errors import Conflict, Corrupt, Fenced, InvalidRequest, NotFound, Unavailable
from remote.gc.delayed_delete import collect_manifests
from remote.gc.pins import RENEWAL_LAG_MS, list_pins, pin_newest, release, renew
from remote.keys import MANIFESTS, boundary_key, manifest_key, parse_manifest_key, parse_pin_key, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import QUIET_MAX, decode_boundary, encode_boundary
from remote.manifest.manifest_changes import expire_segments, remove_pending_deletes, set_properties
from remote.manifest.writer_roles import WriterState
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parent))
from fault_store import KILLS, Fault, FaultStore, Killed
from protocol_world import PREFIX, Writer, entries_of

KEPT = 3


def commit_some(writer, count):
    for step in range(count):
        writer.log.commit(set_properties({"step": f"{writer.name}.{writer.log.cached.sequence}.{step}"}), now_ms=5)


def opened(store, name="a", commits=0):
    writer = Writer(store, name)
    writer.open()
    commit_some(writer, commits)
    return writer


def collect(writer, *, now_ms=5, store=None):
    upto = writer.log.cached.sequence - KEPT
    return collect_manifests(store or writer.store, PREFIX, writer.log, upto, now_ms=now_ms)


def sequences(store):
    return [parse_manifest_key(info.key.removeprefix(PREFIX)) for info in store.list(PREFIX + MANIFESTS)]


def sound(store):
    assert [each for each in check_partition(store, PREFIX).findings if each.severity.name == "CORRUPT"] == []


def test_the_newest_manifests_stay_and_a_fresh_reader_finds_the_newest():
    store = MemoryStore()
    writer = opened(store, commits=9)
    assert collect(writer).manifests == 7
    assert sequences(store) == [8, 9, 10]
    assert MetadataLog(store, PREFIX).load() == writer.log.cached
    assert collect(writer).manifests == 0
    commit_some(writer, 5)
    assert writer.log.cached.gc_boundary == 7
    assert collect(writer).manifests == 5
    assert MetadataLog(store, PREFIX).load() == writer.log.cached
    sound(store)


def test_a_writer_that_slept_through_a_collection_is_fenced_though_its_name_was_free():
    store = MemoryStore()
    stale = opened(store, "stale")
    writer = opened(store, "b", commits=8)
    collect(writer)
    newest = writer.log.cached
    with pytest.raises(Fenced):
        stale.log.commit(set_properties({"stale": "1"}), now_ms=5)
    assert 2 in sequences(store), "the stale manifest was not created under a void name"
    assert MetadataLog(store, PREFIX).load() == newest
    commit_some(writer, 1)
    sound(store)
    assert collect(writer).manifests == 2
    assert 2 not in sequences(store)


def test_a_reader_that_slept_finds_the_newest_manifest_and_not_a_void_one():
    store = MemoryStore()
    stale = opened(store, "stale")
    asleep, exact, onlooker = (MetadataLog(store, PREFIX) for _ in range(3))
    for each in (asleep, exact, onlooker):
        each.load()
    writer = opened(store, "b", commits=8)
    collect(writer)
    assert [asleep.load().sequence for _ in range(QUIET_MAX)][-1] == writer.log.cached.sequence
    assert exact.load(exact=True) == writer.log.cached
    with suppress(Fenced):
        stale.log.commit(set_properties({"stale": "1"}), now_ms=5)
    assert onlooker.load() == writer.log.cached
    assert MetadataLog(store, PREFIX).load() == writer.log.cached


def test_a_takeover_after_a_long_sleep_follows_the_newest_manifest():
    store = MemoryStore()
    opened(store, "a")
    sleeper = MetadataLog(store, PREFIX)
    sleeper.load()
    writer = opened(store, "b", commits=8)
    collect(writer)
    manifest = sleeper.become_writer("c", 9, topic="orders", topic_id="A" * 22, partition=0)
    assert (manifest.sequence, manifest.epoch) == (writer.log.cached.sequence + 1, 3)
    with pytest.raises(Fenced):
        collect(writer)
    sound(store)


def test_the_gc_boundary_of_a_stale_writer_stays_below_every_newer_one():
    store = MemoryStore()
    stale = opened(store, "stale", commits=6)
    writer = opened(store, "b", commits=12)
    stale.log._chain.advance(stale.log._manifest.sequence - KEPT)
    collect(writer)
    uptos = [decode_boundary(store.get(PREFIX + boundary_key(number))) for number in (1, 2)]
    assert uptos == sorted(uptos)
    assert MetadataLog(store, PREFIX).load() == writer.log.cached
    stale.log._chain.boundary_number = stale.log._chain.gc_boundary = 0
    stale.log._chain.advance(2)
    assert stale.log._chain.gc_boundary == uptos[-1]
    sound(store)


@pytest.mark.parametrize("fault", list(Fault))
def test_a_collection_with_any_fault_at_any_call_leaves_the_newest_manifest(fault):
    def prepared():
        store = MemoryStore()
        writer = opened(store, commits=9)
        log = MetadataLog(store, PREFIX)
        log.load()
        pin_newest(store, PREFIX, log, now_ms=1, expires_ms=4, holder="gone")
        return store, writer

    store, writer = prepared()
    counting = FaultStore(store)
    writer.use(counting)
    collect(writer, store=counting)
    for at in range(len(counting.calls)):
        inner, writer = prepared()
        asleep = MetadataLog(inner, PREFIX)
        asleep.load()
        newest = writer.log.cached
        faulty = FaultStore(inner, at, fault)
        writer.use(faulty)
        with suppress(Killed if fault in KILLS else Unavailable):
            collect(writer, store=faulty)
        faulty.deliver(10**9)
        assert MetadataLog(inner, PREFIX).load() == newest
        assert asleep.load(exact=True) == newest
        sound(inner)
        writer.use(inner)
        commit_some(writer, 1)
        collect(writer, now_ms=4 + RENEWAL_LAG_MS)
        assert sequences(inner) == [9, 10, 11]
        assert list_pins(inner, PREFIX) == []
        sound(inner)


def test_a_stale_writer_and_a_reader_between_any_two_calls_find_the_newest_manifest():
    def attempt(at):
        store = MemoryStore()
        stale = opened(store, "stale")
        asleep = MetadataLog(store, PREFIX)
        asleep.load()
        writer = opened(store, "b", commits=8)
        newest = writer.log.cached

        def others(number):
            if number == at:
                with pytest.raises(Fenced):
                    stale.log.commit(set_properties({"stale": "1"}), now_ms=5)
                assert asleep.load(exact=True) == newest
                assert MetadataLog(store, PREFIX).load() == newest

        between = FaultStore(store, before_call=others)
        writer.use(between)
        collect(writer, store=between)
        assert asleep.load(exact=True) == newest
        assert MetadataLog(store, PREFIX).load() == newest
        return len(between.calls)

    count = attempt(-1)
    for at in range(count):
        attempt(at)


# --- pins ------------------------------------------------------------------------------------------------------------


def test_a_pinned_manifest_stays_and_only_objects_unlinked_earlier_are_free():
    store = MemoryStore()
    writer = opened(store)
    for base in (100, 110, 120):
        writer.copy(base)
    writer.expire(100)
    reader = MetadataLog(store, PREFIX)
    pin, manifest = pin_newest(store, PREFIX, reader, now_ms=5, expires_ms=100, holder="a job")
    writer.expire(110)
    commit_some(writer, 9)
    collect(writer, now_ms=99)
    assert manifest.sequence in sequences(store)
    held = min(each.sequence for each in list_pins(store, PREFIX) if each.expires_ms > 99)
    free = [each for each in writer.log.cached.pending_deletes if each.unlinked_sequence <= held]
    assert sorted(each.key[5:25] for each in free) == [f"{100:020d}"] * 2
    assert [each.expires_ms for each in list_pins(store, PREFIX)] == [100]
    release(store, PREFIX, [pin])
    release(store, PREFIX, [pin])
    commit_some(writer, 1)
    collect(writer, now_ms=99)
    assert manifest.sequence not in sequences(store)
    sound(store)


def test_a_pin_renewed_after_it_was_seen_expired_is_not_removed():
    """The holder's clock is slow, or its request was delayed: it relies on the pin after the renewal."""
    store = MemoryStore()
    writer = opened(store)
    for base in (100, 110, 120):
        writer.copy(base)
    pin, _ = pin_newest(store, PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=100, holder="a job")
    renewed = []

    class Renewing(MemoryStore):
        """Renews the pin between the read of the pins and the deletes."""

        def __getattribute__(self, name):
            return super().__getattribute__(name) if name == "delete" else getattr(store, name)

        def delete(self, keys):
            if not renewed:
                renewed.append(renew(store, PREFIX, pin, clock=lambda: 99, expires_ms=200))
            store.delete(keys)

    collect_manifests(Renewing(), PREFIX, writer.log, 1, now_ms=100)
    assert renewed[0] is not None
    assert list_pins(store, PREFIX) == renewed
    assert collect_manifests(store, PREFIX, writer.log, 1, now_ms=200 + RENEWAL_LAG_MS).pins == 1
    assert list_pins(store, PREFIX) == []


@pytest.mark.parametrize("deed", ["collected", "deleted"])
def test_a_pin_written_too_late_is_withdrawn_and_the_next_manifest_is_pinned(deed):
    store = MemoryStore()
    writer = opened(store)
    for base in (100, 110, 120):
        writer.copy(base)
    slow = {"left": 1}

    class Slow(MemoryStore):
        def __getattribute__(self, name):
            return (
                getattr(store, name)
                if name in ("get", "list", "delete", "put_if_absent")
                else super().__getattribute__(name)
            )

        def put(self, key, body):
            if slow["left"]:
                slow["left"] -= 1
                if deed == "collected":
                    commit_some(writer, 9)
                    collect(writer)
                else:
                    writer.expire(100)
                    writer.delete_pending()
            store.put(key, body)

    pin, manifest = pin_newest(Slow(), PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=100, holder="late")
    assert manifest == writer.log.cached
    assert [each.sequence for each in list_pins(store, PREFIX)] == [manifest.sequence]
    assert pin.commit_id == manifest.commit_id


def test_a_pin_written_after_the_deleter_read_the_pins_protects_its_manifest():
    """The reader stalls between the manifest and its pin; an entry expires, and its grace period ends."""
    store = MemoryStore()
    writer = opened(store)
    for base in (100, 110):
        writer.copy(base)
    stalls = [lambda: writer.expire(100)]

    class Stalling(MemoryStore):
        def __getattribute__(self, name):
            return getattr(store, name) if name in ("get", "list", "delete") else super().__getattribute__(name)

        def put(self, key, body):
            for stall in stalls:
                stall()
                assert list_pins(store, PREFIX) == [], "the deleter found a pin that is not yet written"
            stalls.clear()
            store.put(key, body)

    _, manifest = pin_newest(Stalling(), PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=100, holder="slow")
    writer.delete_pending()
    for entry in entries_of(writer.log, manifest):
        assert store.head(PREFIX + entry.data_key).size_bytes == entry.stored_bytes


def test_manifests_deleted_faster_than_they_are_pinned_raise_conflict():
    store = MemoryStore()
    writer = opened(store, commits=4)

    class Racing(MemoryStore):
        def __getattribute__(self, name):
            return getattr(store, name) if name in ("get", "list", "delete") else super().__getattribute__(name)

        def put(self, key, body):
            store.put(key, body)
            commit_some(writer, 4)
            collect(writer)

    with pytest.raises(Conflict):
        pin_newest(Racing(), PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=100, holder="x")
    assert list_pins(store, PREFIX) == []


def test_pinning_without_a_manifest_raises_not_found():
    with pytest.raises(NotFound):
        pin_newest(MemoryStore(), PREFIX, MetadataLog(MemoryStore(), PREFIX), now_ms=1, expires_ms=2, holder="x")


def test_damaged_boundaries_and_pins_raise_corrupt():
    whole = encode_boundary(7)
    assert decode_boundary(whole) == 7
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_boundary(damaged)
    with pytest.raises(InvalidRequest):
        encode_boundary(0)
    store = MemoryStore()
    name = pin_key("0" * 26)
    assert parse_pin_key(name) == "0" * 26
    store.put(PREFIX + name, b"{}")
    with pytest.raises(Corrupt):
        list_pins(store, PREFIX)
    store.put(PREFIX + manifest_key(1), b"x")
    store.put(PREFIX + boundary_key(1), b"x")
    with pytest.raises(Corrupt):
        MetadataLog(store, PREFIX).is_void(1)


def test_a_pending_delete_has_the_sequence_of_the_manifest_that_unlinked_it():
    store = MemoryStore()
    writer = opened(store)
    for base in (100, 110):
        writer.copy(base)
    writer.expire(100)
    first = writer.log.cached.sequence
    writer.expire(110)
    assert [each.unlinked_sequence for each in writer.log.cached.pending_deletes] == [first] * 2 + [first + 1] * 2
    writer.log.commit(remove_pending_deletes([each.key for each in writer.log.cached.pending_deletes[:2]]), now_ms=5)
    assert {each.unlinked_sequence for each in writer.log.cached.pending_deletes} == {first + 1}
    assert expire_segments([], now_ms=1)(writer.log.cached) is writer.log.cached


@pytest.mark.parametrize("seed", range(30))
def test_three_racing_writers_that_sleep_and_collect_lose_no_acknowledged_commit(seed):
    """Any writer may run between any two calls of another; readers never see an older manifest again."""
    rng = random.Random(seed)
    store, busy, acknowledged = MemoryStore(), [], set()
    readers = [MetadataLog(store, PREFIX) for _ in range(2)]
    seen = [0, 0]

    def between(number):
        if rng.random() < 0.15 and (free := sorted({0, 1, 2} - set(busy))):
            act(rng.choice(free))

    writers = {}

    def act(number):
        busy.append(number)
        try:
            work(number)
        finally:
            busy.remove(number)

    def work(number):
        writer = writers.get(number)
        if writer is None or writer.log.state is WriterState.FENCED or rng.random() < 0.05:
            writers[number] = writer = Writer(FaultStore(store, before_call=between), f"{number}.{rng.random()}")
            if rng.random() < 0.5:
                writer.log.load()  # then the writer sleeps
                return
        try:
            if writer.log.state is WriterState.READER:
                writer.log.become_writer(writer.name, 1, topic="orders", topic_id="A" * 22, partition=0)
            elif rng.random() < 0.2 and writer.log.cached.sequence > KEPT:
                collect(writer)
            else:
                mark = f"{rng.random()}"
                writer.log.commit(
                    lambda manifest: replace(manifest, properties={**manifest.properties, mark: ""}), now_ms=5
                )
                acknowledged.add(mark)
        except (Fenced, InvalidRequest):
            return

    for _ in range(120):
        act(rng.randrange(3))
        for each, reader in enumerate(readers):
            if rng.random() < 0.1:
                sequence = getattr(reader.load(exact=True), "sequence", 0)
                assert sequence >= seen[each]
                seen[each] = sequence
    newest = MetadataLog(store, PREFIX).load()
    assert acknowledged <= newest.properties.keys()
    assert all(reader.load(exact=True) == newest for reader in readers)
    sound(store)
