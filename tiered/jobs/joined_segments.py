"""Neighbouring tiered segments as one segment: concatenated bytes and joined indexes.

- An offset index entry is moved by the number of bytes before its part.
- A time index entry is used only if its time is later than all times before it.
- The first batch of a part gets an offset index entry of its own if the last entry is too far back.

The upload checks every index entry (`SegmentInspector`). Memory: the indexes of all parts, the chunk cache of `remote`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from local.errors import Corrupt
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index
from local.verify.segment_checks import INTERVAL_BYTES
from remote.fetch.range_reader import RemotePartition
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import combine
from remote.upload.segment_upload import SegmentToCopy
from tiered.partition.segment_inspection import SegmentInspector


def joined(remote: RemotePartition, entries: Sequence[SegmentEntry]) -> SegmentToCopy:
    """Return `entries`, neighbours without a gap, as one segment. Raises NotFound if expired, Corrupt if damaged."""
    bundles = [remote.indexes(entry) for entry in entries]
    starts = list(accumulate((entry.size_bytes for entry in entries), initial=0))
    base, following = entries[0].base_offset, entries[-1].next_offset
    epochs = joined_epochs(entries)
    cleaned = [entry.cleaned_through for entry in entries if entry.cleaned_through is not None]
    newest = [entry.max_timestamp_ms for entry in entries if entry.max_timestamp_ms is not None]
    oldest = [entry.min_timestamp_ms for entry in entries if entry.min_timestamp_ms is not None]
    offsets = _offset_entries(remote, entries, starts)
    indexes = (
        b"".join(offset_index.pack(base, offset, position) for offset, position in offsets),
        b"".join(time_index.pack(base, time_ms, offset) for time_ms, offset in _time_entries(remote, entries)),
    )
    return SegmentToCopy(
        base_offset=base,
        next_offset=following,
        size_bytes=starts[-1],
        record_count=sum(entry.record_count for entry in entries),
        max_timestamp_ms=max(newest, default=None),
        min_timestamp_ms=min(oldest, default=None),
        epochs=epochs,
        offset_index=indexes[0],
        time_index=indexes[1],
        txn_index=b"".join(bytes(bundle.txn) for bundle in bundles),
        producer_snapshot=bytes(bundles[-1].producers),
        leader_epochs=bytes(bundles[-1].epochs),
        cleaned_through=min(cleaned) if len(cleaned) == len(entries) else None,
        read=partial(_read, remote, entries, starts),
        inspect=partial(SegmentInspector, entries[0].data_key, base, following, epochs, indexes),
    )


def check_same_bytes(entry: SegmentEntry, entries: Sequence[SegmentEntry]) -> None:
    """Check by checksum that `entry` has the bytes of `entries`, one after another. Raises Corrupt."""
    expected = combine([each.content_crc32c for each in entries], [each.size_bytes for each in entries])
    if entry.content_crc32c != expected:
        facts = {"expected": f"{expected:08x}", "found": f"{entry.content_crc32c:08x}", "object": entry.data_key}
        raise Corrupt("cannot rewrite segments, the bytes of the copy differ", base_offset=entry.base_offset, **facts)


def joined_epochs(entries: Sequence[SegmentEntry]) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of neighbours, without starts that repeat the epoch."""
    found: list[tuple[int, int]] = []
    for epoch, start in (each for entry in entries for each in entry.epochs):
        if not found or found[-1][0] != epoch:
            found.append((epoch, start))
    return tuple(found)


def _offset_entries(
    remote: RemotePartition, entries: Sequence[SegmentEntry], starts: Sequence[int]
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for entry, start in zip(entries, starts, strict=False):
        reached = found[-1][1] if found else 0
        if start - reached > INTERVAL_BYTES:
            header = read_header(remote.read(entry, 0, HEADER_BYTES))
            if header is None:
                raise Corrupt("cannot merge segments, a segment does not begin with a batch", object=entry.data_key)
            found.append((header.last_offset, start))
        known = offset_index.entries(bytes(remote.indexes(entry).offset), entry.base_offset)
        found += [(offset, start + position) for offset, position in known if not found or offset > found[-1][0]]
    return found


def _time_entries(remote: RemotePartition, entries: Sequence[SegmentEntry]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    latest = -1
    for entry in entries:
        known = time_index.entries(bytes(remote.indexes(entry).time), entry.base_offset)
        found += [(time_ms, offset) for time_ms, offset in known if time_ms > latest]
        latest = max(latest, entry.max_timestamp_ms if entry.max_timestamp_ms is not None else -1)
    return found


def _read(
    remote: RemotePartition, entries: Sequence[SegmentEntry], starts: Sequence[int], start: int, length: int
) -> bytes | memoryview:
    parts = []
    at = bisect_right(starts, start) - 1
    while length > 0 and at < len(entries):
        inside = start - starts[at]
        piece = remote.read(entries[at], inside, min(length, entries[at].size_bytes - inside))
        parts.append(piece)
        start, length, at = start + len(piece), length - len(piece), at + 1
    return parts[0] if len(parts) == 1 else b"".join(parts)
