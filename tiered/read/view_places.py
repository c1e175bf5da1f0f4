"""The place of a partition's compacted views: its manifest, or its disk. One builder, two places.

The bucket is the place for a topic with a remote tier: a run reads the bucket alone, and a commit switches the view.
The disk is the place without one: a run reads the local log, and a replaced catalog switches the view (`LocalViews`).

A topic that gets a remote tier keeps its local views. Readers and retention use a local view until the bucket has one
of that name. The first run in the bucket:

1. It writes all parts of the local view to the bucket, with the bucket's records beyond the local horizon.
2. It commits the view.
3. It removes the local view from the catalog.

A manifest names such views without parts before the first segment is copied (`unannounced`). A job that compacts the
bucket sees them and keeps the tombstones that they have not merged yet (I5). No run is due until the bucket holds
everything that the local view has merged.

| a crash | leaves | then |
|---|---|---|
| before the commit | the local view, objects of an old epoch | the next run starts over |
| after the commit | both views | readers use the bucket's; maintenance drops the local one (`maintain_views`) |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, TypeVar

from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.log import Log
from local.logdirs.log_moves import view_files
from local.names import VIEW_CATALOG, VIEW_PARTS
from local.storage import Storage, join, parent, replace_file
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.keys import VIEWS
from remote.manifest.view import CompactedView, find_view
from remote.manifest.view_changes import (
    ViewCatalog,
    begin_view,
    cut_views,
    decode_catalog,
    drop_view,
    encode_catalog,
    fail_view,
    switch_view,
)
from remote.segments.stored_segment import PLAIN_ENCODING
from remote.store import Body, ObjectInfo, ObjectStore, UploadSource
from remote.store.file_store import FileStore
from tiered.read.partition_source import PartitionSource

if TYPE_CHECKING:
    from remote.manifest.commit_protocol import MetadataLog
    from remote.manifest.manifest import Manifest
    from tiered.partition.partition import Partition


_log = logging.getLogger(__name__)
Change = Callable[[ViewCatalog], ViewCatalog]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The input of a run. `parts` reads the parts of `old`; `own_parts`: they are where new parts go."""

    old: CompactedView
    parts: RemotePartition
    own_parts: bool
    epoch: int
    log_start_offset: int
    records_max: int | None = None
    source_sequence: int | None = None


class BucketPlace:
    """Views in the manifest. All methods, as those of `DiskPlace`, raise the errors of the disk and the store."""

    def __init__(self, held: Partition) -> None:
        is_ready = held.is_writer and held.manifest() is not None
        if held.metadata is None or held.remote is None or not is_ready:
            raise InvalidRequest("cannot build the view, the partition has no remote tier", partition=held.name)
        self.store, self.prefix, self.object_encoding = held.metadata.store, held.prefix, held.object_encoding
        self.source = PartitionSource(held.name, None, held.remote, held.metadata)
        self._metadata: MetadataLog = held.metadata
        self._remote: RemotePartition = held.remote
        self._local: LocalViews | None = held.local_views
        self._replaces: CompactedView | None = None
        self._is_carried = False

    def known(self, name: str) -> CompactedView | None:
        own, local = find_view(self._manifest().views, name), self._of_disk(name)
        return local if local is not None and (own is None or not own.is_built) else own

    def log_start_offset(self) -> int:
        return self._manifest().log_start_offset

    def horizon(self) -> int:
        return self.source.stable_end()

    def begin(self, name: str, now_ms: int) -> Basis:
        manifest = self._metadata.commit(begin_view(name, now_ms=now_ms), now_ms)
        self._replaces, local = find_view(manifest.views, name), self._of_disk(name)
        old, parts = self._replaces or CompactedView(name=name), self._remote
        self._is_carried = local is not None and not old.is_built
        if local is not None and self._local is not None and self._is_carried:
            old, parts = local, self._local.parts
        start = old.horizon_offset if old.is_built else manifest.log_start_offset
        return Basis(
            old=old,
            parts=parts,
            own_parts=not self._is_carried,
            epoch=manifest.epoch,
            log_start_offset=manifest.log_start_offset,
            records_max=sum(each.record_count for each in manifest.parts if each.next_offset > start),
            source_sequence=manifest.sequence,
        )

    def switch(self, built: CompactedView, now_ms: int) -> None:
        self._metadata.commit(switch_view(built, replaces=self._replaces, now_ms=now_ms), now_ms)
        if self._is_carried and self._local is not None:
            self._local.commit(drop_view(built.name, now_ms=now_ms))

    def fail(self, name: str, error: str, now_ms: int) -> None:
        self._metadata.commit(fail_view(name, error, now_ms=now_ms), now_ms)

    def _manifest(self) -> Manifest:
        manifest = self._metadata.cached
        assert manifest is not None, "a writer has a head"
        return manifest

    def _of_disk(self, name: str) -> CompactedView | None:
        view = find_view(self._local.known(), name) if self._local is not None else None
        return view if view is not None and view.is_built else None


