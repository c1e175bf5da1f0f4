"""Decisions about a disabled remote tier (KIP-950, `remote.log.delete.on.disable`).

Order of effects:

1. One decision, alone in its plan: the log start rises to the start of the local log, and no entry counts any more.
2. From then on all other policies see a partition with an empty bucket.
3. Later plans unlink the old pages whole, and the old entries as far as there is room.
4. The bytes are deleted a grace period later.

Nothing is copied until step 3 is complete (`PartitionSnapshot.is_copying_on`). So a tier that is enabled again begins
without entries.
"""

from __future__ import annotations

from policies.decisions import DisableTier, ExpirePage, ExpireRemote
from policies.remote_retention import expire_entry, expire_page, room_for_entries
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry

_REASON = "the remote tier is disabled"


def disablings(snapshot: PartitionSnapshot) -> list[DisableTier]:
    """Return at most one decision.

    It exists if the bucket holds entries or views that count, or if the log begins below the disk.
    """
    if not (snapshot.is_tiered and snapshot.rules.gives_up_remote and snapshot.segments):
        return []
    starts_at = snapshot.segments[0].base_offset
    holds_something = bool(snapshot.committed_parts or snapshot.views)
    if not holds_something and snapshot.log_start_offset >= starts_at:
        return []
    return [
        DisableTier(
            offset=max(starts_at, snapshot.log_start_offset),
            size_bytes=snapshot.committed_bytes,
            reason="remote.storage.enable=false, remote.log.delete.on.disable=true",
        )
    ]


def leaving_for_good(snapshot: PartitionSnapshot) -> list[ExpirePage | ExpireRemote]:
    """Return the parts of a disabled tier to unlink now: all pages unread, then entries as far as there is room.

    Both are oldest first.
    """
    entries = [part for part in snapshot.tier_disabled if isinstance(part, SegmentEntry)]
    pages = [part for part in snapshot.tier_disabled if not isinstance(part, SegmentEntry)]
    return [
        *(expire_page(page, _REASON) for page in pages),
        *(expire_entry(entry, _REASON) for entry in entries[: room_for_entries(snapshot)]),
    ]
