"""Thousands of entries expire: no manifest exceeds its limit, and all objects are deleted in the end."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import pytest
from fault_store import Fault, FaultStore, Killed
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle
from run_profile import deep_only

from local.errors import Unavailable
from policies.retention import UNLINKED_MAX
from remote.gc.pins import pin_newest, release
from remote.keys import MANIFESTS, data_key, indexes_key, new_ulid, parse_manifest_key
from remote.manifest import commit_protocol
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import PAGE_RULE, MetadataLog
from remote.manifest.manifest import Manifest, decode_manifest
from remote.manifest.manifest_changes import add_segments
from remote.manifest.page_out import PageRule
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import ChunkTable, IndexBundle, encode_bundle
from remote.store import ObjectStore
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.manager.manager import LogManager

pytestmark = pytest.mark.damages_bucket  # the data objects of the entries have no valid content
ROWS, SOME_ROWS = 12_000, 9_000
LIMIT = PAGE_RULE.manifest_bytes_max
KEEPS = {**TIERED, "remote.log.delete.grace.ms": "1h"}


def indexes(chunks: ChunkTable) -> tuple[bytes, dict[str, IndexRange]]:
    return encode_bundle(IndexBundle(offset=b"", time=b"", txn=b"", producers=b"", epochs=b"", chunks=chunks))


def entries(count: int, *, step_ms: int = 0) -> Iterator[tuple[SegmentEntry, bytes]]:
    rng, reached = random.Random(count), 0
    for at in range(count):
        ulid, base, reached = new_ulid(NOW + at), reached, reached + rng.randrange(9_000, 11_000)
        size_bytes = rng.randrange(900_000, 1_000_000)  # random sizes, so that entries have a realistic length
        names = base, reached - 1, 1, ulid
        chunks = ChunkTable(lengths=(size_bytes,), crcs=(at * 2_654_435_761 % (1 << 32),))
        body, ranges = indexes(chunks)
        entry = SegmentEntry(
            ulid=ulid,
            base_offset=base,
            next_offset=reached,
            size_bytes=size_bytes,
            stored_bytes=size_bytes,
            record_count=10,
            max_timestamp_ms=NOW - DAY + at * step_ms,
            min_timestamp_ms=NOW - DAY,
            epochs=((1, base),),
            data_crc32c=chunks.whole_crc,
            data_key=data_key(*names),
            indexes_key=indexes_key(*names),
            indexes_bytes=len(body),
            indexes=ranges,
        )
        yield entry, body


@cache
def _filled(count: int, step_ms: int) -> World:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, KEEPS, now_ms=NOW)
        held = manager.partitions.all()[0]
        made = list(entries(count, step_ms=step_ms))
        for entry, body in made:
            world.store.put(held.prefix + entry.data_key, b"log")
            world.store.put(held.prefix + entry.indexes_key, body)
        assert held.metadata is not None
        for at in range(0, count, 3000):
            held.metadata.commit(add_segments([entry for entry, _ in made[at : at + 3000]]), NOW)
    return world


def filled(count: int, *, step_ms: int = 0) -> World:
    """A topic with `count` entries in the bucket and no segment on the disk."""
    return _copy_of(_filled(count, step_ms))


def manifests(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: bytes(store.get(info.key)) for info in store.list("") if MANIFESTS in info.key}


def data_objects(store: ObjectStore) -> int:
    return sum("/data/" in info.key for info in store.list(""))


def others(store: ObjectStore) -> set[str]:
    """The keys of all objects except manifests and probes."""
    keys = [info.key.split("/", 2)[-1] for info in store.list("")]
    return {key for key in keys if parse_manifest_key(key) is None and not key.startswith("meta/probe")}


def head_of(manager: LogManager) -> Manifest:
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    return manifest


def run_to_the_end(world: World, manager: LogManager, now_ms: int, seen: set[str], *, rounds_max: int = 200) -> int:
    """Runs maintenance until nothing is due at `now_ms`, and returns the number of runs.
    Checks the size of every manifest written."""
    for count in range(rounds_max):
        more = manager.tick(now_ms)
        assert manager.problems == {}
        for key, body in manifests(world.store).items():
            if key not in seen:
                seen.add(key)
                assert len(body) <= LIMIT, f"{key} has {len(body)} bytes: {_parts(body)}"
        if not more:
            return count
    raise AssertionError("maintenance does not end")


def _parts(body: bytes) -> str:
    manifest = decode_manifest(body)
    return f"segments={len(manifest.segments)} unlinked={len(manifest.pending_deletes)} spills={len(manifest.pages)}"


@pytest.mark.parametrize("how", ["time", *deep_only("size", "delete-records")])
def test_manifest_stays_below_its_limit_while_thousands_of_entries_expire(how: str) -> None:
    world = filled(ROWS)
    seen: set[str] = set()
    with world.open() as manager:
        assert head_of(manager).segment_count == ROWS
        last = head_of(manager).segments[-1]
        # Retention by size keeps the last entry: without it the log would have less than one byte.
        end, kept = (last.base_offset, [last]) if how == "size" else (last.next_offset, [])
        if how == "delete-records":
            manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        else:
            limit = {"retention.ms": "1", "local.retention.ms": "-2"} if how == "time" else {"retention.bytes": "1"}
            manager.topics.alter("t", limit, now_ms=NOW)
        run_to_the_end(world, manager, NOW, seen)
        assert manager.reader().offsets(NAME)[0] == end, "retention must be visible to readers at once"
        assert data_objects(world.store) == 2 * ROWS, "no object may be deleted within the grace period"
        for hours in range(1, 30):
            if run_to_the_end(world, manager, NOW + 2 * hours * HOUR, seen) == 0:
                break
        manifest = head_of(manager)
        assert list(manifest.parts) == kept
        assert not manifest.pending_deletes
        assert not manifest.pending_page_deletes
    assert others(world.store) == {key for entry in kept for key in (entry.data_key, entry.indexes_key)}


def test_pinned_objects_are_kept_after_their_pages_are_unlinked() -> None:
    world = filled(SOME_ROWS, step_ms=1000)
    with world.open() as manager:
        held = manager.partitions.all()[0]
        reader = MetadataLog(world.store, held.prefix)
        pin, pinned = pin_newest(
            world.store, held.prefix, reader, now_ms=NOW, expires_ms=NOW + 9 * HOUR, holder="a long read"
        )
        manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        run_to_the_end(world, manager, NOW, set())
        assert head_of(manager).pending_page_deletes
        for hours in (1, 5, 8):
            run_to_the_end(world, manager, NOW + hours * HOUR, set())
            for entry in reader.index(pinned).entries():
                assert world.store.head(held.prefix + entry.data_key)
        release(world.store, held.prefix, [pin])
        run_to_the_end(world, manager, NOW + 8 * HOUR, set())
        run_to_the_end(world, manager, NOW + 10 * HOUR, set())
    assert others(world.store) == set()


@pytest.mark.deep("thousands of entries that expire one by one")
def test_gradual_expiry_waits_for_room_in_the_manifest_and_is_visible_at_once() -> None:
    """The grace period is much longer than the time in which all entries expire."""
    world = filled(SOME_ROWS, step_ms=1000)
    seen: set[str] = set()
    with world.open() as manager:
        manager.topics.alter("t", {"remote.log.delete.grace.ms": "2d", "retention.ms": "1d"}, now_ms=NOW)
        bases = [entry.base_offset for entry in _entries(manager)]
        for due in range(700, SOME_ROWS, 700):
            run_to_the_end(world, manager, NOW + 1000 * (due - 1), seen)
            assert manager.reader().offsets(NAME)[0] == bases[due]
            manifest = head_of(manager)
            assert len(manifest.pending_deletes) <= UNLINKED_MAX + 64, (
                "pending deletes of entries and of opened pages must be limited"
            )
            assert (
                len(_entries(manager)) + len(manifest.pending_deletes) // 2 + _waiting_in_pages(manifest) >= SOME_ROWS
            )
        run_to_the_end(world, manager, NOW + 1000 * SOME_ROWS, seen)
        for days in (3, 6, 9, 12):
            run_to_the_end(world, manager, NOW + days * DAY, seen)
        manifest = head_of(manager)
        assert not manifest.has_entries
        assert not manifest.pending_deletes
        assert not manifest.pending_page_deletes
    assert others(world.store) == set()


def _entries(manager: LogManager) -> list[SegmentEntry]:
    metadata = manager.partitions.all()[0].metadata
    assert metadata is not None
    manifest = head_of(manager)
    return list(metadata.index(manifest).entries_with_dead(0, manifest.next_offset))


def _waiting_in_pages(manifest: Manifest) -> int:
    return sum(each.page.segment_count for each in manifest.pending_page_deletes)


@cache
def _with_pages_to_delete() -> World:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, KEEPS, now_ms=NOW)
        send(manager, 900)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        settle(manager)
        assert len(head_of(manager).pending_page_deletes) > 1
    return world


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_process_killed_at_any_call_of_a_page_deletion_leaves_no_object(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    for at in range(1000):
        world = _copy_of(_with_pages_to_delete())
        store = FaultStore(world.store, at, fault)
        is_killed = True
        with suppress(Killed):
            manager = world.open(store=store, now_ms=NOW + 2 * HOUR)
            settle(manager, NOW + 2 * HOUR)
            is_killed = False
        if not is_killed:
            assert at > 10, "the loop must reach every call of the deletion"
            return
        world.disk.locks.clear()
        with world.open(now_ms=NOW + 2 * HOUR) as manager:
            settle(manager, NOW + 2 * HOUR)
            assert not head_of(manager).pending_page_deletes
        assert others(world.store) == set(), f"call {at}"


@pytest.mark.parametrize("damaged", ["first", "all"])
@pytest.mark.parametrize("how", ["a bit", "cut", "empty columns"])
def test_damaged_page_is_deleted_with_a_warning_and_its_objects_become_orphans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: str, how: str
) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world, later = _copy_of(_with_pages_to_delete()), NOW + 2 * HOUR
    pages = sorted(info.key for info in world.store.list("") if "/meta/spill/" in info.key)
    hit = pages[:1] if damaged == "first" else pages
    for key in hit:
        body = world.store.get(key)
        ruined = {"a bit": body[:50] + bytes([body[50] ^ 1]) + body[51:], "cut": body[:-9], "empty columns": b"x"}
        world.store.put(key, ruined[how])
    before = data_objects(world.store)
    with world.open(now_ms=later) as manager:
        settle(manager, later)
        assert not head_of(manager).pending_page_deletes
        prefix = manager.partitions.all()[0].prefix
    assert sum("'tiered gc' finds the objects of its entries" in each.message for each in caplog.records) == len(hit)
    assert f"key={hit[0].removeprefix(prefix)} base_offset=" in caplog.text
    left = data_objects(world.store)
    assert 0 < left < before or (damaged == "all" and left == before)
    assert others(world.store) == {key for key in others(world.store) if key.startswith("data/")}, (
        "all pages must be deleted"
    )
    name = RemotePartitionName("t", prefix.split("/")[0].removeprefix("t-"), 0)
    found = list_garbage(world.store, [name], now_ms=later)
    assert (len(found.entries), found.left_out) == (left, {})
    delete_garbage(world.store, found, now_ms=later, grace_ms=0)
    assert others(world.store) == set()


def test_page_that_is_unavailable_for_a_moment_is_not_treated_as_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world, later = _copy_of(_with_pages_to_delete()), NOW + 2 * HOUR
    real = world.store.get

    def get(key: str) -> bytes:
        if "/meta/spill/" in key:
            raise Unavailable("cannot read an object")
        return real(key)

    monkeypatch.setattr(world.store, "get", get)
    with world.open(now_ms=later) as manager:
        manager.tick(later)
        assert head_of(manager).pending_page_deletes
        monkeypatch.setattr(world.store, "get", real)
        settle(manager, later)
    assert others(world.store) == set()


def _copy_of(ready: World) -> World:
    world = World()
    world.disk = copy.deepcopy(ready.disk)
    world.store._objects = dict(ready.store._objects)
    return world
