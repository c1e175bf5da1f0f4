"""When old manifests are deleted: rarely enough to cost nothing, and before listing them gets slow.

Only the newest manifest is valid, but older ones have readers:

- A reader may be between learning a sequence and reading that manifest.
- A pin needs the manifest that it was made for (`remote.gc.pins`).

So the newest MANIFESTS_KEPT manifests stay.
"""

from __future__ import annotations

from policies.decisions import CollectManifests
from policies.snapshot import PartitionSnapshot

MANIFESTS_KEPT = 200
MANIFESTS_AT_ONCE = 200  # each deletion leaves a permanent boundary object


def manifest_collections(snapshot: PartitionSnapshot) -> list[CollectManifests]:
    """Return at most one collection, once MANIFESTS_AT_ONCE manifests more than MANIFESTS_KEPT exist."""
    upto = collectable_upto(snapshot.head_sequence, snapshot.heads_void_upto)
    if not upto:
        return []
    due = upto - snapshot.heads_void_upto
    return [CollectManifests(upto_sequence=upto, reason=f"{due} old heads, the newest {MANIFESTS_KEPT} are kept")]


def collectable_upto(sequence: int, void_upto: int) -> int:
    """Return the sequence up to which manifests may be deleted; 0 while there are few.

    `sequence` is the newest manifest's. Manifests up to `void_upto` are void already.
    """
    upto = sequence - MANIFESTS_KEPT
    return upto if upto - void_upto >= MANIFESTS_AT_ONCE else 0
