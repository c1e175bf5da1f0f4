"""The HDFS store: ``hdfs://namenode:8020/directory``, over hdfs-native, fsspec's client for HDFS.

fsspec's layer lacks hsync, ranges, and a rename that does not overwrite: these use the client below it
(`filesystem.client`). Order of effects of a write:

1. Write a temporary file (``<root>/~aside/<ulid>``), with an hsync (to the DataNodes' disks) after every part.
2. Close it.
3. Rename it at the NameNode, which is atomic: over the target, or for create-if-absent failing if the name is taken.

A crash leaves the target untouched or complete, and maybe a temporary file, which no listing shows. The first write of
a process removes such files older than ASIDE_AGE_MAX_MS by the NameNode's clock. Empty directories are no objects. The
root itself is never created: a mistyped path must not look like an empty store.

A rename whose answer was lost, and which the client repeats, finds its source missing. The store raises Unavailable. A
retry of the whole create then meets its own object and raises AlreadyExists (`ObjectStore.put_if_absent`).

A client must not be used in a forked child, so every process makes its own at its first request. The library also has
one cache of idle DataNode connections per process: a forked child waits until the copied connections are too old to be
used again, or it would read the parent's answers. Options are Hadoop settings in addition to ``HADOOP_CONF_DIR``.

**Errors.** Of a RuntimeError only the Java class of the NameNode's exception decides and is reported. A panic of the
client's Rust code is not an Exception; it is caught too.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

from local.errors import (
    AccessDenied,
    AlreadyExists,
    Corrupt,
    ErrorCode,
    InvalidRequest,
    LogError,
    NotFound,
    Unavailable,
)
from remote.keys import is_ulid, new_ulid
from remote.store.file_store import ASIDE, DirectoryStore
from remote.store.protocol import Body, ObjectInfo, check_length, check_range

log = logging.getLogger(__name__)

# Clients of a parent process. Dropping one in a forked child waits for ever for threads that only the parent has.
_inherited: list[Any] = []
# The library does not reuse a connection that was idle for 3 s (hdfs-native 0.14.7); here with a reserve.
COPIED_CONNECTIONS_S = 3.5
_has_connected = False  # this process, or one that it was forked from
_forked_at: float | None = None  # time.monotonic() of a child whose parent had connected

READ_CONCURRENCY = 4  # concurrent ranges of one get_ranges
ASIDE_AGE_MAX_MS = 24 * 3_600_000  # no upload takes this long; a longer one would fail and be retried
# Defaults below the user's options: with the client's own defaults a dead NameNode costs three minutes. The client does
# not retry a single NameNode (`remote.store.middleware.deadlines_and_retries` does); its tries are for a failover
# between two of them. Times in ms. docs/reference/stores.md lists the settings that are not available.
_ATTEMPTS = "dfs.client.failover.max.attempts"
_DEFAULTS = {
    _ATTEMPTS: "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
    "dfs.client.socket-timeout": "30000",
}
_JAVA_CLASS = re.compile(r'RPCError\("([\w.$]+)"')
_NOT_A_DIRECTORY = "(is not a directory)"  # a name below a file: the NameNode calls it a missing permission
_DENIED = {
    "AccessControlException", "AccessTokenException", "AuthenticationException", "AuthorizationException",
    "InvalidToken", "SaslException", "SecurityException",
}  # fmt: skip
_REFUSED = {
    "HadoopIllegalArgumentException", "IllegalArgumentException", "InvalidPathException",
    "MaxDirectoryItemsExceededException", "ParentNotDirectoryException", "PathComponentTooLongException",
    "PathIsNotEmptyDirectoryException", "UnsupportedOperationException",
}  # fmt: skip


class HdfsStore(DirectoryStore):
    """A store in HDFS. `authority` is ``host:port``, a nameservice, or "" for the default one."""

    def __init__(self, authority: str, root: str, options: Mapping[str, object] | None = None) -> None:
        self._authority = authority
        self._root = "/" + root.strip("/")
        self._aside = f"{self._root.rstrip('/')}/{ASIDE}"
        self._given = tuple(options or ())
        one_namenode = {_ATTEMPTS: "0"} if ":" in authority else {}
        self._options = {**_DEFAULTS, **one_namenode, **_settings(options or {})}
        self._lock = threading.Lock()
        self._filesystem: Any = None
        self._pid = 0
        self._is_swept = False

    @property
    def url(self) -> str:
        return f"hdfs://{self._authority}{quote(self._root)}".rstrip("/")

    def _publish(self, attempt: str, key: str, bodies: Iterable[Body], *, overwrite: bool) -> None:
        path = self._path(key)
        aside = f"{self._aside}/{new_ulid(0)}"
        file = self._create(attempt, key, aside)
        try:
            for body in bodies:  # outside the translation: errors of the source stay unchanged
                with self._door(attempt, key=key):
                    file.write(body)
                    file.hsync()
            with self._door(attempt, key=key):
                file.close()
            self._rename(attempt, key, aside, path, overwrite=overwrite)
        except BaseException:
            self._remove_aside(aside)
            raise
        self._sweep_once(path)

    def _create(self, attempt: str, key: str, aside: str) -> Any:  # noqa: ANN401
        from hdfs_native import WriteOptions

        exclusive = WriteOptions(overwrite=False, create_parent=False)
        try:
            with self._door(attempt, key=key):
                return self._client.create(aside, exclusive)
        except NotFound:
            self._check_root(attempt)
        with self._door(attempt, key=key):
            self._client.mkdirs(self._aside, create_parent=False)
            return self._client.create(aside, exclusive)

    def _rename(self, attempt: str, key: str, aside: str, path: str, *, overwrite: bool) -> None:
        with self._door(attempt, key=key):
            try:
                self._client.rename(aside, path, overwrite=overwrite)
                return
            except FileNotFoundError:
                if self._is_missing(aside):
                    facts = {"store": self.url, "key": key}
                    raise Unavailable(f"{attempt}, its temporary file does not exist", **facts) from None
                self._client.mkdirs(path.rpartition("/")[0], create_parent=True)
            self._client.rename(aside, path, overwrite=overwrite)

    def _is_missing(self, path: str) -> bool:
        try:
            self._client.get_file_info(path)
        except FileNotFoundError:
            return True
        return False

    def _remove_aside(self, aside: str) -> None:
        try:
            with self._door("cannot delete a temporary file", path=aside):
                self._client.delete(aside, recursive=False)
        except LogError as error:
            log.warning("cannot delete a temporary file: path=%s cause=%s", aside, error)

    def _sweep_once(self, written: str) -> None:
        """Remove killed writers' old temporary files, best effort. The new file `written` shows the NameNode's time."""
        with self._lock:
            if self._is_swept:
                return
            self._is_swept = True
        try:
            with self._door("cannot delete old temporary files"):
                now_ms = self._client.get_file_info(written).modification_time
                for status in list(self._client.list_status(self._aside, recursive=False)):
                    is_ours = not status.isdir and is_ulid(status.path.rpartition("/")[2])
                    if is_ours and now_ms - status.modification_time > ASIDE_AGE_MAX_MS:
                        self._client.delete(status.path, recursive=False)
                        log.info("deleted an old temporary file: path=%s", status.path)
        except LogError as error:
            log.warning("cannot delete old temporary files: store=%s cause=%s", self.url, error)

    def get(self, key: str) -> bytes:
        with self._door("cannot read an object", key=key):
            return bytes(self._client.read(self._path(key)).read())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, length in ranges:
            check_range(key, start, length)
        if not ranges:
            return []
        attempt = "cannot read a range of an object"
        with self._door(attempt, key=key):
            reader = self._client.read(self._path(key))
            size_bytes = len(reader)

        def read(wanted: tuple[int, int]) -> bytes:
            start, length = wanted
            facts = {"store": self.url, "key": key, "start": start, "length": length}
            if length and start + length > size_bytes:  # the client would panic
                raise Corrupt(f"{attempt}, the object ends before the range", **facts, size_bytes=size_bytes)
            with self._door(attempt, key=key):
                body = bytes(reader.read_range(start, length)) if length else b""
            check_length(body, attempt, facts, length)
            return body

        if len(ranges) == 1:
            return [read(ranges[0])]
        with ThreadPoolExecutor(min(READ_CONCURRENCY, len(ranges)), thread_name_prefix="tiered-hdfs") as pool:
            return list(pool.map(read, ranges))

    def head(self, key: str) -> ObjectInfo:
        attempt = "cannot read the size of an object"
        with self._door(attempt, key=key):
            status = self._client.get_file_info(self._path(key))
        if status.isdir:
            raise NotFound(f"{attempt}, it does not exist", store=self.url, key=key)
        return _info(key, status)

    def list_prefixes(self, prefix: str) -> list[str]:
        above = prefix[: prefix.rfind("/") + 1]
        there = [name for name, status in self._children(above) if status.isdir]
        names = [name for name in there if name.startswith(prefix[len(above) :])]
        return [name.rstrip("/") for name in names if any(True for _ in self._walk(above + name, "", ""))]

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        yield from self._walk(prefix[: prefix.rfind("/") + 1], prefix, start_after)

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        for name, status in self._children(directory):
            key = directory + name
            if status.isdir:
                # Every key below begins with `key`, and "0" sorts after "/".
                is_past = key[:-1] + "0" > start_after
                if is_past and (key.startswith(prefix) or prefix.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                yield _info(key, status)

    def _children(self, directory: str) -> Sequence[tuple[str, Any]]:
        """Return (name, status) of a directory's entries in key order: a directory's name ends with a slash."""
        path, attempt = f"{self._root.rstrip('/')}/{directory}".rstrip("/") or "/", "cannot list objects"
        try:
            with self._door(attempt, prefix=directory or None):
                found = list(self._client.list_status(path, recursive=False))
        except NotFound:
            self._check_root(attempt)
            return []
        if len(found) == 1 and found[0].path == path:  # a file lists itself
            return []
        named = [(status.path.rpartition("/")[2] + "/" * status.isdir, status) for status in found]
        return sorted((each for each in named if directory or each[0] != f"{ASIDE}/"), key=lambda each: each[0])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                with self._door("cannot delete an object", key=key):
                    self._client.delete(path, recursive=False)
            except NotFound:
                continue  # a name below a file
            except InvalidRequest as error:
                if error.facts.get("cause") != "PathIsNotEmptyDirectoryException":  # a directory is no object
                    raise

    def close(self) -> None:
        with self._lock:
            if self._filesystem is not None and self._pid != os.getpid():
                _inherited.append(self._filesystem)
            self._filesystem = None

    @property
    def _client(self) -> Any:  # noqa: ANN401
        with self._lock:
            if self._filesystem is None or self._pid != os.getpid():
                if self._filesystem is not None:
                    _inherited.append(self._filesystem)
                with self._door("cannot open a store"):
                    self._filesystem = make_filesystem(self._authority, self._options)
                self._pid = os.getpid()
            return self._filesystem.client

    def _door(self, attempt: str, **facts: object) -> AbstractContextManager[None]:
        return translated(attempt, options=self._given, store=self.url, **facts)

    def _check_root(self, attempt: str) -> None:
        try:
            with self._door(attempt):
                is_directory = self._client.get_file_info(self._root).isdir
        except NotFound:
            is_directory = False
        if not is_directory:
            missing = f"{attempt}, the store's directory does not exist"
            raise NotFound(missing, store=self.url).with_code(ErrorCode.STORE_DIRECTORY_MISSING)


def _note_fork() -> None:
    global _forked_at
    _forked_at = time.monotonic() if _has_connected else None


os.register_at_fork(after_in_child=_note_fork)


def make_filesystem(authority: str, options: Mapping[str, str]) -> Any:  # noqa: ANN401
    """A fresh fsspec file system. `authority` is as in `HdfsStore`; errors are the library's."""
    import fsspec

    global _has_connected
    _has_connected = True
    if _forked_at is not None:
        time.sleep(max(0.0, _forked_at + COPIED_CONNECTIONS_S - time.monotonic()))
    host, _, port = authority.partition(":")
    return fsspec.filesystem(
        "hdfs", host=host or None, port=int(port) if port else None, skip_instance_cache=True, **options
    )


