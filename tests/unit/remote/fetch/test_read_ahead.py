"""Sequential reads: their bytes, the requests to the store, and the effect of a fault ahead."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing

import pytest
from test_range_reader import CHUNK, PREFIX, segment_of

from local.errors import Unavailable
from remote.cache.chunk_cache import ChunkCache
from remote.fetch import read_ahead
from remote.fetch.range_reader import RemotePartition
from remote.fetch.read_ahead import SequentialReader
from remote.segment_entry import SegmentEntry
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from remote.upload.segment_upload import copy_segment

BODIES = [random.Random(at).randbytes(size) for at, size in enumerate((40 * CHUNK + 7, 3 * CHUNK, 25 * CHUNK, 11))]


class AtOnce:
    """Threads that have always finished already, so that the fetches do not depend on timing."""

    def submit(self, act: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(act(*arguments))
        return done


class Watched(MemoryStore):
    """Remembers every range of data; fails the ones in `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.broken: set[str] = set()

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.asked += [(key, start, length) for start, length in ranges]
        if key in self.broken:
            raise Unavailable("no reply", key=key)
        return super().get_ranges(key, ranges)


@pytest.fixture(autouse=True)
def _small_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STEP_BYTES_MIN": CHUNK, "STEP_BYTES_MAX": 4 * CHUNK, "WINDOW_BYTES_MIN": CHUNK}.items():
        monkeypatch.setattr(read_ahead, name, value)
    for name, chunks in {"RANGE_BYTES": 4, "CELL_BYTES_MAX": 4, "WINDOW_BYTES_MAX": 8}.items():
        monkeypatch.setattr(read_ahead, name, chunks * CHUNK)
    monkeypatch.setattr(read_ahead, "_threads", AtOnce())


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def entries(store: Watched) -> list[SegmentEntry]:
    found = []
    for at, body in enumerate(BODIES):
        segment = segment_of(body, base_offset=100 * at, next_offset=100 * at + 100, epochs=((0, 100 * at),))
        found.append(copy_segment(store, PREFIX, segment, epoch=1, now_ms=at, chunk_bytes=CHUNK))
    return found


def reader_of(
    store: MemoryStore | MeteredStore, entries: list[SegmentEntry], *, cache_bytes: int = 1 << 20, window: int = 8
) -> SequentialReader:
    following = {entry.ulid: after for entry, after in zip(entries, [*entries[1:], None], strict=True)}
    remote = RemotePartition(store, PREFIX, ChunkCache(cache_bytes))
    read_ahead.WINDOW_BYTES_MAX = window * CHUNK  # `_small_and_at_once` restores it
    return SequentialReader(remote, lambda entry: following[entry.ulid])


def drained(reader: SequentialReader, entries: list[SegmentEntry]) -> Iterator[bytes]:
    for entry in entries:
        position = 0
        while position < entry.size_bytes:
            data = reader.read(entry, position, reader.step_bytes)
            yield bytes(data)
            position += len(data)


@pytest.mark.parametrize("cache_chunks", [0, 3, 30, 200])
@pytest.mark.parametrize("window", [0, 1, 8, 100])
def test_a_stream_returns_every_byte_with_any_window_and_cache(
    store: Watched, entries: list[SegmentEntry], cache_chunks: int, window: int
) -> None:
    with closing(reader_of(store, entries, cache_bytes=cache_chunks * CHUNK, window=window)) as reader:
        assert b"".join(drained(reader, entries)) == b"".join(BODIES)


def test_the_first_read_requests_only_the_bytes_it_needs(store: Watched, entries: list[SegmentEntry]) -> None:
    reader = reader_of(store, entries)
    reader.read(entries[0], 5 * CHUNK + 10, 100)
    assert store.asked == [(PREFIX + entries[0].data_key, 5 * CHUNK, CHUNK)]


def test_a_continuing_stream_fills_its_window_before_it_reads_the_next_segment(
    store: Watched, entries: list[SegmentEntry]
) -> None:
    reader = reader_of(store, entries, window=8)
    position = 0
    for seen, piece in enumerate(drained(reader, entries)):
        position += len(piece)
        if seen > 4 and position + 8 * CHUNK < len(BODIES[0]):
            covered = max(start + length for _, start, length in store.asked)
            assert covered >= position + 8 * CHUNK, "the window is not full"
            assert covered <= position + (8 + 4) * CHUNK, "more than the window and a cell was fetched"
    fetched = sum(length for _, _, length in store.asked)
    assert fetched == sum(map(len, BODIES)), "a byte was fetched more than once"
    assert {key for key, _, _ in store.asked} == {PREFIX + entry.data_key for entry in entries}
    # The small second segment and the one behind it were fetched before the stream left the first one.
    order = [key for key, _, _ in store.asked]
    last_of_first = max(at for at, key in enumerate(order) if key == PREFIX + entries[0].data_key)
    assert order[last_of_first + 1] == PREFIX + entries[1].data_key


def test_read_steps_grow_while_a_stream_continues_and_restart_after_a_jump(
    store: Watched, entries: list[SegmentEntry]
) -> None:
    reader = reader_of(store, entries)
    position = 0
    for expected in (1, 1, 4, 4):
        assert reader.step_bytes == expected * CHUNK
        position += len(reader.read(entries[0], position, CHUNK))
    asked = len(store.asked)
    reader.read(entries[0], 35 * CHUNK, 10)
    assert reader.step_bytes == CHUNK
    assert store.asked[asked:] == [(PREFIX + entries[0].data_key, 35 * CHUNK, CHUNK)]


def test_a_read_that_begins_inside_the_last_one_continues_the_stream(
    store: Watched, entries: list[SegmentEntry]
) -> None:
    """The end of a step split a batch: the batch is read again, with the bytes that follow."""
    reader = reader_of(store, entries)
    reader.read(entries[0], 0, CHUNK)
    reader.read(entries[0], CHUNK - 50, CHUNK)
    assert len(store.asked) > 2, "nothing was fetched ahead"


def test_a_cache_smaller_than_a_window_gets_no_read_ahead(store: Watched, entries: list[SegmentEntry]) -> None:
    reader = reader_of(store, entries, cache_bytes=0)
    assert b"".join(drained(reader, entries)) == b"".join(BODIES)
    fetched = sum(length for _, _, length in store.asked)
    assert fetched <= sum(map(len, BODIES)) + CHUNK * len(store.asked)
    assert all(length <= 5 * CHUNK for _, _, length in store.asked)


def test_a_fault_ahead_is_raised_only_by_the_read_that_needs_the_bytes(
    store: Watched, entries: list[SegmentEntry]
) -> None:
    reader = reader_of(store, entries, window=100)
    store.broken = {PREFIX + entries[2].data_key}
    stream, got = drained(reader, entries), b""
    wanted = len(BODIES[0]) + len(BODIES[1])
    while len(got) < wanted:
        got += next(stream)
    assert got == BODIES[0] + BODIES[1]
    with pytest.raises(Unavailable):
        next(stream)


def test_a_stream_without_the_next_segments_entry_reads_all_without_read_ahead(
    store: Watched, entries: list[SegmentEntry]
) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(1 << 20))

    def away(entry: SegmentEntry) -> SegmentEntry | None:
        raise Unavailable("the page of rows", entry=entry.ulid)

    with closing(SequentialReader(remote, away)) as reader:
        assert b"".join(drained(reader, entries)) == b"".join(BODIES)


def test_a_long_stream_does_not_evict_what_other_readers_use(store: Watched, entries: list[SegmentEntry]) -> None:
    """The stream passes once through more bytes than the cache holds; older chunks stay cached."""
    cache = ChunkCache(30 * CHUNK)
    remote, other = (RemotePartition(store, PREFIX, cache) for _ in range(2))
    other.read(entries[2], 0, 4 * CHUNK)
    for passed in (1, 2):
        with closing(SequentialReader(remote, lambda _: None)) as reader:
            assert b"".join(drained(reader, entries[:1])) == BODIES[0]
        asked = len(store.asked)
        other.read(entries[2], 0, 4 * CHUNK)
        assert store.asked[asked:] == [], f"evicted by stream {passed}"


def test_a_stream_leaves_its_chunks_to_a_stream_that_follows_it(store: Watched, entries: list[SegmentEntry]) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(36 * CHUNK))
    first, second = (SequentialReader(remote, lambda _: None) for _ in range(2))
    with closing(first), closing(second):
        ahead, behind = drained(first, entries[:1]), drained(second, entries[:1])
        got = [next(ahead) for _ in range(4)]
        for piece in ahead:
            got.append(piece)
            next(behind)
        assert b"".join(got) == BODIES[0]
        asked = [start for key, start, _ in store.asked if key == PREFIX + entries[0].data_key]
        assert len(asked) == len(set(asked)), "bytes were fetched twice"


def test_only_open_streams_protect_their_chunks(store: Watched, entries: list[SegmentEntry]) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(30 * CHUNK))
    before = SequentialReader(remote, lambda _: None)
    before.close()
    before.close()
    remote.read(entries[2], 0, CHUNK)
    with closing(SequentialReader(remote, lambda _: None)) as reader:
        assert b"".join(drained(reader, entries[:1])) == BODIES[0]
    asked = len(store.asked)
    remote.read(entries[2], 0, CHUNK)
    assert store.asked[asked:] == []


def test_a_process_can_exit_while_its_read_ahead_hangs():
    code = "import threading; from remote.fetch.read_ahead import _threads; _threads.submit(threading.Event().wait)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_running_stream_fetches_cells_that_grow_with_its_window(
    store: Watched, entries: list[SegmentEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "CELL_BYTES_MAX", 8 * CHUNK)
    reader = reader_of(store, entries, window=32)
    with closing(reader):
        for entry in entries:
            for position in range(0, entry.size_bytes, CHUNK):
                reader.read(entry, position, CHUNK)
    lengths = [length for _, _, length in store.asked]
    assert max(lengths) == 8 * CHUNK
    assert sorted(set(lengths)) != [8 * CHUNK], "the first reads must stay small"


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_the_windows_of_all_streams_of_a_cache_fit_into_half_of_it(
    store: Watched, entries: list[SegmentEntry], streams: int
) -> None:
    reader = reader_of(store, entries, cache_bytes=32 * CHUNK, window=100)
    remote = reader._remote
    others = [SequentialReader(remote, lambda _: None) for _ in range(streams - 1)]
    with closing(reader):
        for position in range(0, 12 * CHUNK, CHUNK):
            reader.read(entries[0], position, CHUNK)
        assert reader._window <= 16 * CHUNK // streams
    for other in others:
        other.close()
