"""The ``.rsm-manifest`` of Aiven's plugin: JSON with a segment's chunks, compression and encryption.

| field | used for |
|---|---|
| ``version`` | must be ``"1"`` |
| ``chunkIndex`` | ``fixed``: three sizes and the last one; ``variable``: a list of sizes, packed |
| ``segmentIndexes`` | position of each index in ``.indexes``, as stored; absent before October 2023 |
| ``compression``, ``encryption`` | chunks are zstd frames; chunks and indexes are encrypted (`aiven_encryption`) |
| ``remoteLogSegmentMetadata`` | offsets, leader epochs, times; absent before September 2023 |

The list of a variable chunk index is base64 of a zstd frame of: int32 count; for one chunk its int32 size; for more an
int32 base, int8 width w, (count - 1) unsigned numbers of w bytes above the base, and the last size as int32, all
big-endian.

A manifest is untrusted input: every number is bounded before memory is allocated for it.

Source: Aiven-Open/tiered-storage-for-apache-kafka, `SegmentManifestV1`, `ChunkSizesBinaryCodec`.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from local.errors import Corrupt
from remote.segment_entry import IndexRange
from remote.segments.chunk_table import AES_256_GCM, PLAIN, RAW, ZSTD, ChunkTable
from remote.store import Body

MANIFEST_BYTES_MAX = 16 << 20
CHUNK_SIZES_BYTES_MAX = 10 << 20  # Aiven's own bound on the unpacked list
CHUNKS_MAX = 1 << 20  # a chunk of 2 KiB in the largest possible segment
INDEXES_BYTES_MAX = 256 << 20
_INT_MAX = 2**31 - 1  # all of Aiven's integers are Java's
_OFFSET_MAX = 2**63 - 2
EPOCH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """The encryption of chunks and indexes: `wrapped_key` is the data key, wrapped by RSA key `key_id`."""

    key_id: str
    wrapped_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The segment metadata that Kafka passed to the plugin.

    `next_offset` is exclusive. `epochs` ascend, the first begins at `base_offset`. `epochs_problem` says why the epochs
    are invalid; then `epochs` is empty, and the batches provide them.
    """

    base_offset: int
    next_offset: int
    max_timestamp_ms: int | None
    copied_ms: int
    epochs: tuple[tuple[int, int], ...]
    epochs_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenManifest:
    """A decoded manifest.

    `chunks` has zeros in place of checksums. `indexes` has the plugin's names. `indexes` and `facts` are None if the
    manifest is too old to have them.
    """

    chunks: ChunkTable
    indexes: dict[str, IndexRange] | None
    sealing: Sealing | None
    facts: SegmentFacts | None


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
    version: str
    chunk_index: _FixedChunks | _VariableChunks
    compression: bool
    segment_indexes: dict[str, _Range | None] | None = None
    encryption: _Encryption | None = None
    remote_log_segment_metadata: _Segment | None = None


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
    """Return the sizes of a variable chunk index."""
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


def _facts(stored: _Segment, name: str) -> SegmentFacts:
    start, last = stored.start_offset, stored.end_offset
    if not 0 <= start <= last <= _OFFSET_MAX:
        raise _corrupt(name, "its offsets contradict each other", start_offset=start, end_offset=last)
    epochs, problem = _epochs(stored)
    return SegmentFacts(
        base_offset=start,
        next_offset=last + 1,
        max_timestamp_ms=stored.max_timestamp_ms if stored.max_timestamp_ms >= 0 else None,
        copied_ms=stored.event_timestamp_ms,
        epochs=((epochs[0][0], start), *epochs[1:]) if epochs else (),
        epochs_problem=problem,
    )


def _epochs(stored: _Segment) -> tuple[list[tuple[int, int]], str | None]:
    """Return the leader epochs, ascending, or none and the reason: the records stay readable."""
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
