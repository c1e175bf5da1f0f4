"""When old manifests are deleted: rarely enough to cost nothing, and before listing them gets slow.

Only the newest manifest is valid, but older ones have readers:

- A reader may be between learning a sequence and reading that manifest.
- A pin needs the manifest that it was made for (`remote.gc.pins`).

So the newest HEADS_KEPT manifests stay.
"""

from __future__ import annotations

from policies.decisions import CollectHeads
from policies.snapshot import PartitionSnapshot

HEADS_KEPT = 200
HEADS_AT_ONCE = 200  # each deletion leaves a permanent boundary object


def head_collections(snapshot: PartitionSnapshot) -> list[CollectHeads]:
    """Return at most one collection, once HEADS_AT_ONCE manifests more than HEADS_KEPT exist."""
    upto = collectable_upto(snapshot.head_sequence, snapshot.heads_void_upto)
    if not upto:
        return []
    due = upto - snapshot.heads_void_upto
    return [CollectHeads(upto_sequence=upto, reason=f"{due} old heads, the newest {HEADS_KEPT} are kept")]


def collectable_upto(sequence: int, void_upto: int) -> int:
    """Return the sequence up to which manifests may be deleted; 0 while there are few.

    `sequence` is the newest manifest's. Manifests up to `void_upto` are void already.
    """
    upto = sequence - HEADS_KEPT
    return upto if upto - void_upto >= HEADS_AT_ONCE else 0
