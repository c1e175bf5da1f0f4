"""Where a job's bucket is: what travels to the tasks in the place of a client, which none can."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from remote.segments.encryption import KeyRing
from remote.store import ObjectStore
from remote.store.middleware.immutable_store import ImmutableStore
from remote.store.object_settings import BUCKETS_OWN
from remote.store.open_store import open_store
from tiered.config.key_rings import keyed_store, load_key_ring
from tiered.config.properties import DEFAULTS, parse
from tiered.config.tier_properties import IMMUTABLE
from tiered.stores.configured_store import object_settings


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Each process that works on the bucket opens it for itself: a client made before a fork hangs or fails after it.

    `settings` are those of the topics that the job writes, as far as they are the store's (``remote.storage.class``,
    ``remote.sse``, ``remote.immutable``). `key_ring` is a file on every worker; where it is None the environment may
    name one. `work_directory` is where tasks put files, None for the system's place for them.
    """

    url: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    key_ring: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    work_directory: str | None = None

    def open_store(self) -> ObjectStore:
        """The caller closes it. Raises InvalidRequest as `remote.store.open_store.open_store`."""
        values = {**DEFAULTS, **self.settings}
        objects = object_settings(values) if self.url.startswith("s3:") else BUCKETS_OWN
        store = open_store(self.url, self.options, objects=objects)
        return keyed_store(ImmutableStore(store) if parse(IMMUTABLE, values[IMMUTABLE]) else store, self.key_ring)

    @contextmanager
    def opened(self) -> Iterator[ObjectStore]:
        store = self.open_store()
        try:
            yield store
        finally:
            store.close()

    def keys(self) -> KeyRing:
        return load_key_ring(self.key_ring, os.environ)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """A directory of this attempt's own, removed with all in it. A killed task leaves it to the system's care."""
        with tempfile.TemporaryDirectory(prefix="tiered-", dir=self.work_directory) as directory:
            yield directory
