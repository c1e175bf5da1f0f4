"""Segments of brokers before 0.11: messages of formats 0 and 1, uncompressed and in compressed sets."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

from disk_model import ModelDisk
from legacy_samples import APPEND, CREATE, message

from local.format.compression import Codec, compress
from local.storage import DiskStorage

CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class OldLog(NamedTuple):
    """Segments from offset 0 without gaps. The old broker cleaned the segments below `clean_to`."""

    segments: tuple[bytes, ...] = ()
    clean_to: int = 0


def old_log(rng: random.Random) -> OldLog:
    """Some segments with keys and tombstones. The clean segments contain each key once."""
    segments: list[bytes] = []
    offset = clean_to = 0
    clean_count = rng.choice((0, 1, 2, 3))
    for number in range(clean_count + rng.randint(1, 3)):
        body = b""
        for _ in range(rng.randint(1, 6)):
            count = rng.randint(1, 5)
            body += message_set(rng, offset, count, is_clean=number < clean_count)
            offset += count
        clean_to = offset if number < clean_count else clean_to
        segments.append(body)
    return OldLog(tuple(segments), clean_to)


def message_set(rng: random.Random, offset: int, count: int, *, is_clean: bool) -> bytes:
    """`count` messages of one format, each on its own or all in one wrapper."""
    magic, codec = rng.randrange(2), rng.choice(CODECS)
    kind = rng.choice((CREATE, CREATE, APPEND)) if magic else CREATE
    keys = [b"c%d" % (offset + at) if is_clean else _key(rng) for at in range(count)]
    fields = [(key, _value(rng), rng.randrange(50_000) if magic else -1) for key in keys]
    relative = bool(codec and magic)
    inner = [
        message(
            magic, at if relative else offset + at, key, value, timestamp_ms=time_ms, attributes=0 if codec else kind
        )
        for at, (key, value, time_ms) in enumerate(fields)
    ]
    if not codec:
        return b"".join(inner)
    time_ms = 60_000 if kind else max(time_ms for _, _, time_ms in fields)
    packed = compress(codec, b"".join(inner))
    return message(magic, offset + count - 1, None, packed, timestamp_ms=time_ms, attributes=codec | kind)


def lay_down(disk: ModelDisk | DiskStorage, directory: str, segments: Sequence[bytes], *, modified_ms: int) -> None:
    """The files of a closed partition. Each segment's file is one second younger than the one before."""
    disk.make_directory(directory)
    offset = 0
    for number, body in enumerate(segments):
        path = f"{directory}/{offset:020d}.log"
        file = disk.create(path)
        file.append(body)
        file.close()
        disk.set_modified_ms(path, modified_ms + 1000 * number)
        offset = next_offset(body)


def next_offset(body: bytes) -> int:
    at = last = 0
    while at < len(body):
        last, length = struct.unpack_from(">qi", body, at)
        at += 12 + length
    return last + 1


def _key(rng: random.Random) -> bytes | None:
    return None if rng.random() < 0.05 else b"k%d" % rng.randrange(8)


def _value(rng: random.Random) -> bytes | None:
    return None if rng.random() < 0.3 else bytes(rng.randrange(40))
