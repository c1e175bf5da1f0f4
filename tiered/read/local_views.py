"""Compacted views of a partition on the disk, for a topic without a remote tier.

Layout, in the partition's directory:

| name | content |
|---|---|
| ``view-catalog`` | views, their parts, old parts that wait for their deletion (`remote.manifest.view_changes`) |
| ``view/<name>/<stem>.log``, ``.indexes`` | the parts, as in a bucket (`tiered.read.local_views`) |
| ``view/~aside/<ulid>`` | a part that is being written |

Order of effects of a run (`tiered.views.view_building`), and the state after a crash:

| step | effect | a crash after it leaves | removed by |
|---|---|---|---|
| 1 | the catalog notes a running build | old view, note (later reported as interrupted) | the next run |
| 2 | a part is put together in ``<base>.log.cleaned`` | old view, that file | recovery of the log |
| 3 | part and indexes: written aside, synced, renamed, directory synced | old view, files without a name | `open` |
| 4 | the catalog: written aside, synced, renamed | old or new view, whole; files without a name | `open` |
| 5 | the partition's directory is synced | new view, durable; old parts listed in it | step 6 |
| 6 | `file.delete.delay.ms` later: old parts deleted, directory synced | new view, names of no files | step 6 again |
| 7 | the catalog is replaced by one without these names | new view | |

No file is deleted because of a catalog that may not be durable: before the first deletion of `open` and of step 6 the
partition's directory is synced. So a power cut never restores a catalog that names a deleted part.

A view is void once the log ends below the view's horizon, because other records get those offsets. `cut` removes such
views before the log is truncated. `open` removes them if recovery found a log that ends earlier.

A damaged catalog is an error for readers and runs. `tiered view drop` replaces it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.log import Log
from local.log.view_directory import view_files
from local.names import VIEW_CATALOG, VIEW_PARTS
from local.storage import Storage, join, parent, replace_file
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.keys import VIEWS
from remote.manifest.view import CompactedView
from remote.manifest.view_changes import ViewCatalog, cut_views, decode_catalog, encode_catalog
from remote.store import Body, GetRange, ObjectInfo, UploadSource, read_each
from remote.store.file_store import FileStore

_log = logging.getLogger(__name__)

Change = Callable[[ViewCatalog], ViewCatalog]
Where = Callable[[], tuple[Storage, str]]  # the storage and the partition's directory


class LocalViews:
    """The compacted views on the disk. Thread safe. Call `open` first; a read-only open changes nothing.

    `epoch` is this process's own; in a read-only open it is the catalog's.
    """

    def __init__(self, log: Log, cache: ChunkCache | None = None) -> None:
        self._log = log
        self._cache = cache
        self._lock = threading.RLock()
        self._catalog = ViewCatalog()
        self._damage: LogError | None = None
        self._is_unsure = False  # a change failed: the files must be read again
        self._since_ms: dict[str, int] = {}  # since when a part waits; the clock may have been set back
        self._parts: RemotePartition | None = None
        self.epoch = 1

    @property
    def parts(self) -> RemotePartition:
        """The reader of the parts, the same as for parts in a bucket."""
        if self._parts is None:
            self._parts = RemotePartition(self.files, "", ChunkCache() if self._cache is None else self._cache)
        return self._parts

    @property
    def files(self) -> ViewFiles:
        return ViewFiles(lambda: self._log.place)

    @property
    def damage(self) -> LogError | None:
        """The error of a damaged catalog; None for a sound one."""
        return self._damage

    def known(self) -> tuple[CompactedView, ...]:
        """The views as last read or written; none if the catalog is damaged. Nothing is read."""
        return self._catalog.views

    def catalog(self, *, is_newest: bool = False) -> ViewCatalog:
        """The catalog. With `is_newest` a read-only open reads it from the disk. Raises Corrupt, DiskFailed."""
        with self._lock:
            if self._is_unsure or (is_newest and self._log.is_read_only):
                self._read()
            if self._damage is not None:
                raise self._damage
            return self._catalog

    def open(self, now_ms: int) -> None:
        """Read the catalog; unless the log is read-only, remove void views and delete files without a name.

        Raises DiskFailed. A damaged catalog and its parts are left unchanged.
        """
        with self._lock:
            self._read()
            if self._log.is_read_only or not self._has_anything():
                return
            self.epoch = self._catalog.epoch + 1
            if self._damage is None:
                self.cut(self._log.next_offset, now_ms)
                self._delete_unnamed()

    def commit(self, change: Change) -> ViewCatalog:
        """Replace the catalog by the result of `change`: steps 4 and 5.

        Raises DiskFailed and errors of `change`.
        After DiskFailed the disk has the old catalog or the new one; the next use reads it.
        """
        with self._lock:
            before = self.catalog()
            ours = before if before.epoch == self.epoch else replace(before, epoch=self.epoch)
            after = change(ours)
            if after is not ours:
                self._write(after)
            return self._catalog

    def cut(self, offset: int, now_ms: int) -> None:
        """Remove views with records at or above `offset`, before the log is truncated to it.

        Raises DiskFailed.
        """
        with self._lock:
            if self._damage is None and any(view.horizon_offset > offset for view in self.catalog().views):
                _log.warning(
                    "dropped the views, the log ends below them: partition=%s offset=%d", self._log.partition, offset
                )
                self.commit(cut_views(offset, now_ms=now_ms))

    def forget_damage(self) -> bool:
        """Replace a damaged catalog by one without views; False if it is sound. Raises DiskFailed."""
        with self._lock:
            if self._damage is None:
                return False
            self._write(ViewCatalog(epoch=self.epoch))
            self._damage = None
            self._delete_unnamed()
            return True

    def delete_due(self, now_ms: int, delay_ms: int) -> int:
        """Steps 6 and 7; the number of files. A part stamped in the future waits from now on."""
        with self._lock:
            if not self._catalog.pending_deletes or self._damage is not None:
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
            self.commit(
                lambda known: replace(
                    known, pending_deletes=tuple(e for e in known.pending_deletes if e.key not in due)
                )
            )
            self._since_ms = {key: since for key, since in self._since_ms.items() if key not in due}
            return len(due)

    # -- inside --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        storage, directory = self._log.place
        path, self._damage = join(directory, VIEW_CATALOG), None
        try:
            self._catalog = decode_catalog(storage.read(path), path=path) if storage.exists(path) else ViewCatalog()
        except NotFound:
            self._catalog = ViewCatalog()
        except Corrupt as error:
            _log.error("a view catalog is damaged: partition=%s error=%s", self._log.partition, error)
            advice = f"drop the views ('tiered view drop {self._log.partition.topic}') and build them again"
            self._catalog, self._damage = ViewCatalog(), Corrupt(f"{error.attempt}: {advice}", **error.facts)
        self._is_unsure = False
        if self._log.is_read_only:
            self.epoch = self._catalog.epoch

    def _write(self, catalog: ViewCatalog) -> None:
        storage, directory = self._log.place
        self._is_unsure = True
        replace_file(storage, join(directory, VIEW_CATALOG), encode_catalog(catalog))
        self._is_unsure, self._catalog = False, catalog

    def _has_anything(self) -> bool:
        storage, directory = self._log.place
        return storage.exists(join(directory, VIEW_CATALOG)) or storage.is_directory(join(directory, VIEW_PARTS))

    def _delete_unnamed(self) -> None:
        """Delete leftovers of a crashed run: files below ``view`` that the catalog does not name."""
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


class ViewFiles:
    """An object store of view parts on the disk. It refuses operations that only manifests need."""

    def __init__(self, where: Where) -> None:
        self._where = where

    @property
    def url(self) -> str:
        return self._at().url

    def put(self, key: str, body: Body) -> None:
        with _of_the_disk():
            self._made().put(_below(key), body)

    def put_if_absent(self, key: str, body: Body) -> NoReturn:
        raise InvalidRequest("cannot create a part of a view, this store accepts no create-if-absent", key=key)

    def upload(self, key: str, source: UploadSource) -> None:
        with _of_the_disk():
            self._made().upload(_below(key), source)

    def get(self, key: str) -> bytes:
        with _of_the_disk():
            return self._at().get(_below(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _of_the_disk():
            return self._at().get_range(_below(key), start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        return read_each(self, ranges)

    def head(self, key: str) -> ObjectInfo:
        with _of_the_disk():
            return self._at().head(_below(key))

    def list_prefixes(self, prefix: str) -> NoReturn:
        raise InvalidRequest("cannot list the parts of views, the catalog names them", prefix=prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        raise InvalidRequest("cannot list the parts of views, the catalog names them", prefix=prefix)

    def delete(self, keys: Iterable[str]) -> None:
        with _of_the_disk():
            self._at().delete(map(_below, keys))

    def close(self) -> None:
        """Nothing to close."""

    def _at(self) -> FileStore:
        storage, directory = self._where()
        return FileStore(join(directory, VIEW_PARTS), storage=storage)

    def _made(self) -> FileStore:
        """As `_at`, with the directory of the parts created."""
        storage, directory = self._where()
        storage.make_directory(join(directory, VIEW_PARTS))
        return self._at()


def _below(key: str) -> str:
    """The key below the directory of the parts. Raises InvalidRequest for one outside it."""
    if not key.startswith(VIEWS):
        wrong = "invalid name of a part of a view, it is not below the directory of the view"
        raise InvalidRequest(wrong, key=key, directory=VIEWS)
    return key.removeprefix(VIEWS)


@contextmanager
def _of_the_disk() -> Iterator[None]:
    """Turn the file store's store errors back into the disk errors that caused them."""
    try:
        yield
    except LogError as error:
        cause = error.__cause__
        if isinstance(cause, DiskFailed) or (isinstance(cause, AccessDenied) and isinstance(error, AccessDenied)):
            raise cause from error
        raise
