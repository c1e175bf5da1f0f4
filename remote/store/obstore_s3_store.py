"""The S3 store over obstore: puts, uploads, gets and ranges by a Rust client without the GIL.

- Listings and deletes use s3fs, because obstore cuts prefixes at slashes and names at their last slash. Listings of
  manifests use obstore, because every read-only open begins with one, and loading s3fs takes a quarter of a second.
- obstore's fsspec interface is not used: it has no create-if-absent and adds a copy.
- obstore does not retry (`remote.store.middleware.deadlines_and_retries` does), except parts of an upload, within the
  limits of the policy. Every request is signed over the SHA-256 of its body, so S3 refuses a body that differs.
- A large upload has UPLOAD_PARTS + 1 parts in memory. Uploads are invisible until completed; a failed one is aborted.
  obstore does not wait for the parts in flight, so S3 may keep these parts until the collector's second abort.
- obstore's threads do not survive a fork. A process forked after the first use of obstore uses s3fs: it would hang.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

from local.errors import AlreadyExists, LogError, NotFound, Unavailable
from remote.keys import MANIFESTS
from remote.segment_entry import PART_BYTES
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.protocol import (
    ANOTHER_RANGE,
    LIST_PAGE,
    Body,
    GetRange,
    ObjectInfo,
    UploadSource,
    begun_parts,
    check_body,
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
    _clients: _Clients | None = None

    def put(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        if (clients := self._obstore()) is None:
            super().put(key, body)
            return
        self._put_once(clients, key, body)

    def put_if_absent(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        if (clients := self._obstore()) is None:
            super().put_if_absent(key, body)
            return
        with self._at("cannot create an object", key):
            clients.put(clients.once, self._name(key), body, mode="create", use_multipart=False)

    def upload(self, key: str, source: UploadSource) -> None:
        if (clients := self._obstore()) is None:
            super().upload(key, source)
            return
        name, parts = self._name(key), begun_parts(key, source)
        first, second = next(parts), next(parts, None)
        storage_class = self._objects.storage_class
        attributes = {"Storage-Class": storage_class} if storage_class is not None else None
        if second is None:
            self._put_once(clients, key, first, attributes=attributes)
            return
        sent = _Counted(chain([first, second], parts))
        try:
            with self._at("cannot upload an object", key, sent):
                step = max(len(first), PART_BYTES)
                clients.put(
                    clients.patient, name, iter(sent), use_multipart=True, chunk_size=step,
                    max_concurrency=UPLOAD_PARTS, attributes=attributes,
                )  # fmt: skip
        except (AlreadyExists, NotFound, Unavailable) as error:
            self._resolve_upload(key, sent, error)

    def _put_once(self, clients: _Clients, key: str, body: Body, **settings: object) -> None:
        try:
            with self._at("cannot store an object", key):
                clients.put(clients.once, self._name(key), body, use_multipart=False, **settings)
        except AlreadyExists as error:
            self._resolve_put(key, body, error)

    def _resolve_upload(self, key: str, sent: _Counted, error: LogError) -> None:
        """Determine the outcome of an upload whose reply was lost: return if it is complete, else raise the error."""
        is_sent = sent.is_whole and error is not sent.error
        if is_sent and self._policy.call(lambda: self._size_or_none(key), verb="head", key=key) == sent.size_bytes:
            return
        if isinstance(error, Unavailable) and error is not sent.error:
            # The client retried its parts already; the whole upload is too large to start over.
            raise error.restated(error.attempt, **{**error.facts, "attempts": self._policy.attempts_max}) from None
        raise error

    def get(self, key: str) -> bytes:
        if (clients := self._obstore()) is None:
            return super().get(key)
        with self._at("cannot read an object", key):
            return bytes(clients.get(clients.once, self._name(key)).bytes())

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
                body = memoryview(clients.get_range(clients.once, name, start=start, length=length))
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
            found = clients.head(clients.once, self._name(key))
        modified_ms = int(found["last_modified"].timestamp() * 1000)
        return ObjectInfo(key=key, size_bytes=int(found["size"]), modified_ms=modified_ms)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List manifests by obstore while it accepts their names; list all other objects by s3fs."""
        clients = self._obstore() if prefix.endswith(MANIFESTS) else None
        if clients is None:
            yield from super().list(prefix, start_after=start_after)
            return
        after = self._root + start_after if start_after else None
        pages = iter(clients.list(clients.once, self._root + prefix, offset=after, chunk_size=LIST_PAGE))
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
                    self._clients = _Clients(found, self._policy, encryption(self._objects))
                self._was_refused = was_refused  # no request has been sent yet
            return self._clients

    @contextmanager
    def _at(self, attempt: str, key: str | None, sent: _Counted | None = None, **facts: object) -> Iterator[None]:
        call_facts, made = {"store": self.url, "key": key, **facts}, self._clients_made
        try:
            yield
            self._was_refused = False
        except BaseException as error:
            if sent is not None and sent.error is not None and error is not sent.error and _is_obstores(error):
                # If the source failed, the client's error is about the abort: already aborted, or parts that remain.
                if not isinstance(error, FileNotFoundError):
                    log.warning("cannot abort an incomplete upload: key=%s cause=%s", key, type(error).__name__)
                raise sent.error from None
            if type(error).__name__ == "InvalidPathError":
                raise _NoPathError from None
            if isinstance(error, LogError) or not _is_obstores(error) or (sent is not None and error is sent.error):
                raise
            endpoint = self._clients.endpoint if self._clients is not None else None
            raise self._worth_a_try(_translate(error, attempt, call_facts, endpoint), made) from None

    def _drop_clients(self) -> None:
        self._clients = None  # its threads end with the last reference
        super()._drop_clients()


class _Clients:
    """obstore's functions, and two clients of a bucket: `patient` retries, for parts of uploads."""

    def __init__(self, found: Settings, policy: RetryPolicy, more: Mapping[str, str]) -> None:
        import obstore
        from obstore.store import S3Store as Client

        self.put: Callable[..., object] = obstore.put
        self.get: Callable[..., Any] = obstore.get
        self.get_range: Callable[..., Any] = obstore.get_range
        self.head: Callable[..., Any] = obstore.head
        self.list: Callable[..., Any] = obstore.list
        self.endpoint = found.endpoint
        common: dict[str, Any] = {**found.config, **more}
        first, most = timedelta(seconds=policy.wait_first_s), timedelta(seconds=policy.wait_max_s)
        retries: Any = {
            "retry_timeout": timedelta(seconds=policy.deadline_s),
            "backoff": {"init_backoff": first, "max_backoff": most, "base": 2},
        }
        never: Any = {**retries, "max_retries": 0}
        often: Any = {**retries, "max_retries": policy.attempts_max - 1}
        self.once, self.patient = Client(**common, retry_config=never), Client(**common, retry_config=often)
        self.pool = ThreadPoolExecutor(READ_CONCURRENCY, thread_name_prefix="tiered-read")


class _NoPathError(Exception):
    """An object name that obstore does not accept."""


class _Counted:
    """The parts of an upload, with the bytes given so far, completeness, and the source's error."""

    def __init__(self, parts: Iterator[Body]) -> None:
        self._parts = parts
        self.size_bytes = 0
        self.is_whole = False
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[Body]:
        try:
            for part in self._parts:
                self.size_bytes += len(part)
                yield part
        except BaseException as error:
            self.error = error
            raise
        self.is_whole = True


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
