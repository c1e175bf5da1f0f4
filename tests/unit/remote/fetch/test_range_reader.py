"""Reading copied segments: the uploaded bytes or an error with its place; cost of a read."""

from __future__ import annotations

import random
import struct

import pytest
from remote_samples import table_of

from local.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from local.format.crc32c import crc32c
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.segments.stored_segment import (
    ChunkTable,
    combine,
    decode_bundle,
    decode_chunks,
    encode_bundle,
    encode_chunks,
)
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"
CHUNK = 4096
BODY = random.Random(7).randbytes(10 * CHUNK + 123)


def segment_of(body, **changes):
    entry = struct.Struct(">ii")
    facts = {
        "base_offset": 100,
        "next_offset": 300,
        "size_bytes": len(body),
        "record_count": 200,
        "max_timestamp_ms": 2000,
        "min_timestamp_ms": 1000,
        "epochs": ((0, 100),),
        "offset_index": entry.pack(9, 5000) + entry.pack(49, 20000) + entry.pack(99, 30000),
        "time_index": struct.pack(">qi", 1100, 9) + struct.pack(">qi", 1500, 49),
        "leader_epochs": b"0\n1\n0 100\n",
        "read": lambda start, length: body[start : start + length],
    }
    return SegmentToCopy(**{**facts, **changes})


def copied(store, body=BODY, **changes):
    return copy_segment(
        store, PREFIX, segment_of(body, **changes), epoch=1, now_ms=1_700_000_000_000, chunk_bytes=CHUNK
    )


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def partition(store):
    return RemotePartition(store, PREFIX, ChunkCache())


def damage(store, key, at=None, cut=None):
    body = bytearray(store.get(key))
    if at is not None:
        body[at] ^= 0x10
    store.put(key, bytes(body[:cut]))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_any_range_reads_the_uploaded_bytes(store):
    entry = copied(store)
    reader = RemotePartition(store, PREFIX, ChunkCache(3 * CHUNK))
    rng = random.Random(1)
    for _ in range(800):
        position, length = rng.randrange(len(BODY) + 10), rng.randrange(3 * CHUNK)
        assert bytes(reader.read(entry, position, length)) == BODY[position : position + length]
    assert bytes(reader.read(entry, 0, len(BODY))) == BODY
    assert bytes(reader.read(entry, 0, 10**9)) == BODY
    assert len(reader.read(entry, len(BODY), 1)) == 0


def test_bytes_read_are_read_only(store, partition):
    assert partition.read(copied(store), 10, 10).readonly


def test_indexes_are_read_back_and_lead_to_positions(store, partition):
    entry = copied(store)
    bundle = partition.indexes(entry)
    assert bytes(bundle.epochs) == b"0\n1\n0 100\n"
    assert bundle.chunks == table_of(BODY, CHUNK)
    assert [partition.position_of_offset(entry, offset) for offset in (100, 108, 109, 149, 250)] == [
        0,
        0,
        5000,
        20000,
        30000,
    ]
    # 1500 is reached at the entry below 1499, (1100, offset 109): an earlier record may already have 1500. The entry
    # before is the start, so one wrong entry hides no record.
    places = [partition.place_of_timestamp(entry, ts) for ts in (0, 1100, 1101, 1500, 1501)]
    assert [position for _, position in places] == [0, 0, 0, 0, 5000]


def test_a_cold_read_is_two_requests_and_a_warm_one_none(store):
    entry = copied(store)
    metered = MeteredStore(store)
    reader = RemotePartition(metered, PREFIX)
    reader.read(entry, 5000, CHUNK * 4)
    assert metered.counts().gets == 2  # indexes, one range
    reader.read(entry, 5000, 100)
    assert metered.counts().gets == 2
    reader.read(entry, 0, len(BODY))
    assert metered.counts().gets == 4  # the missing bytes are on two sides


