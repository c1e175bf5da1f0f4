"""Sample entries and manifests."""

from __future__ import annotations

from local.format.crc32c import crc32c
from remote.keys import data_key, indexes_key
from remote.manifest.manifest import STORED_MANIFEST, Manifest, encode_line
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import CHUNK_BYTES, ChunkTable


def entry(ulid="U1", base_offset=0, next_offset=10, **changes):
    facts = {
        "ulid": ulid,
        "base_offset": base_offset,
        "next_offset": next_offset,
        "size_bytes": 100,
        "stored_bytes": 100,
        "record_count": 9,
        "max_timestamp_ms": 1_600_000_000_000,
        "min_timestamp_ms": None,
        "epochs": ((0, 0), (2, 4)),
        "data_crc32c": 0xFFFFFFFF,
        "data_key": f"data/{ulid}.log",
        "indexes_key": f"data/{ulid}.indexes",
        "indexes_bytes": 50,
        "indexes": {"offset": IndexRange(start=0, length=8)},
    }
    return SegmentEntry(**{**facts, **changes})


def ulid_of(name):
    """A ULID for the short name of a sample."""
    return name.upper().translate(str.maketrans("ILOU", "1109")).rjust(26, "0")


def stored_row(name="U1", base_offset=0, next_offset=10, *, view=None, epoch=1, **changes):
    """A valid manifest entry: legal ULID and object names, epochs that begin at its base offset."""
    names = base_offset, next_offset - 1, epoch, ulid_of(name)
    facts = {
        "data_key": data_key(*names, view=view),
        "indexes_key": indexes_key(*names, view=view),
        "epochs": ((0, base_offset), *([(2, base_offset + 4)] if base_offset + 4 < next_offset else [])),
    }
    return entry(ulid_of(name), base_offset, next_offset, **{**facts, **changes})


def manifest(*entries, **changes):
    facts = {
        "sequence": 7,
        "epoch": 3,
        "commit_id": "C7",
        "parent_id": "C6",
        "writer_id": "host-1",
        "topic": "orders",
        "topic_id": "A" * 22,
        "partition": 2,
        "log_start_offset": 0,
        "committed_ms": 1_700_000_000_000,
        "segments": entries,
        "properties": {},
    }
    return Manifest(**{**facts, **changes})


def forged(manifest):
    """The bytes of a manifest that no writer would produce."""
    return encode_line(STORED_MANIFEST.encode(manifest))


def table_of(data, chunk_bytes=CHUNK_BYTES):
    """The chunk table of bytes in memory that are stored unchanged."""
    view = memoryview(data)
    chunks = [view[at : at + chunk_bytes] for at in range(0, len(view), chunk_bytes)]
    return ChunkTable(lengths=tuple(map(len, chunks)), crcs=tuple(map(crc32c, chunks)))
