"""Multipart uploads that were never completed: they cost money, and no object listing shows them.

As for orphans, the epoch in the object's name decides (`remote.gc.orphans`). The writer of an older epoch is fenced, so
no such upload can become an object that counts.

Only S3 has such uploads: ``file://``, ``hdfs://`` and ``memory://`` have none. This module is the only use of boto3.
Every request, a page of a listing included, passes the one retry layer and has a deadline, as for a store
(`remote.store.middleware.retrying_store`, `remote.store.middleware.watchdog`). The client's own retries are disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from local.errors import InvalidRequest, NotFound
from remote.keys import parse_epoch
from remote.store.middleware.deadline_store import Deadlines
from remote.store.middleware.retrying_store import RetryPolicy
from remote.store.middleware.watchdog import Watchdog

_OF_S3FS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_TIMEOUTS_S = {"connect_timeout": 5, "read_timeout": 30}  # of the client; below the deadline of a request
_UPLOADS_MARKS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
_PARTS_MARKS = {"PartNumberMarker": "NextPartNumberMarker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An unfinished upload.

    `key` is relative to the store's root. `size_bytes` counts the parts that have arrived.
    """

    key: str
    upload_id: str
    begun_ms: int
    size_bytes: int = 0


class UnfinishedUploads:
    """The unfinished uploads below one store's root. Not thread safe."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, object],
        *,
        policy: RetryPolicy | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """`options` are s3fs's. Raises InvalidRequest for a url that is not S3's."""
        parts = urlsplit(url)
        if parts.scheme != "s3":
            raise InvalidRequest("cannot find unfinished uploads, only S3 has them", url=url)
        self._url, self._bucket = url, parts.netloc
        self._root = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
        self._options = dict(options)
        self._policy, self._watchdog = policy or RetryPolicy(), Watchdog()
        self._limit_s = (deadlines or Deadlines()).call_s
        self._known: Any = None

    def list(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads whose key begins with `prefix`, ordered by key, without sizes.

        Several LIST requests. Raises AccessDenied, Unavailable, or NotFound without a bucket.
        """
        attempt, named = "cannot list unfinished uploads", {"Bucket": self._bucket, "Prefix": self._root + prefix}
        found = []
        for page in self._pages(attempt, "list_multipart_uploads", named, _UPLOADS_MARKS, prefix=prefix):
            for each in page.get("Uploads", ()):
                begun_ms = int(each["Initiated"].timestamp() * 1000)
                key = each["Key"].removeprefix(self._root)
                found.append(UnfinishedUpload(key=key, upload_id=each["UploadId"], begun_ms=begun_ms))
        return sorted(found, key=lambda upload: (upload.key, upload.begun_ms))

    def size_bytes(self, upload: UnfinishedUpload) -> int:
        """Return the bytes of its parts; 0 for an upload that no longer exists."""
        attempt, named = "cannot count the parts of an upload", self._named(upload)
        try:
            pages = self._pages(attempt, "list_parts", named, _PARTS_MARKS, key=upload.key)
            return sum(int(part["Size"]) for page in pages for part in page.get("Parts", ()))
        except NotFound as error:
            return self._gone(error)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Abort the upload and delete its parts.

        An upload that no longer exists, or was completed, is no error; a completed object stays.
        """
        try:
            self._ask("cannot abort an upload", "abort_multipart_upload", self._named(upload), key=upload.key)
        except NotFound as error:
            self._gone(error)

    def _gone(self, error: NotFound) -> int:
        """Return 0 for an upload that no longer exists. Raises the error if the bucket is missing."""
        if error.facts.get("cause") == "NoSuchBucket":
            raise error
        return 0

    def _pages(
        self, attempt: str, method: str, named: Mapping[str, object], marks: Mapping[str, str], **facts: object
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing, one request each.

        `marks` maps request parameters to the response fields with the start of the next page.
        """
        place: dict[str, object] = {}
        while True:
            page = self._ask(attempt, method, {**named, **place}, **facts)
            yield page
            if not page.get("IsTruncated"):
                return
            place = {mark: page[told] for mark, told in marks.items() if page.get(told)}

    def _ask(self, attempt: str, method: str, named: Mapping[str, object], **facts: object) -> dict[str, Any]:
        """Send one request, with retries and a deadline for each try."""
        from remote.store.s3_answers import translated

        def once() -> dict[str, Any]:
            with translated(attempt, options=self._options, store=self._url, **facts):
                call: Callable[..., dict[str, Any]] = getattr(self._client(), method)
                return call(**named)

        watched = partial(self._watchdog.run, once, self._limit_s, attempt, store=self._url, **facts)
        return self._policy.call(watched, verb=method, key=str(facts.get("key") or facts.get("prefix") or ""))

    def _named(self, upload: UnfinishedUpload) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._root + upload.key, "UploadId": upload.upload_id}

    def _client(self) -> Any:  # noqa: ANN401
        if self._known is None:
            self._known = boto3_client("s3", self._options)
        return self._known


def boto3_client(service: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """Return a client of an AWS service with s3fs's options; its own retries are disabled."""
    import boto3
    from botocore.config import Config

    given: dict[str, Any] = dict(options.get("client_kwargs") or {})  # type: ignore[call-overload]
    given |= {theirs: options[ours] for ours, theirs in _OF_S3FS.items() if options.get(ours) is not None}
    if options.get("endpoint_url") is not None:
        given["endpoint_url"] = options["endpoint_url"]
    config: dict[str, Any] = _TIMEOUTS_S | dict(options.get("config_kwargs") or {})  # type: ignore[call-overload]
    config |= {"retries": {"total_max_attempts": 1, "mode": "standard"}}
    session = boto3.Session(profile_name=options.get("profile"))
    return session.client(service, config=Config(**config), **given)


def orphaned_uploads(uploads: list[UnfinishedUpload], prefix: str, *, epoch: int) -> list[UnfinishedUpload]:
    """Return the uploads below a partition's prefix begun by a writer of an epoch below `epoch`.

    See `remote.gc.orphans.unreferenced_objects`.
    """
    found = []
    for upload in uploads:
        made_in = parse_epoch(upload.key.removeprefix(prefix)) if upload.key.startswith(prefix) else None
        if made_in is not None and made_in < epoch:
            found.append(upload)
    return found
