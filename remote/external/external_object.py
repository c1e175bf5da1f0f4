"""The bytes of one external segment: decoded chunks, without cache and checksum.

The manifest bounds the size of each chunk: no frame decompresses to more bytes, whatever it declares.
"""

from __future__ import annotations

import numpy as np

from local.errors import Corrupt
from local.format.compression import Codec, decompress_into
from remote.external.external_layout import Cipher, ExternalParts
from remote.segments.chunk_table import PLAIN, ZSTD, ChunkTable
from remote.store import Body, ObjectStore


class ExternalObject:
    """Reads of one segment for a single sequential pass. Not cached. Thread safe."""

    def __init__(self, store: ObjectStore, data_key: str, parts: ExternalParts) -> None:
        self._store = store
        self.key = data_key
        self._parts = parts
        self.size_bytes = parts.chunks.size_bytes

    def read(self, position: int, length: int) -> bytes:
        """Return ``[position, position + length)``, fewer at the end. Raises Corrupt, NotFound."""
        table = self._parts.chunks
        length = min(length, self.size_bytes - position)
        if length <= 0:
            return b""
        if table.is_as_it_is:
            return self._store.get_range(self.key, position, length)
        numbers = table.chunks_of(position, length)
        start = table.stored_range(numbers.start)[0]
        last, last_bytes = table.stored_range(numbers.stop - 1)
        body = memoryview(self._store.get_range(self.key, start, last + last_bytes - start))
        opened = []
        for number in numbers:
            at, stored_bytes = table.stored_range(number)
            chunk = body[at - start : at - start + stored_bytes]
            try:
                opened.append(open_chunk(table, number, chunk, self._parts.cipher))
            except Corrupt as error:
                facts = {"object": self.key, "start": at, "length": stored_bytes}
                raise Corrupt(f"cannot read a segment: {error.attempt}", **facts, **error.facts) from error
        skipped = position - table.chunk_range(numbers.start)[0]
        return b"".join(opened)[skipped : skipped + length]


def open_chunk(table: ChunkTable, number: int, stored: Body, cipher: Cipher | None) -> bytes:
    """Return a chunk's bytes of the segment. Raises Corrupt if they contradict the table."""
    body: Body = stored
    if table.cipher != PLAIN:
        assert cipher is not None, "a sealed segment comes with its cipher"
        body = cipher.open(stored)
    length = table.lengths[number]
    if table.codec == ZSTD:
        out = np.empty(length, np.uint8).data
        body = out[: decompress_into(Codec.ZSTD, memoryview(body), out)]
    if len(body) != length:
        facts = {"chunk": number, "expected_bytes": length, "found_bytes": len(body)}
        raise Corrupt("cannot decode a chunk, its length differs from its manifest", **facts)
    return bytes(body)
