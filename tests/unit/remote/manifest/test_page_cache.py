"""Manifest pages in memory: one bound for all partitions, one GET for all readers of a page."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from remote_samples import stored_row as entry

from local.errors import Unavailable
from remote.cache.chunk_cache import ChunkCache
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.manifest.manifest_lookup import Pages
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore

ID = "A" * 22
RULE = PageRule(manifest_bytes_max=1, page_rows_max=4, page_rows_min=2, kept_entries_min=1)


def filled(store, partition=0, entries=33, rule=RULE, epochs=lambda number: ((0, number * 10),)):
    """A partition with pages of four entries; returns its manifest."""
    log = MetadataLog(store, partition_prefix("t", ID, partition), rule=rule)
    log.become_writer("w", 1, topic="t", topic_id=ID, partition=partition)
    made = [entry(f"U{at}", at * 10, at * 10 + 10, epochs=epochs(at)) for at in range(entries)]
    for each in made:
        log.commit(add_segments([each]), 2)
    return log.cached


def test_the_pages_of_all_partitions_share_one_bound():
    store, cache = MemoryStore(), ChunkCache(10)
    manifests = [filled(store, partition) for partition in range(3)]
    for number, manifest in enumerate(manifests):
        pages = Pages(store, partition_prefix("t", ID, number), cache=cache)
        for page in manifest.pages:
            assert len(pages.entries(page)) == page.segment_count
            assert cache.size_bytes <= 10


def test_the_last_used_page_stays_and_a_page_cached_twice_counts_once():
    store = MemoryStore()
    manifest = filled(store)
    one, two, three = manifest.pages[:3]
    metered, cache = MeteredStore(store), ChunkCache(one.segment_count + two.segment_count)
    pages = Pages(metered, partition_prefix("t", ID, 0), cache=cache)
    for page in (one, two, one, three, one):
        pages.entries(page)
    assert metered.counts().gets == 3
    pages.entries(two)
    assert metered.counts().gets == 4
    for _ in range(3):
        pages.keep(two, pages.entries(two))
    assert cache.size_bytes == one.segment_count + two.segment_count


def test_pages_of_the_same_name_in_two_partitions_are_separate():
    cache, stores = ChunkCache(), [MemoryStore(), MemoryStore()]
    manifests = [filled(stores[0]), filled(stores[1], epochs=lambda number: ((7, number * 10),))]
    page = manifests[0].pages[0]
    other = Pages(stores[1], partition_prefix("t", ID, 0), cache=cache)
    other.keep(page, other.entries(manifests[1].pages[0]))
    mine = Pages(stores[0], partition_prefix("t", ID, 0), cache=cache)
    assert mine.entries(page)[0].epochs == ((0, 0),)


class Slow(MemoryStore):
    """Its GETs wait until `go`; then the first `failing` of them fail."""

    def __init__(self, inner, failing=0):
        super().__init__()
        self._objects = inner._objects
        self.go, self.begun, self.left, self.gets = threading.Event(), threading.Semaphore(0), failing, 0
        self._gate = threading.Lock()

    def get(self, key):
        with self._gate:
            self.gets += 1
            fails, self.left = self.left > 0, self.left - 1
        self.begun.release()
        assert self.go.wait(60)
        if fails:
            raise Unavailable("cannot read an object")
        return super().get(key)


def test_readers_of_one_page_share_one_get():
    store = MemoryStore()
    page = filled(store).pages[0]
    slow = Slow(store)
    pages = Pages(slow, partition_prefix("t", ID, 0), cache=ChunkCache())
    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(pages.entries, page) for _ in range(8)]
        assert slow.begun.acquire(timeout=60)
        slow.go.set()
        found = [each.result() for each in reading]
    assert slow.gets == 1
    assert all(each is found[0] for each in found)


def test_readers_that_waited_for_a_failed_get_read_by_themselves():
    store = MemoryStore()
    page = filled(store).pages[0]
    slow = Slow(store, failing=1)
    pages = Pages(slow, partition_prefix("t", ID, 0), cache=ChunkCache())
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(pages.entries, page)
        assert slow.begun.acquire(timeout=60)
        others = [pool.submit(pages.entries, page) for _ in range(3)]
        slow.go.set()
        with pytest.raises(Unavailable):
            first.result()
        assert all(len(each.result()) == page.segment_count for each in others)
    assert pages._cache._flights == {}
    before = slow.gets
    pages.entries(page)
    assert slow.gets == before


# --- leader epochs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 64])
def test_a_page_reference_lists_at_most_the_allowed_number_of_epochs(most):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=100, page_rows_min=80, kept_entries_min=1, epochs_max=most)
    manifest = filled(MemoryStore(), entries=200, rule=rule, epochs=lambda number: ((number, number * 10),))
    assert manifest.pages
    assert max(len(page.epochs) for page in manifest.pages) == most
    assert sum(page.segment_count for page in manifest.pages) + len(manifest.segments) == 200
    told = [epoch for epoch, _ in manifest.lineage]
    assert sorted(set(told)) == list(range(200))
