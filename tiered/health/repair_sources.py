"""Sources of good copies: the disk, the bucket, older manifests, other objects, forks. Reads only.

| damaged | good copy |
|---|---|
| a segment's objects | the same bytes in a closed segment of this machine's log |
| its indexes, or facts in its entry | its data, because batches have CRCs; the rest is rebuilt from them |
| a manifest page | an older manifest that still has the entries, else the objects of the entries |

Facts that only the damaged object had are not invented: there is no good copy then. Without its indexes a compressed or
encrypted object cannot be divided into chunks. Aborted transactions and producers cannot be derived from a segment
alone. A cleaner pass may have removed records from a local segment, so local bytes count only if range, size and CRC32C
equal the entry's.

Partitions that name one object share its damage: its home, and the forks named in the home's pins. A repaired segment
has a new name, so every entry is repaired separately. Relatives of a partition are searched last: first their logs on
this disk, then their entries with the same offsets, size and checksum and another, undamaged object.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

from local.errors import AccessDenied, Corrupt, LogError, NotFound
from local.format.columns import BatchTable
from local.format.crc32c import crc32c_of
from local.index.index_files import IndexRows
from local.log import Log
from local.records.batch_runs import BatchRuns
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.gc.fork_references import forks_of
from remote.gc.pins import list_pins
from remote.keys import (
    DATA,
    data_key,
    full_key,
    home_of,
    indexes_key,
    key_in_other_topic,
    own_part,
    parse_data_key,
    parse_page_key,
    parse_prefix,
)
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PageEntry
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import Rows, encode_page, summary_contradiction
from remote.manifest.page_out import waiting_keys
from remote.segment_entry import UNKNOWN_MAKER, SegmentEntry
from remote.segments.encryption import KeyRing
from remote.segments.stored_segment import CODECS, RAW, IndexBundle, decode_bundle, encode_bundle, open_ring
from remote.store import Body, ObjectStore
from remote.upload.segment_upload import SegmentToCopy
from tiered.manager.manager import LogManager
from tiered.partition.segment_inspection import SegmentInspector

INTERVAL_BYTES = 4096
_SUMS = ("base_offset", "next_offset", "segment_count", "record_count", "size_bytes", "stored_bytes")
MANIFESTS_MAX = 512  # older manifests searched for a page's entries

Read = Callable[[int, int], Body]
_log = logging.getLogger(__name__)
IsWhole = Callable[[RemotePartitionName, SegmentEntry], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    read: Read
    size_bytes: int
    bundle: IndexBundle | None


def from_bucket(store: ObjectStore, prefix: str, entry: SegmentEntry, keys: KeyRing, *, is_last: bool) -> SegmentToCopy:
    """Build the segment from its own data. Raises Corrupt without a good copy. `is_last`: no entry is above."""
    entry = with_own_names(entry)
    found = _indexed(store, prefix, entry, keys) or _raw(store, prefix, entry)
    tables = _tables(found)
    rows = IndexRows()
    for table in tables:
        rows.add(table)
    built = rows.indexes(entry.base_offset, INTERVAL_BYTES)
    indexes = bytes(built.offset), bytes(built.time)
    epochs = entry.epochs if _fit(entry.epochs, tables) else _epochs_of(tables, entry.base_offset)
    txn, producers, lineage = _side_files(found.bundle, entry, tables, is_last=is_last)
    return SegmentToCopy(
        base_offset=entry.base_offset,
        next_offset=entry.next_offset,
        size_bytes=found.size_bytes,
        epochs=epochs,
        offset_index=indexes[0],
        time_index=indexes[1],
        txn_index=txn,
        producer_snapshot=producers,
        leader_epochs=lineage,
        cleaned_through=entry.cleaned_through,
        read=found.read,
        inspect=partial(
            SegmentInspector, full_key(prefix, entry.data_key), entry.base_offset, entry.next_offset, epochs, indexes
        ),
    )


def with_own_names(entry: SegmentEntry) -> SegmentEntry:
    """Return the entry with the object names that match its offsets. Raises Corrupt if there is none."""
    for key in (entry.indexes_key, entry.data_key):
        says = parse_data_key(own_part(key))
        if says is None:
            continue
        home = key.removesuffix(own_part(key))  # of a fork's entry: the partition that owns the object
        is_same = (says.base_offset, says.last_offset + 1) == (entry.base_offset, entry.next_offset)
        if is_same or entry.is_named(says.base_offset, says.last_offset, says.ulid):
            names = says.base_offset, says.last_offset, says.epoch, says.ulid
            is_zstd, is_encrypted = entry.codec != CODECS[RAW], entry.key_id is not None
            data = data_key(*names, is_zstd=is_zstd, is_encrypted=is_encrypted)
            data = key if key == entry.data_key else home + data
            return replace(entry, ulid=says.ulid, data_key=data, indexes_key=home + indexes_key(*names))
    raise Corrupt("cannot repair a segment, its entry has other offsets than the names of its objects", ulid=entry.ulid)


def _indexed(store: ObjectStore, prefix: str, entry: SegmentEntry, keys: KeyRing) -> _Bytes | None:
    """The segment by its indexes object, not by sizes and checksums of its entry; None if that object is unreadable."""
    try:
        body = store.get(full_key(prefix, entry.indexes_key))
        cipher = open_ring(entry, prefix, keys)
        bundle = decode_bundle(body if cipher is None else cipher.open_indexes(body))
    except (Corrupt, NotFound, AccessDenied):
        return None
    true = as_indexed(entry, bundle, len(body))
    remote = RemotePartition(store, prefix, ChunkCache(), keys=keys)
    return _Bytes(read=partial(remote.read, true), size_bytes=true.size_bytes, bundle=bundle)


def as_indexed(entry: SegmentEntry, bundle: IndexBundle, indexes_bytes: int) -> SegmentEntry:
    table = bundle.chunks
    return replace(
        entry,
        size_bytes=table.size_bytes,
        stored_bytes=table.stored_bytes,
        data_crc32c=table.whole_crc,
        segment_crc32c=None if table.is_as_it_is else table.segment_crc,
        codec=CODECS[table.codec],
        indexes_bytes=indexes_bytes,
    )


def _raw(store: ObjectStore, prefix: str, entry: SegmentEntry) -> _Bytes:
    key = full_key(prefix, entry.data_key)
    if entry.codec != "none" or entry.key_id is not None:
        raise Corrupt("cannot repair a segment, its chunks cannot be separated without its indexes", object=key)
    try:
        checksum = crc32c_of(partial(store.get_range, key), entry.size_bytes, RANGE_BYTES)
    except NotFound as error:
        raise Corrupt("cannot repair a segment, its object does not exist", object=key) from error
    if checksum != entry.data_crc32c:
        raise Corrupt("cannot repair a segment, its data is also damaged", object=key)
    return _Bytes(read=partial(store.get_range, key), size_bytes=entry.size_bytes, bundle=None)


def _tables(found: _Bytes) -> list[BatchTable]:
    walk = BatchRuns(lambda start, length: memoryview(found.read(start, length)), found.size_bytes)
    tables = []
    for run in walk:
        if run.damage is not None:
            raise Corrupt(f"cannot repair a segment, {run.damage}", at=run.position)
        tables.append(run.table)
    if walk.problem is not None:
        raise Corrupt(f"cannot repair a segment, {walk.problem}", at=walk.position)
    return tables


def _fit(epochs: Sequence[tuple[int, int]], tables: Sequence[BatchTable]) -> bool:
    for table in tables:
        for offset, epoch in zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True):
            expected = [each for each, start in epochs if start <= offset]
            if not expected or (epoch >= 0 and expected[-1] != epoch):
                return False
    return True


def _epochs_of(tables: Sequence[BatchTable], base_offset: int) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for table in tables:
        for offset, epoch in zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True):
            if not found or found[-1][0] != epoch:
                found.append((max(epoch, 0), offset if found else base_offset))
    return tuple(found)


def _side_files(
    bundle: IndexBundle | None, entry: SegmentEntry, tables: Sequence[BatchTable], *, is_last: bool
) -> tuple[bytes, bytes, bytes]:
    """Return transaction index, producers, leader epochs: as stored, else empty if the segment cannot have any."""
    if bundle is not None:
        return bytes(bundle.txn), bytes(bundle.producers), bytes(bundle.epochs)
    if entry.aborted_bytes:
        raise Corrupt("cannot repair a segment, only its indexes have its aborted transactions", ulid=entry.ulid)
    if is_last and any((table.producer_ids >= 0).any() for table in tables):
        raise Corrupt("cannot repair the last segment, its producer state was only in its indexes", ulid=entry.ulid)
    return b"", b"", b""


def entries_of_page(store: ObjectStore, prefix: str, manifest: Manifest, page: PageEntry) -> tuple[Rows, str]:
    """Return an unreadable page's entries, which match its summary, and their source. Raises Corrupt."""
    if (entries := _from_older_manifests(store, prefix, manifest, page)) is not None:
        return entries, "older manifest"
    entries = _from_objects(store, prefix, manifest, page)
    if (wrong := summary_contradiction(page, entries, _SUMS)) is not None:
        raise Corrupt("cannot repair a manifest page, its objects contradict the manifest", page=page.key, found=wrong)
    return entries, "objects"


