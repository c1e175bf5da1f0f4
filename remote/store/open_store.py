"""Opening a store by its URL.

| URL | store |
|---|---|
| ``s3://bucket/prefix`` | `store.s3_store` over s3fs or `store.obstore_s3_store`; options: s3fs's, and ``client`` |
| ``hdfs://namenode:8020/directory`` | `store.hdfs_store` over hdfs-native; must exist; options: Hadoop's settings |
| ``file:///absolute/directory`` | `store.file_store`; the directory must exist; ``%23`` stands for ``#``, and so on |
| ``memory://name`` | `remote.store.memory_store`; one store per name in this process |

S3 options of this project are in docs/reference/stores.md. Only the client gets the options, which may hold secrets.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from local.errors import InvalidRequest
from remote.store.file_store import FileStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryingStore, RetryPolicy, Watchdog, WatchedStore
from remote.store.protocol import ObjectStore
from remote.store.s3_options import BUCKETS_OWN, ObjectSettings

if TYPE_CHECKING:
    from remote.store.s3_store import S3Store

S3_CLIENTS = ("auto", "s3fs", "obstore")
SCHEMES = ("s3", "hdfs", "file", "memory")
_memory_lock = threading.Lock()
_memory_stores: dict[str, MemoryStore] = {}


def open_store(
    url: str,
    options: Mapping[str, object] | None = None,
    *,
    policy: RetryPolicy | None = None,
    objects: ObjectSettings = BUCKETS_OWN,
) -> ObjectStore:
    """The store at `url`, with deadlines and the one retry layer. No request is sent yet.

    Raises InvalidRequest for a wrong URL or option, a missing library, or `objects` for a store that is not S3.
    """
    parts = check_url(url)
    shown = _shown(parts)
    retries, watchdog = policy or RetryPolicy(), Watchdog()
    if parts.scheme == "s3":
        bucket, given = parts.netloc, dict(options or {})
        objects = objects.or_of(given)
        s3_class = _s3_class(bucket, given.pop("client", "auto"), given)
        s3 = s3_class(bucket, parts.path.strip("/"), given, policy=retries, objects=objects, watchdog=watchdog)
        return RetryingStore(WatchedStore(s3, watchdog, uploads_max=s3.uploads_max), retries)
    if objects != BUCKETS_OWN:
        raise InvalidRequest("cannot open the store, storage class and encryption are settings of S3", url=shown)
    if parts.scheme == "hdfs":
        return RetryingStore(WatchedStore(_open_hdfs(parts, dict(options or {})), watchdog), retries)
    if options:
        wrong = "cannot open the store, this store takes no options"
        raise InvalidRequest(wrong, url=shown, options=",".join(sorted(options)))
    if parts.scheme == "memory":
        with _memory_lock:
            return _memory_stores.setdefault(shown, MemoryStore(shown))
    return RetryingStore(WatchedStore(FileStore(_unescaped(parts.path)), watchdog), retries)


def check_url(url: str) -> SplitResult:
    """The parts of a store's URL, without opening it. Raises InvalidRequest for a wrong one."""
    wrong, schemes = "cannot open the store, the url is not the url of a store", ",".join(SCHEMES)
    try:
        parts = urlsplit(url)
    except ValueError:  # the error's text holds the url, which may hold a secret
        scheme = url.partition("://")[0] if "://" in url else None
        raise InvalidRequest(wrong, scheme=scheme, schemes=schemes) from None
    if "\0" in parts.path or "%00" in parts.path:
        raise InvalidRequest(wrong, scheme=parts.scheme, schemes=schemes)
    shown = _shown(parts)
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("cannot open the store, credentials belong in the options, not in the url", url=shown)
    if not parts.scheme and not parts.netloc:
        # The scheme is missing: a path or the bare name of a bucket.
        hint = "file:///directory for a directory, s3://bucket/prefix for a bucket"
        raise InvalidRequest(wrong, url=parts.path, write=hint)
    if parts.scheme not in SCHEMES or parts.query or parts.fragment:
        raise InvalidRequest(wrong, url=shown, schemes=schemes)
    if parts.scheme == "s3" and not parts.netloc:
        raise InvalidRequest("cannot open the store, the url has no bucket: s3://bucket/prefix", url=shown)
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise InvalidRequest("cannot open the store, a file url needs an absolute path: file:///directory", url=shown)
    return parts


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _unescaped(path: str) -> str:
    return os.fsdecode(unquote_to_bytes(path))


def _s3_class(bucket: str, client: object, options: Mapping[str, object]) -> type[S3Store]:
    from remote.store.s3_options import is_installed, untranslatable
    from remote.store.s3_store import S3Store

    if client not in S3_CLIENTS:
        raise InvalidRequest("cannot open the store, unknown S3 client", option="client", choices=",".join(S3_CLIENTS))
    if client == "s3fs" or (client == "auto" and not is_installed()):
        return S3Store
    if not is_installed():
        hint = "pip install 'tiered[obstore]'"
        raise InvalidRequest("cannot open the store, a library is missing", library="obstore", install=hint)
    if unsupported := untranslatable(bucket, options):
        if client == "auto":
            return S3Store
        wrong = "cannot open the store, obstore does not support these options; use s3fs"
        raise InvalidRequest(wrong, options=",".join(unsupported))
    from remote.store.obstore_s3_store import ObstoreS3Store

    return ObstoreS3Store


def _open_hdfs(parts: SplitResult, options: dict[str, object]) -> ObjectStore:
    shown = f"hdfs://{parts.netloc}{parts.path}"
    if not parts.path.strip("/"):
        wrong = "cannot open the store, the url has no directory: hdfs://namenode:8020/directory"
        raise InvalidRequest(wrong, url=shown)
    try:
        parts.port  # noqa: B018 - it is parsed when it is asked for
    except ValueError:
        raise InvalidRequest("cannot open the store, the port in the url is invalid", url=shown) from None
    if importlib.util.find_spec("hdfs_native") is None:
        hint = "pip install 'tiered[hdfs]'"
        raise InvalidRequest("cannot open the store, a library is missing", library="hdfs_native", install=hint)
    from remote.store.hdfs_store import HdfsStore

    return HdfsStore(parts.netloc, _unescaped(parts.path), options)
