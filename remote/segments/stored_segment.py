"""The stored form of one closed segment: the object encoding of its bytes, its chunk table, and its index bundle.

**Object encoding**: the chunks unchanged, or compressed, then perhaps encrypted. Each compressed chunk is one
independent zstd frame, so their sequence is an ordinary zstd file (``zstd -d`` opens it). The first chunk decides
whether compression pays: batches that their producer compressed do not shrink again.

**Index bundle**, the ``.indexes`` object: all that a reader of one segment needs, in one GET.

| bytes | field |
|---|---|
| sections | ``offset time txn producers epochs chunks``, in this order; each but ``chunks`` may be empty |
| table | JSON: ``{"<section>": [start, length], ...}`` |
| 4 | length of the table |
| 2 | format version, 1 |
| 4 | CRC32C of everything before this field |
| 8 | magic ``TIERIDX\\n`` |

Big-endian, written to the bucket. The first five sections are Kafka's own files as they were on disk (``.index``,
``.timeindex``, ``.txnindex``, ``.snapshot`` and the leader epochs below the segment's end). ``chunks`` is a
`ChunkTable`. A later version may add sections; a reader ignores unknown sections.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

import msgspec

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.keys import object_identity, parse_topic_directory
from remote.segment_entry import PART_BYTES, IndexRange, SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing, ObjectCipher
from remote.store import Body

MAGIC, VERSION = b"TIERIDX\n", 1
SECTIONS = ("offset", "time", "txn", "producers", "epochs", "chunks")
_FOOTER = struct.Struct(">IHI8s")
CHUNK_BYTES = 256 << 10  # if stored unchanged; reading one record fetches one chunk; divides PART_BYTES
SEALED_CHUNK_BYTES = 1 << 20  # if compressed (larger chunks compress better) or encrypted
TABLE_VERSION = 2
RAW, ZSTD = 0, 1
PLAIN, AES_256_GCM = 0, 1
_HEADER = struct.Struct(">HBBIQQ")
_POLYNOMIAL = 0x82F63B78  # CRC32C, reflected

assert PART_BYTES % CHUNK_BYTES == 0


PAYS_BELOW = 0.9  # of the first chunk's size; saving less than a tenth costs more time than it saves room
CODECS = {RAW: "none", ZSTD: "zstd"}  # the `codec` of an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Position, length and checksum of each chunk of a segment in its data object, in order.

    No client checks the length or the bits of a ranged GET. So reads fetch whole chunks, each with a CRC32C. A chunk is
    stored unchanged (then `stored_lengths` and `stored_crcs` are None), or compressed by itself, encrypted, or both.

    | off | size | field |
    |---|---|---|
    | 0 | 2 | format version, 2 |
    | 2 | 1 | codec: 0 none, 1 zstd with a frame for each chunk |
    | 3 | 1 | cipher: 0 none, 1 AES-256-GCM |
    | 4 | 4 | number of chunks n |
    | 8 | 8 | the segment's size in bytes |
    | 16 | 8 | the data object's size in bytes |
    | 24 | 4 n | length of each chunk of the segment, in order |
    | | 4 n | CRC32C of each |
    | | 4 n | stored length of each; this and the next only if codec or cipher is not 0 |
    | | 4 n | CRC32C of the stored form of each |

    Big-endian, written to the bucket. A position is the sum of the lengths before it.
    """

    lengths: tuple[int, ...]
    crcs: tuple[int, ...]
    stored_lengths: tuple[int, ...] | None = None
    stored_crcs: tuple[int, ...] | None = None
    codec: int = RAW
    cipher: int = PLAIN
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _stored_starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = tuple(accumulate(self.lengths, initial=0))
        object.__setattr__(self, "_starts", starts)
        stored = self.stored_lengths
        object.__setattr__(self, "_stored_starts", starts if stored is None else tuple(accumulate(stored, initial=0)))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def is_as_it_is(self) -> bool:
        return self.stored_lengths is None

    @property
    def size_bytes(self) -> int:
        return self._starts[-1]

    @property
    def stored_bytes(self) -> int:
        return self._stored_starts[-1]

    def chunk_range(self, index: int) -> tuple[int, int]:
        """(start, length) of chunk `index` in the segment."""
        return self._starts[index], self.lengths[index]

    def stored_range(self, index: int) -> tuple[int, int]:
        """(start, length) of chunk `index` in the data object."""
        start = self._stored_starts[index]
        return start, self._stored_starts[index + 1] - start

    def stored_crc(self, index: int) -> int:
        return (self.crcs if self.stored_crcs is None else self.stored_crcs)[index]

    def chunks_of(self, position: int, length: int) -> range:
        """Indexes of the chunks with bytes ``[position, position + length)`` of the segment, clipped to it."""
        end = min(position + length, self.size_bytes)
        if end <= position:
            return range(0)
        return range(bisect_right(self._starts, position) - 1, bisect_right(self._starts, end - 1))

    @property
    def segment_crc(self) -> int:
        return combine(self.crcs, self.lengths)

    @property
    def whole_crc(self) -> int:
        if self.stored_crcs is None or self.stored_lengths is None:
            return self.segment_crc
        return combine(self.stored_crcs, self.stored_lengths)


