"""Which rows of the store a later cleaning of the disk replaces, and which it only vouches for.

A segment that is on both tiers is cleaned again with the rest of the local log, and may come out smaller than what was
uploaded. Its row keeps the old records then, and with them every tombstone above it (I5: a tombstone leaves once all
rows below it are clean past it). Two remedies, both only for rows that a local segment *tiles exactly*, from the base
of the first to the next offset of the last, without a gap between them:

| the local segment | decision |
|---|---|
| lost enough | `ReplaceRemote`: it is uploaded, one row takes the place of those it tiles |
| lost less | none; rows and tombstones stay until it has lost enough, or retention takes the rows |
| lost no record | `RaiseCleaned`: the rows are as clean as the disk, one commit says so |
| lost less or none, and a job wrote a row (`made_by`) | none: row and segment may have lost different records |

Enough is both the share `remote.recompaction.min.reduction.ratio` and `remote.recompaction.min.saved.bytes`. Whether a
segment that is about as large lost a record is seen when it is looked at; `PartitionSnapshot.shrunk` tells which did,
so that nobody looks twice. A segment that covers a row partly (the log start has passed the first rows of a merged
one) is left alone: rows are replaced whole or not at all.

Nothing is done before the bucket holds all that is clean (`PartitionSnapshot.clean_cut`): a row whose older records
went for the sake of newer ones that only the disk has would lose both with the disk.

With a ratio of 0.5, the default, every upload is at most half of what it replaces, so all of them together stay below
twice the first one. The other limit is a price: a replacement is three PUTs (data, indexes, head) for 0.000015 USD,
which is what 1 MiB costs in three weeks (S3 Standard: 5 USD a million PUTs, 0.023 USD a GB and month).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter

from local.segment.segment_info import SegmentInfo
from policies.decisions import RaiseCleaned, ReplaceRemote
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import RemoteSegment


def replacements(
    snapshot: PartitionSnapshot, *, going: AbstractSet[str] = frozenset()
) -> list[ReplaceRemote | RaiseCleaned]:
    """What to do about the rows that a local segment tiles, in the order of offsets; not about those that are `going`.

    `going` are the ulids of the rows that the same plan expires.
    """
    cut = snapshot.clean_cut
    if not snapshot.rules.cleanup_compact or not snapshot.is_copying_on or cut == 0 or not _holds_all(snapshot, cut):
        return []
    found: list[ReplaceRemote | RaiseCleaned] = []
    for segment in snapshot.closed:
        if segment.next_offset > cut or segment.is_empty or segment.base_offset in snapshot.copying:
            continue
        rows = tiled(snapshot.committed, segment.base_offset, segment.next_offset)
        if rows and segment.next_offset > snapshot.log_start_offset and going.isdisjoint(row.ulid for row in rows):
            found += _decided(snapshot, segment, rows, cut)
    return found


def tiled(rows: Sequence[RemoteSegment], base_offset: int, next_offset: int) -> tuple[RemoteSegment, ...]:
    """The rows that tile ``[base_offset, next_offset)`` exactly, each beginning where the last one ended; else none.

    `rows` ascend and do not overlap.
    """
    first = bisect_left(rows, base_offset, key=attrgetter("base_offset"))
    found: list[RemoteSegment] = []
    reached = base_offset
    while reached < next_offset and first + len(found) < len(rows):
        row = rows[first + len(found)]
        if row.base_offset != reached:
            break
        found.append(row)
        reached = row.next_offset
    return tuple(found) if reached == next_offset else ()


def _holds_all(snapshot: PartitionSnapshot, cut: int) -> bool:
    """Whether every local record below `cut` is in the store."""
    return all(snapshot.has_safe_copy(each) for each in snapshot.closed if each.next_offset <= cut)


def _decided(
    snapshot: PartitionSnapshot, segment: SegmentInfo, rows: Sequence[RemoteSegment], cut: int
) -> list[ReplaceRemote | RaiseCleaned]:
    if min(row.cleaned_through or 0 for row in rows) >= cut:
        return []
    remote_bytes = sum(row.size_bytes for row in rows)
    saved_bytes = remote_bytes - segment.size_bytes
    ulids = tuple(row.ulid for row in rows)
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
    if segment.base_offset in snapshot.shrunk or any(row.made_by is not None for row in rows):
        return []
    return [
        RaiseCleaned(
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            ulids=ulids,
            cleaned_through=cut,
            reason=f"cleaned again through {cut}, nothing to replace",
        )
    ]