def _settings(options: Mapping[str, object]) -> dict[str, str]:
    for name, value in options.items():
        if not isinstance(value, str | int | float | bool):
            raise InvalidRequest("cannot open the store, an option is not a Hadoop setting", option=name)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _info(key: str, status: Any) -> ObjectInfo:  # noqa: ANN401
    return ObjectInfo(key=key, size_bytes=status.length, modified_ms=status.modification_time)


@contextmanager
def translated(attempt: str, *, options: Iterable[str] = (), **facts: object) -> Iterator[None]:
    """Raise this project's error for any error of the client. `options` are the names of its options."""
    try:
        yield
    except LogError:
        raise
    except (TypeError, ValueError) as error:
        client_facts = {"options": ",".join(sorted(options)) or None, "cause": type(error).__name__}
        raise InvalidRequest(f"{attempt}, the client rejected its options", **facts, **client_facts) from None
    except (OSError, RuntimeError) as error:
        raise translate(error, attempt, facts) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Unavailable(f"{attempt}, the client failed before the reply", **facts, cause="PanicException") from None


def translate(error: OSError | RuntimeError, attempt: str, facts: dict[str, object]) -> LogError:
    name = java_class(error)
    if isinstance(error, FileNotFoundError) or (name == "AccessControlException" and _NOT_A_DIRECTORY in str(error)):
        return NotFound(f"{attempt}, it does not exist", **facts)
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{attempt}, the name already exists", **facts)
    if isinstance(error, PermissionError) or name in _DENIED:
        return AccessDenied(f"{attempt}, access was denied or the credentials are wrong", **facts, cause=name or None)
    if name in _REFUSED:
        return InvalidRequest(f"{attempt}, the store rejected the request", **facts, cause=name)
    if isinstance(error, OSError):
        return Unavailable(f"{attempt}, the store cannot be reached", **facts, cause=type(error).__name__)
    # Safe mode, a standby NameNode, no DataNode left, an exhausted quota, a broken pipeline.
    return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts, cause=name or _variant(error))


def java_class(error: BaseException) -> str:
    """Return the NameNode's exception without its package, "" without one."""
    found = _JAVA_CLASS.match(str(error))
    return re.split(r"[.$]", found[1])[-1] if found else ""


def _variant(error: BaseException) -> str:
    """Return the client's name of the error: the first word of its text, which holds no secret."""
    found = re.match(r"\w+", str(error))
    return found[0] if found else type(error).__name__
