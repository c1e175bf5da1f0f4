"""A read-only view of a partition at one pinned manifest, regardless of newer manifests.

A job that must return to a state that it pinned uses it: a second read by the same pin, in another process, finds the
same entries.
"""

from __future__ import annotations

from local.errors import NotFound
from remote.gc.pins import Pin
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.store import ObjectStore


class PinnedLog(MetadataLog):
    """A chain of manifests that ends at the pinned manifest.

    For readers only: a writer needs the newest manifest.
    """

    def __init__(self, store: ObjectStore, prefix: str, pin: Pin) -> None:
        super().__init__(store, prefix)
        self._pin = pin

    def load(self, *, exact: bool = False) -> Manifest:
        """The pinned manifest; one GET at the first call.

        Raises NotFound if it was deleted because its pin expired.
        """
        with self._lock:
            if self._manifest is None:
                found = self._chain.read(self._pin.sequence)
                if found is None or found.commit_id != self._pin.commit_id:
                    facts = {"prefix": self._prefix, "sequence": self._pin.sequence, "holder": self._pin.holder}
                    raise NotFound("the pinned manifest does not exist, the pin has expired", **facts)
                self._manifest = found
            return self._manifest
