"""When old heads of the index are collected: so rarely that it costs nothing, so often that listing heads stays short.

Only the newest head counts, but a reader may be between learning its number and reading it, and a pin needs the head
that it was made for (`remote.gc.pins`), so the newest HEADS_KEPT stay.
"""

from __future__ import annotations

from policies.decisions import CollectHeads
from policies.snapshot import PartitionSnapshot

HEADS_KEPT = 200
HEADS_AT_ONCE = 200  # each collection leaves a boundary object for good


def head_collections(snapshot: PartitionSnapshot) -> list[CollectHeads]:
    """At most one, when HEADS_AT_ONCE more heads are there than are kept."""
    upto = collectable_upto(snapshot.head_sequence, snapshot.heads_void_upto)
    if not upto:
        return []
    due = upto - snapshot.heads_void_upto
    return [CollectHeads(upto_sequence=upto, reason=f"{due} old heads, the newest {HEADS_KEPT} are kept")]


def collectable_upto(sequence: int, void_upto: int) -> int:
    """Up to which sequence heads may go where `sequence` is the newest and those up to `void_upto` are void already; 0
    while they are few."""
    upto = sequence - HEADS_KEPT
    return upto if upto - void_upto >= HEADS_AT_ONCE else 0
