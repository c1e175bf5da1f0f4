"""Find the orphans below a partition's prefix: objects that no manifest names or can ever name.

The rule needs no clock and no writer role:

1. Every name that a manifest can hold contains the epoch of the writer that made it (`remote.keys.parse_epoch`).
2. A writer commits only names that it made in its own epoch.
3. Once a manifest of epoch E is committed, the name of every commit of an older epoch is taken. So no manifest can
   newly name an object of an epoch below E.
4. An object of such an epoch is an orphan for good if that manifest, its pages, its views and its pending deletes do
   not name it. Any process may delete it, not only the writer. A grace period is not needed for safety.
5. Only the writer of epoch E knows its next commit, so objects of epoch E itself are left alone.

Manifests, boundaries, pins and probes follow other rules (`remote.gc.delayed_delete`, `remote.store.probe`). An object
whose name does not parse belongs to other software and is never touched. Source: P13 of the commit protocol
(docs/explanation/commit-protocol.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from remote.gc.fork_references import named_by_forks
from remote.gc.pins import list_pins
from remote.keys import parse_epoch
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.page_out import named_by
from remote.store import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An orphan. `key` is relative to the prefix; `modified_ms` is the store's."""

    key: str
    size_bytes: int
    modified_ms: int | None
    epoch: int

    def is_due(self, now_ms: int, grace_ms: int) -> bool:
        """Whether the object is older than the grace period; False if the store does not give its age."""
        return self.modified_ms is not None and now_ms - self.modified_ms >= grace_ms


def unreferenced_objects(listed: Iterable[ObjectInfo], *, epoch: int, named: Collection[str]) -> list[Orphan]:
    """The orphans among `listed`; `named` by the manifest of `epoch` or a pinned one. Relative keys."""
    found = []
    for info in listed:
        made_in = parse_epoch(info.key)
        if made_in is not None and made_in < epoch and info.key not in named:
            size, modified = info.size_bytes, info.modified_ms
            found.append(Orphan(key=info.key, epoch=made_in, size_bytes=size, modified_ms=modified))
    return found


def find_orphans(store: ObjectStore, prefix: str, metadata: MetadataLog, *, now_ms: int) -> list[Orphan]:
    """The orphans of a partition, ordered by name: from a listing, the newest manifest, and the pinned ones.

    Raises Corrupt or NotFound for an unreadable manifest, page or pin, and the error of `MetadataLog.missing`.
    """
    listed = [
        ObjectInfo(key=info.key.removeprefix(prefix), size_bytes=info.size_bytes, modified_ms=info.modified_ms)
        for info in store.list(prefix)
    ]
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
