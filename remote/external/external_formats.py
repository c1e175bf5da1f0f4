"""The layout of a bucket by its object names, and the layouts of Kafka's unchanged files.

Names contain the base offsets of segments. Their ends, and facts that the indexes lack, come from the bytes
(`tiered.read.external_partition`). A plain directory and Pinterest's bucket may be a few folders below the url, and may
hold several copies of one partition, which are read as one: leader epochs decide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, zip_longest

from local.errors import InvalidRequest, NotFound
from local.names import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from remote.external.aiven_layout import AivenFormat, PrivateKeys
from remote.external.external_layout import (
    AUTO,
    KAFKA_FILES,
    KAFKA_ROOT,
    PINTEREST_MARKS,
    ExternalFormat,
    ExternalName,
    ExternalParts,
    ExternalSegment,
    Layout,
    LayoutOptions,
    ParseFile,
    complete_segments,
    files_of,
    parse_aiven_file,
    parse_kafka_directory,
    parse_kafka_file,
    plain_chunk_table,
    sibling,
)
from remote.keys import parse_data_key, parse_manifest_key, parse_partition, parse_topic_directory
from remote.segment_entry import SegmentEntry
from remote.store import ObjectInfo, ObjectStore

DIRECTORIES, KEYS = 50, 200  # the most directories examined, and names in each
PUFFIN = ".puffin"
INDEX_BYTES_MAX = 256 << 20  # of one index file; Kafka allocates 10 MiB for each
DEPTH_MAX, DIRECTORIES_MAX = 5, 10_000
_FILES = {"offset": OFFSET_INDEX, "time": TIME_INDEX, "txn": TXN_INDEX}
_log = logging.getLogger(__name__)


def external_format(store: ObjectStore, options: LayoutOptions) -> ExternalFormat | None:
    """The requested or detected layout; None for this project's own.

    Raises InvalidRequest if the object names match no layout, or several. Raises NotFound without an object or a root.
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
    if prefixes != ("",):
        return Layout.AIVEN
    found = set(_topic_directories(store)) or set(_log_directories(store))
    if len(found) == 1:
        return found.pop()
    keys = [info.key for info in islice(store.list(""), KEYS)]
    if not keys:
        missing = "cannot detect the layout of the bucket, it has no object under the url; check the url"
        raise NotFound(missing, store=store.url)
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
        for mark in PINTEREST_MARKS:
            with suppress(NotFound):
                store.head(place + mark)
                yield Layout.PINTEREST
                return
        yield Layout.LOGS


class KafkaLocalFormat:
    """Kafka's LocalTieredStorage: a directory per partition, at the url or in its ``kafka-tiered-storage``."""

    layout = Layout.LOCAL_TIERED_STORAGE

    def partitions(self, store: ObjectStore) -> list[ExternalName]:
        names = store.list_prefixes("")
        root = f"{KAFKA_ROOT}/" if KAFKA_ROOT in names else ""
        found = []
        for directory in store.list_prefixes(root) if root else names:
            if (parsed := parse_kafka_directory(directory)) is not None:
                topic, partition, topic_id = parsed
                found.append(ExternalName(topic, topic_id, partition, (f"{root}{directory}/",)))
        return sorted(found)

    def segments(self, store: ObjectStore, name: ExternalName) -> list[ExternalSegment]:
        return _complete(store, name, parse_kafka_file, KAFKA_FILES, has_transactions=True)

    def parts(self, store: ObjectStore, entry: SegmentEntry) -> ExternalParts:
        return _parts(store, entry, sibling(entry.data_key, KAFKA_FILES["producers"]))


class LogDirectoryFormat:
    """Directories ``<topic>-<partition>`` of Kafka's segment files, as a broker stores them.

    A log without its indexes counts. Transactions are known if the directory has the broker's producer snapshots: a
    broker writes a transaction index only after an abort.
    """

    layout = Layout.LOGS

    def partitions(self, store: ObjectStore) -> list[ExternalName]:
        found: dict[TopicPartition, list[str]] = {}
        for place, name in partition_places(store):
            found.setdefault(name, []).append(place)
        return [ExternalName(name.topic, "", name.partition, tuple(places)) for name, places in sorted(found.items())]

    def segments(self, store: ObjectStore, name: ExternalName) -> list[ExternalSegment]:
        found = []
        for place in name.places:
            files = {base: of_base for (base, _), of_base in files_of(store, place, _parse_file).items()}
            snapshots = {base for base, of_base in files.items() if PRODUCER_SNAPSHOT in of_base}
            logs = sorted(base for base, of_base in files.items() if LOG in of_base)
            for base, following in zip_longest(logs, logs[1:]):
                of_base = files[base]
                indexes = {each: of_base[suffix] for each, suffix in _FILES.items() if suffix in of_base}
                if following is None:
                    knows = max((offset for offset in snapshots if offset > base), default=None)
                else:
                    knows = following if following in snapshots else None
                if knows is not None:
                    indexes["producers"] = files[knows][PRODUCER_SNAPSHOT]
                segment = _segment(of_base[LOG], base, indexes, has_transactions=knows is not None)
                if segment is not None:
                    found.append(replace(segment, snapshot_offset=knows, may_be_torn=following is None))
        return sorted(found, key=lambda each: each.base_offset)

    def parts(self, store: ObjectStore, entry: SegmentEntry) -> ExternalParts:
        place = entry.data_key.rpartition("/")[0]
        name = segment_file(entry.next_offset, PRODUCER_SNAPSHOT)
        return _parts(store, entry, f"{place}/{name}" if place else name)