class DiskPlace:
    """Views on the disk. The caller holds the partition's lock against cleaning, moves and deletion."""

    prefix = ""
    object_encoding = PLAIN_ENCODING

    def __init__(self, held: Partition) -> None:
        assert held.local_views is not None, "an opened partition has them"
        self.source = PartitionSource(held.name, held.log)
        self._log, self._views = held.log, held.local_views
        self._replaces: CompactedView | None = None
        self.store: ObjectStore = held.local_views.files

    def known(self, name: str) -> CompactedView | None:
        return find_view(self._views.catalog().views, name)

    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    def horizon(self) -> int:
        """The LSO, at most the durable end: after a power cut, other records would get the offsets above."""
        self._log.flush()
        return min(self._log.last_stable_offset, self._log.recovery_point)

    def begin(self, name: str, now_ms: int) -> Basis:
        self._views.commit(begin_view(name, now_ms=now_ms))
        self._replaces = self.known(name)
        return Basis(
            old=self._replaces or CompactedView(name=name),
            parts=self._views.parts,
            own_parts=True,
            epoch=self._views.epoch,
            log_start_offset=self._log.log_start_offset,
        )

    def switch(self, built: CompactedView, now_ms: int) -> None:
        self._views.commit(switch_view(built, replaces=self._replaces, now_ms=now_ms))

    def fail(self, name: str, error: str, now_ms: int) -> None:
        self._views.commit(fail_view(name, error, now_ms=now_ms))


ViewPlace = BucketPlace | DiskPlace


def unannounced(held: Partition) -> list[str]:
    """The views on the disk that the manifest does not name and that a run will bring to the bucket."""
    manifest, local = held.manifest(), held.local_views
    if manifest is None or local is None or held.rules.gives_up_remote:
        return []
    named = {view.name for view in manifest.views}
    return [view.name for view in local.known() if view.is_built and view.name not in named]


def maintain_views(held: Partition, now_ms: int) -> None:
    """Drop local views whose name has a built view in the bucket, and delete old parts. Raises DiskFailed."""
    manifest, local = held.reconciled_manifest(), held.local_views
    if local is None or held.log.is_read_only:
        return
    if manifest is not None and held.is_writer:
        built = {view.name for view in manifest.views if view.is_built}
        for view in local.known():
            if view.name in built:
                local.commit(drop_view(view.name, now_ms=now_ms))
    local.delete_due(now_ms, held.rules.file_delete_delay_ms)


