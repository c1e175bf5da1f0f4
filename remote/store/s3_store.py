"""The S3 store, over s3fs: every operation is one request where S3 has one for it.

- s3fs's retries, cached listings, read-ahead, and additional HEADs are disabled or bypassed.
- Every body and part is sent with the CRC32 that botocore adds by default; S3 refuses a body that differs. The user's
  `config_kwargs` can disable the CRC32.
- Large uploads are sent in parts, each retried alone, and are invisible until completed. A failed upload is aborted;
  `remote.store.unfinished_uploads` or a lifecycle rule removes the uploads of a killed process.
- A completion with a lost answer is resolved by the object's size: names are never reused.
- `parts_max` parts of all uploads are sent at once. Each upload holds one more part, made while it waits for a slot, so
  it never waits for memory that only it could free. Of a part that can be read again (`ReadPart`), READ_BYTES are held.
- A file system must not be used in a forked child, so every process makes its own at its first request. Wrong options
  raise InvalidRequest there, with their names and no values.
- A client reads the keys in a file or a profile once. If they are refused later, the client is rebuilt, and the call
  raises Unavailable. The refusal of a client younger than CLIENT_AGE_MIN_S is final.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from local.errors import AccessDenied, AlreadyExists, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store.middleware.deadlines_and_retries import Deadlines, RetryPolicy, Watchdog
from remote.store.protocol import (
    DELETE_PAGE,
    Body,
    ObjectInfo,
    ObjectStore,
    UploadSource,
    begun_parts,
    check_body,
    check_key,
    check_length,
    check_range,
)
from remote.store.s3_options import BUCKETS_OWN, ObjectSettings

log = logging.getLogger(__name__)

DEADLINES = Deadlines()  # of one request of a large upload
READ_CONCURRENCY = 8  # concurrent ranges of one get_ranges
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30
CLIENT_AGE_MIN_S = 10.0  # a younger client is not rebuilt
# Refusals that other credentials would not resolve.
_NOT_BY_CREDENTIALS = {"AccountProblem", "InvalidObjectState", "NotSignedUp", "RequestTimeTooSkewed"}
PARTS_MAX = 8  # in flight: 4 fill a fast link; S3's latency needs 8 to 16, each with 8 MiB
READ_BYTES = 1 << 20  # of a `ReadPart`, at once
BROKE_OFF = "the reply was truncated"
KEYS_LISTED = 3  # at most this many of the keys that a delete refuses
# Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_UNAVAILABLE = {
    "BandwidthLimitExceeded", "ConditionalRequestConflict", "InternalError", "InternalFailure", "OperationAborted",
    "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequests",
    # The body arrived changed: send it again.
    "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_DENIED = {
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidSecurity", "InvalidToken", "NotSignedUp", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    number: int
    tag: str
    size_bytes: int


class ReadPart:
    """Bytes ``[start, start + size_bytes)`` of an upload, read at every try to sign or send them.

    botocore reads it as a file and aiohttp iterates it, always from the beginning. `error` is the last one of `read`.
    Each try has its own (`again`): an abandoned try still reads.
    """

    def __init__(self, read: Callable[[int, int], Body], start: int, size_bytes: int) -> None:
        self._read, self._start, self._size_bytes, self._at = read, start, size_bytes, 0
        self.error: BaseException | None = None

    def again(self) -> ReadPart:
        return ReadPart(self._read, self._start, self._size_bytes)

    def __len__(self) -> int:
        return self._size_bytes

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, size: int | None = None) -> Body:
        left = self._size_bytes - self._at
        length = left if size is None or size < 0 else min(size, left)
        try:
            body = self._read(self._start + self._at, length) if length else b""
        except BaseException as error:
            self.error = error
            raise
        self._at += len(body)
        return body

    async def __aiter__(self) -> AsyncIterator[Body]:
        self._at = 0
        while body := self.read(READ_BYTES):
            yield body


def parts_to_send(parts: Iterable[Body], source: UploadSource) -> Iterator[ReadPart]:
    """The given parts, or parts of `part_bytes` that are read again."""
    start = end = 0
    for part in parts:
        end += len(part)
        if source.read_again is None:
            yield ReadPart(partial(_slice, memoryview(part)), 0, len(part))
        elif end - start >= source.part_bytes:
            yield ReadPart(source.read_again, start, end - start)
            start = end
    if end > start and source.read_again is not None:
        yield ReadPart(source.read_again, start, end - start)


def _slice(body: memoryview, start: int, length: int) -> memoryview:
    return body[start : start + length]


class PartSender:
    """Sends parts for all uploads of one store, which share its slots. Thread safe."""

    def __init__(self, parts_max: int = PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._places = threading.BoundedSemaphore(parts_max)

    def send(self, parts: Iterable[ReadPart], send_one: Callable[[int, ReadPart], SentPart]) -> list[SentPart]:
        """The answers of concurrent `send_one(number, body)`, in order. Raises once no call is running."""
        under_way: list[Future[SentPart]] = []
        has_failed = threading.Event()

        def done(future: Future[SentPart]) -> None:
            self._places.release()
            if future.cancelled() or future.exception() is not None:
                has_failed.set()

        with ThreadPoolExecutor(self._parts_max, thread_name_prefix="tiered-upload") as pool:
            try:
                for number, body in enumerate(parts, 1):
                    self._places.acquire()
                    if has_failed.is_set():
                        self._places.release()
                        break
                    under_way.append(pool.submit(send_one, number, body))
                    under_way[-1].add_done_callback(done)
                return [future.result() for future in under_way]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


# File systems of a parent process. Their finalizers close connections by the event loop, whose epoll instance a fork
# shares: the parent would no longer hear from its own connections.
_inherited: list[Any] = []


class S3Store(ObjectStore):
    """A store in S3. `options` are s3fs's. `policy` is for the parts of large uploads."""

    uploads_max: int | None = None  # concurrent large uploads; None for any number
    _parts_max = PARTS_MAX
    _config: Mapping[str, object] = {}  # of the client, beside the user's

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
        self._bucket = bucket
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._options = _client_options(options or {}, self._config)
        self._given = tuple(options or ())
        self._policy = policy
        self._watchdog = watchdog or Watchdog()
        self._objects, self._small, self._large = objects, objects.of_small(), objects.of_upload()
        self._sender = PartSender(self._parts_max)
        self._lock = threading.RLock()  # reentrant: a client that cannot be made is dropped while it is being made
        self._filesystem: Any = None
        self._pid = 0
        self._was_refused = False  # since the last answered call
        self._clients_made, self._made_s = 0, time.monotonic()

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._root}".rstrip("/")

    def put(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        self._store(key, body, self._small)

    def put_if_absent(self, key: str, body: Body) -> None:
        check_body(key, len(body))
        self._put("cannot create an object", key, body, {**self._small, "IfNoneMatch": "*"})

    def upload(self, key: str, source: UploadSource) -> None:
        parts = begun_parts(key, source)
        begun = [*islice(parts, 2)]
        if len(begun) < 2:
            self._store(key, begun[0], self._large)
            return
        to_send, begun = parts_to_send(chain(begun, parts), source), []
        created = self._patient("cannot upload an object", "create_multipart_upload", key, **self._large)
        upload_id = str(created["UploadId"])
        try:
            sent = self._sender.send(to_send, partial(self._send_part, key, upload_id))
            tags = [{"PartNumber": part.number, "ETag": part.tag} for part in sent]
            self._complete(key, upload_id, tags, sum(part.size_bytes for part in sent))
        except BaseException:
            self._abort(key, upload_id)
            raise

    def _store(self, key: str, body: Body, settings: Mapping[str, object]) -> None:
        try:
            self._put("cannot store an object", key, body, settings)
        except AlreadyExists as error:
            self._resolve_put(key, body, error)

    def _put(self, attempt: str, key: str, body: Body, settings: Mapping[str, object]) -> None:
        self._call(attempt, "put_object", key, Body=bytes(body), **settings)

    def _resolve_put(self, key: str, body: Body, error: AlreadyExists) -> None:
        """Compare the stored object after a 412 for a plain PUT. Raises Unavailable without an object."""
        try:
            found = self.get(key)
        except NotFound:
            what = f"{error.attempt}, because of a condition that was not sent"
            raise Unavailable(what, **error.facts) from error
        if found != body:
            raise error

    def _send_part(self, key: str, upload_id: str, number: int, part: ReadPart) -> SentPart:
        names = {"UploadId": upload_id, "PartNumber": number, "Body": part}
        answer = self._patient("cannot upload a part", "upload_part", key, **names)
        return SentPart(number=number, tag=str(answer["ETag"]), size_bytes=len(part))

    def _complete(self, key: str, upload_id: str, tags: list[dict[str, object]], size_bytes: int) -> None:
        names = {"UploadId": upload_id, "MultipartUpload": {"Parts": tags}}
        try:
            self._patient("cannot complete an upload", "complete_multipart_upload", key, **names)
        except (AlreadyExists, NotFound, Unavailable):
            # An unknown upload, no answer, or a condition that was not sent: an earlier try may have completed it.
            if self._policy.call(lambda: self._size_or_none(key), verb="head", key=key) != size_bytes:
                raise

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._patient("cannot abort an upload", "abort_multipart_upload", key, UploadId=upload_id)
        except NotFound:
            return  # an earlier try aborted it, and its answer was lost
        except LogError as error:
            log.warning("cannot abort an incomplete upload: key=%s cause=%s", key, error)

    def get(self, key: str) -> bytes:
        with self._door("cannot read an object", key=key):
            return bytes(self._fs.cat_file(self._path(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(self.get_ranges(key, [(start, length)])[0])

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        for start, length in ranges:
            check_range(key, start, length)
        path, wanted = self._path(key), [each for each in ranges if each[1] > 0]
        starts, ends = [start for start, _ in wanted], [start + length for start, length in wanted]
        attempt = "cannot read a range of an object"
        facts: dict[str, object] = {"store": self.url, "key": key}
        with self._door(attempt, key=key):
            bodies = self._fs.cat_ranges([path] * len(wanted), starts, ends, batch_size=READ_CONCURRENCY)
        answers = iter(zip(wanted, bodies, strict=True))
        return [self._checked_range(attempt, facts, *next(answers)) if length else b"" for _, length in ranges]

    def _checked_range(
        self, attempt: str, facts: dict[str, object], wanted: tuple[int, int], body: bytes | BaseException
    ) -> bytes:
        start, length = wanted
        where = {**facts, "start": start, "length": length}
        if isinstance(body, BaseException):
            with self._door(attempt, **{name: fact for name, fact in where.items() if name != "store"}):
                raise body
        check_length(body, attempt, where, length)
        return body

    def head(self, key: str) -> ObjectInfo:
        answer = self._call("cannot read the size of an object", "head_object", key)
        return object_info(key, int(answer["ContentLength"]), answer.get("LastModified"))

    def _size_or_none(self, key: str) -> int | None:
        try:
            return self.head(key).size_bytes
        except NotFound:
            return None

    def list_prefixes(self, prefix: str) -> list[str]:
        pages = self._pages(prefix, Delimiter="/")
        found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        after = {"StartAfter": self._root + start_after} if start_after else {}
        for page in self._pages(prefix, **after):
            for each in page.get("Contents", ()):
                yield object_info(each["Key"].removeprefix(self._root), int(each["Size"]), each.get("LastModified"))

    def _pages(self, prefix: str, **names: object) -> Iterator[dict[str, Any]]:
        token: dict[str, object] = {}
        while True:
            with self._door("cannot list objects", prefix=prefix or None):
                where = {"Bucket": self._bucket, "Prefix": self._root + prefix}
                page = self._fs.call_s3("list_objects_v2", **where, **names, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [{"Key": self._root + check_key(key)} for key in keys]
        for at in range(0, len(wanted), DELETE_PAGE):
            page, made = wanted[at : at + DELETE_PAGE], self._clients_made
            with self._door("cannot delete objects"):
                wanted_page = {"Objects": page, "Quiet": True}
                answer = self._fs.call_s3("delete_objects", Bucket=self._bucket, Delete=wanted_page)
            errors = [(str(each.get("Key")), str(each.get("Code"))) for each in answer.get("Errors", ())]
            refused = [(key.removeprefix(self._root), code) for key, code in errors]
            if (error := refusal(refused, "cannot delete objects", {"store": self.url})) is not None:
                raise self._worth_a_try(error, made)

    def close(self) -> None:
        with self._lock:
            filesystem, self._filesystem = self._filesystem, None
            creator = getattr(filesystem, "_s3creator", None)
            if filesystem is not None and self._pid != os.getpid():
                _inherited.append(filesystem)
            elif creator is not None:
                filesystem.close_session(filesystem.loop, creator)

    def _patient(self, attempt: str, method: str, key: str, **names: object) -> dict[str, Any]:
        """As `_call`, with a deadline and retries of its own: an upload is too large to start over."""
        body = names.get("Body")
        size_bytes = len(body) if isinstance(body, ReadPart) else 0
        limit_s = DEADLINES.of(max(size_bytes, PART_BYTES))  # S3 takes minutes to complete an upload of many parts
        call = partial(self._call, attempt, method, key, **names)
        watched = partial(self._watchdog.run, call, limit_s, attempt, store=self.url, key=key)
        return self._policy.call(watched, verb=method, key=key)

    def _call(self, attempt: str, method: str, key: str, **names: object) -> dict[str, Any]:
        path, body = self._root + check_key(key), names.get("Body")
        if isinstance(body, ReadPart):
            names["Body"] = body = body.again()
        with self._door(attempt, key=key):
            try:
                answer: dict[str, Any] = self._fs.call_s3(method, Bucket=self._bucket, Key=path, **names)
            except Exception:
                if isinstance(body, ReadPart) and body.error is not None:  # aiohttp reports it as a lost connection
                    raise body.error from None
                raise
            return answer

    @contextmanager
    def _door(self, attempt: str, **facts: object) -> Iterator[None]:
        made = self._clients_made
        try:
            with translated(attempt, options=self._given, store=self.url, **facts):
                yield
            self._was_refused = False
        except AccessDenied as error:
            raise self._worth_a_try(error, made) from error.__cause__

    def _worth_a_try(self, error: LogError, made: int) -> LogError:
        """Unavailable for a refusal that new credentials may resolve, else the error itself.

        A new client reads the credentials again. It exists already if the number of clients is above `made`, the number
        at the start of the call. Otherwise the client is dropped, unless it is new.
        """
        if not isinstance(error, AccessDenied) or error.facts.get("cause") in _NOT_BY_CREDENTIALS:
            return error
        with self._lock:
            if made == self._clients_made and time.monotonic() - self._made_s < CLIENT_AGE_MIN_S:
                return error
            if made == self._clients_made:
                level = logging.DEBUG if self._was_refused else logging.WARNING  # logged once per series of refusals
                what = "the store rejected the credentials, they are read again: store=%s cause=%s"
                log.log(level, what, self.url, error)
                self._was_refused = True
                self._drop_clients()
        return Unavailable(f"{error.attempt}; the credentials are read again", **error.facts)

    def _drop_clients(self) -> None:
        """Make the next call build a new client, under the lock. Running calls end with their client."""
        self._filesystem = None
        self._clients_made, self._made_s = self._clients_made + 1, time.monotonic()

    @property
    def _fs(self) -> Any:  # noqa: ANN401
        with self._lock:
            if self._filesystem is None or self._pid != os.getpid():
                if self._filesystem is not None:
                    _inherited.append(self._filesystem)
                self._filesystem = make_filesystem(self._options)
                self._filesystem.retries = 1  # s3fs's own layer: one try
                self._pid = os.getpid()
            return self._filesystem

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{self._root}{check_key(key)}"


def _client_options(options: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """s3fs's options over this project's defaults: the user's value wins, except for retries."""
    given = options.get("config_kwargs") or {}
    if not isinstance(given, Mapping):
        raise InvalidRequest("cannot open the store, an option is not a table", option="config_kwargs")
    config = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "max_pool_connections": 32,
        **more,
        **given,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    return {"max_concurrency": 1, **options, "config_kwargs": config}


def object_info(key: str, size_bytes: int, modified: Any) -> ObjectInfo:  # noqa: ANN401
    modified_ms = int(modified.timestamp() * 1000) if modified is not None else None
    return ObjectInfo(key=key, size_bytes=size_bytes, modified_ms=modified_ms)


@contextmanager
def translated(attempt: str, *, options: Iterable[str] = (), **facts: object) -> Iterator[None]:
    """Raise this project's error for any error of the client. `options` are the names of its options."""
    try:
        yield
    except LogError:
        raise
    except Exception as error:
        from remote.store.s3_errors import EXTERNAL_ERRORS, OPTION_ERRORS, is_about_options, translate

        if not isinstance(error, (*EXTERNAL_ERRORS, *OPTION_ERRORS)):
            raise
        # The client's errors about options show their values, also as a cause in a traceback.
        raise translate(error, attempt, facts, options) from (None if is_about_options(error) else error)


def refusal(refused: Sequence[tuple[str, str]], attempt: str, facts: dict[str, object]) -> LogError | None:
    """The error for the refusals (key, code) of one DeleteObjects, permanent ones first, or None."""
    kinds: dict[type[LogError], list[tuple[str, str]]] = {}
    for key, code in refused:
        if code != "NoSuchKey":  # a missing key is no error
            kinds.setdefault(type(of_answer(code, 0, attempt, facts)), []).append((key, code))
    if not kinds:
        return None
    worst = min(kinds, key=lambda kind: kind is Unavailable)
    keys, code = [key for key, _ in kinds[worst]], kinds[worst][0][1]
    return of_answer(code, 0, attempt, {**facts, "keys": ",".join(keys[:KEYS_LISTED]), "refused": len(keys)})


def of_answer(code: str, status: int, attempt: str, facts: dict[str, object]) -> LogError:
    """Return this project's error for a server's answer: error code ("" for none) and HTTP status."""
    facts = {**facts, "cause": code or status}
    if code == "NoSuchBucket":
        return NotFound(f"{attempt}, the bucket does not exist", **facts)
    if code in _UNAVAILABLE:
        return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts)
    if code == "InvalidObjectState":
        return AccessDenied(f"{attempt}, it is archived (its storage class) and must be restored first", **facts)
    if code in _DENIED or status in (401, 403):
        return AccessDenied(f"{attempt}, access was denied or the credentials are wrong", **facts)
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{attempt}, the name already exists", **facts)
    if code == "InvalidRange" or status == 416:
        return Corrupt(f"{attempt}, the object ends before the range", **facts)
    if status == 404 or code in ("NoSuchKey", "NoSuchUpload", "404"):
        return NotFound(f"{attempt}, it does not exist", **facts)
    if status >= 500 or status in (408, 409, 429):
        return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts)
    if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return InvalidRequest(f"{attempt}, the bucket is in another region or has another endpoint", **facts)
    return InvalidRequest(f"{attempt}, the store rejected the request", **facts)


def make_filesystem(options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """A fresh s3fs file system with its client built; never shared. Errors are the library's."""
    import fsspec
    from aiobotocore.session import AioSession

    filesystem = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False, **options)
    if filesystem.session is None:
        # As s3fs makes it, with a data loader that all sessions share: each new loader parses botocore's service
        # descriptions again, 0.16 s of CPU for a client instead of 0.04 s.
        session = filesystem.session = AioSession(**filesystem.kwargs)
        session.register_component("data_loader", _data_loader(session.get_config_variable("data_path")))
    filesystem.connect()
    return filesystem


@functools.cache
def _data_loader(search_path: str | None) -> Any:  # noqa: ANN401
    from botocore.loaders import create_loader

    return create_loader(search_path)
