"""Which entries a cleaned local segment replaces, and which it only confirms as clean.

A segment that is on both tiers is cleaned again with the local log, and may become smaller than its uploaded copy. Its
entry then keeps the old records, and so every tombstone above it stays (I5: a tombstone is removed once all entries
below it are clean past it).

Both remedies apply only to entries that a local segment *tiles exactly*: from the base of the first entry to the next
offset of the last one, without a gap.

| the local segment | decision |
|---|---|
| lost enough | `ReplaceRemote`: it is uploaded, and one entry replaces the entries it tiles |
| lost less | none; entries and tombstones stay until it has lost enough, or retention expires the entries |
| lost no record | `AdvanceCleanedOffset`: the entries are as clean as the disk, one commit records it |
| lost less or none, and a job wrote an entry (`made_by`) | none: entry and segment may have lost different records |
| any, and a job erased records of an entry (`is_redacted`) | none: the segment may still have these records |

"Enough" means both `remote.recompaction.min.reduction.ratio` and `remote.recompaction.min.saved.bytes`. For a segment
of about equal size only a comparison shows whether it lost a record. `PartitionSnapshot.shrunk` holds the segments that
did, so that no segment is compared twice.

A segment that covers an entry partly is left alone, because entries are replaced whole or not at all. This happens when
the log start has passed the first entries of a merged segment.

Nothing happens before the bucket holds all clean records (`PartitionSnapshot.clean_cut`). An older record may be gone
because of a newer one that only the disk has. Losing the disk would then lose both.

Cost: with the default ratio of 0.5 every upload is at most half of the bytes it replaces, so all uploads together stay
below twice the first one. The byte limit is a price: a replacement is three PUTs (data, indexes, manifest) for 0.000015
USD, the price of 1 MiB for three weeks (S3 Standard: 5 USD a million PUTs, 0.023 USD a GB and month).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter

from local.segment.segment_info import SegmentInfo
from policies.decisions import AdvanceCleanedOffset, ReplaceRemote
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry


def replacements(
    snapshot: PartitionSnapshot, *, going: AbstractSet[str] = frozenset()
) -> list[ReplaceRemote | AdvanceCleanedOffset]:
    """Return the decisions about entries that a local segment tiles, in offset order.

    `going` are the ulids of entries that the same plan expires; these are skipped.
    """
    cut = snapshot.clean_cut
    if not snapshot.rules.cleanup_compact or not snapshot.is_copying_on or cut == 0 or not _holds_all(snapshot, cut):
        return []
    found: list[ReplaceRemote | AdvanceCleanedOffset] = []
    for segment in snapshot.closed:
        if segment.next_offset > cut or segment.is_empty or segment.base_offset in snapshot.copying:
            continue
        entries = tiled(snapshot.committed, segment.base_offset, segment.next_offset)
        if (
            entries
            and segment.next_offset > snapshot.log_start_offset
            and going.isdisjoint(entry.ulid for entry in entries)
        ):
            found += _decided(snapshot, segment, entries, cut)
    return found


def tiled(entries: Sequence[SegmentEntry], base_offset: int, next_offset: int) -> tuple[SegmentEntry, ...]:
    """Return the entries that tile ``[base_offset, next_offset)`` exactly, else none.

    Each entry begins at the next offset of the one before. `entries` ascend and do not overlap.
    """
    first = bisect_left(entries, base_offset, key=attrgetter("base_offset"))
    found: list[SegmentEntry] = []
    reached = base_offset
    while reached < next_offset and first + len(found) < len(entries):
        entry = entries[first + len(found)]
        if entry.base_offset != reached:
            break
        found.append(entry)
        reached = entry.next_offset
    return tuple(found) if reached == next_offset else ()


def _holds_all(snapshot: PartitionSnapshot, cut: int) -> bool:
    """Whether every local record below `cut` is in the store."""
    return all(snapshot.has_safe_copy(each) for each in snapshot.closed if each.next_offset <= cut)


def _decided(
    snapshot: PartitionSnapshot, segment: SegmentInfo, entries: Sequence[SegmentEntry], cut: int
) -> list[ReplaceRemote | AdvanceCleanedOffset]:
    if min(entry.cleaned_through or 0 for entry in entries) >= cut or any(entry.is_redacted for entry in entries):
        return []
    remote_bytes = sum(entry.size_bytes for entry in entries)
    saved_bytes = remote_bytes - segment.size_bytes
    ulids = tuple(entry.ulid for entry in entries)
    rules = snapshot.rules
    if saved_bytes >= max(rules.recompaction_min_reduction * remote_bytes, rules.recompaction_min_saved_bytes, 1):
        return [
            ReplaceRemote(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                ulids=ulids,
                size_bytes=segment.size_bytes,
                remote_bytes=remote_bytes,
                reason=f"cleaned again, {saved_bytes} of {remote_bytes} bytes less",
            )
        ]
    if segment.base_offset in snapshot.shrunk or any(entry.made_by is not None for entry in entries):
        return []
    return [
        AdvanceCleanedOffset(
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            ulids=ulids,
            cleaned_through=cut,
            reason=f"cleaned again up to {cut}, there is nothing to replace",
        )
    ]
