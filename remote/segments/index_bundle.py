"""The ``.indexes`` object: all that a reader of one segment needs, in one GET.

| bytes | field |
|---|---|
| sections | ``offset time txn producers epochs chunks``, in this order; each but ``chunks`` may be empty |
| table | JSON: ``{"<section>": [start, length], ...}`` |
| 4 | length of the table |
| 2 | format version, 1 |
| 4 | CRC32C of everything before this field |
| 8 | magic ``TIERIDX\\n`` |

Big-endian, written to the bucket. The first five sections are Kafka's own files as they were on disk (``.index``,
``.timeindex``, ``.txnindex``, ``.snapshot`` and the leader epochs below the segment's end). This module does not parse
them. ``chunks`` is `remote.segments.chunk_table`. A later version may add sections; a reader ignores unknown sections.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.segment_entry import IndexRange
from remote.segments.chunk_table import ChunkTable, decode_chunks, encode_chunks
from remote.store import Body

MAGIC, VERSION = b"TIERIDX\n", 1
SECTIONS = ("offset", "time", "txn", "producers", "epochs", "chunks")
_FOOTER = struct.Struct(">IHI8s")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBundle:
    """One segment's indexes: bytes as Kafka writes them, and the chunk table."""

    offset: Body
    time: Body
    txn: Body
    producers: Body
    epochs: Body
    chunks: ChunkTable

    def __len__(self) -> int:
        """Its size in a cache, in bytes."""
        return sum(len(getattr(self, name)) for name in SECTIONS[:-1]) + 16 * len(self.chunks)


def encode_bundle(bundle: IndexBundle) -> tuple[bytes, dict[str, IndexRange]]:
    """The object's bytes, and the range of each section in them."""
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
    found_sections = _cut(view[:sections_end], view[sections_end : sections_end + table_bytes])
    return IndexBundle(
        **{name: found_sections[name] for name in SECTIONS[:-1]}, chunks=decode_chunks(found_sections["chunks"])
    )


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
