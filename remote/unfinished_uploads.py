"""Uploads in parts that were begun and never completed: parts that cost money and that no listing of objects shows.

What becomes of them is decided like everything else that is nobody's, by the epoch in the name of the object they would
have become (`remote.orphans`): the writer of an older epoch is gone, so nobody is going to complete one for anything
that counts. The door to boto3: only S3 has such uploads. ``file://``, ``hdfs://`` and ``memory://`` have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from local.errors import InvalidRequest
from remote.keys import parse_epoch

_OF_S3FS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """`key` from the store's root; `size_bytes` of the parts that have arrived."""

    key: str
    upload_id: str
    begun_ms: int
    size_bytes: int = 0


class UnfinishedUploads:
    """The unfinished uploads below one store's root. Not thread safe."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        """`options` are those of s3fs. Raises InvalidRequest for a url that is not S3's."""
        parts = urlsplit(url)
        if parts.scheme != "s3":
            raise InvalidRequest("looking for unfinished uploads, only S3 has any", url=url)
        self._url, self._bucket = url, parts.netloc
        self._root = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
        self._options = dict(options)
        self._known: Any = None

    def list(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Those whose key begins with `prefix`, ordered by key; a listing of pages. Sizes are not asked for.

        Raises AccessDenied, Unavailable, NotFound for a bucket that is not there.
        """
        from remote.s3_errors import translated

        found = []
        with translated("listing unfinished uploads", options=self._options, store=self._url, prefix=prefix):
            pages = self._client().get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._root + prefix):
                for each in page.get("Uploads", ()):
                    begun_ms = int(each["Initiated"].timestamp() * 1000)
                    key = each["Key"].removeprefix(self._root)
                    found.append(UnfinishedUpload(key=key, upload_id=each["UploadId"], begun_ms=begun_ms))
        return sorted(found, key=lambda upload: (upload.key, upload.begun_ms))

    def size_bytes(self, upload: UnfinishedUpload) -> int:
        """What its parts take; 0 for one that is gone."""
        from remote.s3_errors import translated

        with translated("counting the parts of an upload", options=self._options, store=self._url, key=upload.key):
            client = self._client()
            try:
                pages = client.get_paginator("list_parts").paginate(**self._named(upload))
                return sum(int(part["Size"]) for page in pages for part in page.get("Parts", ()))
            except client.exceptions.NoSuchUpload:
                return 0

    def abort(self, upload: UnfinishedUpload) -> None:
        """Give it up; its parts go. One that is gone, or was completed, is no error, and an object stays as it is."""
        from remote.s3_errors import translated

        with translated("aborting an upload", options=self._options, store=self._url, key=upload.key):
            client = self._client()
            try:
                client.abort_multipart_upload(**self._named(upload))
            except client.exceptions.NoSuchUpload:
                return

    def _named(self, upload: UnfinishedUpload) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._root + upload.key, "UploadId": upload.upload_id}

    def _client(self) -> Any:  # noqa: ANN401
        if self._known is None:
            import boto3
            from botocore.config import Config

            options = self._options
            given: dict[str, Any] = dict(options.get("client_kwargs") or {})  # type: ignore[call-overload]
            given |= {theirs: options[ours] for ours, theirs in _OF_S3FS.items() if options.get(ours) is not None}
            if options.get("endpoint_url") is not None:
                given["endpoint_url"] = options["endpoint_url"]
            config = {"retries": {"total_max_attempts": _TRIES, "mode": "standard"}}
            config |= dict(options.get("config_kwargs") or {})  # type: ignore[call-overload]
            session = boto3.Session(profile_name=options.get("profile"))
            self._known = session.client("s3", config=Config(**config), **given)
        return self._known


def nobodys_uploads(uploads: list[UnfinishedUpload], prefix: str, *, epoch: int) -> list[UnfinishedUpload]:
    """Those below a partition's prefix that a writer of an epoch below `epoch` began. See `remote.orphans.nobodys`."""
    found = []
    for upload in uploads:
        made_in = parse_epoch(upload.key.removeprefix(prefix)) if upload.key.startswith(prefix) else None
        if made_in is not None and made_in < epoch:
            found.append(upload)
    return found
