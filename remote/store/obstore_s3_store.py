"""The S3 store over obstore: puts, uploads, gets and ranges by a Rust client without the GIL.

- Listings and deletes use s3fs, because obstore cuts prefixes at slashes and names at their last slash. Listings of
  manifests use obstore, because every read-only open begins with one, and loading s3fs takes a quarter of a second.
- obstore's fsspec interface is not used: it has no create-if-absent and adds a copy.
- obstore does not retry (`remote.store.middleware.deadlines_and_retries` does).
- Parts of an upload are sent by s3fs as they are read, because obstore holds every part that it sends. Every request is
  signed over the SHA-256 of its body, so S3 refuses a body that differs.
- obstore's threads do not survive a fork. A process forked after the first use of obstore uses s3fs: it would hang.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from local.errors import LogError, Unavailable
from remote.keys import MANIFESTS
from remote.store.protocol import (
    ANOTHER_RANGE,
    LIST_PAGE,
    Body,
    GetRange,
    ObjectInfo,
    check_key,
    check_length,
    check_range,
    read_if_there,
)
from remote.store.s3_options import Settings, encryption, settings
from remote.store.s3_store import BROKE_OFF, READ_CONCURRENCY, S3Store, object_info, of_answer

UPLOAD_PARTS = 4

# Only these parts of the client's texts are read: the texts hold the server's answer, which may hold access keys.
_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_BODY = re.compile(r"reqwest::Error \{\s*kind: (?:Body|Decode)\b")
_WRONG_RANGE = re.compile(
    r"source: (NotPartial|UnexpectedRange|NoContentRange|ParseContentRange|InvalidContentRange)\b"
)

log = logging.getLogger(__name__)
_first_use_lock = threading.Lock()
_used_by: int | None = None  # the process that first used obstore, this one or an ancestor


class ObstoreS3Store(S3Store):
    """See `S3Store`. The options must not contain any that are `untranslatable`."""

    uploads_max = 2
    _parts_max = UPLOAD_PARTS
    _config = {"request_checksum_calculation": "when_required"}  # noqa: RUF012  # every body is signed instead
    _clients: _Clients | None = None

    def _put(self, attempt: str, key: str, body: Body, settings: Mapping[str, object]) -> None:
        if (clients := self._obstore()) is None:
            super()._put(attempt, key, body, settings)
            return
        mode = "create" if "IfNoneMatch" in settings else "overwrite"
        attributes = {"Storage-Class": settings["StorageClass"]} if "StorageClass" in settings else None
        with self._at(attempt, key):  # `_Clients` has the settings for encryption
            clients.api.put(clients.once, self._name(key), body, mode=mode, use_multipart=False, attributes=attributes)

    def get(self, key: str) -> bytes:
        if (clients := self._obstore()) is None:
            return super().get(key)
        with self._at("cannot read an object", key):
            return bytes(clients.api.get(clients.once, self._name(key)).bytes())

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        if (clients := self._obstore()) is None:
            return super().get_ranges(key, ranges)
        for start, length in ranges:
            check_range(key, start, length)
        name = self._name(key)

        def read(wanted: tuple[int, int]) -> Body:
            start, length = wanted
            if not length:
                return b""
            attempt = "cannot read a range of an object"
            with self._at(attempt, key, start=start, length=length):
                body = memoryview(clients.api.get_range(clients.once, name, start=start, length=length))
            check_length(body, attempt, {"store": self.url, "key": key, "start": start, "length": length}, length)
            return body

        if len(ranges) < 2:
            return [read(wanted) for wanted in ranges]
        return list(clients.pool.map(read, ranges))

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        if (clients := self._obstore()) is None or len(ranges) < 2:
            return super().get_each(ranges)
        others = [clients.pool.submit(read_if_there, self, each) for each in ranges[1:]]
        return [read_if_there(self, ranges[0]), *(each.result() for each in others)]

    def head(self, key: str) -> ObjectInfo:
        if (clients := self._obstore()) is None:
            return super().head(key)
        with self._at("cannot read the size of an object", key):
            found = clients.api.head(clients.once, self._name(key))
        modified_ms = int(found["last_modified"].timestamp() * 1000)
        return ObjectInfo(key=key, size_bytes=int(found["size"]), modified_ms=modified_ms)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List manifests by obstore while it accepts their names; list all other objects by s3fs."""
        clients = self._obstore() if prefix.endswith(MANIFESTS) else None
        if clients is None:
            yield from super().list(prefix, start_after=start_after)
            return
        after = self._root + start_after if start_after else None
        pages = iter(clients.api.list(clients.once, self._root + prefix, offset=after, chunk_size=LIST_PAGE))
        while (page := self._page(pages, prefix)) is not None:
            if not page:
                return
            yield from page
            start_after = page[-1].key
        yield from super().list(prefix, start_after=start_after)

    def _page(self, pages: Iterator[Sequence[Any]], prefix: str) -> Sequence[ObjectInfo] | None:
        """The next entries, none at the end; None for a name that obstore would cut or refuse."""
        nothing: Sequence[Any] = ()
        try:
            with self._at("cannot list objects", None, prefix=prefix):
                page = next(pages, nothing)
        except _NoPathError:
            return None
        if not all(each["size"] for each in page):
            return None
        found = [(str(each["path"]).removeprefix(self._root), each) for each in page]
        return [object_info(key, int(each["size"]), each["last_modified"]) for key, each in found]

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None:
            clients.pool.shutdown(wait=False)
        super().close()

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _obstore(self) -> _Clients | None:
        if not _may_use_obstore():
            return None
        with self._lock:
            if self._clients is None:
                was_refused = self._was_refused
                with self._door("cannot open a store"):
                    found = settings(self._bucket, self._options)
                    self._clients = _Clients(found, encryption(self._objects))
                self._was_refused = was_refused  # no request has been sent yet
            return self._clients

    @contextmanager
    def _at(self, attempt: str, key: str | None, **facts: object) -> Iterator[None]:
        call_facts, made = {"store": self.url, "key": key, **facts}, self._clients_made
        try:
            yield
            self._was_refused = False
        except BaseException as error:
            if type(error).__name__ == "InvalidPathError":
                raise _NoPathError from None
            if isinstance(error, LogError) or not _is_obstores(error):
                raise
            endpoint = self._clients.endpoint if self._clients is not None else None
            raise self._worth_a_try(_translate(error, attempt, call_facts, endpoint), made) from None

    def _drop_clients(self) -> None:
        self._clients = None  # its threads end with the last reference
        super()._drop_clients()