def _from_older_manifests(store: ObjectStore, prefix: str, manifest: Manifest, page: PageEntry) -> Rows | None:
    chain, pages = ManifestChain(store, prefix), Pages(store, prefix)
    for sequence in range(manifest.sequence - 1, max(manifest.gc_boundary, manifest.sequence - MANIFESTS_MAX), -1):
        older = None
        with suppress(Corrupt):
            older = chain.read(sequence)
        if older is None or (page.seal_key_id is not None and older.seal_key_id is None):
            continue  # unsealed manifests prove nothing about a sealed page
        with suppress(Corrupt, NotFound):
            entries = [
                entry
                for each in older.pages
                if _touch(each, page) and (each.seal_key_id is not None or page.seal_key_id is None)
                for entry in pages.entries(each)
            ]
            entries += [entry for entry in older.segments if _touch(entry, page)]
            if entries and summary_contradiction(page, tuple(entries)) is None:
                return tuple(entries)
    return None


def _touch(part: PageEntry | SegmentEntry, page: PageEntry) -> bool:
    return part.base_offset < page.next_offset and page.base_offset < part.next_offset


def _from_objects(store: ObjectStore, prefix: str, manifest: Manifest, page: PageEntry) -> Rows:
    """Build an entry for each pair of objects in the page's range that is not a pending delete.

    Objects do not name their maker, so each entry counts as redacted: no local segment replaces it. Entries with the
    bytes of the lost page are copies of local segments, as its checksum proves, and count as such.
    """
    if page.seal_key_id is not None:
        raise Corrupt("cannot repair a manifest page, it was sealed, and unsealed objects may be forged", page=page.key)
    pending = set(waiting_keys(manifest, Pages(store, prefix).entries))
    entries: list[SegmentEntry] = []
    for info in store.list(prefix + DATA):
        key = info.key.removeprefix(prefix)
        says = parse_data_key(key)
        if says is None or says.suffix == ".indexes" or key in pending:
            continue
        if page.base_offset <= says.base_offset and says.last_offset < page.next_offset:
            entries.append(_entry_of(store, prefix, key, page, info.modified_ms or 0))
    entries.sort(key=lambda entry: entry.base_offset)
    if any(one.next_offset > other.base_offset for one, other in pairwise(entries)):
        raise Corrupt("cannot repair a manifest page, several objects have the same offsets", page=page.key)
    if not entries:
        raise Corrupt("cannot repair a manifest page, the objects of its entries do not exist", page=page.key)
    name = parse_page_key(page.key)
    if name is not None and encode_page(tuple(entries), name.epoch, name.ulid)[0] == page:
        return tuple(entries)
    return tuple(replace(entry, made_by=UNKNOWN_MAKER) for entry in entries)


