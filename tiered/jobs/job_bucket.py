"""The bucket of a job: an open store, or its location for tasks, since no client can be pickled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.store.middleware.store_wrapper import ImmutableStore
from remote.store.open_store import open_store
from remote.store.s3_options import BUCKETS_OWN
from remote.store.unfinished_uploads import UnfinishedUploads
from tiered.config.properties import DEFAULTS, IMMUTABLE, parse
from tiered.config.secrets import keyed_store, load_key_ring
from tiered.stores.configured_store import object_settings


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket's address and options. Each process opens it: a client made before a fork hangs or fails.

    Of `settings` only those about the store have an effect. `key_ring` is a file on every worker; None: the
    environment may name one. `work_directory` is for temporary files of tasks, None for the system's.
    """

    url: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    key_ring: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    work_directory: str | None = None

    def open_store(self) -> ObjectStore:
        """Open the store; the caller closes it. Raises InvalidRequest as `remote.store.open_store.open_store`."""
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

    def uploads(self) -> UnfinishedUploads | None:
        """Return the unfinished uploads of the store; None for a store without multipart uploads."""
        return UnfinishedUploads(self.url, dict(self.options)) if self.url.startswith("s3:") else None

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Yield a directory for this attempt, removed at the end; it stays if the task is killed."""
        with tempfile.TemporaryDirectory(prefix="tiered-", dir=self.work_directory) as directory:
            yield directory


@dataclass(frozen=True, kw_only=True)
class OpenBucket(Bucket):
    """A bucket whose store the caller has opened and closes, for work in this process."""

    store: ObjectStore
    ring: KeyRing = NO_KEYS

    @staticmethod
    def of(store: ObjectStore, keys: KeyRing = NO_KEYS) -> OpenBucket:
        return OpenBucket(url=store.url, store=store, ring=keys)

    @contextmanager
    def opened(self) -> Iterator[ObjectStore]:
        yield self.store

    def keys(self) -> KeyRing:
        return self.ring
