"""Chunks of remote objects on a disk: they survive a restart and are never wrong."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from disk_model import ModelDisk
from filling_disk import FillingDisk
from manager_world import NAME, NOW, TIERED, World, send, settle, values
from test_range_reader import BODY, CHUNK, PREFIX, copied

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound
from local.logdirs.log_dirs import LogDirectories
from local.storage import DiskStorage
from remote.cache.chunk_cache import ChunkCache
from remote.cache.disk_cache import LOCK, WHOLE, DiskCache
from remote.fetch.range_reader import RemotePartition
from remote.store import Body
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.config.config import Config
from tiered.partition.partition_opening import Opener
from tiered.read.bucket_reader import RemoteLog

ROOT = "./cache"


def opened(disk: ModelDisk, bytes_max: int = 1 << 20) -> DiskCache:
    cache = DiskCache.open(disk, ROOT, bytes_max)
    assert cache is not None
    return cache


def pieces(disk: ModelDisk) -> list[str]:
    return sorted(name for name in disk.names if name.startswith(ROOT) and not name.endswith(LOCK))


def test_a_chunk_is_there_after_a_restart_and_no_other_is() -> None:
    disk = ModelDisk()
    cache = opened(disk)
    cache.keep("data/a", 3, b"bytes")
    cache.keep("data/a", WHOLE, b"all")
    cache.close()
    again = opened(disk)
    assert (again.get("data/a", 3), again.get("data/a", WHOLE)) == (b"bytes", b"all")
    assert again.get("data/a", 4) is None
    assert again.get("data/b", 3) is None
    assert again.size_bytes == 8


def test_disk_cache_stays_within_its_bytes_and_evicts_the_least_recently_used(tmp_path: Path) -> None:
    cache = DiskCache.open(DiskStorage(), str(tmp_path / "cache"), 30)
    assert cache is not None
    for number in range(3):
        cache.keep("a", number, b"%010d" % number)
    assert cache.get("a", 0) is not None
    cache.keep("a", 3, b"x" * 10)
    assert [cache.get("a", number) is not None for number in range(4)] == [True, False, True, True]
    cache.keep("a", 4, b"too large to be kept at all, by one byte" * 3)
    assert cache.size_bytes == 30
    cache.close()
    files = [each for each in (tmp_path / "cache").rglob("*") if each.is_file() and each.name != LOCK]
    assert sum(each.stat().st_size for each in files) == 30
    smaller = DiskCache.open(DiskStorage(), str(tmp_path / "cache"), 15)
    assert smaller is not None
    assert smaller.size_bytes == 10
    smaller.close()


def test_a_second_process_has_no_disk_cache_until_the_first_closes_it() -> None:
    disk = ModelDisk()
    first = opened(disk)
    assert DiskCache.open(disk, ROOT, 100) is None
    first.close()
    first.close()
    assert DiskCache.open(disk, ROOT, 100) is not None


def test_a_disk_error_turns_the_cache_off_and_reads_continue(caplog: pytest.LogCaptureFixture) -> None:
    disk = ModelDisk()
    cache = opened(disk)
    cache.keep("a", 0, b"kept")
    disk.fail_at = disk.effects + 1
    cache.keep("a", 1, b"lost")
    assert (cache.get("a", 0), cache.get("a", 1)) == (None, None)
    cache.keep("a", 2, b"")
    assert caplog.text.count("the disk cache is disabled after an error") == 1


def test_a_full_disk_takes_no_new_chunk_until_there_is_space(caplog: pytest.LogCaptureFixture) -> None:
    for lacking in range(4):
        caplog.clear()
        disk = FillingDisk()
        cache = opened(disk)
        cache.keep("a", 0, b"kept")
        disk.full_from = disk.effects + lacking
        before = {*disk.names}
        for number in range(1, 9):
            cache.keep("a", number, b"no room")
        assert cache.get("a", 0) == b"kept"
        assert cache.get("a", 8) is None
        assert {name for name in disk.names if name.endswith(".part")} <= before
        assert caplog.text.count("caching resumes when there is space") == 1
        disk.full_from = None
        cache.keep("a", 9, b"room")
        assert cache.get("a", 9) == b"room"


def test_only_chunks_are_deleted_from_a_directory_that_others_use_too(tmp_path: Path) -> None:
    for name in ("go/main", "go/main.part", "ab/notes", "ab/" + "a" * 34, "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"somebody's" * 10)
    cache = DiskCache.open(DiskStorage(), str(tmp_path), 30)
    assert cache is not None
    assert cache.size_bytes == 0
    for number in range(9):
        cache.keep("a", number, b"%010d" % number)
    piece = next(iter(cache._files.paths()))
    (tmp_path / f"{piece}.7.part").write_bytes(b"half a piece")
    cache.close()
    smaller = DiskCache.open(DiskStorage(), str(tmp_path), 10)
    assert smaller is not None
    smaller.close()
    there = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert there >= {"go/main", "go/main.part", "ab/notes", "ab/" + "a" * 34, "notes"}
    assert len(there - {LOCK}) == 6, "expected one chunk besides the other files"


class _Refuses(DiskStorage):
    """A disk that refuses one verb with one error."""

    verb = ""
    error: LogError = AccessDenied("a file of another user")

    def _refuse(self, verb: str) -> None:
        if verb == self.verb:
            raise self.error

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._refuse("read")
        return super().read(path, start, length)

    def make_directory(self, path: str) -> None:
        self._refuse("make_directory")
        super().make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._refuse("unlink")
        super().unlink(path)


@pytest.mark.parametrize("verb", ["read", "make_directory", "rename", "unlink"])
@pytest.mark.parametrize("error", [AccessDenied("a file of another user"), NotFound("the directory was emptied")])
def test_an_error_of_the_cache_disk_never_reaches_a_reader(tmp_path: Path, verb: str, error: LogError) -> None:
    storage = _Refuses()
    cache = DiskCache.open(storage, str(tmp_path), 10)
    assert cache is not None
    cache.keep("a", 0, b"kept")
    storage.verb, storage.error = verb, error
    assert cache.get("a", 0) in (b"kept", None)
    cache.keep("a", 1, b"the one that makes no room"[:10])
    cache.forget("a", 1)
    cache.close()
    assert (DiskCache.open(storage, str(tmp_path), 2) is None) == (verb == "make_directory")


def test_after_any_power_cut_readers_get_the_right_bytes_and_the_cache_is_repaired() -> None:
    store = MemoryStore()
    entry = copied(store)
    for seed in range(60):
        rng = random.Random(seed)
        disk = ModelDisk()
        reader = RemotePartition(store, PREFIX, ChunkCache(0), disk=opened(disk))
        for _ in range(6):
            reader.read(entry, rng.randrange(len(BODY)), CHUNK)
        found = disk.crash(rng)
        again = RemotePartition(store, PREFIX, ChunkCache(), disk=opened(found))
        assert bytes(again.read(entry, 0, len(BODY))) == BODY, seed
        meter = MeteredStore(store)
        third = RemotePartition(meter, PREFIX, ChunkCache(), disk=again._disk)
        assert bytes(third.read(entry, 0, len(BODY))) == BODY
        assert meter.counts().gets == 0, "a chunk is missing on the disk"


@pytest.mark.parametrize("number", [WHOLE, 2])
def test_a_damaged_cached_chunk_is_fetched_again(number: int) -> None:
    store, disk = MemoryStore(), ModelDisk()
    entry = copied(store)
    cache = opened(disk)
    RemotePartition(store, PREFIX, ChunkCache(0), disk=cache).read(entry, 0, len(BODY))
    name = PREFIX + (entry.indexes_key if number == WHOLE else entry.data_key)
    damaged = bytearray(cache.get(name, number) or b"")
    assert damaged
    for change in (bytes(damaged[:-1]), bytes([damaged[0] ^ 1]) + bytes(damaged[1:]), b""):
        cache._files._strike(
            next(piece for piece in cache._files.paths() if cache.get(name, number) and piece.endswith(f"-{number}"))
        )
        cache.keep(name, number, change)
        meter = MeteredStore(store)
        assert bytes(RemotePartition(meter, PREFIX, ChunkCache(0), disk=cache).read(entry, 0, len(BODY))) == BODY
        assert meter.counts().gets == 1
        assert cache.get(name, number) == bytes(damaged)


def test_manager_and_bucket_reader_find_fetched_chunks_after_a_restart(tmp_path: Path) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        everything = values(manager.reader())
    for is_second in (False, True):
        store = MeteredStore(world.store)
        config = replace(world.config, overrides={**world.config.overrides, "remote.fetch.cache.dir": str(tmp_path)})
        opener = Opener(config, LogDirectories(ModelDisk(), ["./x"]), store, DiskStorage())
        assert opener._disk_cache is not None
        with RemoteLog(store, disk=opener._disk_cache) as bucket:
            end = bucket.manifest(NAME).next_offset
            before = store.counts()
            assert values(bucket.reader()) == [each for each in everything if each[0] < end]
            assert ((store.counts() - before).gets == 0) == is_second


def test_a_cache_inside_a_log_directory_is_refused() -> None:
    config = Config.load(None, {"remote.fetch.cache.dir": "data/cache"}, {}, local_dir="data")
    with pytest.raises(InvalidRequest, match=r"inside a log directory: key=remote\.fetch\.cache\.dir"):
        _ = config.fetch_cache_dir


def test_a_reader_waiting_for_another_readers_fetch_does_not_wait_for_the_disk() -> None:
    store = MemoryStore()
    entry = copied(store)
    fetched, served = threading.Event(), threading.Event()

    class Slow(DiskCache):
        def keep(self, name: str, number: int, body: Body) -> None:
            if number != WHOLE:
                fetched.set()
                assert served.wait(60), "the fetch waits for the disk"
            super().keep(name, number, body)

    disk = ModelDisk()
    disk.make_directory(ROOT)
    partition = RemotePartition(store, PREFIX, ChunkCache(), disk=Slow(disk, ROOT, 1 << 20))
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(partition.warm, entry, 0, len(BODY))
        assert fetched.wait(60)
        assert bytes(partition.read(entry, 0, len(BODY))) == BODY
        served.set()
        ahead.result(60)
    kept = DiskCache(disk, ROOT, 1 << 20)
    assert kept.size_bytes == len(BODY) + entry.indexes_bytes
