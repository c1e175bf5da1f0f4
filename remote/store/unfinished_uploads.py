"""Multipart uploads that were never completed: they cost money, and no object listing shows them.

The epoch in the object's name decides (`remote.gc.orphan_search`): the writer of an older epoch is fenced. Every
request, a page of a listing included, passes the one retry layer and has a deadline. Bucket lifecycle and IAM policies
are compared by content, in any order; their requests are not retried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit

from local.errors import InvalidRequest, NotFound
from remote.keys import parse_epoch
from remote.store.middleware.deadlines_and_retries import Deadlines, RetryPolicy, Watchdog
from remote.store.s3_store import translated

Rule = Mapping[str, object]
_OF_S3FS = {"key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token"}
_TIMEOUTS_S = {"connect_timeout": 5, "read_timeout": 30}  # of the client; below the deadline of a request
_UPLOADS_MARKS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
_PARTS_MARKS = {"PartNumberMarker": "NextPartNumberMarker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    key: str
    upload_id: str
    begun_ms: int
    size_bytes: int = 0  # of the parts that have arrived


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

    def list(self, prefix: str = "") -> list[UnfinishedUpload]:
        """The uploads below `prefix`, by key, without sizes. Raises AccessDenied, Unavailable, NotFound."""
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
            _check_bucket_exists(error)
            return 0

    def abort(self, upload: UnfinishedUpload) -> None:
        """Abort the upload and delete its parts. A missing or completed upload is no error."""
        try:
            self._ask("cannot abort an upload", "abort_multipart_upload", self._named(upload), key=upload.key)
        except NotFound as error:
            _check_bucket_exists(error)

    def _pages(
        self, attempt: str, method: str, named: Mapping[str, object], marks: Mapping[str, str], **facts: object
    ) -> Iterator[dict[str, Any]]:
        """Yield a listing's pages, one request each. `marks`: parameter -> response field of the next page."""
        place: dict[str, object] = {}
        while True:
            page = self._ask(attempt, method, {**named, **place}, **facts)
            yield page
            if not page.get("IsTruncated"):
                return
            place = {mark: page[field] for mark, field in marks.items() if page.get(field)}

    def _ask(self, attempt: str, method: str, named: Mapping[str, object], **facts: object) -> dict[str, Any]:
        def once() -> dict[str, Any]:
            with translated(attempt, options=self._options, store=self._url, **facts):
                call: Callable[..., dict[str, Any]] = getattr(self._client, method)
                return call(**named)

        watched = partial(self._watchdog.run, once, self._limit_s, attempt, store=self._url, **facts)
        return self._policy.call(watched, verb=method, key=str(facts.get("key") or facts.get("prefix") or ""))

    def _named(self, upload: UnfinishedUpload) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._root + upload.key, "UploadId": upload.upload_id}

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401
        return boto3_client("s3", self._options)


def _check_bucket_exists(error: NotFound) -> None:
    if error.facts.get("cause") == "NoSuchBucket":
        raise error


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
    """The uploads below a partition's prefix whose epoch is below `epoch`: no manifest can ever name them."""
    found = []
    for upload in uploads:
        made_in = parse_epoch(upload.key.removeprefix(prefix)) if upload.key.startswith(prefix) else None
        if made_in is not None and made_in < epoch:
            found.append(upload)
    return found


def split_bucket(url: str) -> tuple[str, str]:
    """Return (bucket, prefix) of ``s3://bucket/prefix``. Raises InvalidRequest for another url."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidRequest("cannot set up the bucket, only S3 has these settings", url=url)
    return parts.netloc, parts.path.strip("/")


def bucket_rules(url: str, options: Mapping[str, object]) -> list[dict[str, object]]:
    """Return all lifecycle rules. Raises AccessDenied, Unavailable, or NotFound without a bucket."""
    bucket, _ = split_bucket(url)
    client = boto3_client("s3", options)
    try:
        with translated("cannot read the lifecycle of a bucket", options=options, store=url):
            return list(client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", ()))
    except NotFound as error:
        if error.facts.get("cause") == "NoSuchLifecycleConfiguration":
            return []
        raise


def missing_rules(wanted: Sequence[Rule], found: Sequence[Rule]) -> list[Rule]:
    """Return the rules of `wanted` that the bucket lacks, or has with other content; it may have more fields."""
    known = {rule.get("ID"): rule for rule in found}
    return [rule for rule in wanted if not rule.items() <= known.get(rule["ID"], {}).items()]


def put_rules(url: str, options: Mapping[str, object], wanted: Sequence[Rule]) -> None:
    """Write these rules, and leave rules with other names unchanged."""
    names = {rule["ID"] for rule in wanted}
    others = [rule for rule in bucket_rules(url, options) if rule.get("ID") not in names]
    bucket, _ = split_bucket(url)
    client = boto3_client("s3", options)
    with translated("cannot write the lifecycle of a bucket", options=options, store=url):
        rules = {"Rules": [*others, *map(dict, wanted)]}
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)


def inline_policy(whose: str, name: str, options: Mapping[str, object]) -> dict[str, Any] | None:
    """Return a policy of ``user/NAME`` or ``role/NAME``; None without one. Raises InvalidRequest."""
    try:
        document = _policy_call("read", "get", whose, name, options)["PolicyDocument"]
    except NotFound:
        return None
    return json.loads(document) if isinstance(document, str) else dict(document)


def put_inline_policy(whose: str, name: str, policy: Mapping[str, object], options: Mapping[str, object]) -> None:
    _policy_call("write", "put", whose, name, options, PolicyDocument=json.dumps(policy))


def _policy_call(
    what: str, verb: str, whose: str, name: str, options: Mapping[str, object], **more: str
) -> dict[str, Any]:
    kind, slash, owner = whose.partition("/")
    if kind not in ("user", "role") or not slash or not owner:
        raise InvalidRequest("invalid owner of a policy", text=repr(whose), expected="user/NAME or role/NAME")
    client = boto3_client("iam", options)
    with translated(f"cannot {what} a policy", options=options, whose=whose):
        call: Callable[..., dict[str, Any]] = getattr(client, f"{verb}_{kind}_policy")
        return call(**{f"{kind.title()}Name": owner}, PolicyName=name, **more)
