"""The layout of a bucket by its object names, found only if all names agree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from local.errors import InvalidRequest, NotFound
from remote.external.aiven_layout import AivenFormat, PrivateKeys
from remote.external.external_layout import (
    AUTO,
    KAFKA_ROOT,
    PINTEREST_MARKS,
    ExternalFormat,
    Layout,
    LayoutOptions,
    parse_aiven_file,
    parse_kafka_directory,
    parse_kafka_file,
)
from remote.external.raw_layouts import KafkaLocalFormat, LogDirectoryFormat, PinterestFormat, partition_places
from remote.keys import parse_data_key, parse_manifest_key, parse_partition, parse_topic_directory
from remote.store import ObjectStore

DIRECTORIES, KEYS = 50, 200  # the most directories examined, and names in each
PUFFIN = ".puffin"


def external_format(store: ObjectStore, options: LayoutOptions) -> ExternalFormat | None:
    """Return the requested or detected layout; None for this project's own.

    Raises InvalidRequest if the object names match no layout, or several. Raises NotFound if the store has no object,
    or if its root does not exist.
    """
    layout = Layout(options.layout) if options.layout != AUTO else find_layout(store, options.prefixes)
    match layout:
        case Layout.TIERED:
            return None
        case Layout.AIVEN:
            return AivenFormat(options.prefixes, PrivateKeys(options.private_keys))
        case Layout.LOCAL_TIERED_STORAGE:
            return KafkaLocalFormat()
        case Layout.PINTEREST:
            return PinterestFormat()
        case Layout.LOGS:
            return LogDirectoryFormat()


def find_layout(store: ObjectStore, prefixes: tuple[str, ...] = ("",)) -> Layout:
    """Detect the layout by a few listings. Raises as `external_format`."""
    if prefixes != ("",):
        return Layout.AIVEN
    found = set(_topic_directories(store)) or set(_log_directories(store))
    if len(found) == 1:
        return found.pop()
    keys = [info.key for info in islice(store.list(""), KEYS)]
    if not keys:
        raise NotFound(
            "cannot detect the layout of the bucket, it has no object under the url; check the url", store=store.url
        )
    if any(key.endswith(PUFFIN) for key in keys):
        wrong = "cannot read the bucket, Aiven's Iceberg mode does not store Kafka segments"
        raise InvalidRequest(wrong, store=store.url)
    names = ",".join(sorted(each.value for each in found)) or "none"
    wrong = (
        "cannot detect the layout of the bucket, its object names match no layout; name the "
        "layout and the url of its root"
    )
    raise InvalidRequest(wrong, store=store.url, found=names, there_are=",".join(each.value for each in Layout))


def _topic_directories(store: ObjectStore) -> Iterator[Layout]:
    """Yield the layouts of root directories with a topic id at the end of their names."""
    names = store.list_prefixes("")
    if KAFKA_ROOT in names:
        yield Layout.LOCAL_TIERED_STORAGE
    ours = (name for name in names if parse_topic_directory(name) is not None)
    for name in islice(ours, DIRECTORIES):
        is_kafkas = parse_kafka_directory(name) is not None
        for info in islice(store.list(f"{name}/"), KEYS):
            below = info.key[len(name) + 1 :]
            if is_kafkas and parse_kafka_file(below) is not None:
                yield Layout.LOCAL_TIERED_STORAGE
                break
            partition, _, rest = below.partition("/")
            if parse_partition(partition) is None:
                continue
            if parse_aiven_file(rest) is not None:
                yield Layout.AIVEN
                break
            if parse_manifest_key(rest) is not None or parse_data_key(rest) is not None:
                yield Layout.TIERED
                break


def _log_directories(store: ObjectStore) -> Iterator[Layout]:
    for place, _ in islice(partition_places(store), 1):
        yield Layout.PINTEREST if any(_is_there(store, place + mark) for mark in PINTEREST_MARKS) else Layout.LOGS


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except NotFound:
        return False
    return True
