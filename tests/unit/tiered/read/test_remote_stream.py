"""Streaming a remote segment: every batch whole, once and in order, for every layout of batches, cells and chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate

import pytest

from local.errors import Corrupt
from local.format.record import Record
from local.index import offset_index, time_index
from local.names import TopicPartition
from local.records.batch import encode_batch
from remote.cache.chunk_cache import ChunkCache
from remote.fetch import range_reader, read_ahead
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import ZSTD, ObjectEncoding
from remote.store import Body
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

TOPIC_ID = "A" * 22
PREFIX = f"orders-{TOPIC_ID}/0/"
PARTITION = TopicPartition("orders", 0)
CHUNK = 4096
CELL = 4 * CHUNK


class Views(MemoryStore):
    """A store that returns memory views, like a client with its own memory. `noise` names objects read with a flipped
    bit."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []
        self.given: dict[int, bytes] = {}
        self.noise: set[str] = set()

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        self.asked += ranges
        bodies = [self.get_range(key, *each) for each in ranges]
        self.given.update((id(body), body) for body in bodies)
        return [memoryview(body) for body in bodies]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        body = super().get_range(key, start, length)
        return body if key not in self.noise else body[:-1] + bytes([body[-1] ^ 1])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "RANGE_BYTES", CELL)
    sizes = {"STEP_BYTES_MIN": CHUNK, "STEP_BYTES_MAX": CELL, "WINDOW_BYTES_MIN": CHUNK}
    sizes |= {"RANGE_BYTES": CELL, "CELL_BYTES_MAX": CELL}
    for name, value in sizes.items():
        monkeypatch.setattr(read_ahead, name, value)
    monkeypatch.setattr(read_ahead, "_threads", AtOnce())


