"""The parts of compacted views as files in a partition's directory, behind `ObjectStore`.

The code for parts in a bucket also serves these files (`remote.store.protocol.ObjectStore`). A key
``view/<name>/<stem>.log`` is the file of that name in the partition's directory. `remote.store.file_store` writes each
file aside (``view/~aside/<ulid>``), syncs it, renames it and syncs the directory. Every call passes
`local.storage.storage`. The partition may move to another log directory at any time, so each call asks for its place.

Disk errors stay disk errors: DiskFailed, not Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from local.errors import AccessDenied, DiskFailed, InvalidRequest, LogError
from local.names import VIEW_PARTS
from local.storage import Storage, join
from remote.keys import VIEWS
from remote.store import Asked, Body, ObjectInfo, UploadSource, read_each
from remote.store.file_store import FileStore

Where = Callable[[], tuple[Storage, str]]  # the storage and the partition's directory


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

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        return read_each(self, asked)

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
        raise InvalidRequest(
            "invalid name of a part of a view, it is not below the directory of the view", key=key, directory=VIEWS
        )
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