class LocalViews:
    """The compacted views on the disk, for a topic without a remote tier. Thread safe.

    Layout, in the partition's directory:

    | name | content |
    |---|---|
    | ``view-catalog`` | views, their parts, old parts that wait for their deletion (`remote.manifest.view_changes`) |
    | ``view/<name>/<stem>.log``, ``.indexes`` | the parts, as in a bucket |
    | ``view/~aside/<ulid>`` | a part that is being written |

    Order of effects of a run (`tiered.maintenance.view_building`), and the state after a crash:

    | step | effect | a crash after it leaves | removed by |
    |---|---|---|---|
    | 1 | the catalog notes a running build | old view, note (later reported as interrupted) | the next run |
    | 2 | a part is put together in ``<base>.log.cleaned`` | old view, that file | recovery of the log |
    | 3 | part and indexes: written aside, synced, renamed, directory synced | old view, files without a name | `open` |
    | 4 | the catalog: written aside, synced, renamed | old or new view, whole; files without a name | `open` |
    | 5 | the partition's directory is synced | new view, durable; old parts listed in it | step 6 |
    | 6 | `file.delete.delay.ms` later: old parts deleted, synced | the same, names of no files | step 6 again |
    | 7 | the catalog is replaced by one without these names | new view | |

    Before the first deletion of `open` and of step 6 the partition's directory is synced. So a power cut never restores
    a catalog that names a deleted part.

    A view is void once the log ends below the view's horizon, because other records get those offsets. `cut` removes
    such views before the log is truncated. `open` removes them if recovery found a log that ends earlier. A damaged
    catalog is an error for readers and runs; `tiered view drop` replaces it.

    Call `open` first; a read-only open changes nothing. `epoch` is this process's own; in a read-only open it is the
    catalog's.
    """

    def __init__(self, log: Log, cache: ChunkCache | None = None) -> None:
        self._log, self._cache = log, cache
        self._lock = threading.RLock()
        self._catalog = ViewCatalog()
        self.damage: LogError | None = None  # of the catalog
        self._is_unsure = False  # a change failed: the files must be read again
        self._since_ms: dict[str, int] = {}  # since when a part waits; the clock may have been set back
        self.files = ViewFiles(lambda: self._log.place)
        self.epoch = 1

    @cached_property
    def parts(self) -> RemotePartition:
        return RemotePartition(self.files, "", ChunkCache() if self._cache is None else self._cache)

    def known(self) -> tuple[CompactedView, ...]:
        """The views as last read or written, without a read; none if the catalog is damaged."""
        return self._catalog.views

    def catalog(self, *, is_newest: bool = False) -> ViewCatalog:
        """The catalog. With `is_newest` a read-only open reads it from the disk. Raises Corrupt, DiskFailed."""
        with self._lock:
            if self._is_unsure or (is_newest and self._log.is_read_only):
                self._read()
            if self.damage is not None:
                raise self.damage
            return self._catalog

    def open(self, now_ms: int) -> None:
        """Read the catalog; unless read-only, remove void views and files without a name. Raises DiskFailed."""
        with self._lock:
            self._read()
            storage, directory = self._log.place
            has_catalog = storage.exists(join(directory, VIEW_CATALOG))
            if self._log.is_read_only or not (has_catalog or storage.is_directory(join(directory, VIEW_PARTS))):
                return
            self.epoch = self._catalog.epoch + 1
            if self.damage is None:
                self.cut(self._log.next_offset, now_ms)
                self._delete_unnamed()

    def commit(self, change: Change) -> ViewCatalog:
        """Replace the catalog by the result of `change` (steps 4 and 5), and return it. Raises DiskFailed."""
        with self._lock:
            before = self.catalog()
            ours = before if before.epoch == self.epoch else replace(before, epoch=self.epoch)
            after = change(ours)
            if after is not ours:
                self._write(after)
            return self._catalog

    def cut(self, offset: int, now_ms: int) -> None:
        """Remove views with records at or above `offset`, before the log is truncated. Raises DiskFailed."""
        with self._lock:
            if self.damage is None and any(view.horizon_offset > offset for view in self.catalog().views):
                _log.warning(
                    "dropped the views, the log ends below them: partition=%s offset=%d", self._log.partition, offset
                )
                self.commit(cut_views(offset, now_ms=now_ms))

    def forget_damage(self) -> bool:
        """Replace a damaged catalog by one without views; False if it is sound. Raises DiskFailed."""
        with self._lock:
            if self.damage is None:
                return False
            self._write(ViewCatalog(epoch=self.epoch))
            self.damage = None
            self._delete_unnamed()
            return True

    def delete_due(self, now_ms: int, delay_ms: int) -> int:
        """Do steps 6 and 7. Returns the number of files. A part stamped in the future waits from now on."""
        with self._lock:
            if not self._catalog.pending_deletes or self.damage is not None:
                return 0
            catalog = self.catalog()
            for each in catalog.pending_deletes:
                self._since_ms[each.key] = min(self._since_ms.get(each.key, each.unlinked_ms), now_ms)
            due = {each.key for each in catalog.pending_deletes if now_ms - self._since_ms[each.key] >= delay_ms}
            if not due:
                return 0
            in_use = {
                key for view in catalog.views for entry in view.entries for key in (entry.data_key, entry.indexes_key)
            }
            storage, directory = self._log.place
            storage.sync_directory(directory)
            self.files.delete(sorted(due - in_use))
            waiting = tuple(each for each in catalog.pending_deletes if each.key not in due)
            self.commit(lambda known: replace(known, pending_deletes=waiting))
            self._since_ms = {key: since for key, since in self._since_ms.items() if key not in due}
            return len(due)

    def _read(self) -> None:
        storage, directory = self._log.place
        path, self.damage = join(directory, VIEW_CATALOG), None
        try:
            self._catalog = decode_catalog(storage.read(path), path=path) if storage.exists(path) else ViewCatalog()
        except NotFound:
            self._catalog = ViewCatalog()
        except Corrupt as error:
            _log.error("a view catalog is damaged: partition=%s error=%s", self._log.partition, error)
            advice = f"drop the views ('tiered view drop {self._log.partition.topic}') and build them again"
            self._catalog, self.damage = ViewCatalog(), Corrupt(f"{error.attempt}: {advice}", **error.facts)
        self._is_unsure = False
        if self._log.is_read_only:
            self.epoch = self._catalog.epoch

    def _write(self, catalog: ViewCatalog) -> None:
        storage, directory = self._log.place
        self._is_unsure = True
        replace_file(storage, join(directory, VIEW_CATALOG), encode_catalog(catalog))
        self._is_unsure, self._catalog = False, catalog

    def _delete_unnamed(self) -> None:
        storage, directory = self._log.place
        unnamed = [path for path in view_files(storage, directory) if path not in self._catalog.named_keys]
        if not unnamed:
            return
        storage.sync_directory(directory)
        for path in unnamed:
            storage.unlink(join(directory, path))
        for place in sorted({parent(path) for path in unnamed}):
            storage.sync_directory(join(directory, place))
        _log.info("deleted files that no view names: partition=%s files=%d", self._log.partition, len(unnamed))