class AtOnce:
    def submit(self, act: object, *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(act(*arguments))  # type: ignore[operator]
        return done


def batches_of(sizes: Sequence[int]) -> list[bytes]:
    """One batch of three offsets for each size, of about that many bytes."""
    draw = random.Random(5)
    records = ([Record(None, draw.randbytes(max(1, size // 3)), 1000 + n) for n in range(3)] for size in sizes)
    return [encode_batch(each, base_offset=3 * at) for at, each in enumerate(records)]


def uploaded(
    store: MemoryStore,
    batches: Sequence[bytes],
    object_encoding: ObjectEncoding,
    offset_entries: bytes = b"",
    time_entries: bytes = b"",
) -> tuple[SegmentEntry, MetadataLog]:
    body, end, epochs = b"".join(batches), 3 * len(batches), ((0, 0),)
    segment = SegmentToCopy(
        base_offset=0,
        next_offset=end,
        size_bytes=len(body),
        epochs=epochs,
        offset_index=offset_entries,
        time_index=time_entries,
        read=lambda start, length: body[start : start + length],
        inspect=partial(SegmentInspector, "the.log", 0, end, epochs),
    )
    log = MetadataLog(store, PREFIX)
    log.become_writer("test", 1, topic="orders", topic_id=TOPIC_ID, partition=0, properties={})
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, object_encoding=object_encoding, chunk_bytes=CHUNK)
    log.commit(add_segments([entry]), now_ms=1)
    return entry, log


def reader_of(store: MemoryStore, log: MetadataLog, cache_bytes: int = 1 << 20) -> TieredReader:
    remote = RemotePartition(store, PREFIX, ChunkCache(cache_bytes), metadata=log)
    return TieredReader(lambda partition: PartitionSource(partition, None, remote, log))


def pieces(reader: TieredReader, start: int) -> Iterator[memoryview]:
    return reader.batches(PARTITION, start)


SHAPES = {
    "small": [300] * 400,
    "as large as a chunk": [CHUNK] * 30,
    "larger than a cell": [CELL + 700, 200, 3 * CELL, 200, 200, CELL - 50] * 2,
    "drawn": [random.Random(9).choice([100, 500, 3000, CHUNK, CELL, 2 * CELL]) for _ in range(60)],
}


@pytest.mark.parametrize("object_encoding", [ObjectEncoding(), ObjectEncoding(codec=ZSTD)], ids=["as it is", "zstd"])
@pytest.mark.parametrize("cache_bytes", [0, 3 * CELL, 1 << 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_stream_from_any_offset_returns_every_batch(
    shape: str, cache_bytes: int, object_encoding: ObjectEncoding
) -> None:
    store, batches = Views(), batches_of(SHAPES[shape])
    _, log = uploaded(store, batches, object_encoding)
    for start in (0, 1, 3, 3 * len(batches) // 2, 3 * len(batches) - 1):
        found = b"".join(pieces(reader_of(store, log, cache_bytes), start))
        assert found == b"".join(batches[start // 3 :]), f"from offset {start}"


def test_running_stream_reads_each_cell_by_one_get_without_a_copy() -> None:
    store, batches = Views(), batches_of([300] * 1000)
    entry, log = uploaded(store, batches, ObjectEncoding())
    given = list(pieces(reader_of(store, log), 0))
    late = [asked for asked in store.asked if asked[0] >= 2 * CELL]
    cells = [(at, min(CELL, entry.size_bytes - at)) for at in range(2 * CELL, entry.size_bytes, CELL)]
    assert late == cells
    assert sum(length for _, length in store.asked) == entry.size_bytes
    copied = [piece for piece in given if id(piece.obj) not in store.given]
    assert all(len(piece) < 700 for piece in copied), "only batches that cross a cell boundary may be copied"
    assert len(copied) <= len(store.asked)
    assert sum(map(len, given)) == entry.size_bytes


@pytest.mark.parametrize("object_encoding", [ObjectEncoding(), ObjectEncoding(codec=ZSTD)], ids=["as it is", "zstd"])
def test_flipped_bit_in_a_view_of_client_memory_is_found_before_delivery(
    object_encoding: ObjectEncoding,
) -> None:
    store, batches = Views(), batches_of([300] * 100)
    entry, log = uploaded(store, batches, object_encoding)
    store.noise.add(PREFIX + entry.data_key)
    with pytest.raises(Corrupt, match=entry.data_key):
        list(pieces(reader_of(store, log), 0))


@pytest.mark.parametrize("at", [8, 16, 23])  # length, magic, last offset delta
def test_malformed_batch_is_corrupt_and_earlier_batches_are_returned(at: int) -> None:
    """The chunk checksums are valid: the batch was already malformed when it was uploaded without an inspection."""
    store, batches = Views(), batches_of([300] * 20)
    spoilt = bytearray(batches[10])
    spoilt[at] ^= 0x80
    body = b"".join([*batches[:10], spoilt, *batches[11:]])
    segment = SegmentToCopy(
        base_offset=0,
        next_offset=60,
        size_bytes=len(body),
        epochs=((0, 0),),
        offset_index=b"",
        time_index=b"",
        record_count=60,
        read=lambda start, length: body[start : start + length],
    )
    log = MetadataLog(store, PREFIX)
    log.become_writer("test", 1, topic="orders", topic_id=TOPIC_ID, partition=0, properties={})
    log.commit(add_segments([copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, chunk_bytes=CHUNK)]), now_ms=1)
    got: list[memoryview] = []
    with pytest.raises(Corrupt, match=log.refresh().segments[0].data_key):
        got.extend(pieces(reader_of(store, log), 0))
    assert b"".join(got) == b"".join(batches[:10])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part_bytes", [CHUNK, 2 * CHUNK, 16 * CHUNK])
@pytest.mark.parametrize("look_bytes", [1, 2 * CHUNK, 5 * CHUNK])
def test_inspector_sees_every_batch_once_and_in_order_for_all_part_sizes(
    shape: str, part_bytes: int, look_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remote.upload import segment_upload_stream

    batches = batches_of(SHAPES[shape])
    body = b"".join(batches)
    spans = [(start, min(part_bytes, len(body) - start)) for start in range(0, len(body), part_bytes)]
    monkeypatch.setattr(segment_upload_stream, "parts_of", lambda size_bytes: spans)
    monkeypatch.setattr(segment_upload_stream, "_JOINED_BYTES", 64)
    monkeypatch.setattr(segment_upload_stream, "LOOK_BYTES", look_bytes)
    seen: list[bytes] = []

    class Seeing(SegmentInspector):
        def take(self, data: memoryview) -> int:
            taken = super().take(data)
            seen.append(bytes(data[:taken]))
            return taken

    store = MemoryStore()
    segment = SegmentToCopy(
        base_offset=0,
        next_offset=3 * len(batches),
        size_bytes=len(body),
        epochs=((0, 0),),
        offset_index=b"",
        time_index=b"",
        read=lambda start, length: body[start : start + length],
        inspect=lambda: Seeing("the.log", 0, 3 * len(batches), ((0, 0),)),
    )
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, chunk_bytes=CHUNK)
    assert b"".join(seen) == body
    assert entry.record_count == 3 * len(batches)
    assert store.get(PREFIX + entry.data_key) == body


def test_wrong_offset_index_in_the_bucket_hides_no_record(caplog: pytest.LogCaptureFixture) -> None:
    batches = batches_of([300] * 60)
    positions = list(accumulate(map(len, batches), initial=0))
    right = [(3 * at + 2, positions[at]) for at in range(1, 60, 5)]
    for slot, (offset, position) in enumerate(right):
        for moved in (1, 40, len(batches[0]) * 2):
            caplog.clear()
            told = [*right[:slot], (offset, position + moved), *right[slot + 1 :]]
            entries = b"".join(offset_index.pack(0, *each) for each in told)
            log = uploaded(store := Views(), batches, ObjectEncoding(), entries)[1]
            found = b"".join(pieces(reader_of(store, log), offset))
            assert found == b"".join(batches[offset // 3 :]), (slot, moved)
            assert ".indexes" in caplog.text


def test_wrong_time_index_in_the_bucket_hides_no_record() -> None:
    batches = [encode_batch([Record(None, b"v", 1000 + at)], base_offset=3 * at) for at in range(40)]
    positions = list(accumulate(map(len, batches), initial=0))
    offsets = b"".join(offset_index.pack(0, 3 * at, positions[at]) for at in range(2, 40, 4))
    right = [(1000 + at, 3 * at) for at in range(2, 40, 4)]
    for slot, (time_ms, offset) in enumerate(right[:-1]):
        told = [*right[:slot], (time_ms, offset + 9), *right[slot + 1 :]]
        times = b"".join(time_index.pack(0, *each) for each in told)
        reader = reader_of(store := Views(), uploaded(store, batches, ObjectEncoding(), offsets, times)[1])
        asked = range(1000, 1040)
        assert [reader.offset_for_timestamp(PARTITION, each) for each in asked] == [3 * (t - 1000) for t in asked], slot