class PinterestFormat(LogDirectoryFormat):
    """Pinterest's uploader: no transactions, no epochs; ``_metadata`` is incomplete and not read."""

    layout = Layout.PINTEREST

    def segments(self, store: ObjectStore, name: ExternalName) -> list[ExternalSegment]:
        indexes = {"offset": OFFSET_INDEX, "time": TIME_INDEX}
        return _complete(store, name, _parse_file, indexes, has_transactions=False)


def _complete(
    store: ObjectStore, name: ExternalName, parse: ParseFile, suffixes: Mapping[str, str], *, has_transactions: bool
) -> list[ExternalSegment]:
    """Return the segments that have all files of `suffixes`, except perhaps a transaction index."""
    needed = {LOG, *(suffix for section, suffix in suffixes.items() if section != "txn")}
    found = []
    for place in name.places:
        for base, files in complete_segments(store, place, parse, needed):
            indexes = {section: files[suffix] for section, suffix in suffixes.items() if suffix in files}
            found.append(_segment(files[LOG], base, indexes, has_transactions=has_transactions))
    return sorted(filter(None, found), key=lambda each: each.base_offset)


def _segment(
    log: ObjectInfo, base: int, indexes: Mapping[str, ObjectInfo], *, has_transactions: bool
) -> ExternalSegment | None:
    """Return the segment of a log; None for an empty log, a broker's active segment without records."""
    if not log.size_bytes:
        return None
    return ExternalSegment(
        data_key=log.key,
        base_offset=base,
        size_bytes=log.size_bytes,
        stored_bytes=log.size_bytes,
        stamp_ms=log.modified_ms or 0,
        index_bytes={section: info.size_bytes for section, info in indexes.items() if info.size_bytes},
        index_keys={section: info.key for section, info in indexes.items() if info.size_bytes},
        has_transactions=has_transactions,
    )


def _parts(store: ObjectStore, entry: SegmentEntry, snapshot_key: str) -> ExternalParts:
    keys = {section: sibling(entry.data_key, suffix) for section, suffix in KAFKA_FILES.items()}
    found: dict[str, bytes] = {}
    for section, key in {**keys, "producers": snapshot_key}.items():
        where = entry.indexes.get(section)
        if where is None or where.start < 0:
            continue
        if where.length > INDEX_BYTES_MAX:
            raise InvalidRequest("cannot read an index, it is too large", object=key, size_bytes=where.length)
        try:
            found[section] = store.get(key)
        except NotFound:
            _log.warning("an index does not exist: object=%s", key)
    return ExternalParts(chunks=plain_chunk_table(entry.stored_bytes), cipher=None, **found)


def partition_places(store: ObjectStore) -> Iterator[tuple[str, TopicPartition]]:
    """Yield the location and name of each log directory. Raises InvalidRequest if there are too many."""
    if _has_segments(store, ""):
        name = parse_partition_directory(store.url.rstrip("/").rpartition("/")[2])
        if name is None:
            needed = (
                "cannot find partitions, segments are directly under the url and the url does not end in "
                "<topic>-<partition>"
            )
            raise InvalidRequest(needed, store=store.url)
        yield "", name
        return
    level, looked_at = [""], 0
    for _ in range(DEPTH_MAX):
        below = []
        for parent in level:
            for directory in store.list_prefixes(parent):
                looked_at += 1
                if looked_at > DIRECTORIES_MAX:
                    needed = (
                        "cannot find partitions, there are too many folders; give the url of the folder that "
                        "contains them"
                    )
                    raise InvalidRequest(needed, store=store.url, folders_max=DIRECTORIES_MAX)
                name, place = parse_partition_directory(directory), f"{parent}{directory}/"
                if name is not None and _has_segments(store, place):
                    yield place, name
                else:
                    below.append(place)
        level = below


def _has_segments(store: ObjectStore, place: str) -> bool:
    names = (info.key[len(place) :] for info in islice(store.list(place), 1000))
    return any((parsed := parse_segment_file(name)) is not None and parsed[1] == LOG for name in names)


def _parse_file(name: str) -> tuple[int, str, str] | None:
    parsed = parse_segment_file(name)
    return None if parsed is None else (parsed[0], name[:20], parsed[1])