def _entry_of(store: ObjectStore, prefix: str, key: str, page: PageEntry, modified_ms: int) -> SegmentEntry:
    says = parse_data_key(key)
    assert says is not None
    if says.suffix.endswith(".enc"):
        raise Corrupt(
            "cannot repair a manifest page, only the page had the data keys of its segments", page=page.key, object=key
        )
    indexes = key.removesuffix(says.suffix) + ".indexes"
    try:
        body = store.get(prefix + indexes)
    except NotFound as error:
        raise Corrupt("cannot repair a manifest page, a segment has no indexes", page=page.key, object=key) from error
    bundle = decode_bundle(body)
    again, ranges = encode_bundle(bundle)
    if len(again) != len(body):
        raise Corrupt("cannot repair a manifest page, an index bundle has another format", size_bytes=len(body))
    bare = SegmentEntry(
        ulid=says.ulid,
        base_offset=says.base_offset,
        next_offset=says.last_offset + 1,
        size_bytes=0,
        stored_bytes=0,
        record_count=0,
        max_timestamp_ms=None,
        min_timestamp_ms=None,
        epochs=(),
        data_crc32c=0,
        data_key=key,
        indexes_key=indexes,
        indexes_bytes=0,
        indexes=ranges,
        cleaned_through=page.cleaned_through,
        committed_ms=modified_ms,
    )
    true = as_indexed(bare, bundle, len(body))
    remote = RemotePartition(store, prefix, ChunkCache())
    tables = _tables(_Bytes(read=partial(remote.read, true), size_bytes=true.size_bytes, bundle=bundle))
    true = replace(true, epochs=_epochs_of(tables, true.base_offset))
    inspector = SegmentInspector(true.data_key, true.base_offset, true.next_offset, true.epochs)
    for run in BatchRuns(partial(remote.read, true), true.size_bytes):
        inspector.take(run.data)
    facts = inspector.facts()
    return replace(
        true,
        record_count=facts.record_count,
        max_timestamp_ms=facts.max_timestamp_ms,
        min_timestamp_ms=facts.min_timestamp_ms,
    )


