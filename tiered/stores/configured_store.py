"""The configured store, with its settings for objects and rates; one per manager."""

from __future__ import annotations

from collections.abc import Mapping

from local.logdirs.log_dirs import LogDirectories
from remote.store import ObjectStore
from remote.store.middleware.immutable_store import ImmutableStore
from remote.store.middleware.retrying_store import RetryPolicy
from remote.store.middleware.throttled_store import ThrottledStore
from remote.store.object_settings import ObjectSettings
from remote.store.open_store import open_store
from tiered.config.config import Config
from tiered.config.properties import DEFAULTS, IMMUTABLE, parse
from tiered.config.secrets import keyed_store

OBJECT_SETTINGS = ("remote.storage.class", "remote.sse", "remote.sse.kms.key.id")
COPY_RATE, FETCH_RATE = (f"remote.log.manager.{way}.max.bytes.per.second" for way in ("copy", "fetch"))


def configured_store(config: Config, *, policy: RetryPolicy | None = None) -> ObjectStore | None:
    """The configured store; None without one. Raises InvalidRequest for an invalid url, option or setting.

    `policy` is the retry policy of its calls; None: the default.
    """
    if config.remote_url is None:
        return None
    values = config.topic_properties("")
    return _settled_store(config.remote_url, config.remote_options, values, config.key_ring, policy)


def addressed_store(
    url: str, options: Mapping[str, object], config: Config, *, writes_segments: bool = False
) -> ObjectStore:
    """The store at `url`, under the settings of `config`, which has no file. Raises as `configured_store`.

    If the caller writes no segments, object settings that only S3 has are no error for another store: they may be meant
    for the target of a copy.
    """
    values = config.topic_properties("")
    if not (writes_segments or url.startswith("s3:")):
        values |= {name: DEFAULTS[name] for name in OBJECT_SETTINGS}
    return _settled_store(url, options, values, config.key_ring)


def _settled_store(
    url: str,
    options: Mapping[str, object],
    values: dict[str, str],
    key_ring: str | None,
    policy: RetryPolicy | None = None,
) -> ObjectStore:
    """Open a store with every setting of the store. A store that cannot honour one refuses it."""
    store = open_store(url, _with_client(url, options, values), policy=policy, objects=object_settings(values))
    if parse(IMMUTABLE, values[IMMUTABLE]):
        store = ImmutableStore(store)
    store = keyed_store(store, key_ring)
    copy_rate, fetch_rate = (_rate(values, name) for name in (COPY_RATE, FETCH_RATE))
    return store if copy_rate is fetch_rate is None else ThrottledStore(store, copy_rate, fetch_rate)


def store_options(config: Config) -> dict[str, object]:
    """The options of the file; for S3 with the configured client unless the options name one."""
    return _with_client(config.remote_url or "", config.remote_options, config.topic_properties(""))


def _with_client(url: str, given: Mapping[str, object], values: Mapping[str, str]) -> dict[str, object]:
    options = dict(given)
    if url.startswith("s3://"):
        options.setdefault("client", values["remote.s3.client"])
    return options


def object_settings(values: dict[str, str]) -> ObjectSettings:
    """The settings that S3 gets with every object; "default" sends nothing."""
    storage_class, encryption = values["remote.storage.class"], values["remote.sse"]
    return ObjectSettings(
        storage_class=None if storage_class == "default" else storage_class,
        encryption=None if encryption == "default" else encryption,
        kms_key_id=values["remote.sse.kms.key.id"] or None,
    )


def _rate(values: dict[str, str], name: str) -> int | None:
    rate = parse(name, values[name])
    assert isinstance(rate, int), "a size parses to a whole number"
    return None if values[name] == DEFAULTS[name] else rate


def release(directory: LogDirectories, store: ObjectStore | None) -> None:
    """Release the directory and the store as a crash would: nothing is written."""
    try:
        directory.abandon()
    finally:
        if store is not None:
            store.close()