def test_neighbouring_chunks_are_fetched_in_one_request_up_to_the_range_limit(store, monkeypatch):
    monkeypatch.setattr("remote.fetch.range_reader.RANGE_BYTES", 4 * CHUNK)
    entry = copied(store)
    metered = MeteredStore(store)
    RemotePartition(metered, PREFIX).read(entry, 0, len(BODY))
    assert metered.counts().gets == 1 + 3  # eleven chunks by four


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_raises_corrupt_with_its_place(store, partition):
    entry = copied(store)
    damage(store, PREFIX + entry.data_key, at=2 * CHUNK + 5)
    with pytest.raises(
        Corrupt, match=r"checksum differs.*start=8192 length=4096 base_offset=100 next_offset=300"
    ) as caught:
        partition.read(entry, 2 * CHUNK, 10)
    assert entry.data_key in str(caught.value)


def test_damage_in_another_chunk_does_not_disturb_a_read(store, partition):
    entry = copied(store)
    damage(store, PREFIX + entry.data_key, at=2 * CHUNK + 5)
    assert bytes(partition.read(entry, 0, 2 * CHUNK)) == BODY[: 2 * CHUNK]  # the damage was in the read-ahead
    assert bytes(partition.read(entry, 3 * CHUNK, len(BODY))) == BODY[3 * CHUNK :]
    with pytest.raises(Corrupt):
        partition.read(entry, 2 * CHUNK + 4000, 1)


def test_a_bit_flipped_in_transit_is_fetched_again(store):
    entry = copied(store)

    class Noisy(MemoryStore):
        noise = 1

        def get(self, key):
            return store.get(key)

        def get_ranges(self, key, ranges):
            return [self.get_range(key, *each) for each in ranges]

        def get_range(self, key, start, length):
            body = bytearray(store.get_range(key, start, length))
            if self.noise:
                self.noise -= 1
                body[7] ^= 1
            return bytes(body)

    assert bytes(RemotePartition(Noisy(), PREFIX).read(entry, 0, len(BODY))) == BODY


@pytest.mark.parametrize("keep", [0, 1])
def test_a_change_of_any_byte_raises_corrupt(store, keep):
    entry = copied(store)
    whole = store.get(PREFIX + entry.data_key)
    for at in range(keep, len(whole), 997):
        damaged = MemoryStore()
        damaged.put(PREFIX + entry.indexes_key, store.get(PREFIX + entry.indexes_key))
        damaged.put(PREFIX + entry.data_key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Corrupt):
            RemotePartition(damaged, PREFIX).read(entry, at, 1)


def test_a_short_object_raises_corrupt_in_its_missing_part_only(store, partition):
    entry = copied(store)
    damage(store, PREFIX + entry.data_key, cut=5 * CHUNK + 1)
    assert bytes(partition.read(entry, 0, 5 * CHUNK)) == BODY[: 5 * CHUNK]
    with pytest.raises(Corrupt, match=r"its object is too short.*start=20480.*base_offset=100"):
        partition.read(entry, 4 * CHUNK, 2 * CHUNK)


def test_a_missing_object_raises_not_found(store, partition):
    entry = copied(store)
    store.delete([PREFIX + entry.data_key])
    with pytest.raises(NotFound, match="data/"):
        partition.read(entry, 0, 1)
    store.delete([PREFIX + entry.indexes_key])
    with pytest.raises(NotFound):
        RemotePartition(store, PREFIX).indexes(entry)


def test_damage_to_any_byte_of_the_indexes_raises_corrupt(store):
    entry = copied(store)
    whole = store.get(PREFIX + entry.indexes_key)
    for at in range(len(whole)):
        damaged = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        with pytest.raises(Corrupt):
            decode_bundle(damaged)
        with pytest.raises(Corrupt):
            decode_bundle(whole[:at])
    store.put(PREFIX + entry.indexes_key, damaged)
    with pytest.raises(Corrupt, match=r"object=.*indexes base_offset=100 next_offset=300"):
        RemotePartition(store, PREFIX).indexes(entry)


