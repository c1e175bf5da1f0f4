"""A tier that was switched off for good: what is decided about it (KIP-950, `remote.log.delete.on.disable`).

First one decision, alone in its plan: the log begins where the disk does, and no row counts any more. From then on the
partition is to the other policies as one with nothing in its bucket. What was given up leaves the index in later
rounds, pages whole and rows as there is room for them, and its bytes a grace time later. Nothing is copied until it has
left, so a tier that is switched on again begins without a row; `policies.snapshot` has that in `is_copying_on`.
"""

from __future__ import annotations

from policies.decisions import ExpirePage, ExpireRemote, GiveUpRemote
from policies.remote_retention import expire_page, expire_row, room_for_rows
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import RemoteSegment

_REASON = "the tier was given up"


def give_ups(snapshot: PartitionSnapshot) -> list[GiveUpRemote]:
    """At most one: where the bucket holds something that counts, or the log begins below the disk."""
    if not (snapshot.is_tiered and snapshot.rules.gives_up_remote and snapshot.segments):
        return []
    starts_at = snapshot.segments[0].base_offset
    holds_something = bool(snapshot.committed_parts or snapshot.views)
    if not holds_something and snapshot.log_start_offset >= starts_at:
        return []
    return [
        GiveUpRemote(
            offset=max(starts_at, snapshot.log_start_offset),
            size_bytes=snapshot.committed_bytes,
            reason="remote.storage.enable=false, remote.log.delete.on.disable=true",
        )
    ]


def leaving_for_good(snapshot: PartitionSnapshot) -> list[ExpirePage | ExpireRemote]:
    """Of what was given up: all pages, unread, then as many rows as there is room for, oldest first."""
    rows = [part for part in snapshot.given_up if isinstance(part, RemoteSegment)]
    pages = [part for part in snapshot.given_up if not isinstance(part, RemoteSegment)]
    return [
        *(expire_page(page, _REASON) for page in pages),
        *(expire_row(row, _REASON) for row in rows[: room_for_rows(snapshot)]),
    ]