def encode_chunks(table: ChunkTable) -> bytes:
    columns = [table.lengths, table.crcs]
    if table.stored_lengths is not None and table.stored_crcs is not None:
        columns += [table.stored_lengths, table.stored_crcs]
    count = len(table)
    assert all(len(column) == count for column in columns)
    header = _HEADER.pack(TABLE_VERSION, table.codec, table.cipher, count, table.size_bytes, table.stored_bytes)
    return b"".join((header, *(struct.pack(f">{count}I", *column) for column in columns)))


def decode_chunks(data: Body) -> ChunkTable:
    """The inverse of `encode_chunks`. Raises Corrupt for an unknown version or code, or contradictory numbers."""
    if len(data) < _HEADER.size:
        raise Corrupt("a chunk table is too short", size_bytes=len(data))
    version, codec, cipher, count, size_bytes, stored_bytes = _HEADER.unpack_from(data)
    if version != TABLE_VERSION or codec not in (RAW, ZSTD) or cipher not in (PLAIN, AES_256_GCM):
        facts = {"version": version, "known": TABLE_VERSION, "codec": codec, "cipher": cipher}
        raise Corrupt("cannot read a chunk table, it is damaged or of a newer format", **facts)
    width = 2 if (codec, cipher) == (RAW, PLAIN) else 4
    facts = {"size_bytes": size_bytes, "stored_bytes": stored_bytes, "chunks": count, "table_bytes": len(data)}
    if len(data) != _HEADER.size + 4 * width * count:
        raise Corrupt("a chunk table is damaged, its length differs", **facts)
    columns = [struct.unpack_from(f">{count}I", data, _HEADER.size + 4 * count * at) for at in range(width)]
    table = ChunkTable(
        lengths=columns[0],
        crcs=columns[1],
        stored_lengths=columns[2] if width == 4 else None,
        stored_crcs=columns[3] if width == 4 else None,
        codec=codec,
        cipher=cipher,
    )
    is_whole = all(columns[0]) and all(table.stored_lengths or (1,))
    if not is_whole or (table.size_bytes, table.stored_bytes) != (size_bytes, stored_bytes):
        raise Corrupt("the numbers of a chunk table contradict each other", **facts)
    return table


def combine(crcs: Sequence[int], lengths: Sequence[int]) -> int:
    """CRC32C of concatenated chunks, from their checksums and lengths. Source: zlib, crc32_combine.

    A CRC is a polynomial over GF(2), bit 31 its lowest power. crc(a + b) = crc(a) x^(8 len(b)) xor crc(b).
    """
    assert len(crcs) == len(lengths)
    alike = next((at for at, length in enumerate(lengths) if length != lengths[0]), len(lengths))
    whole = _combined_equal_chunks(crcs[:alike], lengths[0]) if alike else 0
    for crc, length in zip(crcs[alike:], lengths[alike:], strict=True):
        for bit in _bits(length):
            first, second, third, fourth = _products(bit)
            whole = first[whole & 255] ^ second[whole >> 8 & 255] ^ third[whole >> 16 & 255] ^ fourth[whole >> 24]
        whole ^= crc
    return whole


