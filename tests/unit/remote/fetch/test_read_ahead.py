"""Reading on and on: the bytes, what is asked of the store for them and when, and what a fault ahead does."""

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
from remote.fetch import read_ahead
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.fetch.read_ahead import SequentialReader
from remote.segment_entry import RemoteSegment
from remote.segments.segment_upload import copy_segment
from remote.store.memory_store import MemoryStore
from remote.store.middleware.metered_store import MeteredStore

BODIES = [random.Random(at).randbytes(size) for at, size in enumerate((40 * CHUNK + 7, 3 * CHUNK, 25 * CHUNK, 11))]


class AtOnce:
    """Threads that have always finished already, so that what is fetched does not hang on luck."""

    def submit(self, act: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(act(*arguments))
        return done


class Watched(MemoryStore):
    """Remembers every range of data; fails those in `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.broken: set[str] = set()

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.asked += [(key, start, length) for start, length in ranges]
        if key in self.broken:
            raise Unavailable("no answer", key=key)
        return super().get_ranges(key, ranges)


@pytest.fixture(autouse=True)
def _small_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STEP_BYTES_MIN": CHUNK, "STEP_BYTES_MAX": 4 * CHUNK, "WINDOW_BYTES_MIN": CHUNK}.items():
        monkeypatch.setattr(read_ahead, name, value)
    monkeypatch.setattr(read_ahead, "RANGE_BYTES", 4 * CHUNK)
    monkeypatch.setattr(read_ahead, "_pool", AtOnce)


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def rows(store: Watched) -> list[RemoteSegment]:
    found = []
    for at, body in enumerate(BODIES):
        segment = segment_of(body, base_offset=100 * at, next_offset=100 * at + 100, epochs=((0, 100 * at),))
        found.append(copy_segment(store, PREFIX, segment, epoch=1, now_ms=at, chunk_bytes=CHUNK))
    return found


def reader_of(
    store: MemoryStore | MeteredStore, rows: list[RemoteSegment], *, cache_bytes: int = 1 << 20, window: int = 8
) -> SequentialReader:
    following = {row.ulid: after for row, after in zip(rows, [*rows[1:], None], strict=True)}
    remote = RemotePartition(store, PREFIX, ChunkCache(cache_bytes))
    return SequentialReader(remote, lambda row: following[row.ulid], window_bytes_max=window * CHUNK)


def drained(reader: SequentialReader, rows: list[RemoteSegment]) -> Iterator[bytes]:
    for row in rows:
        position = 0
        while position < row.size_bytes:
            data = reader.read(row, position, reader.step_bytes)
            yield bytes(data)
            position += len(data)


@pytest.mark.parametrize("cache_chunks", [0, 3, 30, 200])
@pytest.mark.parametrize("window", [0, 1, 8, 100])
def test_a_stream_gives_every_byte_whatever_window_and_cache(
    store: Watched, rows: list[RemoteSegment], cache_chunks: int, window: int
) -> None:
    with closing(reader_of(store, rows, cache_bytes=cache_chunks * CHUNK, window=window)) as reader:
        assert b"".join(drained(reader, rows)) == b"".join(BODIES)


def test_the_first_read_asks_for_no_more_than_it_needs(store: Watched, rows: list[RemoteSegment]) -> None:
    reader = reader_of(store, rows)
    reader.read(rows[0], 5 * CHUNK + 10, 100)
    assert store.asked == [(PREFIX + rows[0].data_key, 5 * CHUNK, CHUNK)]


def test_a_stream_that_goes_on_has_its_window_here_before_it_asks_in_the_next_segments_too(
    store: Watched, rows: list[RemoteSegment]
) -> None:
    reader = reader_of(store, rows, window=8)
    position = 0
    for seen, piece in enumerate(drained(reader, rows)):
        position += len(piece)
        if seen > 4 and position + 8 * CHUNK < len(BODIES[0]):
            covered = max(start + length for _, start, length in store.asked)
            assert covered >= position + 8 * CHUNK, "the window is behind"
            assert covered <= position + (8 + 4) * CHUNK, "more than the window and a cell"
    fetched = sum(length for _, _, length in store.asked)
    assert fetched == sum(map(len, BODIES)), "each byte once"
    assert {key for key, _, _ in store.asked} == {PREFIX + row.data_key for row in rows}
    # The small second segment and what is behind it were here before the stream left the first one.
    order = [key for key, _, _ in store.asked]
    last_of_first = max(at for at, key in enumerate(order) if key == PREFIX + rows[0].data_key)
    assert order[last_of_first + 1] == PREFIX + rows[1].data_key


def test_steps_grow_while_the_stream_goes_on_and_begin_anew_after_a_jump(
    store: Watched, rows: list[RemoteSegment]
) -> None:
    reader = reader_of(store, rows)
    position = 0
    for expected in (1, 1, 4, 4):
        assert reader.step_bytes == expected * CHUNK
        position += len(reader.read(rows[0], position, CHUNK))
    asked = len(store.asked)
    reader.read(rows[0], 35 * CHUNK, 10)
    assert reader.step_bytes == CHUNK
    assert store.asked[asked:] == [(PREFIX + rows[0].data_key, 35 * CHUNK, CHUNK)]


def test_a_read_that_begins_inside_the_last_one_goes_on(store: Watched, rows: list[RemoteSegment]) -> None:
    """A batch was cut by the end of a step: it is read again, with what follows."""
    reader = reader_of(store, rows)
    reader.read(rows[0], 0, CHUNK)
    reader.read(rows[0], CHUNK - 50, CHUNK)
    assert len(store.asked) > 2, "nothing was fetched ahead"


def test_a_cache_that_could_not_hold_a_window_gets_none(store: Watched, rows: list[RemoteSegment]) -> None:
    reader = reader_of(store, rows, cache_bytes=0)
    assert b"".join(drained(reader, rows)) == b"".join(BODIES)
    fetched = sum(length for _, _, length in store.asked)
    assert fetched <= sum(map(len, BODIES)) + CHUNK * len(store.asked)
    assert all(length <= 5 * CHUNK for _, _, length in store.asked)


def test_a_fault_ahead_is_met_by_the_read_that_needs_the_bytes_and_not_before(
    store: Watched, rows: list[RemoteSegment]
) -> None:
    reader = reader_of(store, rows, window=100)
    store.broken = {PREFIX + rows[2].data_key}
    stream, got = drained(reader, rows), b""
    wanted = len(BODIES[0]) + len(BODIES[1])
    while len(got) < wanted:
        got += next(stream)
    assert got == BODIES[0] + BODIES[1]
    with pytest.raises(Unavailable):
        next(stream)


def test_where_the_index_cannot_be_read_ahead_nothing_is_fetched_and_nothing_is_lost(
    store: Watched, rows: list[RemoteSegment]
) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(1 << 20))

    def away(row: RemoteSegment) -> RemoteSegment | None:
        raise Unavailable("the page of rows", row=row.ulid)

    with closing(SequentialReader(remote, away)) as reader:
        assert b"".join(drained(reader, rows)) == b"".join(BODIES)


def test_a_long_stream_leaves_the_cache_to_what_others_use(store: Watched, rows: list[RemoteSegment]) -> None:
    """It passes once through more bytes than there is room for; what was there before is there still."""
    cache = ChunkCache(30 * CHUNK)
    remote, other = (RemotePartition(store, PREFIX, cache) for _ in range(2))
    other.read(rows[2], 0, 4 * CHUNK)
    for passed in (1, 2):
        with closing(SequentialReader(remote, lambda _: None, window_bytes_max=8 * CHUNK)) as reader:
            assert b"".join(drained(reader, rows[:1])) == BODIES[0]
        asked = len(store.asked)
        other.read(rows[2], 0, 4 * CHUNK)
        assert store.asked[asked:] == [], f"gone after stream {passed}"


def test_a_stream_that_another_one_follows_leaves_its_bytes_to_it(store: Watched, rows: list[RemoteSegment]) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(36 * CHUNK))
    first, second = (SequentialReader(remote, lambda _: None, window_bytes_max=8 * CHUNK) for _ in range(2))
    with closing(first), closing(second):
        ahead, behind = drained(first, rows[:1]), drained(second, rows[:1])
        got = [next(ahead) for _ in range(4)]
        for piece in ahead:
            got.append(piece)
            next(behind)
        assert b"".join(got) == BODIES[0]
        asked = [start for key, start, _ in store.asked if key == PREFIX + rows[0].data_key]
        assert len(asked) == len(set(asked)), "fetched twice"


def test_only_the_streams_that_are_open_count(store: Watched, rows: list[RemoteSegment]) -> None:
    remote = RemotePartition(store, PREFIX, ChunkCache(30 * CHUNK))
    before = SequentialReader(remote, lambda _: None, window_bytes_max=8 * CHUNK)
    before.close()
    before.close()
    remote.read(rows[2], 0, CHUNK)
    with closing(SequentialReader(remote, lambda _: None, window_bytes_max=8 * CHUNK)) as reader:
        assert b"".join(drained(reader, rows[:1])) == BODIES[0]
    asked = len(store.asked)
    remote.read(rows[2], 0, CHUNK)
    assert store.asked[asked:] == []


def test_a_process_ends_while_its_reading_ahead_hangs():
    code = "import threading; from remote.fetch.read_ahead import _pool; _pool().submit(threading.Event().wait)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