def test_indexes_of_another_segment_are_refused(store):
    entry, other = copied(store), copied(store, BODY[::-1])
    assert entry.indexes_bytes == other.indexes_bytes
    store.put(PREFIX + entry.indexes_key, store.get(PREFIX + other.indexes_key))
    with pytest.raises(Corrupt, match="another remote segment"):
        RemotePartition(store, PREFIX).read(entry, 0, 1)


def test_a_partition_without_a_manifest_raises_not_found(partition):
    with pytest.raises(NotFound, match="no manifest"):
        partition.manifest()


# --- copying ----------------------------------------------------------------------------------------------------------


def test_a_copy_has_its_facts_its_names_and_its_checksum(store):
    entry = copied(store, cleaned_through=300)
    assert store.get(PREFIX + entry.data_key) == BODY
    assert entry.data_crc32c == crc32c(BODY)
    assert entry.size_bytes == entry.stored_bytes == len(BODY)
    assert entry.indexes_bytes == store.head(PREFIX + entry.indexes_key).size_bytes
    assert entry.data_key.startswith("data/00000000000000000100-00000000000000000299-0000000001-")
    assert entry.cleaned_through == 300
    where = entry.indexes["epochs"]
    assert store.get_range(PREFIX + entry.indexes_key, where.start, where.length) == b"0\n1\n0 100\n"


def test_every_attempt_of_a_copy_has_new_object_names(store):
    assert copied(store).data_key != copied(store).data_key


def test_a_copy_costs_two_put_and_two_head_requests(store):
    metered = MeteredStore(store)
    copied(metered)
    assert (metered.counts().puts, metered.counts().gets) == (2, 2)


def test_progress_of_a_copy_adds_up_to_its_size(store):
    told = []
    segment = segment_of(BODY)
    copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, chunk_bytes=CHUNK, progress=told.append)
    assert sum(told) == len(BODY)


@pytest.mark.parametrize("changes", [{"size_bytes": 0}, {"next_offset": 100}])
def test_copying_an_empty_segment_is_refused(store, changes):
    with pytest.raises(InvalidRequest, match="empty"):
        copied(store, **changes)


def test_copying_a_segment_shorter_than_declared_raises_corrupt_and_leaves_no_object(store):
    with pytest.raises(Corrupt, match="short"):
        copied(store, size_bytes=len(BODY) + 1)
    assert list(store.list("")) == []


def test_copying_a_segment_that_changes_between_two_reads_raises_corrupt(store):
    class ReadsTwice(MemoryStore):
        def upload(self, key, source):
            b"".join(source.parts())
            super().upload(key, source)

    reads = iter([BODY, BODY[:-1] + b"!"])
    with pytest.raises(Corrupt, match="cannot copy a segment, its file changed"):
        copied(ReadsTwice(), read=lambda start, length: next(reads)[start : start + length])


def test_an_upload_missing_in_the_store_raises_unavailable_and_is_deleted(store):
    class Forgetful(MemoryStore):
        def upload(self, key, source):
            b"".join(source.parts())

    forgetful = Forgetful()
    with pytest.raises(Unavailable, match="the uploaded object does not exist"):
        copied(forgetful)
    assert list(forgetful.list("")) == []


def test_an_upload_that_lost_a_part_raises_unavailable_and_is_deleted():
    class Cutting(MemoryStore):
        def upload(self, key, source):
            self.put(key, b"".join(source.parts())[:-5])

    cutting = Cutting()
    with pytest.raises(Unavailable, match=r"size differs.*expected_bytes=41083 found_bytes=41078"):
        copied(cutting)
    assert list(cutting.list("")) == []


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_chunk_table_decodes_to_itself_and_has_the_whole_checksum(size):
    table = table_of(BODY[:size], CHUNK)
    assert decode_chunks(encode_chunks(table)) == table
    assert table.whole_crc == crc32c(BODY[:size])


