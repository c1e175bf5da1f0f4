"""Messages of formats 0 and 1, built field by field by an encoder that shares no code with the reader."""

from __future__ import annotations

import gzip
import struct
import zlib

CREATE, APPEND = 0, 8


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp_ms: int = -1,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp_ms) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapper(
    magic: int,
    inner: list[bytes],
    offset: int,
    *,
    timestamp_ms: int = -1,
    attributes: int = 0,
    key: bytes | None = None,
) -> bytes:
    """A gzip wrapper around `inner`. `offset` is that of the last inner message."""
    packed = gzip.compress(b"".join(inner), mtime=0)
    return message(magic, offset, key, packed, timestamp_ms=timestamp_ms, attributes=1 | attributes)


def many(magic: int, count: int, *, start: int = 0) -> bytes:
    """Messages ``value 0``, ``value 1``, .. with keys ``k0`` .. ``k8`` at offsets from `start` on."""
    numbers = range(start, start + count)
    return b"".join(message(magic, n, b"k%d" % (n % 9), b"value %d" % n, timestamp_ms=5000 + n) for n in numbers)
