"""The rest of a segment of an external bucket that has grown since an import took its first part.

A copied log directory may hold a half-full newest segment. At a second import that segment may be longer. The entries
of the first part tile the segment from its base offset, and their bytes are its first bytes: `Grown.check` compares
checksums before the rest is imported. A segment that was cut in another way is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from local.errors import Conflict
from local.format.crc32c import crc32c
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import combine

READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The part of a segment to import: `entry` is the source's, from the offset reached so far.

    Its first `skipped_bytes` are already in the target.
    """

    entry: SegmentEntry
    skipped_bytes: int
    skipped_crc32c: int

    def check(self, read: Callable[[int, int], bytes]) -> None:
        """Check that the segment still begins with the imported bytes. Raises Conflict if it does not."""
        found = 0
        for at in range(0, self.skipped_bytes, READ_BYTES):
            found = crc32c(read(at, min(READ_BYTES, self.skipped_bytes - at)), found)
        if found != self.skipped_crc32c:
            raise _other(self.entry)


def grown(entries: Sequence[SegmentEntry], log: MetadataLog, manifest: Manifest, reached: int) -> Grown | None:
    """The rest of the source segment in which the target ends; None if the target ends inside no segment.

    Raises Conflict if the target's entries are not the beginning of that segment.
    """
    inside = next((entry for entry in entries if entry.base_offset < reached < entry.next_offset), None)
    if inside is None:
        return None
    known = log.ask(manifest, lambda index: list(index.entries_with_dead(inside.base_offset, reached)))
    bounds = [inside.base_offset, *(entry.next_offset for entry in known)]
    size = sum(entry.size_bytes for entry in known)
    if [entry.base_offset for entry in known] != bounds[:-1] or bounds[-1] != reached or size >= inside.size_bytes:
        raise _other(inside)
    return Grown(
        entry=replace(inside, base_offset=reached, size_bytes=inside.size_bytes - size),
        skipped_bytes=size,
        skipped_crc32c=combine([entry.content_crc32c for entry in known], [entry.size_bytes for entry in known]),
    )


def _other(entry: SegmentEntry) -> Conflict:
    wrong = (
        "cannot resume the import, the source has other segments for offsets that were imported: import to a new topic"
    )
    return Conflict(wrong, object=entry.data_key, base_offset=entry.base_offset)
