"""Protect the objects that forks name from deletion.

A fork is a topic with entries that name another topic's objects (`remote.keys.key_in_other_topic`). It has manifests,
pages and an epoch of its own. Its **home** is the partition that holds the objects under its prefix.

- The home applies retention and deletion as if it had no fork, except for the last step: it removes an object that a
  fork names from its list of pending deletes, but does not delete the object. From then on the fork holds the object.
- A fork only unlinks the objects of other partitions. Once no manifest names such an object, it is an orphan.
- A pin with the field `fork` (`remote.gc.pins`) announces a fork to its home. Every deletion lists the pins first, so
  it finds the fork. A fork needs all objects that its newest manifest names, its pending deletes, and all that its
  readers' pins hold.

| state of a fork | effect that leads to it | a crash after it leaves |
|---|---|---|
| announced | pin the source's newest manifest, with the fork's prefix in the pin | a pin that expires |
| started | the fork's manifests, no entries: epoch above the source's, log start offset | the same; the fork is empty |
| filled | commit a manifest with all entries (its pages first) | a fork that may lack objects: not checked yet |
| whole | checked: the pin is valid, the source's newest manifest names all its objects | a fork, a pin that expires |
| done | end the pin; its field `fork` stays | |

Why the check is enough, without a clock:

1. At the time of the check three durable things name the object: the announcement, a manifest of the fork, and the
   newest manifest of the source.
2. A later deletion unlinks the object after the check, and lists the forks after that.
3. If the source is a fork itself, other homes hold some of its objects. The announcement reaches these homes before the
   fork names anything, and the same check of the source's manifest protects the objects.
4. A clock counts in one place: an announcement may expire before the fork exists. GC may then decide to delete it, and
   do so much later. So the check requires a pin with time left.
5. A reader of the forks' manifests lists the forks before **and** after it reads the manifests, because a new fork
   could appear in between and the old one disappear.

A second run takes over the fork's epoch before its check, and removes nothing once a pin of the fork has ended. The run
that made the fork then checks that the epoch is still its own; otherwise it reports no success. So a fork that was
reported as whole stays.

A failed check (the forking process slept past its pin's expiry) removes the fork; the caller creates it again. A fork
that another run left in state filled is removed too, unless its entries pass the same check. The removal starts with a
mark in the epoch of the check: a run that took the fork over since then, and may have reported success, has fenced the
removal. The next run that forks to this name completes an interrupted removal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from remote.gc.object_deletion import DeleteReason, Evidence, delete_objects
from remote.gc.pins import Pin, list_pins
from remote.keys import home_of, is_in_other_topic, key_in_other_topic
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.page_out import entries_unless_deleted, named_by
from remote.store import ObjectStore


def delete_unlinked(
    store: ObjectStore,
    prefix: str,
    keys: Collection[str],
    reason: DeleteReason,
    manifest: Manifest,
    *,
    has_forks: bool = True,
) -> None:
    """Delete unlinked objects of a partition, except objects of other partitions and objects that a fork names.

    `manifest` lists them. It is the newest, read to prove the caller's epoch after no pin held them. Without
    `has_forks` the caller listed the pins after all of `keys` had been unlinked, and found no fork. No fork that counts
    can have appeared since: its source's manifest must name the object after its announcement, and the home was the
    only source (`remote.gc.pins.PinWatch`).
    """
    own = [key for key in keys if not is_in_other_topic(key)]
    held = named_by_forks(store, prefix) if own and has_forks else frozenset()
    evidence = Evidence(manifest=manifest, named_by_forks=held)
    delete_objects(store, prefix, [key for key in own if key not in held], reason, evidence)


def named_by_forks(store: ObjectStore, prefix: str) -> frozenset[str]:
    """The objects that forks name; keys relative to `prefix`. Raises as `named_by_fork`."""
    forks = forks_of(list_pins(store, prefix))
    while True:
        named = {key for fork in forks for key in named_by_fork(store, fork)}
        again = forks_of(list_pins(store, prefix)) if forks else forks
        if again <= forks:
            own = (key for key in named if is_in_other_topic(key) and home_of(key) == prefix)
            return frozenset(key.removeprefix(f"/{prefix}") for key in own)
        forks |= again


def forks_of(pins: Iterable[Pin]) -> set[str]:
    return {pin.fork for pin in pins if pin.fork is not None}


def homes_of(keys: Collection[str], prefix: str) -> set[str]:
    return {home_of(key_in_other_topic(prefix, key)) for key in keys}


def named_by_fork(store: ObjectStore, fork: str) -> set[str]:
    """All keys that a fork's newest manifest and its pinned manifests name; none without a manifest.

    Expired pins count too: at worst an object stays until GC deletes the pin. A page of such a pin's manifest may be
    deleted already. Raises Corrupt for a damaged page and NotFound for a lost page.
    """
    metadata = MetadataLog(store, fork)
    manifest = metadata.load(exact=True)
    if manifest is None:
        return set()
    named: set[str] = metadata.ask(manifest, lambda index: named_by(index.manifest, index.page))
    chain = ManifestChain(store, fork)
    for sequence in {pin.sequence for pin in list_pins(store, fork)}:
        pinned = chain.read(sequence)
        if pinned is not None:
            named |= named_by(pinned, entries_unless_deleted(manifest, metadata.page_entries))
    return named


def is_over(store: ObjectStore, fork: str) -> bool:
    """Whether a fork names nothing and never will again: it was deleted, and has no entry and no pending delete.

    True without a manifest: a run that creates the fork's first manifest checks the announcement afterwards.
    """
    manifest = MetadataLog(store, fork).load(exact=True)
    return manifest is None or (manifest.deleted_ms is not None and not named_by_fork(store, fork))
