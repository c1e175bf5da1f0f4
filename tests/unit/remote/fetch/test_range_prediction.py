"""Cold reads by offset: sequential requests, predicted ranges, and pauses after wrong ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_range_reader import PREFIX, segment_of

from local.errors import Corrupt
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import REST, WRONG_MAX, RangePredictor, RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import CHUNK_BYTES
from remote.store import Body, GetRange, ObjectInfo
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment

SIZE = 9 * CHUNK_BYTES + 77
BODY = random.Random(11).randbytes(SIZE)
COUNT = 100_000  # offsets


class Turns(MemoryStore):
    """Counts sequential requests: requests that are sent together are one turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[str] = []
        self.asked: list[tuple[int, int]] = []
        self._inside = False

    def _turn(self, verb: str) -> None:
        if not self._inside:
            self.turns.append(verb)

    def get(self, key: str) -> bytes:
        self._turn("get")
        return super().get(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self._turn("get_ranges")
        self.asked += ranges
        return super().get_ranges(key, ranges)

    def get_each(self, asked: Sequence[GetRange]) -> Sequence[Body | None]:
        self._turn(f"{len(asked)} at once")
        self._inside = True
        try:
            return super().get_each(asked)
        finally:
            self._inside = False

    def list(self, prefix: str, *, start_after: str = "") -> list[ObjectInfo]:  # type: ignore[override]
        self._turn("list")
        return list(super().list(prefix, start_after=start_after))


def offset_index(places: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">ii", *each) for each in places)


def even(position: int) -> int:
    """The offset at a byte position when all records have the same size."""
    return position * COUNT // SIZE


@pytest.fixture
def store() -> Turns:
    return Turns()


def kept(store: MemoryStore, places: Sequence[tuple[int, int]], **changes: object) -> SegmentEntry:
    """A committed segment with this offset index."""
    facts = {"base_offset": 0, "next_offset": COUNT, "epochs": ((0, 0),), "offset_index": offset_index(places)}
    segment = segment_of(BODY, **{**facts, **changes})
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0)
    log = MetadataLog(store, PREFIX)
    log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
    log.commit(add_segments([entry]), now_ms=0)
    return entry


EVEN = [(even(at), at) for at in range(4096, SIZE, 4096)]


def look(partition: RemotePartition, offset: int) -> bytes:
    entry = partition.manifest().segments[0]
    return bytes(partition.read(entry, partition.position_of_offset(entry, offset), 4096))


def test_a_prediction_saves_one_of_five_sequential_requests_of_a_cold_read(store: Turns) -> None:
    kept(store, EVEN)
    for guesses, turns in (
        (RangePredictor(), ["list", "2 at once", "get", "2 at once"]),
        (None, ["list", "2 at once", "get", "get", "get_ranges"]),
    ):
        store.turns.clear()
        partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=guesses)
        assert look(partition, COUNT // 2) in BODY
        assert store.turns == turns


@pytest.mark.parametrize("place", [0, 1, 4095, CHUNK_BYTES, SIZE // 2, SIZE - 5000, SIZE - 1])
def test_a_predicted_range_is_read_without_another_request_and_is_correct(store: Turns, place: int) -> None:
    entry = kept(store, EVEN)
    partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=RangePredictor())
    partition.manifest()
    store.turns.clear()
    position = partition.position_of_offset(entry, even(place))
    assert bytes(partition.read(entry, position, 4096)) == BODY[position : position + 4096]
    assert store.turns == ["2 at once"]
    assert all(start % CHUNK_BYTES == 0 for start, _ in store.asked)
    assert sum(length for _, length in store.asked) <= 3 * CHUNK_BYTES


def test_a_wrong_prediction_costs_one_request_and_returns_no_wrong_byte(store: Turns) -> None:
    """All records except the first few are in the last chunk."""
    places = [(at, SIZE - COUNT + at) for at in range(1000, COUNT, 1000)]
    entry = kept(store, places)
    partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=RangePredictor())
    partition.manifest()
    store.turns.clear()
    position = partition.position_of_offset(entry, 5000)
    assert bytes(partition.read(entry, position, 4096)) == BODY[position : position + 4096]
    assert store.turns == ["2 at once", "get_ranges"]


def test_wrong_predictions_stop_predicting_for_a_while(store: Turns) -> None:
    entry = kept(store, [(at, SIZE - COUNT + at) for at in range(1000, COUNT, 1000)])
    guesses, guessed = RangePredictor(), []
    for _ in range(WRONG_MAX + 1 + REST + 1):
        partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=guesses)
        store.turns.clear()
        partition.position_of_offset(entry, 5000)
        guessed.append(store.turns == ["2 at once"])
    assert guessed == [True] * (WRONG_MAX + 1) + [False] * REST + [True]


def test_a_damaged_predicted_range_is_never_returned(store: Turns) -> None:
    entry = kept(store, EVEN)
    broken = bytearray(BODY)
    for at in range(0, SIZE, CHUNK_BYTES):
        broken[at + 3] ^= 1
    store.put(PREFIX + entry.data_key, bytes(broken))
    partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=RangePredictor())
    position = partition.position_of_offset(entry, COUNT // 2)
    with pytest.raises(Corrupt):
        partition.read(entry, position, 4096)


def test_missing_and_short_objects_raise_the_same_errors_as_without_a_prediction(store: Turns) -> None:
    entry = kept(store, EVEN)
    store.put(PREFIX + entry.data_key, BODY[: SIZE // 2])
    partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=RangePredictor())
    position = partition.position_of_offset(entry, COUNT * 3 // 4)
    with pytest.raises(Corrupt, match="short"):
        partition.read(entry, position, 4096)
    damaged = bytearray(store.get(PREFIX + entry.indexes_key))
    damaged[20] ^= 1
    store.put(PREFIX + entry.indexes_key, bytes(damaged))
    with pytest.raises(Corrupt):
        RemotePartition(store, PREFIX, ChunkCache(), guesses=RangePredictor()).position_of_offset(entry, 5)


def test_a_prediction_with_another_chunk_size_is_discarded_and_counts_as_wrong(store: Turns) -> None:
    segment = segment_of(BODY, base_offset=0, next_offset=COUNT, epochs=((0, 0),), offset_index=offset_index(EVEN))
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, chunk_bytes=3 * CHUNK_BYTES // 2)
    guesses = RangePredictor()
    for _ in range(WRONG_MAX + 1):
        partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=guesses)
        position = partition.position_of_offset(entry, even(4 * CHUNK_BYTES))
        assert bytes(partition.read(entry, position, 4096)) == BODY[position : position + 4096]
    assert guesses.guess(entry, 5) is None


def test_nothing_is_predicted_for_variable_chunks_or_cached_indexes(store: Turns) -> None:
    entry = kept(store, EVEN)
    guesses = RangePredictor()
    for changes in ({"codec": "zstd"}, {"key_id": "k"}):
        assert guesses.guess(replace(entry, **changes), 5) is None
    partition = RemotePartition(store, PREFIX, ChunkCache(), guesses=guesses)
    partition.indexes(entry)
    store.asked.clear()
    partition.position_of_offset(entry, COUNT // 2)
    assert store.asked == []
