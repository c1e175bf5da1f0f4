"""The S3 store where bytes matter, over obstore: puts, uploads, gets and ranges by a Rust client that needs no GIL.

Listings and deletes stay s3fs's: obstore cuts prefixes at slashes, and names at their last one. But for listings of
heads, with which every look begins: s3fs and all that it stands on take a process a quarter of a second to load.
Of obstore its own functions are used and not its fsspec face, which has no create-if-absent and adds a copy; both are
measured in `tests/bench/bench_stores.py`.

What obstore is kept from doing: retrying (one layer, `remote.store.middleware.retrying_store`), but for the parts of an
upload, which only the client can send again by themselves: those it tries as often and as long as the policy says.
Every request is signed over the SHA-256 of its body, so S3 refuses a body that differs.

A large upload has UPLOAD_PARTS parts in memory and one more, so no more than `uploads_max` should be under way at once;
`remote.store.middleware.deadline_store` sees to it. They are invisible until completed; obstore aborts one that fails.

obstore's threads do not live in a forked child, and there it hangs. A process that was forked after obstore was used
goes on with s3fs.
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
from remote.keys import HEADS
from remote.segment_entry import PART_BYTES
from remote.store.middleware.retrying_store import RetryPolicy
from remote.store.middleware.watchdog import Watchdog
from remote.store.object_settings import BUCKETS_OWN, ObjectSettings
from remote.store.obstore_options import Settings, client_options, encryption, settings
from remote.store.protocol import (
    ANOTHER_RANGE,
    Asked,
    Body,
    ObjectInfo,
    UploadSource,
    begun_parts,
    check_body,
    check_key,
    check_length,
    check_range,
    read_if_there,
)
from remote.store.s3_answers import BROKE_OFF, of_answer
from remote.store.s3_store import READ_CONCURRENCY, S3Store, object_info

UPLOAD_PARTS = 4
LIST_PAGE = 1000  # keys that S3 gives for one LIST

# Of the client's texts only these are read: they hold what the server said, and that may hold access keys.
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
    """See `remote.store.protocol.ObjectStore` and `S3Store`; options that are `untranslatable` must not be among those
    given."""

    uploads_max = 2

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: Mapping[str, object] | None = None,
        *,
        policy: RetryPolicy,
        objects: ObjectSettings = BUCKETS_OWN,
        watchdog: Watchdog | None = None,
    ) -> None:
        super().__init__(bucket, prefix, options, policy=policy, objects=objects, watchdog=watchdog)
        self._objects = objects
        self._clients: _Clients | None = None

    def __repr__(self) -> str:
        return f"ObstoreS3Store({self.url!r})"

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        if (clients := self._obstore()) is None:
            super().put(key, body)
            return
        try:
            with self._at("storing an object", key):
                clients.put(clients.once, self._name(key), body, use_multipart=False)
        except AlreadyExists as error:
            self._settle_put(key, body, error)

    def put_if_absent(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        if (clients := self._obstore()) is None:
            super().put_if_absent(key, body)
            return
        with self._at("creating an object", key):
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
            try:
                with self._at("storing an object", key):
                    clients.put(clients.once, name, first, use_multipart=False, attributes=attributes)
            except AlreadyExists as error:
                self._settle_put(key, first, error)
            return
        sent = _Counted(chain([first, second], parts))
        try:
            with self._at("uploading an object", key, sent):
                step = max(len(first), PART_BYTES)
                clients.put(
                    clients.patient, name, iter(sent), use_multipart=True, chunk_size=step,
                    max_concurrency=UPLOAD_PARTS, attributes=attributes,
                )  # fmt: skip
        except (AlreadyExists, NotFound, Unavailable) as error:
            self._settle(key, sent, error)

    def _settle(self, key: str, sent: _Counted, error: LogError) -> None:
        """The answer may be lost of an upload that is complete. Raises the error if it is not."""
        whole = sent.is_whole and error is not sent.error
        if whole and self._policy.call(lambda: self._size_or_none(key), verb="head", key=key) == sent.size_bytes:
            return
        if isinstance(error, Unavailable) and error is not sent.error:
            # The client has tried its parts again; the whole is too much to begin anew.
            raise error.restated(error.attempt, **{**error.facts, "attempts": self._policy.attempts_max}) from None
        raise error

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        if (clients := self._obstore()) is None:
            return super().get(key)
        with self._at("reading an object", key):
            return bytes(clients.get(clients.once, self._name(key)).bytes())

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        if (clients := self._obstore()) is None:
            return super().get_ranges(key, ranges)
        for start, length in ranges:
            check_range(key, start, length)
        name = self._name(key)

        def read(asked: tuple[int, int]) -> Body:
            start, length = asked
            if not length:
                return b""
            attempt = "reading a range of an object"
            with self._at(attempt, key, start=start, length=length):
                body = memoryview(clients.get_range(clients.once, name, start=start, length=length))
            check_length(body, attempt, {"store": self.url, "key": key, "start": start, "length": length}, length)
            return body

        if len(ranges) < 2:
            return [read(asked) for asked in ranges]
        return list(clients.pool.map(read, ranges))

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        if (clients := self._obstore()) is None or len(asked) < 2:
            return super().get_each(asked)
        others = [clients.pool.submit(read_if_there, self, each) for each in asked[1:]]
        return [read_if_there(self, asked[0]), *(each.result() for each in others)]

    def head(self, key: str) -> ObjectInfo:
        if (clients := self._obstore()) is None:
            return super().head(key)
        with self._at("looking at an object", key):
            found = clients.head(clients.once, self._name(key))
        modified_ms = int(found["last_modified"].timestamp() * 1000)
        return ObjectInfo(key=key, size_bytes=int(found["size"]), modified_ms=modified_ms)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Of heads by obstore, as long as it knows their names; what else lies there is s3fs's to name."""
        clients = self._obstore() if prefix.endswith(HEADS) else None
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
        """The next ones, none at the end. None where there are names that obstore would cut or refuse: with an empty
        component, or of what may be a folder's mark, an empty object."""
        nothing: Sequence[Any] = ()
        try:
            with self._at("listing objects", None, prefix=prefix):
                page = next(pages, nothing)
        except _NoPathError:
            return None
        if not all(each["size"] for each in page):
            return None
        return [
            object_info(str(each["path"]).removeprefix(self._root), int(each["size"]), each["last_modified"])
            for each in page
        ]

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None:
            clients.pool.shutdown(wait=False)
        super().close()

    # --- the client --------------------------------------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _obstore(self) -> _Clients | None:
        """The clients, made at the first request; None in a process where obstore would hang."""
        if not _may_use_obstore():
            return None
        with self._lock:
            if self._clients is None:
                was_refused = self._was_refused
                with self._door("opening a store"):
                    found = settings(self._bucket, self._options)
                    self._clients = _Clients(found, self._policy, encryption(self._objects))
                self._was_refused = was_refused  # nobody was asked anything yet
            return self._clients

    @contextmanager
    def _at(self, attempt: str, key: str | None, sent: _Counted | None = None, **facts: object) -> Iterator[None]:
        """Around every call of obstore: its errors become ours, a source's own pass."""
        told, made = {"store": self.url, "key": key, **facts}, self._clients_made
        try:
            yield
            self._was_refused = False
        except BaseException as error:
            if sent is not None and sent.error is not None and error is not sent.error and _is_obstores(error):
                # What the client says then is of the abort: gone already, or parts that stay.
                if not isinstance(error, FileNotFoundError):
                    log.warning("leaving an incomplete upload behind: key=%s cause=%s", key, type(error).__name__)
                raise sent.error from None
            if type(error).__name__ == "InvalidPathError":
                raise _NoPathError from None
            if isinstance(error, LogError) or not _is_obstores(error) or (sent is not None and error is sent.error):
                raise
            endpoint = self._clients.endpoint if self._clients is not None else None
            raise self._worth_a_try(_translate(error, attempt, told, endpoint), made) from None

    def _drop_clients(self) -> None:
        self._clients = None  # its threads end when nobody has it any more
        super()._drop_clients()