class LocalCopies:
    """Good copies in a manager's logs, by reading whole segments. Without a manager there are none."""

    def __init__(self, open_manager: Callable[[], LogManager]) -> None:
        self._open_manager = open_manager

    def __enter__(self) -> LocalCopies:
        return self

    def __exit__(self, *rest: object) -> None:
        if (opened := self.__dict__.get("_manager")) is not None:
            opened.close()

    def __call__(self, name: RemotePartitionName, entry: SegmentEntry) -> bool:
        log = self.log(name)
        return log is not None and has_same_bytes(log, entry)

    def log(self, name: RemotePartitionName) -> Log | None:
        """Return the partition's log; None if this machine lacks it, or has another topic of that name."""
        manager = self._manager
        try:
            if manager is None or manager.topics.get(name.topic).topic_id != name.topic_id:
                return None
            return manager.partitions.find(name.topic_partition).log
        except LogError:
            return None

    @cached_property
    def _manager(self) -> LogManager | None:
        try:
            return self._open_manager()
        except LogError as error:
            _log.warning("the disk is not searched for good copies: error=%s", error)
            return None


def has_same_bytes(log: Log, entry: SegmentEntry) -> bool:
    try:
        infos = [info for info in log.segments()[:-1] if info.base_offset == entry.base_offset]
        if not infos or infos[0].next_offset != entry.next_offset or infos[0].size_bytes != entry.size_bytes:
            return False
        return crc32c_of(log.segment(entry.base_offset).read, entry.size_bytes) == entry.content_crc32c
    except LogError:
        return False


class Relatives:
    """Partitions of a bucket that share objects; each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._forks: dict[str, list[str]] = {}
        self._entries: dict[RemotePartitionName, tuple[SegmentEntry, ...]] = {}

    def naming(self, name: RemotePartitionName, entry: SegmentEntry) -> Iterator[tuple[RemotePartitionName, str]]:
        """Yield (partition, ULID) of entries in newest manifests of other partitions with an object of `entry`."""
        objects = self._objects(name, entry)
        for other in self._of(name, entry):
            for each in self.entries(other):
                if objects & self._objects(other, each):
                    yield other, each.ulid

    def same_bytes(
        self, name: RemotePartitionName, entry: SegmentEntry, is_whole: IsWhole
    ) -> tuple[RemotePartitionName, SegmentEntry] | None:
        objects, facts = self._objects(name, entry), (entry.offsets, entry.size_bytes, entry.content_crc32c)
        for other in self._of(name, entry):
            for each in self.entries(other):
                is_same = (each.offsets, each.size_bytes, each.content_crc32c) == facts
                if is_same and not objects & self._objects(other, each) and is_whole(other, each):
                    return other, each
        return None

    def on_disk(self, name: RemotePartitionName, entry: SegmentEntry, copies: IsWhole) -> RemotePartitionName | None:
        return next((other for other in self._of(name, entry) if copies(other, entry)), None)

    def entries(self, name: RemotePartitionName) -> Sequence[SegmentEntry]:
        if name not in self._entries:
            self._entries[name] = ()
            log = MetadataLog(self._store, name.prefix)
            try:
                manifest = log.load(exact=True)
                if manifest is not None and manifest.deleted_ms is None:
                    self._entries[name] = tuple(log.ask(manifest, lambda index: list(index.entries())))
            except (Corrupt, NotFound):
                pass  # its own repair reports the error
        return self._entries[name]

    def _of(self, name: RemotePartitionName, entry: SegmentEntry) -> Iterable[RemotePartitionName]:
        homes = {home_of(key) for key in self._objects(name, entry)}
        for home in homes - self._forks.keys():
            self._forks[home] = sorted(forks_of(list_pins(self._store, home)))
        prefixes = [*sorted(homes), *(fork for home in sorted(homes) for fork in self._forks[home])]
        found = [RemotePartitionName(*parts) for each in prefixes if (parts := parse_prefix(each)) is not None]
        return [each for each in dict.fromkeys(found) if each != name]

    def _objects(self, name: RemotePartitionName, entry: SegmentEntry) -> set[str]:
        return {key_in_other_topic(name.prefix, key) for key in (entry.data_key, entry.indexes_key)}
