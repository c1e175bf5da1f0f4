"""A partition as one pinned head has it, however many newer ones there are by now.

For whoever has to come back to a state that it pinned before: a second look by the same pin, in another process, finds
the same rows.
"""

from __future__ import annotations

from local.errors import NotFound
from remote.gc.pins import Pin
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.store import ObjectStore


class PinnedLog(MetadataLog):
    """A chain of heads that ends at the pinned one. A reader only: who writes needs the newest."""

    def __init__(self, store: ObjectStore, prefix: str, pin: Pin) -> None:
        super().__init__(store, prefix)
        self._pin = pin

    def load(self, *, exact: bool = False) -> Head:
        """The pinned head: one GET the first time. Raises NotFound when it is gone: its pin has lapsed."""
        with self._lock:
            if self._head is None:
                found = self._chain.read(self._pin.sequence)
                if found is None or found.commit_id != self._pin.commit_id:
                    facts = {"prefix": self._prefix, "sequence": self._pin.sequence, "holder": self._pin.holder}
                    raise NotFound("reading a pinned head, it is gone: the pin has lapsed", **facts)
                self._head = found
            return self._head
