"""Sources of good copies: the disk, the bucket's own bytes, older manifests, other objects.

| damaged | good copy |
|---|---|
| a segment's objects | the same bytes in a closed segment of this machine's log |
| its indexes, or facts in its entry | its data, because batches have CRCs; the rest is rebuilt from them |
| a manifest page | an older manifest that still has the entries, else the objects of the entries |

Facts that only the damaged object had are not invented. Without its indexes a compressed or encrypted object cannot be
divided into chunks. Aborted transactions and producers cannot be derived from a segment alone. There is no good copy
then.

The module only reads. Memory: the headers of one segment's batches, its bytes range by range, the entries of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from local.errors import AccessDenied, Corrupt, NotFound
from local.format.columns import BatchTable
from local.format.crc32c import crc32c
from local.index.index_building import IndexRows
from local.records.batch_runs import BatchRuns
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.keys import DATA, data_key, full_key, indexes_key, own_part, parse_data_key
from remote.manifest.manifest import Manifest, PageEntry
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import Rows, summary_contradiction
from remote.manifest.page_out import waiting_keys
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.chunk_table import RAW
from remote.segments.encryption import KeyRing
from remote.segments.index_bundle import IndexBundle, decode_bundle, encode_bundle
from remote.segments.object_encoding import CODECS, open_ring
from remote.store import Body, ObjectStore
from remote.upload.segment_upload import SegmentToCopy
from remote.upload.segment_upload_stream import SegmentFacts
from tiered.partition.segment_inspection import SegmentInspector

INTERVAL_BYTES = 4096
MANIFESTS_MAX = 512  # older manifests searched for a page's entries

Read = Callable[[int, int], Body]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytes:
    """A segment's bytes and indexes; `bundle` is None if the indexes are lost."""

    read: Read
    size_bytes: int
    bundle: IndexBundle | None


def from_bucket(store: ObjectStore, prefix: str, entry: SegmentEntry, keys: KeyRing, *, is_last: bool) -> SegmentToCopy:
    """Build the segment from its own data, with new indexes and facts.

    `is_last`: the partition has no entry above. Raises Corrupt, with the reason, if the bucket has no good copy.
    """
    entry = with_own_names(entry)
    found = _indexed(store, prefix, entry, keys) or _raw(store, prefix, entry)
    tables = _tables(found)
    entries = IndexRows()
    for table in tables:
        entries.add(table)
    made = entries.indexes(entry.base_offset, INTERVAL_BYTES)
    indexes = bytes(made.offset), bytes(made.time)
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
    """Return the entry with the names of its own objects.

    The name with the entry's offsets counts. Raises Corrupt if there is none.
    """
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
    """Read through the indexes object, ignoring the entry's sizes and checksums; None if it is damaged.

    None also if it is missing.
    """
    try:
        body = store.get(full_key(prefix, entry.indexes_key))
        cipher = open_ring(entry, prefix, keys)
        bundle = decode_bundle(body if cipher is None else cipher.open_indexes(body))
    except (Corrupt, NotFound, AccessDenied):
        return None
    true = as_indexed(entry, bundle, len(body))
    remote = RemotePartition(store, prefix, ChunkCache(), read_ahead_chunks=0, keys=keys)
    return _Bytes(read=partial(remote.read, true), size_bytes=true.size_bytes, bundle=bundle)


def as_indexed(entry: SegmentEntry, bundle: IndexBundle, indexes_bytes: int) -> SegmentEntry:
    """Return the entry with the sizes, checksums and codec of its indexes."""
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
    """Read a plain object, checked by the entry's size and checksum."""
    key = full_key(prefix, entry.data_key)
    if entry.codec != "none" or entry.key_id is not None:
        raise Corrupt("cannot repair a segment, its chunks cannot be separated without its indexes", object=key)
    checksum = 0
    try:
        for at in range(0, entry.size_bytes, RANGE_BYTES):
            checksum = crc32c(store.get_range(key, at, min(RANGE_BYTES, entry.size_bytes - at)), checksum)
    except NotFound as error:
        raise Corrupt("cannot repair a segment, its object does not exist", object=key) from error
    if checksum != entry.data_crc32c:
        raise Corrupt("cannot repair a segment, its data is also damaged", object=key)
    return _Bytes(read=partial(store.get_range, key), size_bytes=entry.size_bytes, bundle=None)


def _tables(found: _Bytes) -> list[BatchTable]:
    walk = BatchRuns(_as_view(found.read), found.size_bytes)
    tables = []
    for run in walk:
        if run.damage is not None:
            raise Corrupt(f"cannot repair a segment, {run.damage}", at=run.position)
        tables.append(run.table)
    if walk.problem is not None:
        raise Corrupt(f"cannot repair a segment, {walk.problem}", at=walk.position)
    return tables


def _as_view(read: Read) -> Callable[[int, int], memoryview]:
    return lambda start, length: memoryview(read(start, length))


def _fit(epochs: Sequence[tuple[int, int]], tables: Sequence[BatchTable]) -> bool:
    """Return whether `epochs` has every batch's leader epoch."""
    for table in tables:
        for offset, epoch in zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True):
            told = [each for each, start in epochs if start <= offset]
            if not told or (epoch >= 0 and told[-1] != epoch):
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
    """Return transaction index, producers and leader epochs: as stored, or empty if they must have been."""
    if bundle is not None:
        return bytes(bundle.txn), bytes(bundle.producers), bytes(bundle.epochs)
    if entry.aborted_bytes:
        raise Corrupt("cannot repair a segment, only its indexes have its aborted transactions", ulid=entry.ulid)
    if is_last and any((table.producer_ids >= 0).any() for table in tables):
        raise Corrupt("cannot repair the last segment, only its indexes have its producers", ulid=entry.ulid)
    return b"", b"", b""


