"""Delete old manifests, except pinned ones.

Only the newest manifest counts, except for readers that are about to read an old one, and for pins.

Order of effects, and what a crash after each leaves:

1. Prove from the store that this process is still the writer. A crash leaves nothing.
2. Create the GC boundary (`remote.manifest.manifest_chain`): every sequence up to it is void. A crash leaves the
   manifests in place. No reader takes them for the newest; the next run deletes them.
3. Delete the void manifests except pinned ones. Delete pins that expired RENEWAL_LAG_MS ago, because until then a
   holder may be renewing a pin to rely on it. Delete a fork's pin only once the fork names nothing and never will. A
   crash leaves some of them; the next run lists the rest.

A stall of any length between two steps is harmless. The boundary is KEPT manifests below a manifest that was the
newest, so every later manifest is above it, regardless of its writer.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.gc.fork_references import is_over
from remote.gc.object_deletion import DeleteReason, Evidence, delete_objects
from remote.gc.pin_watch import RENEWAL_LAG_MS
from remote.gc.pins import list_pins, release
from remote.keys import MANIFESTS, parse_manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Result of one run: deleted `manifests` (manifests) and `pins`; `gc_boundary` is the current GC boundary."""

    gc_boundary: int
    manifests: int
    pins: int


def collect_manifests(store: ObjectStore, prefix: str, log: MetadataLog, upto: int, *, now_ms: int) -> Collected:
    """Delete the manifests up to sequence `upto`, which must be below the newest. Raises Fenced."""
    manifest = log.check_still_writer()
    upto = min(upto, manifest.sequence - 1)
    if upto < 1:
        return Collected(gc_boundary=log.gc_boundary, manifests=0, pins=0)
    log.set_gc_boundary(upto)
    pins = list_pins(store, prefix)
    lapsed_ms = now_ms if manifest.deleted_ms is not None else now_ms - RENEWAL_LAG_MS  # no renewal after a deletion
    expired = [pin for pin in pins if pin.expires_ms <= lapsed_ms and (pin.fork is None or is_over(store, pin.fork))]
    held = {pin.sequence for pin in pins if pin.expires_ms > now_ms}
    void = []
    for info in store.list(prefix + MANIFESTS):
        key = info.key.removeprefix(prefix)
        sequence = parse_manifest_key(key)
        if sequence is not None and sequence > log.gc_boundary:
            break
        if sequence is not None and sequence not in held:
            void.append(key)
    delete_objects(store, prefix, void, DeleteReason.OLD_MANIFEST, Evidence(gc_boundary=log.gc_boundary))
    release(store, prefix, expired)
    return Collected(gc_boundary=log.gc_boundary, manifests=len(void), pins=len(expired))
