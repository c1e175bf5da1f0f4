"""Compressed and encrypted segments: round trips, other tools, and damage that is refused."""

from __future__ import annotations

import base64
import io
import random
import shutil
import struct
import subprocess
from dataclasses import replace

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from remote_samples import manifest

from local.errors import AccessDenied, Corrupt, InvalidRequest, Unavailable
from local.format.crc32c import crc32c
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.keys import parse_data_key
from remote.manifest.manifest_changes import add_segments
from remote.segment_entry import PART_BYTES
from remote.segments.encryption import INDEXES_MAGIC, STEM_BINDING, KeyRing, ObjectCipher, parse_key_ring
from remote.segments.stored_segment import (
    AES_256_GCM,
    RAW,
    ZSTD,
    ChunkTable,
    ObjectEncoding,
    Seal,
    decode_bundle,
    decode_chunks,
    encode_chunks,
    open_chunk,
)
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from remote.upload.segment_upload_stream import SegmentFacts

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"
CHUNK = 4096
KEYS = KeyRing({"2026-a": bytes(range(32)), "2026-b": bytes(range(32, 64))})
MODES = {
    "none": ObjectEncoding(),
    "zstd": ObjectEncoding(codec=ZSTD),
    "encrypted": ObjectEncoding(key_id="2026-a", keys=KEYS),
    "zstd, encrypted": ObjectEncoding(codec=ZSTD, level=1, key_id="2026-b", keys=KEYS),
}
SEALED = {name: mode for name, mode in MODES.items() if name != "none"}


