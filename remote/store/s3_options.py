"""Translation of s3fs options into obstore options: one set of names with one meaning.

botocore interprets the options for s3fs: endpoint, region, whether the bucket is in the host's name, credentials.
obstore gets the same answers, once per store and process. A store with options that are `untranslatable` uses s3fs.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from local.errors import AccessDenied, ErrorCode, InvalidRequest

CREDENTIALS_LIFETIME = timedelta(minutes=5)  # botocore renews ten minutes before the end
REQUEST_TIMEOUT_READS = 4  # time limit of a request, an 8 MiB part at most, in read timeouts

# Only options that `settings` reads, or that have no effect in obstore.
_OPTIONS = {
    "anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "max_concurrency", "profile", "secret", "token",
}  # fmt: skip
_CLIENT_KWARGS = {"endpoint_url", "region_name"}
_CONFIG_KWARGS = {"connect_timeout", "max_pool_connections", "proxies", "read_timeout", "retries", "s3"}
_S3 = {"addressing_style"}
_PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_EXPRESS_SUFFIX = "--x-s3"  # directory buckets need sessions of their own
# Variables that botocore alone reads, or that concern other hosts: obstore's TLS and proxies would differ.
_TLS_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
OPTIONS = ("sse", "sse_kms_key_id")  # of a store opened by its URL alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How obstore reaches a bucket. `config` may hold secrets and is never shown."""

    endpoint: str
    config: Mapping[str, Any] = field(repr=False)


def is_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def untranslatable(bucket: str, options: Mapping[str, object]) -> list[str]:
    """Return the options, variables or ``bucket`` that obstore would treat differently; never values."""
    found = [*_unknown(options)]
    if not _PLAIN_BUCKET.fullmatch(bucket) or bucket.endswith(_EXPRESS_SUFFIX):
        found.append("bucket")
    is_plain = str(options.get("endpoint_url") or "").startswith("http://")
    variables = _PROXY_VARIABLES if is_plain else (*_TLS_VARIABLES, *_PROXY_VARIABLES)
    return found + [name for name in variables if os.environ.get(name) or os.environ.get(name.lower())]


def _unknown(options: Mapping[str, object]) -> Iterator[str]:
    yield from (name for name in options if name not in _OPTIONS)
    for name, known in (("client_kwargs", _CLIENT_KWARGS), ("config_kwargs", _CONFIG_KWARGS)):
        table = options.get(name) or {}
        if not isinstance(table, Mapping):
            yield name
            continue
        yield from (f"{name}.{each}" for each in table if each not in known)
        if table.get("proxies"):
            yield f"{name}.proxies"
        s3 = table.get("s3") or {}
        if not isinstance(s3, Mapping) or set(s3) - _S3:
            yield f"{name}.s3"


def settings(bucket: str, options: Mapping[str, Any]) -> Settings:
    """The meaning of the options. Raises AccessDenied without credentials, and botocore's errors."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    session = botocore.session.Session(profile=options.get("profile"))
    config = Config(**(options.get("config_kwargs") or {}))
    named = {"endpoint_url": options.get("endpoint_url"), **(options.get("client_kwargs") or {})}
    client = session.create_client("s3", config=config.merge(Config(signature_version=UNSIGNED)), **named)
    url = urlsplit(_address(client, bucket))
    endpoint = f"{url.scheme}://{url.netloc}"
    is_virtual = url.netloc.startswith(f"{bucket}.")
    return Settings(
        endpoint=endpoint,
        config={
            "bucket": bucket,
            "endpoint": endpoint,
            "region": client.meta.region_name or "us-east-1",
            "virtual_hosted_style_request": is_virtual,
            **_credentials(session, options),
            "client_options": {
                "allow_http": endpoint.startswith("http://"),  # the user wrote the URL this way
                "connect_timeout": timedelta(seconds=config.connect_timeout),
                "read_timeout": timedelta(seconds=config.read_timeout),
                "timeout": timedelta(seconds=REQUEST_TIMEOUT_READS * config.read_timeout),
            },
        },
    )


class _Seen(Exception):
    """Raised to end a request before it is sent."""


def _address(client: Any, bucket: str) -> str:  # noqa: ANN401
    """The URL of a request for an object; a presigned URL would have the global endpoint."""

    def see(request: Any, **_: object) -> None:  # noqa: ANN401
        raise _Seen(request.url)

    client.meta.events.register("before-send.s3.HeadObject", see)
    try:
        client.head_object(Bucket=bucket, Key="k")
    except _Seen as seen:
        return str(seen)
    raise AssertionError("the request was sent")


def _credentials(session: Any, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    if options.get("anon"):
        return {"skip_signature": True}
    if options.get("key"):
        keys = {"access_key_id": options["key"], "secret_access_key": options.get("secret")}
        return {**keys, **({"session_token": options["token"]} if options.get("token") else {})}
    found = session.get_credentials()
    if found is None:
        raise AccessDenied("cannot open the store, there are no credentials").with_code(ErrorCode.CREDENTIALS_MISSING)

    def provide() -> dict[str, Any]:
        """botocore's credentials for obstore; botocore renews them by itself before they expire."""
        frozen, is_lasting = found.get_frozen_credentials(), not hasattr(found, "refresh_needed")
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": None if is_lasting else datetime.now(UTC) + CREDENTIALS_LIFETIME,
        }

    return {"credential_provider": provide}


def encryption(objects: ObjectSettings) -> dict[str, str]:
    given = {"server_side_encryption": objects.encryption, "sse_kms_key_id": objects.kms_key_id}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Object settings; None: the bucket's defaults. `encryption` is ``AES256`` or ``aws:kms``.

    `storage_class` applies to segments only: cheaper classes charge extra for small objects that are soon replaced.
    """

    storage_class: str | None = None
    encryption: str | None = None
    kms_key_id: str | None = None

    def of_small(self) -> dict[str, object]:
        given = {"ServerSideEncryption": self.encryption, "SSEKMSKeyId": self.kms_key_id}
        return {name: value for name, value in given.items() if value is not None}

    def of_upload(self) -> dict[str, object]:
        return self.of_small() | ({"StorageClass": self.storage_class} if self.storage_class is not None else {})

    def or_of(self, options: dict[str, object]) -> ObjectSettings:
        """Return these settings, or those of OPTIONS, which are removed from `options`. Raises InvalidRequest."""
        sse, kms_key_id = (options.pop(name, None) for name in OPTIONS)
        if sse is None and kms_key_id is None:
            return self
        if sse not in ENCRYPTIONS:
            wrong = "cannot open the store, unknown encryption"
            raise InvalidRequest(wrong, option="sse", choices=",".join(ENCRYPTIONS))
        if kms_key_id is not None and sse == "AES256":
            raise InvalidRequest("cannot open the store, a KMS key needs sse=aws:kms", option="sse_kms_key_id")
        if self.encryption is not None:
            return self
        return replace(self, encryption=str(sse), kms_key_id=None if kms_key_id is None else str(kms_key_id))


BUCKETS_OWN = ObjectSettings()
