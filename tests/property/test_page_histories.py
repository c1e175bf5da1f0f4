"""Random histories of a partition's manifests with small pages, compared with a plain list of entries."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.errors import InvalidRequest, NotFound
from policies.snapshot import Coverage
from remote.keys import PAGES
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PendingDelete
from remote.manifest.manifest_changes import add_segments, expire_segments, remove_pending_deletes
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "support"))
from remote_samples import stored_row

PREFIX = f"orders-{'A' * 22}/0/"
RULE = PageRule(manifest_bytes_max=700, page_rows_max=5, page_rows_min=3, kept_entries_min=2, gaps_max=1)
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
END = 1 << 60


@dataclass
class World:
    """The store, and a plain list of the entries it must contain."""

    store: MemoryStore = field(default_factory=MemoryStore)
    entries: list = field(default_factory=list)
    start: int = 0
    struck: set = field(default_factory=set)  # keys that were unlinked, deleted and removed from the pending deletes
    ever: set = field(default_factory=set)  # every data object that an entry ever named
    writers: int = 0
    next_id: int = 0

    def __post_init__(self):
        self.reopen()

    def reopen(self):
        self.writers += 1
        self.log = MetadataLog(self.store, PREFIX, rule=RULE)
        self.log.become_writer(f"w{self.writers}", 1, topic="orders", topic_id="A" * 22, partition=0, properties={})

    def new_row(self, base, following, timestamp):
        self.next_id += 1
        epochs = ((self.writers, base),)
        made = stored_row(
            f"U{self.next_id}", base, following, max_timestamp_ms=timestamp, epochs=epochs, epoch=self.writers
        )
        self.ever |= {made.data_key, made.indexes_key}
        return made

    def add(self, gap, timestamp):
        base = max(self.entries[-1].next_offset if self.entries else 0, self.log.cached.next_offset) + gap
        self.entries.append(self.new_row(base, base + 10, timestamp))
        manifest = self.log.commit(add_segments([self.entries[-1]]), now_ms=5)
        self.entries[-1] = replace(self.entries[-1], committed_ms=manifest.committed_ms)

    def expire(self, first, count):
        gone = self.entries[first : first + count]
        if gone:
            change = expire_segments([each.ulid for each in gone], now_ms=7)
            self.log.commit(change, now_ms=7, touches=(gone[0].base_offset, gone[-1].next_offset))
            del self.entries[first : first + count]

    def merge(self, first, count):
        """Replace entries by one with the same offsets, as a later cleaner pass does."""
        old = self.entries[first : first + count]
        if not old:
            return
        new = self.new_row(old[0].base_offset, old[-1].next_offset, old[0].max_timestamp_ms)
        names = {each.ulid for each in old}

        def change(manifest):
            if not names & {each.ulid for each in manifest.segments}:
                return manifest
            kept = [each for each in manifest.segments if each.ulid not in names]
            pending_deletes = [
                PendingDelete(key=key, size_bytes=1, unlinked_ms=8, epoch=manifest.epoch)
                for each in old
                for key in (each.data_key, each.indexes_key)
            ]
            entries = sorted([*kept, new], key=lambda each: each.base_offset)
            return replace(
                manifest, segments=tuple(entries), pending_deletes=(*manifest.pending_deletes, *pending_deletes)
            )

        self.log.commit(change, now_ms=8, touches=(old[0].base_offset, old[-1].next_offset))
        self.entries[first : first + count] = [new]

    def raise_start(self, offset):
        self.start = max(self.start, offset)
        self.log.commit(expire_segments([], now_ms=9, log_start_offset=offset), now_ms=9)

    def strike_off(self):
        keys = [each.key for each in self.log.cached.pending_deletes]
        self.store.delete([PREFIX + key for key in keys])
        self.struck |= set(keys)
        self.log.commit(remove_pending_deletes(keys), now_ms=10)

    def check(self):
        log = MetadataLog(self.store, PREFIX)
        manifest = log.refresh()
        index = log.index(manifest)
        assert list(index.entries_with_dead(0, END)) == self.entries
        live = [each for each in self.entries if each.next_offset > self.start]
        assert list(index.entries()) == live
        for offset in {0, *(each.base_offset for each in self.entries), *(each.next_offset for each in self.entries)}:
            assert index.find_by_offset(offset) == next((each for each in live if each.next_offset > offset), None)
        for timestamp in range(5):
            late = [each for each in live if each.max_timestamp_ms is not None and each.max_timestamp_ms >= timestamp]
            assert index.find_by_timestamp(timestamp) == (late[0] if late else None)
        assert (manifest.segment_count, manifest.size_bytes) == (
            len(self.entries),
            sum(each.size_bytes for each in self.entries),
        )
        ranges = [(each.base_offset, each.next_offset) for each in self.entries]
        held = [each for page in manifest.pages for each in page.ranges()]
        assert Coverage.of(
            [*held, *((each.base_offset, each.next_offset) for each in manifest.segments)]
        ) == Coverage.of(ranges)
        assert {epoch for epoch, _ in manifest.lineage} == {epoch for each in self.entries for epoch, _ in each.epochs}
        assert index.last_entry() == (self.entries[-1] if self.entries else None)
        self.check_objects(manifest)

    def check_objects(self, manifest):
        """Every object ever named is named, a pending delete, or deleted. The same holds for pages."""
        named = {key for each in self.entries for key in (each.data_key, each.indexes_key)}
        listed = {each.key for each in manifest.pending_deletes}
        pages = {page.key for page in manifest.pages}
        assert self.ever <= named | listed | self.struck
        assert not named & (listed | self.struck)
        there = {info.key.removeprefix(PREFIX) for info in self.store.list(PREFIX + PAGES)}
        assert there == pages | {key for key in listed if key.startswith(PAGES)}
        assert not pages & listed


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0, 0, 0, 3]), st.sampled_from([None, 1, 2, 3])),
        st.tuples(st.just("add"), st.just(0), st.sampled_from([1, 2, 3])),
        st.tuples(st.just("expire"), st.just(0), st.integers(1, 4)),
        st.tuples(st.just("expire"), st.integers(0, 20), st.integers(1, 3)),
        st.tuples(st.just("merge"), st.integers(0, 20), st.integers(1, 8)),
        st.tuples(st.just("raise_start"), st.integers(0, 200)),
        st.tuples(st.just("strike_off")),
        st.tuples(st.just("reopen")),
    ),
    max_size=12,
)


@CALM
@given(st.integers(0, 25), STEPS)
def test_an_index_with_pages_equals_the_plain_list_and_loses_no_object(count, steps):
    world = World()
    for number in range(count):
        world.add(0 if number % 7 else 3, number % 4)
    world.check()
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
        world.check()


def filled(count=30):
    world = World()
    for number in range(count):
        world.add(0, number)
    return world


def test_a_change_that_loses_an_entry_or_a_page_is_refused_and_nothing_is_written():
    world = filled()
    before = {info.key for info in world.store.list("")}

    def forgetful(manifest):
        return replace(manifest, segments=manifest.segments[1:])

    with pytest.raises(InvalidRequest, match="neither in a segment entry nor a pending delete"):
        world.log.commit(forgetful, now_ms=1, touches=(0, 10))
    with pytest.raises(InvalidRequest, match=r"neither in a segment entry nor a pending delete.*meta/spill"):
        world.log.commit(lambda manifest: replace(manifest, pages=manifest.pages[1:]), now_ms=1)
    assert {info.key for info in world.store.list("")} == before
    world.check()


def test_a_reader_whose_page_was_deleted_reads_the_newest_manifest():
    world = filled()
    reader = MetadataLog(world.store, PREFIX)
    old = reader.refresh()
    world.expire(0, 2)
    world.strike_off()
    with pytest.raises(NotFound):
        reader.index(old).find_by_offset(25)
    assert reader.ask(old, lambda index: index.find_by_offset(25)) == world.entries[0]


def test_pages_keep_the_manifest_small_and_the_newest_entries_in_it():
    world = filled(100)
    manifest = world.log.cached
    assert RULE.kept_entries_min <= len(manifest.segments) < RULE.kept_entries_min + RULE.page_rows_min
    assert {page.segment_count for page in manifest.pages} <= {3, 4, 5}
    wide = MetadataLog(
        world.store,
        PREFIX,
        rule=PageRule(manifest_bytes_max=1800, page_rows_max=50, page_rows_min=1, kept_entries_min=2),
    )
    wide.become_writer("wide", 1, topic="orders", topic_id="A" * 22, partition=0)
    manifest = wide.commit(lambda manifest: replace(manifest, properties={"x": "y"}), now_ms=3, touches=(0, END))
    assert manifest.pages[0].segment_count == 50
