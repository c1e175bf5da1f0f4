"""A read-only view of a partition at one pinned manifest, regardless of newer manifests.

A job that must return to a state that it pinned uses it: a second read by the same pin, in another process, finds the
same entries.
"""

from __future__ import annotations

from local.errors import LogError, NotFound
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.store import ObjectStore


def pinned_log(store: ObjectStore, prefix: str, *, sequence: int, commit_id: str, holder: str) -> MetadataLog:
    """The log of a pin, one GET. Reads raise NotFound if the pin expired and the manifest was deleted."""
    return MetadataLog(store, prefix, source=_PinnedManifest(store, prefix, sequence, commit_id, holder))


class _PinnedManifest:
    """The only manifest of such a log."""

    def __init__(self, store: ObjectStore, prefix: str, sequence: int, commit_id: str, holder: str) -> None:
        self._chain, self._sequence, self._commit_id = ManifestChain(store, prefix), sequence, commit_id
        self._facts = {"prefix": prefix, "sequence": sequence, "holder": holder}

    def newest(self, known: Manifest | None) -> Manifest:
        found = known or self._chain.read(self._sequence)
        if found is None or found.commit_id != self._commit_id:
            raise self.missing()
        return found

    def missing(self) -> LogError:
        return NotFound("the pinned manifest does not exist, the pin has expired", **self._facts)
