"""When old manifests are deleted: rarely enough to cost nothing, and before listing them gets slow.

Only the newest manifest is valid, but older ones have readers:

- A reader may be between learning a sequence and reading that manifest.
- A pin needs the manifest that it was made for (`remote.gc.pins`).

So the newest MANIFESTS_RETAINED manifests stay.
"""

from __future__ import annotations

from policies.decisions import CollectManifests
from policies.snapshot import PartitionSnapshot

MANIFESTS_RETAINED = 200
MANIFESTS_AT_ONCE = 200  # each deletion leaves a permanent boundary object


def manifest_collections(snapshot: PartitionSnapshot) -> list[CollectManifests]:
    """Return at most one collection, once MANIFESTS_AT_ONCE manifests more than MANIFESTS_RETAINED exist."""
    upto = collectable_upto(snapshot.head_sequence, snapshot.manifests_gc_boundary)
    if not upto:
        return []
    due = upto - snapshot.manifests_gc_boundary
    return [
        CollectManifests(upto_sequence=upto, reason=f"{due} old manifests, the newest {MANIFESTS_RETAINED} are kept")
    ]


def collectable_upto(sequence: int, gc_boundary: int) -> int:
    """Return the sequence up to which manifests may be deleted; 0 while there are few.

    `sequence` is the newest manifest's. Manifests up to `gc_boundary` are void already.
    """
    upto = sequence - MANIFESTS_RETAINED
    return upto if upto - gc_boundary >= MANIFESTS_AT_ONCE else 0