def batches(count=200, seed=5, size=600):
    """A body of "batches" for the inspector below: int32 length, then as many bytes, which compress well."""
    rng, out = random.Random(seed), []
    for _ in range(count):
        body = (rng.randbytes(20) * (size // 20 + 1))[: rng.randrange(1, size)]
        out.append(struct.pack(">i", len(body)) + body)
    return out


class Watch:
    """Counts such batches; refuses one of length 0."""

    def __init__(self):
        self.count = 0

    def take(self, data):
        at = 0
        while at + 4 <= len(data):
            (length,) = struct.unpack_from(">i", data, at)
            if length == 0:
                raise Corrupt("cannot copy a segment, an empty batch", at=at)
            if at + 4 + length > len(data):
                break
            at += 4 + length
            self.count += 1
        return at

    def facts(self):
        return SegmentFacts(
            record_count=self.count, first_offset=100, last_offset=299, max_timestamp_ms=9, min_timestamp_ms=1
        )


def segment_of(body, **changes):
    facts = {
        "base_offset": 100,
        "next_offset": 300,
        "size_bytes": len(body),
        "epochs": ((0, 100),),
        "offset_index": b"o" * 8,
        "time_index": b"t" * 12,
        "producer_snapshot": b"customer 4711",
        "read": lambda start, length: body[start : start + length],
        "inspect": Watch,
    }
    return SegmentToCopy(**{**facts, **changes})


def copied(store, mode, body, **changes):
    segment = segment_of(body, **changes)
    return copy_segment(
        store, PREFIX, segment, epoch=1, now_ms=1_700_000_000_000, object_encoding=mode, chunk_bytes=CHUNK
    )


def reader(store, keys=KEYS, **more):
    return RemotePartition(store, PREFIX, ChunkCache(), keys=keys, **more)


BATCHES = batches()
BODY = b"".join(BATCHES)
STARTS = {sum(map(len, BATCHES[:at])) for at in range(len(BATCHES) + 1)}


@pytest.fixture
def store():
    return MemoryStore()


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_any_range_of_an_encoded_segment_reads_the_uploaded_bytes(store, mode):
    entry = copied(store, mode, BODY)
    partition = RemotePartition(store, PREFIX, ChunkCache(3 * CHUNK), keys=KEYS)
    rng = random.Random(1)
    for _ in range(400):
        position, length = rng.randrange(len(BODY) + 10), rng.randrange(3 * CHUNK)
        assert bytes(partition.read(entry, position, length)) == BODY[position : position + length]
    assert bytes(partition.read(entry, 0, 10**9)) == BODY
    assert bytes(partition.indexes(entry).producers) == b"customer 4711"


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("size", [1, 5, CHUNK, 3 * CHUNK + 1])
def test_one_batch_of_any_size_is_read_back(store, mode, size):
    body = struct.pack(">i", size) + b"z" * size
    entry = copied(store, mode, body)
    assert bytes(reader(store).read(entry, 0, len(body))) == body
    assert entry.record_count == 1


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_an_entry_describes_the_encoding_of_its_object(store, mode):
    entry = copied(store, mode, BODY)
    stored = store.get(PREFIX + entry.data_key)
    assert (entry.size_bytes, entry.content_crc32c) == (len(BODY), crc32c(BODY))
    assert (entry.stored_bytes, entry.data_crc32c) == (len(stored), crc32c(stored))
    assert entry.codec == ("zstd" if mode.codec == ZSTD else "none")
    assert (entry.key_id, entry.wrapped_key is None) == (mode.key_id, mode.key_id is None)
    suffix = ".log" + (".zst" if mode.codec == ZSTD else "") + (".enc" if mode.key_id else "")
    assert entry.data_key.endswith(entry.ulid + suffix)
    assert parse_data_key(entry.data_key).suffix == suffix
    assert (stored == BODY) == (mode == ObjectEncoding())


@pytest.mark.parametrize("mode", SEALED.values(), ids=SEALED)
def test_chunks_begin_at_batches_and_are_as_large_as_fits(store, mode):
    table = reader(store).indexes(copied(store, mode, BODY)).chunks
    starts = [table.chunk_range(at)[0] for at in range(len(table))]
    assert set(starts) <= STARTS
    assert len(table) > 5
    assert all(CHUNK - 604 < length <= CHUNK for length in table.lengths[:-1])


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_large_segment_is_uploaded_in_parts(mode):
    parts = []

    class Watching(MemoryStore):
        def upload(self, key, source):
            parts.extend(source.parts())
            self.put(key, b"".join(parts))

    store = Watching()
    body = random.Random(1).randbytes(2 * PART_BYTES + 12345)
    segment = segment_of(body, inspect=None, record_count=1)
    entry = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, object_encoding=mode)
    assert [len(part) for part in parts[:-1]] == [PART_BYTES] * 2
    assert bytes(reader(store).read(entry, 7 * 10**6, 10**7)) == body[7 * 10**6 : 17 * 10**6]


def test_reading_a_range_fetches_only_its_chunks(store):
    entry = copied(store, MODES["zstd"], BODY)
    metered = MeteredStore(store)
    partition = reader(metered)
    table = partition.indexes(entry).chunks
    before = metered.counts()
    partition.read(entry, table.chunk_range(3)[0] + 5, 10)
    spent = metered.counts() - before
    assert (spent.gets, spent.bytes_out) == (1, table.stored_range(3)[1])


# --- compression ------------------------------------------------------------------------------------------------------


def test_other_decoders_open_the_whole_object(store, tmp_path):
    entry = copied(store, MODES["zstd"], BODY)
    stored = store.get(PREFIX + entry.data_key)
    assert len(stored) < len(BODY) // 2
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored), read_across_frames=True).read() == BODY
    if (tool := shutil.which("zstd")) is not None:
        (tmp_path / "x.log.zst").write_bytes(stored)
        subprocess.run([tool, "-q", "-d", str(tmp_path / "x.log.zst")], check=True)
        assert (tmp_path / "x.log").read_bytes() == BODY


@pytest.mark.parametrize("keyed", [False, True])
def test_data_that_does_not_shrink_is_stored_uncompressed(store, keyed):
    body = struct.pack(">i", 50_000) + random.Random(2).randbytes(50_000)
    entry = copied(store, ObjectEncoding(codec=ZSTD, key_id="2026-a" if keyed else None, keys=KEYS), body)
    assert entry.codec == "none"
    assert entry.data_key.endswith(".log.enc" if keyed else ".log")
    assert bytes(reader(store).read(entry, 0, len(body))) == body


