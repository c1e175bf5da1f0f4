"""Aiven's layout: three objects for each segment, the manifest last, no catalogue.

A listing of each partition finds the segments; their manifests are read concurrently. A log without a manifest is an
unfinished upload or a finished deletion: it does not count, nor does a manifest without its log. ``key.prefix`` may
have changed over the years; objects of several prefixes are read as one partition.

**Envelope encryption.** The manifest holds each segment's AES key, wrapped by an RSA key.

| encrypted part | form |
|---|---|
| a chunk, or an index | nonce of 12 bytes, ciphertext, tag of 16 bytes: AES-256-GCM |
| the data key | RSA, OAEP with SHA3-512 for both of its hashes, no label |

The additional data is the manifest's ``aad``, the same for every chunk and index of a segment: swapped chunks of one
segment decrypt without an error, and the CRCs of the batches show the swap. Private keys are PKCS#8 in PEM, read where
they are used and never sent. Source: `RsaEncryptionProvider`, `AesEncryptionProvider`.

**The manifest**, ``.rsm-manifest``, is JSON (`_Manifest`). The list of a variable chunk index is base64 of a zstd frame
of: int32 count; for one chunk its int32 size; for more an int32 base, int8 width w, (count - 1) unsigned numbers of w
bytes above the base, and the last size as int32, all big-endian. Every number is bounded before memory is allocated for
it. Source: `SegmentManifestV1`, `ChunkSizesBinaryCodec` of Aiven-Open/tiered-storage-for-apache-kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from local.errors import AccessDenied, Corrupt, InvalidRequest, NotFound
from local.verify.findings import damaged, finding
from remote.external.external_layout import (
    INDEXES,
    LOG,
    MANIFEST,
    ExternalName,
    ExternalParts,
    ExternalSegment,
    Layout,
    complete_segments,
    parse_aiven_file,
    sibling,
)
from remote.keys import parse_partition, parse_topic_directory
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import AES_256_GCM, CODECS, PLAIN, RAW, ZSTD, ChunkTable
from remote.store import Body, ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

THREADS = 16
# Aiven's names of the indexes, and the sections of `remote.segments.stored_segment`.
_SECTIONS = {
    "offset": "offset",
    "timestamp": "time",
    "transaction": "txn",
    "producerSnapshot": "producers",
    "leaderEpoch": "epochs",
}
_NONCE_BYTES, _TAG_BYTES, _KEY_BYTES, _HASH_BYTES = 12, 16, 32, 64
_PEM_BYTES_MAX = 1 << 20
MANIFEST_BYTES_MAX = 16 << 20
CHUNK_SIZES_BYTES_MAX = 10 << 20  # Aiven's own bound on the unpacked list
CHUNKS_MAX = 1 << 20  # a chunk of 2 KiB in the largest possible segment
INDEXES_BYTES_MAX = 256 << 20
_INT_MAX = 2**31 - 1  # all of Aiven's integers are Java's
_OFFSET_MAX = 2**63 - 2
EPOCH_MAX = 2**31 - 1


class AivenFormat:
    """Aiven's layout. Each of `prefixes` is put before names as it is, without a separator."""

    layout = Layout.AIVEN

    def __init__(self, prefixes: Sequence[str], keys: PrivateKeys) -> None:
        self._prefixes = tuple(dict.fromkeys(prefixes))
        self._keys = keys
        self._known: dict[tuple[str, int], ExternalSegment] = {}  # by the log's key and size: manifests never change

    def partitions(self, store: ObjectStore) -> list[ExternalName]:
        found: dict[tuple[str, str, int], list[str]] = {}
        for prefix in self._prefixes:
            for topic, topic_id, number, place in _places(store, prefix):
                found.setdefault((topic, topic_id, number), []).append(place)
        return sorted(ExternalName(*name, places=tuple(places)) for name, places in found.items())

    def segments(self, store: ObjectStore, name: ExternalName) -> list[ExternalSegment]:
        complete = {
            (files[LOG].key, files[LOG].size_bytes): (base, files)
            for place in name.places
            for base, files in complete_segments(store, place, parse_aiven_file, (LOG, MANIFEST))
        }
        fresh = {key: each for key, each in complete.items() if key not in self._known}
        with ThreadPoolExecutor(THREADS, "tiered-manifests") as threads:
            made = threads.map(lambda each: self._segment(store, *each), fresh.values())
            read = dict(zip(fresh, made, strict=True))
        self._known |= {key: each for key, each in read.items() if each is not None and not each.is_blocked}
        found = (self._known.get(key) or read[key] for key in complete)
        return sorted((each for each in found if each is not None), key=lambda each: each.base_offset)

    def parts(self, store: ObjectStore, entry: SegmentEntry) -> ExternalParts:
        name = sibling(entry.data_key, MANIFEST)
        manifest = decode_aiven_manifest(store.get(name), name)
        cipher = None if manifest.sealing is None else self._keys.cipher(manifest.sealing, name)
        if manifest.indexes is None:
            return ExternalParts(chunks=manifest.chunks, cipher=cipher)  # from before the object with the indexes
        end = max((each.start + each.length for each in manifest.indexes.values()), default=0)
        body = store.get_range(sibling(entry.data_key, INDEXES), 0, end) if end else b""  # no object if all are empty
        sections: dict[str, bytes] = {"txn": b""}
        for kind, where in manifest.indexes.items():
            part = body[where.start : where.start + where.length]
            if kind in _SECTIONS:
                sections[_SECTIONS[kind]] = cipher.open(part) if cipher is not None and part else part
        return ExternalParts(chunks=manifest.chunks, cipher=cipher, **sections)

    def _segment(self, store: ObjectStore, base: int, files: dict[str, ObjectInfo]) -> ExternalSegment | None:
        data, name, size = files[LOG], files[MANIFEST].key, files[MANIFEST].size_bytes
        segment = ExternalSegment(
            data_key=data.key, base_offset=base, size_bytes=data.size_bytes, stored_bytes=data.size_bytes
        )
        try:
            if size > MANIFEST_BYTES_MAX:
                raise Corrupt("the manifest of a segment is too large", object=name, size_bytes=size)
            manifest = decode_aiven_manifest(store.get(name), name)
            if manifest.facts is not None and manifest.facts.base_offset != base:
                where = {"object": data.key, "start_offset": manifest.facts.base_offset}
                raise Corrupt("the manifest of a segment belongs to another segment", **where)
        except NotFound:
            return None  # deleted since it was listed
        except Corrupt as error:
            damage = damaged(error, str(error.facts.get("object", data.key)))
            return replace(segment, finding=damage, is_blocked=True)
        facts, indexes = manifest.facts, manifest.indexes or {}
        lengths = {_SECTIONS[kind]: each.length for kind, each in indexes.items() if kind in _SECTIONS and each.length}
        segment = replace(
            segment,
            size_bytes=manifest.chunks.size_bytes,
            stamp_ms=data.modified_ms or 0,
            codec=CODECS[manifest.chunks.codec],
            key_id=None if manifest.sealing is None else manifest.sealing.key_id,
            index_bytes=lengths,
            has_transactions=manifest.indexes is not None,
        )
        if facts is None:
            return segment
        return replace(
            segment,
            next_offset=facts.next_offset,
            max_timestamp_ms=facts.max_timestamp_ms,
            epochs=facts.epochs or None,
            stamp_ms=facts.copied_ms,
            finding=finding("external.epochs", name, problem=facts.epochs_problem) if facts.epochs_problem else None,
        )


