"""The requests of an open with and without a local copy of the manifest; wrong copies are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local.errors import Corrupt
from remote.gc.delayed_delete import collect_manifests
from remote.keys import MANIFESTS, manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments, expire_segments, set_properties
from remote.manifest.manifest_lookup import ManifestDiskCache
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from disk_model import ModelDisk
from manager_world import NOW, TIERED, World, send, settle
from remote_samples import stored_row as entry
from remote_samples import ulid_of

PREFIX = f"orders-{'A' * 22}/0/"
PARTITION = {"topic": "orders", "topic_id": "A" * 22, "partition": 0}
RULE = PageRule(manifest_bytes_max=1, page_rows_max=8, page_rows_min=8, kept_entries_min=2)


def filled(store, count=30):
    log = MetadataLog(store, PREFIX, rule=RULE)
    log.become_writer("w", 1, properties={}, **PARTITION)
    for number in range(count):
        log.commit(add_segments([entry(f"U{number}", number * 10, number * 10 + 10)]), now_ms=2)
    return log


def touch(log, count=1):
    for _ in range(count):
        log.commit(set_properties({"step": str(log.cached.sequence)}), now_ms=3)


class Bench:
    """A bucket with entries in pages, and a disk with copies of them."""

    def __init__(self):
        self.store = MemoryStore()
        self.writer = filled(self.store)
        self.disk = ModelDisk()
        self.start()

    def start(self, store=None, offset=5):
        """Open once; return the manifest, the entry, and the requests (puts, gets, lists)."""
        metered = MeteredStore(store or self.store)
        log = MetadataLog(metered, PREFIX, copies=ManifestDiskCache(self.disk, "./copies"))
        manifest = log.refresh()
        found = log.ask(manifest, lambda index: index.find_by_offset(offset))
        counts = metered.counts()
        return manifest, found, (counts.puts, counts.gets, counts.lists)

    def names(self, suffix):
        return [name for name in self.disk.list("./copies") if name.endswith(suffix)]


def test_a_cold_open_takes_one_listing_three_gets_and_the_page():
    store = MemoryStore()
    manifest = filled(store).cached
    assert len(manifest.pages) > 2
    metered = MeteredStore(store)
    log = MetadataLog(metered, PREFIX)
    assert log.refresh() == manifest
    requests = metered.counts().gets, metered.counts().lists
    assert requests == (3, 1), "expected the manifest, a miss behind it, and a miss for the GC boundary"
    assert log.index(manifest).find_by_offset(5).ulid == ulid_of("U0")
    assert metered.counts().gets == 4, "expected one more GET for the page"
    assert log.index(manifest).find_by_offset(5).ulid == ulid_of("U0")
    assert log.index(manifest).find_by_offset(299).ulid == ulid_of("U29")
    assert metered.counts().gets == 4
    before = metered.counts()
    for _ in range(10):
        log.load()
    assert (metered.counts() - before).gets == 10, "expected one GET for each check for a newer manifest"
    assert metered.counts().lists == 1


def test_an_open_with_a_copy_takes_three_small_gets_and_no_listing():
    bench = Bench()
    for _ in range(2):
        manifest, found, requests = bench.start()
        assert (manifest, found.ulid, requests) == (bench.writer.cached, ulid_of("U0"), (0, 3, 0))
    touch(bench.writer, 2)
    manifest, found, requests = bench.start()
    assert (manifest, found.ulid, requests) == (bench.writer.cached, ulid_of("U0"), (0, 5, 0))


def test_a_torn_copy_of_a_manifest_counts_as_none():
    bench = Bench()
    for name in (*bench.names(".head"), *bench.names(".page")):
        whole = bench.disk.read(f"./copies/{name}")
        bench.disk.unlink(f"./copies/{name}")
        bench.disk.create(f"./copies/{name}").append(whole[:-9])
        manifest, found, _ = bench.start()
        assert (manifest, found.ulid) == (bench.writer.cached, ulid_of("U0"))
        assert bench.disk.read(f"./copies/{name}") == whole


def test_a_copy_of_another_buckets_manifest_is_never_used():
    bench = Bench()
    for other in (filled(MemoryStore(), 3), filled(MemoryStore(), 30), filled(MemoryStore(), 40)):
        manifest, found, _ = bench.start(other.store)
        assert (manifest, found.ulid) == (other.cached, ulid_of("U0"))
        bench.start()


def test_a_copy_of_a_deleted_manifest_that_a_stale_writer_recreated_is_never_used():
    bench = Bench()
    body = bench.store.get(PREFIX + manifest_key(bench.writer.cached.sequence))
    sequence = bench.writer.cached.sequence
    other = MetadataLog(bench.store, PREFIX)
    other.become_writer("b", 5, **PARTITION)
    touch(other, 20)
    collect_manifests(bench.store, PREFIX, other, other.cached.sequence - 3, now_ms=6)
    assert bench.start()[0] == other.cached
    bench.store.put(PREFIX + manifest_key(sequence), body)
    ManifestDiskCache(bench.disk, "./copies").keep_manifest(PREFIX, body, [])
    assert bench.start()[0] == other.cached


def test_copies_of_pages_that_the_newest_manifest_does_not_name_are_deleted():
    bench = Bench()
    for offset in range(0, 300, 20):
        bench.start(offset=offset)
    assert len(bench.names(".page")) == len(bench.writer.cached.pages)
    bench.writer.commit(expire_segments([ulid_of("U0")], now_ms=5), now_ms=5, touches=(0, 10))
    bench.start(offset=299)
    assert len(bench.names(".page")) == len(bench.writer.cached.pages) - 1


def test_a_failing_disk_costs_only_the_local_copy():
    class Failing(ModelDisk):
        def make_directory(self, path):
            raise OSError(28, "no space left")

        def read(self, path, start=0, length=None):
            raise OSError(5, "input/output error")

    store = MemoryStore()
    manifest = filled(store).cached
    log = MetadataLog(store, PREFIX, copies=ManifestDiskCache(Failing(), "./copies"))
    assert log.refresh() == manifest
    assert log.index(manifest).find_by_offset(5).ulid == ulid_of("U0")


def test_a_read_error_costs_one_read_of_the_local_copy():
    disk, store = ModelDisk(), MemoryStore()
    manifest = filled(store).cached
    copies = ManifestDiskCache(disk, "./copies")
    copies.keep_manifest(PREFIX, store.get(PREFIX + manifest_key(manifest.sequence)), [])
    read, failing = disk.read, [OSError(5, "input/output error")]

    def read_once_failing(path, start=0, length=None):
        if failing:
            raise failing.pop()
        return read(path, start, length)

    disk.read = read_once_failing
    assert copies.manifest(PREFIX) is None
    found = copies.manifest(PREFIX)
    assert found is not None
    assert found[0] == manifest


def prefix_of(number):
    return f"orders-{'A' * 22}/{number}/"


def test_copies_of_all_partitions_stay_within_their_bound_and_the_last_used_stay():
    disk = ModelDisk()
    copies = ManifestDiskCache(disk, "./copies", 1000)
    for number in range(50):
        copies.keep_manifest(prefix_of(number), bytes(90), [])
        copies.manifest(prefix_of(3))  # read repeatedly, although it is not a valid manifest
        assert sum(disk.size(f"./copies/{name}") for name in disk.list("./copies")) == copies.size_bytes <= 1000
    left = {int(name.split("-")[-1].split(".")[0]) for name in disk.list("./copies")}
    assert left == {3, *range(40, 50)}, "the copies left are not the last used ones"
    copies.keep_manifest(prefix_of(7), bytes(1001), [])
    assert f"orders-{'A' * 22}-7.head" not in disk.list("./copies")
    assert copies.size_bytes <= 1000


def test_older_copies_count_for_the_bound_and_unknown_files_do_not():
    disk = ModelDisk()
    ManifestDiskCache(disk, "./copies").keep_manifest(prefix_of(1), bytes(400), [])
    ManifestDiskCache(disk, "./copies").keep_manifest(prefix_of(2), bytes(400), [])
    for name, size in ((f"orders-{'A' * 22}-2.head.aside", 50), ("notes.head", 5000), ("a.page", 5000)):
        disk.create(f"./copies/{name}").append(bytes(size))
    copies = ManifestDiskCache(disk, "./copies", 500)
    copies.keep_manifest(prefix_of(3), bytes(100), [])
    assert copies.size_bytes <= 500
    assert {"notes.head", "a.page", f"orders-{'A' * 22}-3.head"} <= set(disk.list("./copies"))
    assert not [name for name in disk.list("./copies") if name.endswith(".aside")]


def test_a_process_without_the_directory_lock_reads_and_does_not_write_copies():
    bench = Bench()
    before = {name: bench.disk.read(f"./copies/{name}") for name in bench.disk.list("./copies")}
    touch(bench.writer)
    log = MetadataLog(bench.store, PREFIX, copies=ManifestDiskCache(bench.disk, "./copies", is_writer=False))
    assert log.ask(log.refresh(), lambda index: index.find_by_offset(299)).ulid == ulid_of("U29")
    assert {name: bench.disk.read(f"./copies/{name}") for name in bench.disk.list("./copies")} == before


def test_a_managers_manifest_copies_stay_within_the_bound_of_its_cache_directory(tmp_path):
    for bound, least, most in (("64KiB", 4096, 8192), ("0", 0, 0)):
        where, world = tmp_path / bound, World()
        with world.open(remote_fetch_cache_dir=str(where), remote_fetch_cache_dir_max_bytes=bound) as manager:
            for topic in range(12):
                manager.topics.create(f"t{topic}", 1, TIERED, now_ms=NOW)
                send(manager, 100, topic=f"t{topic}")
            settle(manager)
        sizes = [path.stat().st_size for path in (where / "index").rglob("*") if path.is_file()]
        assert least <= sum(sizes) <= most


def test_a_writer_stores_a_copy_of_each_manifest_it_commits():
    bench = Bench()
    log = MetadataLog(bench.store, PREFIX, rule=RULE, copies=ManifestDiskCache(bench.disk, "./copies"))
    log.become_writer("w2", 9, **PARTITION)
    touch(log, 3)
    assert ManifestDiskCache(bench.disk, "./copies").manifest(PREFIX)[0] == log.cached


def test_damage_in_the_bucket_is_not_hidden_by_a_copy():
    bench = Bench()
    key = PREFIX + manifest_key(bench.writer.cached.sequence)
    bench.store.put(key, b"x" + bench.store.get(key)[1:])
    with pytest.raises(Corrupt):
        bench.start()
    assert [info.key for info in bench.store.list(PREFIX + MANIFESTS)]
