"""Object encoding round trips: any bytes, batch boundaries, encoding and chunk size are read back in any ranges."""

from __future__ import annotations

import base64
from contextlib import suppress
from functools import cache
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_profile import examples

from local.errors import AccessDenied, Corrupt
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.segments.encryption import INDEXES_MAGIC, KeyRing
from remote.segments.stored_segment import (
    AES_256_GCM,
    PLAIN,
    RAW,
    ZSTD,
    ChunkTable,
    ObjectEncoding,
    decode_chunks,
    open_chunk,
)
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from remote.upload.segment_upload_stream import SegmentFacts

KEYS = KeyRing({"k": bytes(range(32))})
CALM = settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PREFIX = f"t-{'A' * 22}/0/"


class Cuts:
    """A stub inspector that accepts a segment up to given ends of batches."""

    def __init__(self, ends):
        self.ends = ends
        self.at = 0

    def take(self, data):
        whole = [end for end in self.ends if self.at < end <= self.at + len(data)]
        taken = whole[-1] - self.at if whole else 0
        self.at += taken
        return taken

    def facts(self):
        return SegmentFacts(
            record_count=len(self.ends), first_offset=0, last_offset=9, max_timestamp_ms=None, min_timestamp_ms=None
        )


@cache
def soil():
    return bytes(at * at % 251 for at in range(4000)) + b"abc" * 4000


@CALM
@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=30),
    st.sampled_from([RAW, ZSTD]),
    st.sampled_from([None, "k"]),
    st.integers(1, 2000),
    st.integers(0, 4000),
    st.lists(st.tuples(st.integers(0, 12_000), st.integers(0, 12_000)), max_size=6),
)
def test_an_encoded_segment_is_read_back_in_any_ranges(batches, codec, key_id, chunk_bytes, start, ranges):
    ends = tuple(accumulate(batches))
    body = soil()[start : start + ends[-1]]
    ends = (*(end for end in ends if end < len(body)), len(body))
    segment = SegmentToCopy(
        base_offset=0,
        next_offset=10,
        size_bytes=len(body),
        epochs=((0, 0),),
        offset_index=b"",
        time_index=b"",
        read=lambda at, length: body[at : at + length],
        inspect=lambda: Cuts(ends),
    )
    store = MemoryStore()
    kept = ObjectEncoding(codec=codec, key_id=key_id, keys=KEYS)
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, object_encoding=kept, chunk_bytes=chunk_bytes)
    reader = RemotePartition(store, PREFIX, ChunkCache(5000), keys=KEYS)
    table = reader.indexes(entry).chunks
    assert (entry.size_bytes, entry.record_count) == (len(body), len(ends))
    assert entry.stored_bytes == len(store.get(PREFIX + entry.data_key))
    chunks = [table.chunk_range(number) for number in range(len(table))]
    if not table.is_as_it_is:
        assert {at for at, _ in chunks} <= {0, *ends}, "chunks must begin at batch boundaries"
        assert all(length <= chunk_bytes or at + length in ends for at, length in chunks)
    for at, length in (*ranges, (0, len(body))):
        assert bytes(reader.read(entry, at, length)) == body[at : at + length]


@CALM
@given(st.binary(max_size=400), st.binary(max_size=60), st.integers(0, 3))
def test_hostile_bytes_in_an_encoded_object_are_corrupt(stored, header, number):
    """Chunk tables, chunks, encrypted indexes and wrapped keys with arbitrary bytes from the bucket."""
    cipher = KEYS.new_object("k", "stem")[0]
    for manifest in (b"", bytes.fromhex("0002 00 00 00000001"), bytes.fromhex("0002 01 01 00000002")):
        with suppress(Corrupt):
            decode_chunks(manifest + header)
    for codec, kind in ((ZSTD, PLAIN), (RAW, AES_256_GCM), (ZSTD, AES_256_GCM)):
        sizes = {"lengths": (50,) * 4, "crcs": (0,) * 4, "stored_lengths": (9,) * 4, "stored_crcs": (0,) * 4}
        table = ChunkTable(**sizes, codec=codec, cipher=kind)
        with pytest.raises(Corrupt):
            open_chunk(table, number, stored, cipher)
    for hostile in (stored, INDEXES_MAGIC + stored):
        with pytest.raises(Corrupt):
            cipher.open_indexes(hostile)
    for wrapped in (stored.decode("latin-1"), base64.b64encode(stored).decode()):
        with pytest.raises(AccessDenied):
            KEYS.open_object("k", wrapped, "stem")
