"""Collecting old heads: only the newest counts, but for readers that are about to look at one, and for pins.

Order of effects, and what a crash after each leaves:

1. Prove from the store that we are the writer. Nothing.
2. Create the boundary (`remote.manifest.manifest_chain`): every sequence up to it is void from here on. The heads are
   still there and nobody takes them for the newest; the next collection removes them.
3. Delete them, but for pinned ones, and pins that expired RENEWAL_LAG_MS ago (those of forks: once the fork is no
   more); until then a holder may be renewing one, to rely on it. Some are gone: the next collection lists the others.

A stall of any length between two steps is harmless: the boundary lies KEPT heads below a head that was the newest, so
every later one is above it, whoever writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.gc.fork_references import is_over
from remote.gc.pin_watch import RENEWAL_LAG_MS
from remote.gc.pins import list_pins, release
from remote.keys import HEADS, parse_head_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """`heads` and `pins` that were removed; `void_upto` is the boundary now."""

    void_upto: int
    heads: int
    pins: int


def collect_heads(store: ObjectStore, prefix: str, log: MetadataLog, upto: int, *, now_ms: int) -> Collected:
    """Collect the heads up to sequence `upto`, which must lie below the newest. Raises Fenced."""
    head = log.check_still_writer()
    upto = min(upto, head.sequence - 1)
    if upto < 1:
        return Collected(void_upto=log.void_upto, heads=0, pins=0)
    log.make_void(upto)
    pins = list_pins(store, prefix)
    lapsed_ms = now_ms if head.deleted_ms is not None else now_ms - RENEWAL_LAG_MS  # nobody renews one of what is gone
    expired = [pin for pin in pins if pin.expires_ms <= lapsed_ms and (pin.fork is None or is_over(store, pin.fork))]
    held = {pin.sequence for pin in pins if pin.expires_ms > now_ms}
    gone = []
    for info in store.list(prefix + HEADS):
        sequence = parse_head_key(info.key.removeprefix(prefix))
        if sequence is not None and sequence > log.void_upto:
            break
        if sequence is not None and sequence not in held:
            gone.append(info.key)
    store.delete(gone)
    release(store, prefix, expired)
    return Collected(void_upto=log.void_upto, heads=len(gone), pins=len(expired))
