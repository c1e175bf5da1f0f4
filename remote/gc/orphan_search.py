"""Find the orphans below a partition's prefix: objects that no manifest names or can ever name.

The rule needs no clock and no writer role:

1. Every name that a manifest can hold contains the epoch of the writer that made it (`remote.keys.parse_epoch`).
2. A writer commits only names that it made in its own epoch.
3. Once a manifest of epoch E is committed, the name of every commit of an older epoch is taken. So no manifest can
   newly name an object of an epoch below E.
4. An object of such an epoch is an orphan for good if that manifest, its pages, its views and its pending deletes do
   not name it. Any process may delete it, not only the writer. A grace period is not needed for safety.
5. Only the writer of epoch E knows its next commit, so objects of epoch E itself are left alone.

An object whose name does not parse belongs to other software and is never touched. Source: P13 of the commit protocol
(docs/explanation/commit-protocol.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from remote.gc.fork_references import named_by_forks
from remote.gc.pins import list_pins
from remote.keys import parse_epoch
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.page_out import named_by
from remote.store import ObjectInfo, ObjectStore


def unreferenced_objects(listed: Iterable[ObjectInfo], *, epoch: int, named: Collection[str]) -> list[ObjectInfo]:
    """The orphans among `listed`; the manifest of `epoch` and pinned manifests name `named`. Relative keys."""
    return [
        info
        for info in listed
        if info.key not in named and (made_in := parse_epoch(info.key)) is not None and made_in < epoch
    ]


def find_orphans(store: ObjectStore, prefix: str, metadata: MetadataLog, *, now_ms: int) -> list[ObjectInfo]:
    """The orphans of a partition, ordered by name: from a listing, the newest manifest, and the pinned ones.

    Raises Corrupt or NotFound for an unreadable manifest, page or pin, and the error of `MetadataLog.missing`.
    """
    listed = [replace(info, key=info.key.removeprefix(prefix)) for info in store.list(prefix)]
    if not listed:
        return []
    manifest = metadata.refresh(exact=True)
    named = metadata.ask(manifest, lambda index: named_by(index.manifest, index.page))
    chain = ManifestChain(store, prefix)
    for sequence in {pin.sequence for pin in list_pins(store, prefix) if pin.expires_ms > now_ms}:
        pinned = chain.read(sequence)
        if pinned is not None:  # else the pin was written too late, and its holder is about to release it
            named |= named_by(pinned, metadata.page_entries)
    return unreferenced_objects(listed, epoch=manifest.epoch, named=named | named_by_forks(store, prefix))
