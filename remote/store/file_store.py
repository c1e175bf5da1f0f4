"""An object store in a directory: ``file://``. For one machine or a shared file system; durable.

Order of effects of a write (fsspec's create checks and then writes, which is a race, and never syncs):

1. Write and sync a temporary file (``<root>/~aside/<ulid>``).
2. Rename it over the target. For create-if-absent make a hard link instead, which fails if the name is taken.
3. Sync the target's directory.

A crash leaves the target untouched or complete, and maybe a temporary file, which no listing shows. The root itself is
never created: a mistyped path must not look like an empty store.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import quote

from local.errors import (
    AccessDenied,
    AlreadyExists,
    Corrupt,
    DiskFailed,
    ErrorCode,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from local.storage import DiskStorage, FileFacts, Storage
from remote.keys import new_ulid
from remote.store.protocol import (
    Body,
    ObjectInfo,
    ObjectStore,
    UploadSource,
    begun_parts,
    check_body,
    check_key,
    check_range,
)

ASIDE = "~aside"  # no topic name contains a tilde


class DirectoryStore(ObjectStore):
    """A store in a directory, `_root`: an object is written aside and then gets its name."""

    _root: str

    def put(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        self._publish("cannot store an object", key, [body], overwrite=True)

    def put_if_absent(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        self._publish("cannot create an object", key, [body], overwrite=False)

    def upload(self, key: str, source: UploadSource) -> None:
        self._publish("cannot upload an object", key, begun_parts(key, source), overwrite=True)

    @abstractmethod
    def _publish(self, attempt: str, key: str, bodies: Iterable[Body], *, overwrite: bool) -> None:
        """Write an object and give it its name; AlreadyExists if the name is taken, unless `overwrite`."""

    def _path(self, key: str) -> str:
        if check_key(key).split("/", 1)[0] == ASIDE:
            raise InvalidRequest("invalid object name, it is reserved for temporary files", key=key)
        return f"{self._root.rstrip('/')}/{key}"


class FileStore(DirectoryStore):
    """A store in `root`, an existing absolute directory."""

    def __init__(self, root: str, *, storage: Storage | None = None) -> None:
        self._root = root.rstrip("/") or "/"
        self._storage = storage or DiskStorage()

    @property
    def url(self) -> str:
        return f"file://{quote(os.fsencode(self._root))}"  # quoted, so that any directory name opens again

    def get(self, key: str) -> bytes:
        with self._translated("cannot read an object", key):
            return self._storage.read(self._path(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        with self._translated("cannot read a range of an object", key):
            body = self._storage.read(self._path(key), start, length)
        if len(body) != length:
            facts = {"store": self.url, "key": key, "start": start, "length": length, "found": len(body)}
            raise Corrupt("cannot read a range of an object, the object ends before the range", **facts)
        return body

    def head(self, key: str) -> ObjectInfo:
        with self._translated("cannot read the size of an object", key):
            path = self._path(key)
            if self._storage.is_directory(path):
                raise NotFound("cannot read the size of an object, it does not exist", store=self.url, key=key)
            size_bytes, modified_ms = self._storage.size(path), self._storage.modified_ms(path)
            return ObjectInfo(key=key, size_bytes=size_bytes, modified_ms=modified_ms)

    def list_prefixes(self, prefix: str) -> list[str]:
        self._check_root("cannot list objects")
        directory, _, begin = prefix.rpartition("/")
        names = [name for name in self._names(directory) if name.startswith(begin)]
        return [name for name in names if any(True for _ in self._walk(f"{directory}/{name}".lstrip("/")))]

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._check_root("cannot list objects")
        # Order by path components is not key order ("a-b" and "a/b"), so all keys are sorted.
        directory = prefix.rpartition("/")[0]
        found = [info for info in self._walk(directory) if info.key.startswith(prefix) and info.key > start_after]
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._translated("cannot delete an object", key):
                self._storage.unlink(path)
                if self._storage.is_directory(_parent(path)):
                    self._storage.sync_directory(_parent(path))

    def _publish(self, attempt: str, key: str, bodies: Iterable[Body], *, overwrite: bool) -> None:
        path = self._path(key)
        self._check_root(attempt)
        aside = f"{self._root}/{ASIDE}/{new_ulid(0)}"
        translated = partial(self._translated, attempt, key)
        with translated():
            self._storage.make_directory(_parent(aside))
            self._storage.make_directory(_parent(path))
        try:
            with translated():
                file = self._storage.create(aside)
            try:
                for body in bodies:  # outside the translation: errors of the source stay unchanged
                    with translated():
                        file.append(body)
                with translated():
                    file.sync()
            finally:
                file.close()
            with translated():
                self._storage.rename(aside, path) if overwrite else self._link(aside, path)
        finally:
            with translated():
                self._storage.unlink(aside)
        with translated():
            self._storage.sync_directory(_parent(path))

    def _link(self, aside: str, path: str) -> None:
        try:
            os.link(aside, path)
        except FileExistsError:
            key = path.removeprefix(self._root).lstrip("/")
            raise AlreadyExists("cannot create an object, the name already exists", store=self.url, key=key) from None
        except OSError as error:
            raise DiskFailed("cannot link a file", path=path, cause=error.strerror) from error

    def _walk(self, directory: str, above: tuple[str, ...] = ()) -> Iterator[ObjectInfo]:
        """All files below, unordered; follows symbolic links except to `above`, the enclosing directories."""
        if not above and self._is_lost(directory):
            return
        place = self._place(directory, above) if above else ""  # the root: only if the walk descends
        if place in above:
            return
        names = self._names(directory)
        files = self._files(directory) if names else {}
        for name in names:
            key = f"{directory}/{name}".lstrip("/")
            if name in files:
                yield ObjectInfo(key=key, size_bytes=files[name].size_bytes, modified_ms=files[name].modified_ms)
            elif self._is_lost(key):
                continue
            elif self._storage.is_directory(f"{self._root}/{key}"):
                place = place or os.path.realpath(f"{self._root}/{directory}")
                yield from self._walk(key, (*above, place))
            else:
                with suppress(NotFound):
                    yield self.head(key)

    def _place(self, directory: str, above: tuple[str, ...]) -> str:
        path = f"{self._root}/{directory}"
        if os.path.islink(path):
            return os.path.realpath(path)
        return f"{above[-1].rstrip('/')}/{directory.rpartition('/')[2]}"

    def _is_lost(self, key: str) -> bool:
        path = f"{self._root}/{key}"
        return os.path.islink(path) and not os.path.exists(path)

    def _files(self, directory: str) -> Mapping[str, FileFacts]:
        with self._translated("cannot list objects", directory), suppress(NotFound):
            return self._storage.list_files(f"{self._root}/{directory}")
        return {}

    def _names(self, directory: str) -> Sequence[str]:
        path = f"{self._root}/{directory}"
        with self._translated("cannot list objects", directory), suppress(NotFound):
            if self._storage.is_directory(path):
                return [name for name in self._storage.list(path) if directory or name != ASIDE]
        return []

    def _check_root(self, attempt: str) -> None:
        if not self._storage.is_directory(self._root):
            missing = f"{attempt}, the store's directory does not exist"
            raise NotFound(missing, directory=self._root).with_code(ErrorCode.STORE_DIRECTORY_MISSING)

    @contextmanager
    def _translated(self, attempt: str, key: str) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            if "store" in error.facts:
                raise
            raise NotFound(f"{attempt}, it does not exist", store=self.url, key=key) from error
        except DiskFailed as error:
            wrong = f"{attempt}, the disk returned an error"
            raise Unavailable(wrong, store=self.url, key=key, **error.facts) from error
        except AccessDenied as error:
            if error.facts.get("cause") in ("eisdir", "enotdir"):
                raise NotFound(f"{attempt}, it does not exist", store=self.url, key=key) from error
            raise AccessDenied(f"{attempt}, access was denied", store=self.url, key=key, **error.facts) from error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
