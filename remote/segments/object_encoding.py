"""Object encoding of a segment: its chunks unchanged, compressed, then perhaps encrypted.

Each compressed chunk is one independent zstd frame, so their sequence is an ordinary zstd file (``zstd -d`` opens it).
The first chunk decides whether compression pays: batches that their producer compressed do not shrink again.
"""

from __future__ import annotations

from dataclasses import dataclass

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.keys import object_identity, parse_topic_directory
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing, ObjectCipher
from remote.segments.index_bundle import AES_256_GCM, PLAIN, RAW, ZSTD, ChunkTable
from remote.store import Body

PAYS_BELOW = 0.9  # of the first chunk's size; saving less than a tenth costs more time than it saves room
CODECS = {RAW: "none", ZSTD: "zstd"}  # the `codec` of an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEncoding:
    """The object encoding of new objects. `level` is zstd's. `key_id` names a key of `keys`; None: not encrypted.

    `storage_class` is only recorded in the entry; the store applies it (`remote.store.s3_options.ObjectSettings`).
    """

    codec: int = RAW
    level: int | None = None
    key_id: str | None = None
    keys: KeyRing = NO_KEYS
    storage_class: str | None = None

    def __post_init__(self) -> None:
        if self.level is None:
            return
        from local.format.compression import Codec, check_level  # heavy: a process that only decides does not need it

        check_level(Codec.ZSTD, self.level)

    def pays(self, first_chunk: Body) -> bool:
        return len(_compressed(first_chunk, self.level)) < PAYS_BELOW * len(first_chunk)


PLAIN_ENCODING = ObjectEncoding()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Encoder of the chunks of one object. Thread safe."""

    codec: int = RAW
    level: int | None = None
    cipher: ObjectCipher | None = None

    @property
    def is_nothing(self) -> bool:
        return self.codec == RAW and self.cipher is None

    @property
    def cipher_code(self) -> int:
        return PLAIN if self.cipher is None else AES_256_GCM

    def close(self, number: int, chunk: Body) -> bytes:
        """The stored form of chunk `number`; deterministic for the same bytes."""
        body: Body = chunk if self.codec == RAW else _compressed(chunk, self.level)
        return bytes(body) if self.cipher is None else self.cipher.seal_chunk(number, body)


def open_chunk(table: ChunkTable, number: int, stored: Body, cipher: ObjectCipher | None) -> bytes:
    """Decode a chunk that has passed its CRC. Raises Corrupt if the result differs from the chunk table."""
    body: Body = stored
    if table.cipher == AES_256_GCM:
        assert cipher is not None, "a row with an encrypted object names its key"
        body = cipher.open_chunk(number, stored)
    if table.codec == ZSTD:
        body = inflated(memoryview(body), table.lengths[number])
    if len(body) != table.lengths[number] or crc32c(body) != table.crcs[number]:
        facts = {"chunk": number, "expected_bytes": table.lengths[number], "found_bytes": len(body)}
        raise Corrupt("cannot decode a chunk, it differs from the stored chunk", **facts)
    return bytes(body)


def open_ring(entry: SegmentEntry, prefix: str, keys: KeyRing = NO_KEYS) -> ObjectCipher | None:
    """The cipher; None if not encrypted. Raises AccessDenied without the key, Corrupt if `keys` require encryption."""
    name = object_identity(prefix, entry.data_key)
    if entry.key_id is not None:
        return keys.open_object(entry.key_id, entry.wrapped_key or "", name)
    topic = parse_topic_directory(name.partition("/")[0])
    if topic is not None and keys.requires(topic[0]):
        wrong = "a segment is not encrypted, and the key ring requires encryption for its topic"
        cause = "the segment is forged or older than the setting"
        step = "`tiered rewrite` encrypts it, a key ring without @require reads it"
        raise Corrupt(f"{wrong}: {cause}: {step}", object=name)
    return None


def _compressed(chunk: Body, level: int | None) -> bytes:
    from local.format.compression import Codec, compress

    return compress(Codec.ZSTD, chunk, level)


def inflated(frame: memoryview, length: int) -> Body:
    """Decompress one zstd frame of `length` bytes at most. Raises Corrupt."""
    import numpy as np  # allocates memory without writing zeros

    from local.format.compression import Codec, decompress_into

    out = np.empty(length, np.uint8).data
    return out[: decompress_into(Codec.ZSTD, frame, out)]