def test_a_chunk_table_has_golden_bytes():
    table = ChunkTable(lengths=(4, 1), crcs=(1, 0xFFFFFFFE))
    golden = bytes.fromhex("0002 00 00 00000002 0000000000000005 0000000000000005 00000004 00000001 00000001 fffffffe")
    assert encode_chunks(table) == golden
    for wrong in (
        golden[:-1],
        golden + b"\0",
        golden[:19],
        b"\0\1" + golden[2:],
        golden[:2] + b"\2" + golden[3:],
        golden[:3] + b"\1" + golden[4:],
        golden[:15] + b"\6" + golden[16:],
        golden[:23] + b"\6" + golden[24:],
        golden[:24] + b"\0\0\0\5\0\0\0\0" + golden[32:],
    ):
        with pytest.raises(Corrupt):
            decode_chunks(wrong)


def test_an_index_bundle_has_a_golden_start_and_end():
    bundle = decode_bundle(encode_bundle(decode_bundle(_bundle()))[0])
    assert (bytes(bundle.offset), bytes(bundle.txn), bundle.chunks.size_bytes) == (b"oo", b"", 5)
    assert _bundle().startswith(b"oottpe\0\2\0\0")
    assert _bundle().endswith(b"TIERIDX\n")


def _bundle():
    from remote.segments.stored_segment import IndexBundle

    table = ChunkTable(lengths=(4, 1), crcs=(1, 2))
    return encode_bundle(IndexBundle(offset=b"oo", time=b"tt", txn=b"", producers=b"p", epochs=b"e", chunks=table))[0]


def test_checksums_of_pieces_of_any_sizes_combine():
    rng = random.Random(3)
    for _ in range(20):
        size, step = rng.randrange(1, 20000), rng.randrange(1, 5000)
        pieces = [BODY[:size][at : at + step] for at in range(0, size, step)]
        assert combine([crc32c(each) for each in pieces], [len(each) for each in pieces]) == crc32c(BODY[:size])


def test_the_chunk_cache_never_holds_more_bytes_alive_than_its_limit(store):
    entry = copied(store)
    alive = []

    class Body(bytes):
        def __del__(self):
            alive.remove(len(self))

    class Watched(MemoryStore):
        def get(self, key):
            return store.get(key)

        def get_ranges(self, key, ranges):
            bodies = [Body(store.get_range(key, *each)) for each in ranges]
            alive.extend(map(len, bodies))
            return bodies

    cache = ChunkCache(5 * CHUNK)
    reader = RemotePartition(Watched(), PREFIX, cache)
    rng = random.Random(5)
    for _ in range(300):
        position, length = rng.randrange(len(BODY)), rng.randrange(3 * CHUNK)
        assert bytes(reader.read(entry, position, length)) == BODY[position : position + length]
        assert sum(alive) <= cache.size_bytes <= 5 * CHUNK


def test_a_read_inside_one_fetch_copies_no_bytes(store):
    entry = copied(store)
    bodies = []

    class Watched(MemoryStore):
        def get(self, key):
            return store.get(key)

        def get_ranges(self, key, ranges):
            bodies.extend(store.get_range(key, *each) for each in ranges)
            return bodies[-len(ranges) :]

    reader = RemotePartition(Watched(), PREFIX)
    for position, length in ((0, 7 * CHUNK), (100, 5 * CHUNK), (2 * CHUNK, CHUNK)):
        found = reader.read(entry, position, length)
        assert found.obj is bodies[0]
        assert bytes(found) == BODY[position : position + length]
    reader.read(entry, 0, len(BODY))
    assert len(bodies) == 2
    assert bytes(reader.read(entry, 6 * CHUNK, 3 * CHUNK)) == BODY[6 * CHUNK : 9 * CHUNK]  # across two fetched bodies
