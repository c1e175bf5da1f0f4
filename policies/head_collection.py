"""When old heads of the index are collected: so rarely that it costs nothing, so often that listing heads stays short.

Only the newest head counts, but a reader may be between learning its number and reading it, and a pin needs the head
that it was made for (`remote.pins`), so the newest HEADS_KEPT stay.
"""

from __future__ import annotations

from policies.decisions import CollectHeads
from policies.snapshot import PartitionSnapshot

HEADS_KEPT = 200
HEADS_AT_ONCE = 200  # each collection leaves a boundary object for good


def head_collections(snapshot: PartitionSnapshot) -> list[CollectHeads]:
    """At most one, when HEADS_AT_ONCE more heads are there than are kept."""
    upto = snapshot.head_sequence - HEADS_KEPT
    due = upto - snapshot.heads_void_upto
    if due < HEADS_AT_ONCE:
        return []
    return [CollectHeads(upto_sequence=upto, reason=f"{due} old heads, the newest {HEADS_KEPT} are kept")]