def _places(store: ObjectStore, prefix: str) -> Iterator[tuple[str, str, int, str]]:
    parent, _, stub = prefix.rpartition("/")
    parent = f"{parent}/" if parent else ""
    for directory in store.list_prefixes(parent):
        parsed = parse_topic_directory(directory[len(stub) :]) if directory.startswith(stub) else None
        if parsed is None:
            continue
        for number in store.list_prefixes(f"{parent}{directory}/"):
            if (partition := parse_partition(number)) is not None:
                yield *parsed, partition, f"{parent}{directory}/{number}/"


class AivenCipher:
    def __init__(self, gcm: AESGCM, aad: bytes) -> None:
        self._gcm = gcm
        self._aad = aad

    def open(self, sealed: Body) -> bytes:
        from cryptography.exceptions import InvalidTag

        view = memoryview(sealed)
        if len(view) < _NONCE_BYTES + _TAG_BYTES:
            raise Corrupt("cannot decrypt, the input is too short", size_bytes=len(view))
        try:
            return self._gcm.decrypt(bytes(view[:_NONCE_BYTES]), view[_NONCE_BYTES:], self._aad)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("cannot decrypt, the authentication tag does not match") from error


class PrivateKeys:
    """RSA keys by key id, from files that are read on use. No representation shows a key."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)
        self._read: dict[str, RSAPrivateKey] = {}

    def __repr__(self) -> str:
        return f"PrivateKeys({', '.join(sorted(self._files)) or 'no keys'})"

    def cipher(self, sealing: Sealing, name: str) -> AivenCipher:
        """A segment's cipher. Raises AccessDenied if the key is missing or did not wrap its data key."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            hint = "pip install 'tiered[encryption]'"
            raise InvalidRequest("cannot decrypt a segment, a library is missing", install=hint) from error
        key = self._key(sealing.key_id, name)
        data_key = _unwrapped(key, sealing.wrapped_key)
        if data_key is None:
            wrong = "cannot decrypt a segment, the key of this id is not the key that encrypted it"
            raise AccessDenied(wrong, key_id=sealing.key_id, object=name)
        if len(data_key) != _KEY_BYTES:
            facts = {"object": name, "key_bytes": len(data_key)}
            raise Corrupt("cannot decrypt a segment, its data key has a wrong length", **facts)
        return AivenCipher(AESGCM(data_key), sealing.aad)

    def _key(self, key_id: str, name: str) -> RSAPrivateKey:
        if key_id not in self._files:
            there_are = ",".join(sorted(self._files)) or None
            missing = "cannot decrypt a segment, no private key of this id is configured"
            raise AccessDenied(missing, key_id=key_id, object=name, there_are=there_are)
        if key_id not in self._read:
            self._read[key_id] = _load(self._files[key_id], key_id)
        return self._read[key_id]


