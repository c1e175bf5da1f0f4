"""A segment of a foreign bucket that has grown since a part of it was imported: which part is due.

A directory of logs is copied as it is, its newest segment half full perhaps; when it is imported again, that segment
has its other half. The rows that were made of the first part tile it from its base on, and their bytes are its first
ones: looked at by the checksums before the rest is taken (`Grown.check`). Whatever else ends inside a segment was cut
in another way, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from local.errors import Conflict
from local.format.crc32c import crc32c
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.segment_entry import RemoteSegment
from remote.segments.chunk_table import combine

READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """`row` is what is due: the source's from the offset that was reached on, its first `skipped_bytes` left out."""

    row: RemoteSegment
    skipped_bytes: int
    skipped_crc32c: int

    def check(self, read: Callable[[int, int], bytes]) -> None:
        """That the segment still begins with the bytes that were imported. Raises Conflict."""
        found = 0
        for at in range(0, self.skipped_bytes, READ_BYTES):
            found = crc32c(read(at, min(READ_BYTES, self.skipped_bytes - at)), found)
        if found != self.skipped_crc32c:
            raise _other(self.row)


def grown(rows: Sequence[RemoteSegment], log: MetadataLog, head: Head, reached: int) -> Grown | None:
    """The segment of the source that goes on where the target ends, inside it; None where none has that inside it.

    Raises Conflict where what the target has of it is no beginning of it.
    """
    inside = next((row for row in rows if row.base_offset < reached < row.next_offset), None)
    if inside is None:
        return None
    known = log.ask(head, lambda index: list(index.rows_with_dead(inside.base_offset, reached)))
    bounds = [inside.base_offset, *(row.next_offset for row in known)]
    size = sum(row.size_bytes for row in known)
    if [row.base_offset for row in known] != bounds[:-1] or bounds[-1] != reached or size >= inside.size_bytes:
        raise _other(inside)
    return Grown(
        row=replace(inside, base_offset=reached, size_bytes=inside.size_bytes - size),
        skipped_bytes=size,
        skipped_crc32c=combine([row.content_crc32c for row in known], [row.size_bytes for row in known]),
    )


def _other(row: RemoteSegment) -> Conflict:
    wrong = "going on with an import, the source has other segments there by now: import to a new topic"
    return Conflict(wrong, object=row.data_key, base_offset=row.base_offset)