class _Clients:
    """obstore's functions, and two clients of a bucket: `once` never tries again, `patient` is for parts of uploads."""

    def __init__(self, found: Settings, policy: RetryPolicy, more: Mapping[str, str]) -> None:
        import obstore
        from obstore.store import S3Store as Client

        self.put: Callable[..., object] = obstore.put
        self.get: Callable[..., Any] = obstore.get
        self.get_range: Callable[..., Any] = obstore.get_range
        self.head: Callable[..., Any] = obstore.head
        self.list: Callable[..., Any] = obstore.list
        self.endpoint = found.endpoint
        common: dict[str, Any] = {**found.config, **more, "client_options": client_options(found)}
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
    """A name of an object that obstore does not take for one."""


class _Counted:
    """Parts on their way: how many bytes were given, whether all of them, and what their source raised."""

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
    """Its own classes, Python's for a missing name, for a range that is none, and a panic of its Rust code."""
    import obstore.exceptions

    return isinstance(error, OSError | ValueError | obstore.exceptions.BaseError) or (
        type(error).__name__ == "PanicException"
    )


def _translate(error: BaseException, attempt: str, facts: dict[str, object], endpoint: str | None) -> LogError:
    """Ours: a code says more than a status, a status more than the class. The client's text goes no further."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        return of_answer(code[1] if code else "", int(status[1]) if status else 0, attempt, facts)
    if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
        return Unavailable(f"{attempt}, the client broke off", **facts, cause=type(error).__name__)
    if (wrong := _WRONG_RANGE.search(text)) is not None:
        return Unavailable(f"{attempt}, {ANOTHER_RANGE}", **facts, cause=wrong[1])
    if _BODY.search(text):
        return Unavailable(f"{attempt}, {BROKE_OFF}", **facts, endpoint=endpoint)
    kind = _KIND.search(text)
    told = {"endpoint": endpoint, "cause": kind[1] if kind else type(error).__name__}
    return Unavailable(f"{attempt}, the store cannot be reached", **facts, **told)