def _unwrapped(key: RSAPrivateKey, wrapped: bytes) -> bytes | None:
    """Unwrap a key by OAEP with SHA3-512, which the library lacks (RFC 8017, 7.1.2); None for another key."""
    # The timing is not constant. It leaks nothing new, because the reader holds the private key.
    numbers = key.private_numbers()
    modulus, size = numbers.public_numbers.n, (key.key_size + 7) // 8
    number = int.from_bytes(wrapped, "big")
    if len(wrapped) != size or number >= modulus or size < 2 * _HASH_BYTES + 2:
        return None
    low, high = pow(number, numbers.dmq1, numbers.q), pow(number, numbers.dmp1, numbers.p)
    padded = (low + (high - low) * numbers.iqmp % numbers.p * numbers.q).to_bytes(size, "big")
    seed, block = padded[1 : 1 + _HASH_BYTES], padded[1 + _HASH_BYTES :]
    seed = _masked(seed, block)
    block = _masked(block, seed)
    label_hash, rest = block[:_HASH_BYTES], block[_HASH_BYTES:].lstrip(b"\0")
    if padded[0] or label_hash != hashlib.sha3_512(b"").digest() or rest[:1] != b"\1":
        return None
    return rest[1:]


def _masked(data: bytes, seed: bytes) -> bytes:
    """`data` XORed with the MGF1 mask of `seed`; its own inverse."""
    blocks = -(-len(data) // _HASH_BYTES)
    mask = b"".join(hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in range(blocks))
    return bytes(one ^ two for one, two in zip(data, mask, strict=False))


def _load(path: str, key_id: str) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    facts = {"key_id": key_id, "file": path}
    try:
        with open(path, "rb") as file:
            text = file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise InvalidRequest("cannot read the file of a private key", **facts, cause=error.strerror) from error
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidRequest("a private key is not an unencrypted key in PEM format", **facts) from None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidRequest("a private key is not an RSA key", **facts)
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """The encryption of chunks and indexes: `wrapped_key` is the data key, wrapped by RSA key `key_id`."""

    key_id: str
    wrapped_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSegmentMetadata:
    """The segment metadata that Kafka passed to the plugin."""

    base_offset: int
    next_offset: int  # exclusive
    max_timestamp_ms: int | None
    copied_ms: int
    epochs: tuple[tuple[int, int], ...]  # ascending, the first at `base_offset`
    # why the epochs are invalid; then `epochs` is empty, and the batches provide them
    epochs_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenManifest:
    """A decoded manifest; `chunks` has zeros as checksums. In an old one `indexes`, `facts` are None."""

    chunks: ChunkTable
    indexes: dict[str, IndexRange] | None
    sealing: Sealing | None
    facts: KafkaSegmentMetadata | None


class _FixedChunks(msgspec.Struct, tag_field="type", tag="fixed", rename="camel"):
    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int
    final_transformed_chunk_size: int


class _VariableChunks(msgspec.Struct, tag_field="type", tag="variable", rename="camel"):
    original_chunk_size: int
    original_file_size: int
    transformed_chunks: str


class _Range(msgspec.Struct):
    position: int
    size: int


class _Encryption(msgspec.Struct, rename="camel"):
    data_key: str
    aad: str


class _Segment(msgspec.Struct, rename="camel"):
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: dict[str, int]


class _Manifest(msgspec.Struct, rename="camel"):
    version: str  # "1"
    chunk_index: _FixedChunks | _VariableChunks
    compression: bool  # chunks are zstd frames
    segment_indexes: dict[str, _Range | None] | None = None  # in ``.indexes``, as stored; absent before October 2023
    encryption: _Encryption | None = None  # of chunks and indexes
    remote_log_segment_metadata: _Segment | None = None  # absent before September 2023


# Created at import: creation in two threads at once ends the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(_Manifest)


def decode_aiven_manifest(data: Body, name: str) -> AivenManifest:
    """Decode a manifest. Raises Corrupt, with the object `name`, for invalid or contradictory content."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise _corrupt(name, "it is too large", size_bytes=len(data), size_bytes_max=MANIFEST_BYTES_MAX)
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(name, "it is not a manifest", cause=str(error)[:200]) from error
    if found.version != "1":
        raise _corrupt(name, "its version is unknown", version=found.version[:20])
    sealing = _sealing(found.encryption, name)
    return AivenManifest(
        chunks=_chunks(found, is_sealed=sealing is not None, name=name),
        indexes=None if found.segment_indexes is None else _ranges(found.segment_indexes, name),
        sealing=sealing,
        facts=None if found.remote_log_segment_metadata is None else _facts(found.remote_log_segment_metadata, name),
    )


def _chunks(found: _Manifest, *, is_sealed: bool, name: str) -> ChunkTable:
    index = found.chunk_index
    size, step = index.original_file_size, index.original_chunk_size
    if not 0 < size <= _INT_MAX or not 0 < step <= _INT_MAX:
        raise _corrupt(name, "its sizes are impossible", file_bytes=size, chunk_bytes=step)
    count = -(-size // step)
    if count > CHUNKS_MAX:
        raise _corrupt(name, "it has more chunks than a segment may have", chunks=count, chunks_max=CHUNKS_MAX)
    match index:
        case _FixedChunks():
            stored = [index.transformed_chunk_size] * (count - 1) + [index.final_transformed_chunk_size]
        case _VariableChunks():
            stored = _unpacked(index.transformed_chunks, name)
    if len(stored) != count or not all(0 < each <= _INT_MAX for each in stored):
        raise _corrupt(name, "its chunk sizes contradict each other", chunks=count, sizes=len(stored))
    lengths = (*[step] * (count - 1), size - step * (count - 1))
    nothing = (0,) * count
    codec, cipher = (ZSTD if found.compression else RAW), (AES_256_GCM if is_sealed else PLAIN)
    if (codec, cipher) == (RAW, PLAIN):
        if tuple(stored) != lengths:
            raise _corrupt(name, "its chunk sizes contradict each other", chunks=count)
        return ChunkTable(lengths=lengths, crcs=nothing)
    return ChunkTable(
        lengths=lengths, crcs=nothing, stored_lengths=tuple(stored), stored_crcs=nothing, codec=codec, cipher=cipher
    )


def _unpacked(text: str, name: str) -> list[int]:
    from local.format.compression import Codec, decompress

    try:
        data = bytes(decompress(Codec.ZSTD, base64.b64decode(text, validate=True), CHUNK_SIZES_BYTES_MAX))
    except (Corrupt, binascii.Error, ValueError) as error:
        raise _corrupt(name, "its list of chunk sizes is damaged", cause=type(error).__name__) from error
    try:
        (count,) = struct.unpack_from(">i", data)
        if not 0 <= count <= CHUNKS_MAX:
            raise _corrupt(name, "it has more chunks than a segment may have", chunks=count, chunks_max=CHUNKS_MAX)
        if count < 2:
            return list(struct.unpack_from(f">{count}i", data, 4))
        base, width = struct.unpack_from(">ib", data, 4)
        end = 9 + (count - 1) * width
        if not 1 <= width <= 4 or len(data) != end + 4:
            raise _corrupt(name, "its list of chunk sizes is damaged", chunks=count, width=width, size_bytes=len(data))
        digits = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(-1, width).astype(np.int64)
        values = digits @ (256 ** np.arange(width - 1, -1, -1, dtype=np.int64))
        return [*(values + base).tolist(), *struct.unpack_from(">i", data, end)]
    except (ValueError, struct.error) as error:
        raise _corrupt(name, "its list of chunk sizes is damaged", cause=type(error).__name__) from error


def _ranges(stored: dict[str, _Range | None], name: str) -> dict[str, IndexRange]:
    found = {
        kind: IndexRange(start=each.position, length=each.size) for kind, each in stored.items() if each is not None
    }
    for kind, each in found.items():
        if each.start < 0 or each.length < 0 or each.start + each.length > INDEXES_BYTES_MAX:
            raise _corrupt(
                name, "an index is outside the object", index=kind[:40], start=each.start, length=each.length
            )
    return found


def _sealing(stored: _Encryption | None, name: str) -> Sealing | None:
    if stored is None:
        return None
    key_id, colon, wrapped = stored.data_key.partition(":")
    try:
        if not key_id or not colon:
            raise ValueError("it has no key id")
        return Sealing(
            key_id=key_id,
            wrapped_key=base64.b64decode(wrapped, validate=True),
            aad=base64.b64decode(stored.aad, validate=True),
        )
    except ValueError as error:  # includes binascii.Error
        raise _corrupt(name, "its data key is not valid base64") from error


def _facts(stored: _Segment, name: str) -> KafkaSegmentMetadata:
    start, last = stored.start_offset, stored.end_offset
    if not 0 <= start <= last <= _OFFSET_MAX:
        raise _corrupt(name, "its offsets contradict each other", start_offset=start, end_offset=last)
    epochs, problem = _epochs(stored)
    return KafkaSegmentMetadata(
        base_offset=start,
        next_offset=last + 1,
        max_timestamp_ms=stored.max_timestamp_ms if stored.max_timestamp_ms >= 0 else None,
        copied_ms=stored.event_timestamp_ms,
        epochs=((epochs[0][0], start), *epochs[1:]) if epochs else (),
        epochs_problem=problem,
    )


def _epochs(stored: _Segment) -> tuple[list[tuple[int, int]], str | None]:
    if any(not epoch.isdecimal() or len(epoch) > 10 for epoch in stored.segment_leader_epochs):
        return [], "a leader epoch is not a number of 31 bits"
    epochs = sorted((int(epoch), first) for epoch, first in stored.segment_leader_epochs.items())
    if epochs and epochs[-1][0] > EPOCH_MAX:
        return [], "a leader epoch is not a number of 31 bits"
    starts = [first for _, first in epochs]
    is_inside = not starts or (starts[0] >= 0 and starts[-1] <= stored.end_offset)
    if not is_inside or any(one >= other for one, other in pairwise(starts)):
        return [], "its leader epochs contradict the offsets or each other"
    return epochs, None


def _corrupt(name: str, what: str, **facts: object) -> Corrupt:
    return Corrupt(f"cannot read the manifest of a segment, {what}", object=name, **facts)