class ViewFiles(ObjectStore):
    """An object store of view parts on the disk. It refuses operations that only manifests need."""

    def __init__(self, where: Callable[[], tuple[Storage, str]]) -> None:
        """`where` returns the storage and the partition's directory."""
        self._where = where

    @property
    def url(self) -> str:
        return self._on_disk(lambda files: files.url)

    def put(self, key: str, body: Body) -> None:
        self._on_disk(lambda files: files.put(_below(key), body), makes=True)

    def put_if_absent(self, key: str, body: Body) -> NoReturn:
        raise InvalidRequest("cannot create a part of a view, this store accepts no create-if-absent", key=key)

    def upload(self, key: str, source: UploadSource) -> None:
        self._on_disk(lambda files: files.upload(_below(key), source), makes=True)

    def get(self, key: str) -> bytes:
        return self._on_disk(lambda files: files.get(_below(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._on_disk(lambda files: files.get_range(_below(key), start, length))

    def head(self, key: str) -> ObjectInfo:
        return self._on_disk(lambda files: files.head(_below(key)))

    def list_prefixes(self, prefix: str) -> NoReturn:
        raise InvalidRequest("cannot list the parts of views, the catalog names them", prefix=prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise InvalidRequest("cannot list the parts of views, the catalog names them", prefix=prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._on_disk(lambda files: files.delete(map(_below, keys)))

    def close(self) -> None:
        """Nothing to close."""

    def _on_disk(self, call: Callable[[FileStore], T], *, makes: bool = False) -> T:
        """Run one call; errors are the disk's. `makes` creates the directory of the parts first."""
        storage, directory = self._where()
        try:
            if makes:
                storage.make_directory(join(directory, VIEW_PARTS))
            return call(FileStore(join(directory, VIEW_PARTS), storage=storage))
        except LogError as error:
            cause = error.__cause__
            if isinstance(cause, DiskFailed) or (isinstance(cause, AccessDenied) and isinstance(error, AccessDenied)):
                raise cause from error
            raise


def _below(key: str) -> str:
    if not key.startswith(VIEWS):
        wrong = "invalid name of a part of a view, it is not below the directory of the view"
        raise InvalidRequest(wrong, key=key, directory=VIEWS)
    return key.removeprefix(VIEWS)
