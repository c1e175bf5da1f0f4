"""A store that never overwrites or deletes objects: for buckets under object lock, or by choice.

GC runs as usual: objects are unlinked, wait for the grace period and the pins, and leave the list of pending deletes.
Only the delete itself is skipped and logged. The objects are orphans from then on. `tiered gc` lists them with their
price, for a lifecycle rule or a person to delete. Manifests below the GC boundary are void whether they exist or not.
Probes and expired pins stay.

A `put` creates. The same bytes again are no error (a lost answer); other bytes raise AlreadyExists. So a pin cannot be
renewed, and a long read must request a long enough pin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from local.errors import AlreadyExists
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import Body, ObjectStore

_log = logging.getLogger(__name__)


class ImmutableStore(StoreWrapper):
    """See the module text. `spared` is the number of objects that were not deleted."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.spared = 0

    def put(self, key: str, body: Body) -> None:
        try:
            self._inner.put_if_absent(key, body)
        except AlreadyExists:
            if self._inner.get(key) != bytes(body):
                raise AlreadyExists("cannot overwrite an object, the bucket is immutable", key=key) from None

    def delete(self, keys: Iterable[str]) -> None:
        """Log the request; delete nothing."""
        wanted = list(keys)
        self.spared += len(wanted)
        if wanted:
            _log.info(
                "the lifecycle of the immutable bucket will delete these objects: objects=%d first=%s",
                len(wanted),
                wanted[0],
            )
