"""The cache of fetched bytes: its evictions, its size in bytes, and its loads by several readers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from local.errors import Unavailable
from remote.cache.chunk_cache import LEFT_KEPT, ChunkCache, Slice


def test_cache_holds_the_last_used_chunks_within_its_bytes():
    cache = ChunkCache(10)
    loads = []

    def load(keys):
        loads.append([number for _, number in keys])
        return dict.fromkeys(keys, b"xxxx")

    for number in (1, 2, 1, 3, 1, 2):
        cache.fetch([("o", number)], load)
    assert loads == [[1], [2], [3], [2]]
    assert cache.size_bytes == 8


def test_pieces_of_one_body_are_evicted_together_and_count_the_whole_body():
    cache = ChunkCache(10)
    body = bytes(8)
    loads = []

    def load(keys):
        loads.append([number for _, number in keys])
        if len(keys) == 1:
            return {keys[0]: Slice(b"xxxx", 0, 4)}
        return {key: Slice(body, at, 2) for at, key in enumerate(keys)}  # 4 of 8 bytes

    cache.fetch([("o", 1), ("o", 2)], load)
    assert cache.size_bytes == 8
    cache.fetch([("o", 3)], load)  # 12 bytes: the body and both its pieces are evicted
    assert cache.size_bytes == 4
    cache.fetch([("o", 3)], load)
    cache.fetch([("o", 2), ("o", 1)], load)
    assert loads == [[1, 2], [3], [2, 1]]
    cache.fetch([("o", 1)], load)


def test_using_one_piece_protects_its_whole_body():
    cache = ChunkCache(12)
    loads = []

    def load(keys):
        loads.append([number for _, number in keys])
        body = bytes(4)
        return {key: Slice(body, at, 2) for at, key in enumerate(keys)}

    for wanted in ((1, 2), (3,), (4,), (1,), (5,), (2,), (3,)):
        cache.fetch([("o", number) for number in wanted], load)
    assert loads == [[1, 2], [3], [4], [5], [3]]


def test_a_cache_of_no_bytes_still_returns_loaded_chunks():
    cache = ChunkCache(0)
    assert cache.fetch([("o", 1), ("o", 2)], lambda keys: dict.fromkeys(keys, b"x")) == [b"x", b"x"]
    assert cache.size_bytes == 0


def test_a_chunk_that_many_readers_want_at_once_is_loaded_once():
    cache = ChunkCache()
    together, loading, release, loads = threading.Barrier(6), threading.Event(), threading.Event(), []

    def load(keys):
        loads.append(keys)
        loading.set()
        release.wait(60)
        return dict.fromkeys(keys, b"x")

    def read(_):
        together.wait(60)
        return cache.fetch([("o", 1)], load)

    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(read, range(6))
        loading.wait(60)
        release.set()
        assert list(answers) == [[b"x"]] * 6
    assert len(loads) == 1


def test_a_failed_load_fails_only_its_own_reader():
    cache = ChunkCache()
    loading, release = threading.Event(), threading.Event()

    def fail(keys):
        loading.set()
        release.wait(60)
        raise Unavailable("loading")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.fetch, [("o", 1)], fail)
        loading.wait(60)
        second = pool.submit(cache.fetch, [("o", 1)], lambda keys: dict.fromkeys(keys, b"x"))
        release.set()
        assert second.result(60) == [b"x"]
        with pytest.raises(Unavailable):
            first.result(60)


def test_a_reader_without_memory_for_its_chunk_leaves_no_other_reader_waiting(monkeypatch):
    cache, keep, claim = ChunkCache(), ChunkCache._keep, ChunkCache._claim
    loading, release = threading.Event(), threading.Event()

    def keep_or_fail(self, loaded):
        if threading.current_thread().name.startswith("poor"):
            raise MemoryError
        keep(self, loaded)

    def claim_and_tell(self, *asked):
        claimed = claim(self, *asked)
        if loading.is_set():  # the other reader, which waits now
            release.set()
        return claimed

    def slow(keys):
        loading.set()
        release.wait(60)
        return dict.fromkeys(keys, b"x")

    monkeypatch.setattr(ChunkCache, "_keep", keep_or_fail)
    monkeypatch.setattr(ChunkCache, "_claim", claim_and_tell)
    with ThreadPoolExecutor(1, "poor") as poor, ThreadPoolExecutor(1, "other") as other:
        first = poor.submit(cache.fetch, [("o", 1)], slow)
        loading.wait(60)
        second = other.submit(cache.fetch, [("o", 1)], slow)
        with pytest.raises(MemoryError):
            first.result(60)
        assert second.result(60) == [b"x"]


def test_readers_of_a_store_that_hangs_do_not_wait_one_after_another(monkeypatch):
    """Earlier, each reader waited for the one before it: the eighth waited eight deadlines."""
    readers = 8
    waiting, all_wait = [], threading.Event()

    class Landed(threading.Event):
        def wait(self, timeout=None):
            waiting.append(1)
            if len(waiting) == readers - 1:
                all_wait.set()
            return super().wait(timeout)

    monkeypatch.setattr("remote.cache.chunk_cache.threading", SimpleNamespace(Event=Landed, Lock=threading.Lock))
    cache, side_by_side = ChunkCache(), threading.Barrier(readers - 1)

    def fail_first(keys):
        assert all_wait.wait(60)
        raise Unavailable("loading")

    def load(keys):
        side_by_side.wait(60)
        return dict.fromkeys(keys, b"x")

    with ThreadPoolExecutor(readers) as pool:
        first = pool.submit(cache.fetch, [("o", 1)], fail_first)
        while not cache._flights:
            pass
        others = [pool.submit(cache.fetch, [("o", 1)], load) for _ in range(readers - 1)]
        assert [each.result(20) for each in others] == [[b"x"]] * (readers - 1)
        with pytest.raises(Unavailable):
            first.result(60)
    assert cache.size_bytes == 1, "a chunk is stored more than once"
    assert cache.fetch([("o", 1)], fail_first) == [b"x"]


def test_a_chunk_that_two_readers_loaded_at_once_is_stored_and_evicted_once():
    cache = ChunkCache(4)

    def load(keys):
        cache.keep(dict.fromkeys(keys, b"xx"))  # another reader, after a failure
        return dict.fromkeys(keys, b"xx")

    assert cache.fetch([("o", 1)], load) == [b"xx"]
    assert cache.size_bytes == 2
    for number in (2, 3, 4):
        cache.fetch([("o", number)], lambda keys: dict.fromkeys(keys, b"yy"))
    assert cache.size_bytes == 4


def test_chunks_that_a_stream_left_behind_are_evicted_first_newest_first():
    cache, loads = ChunkCache(5), []

    def load(keys):
        loads.extend(number for _, number in keys)
        return dict.fromkeys(keys, b"x")

    for number in range(5):
        cache.fetch([("o", number)], load)
    cache.leave_behind([("o", 3), ("o", 1), ("o", 77)])
    for number in (10, 11):
        cache.fetch([("o", number)], load)
    loads.clear()
    for number in (0, 2, 4, 10, 11, 3, 1):
        cache.fetch([("o", number)], load)
    assert loads == [3, 1]


def test_pieces_of_one_body_are_left_behind_together():
    cache = ChunkCache(8)
    cache.fetch([("o", 1)], lambda keys: dict.fromkeys(keys, b"old!"))
    body = bytes(4)
    cache.fetch([("o", 2), ("o", 3)], lambda keys: {key: Slice(body, at, 2) for at, key in enumerate(keys)})
    cache.leave_behind([("o", 2)])
    cache.fetch([("o", 4)], lambda keys: dict.fromkeys(keys, b"new!"))
    assert [cache.peek(("o", number)) is not None for number in (1, 2, 3, 4)] == [True, False, False, True]


def test_new_streams_replace_chunks_that_older_streams_left():
    cache, room = ChunkCache(8), 8
    for stream in range(2):
        for number in range(room * LEFT_KEPT + room):
            key = (f"stream-{stream}", number)
            cache.fetch([key], lambda keys: dict.fromkeys(keys, b"x"))
            cache.leave_behind([key])
    assert not any(cache.peek(("stream-0", number)) for number in range(room * LEFT_KEPT + room))
    assert cache.size_bytes == room


def test_a_reader_waits_once_for_several_loads_of_another_reader():
    cache, loading, release = ChunkCache(), threading.Event(), threading.Event()

    def load(keys):
        loading.set()
        release.wait(60)
        return {key: b"%d" % key[1] for key in keys}

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.fetch, [("o", 1), ("o", 3)], load)
        loading.wait(60)
        second = pool.submit(
            cache.fetch, [("o", 3), ("o", 2), ("o", 1)], lambda keys: {key: b"own %d" % key[1] for key in keys}
        )
        release.set()
        assert first.result(60) == [b"1", b"3"]
        assert second.result(60) == [b"3", b"own 2", b"1"]