class _Clients:
    """obstore's functions, a client of the bucket that never retries, and threads for parallel reads."""

    def __init__(self, found: Settings, more: Mapping[str, Any]) -> None:
        import obstore
        from obstore.store import S3Store as Client

        self.api: Any = obstore
        self.endpoint = found.endpoint
        self.once = Client(**found.config, **more, retry_config={"max_retries": 0})
        self.pool = ThreadPoolExecutor(READ_CONCURRENCY, thread_name_prefix="tiered-read")


class _NoPathError(Exception):
    """An object name that obstore does not accept."""


def _may_use_obstore() -> bool:
    global _used_by
    with _first_use_lock:
        if _used_by is None:
            _used_by = os.getpid()
        return _used_by == os.getpid()


def _is_obstores(error: BaseException) -> bool:
    import obstore.exceptions

    is_panic = type(error).__name__ == "PanicException"
    return is_panic or isinstance(error, OSError | ValueError | obstore.exceptions.BaseError)


def _translate(error: BaseException, attempt: str, facts: dict[str, object], endpoint: str | None) -> LogError:
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        return of_answer(code[1] if code else "", int(status[1]) if status else 0, attempt, facts)
    if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
        return Unavailable(f"{attempt}, the client failed before the reply", **facts, cause=type(error).__name__)
    if (wrong := _WRONG_RANGE.search(text)) is not None:
        return Unavailable(f"{attempt}, {ANOTHER_RANGE}", **facts, cause=wrong[1])
    if _BODY.search(text):
        return Unavailable(f"{attempt}, {BROKE_OFF}", **facts, endpoint=endpoint)
    kind = _KIND.search(text)
    client_facts = {"endpoint": endpoint, "cause": kind[1] if kind else type(error).__name__}
    return Unavailable(f"{attempt}, the store cannot be reached", **facts, **client_facts)