def test_a_frame_larger_than_its_chunk_raises_corrupt_before_it_is_inflated():
    bomb = Seal(codec=ZSTD).close(0, bytes(1 << 20))
    table = ChunkTable(lengths=(10,), crcs=(crc32c(bytes(10)),), stored_lengths=(len(bomb),), stored_crcs=(0,), codec=1)
    with pytest.raises(Corrupt):
        open_chunk(table, 0, bomb, None)


def test_a_compression_level_out_of_range_is_refused():
    with pytest.raises(InvalidRequest, match="level"):
        ObjectEncoding(codec=ZSTD, level=99)


# --- encryption -------------------------------------------------------------------------------------------------------


def test_an_encrypted_segment_has_no_plaintext_in_the_bucket(store):
    copied(store, MODES["encrypted"], BODY)
    for info in store.list(""):
        stored = store.get(info.key)
        assert b"customer 4711" not in stored
        assert BATCHES[0][4:24] not in stored


def test_every_object_has_a_data_key_of_its_own(store):
    one, other = copied(store, MODES["encrypted"], BODY), copied(store, MODES["encrypted"], BODY)
    assert one.wrapped_key != other.wrapped_key
    assert store.get(PREFIX + one.data_key) != store.get(PREFIX + other.data_key)


@pytest.mark.parametrize("name", SEALED)
def test_any_flipped_bit_of_an_encoded_segment_raises_corrupt(store, name):
    entry = copied(store, MODES[name], BODY[:9000], inspect=None, record_count=1)
    for key in (PREFIX + entry.data_key, PREFIX + entry.indexes_key):
        whole = store.get(key)
        for at in range(0, len(whole), max(1, len(whole) // 400)):
            store.put(key, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with pytest.raises(Corrupt):
                reader(store).read(entry, 0, 9000)
        store.put(key, whole)
    assert bytes(reader(store).read(entry, 0, 9000)) == BODY[:9000]


@pytest.mark.parametrize("name", ["encrypted", "zstd, encrypted"])
@pytest.mark.parametrize("damage", ["flip", "swap", "cut", "another object's"])
def test_forged_encrypted_chunks_are_refused_even_with_fitting_checksums(store, name, damage):
    """An attacker can write to the bucket but has no key, and forges the chunk table."""
    entry, other = (copied(store, MODES[name], BODY) for _ in range(2))
    partition = reader(store)
    table, stored = partition.indexes(entry).chunks, store.get(PREFIX + entry.data_key)
    chunks = [stored[start : start + length] for start, length in map(table.stored_range, range(len(table)))]
    match damage:
        case "flip":
            chunks[2] = chunks[2][:-1] + bytes([chunks[2][-1] ^ 1])
        case "swap":
            chunks[1], chunks[2] = chunks[2], chunks[1]
        case "cut":
            chunks[2] = chunks[2][:-1]
        case _:
            start, length = partition.indexes(other).chunks.stored_range(2)
            chunks[2] = store.get(PREFIX + other.data_key)[start : start + length]
    forged = replace(table, stored_lengths=tuple(map(len, chunks)), stored_crcs=tuple(map(crc32c, chunks)))
    cipher = KEYS.open_object(entry.key_id, entry.wrapped_key, PREFIX + entry.data_key)
    with pytest.raises(Corrupt, match="the authentication tag does not match"):
        open_chunk(forged, 2, chunks[2], cipher)
    assert open_chunk(forged, 0, chunks[0], cipher) == BODY[: table.lengths[0]]


@pytest.mark.parametrize("mode", SEALED.values(), ids=SEALED)
def test_a_truncated_object_raises_corrupt_in_its_missing_part_only(store, mode):
    entry = copied(store, mode, BODY)
    key = PREFIX + entry.data_key
    store.put(key, store.get(key)[:-1])
    assert bytes(reader(store).read(entry, 0, 10)) == BODY[:10]
    with pytest.raises(Corrupt, match=r"its object is too short.*object=.*base_offset=100"):
        reader(store).read(entry, 0, len(BODY))


@pytest.mark.parametrize(
    ("ring", "words"),
    [
        (KeyRing({}), r"not in the key ring: key_id=2026-a object=\d{20}-\S+$"),
        (KeyRing({"other": bytes(32)}), r"not in the key ring: key_id=2026-a object=\S+ there_are=other$"),
        (
            KeyRing({"2026-a": bytes(32)}),
            r"the key of this id is not the key that encrypted it: key_id=2026-a object=\d{20}-\S+$",
        ),
    ],
)
def test_a_missing_or_wrong_key_raises_access_denied_with_its_id_and_the_object(store, ring, words):
    entry = copied(store, MODES["encrypted"], BODY)
    with pytest.raises(AccessDenied, match=words) as caught:
        reader(store, ring).read(entry, 0, 1)
    assert "\n" not in str(caught.value)


def test_encrypting_with_a_missing_key_sends_no_object(store):
    with pytest.raises(AccessDenied, match="key_id=2027"):
        copied(store, ObjectEncoding(key_id="2027", keys=KEYS), BODY)
    assert list(store.list("")) == []


def test_key_rotation_changes_entries_and_no_object(store):
    entry = copied(store, MODES["encrypted"], BODY)
    name = PREFIX + entry.data_key
    rewrapped = KEYS.rewrapped("2026-a", entry.wrapped_key, name, "2026-b")
    rotated = replace(entry, key_id="2026-b", wrapped_key=rewrapped)
    only_new = KeyRing({"2026-b": bytes(range(32, 64))})
    assert bytes(reader(store, only_new).read(rotated, 0, len(BODY))) == BODY
    with pytest.raises(AccessDenied):
        only_new.open_object("2026-b", rewrapped, name.replace("100", "101"))


def test_a_key_ring_never_shows_a_key():
    ring = parse_key_ring(["# comment", "", f"one {base64.b64encode(b'k' * 32).decode()}"], "keys")
    assert "one" in ring
    assert repr(ring) == "KeyRing(one)"
    for wrong in ("one", "one two three", "one !!", "one aGVsbG8=", "o/e " + "A" * 43 + "="):
        with pytest.raises(InvalidRequest, match=r"file=keys line=2") as caught:
            parse_key_ring(["", wrong], "keys")
        assert "aGVsbG8" not in str(caught.value)


# --- known answers ----------------------------------------------------------------------------------------------------

STEM = "00000000000000000100-00000000000000000299-0000000001-01HF0000000000000000000000"


NAME = f"{PREFIX}data/{STEM}.log.enc"


def test_sealed_bytes_are_bound_to_the_whole_name_and_wrapped_by_a_derived_key():
    key, data_key = bytes(range(32)), bytes(range(100, 132))
    cipher = ObjectCipher(data_key, NAME)
    chunk, indexes = cipher.seal_chunk(3, b"hello"), cipher.seal_indexes(b"hello")
    assert chunk == AESGCM(data_key).encrypt(bytes(11) + b"\3", b"hello", f"tiered chunk 2 {NAME} 3".encode())
    told = f"tiered indexes 2 {NAME}".encode()
    assert indexes == INDEXES_MAGIC + AESGCM(data_key).encrypt(b"\0\0\0\1" + bytes(8), b"hello", told)
    wrap = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tiered wrap 2").derive(key)
    nonce = bytes(range(12))
    for binding, opened_as in ((2, f"tiered chunk 2 {NAME} 0"), (1, f"tiered chunk {STEM} 0")):
        body = nonce + AESGCM(wrap).encrypt(nonce, data_key, f"tiered key 2 {binding} {NAME} 2026-a".encode())
        opened = KEYS.open_object("2026-a", f"2:{binding}:{base64.b64encode(body).decode()}", NAME)
        assert opened.open_chunk(0, AESGCM(data_key).encrypt(bytes(12), b"x", opened_as.encode())) == b"x"
    assert KEYS.new_object("2026-a", NAME)[1].startswith("2:2:")


def test_older_sealed_bytes_are_plain_aes_gcm_with_the_documented_nonce_and_data():
    key = bytes(range(32))
    cipher = ObjectCipher(key, NAME, STEM_BINDING)
    sealed = cipher.seal_chunk(3, b"hello")
    assert sealed == AESGCM(key).encrypt(bytes(11) + b"\3", b"hello", f"tiered chunk {STEM} 3".encode())
    assert sealed.hex() == KNOWN_CHUNK
    indexes = cipher.seal_indexes(b"hello")
    told = f"tiered indexes {STEM}".encode()
    assert indexes == INDEXES_MAGIC + AESGCM(key).encrypt(b"\0\0\0\1" + bytes(8), b"hello", told)
    assert indexes.hex() == KNOWN_INDEXES
    nonce, data_key = bytes(range(12)), bytes(range(100, 132))
    wrapped = nonce + AESGCM(key).encrypt(nonce, data_key, f"tiered key {STEM} 2026-a".encode())
    assert base64.b64encode(wrapped).decode() == KNOWN_WRAPPED
    opened = KEYS.open_object("2026-a", KNOWN_WRAPPED, NAME)
    assert opened.open_chunk(0, AESGCM(data_key).encrypt(bytes(12), b"x", f"tiered chunk {STEM} 0".encode())) == b"x"


KNOWN_CHUNK = "654162df39fb063b830bcce4485b0fb039ca28970c"
KNOWN_INDEXES = "54494552454e430a2c53a1c66314b752cfdf19c6ea6b48526b2a117f02"
KNOWN_WRAPPED = "AAECAwQFBgcICQoLI2ewfK2MqHDhLPnkwZgKHvej8UOIAiUHRBqb+p3ogjFvdux2QKVaxde0qBG2uJUH"


def test_a_sealed_chunk_table_has_golden_bytes():
    table = ChunkTable(
        lengths=(4, 1), crcs=(1, 2), stored_lengths=(3, 9), stored_crcs=(5, 6), codec=ZSTD, cipher=AES_256_GCM
    )
    golden = bytes.fromhex(
        "0002 01 01 00000002 0000000000000005 000000000000000c"
        "00000004 00000001 00000001 00000002 00000003 00000009 00000005 00000006"
    )
    assert encode_chunks(table) == golden
    assert decode_chunks(golden) == table
    for wrong in (golden[:-4], golden[:3] + b"\2" + golden[4:], golden[:2] + b"\0\0" + golden[4:]):
        with pytest.raises(Corrupt):
            decode_chunks(wrong)


# --- checks during the upload -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"record_count": 199}, "its bytes contradict its segment entry"),
        ({"max_timestamp_ms": 10}, "its bytes contradict its segment entry"),
        ({"next_offset": 299}, "it exceeds its offset range in the log"),
        ({"base_offset": 101}, "it exceeds its offset range in the log"),
    ],
)
def test_a_segment_with_bytes_that_contradict_its_entry_is_refused_and_not_stored(store, mode, changes, words):
    with pytest.raises(Corrupt, match=words):
        copied(store, mode, BODY, **changes)
    assert list(store.list("")) == []


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("spoilt", [0, 100, 199])
def test_an_invalid_batch_is_refused_with_its_position(store, mode, spoilt):
    body = b"".join((*BATCHES[:spoilt], bytes(4), *BATCHES[spoilt:]))
    at = sum(map(len, BATCHES[:spoilt]))
    with pytest.raises(Corrupt, match=rf"an empty batch: base_offset=100 at={at}"):
        copied(store, mode, body)
    assert list(store.list("")) == []


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_segment_that_ends_inside_a_batch_is_refused(store, mode):
    with pytest.raises(Corrupt, match="ends inside a batch"):
        copied(store, mode, BODY[:-1])
    assert list(store.list("")) == []


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("batch", [100, 70_000, PART_BYTES + 5])
def test_batches_across_part_boundaries_are_inspected_whole(mode, batch):
    store = MemoryStore()
    body = b"".join(batches(PART_BYTES * 5 // 2 // batch + 2, size=batch))
    count = len(batches(PART_BYTES * 5 // 2 // batch + 2, size=batch))
    entry = copy_segment(store, PREFIX, segment_of(body), epoch=1, now_ms=0, object_encoding=mode)
    assert entry.record_count == count
    assert bytes(reader(store).read(entry, 0, len(body))) == body


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_second_attempt_uploads_the_same_bytes(mode):
    tries = []

    class FailsOnce(MemoryStore):
        def upload(self, key, source):
            tries.append(b"".join(source.parts()))
            if len(tries) == 1:
                tries.append(b"".join(source.parts()))
            self.put(key, tries[-1])

    store = FailsOnce()
    entry = copied(store, mode, BODY)
    assert tries[0] == tries[1]
    assert bytes(reader(store).read(entry, 0, len(BODY))) == BODY
    assert entry.record_count == len(BATCHES)


@pytest.mark.parametrize("mode", SEALED.values(), ids=SEALED)
def test_different_bytes_are_never_sealed_under_the_same_name(mode):
    sealed = []

    class ReadsTwice(MemoryStore):
        def upload(self, key, source):
            b"".join(source.parts())
            other.append(True)
            for part in source.parts():
                sealed.append(part)

    other = []

    def read(start, length):
        return (BODY[:5000] + bytes([BODY[5000] ^ bool(other)]) + BODY[5001:])[start : start + length]

    with pytest.raises(Corrupt, match="cannot copy a segment, its file changed"):
        copied(ReadsTwice(), mode, BODY, read=read, inspect=None, record_count=1)
    assert sealed == []


def same_crc_difference():
    """Five bytes that change no CRC-32C when they are xored into a message: its polynomial."""
    bits = [0x11EDC6F41 >> (32 - at) & 1 for at in range(33)] + [0] * 7
    return bytes(sum(bits[8 * byte + bit] << bit for bit in range(8)) for byte in range(5))


@pytest.mark.parametrize("name", ["encrypted", "zstd, encrypted"])
def test_different_bytes_with_the_same_crc_are_never_sealed_under_the_same_name(name):
    at = 5000
    other = bytes(one ^ two for one, two in zip(BODY[at : at + 5], same_crc_difference(), strict=True))
    forged = BODY[:at] + other + BODY[at + 5 :]
    assert forged != BODY
    assert crc32c(forged) == crc32c(BODY)
    tries = []

    class ReadsTwice(MemoryStore):
        def upload(self, key, source):
            tries.append(b"".join(source.parts()))
            tries.append(b"".join(source.parts()))

    def read(start, length):
        return (forged if tries else BODY)[start : start + length]

    with pytest.raises(Corrupt, match="cannot copy a segment, its file changed"):
        copied(ReadsTwice(), MODES[name], BODY, read=read, inspect=None, record_count=1)
    assert len(tries) == 1


def test_a_store_that_accepts_half_of_an_upload_raises_unavailable(store):
    class Half(MemoryStore):
        def upload(self, key, source):
            self.put(key, next(iter(source.parts())))

    body = bytes(PART_BYTES + 1)
    with pytest.raises(Unavailable, match="the store did not accept all bytes"):
        copy_segment(Half(), PREFIX, segment_of(body, inspect=None, record_count=1), epoch=1, now_ms=0)


def test_a_segment_encrypted_again_is_recognized_as_the_same_segment(store):
    """A commit with a lost answer is repeated: another key, other bytes, the same segment."""
    one, other = copied(store, MODES["encrypted"], BODY), copied(store, MODES["zstd"], BODY)
    twice = add_segments([other])(add_segments([one])(manifest()))
    assert [entry.ulid for entry in twice.segments] == [one.ulid]
    assert {each.key for each in twice.pending_deletes} == {other.data_key, other.indexes_key}


def test_indexes_of_an_encrypted_segment_cannot_be_decoded_without_the_key(store):
    entry = copied(store, MODES["encrypted"], BODY)
    with pytest.raises(Corrupt):
        decode_bundle(store.get(PREFIX + entry.indexes_key))
    assert MODES["none"].codec == RAW