# --- pages -----------------------------------------------------------------------------------------------------------


def entries_of_page(store: ObjectStore, prefix: str, manifest: Manifest, page: PageEntry) -> tuple[Rows, str]:
    """Return the entries of an unreadable page, and their source; they match the manifest's summary.

    Raises Corrupt if there is no good copy.
    """
    if (entries := _from_older_manifests(store, prefix, manifest, page)) is not None:
        return entries, "older manifest"
    entries = _from_objects(store, prefix, manifest, page)
    if (wrong := _unlike(page, entries)) is not None:
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
                if _touch(each, page) and _is_proof(each, page)
                for entry in pages.entries(each)
            ]
            entries += [entry for entry in older.segments if _touch(entry, page)]
            if entries and summary_contradiction(page, tuple(entries)) is None:
                return tuple(entries)
    return None


def _is_proof(page: PageEntry, of: PageEntry) -> bool:
    return page.seal_key_id is not None or of.seal_key_id is None


def _touch(part: PageEntry | SegmentEntry, page: PageEntry) -> bool:
    return part.base_offset < page.next_offset and page.base_offset < part.next_offset


def _from_objects(store: ObjectStore, prefix: str, manifest: Manifest, page: PageEntry) -> Rows:
    """Build an entry for each pair of objects in the page's range that is not a pending delete."""
    if page.seal_key_id is not None:
        raise Corrupt("cannot repair a manifest page, it was sealed, and unsealed objects may be forged", page=page.key)
    gone = set(waiting_keys(manifest, Pages(store, prefix).entries))
    entries: list[SegmentEntry] = []
    for info in store.list(prefix + DATA):
        key = info.key.removeprefix(prefix)
        says = parse_data_key(key)
        if says is None or says.suffix == ".indexes" or key in gone:
            continue
        if page.base_offset <= says.base_offset and says.last_offset < page.next_offset:
            entries.append(_row_of(store, prefix, key, page, info.modified_ms or 0))
    entries.sort(key=lambda entry: entry.base_offset)
    if any(one.next_offset > other.base_offset for one, other in pairwise(entries)):
        raise Corrupt("cannot repair a manifest page, several objects have the same offsets", page=page.key)
    if not entries:
        raise Corrupt("cannot repair a manifest page, the objects of its entries do not exist", page=page.key)
    return tuple(entries)


def _row_of(store: ObjectStore, prefix: str, key: str, page: PageEntry, modified_ms: int) -> SegmentEntry:
    says = parse_data_key(key)
    assert says is not None
    if says.suffix.endswith(".enc"):
        raise Corrupt(
            "cannot repair a manifest page, only the page had the data keys of its segments", page=page.key, object=key
        )
    beside = key.removesuffix(says.suffix) + ".indexes"
    try:
        body = store.get(prefix + beside)
    except NotFound as error:
        raise Corrupt("cannot repair a manifest page, a segment has no indexes", page=page.key, object=key) from error
    bundle = decode_bundle(body)
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
        indexes_key=beside,
        indexes_bytes=0,
        indexes=_ranges(bundle, len(body)),
        cleaned_through=page.cleaned_through,
        committed_ms=modified_ms,
    )
    true = as_indexed(bare, bundle, len(body))
    remote = RemotePartition(store, prefix, ChunkCache(), read_ahead_chunks=0)
    tables = _tables(_Bytes(read=partial(remote.read, true), size_bytes=true.size_bytes, bundle=bundle))
    true = replace(true, epochs=_epochs_of(tables, true.base_offset))
    facts = _facts(remote, true)
    return replace(
        true,
        record_count=facts.record_count,
        max_timestamp_ms=facts.max_timestamp_ms,
        min_timestamp_ms=facts.min_timestamp_ms,
    )


def _facts(remote: RemotePartition, entry: SegmentEntry) -> SegmentFacts:
    watch = SegmentInspector(entry.data_key, entry.base_offset, entry.next_offset, entry.epochs)
    walk = BatchRuns(lambda start, length: remote.read(entry, start, length), entry.size_bytes)
    for run in walk:
        watch.take(run.data)
    return watch.facts()


def _ranges(bundle: IndexBundle, body_bytes: int) -> dict[str, IndexRange]:
    """Return the positions of the sections, as `encode_bundle` places them."""
    body, ranges = encode_bundle(bundle)
    if len(body) != body_bytes:
        raise Corrupt("cannot repair a manifest page, an index bundle has another format", size_bytes=body_bytes)
    return ranges


def _unlike(page: PageEntry, entries: Rows) -> str | None:
    """Return a difference between entries and page, ignoring facts that only entries have."""
    names = ("base_offset", "next_offset", "segment_count", "record_count", "size_bytes", "stored_bytes")
    sums = {
        "base_offset": entries[0].base_offset,
        "next_offset": entries[-1].next_offset,
        "segment_count": len(entries),
        **{name: sum(getattr(entry, name) for entry in entries) for name in names[3:]},
    }
    return next((f"{name}={sums[name]}" for name in names if sums[name] != getattr(page, name)), None)
