"""Which objects below a partition's prefix are nobody's: named by nothing, and never to be named any more.

The rule needs no clock and no leadership. Every name that a head can hold says the epoch of the writer that made it
(`remote.keys.parse_epoch`), and a writer commits only what it made in its own epoch. So once a head of epoch E is
committed, nothing of an epoch below E can be named that is not named already: its writer finds every commit's name
taken. What such a head, its pages, its views and its list of unlinked objects do not name is garbage for good, and
whoever deletes it needs not be the writer. Of E itself only E's writer knows what it is about to commit: left alone.
Heads, boundaries, pins and probes go other ways (`remote.gc.old_manifests`, `remote.store.probe`); a name that does not
parse is somebody's, and is never touched.

The grace time of whoever deletes is courtesy (for people who look, and for a rule that was broken), not safety.

Source: P13 of the commit protocol (docs/explanation/commit-protocol.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from remote.gc.fork_references import kept_by_forks
from remote.gc.pins import list_pins
from remote.keys import parse_epoch
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.page_spill import named_by
from remote.store import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An object that is nobody's. `key` is relative to the prefix; `modified_ms` as the store tells it."""

    key: str
    size_bytes: int
    modified_ms: int | None
    epoch: int

    def is_due(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it has lain there for the grace time; of one whose age the store does not tell that is unknown."""
        return self.modified_ms is not None and now_ms - self.modified_ms >= grace_ms


def nobodys(listed: Iterable[ObjectInfo], *, epoch: int, named: Collection[str]) -> list[Orphan]:
    """Those of `listed` (keys relative to the prefix) that nothing names and nothing can name any more.

    `epoch` is that of a head that was committed, `named` the keys that it and every pinned head name.
    """
    found = []
    for info in listed:
        made_in = parse_epoch(info.key)
        if made_in is not None and made_in < epoch and info.key not in named:
            size, modified = info.size_bytes, info.modified_ms
            found.append(Orphan(key=info.key, epoch=made_in, size_bytes=size, modified_ms=modified))
    return found


def find_orphans(store: ObjectStore, prefix: str, metadata: MetadataLog, *, now_ms: int) -> list[Orphan]:
    """The objects of a partition that are nobody's, in the order of their names.

    A listing, the newest head with its pages, the pins and their heads. Raises Corrupt or NotFound where one of those
    cannot be read, for it may name anything, and what `MetadataLog.missing` returns where there is no head.
    """
    listed = [
        ObjectInfo(key=info.key.removeprefix(prefix), size_bytes=info.size_bytes, modified_ms=info.modified_ms)
        for info in store.list(prefix)
    ]
    if not listed:
        return []
    head = metadata.refresh(exact=True)
    named = metadata.ask(head, lambda index: named_by(index.head, index.page))
    chain = HeadChain(store, prefix)
    for sequence in {pin.sequence for pin in list_pins(store, prefix) if pin.expires_ms > now_ms}:
        pinned = chain.read(sequence)
        if pinned is not None:  # else the pin came too late, and is about to be taken back
            named |= named_by(pinned, metadata.page_rows)
    return nobodys(listed, epoch=head.epoch, named=named | kept_by_forks(store, prefix))
