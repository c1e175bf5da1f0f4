"""The store that the configuration names, with what it says of objects and of rates; one for a manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from local.log_dir_set import LogDirectories
from remote.fsspec_store import open_store
from remote.immutable_store import ImmutableStore
from remote.object_settings import BUCKETS_OWN, ObjectSettings
from remote.store import ObjectStore
from remote.throttled_store import ThrottledStore
from tiered.config import Config
from tiered.properties import DEFAULTS, parse
from tiered.tier_properties import IMMUTABLE

COPY_RATE, FETCH_RATE = (f"remote.log.manager.{way}.max.bytes.per.second" for way in ("copy", "fetch"))


def configured_store(config: Config) -> ObjectStore | None:
    """None where no store is configured. Raises InvalidRequest for a url, an option or a setting that does not fit."""
    if config.remote_url is None:
        return None
    values = config.topic_properties("")
    store = open_store(config.remote_url, store_options(config), objects=object_settings(values))
    if parse(IMMUTABLE, values[IMMUTABLE]):
        store = ImmutableStore(store)
    copy_rate, fetch_rate = (_rate(values, name) for name in (COPY_RATE, FETCH_RATE))
    return store if copy_rate is fetch_rate is None else ThrottledStore(store, copy_rate, fetch_rate)


def addressed_store(url: str, options: Mapping[str, object], overrides: Mapping[str, str]) -> ObjectStore:
    """The store at `url` without a configuration: `overrides` of settings say how the server encrypts what is written,
    and whether it is immutable."""
    values = {**DEFAULTS, **overrides}
    objects = BUCKETS_OWN
    if url.startswith("s3:"):
        objects = replace(object_settings(values), storage_class=None)
    store = open_store(url, options, objects=objects)
    return ImmutableStore(store) if parse(IMMUTABLE, values[IMMUTABLE]) else store


def store_options(config: Config) -> dict[str, object]:
    """The options of the file, and for S3 the client of the settings where the options name none."""
    options = dict(config.remote_options)
    if (config.remote_url or "").startswith("s3://"):
        options.setdefault("client", config.topic_properties("")["remote.s3.client"])
    return options


def object_settings(values: dict[str, str]) -> ObjectSettings:
    """What S3 is told with every object; "default" says nothing."""
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


def let_go(directory: LogDirectories, store: ObjectStore | None) -> None:
    """As a crash would: nothing is written."""
    try:
        directory.abandon()
    finally:
        if store is not None:
            store.close()