def _combined_equal_chunks(crcs: Sequence[int], length: int) -> int:
    """As `combine` for chunks of one length: each pass joins all neighbouring pairs at once."""
    import numpy as np

    # Leading zeros change nothing: the product with zero is zero.
    whole = np.zeros(1 << (len(crcs) - 1).bit_length(), np.uint32)
    whole[len(whole) - len(crcs) :] = crcs
    while len(whole) > 1:
        before = whole[0::2]
        for bit in _bits(length):
            tables = np.array(_products(bit), np.uint32)
            pieces = [table[before >> np.uint32(8 * at) & np.uint32(255)] for at, table in enumerate(tables)]
            before = pieces[0] ^ pieces[1] ^ pieces[2] ^ pieces[3]
        whole, length = before ^ whole[1::2], 2 * length
    return int(whole[0])


def _bits(number: int) -> list[int]:
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


@cache
def _products(bit: int) -> list[list[int]]:
    """For each byte of a CRC, the products of its 256 values and x^(8 2^bit)."""
    tables = []
    for first in range(0, 32, 8):
        table = [0]
        for column in range(first, first + 8):
            product = _product(_power(bit), 1 << column)
            table += [each ^ product for each in table]
        tables.append(table)
    return tables


@cache
def _power(bit: int) -> int:
    """x^(8 2^bit): the factor of a CRC to which 2^bit bytes are appended."""
    return _product(_power(bit - 1), _power(bit - 1)) if bit else 1 << 23


def _product(factor: int, crc: int) -> int:
    """The product of two polynomials, modulo CRC32C's."""
    product = 0
    for bit in range(31, -1, -1):
        if factor >> bit & 1:
            product ^= crc
        crc = crc >> 1 ^ (crc & 1) * _POLYNOMIAL
    return product


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBundle:
    offset: Body
    time: Body
    txn: Body
    producers: Body
    epochs: Body
    chunks: ChunkTable

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in SECTIONS[:-1]) + 16 * len(self.chunks)


def encode_bundle(bundle: IndexBundle) -> tuple[bytes, dict[str, IndexRange]]:
    sections: dict[str, Body] = {name: getattr(bundle, name) for name in SECTIONS[:-1]}
    sections["chunks"] = encode_chunks(bundle.chunks)
    ranges: dict[str, IndexRange] = {}
    at = 0
    for name, body in sections.items():
        ranges[name] = IndexRange(start=at, length=len(body))
        at += len(body)
    table = msgspec.json.encode({name: (where.start, where.length) for name, where in ranges.items()})
    before = b"".join(sections.values()) + table + struct.pack(">IH", len(table), VERSION)
    return before + struct.pack(">I8s", crc32c(before), MAGIC), ranges


def decode_bundle(data: Body) -> IndexBundle:
    """Decode an ``.indexes`` object; sections are views of `data`. The checksum is compared first; raises Corrupt."""
    if len(data) < _FOOTER.size:
        raise Corrupt("an index bundle is too short", size_bytes=len(data))
    view = memoryview(data).toreadonly()
    table_bytes, version, expected, magic = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if magic != MAGIC:
        raise Corrupt("an index bundle does not end with the magic bytes", size_bytes=len(data))
    if (found := crc32c(view[:-12])) != expected:
        raise Corrupt("an index bundle is damaged, its checksum differs", expected=expected, found=found)
    if version != VERSION:
        raise Corrupt("cannot read an index bundle, it is damaged or of a newer format", version=version, known=VERSION)
    sections_end = len(view) - _FOOTER.size - table_bytes
    if sections_end < 0:
        raise Corrupt("the table of an index bundle is too long", table_bytes=table_bytes)
    sections = _cut(view[:sections_end], view[sections_end : sections_end + table_bytes])
    chunks = decode_chunks(sections.pop("chunks"))
    return IndexBundle(**sections, chunks=chunks)


def _cut(sections: memoryview, table: memoryview) -> dict[str, memoryview]:
    try:
        ranges = msgspec.json.decode(table, type=dict[str, tuple[int, int]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("the table of an index bundle is not valid", cause=type(error).__name__) from error
    for name in SECTIONS:
        start, length = ranges.get(name, (-1, 0))
        if start < 0 or length < 0 or start + length > len(sections):
            raise Corrupt("a section of an index bundle is missing or out of bounds", section=name)
    return {name: sections[ranges[name][0] : sum(ranges[name])] for name in SECTIONS}


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
