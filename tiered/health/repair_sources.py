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
from remote.manifest.manifest import Head, PageEntry
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import Rows, summary_contradiction
from remote.manifest.page_spill import waiting_keys
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.chunk_table import RAW
from remote.segments.encryption import KeyRing
from remote.segments.index_bundle import IndexBundle, decode_bundle, encode_bundle
from remote.segments.object_encoding import CODECS, open_ring
from remote.segments.segment_upload import SegmentToCopy
from remote.segments.segment_upload_stream import SegmentFacts
from remote.store import Body, ObjectStore
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


def from_bucket(store: ObjectStore, prefix: str, row: SegmentEntry, keys: KeyRing, *, is_last: bool) -> SegmentToCopy:
    """Build the segment from its own data, with new indexes and facts.

    `is_last`: the partition has no entry above. Raises Corrupt, with the reason, if the bucket has no good copy.
    """
    row = with_own_names(row)
    found = _indexed(store, prefix, row, keys) or _raw(store, prefix, row)
    tables = _tables(found)
    rows = IndexRows()
    for table in tables:
        rows.add(table)
    made = rows.indexes(row.base_offset, INTERVAL_BYTES)
    indexes = bytes(made.offset), bytes(made.time)
    epochs = row.epochs if _fit(row.epochs, tables) else _epochs_of(tables, row.base_offset)
    txn, producers, lineage = _side_files(found.bundle, row, tables, is_last=is_last)
    return SegmentToCopy(
        base_offset=row.base_offset,
        next_offset=row.next_offset,
        size_bytes=found.size_bytes,
        epochs=epochs,
        offset_index=indexes[0],
        time_index=indexes[1],
        txn_index=txn,
        producer_snapshot=producers,
        leader_epochs=lineage,
        cleaned_through=row.cleaned_through,
        read=found.read,
        inspect=partial(
            SegmentInspector, full_key(prefix, row.data_key), row.base_offset, row.next_offset, epochs, indexes
        ),
    )


def with_own_names(row: SegmentEntry) -> SegmentEntry:
    """Return the entry with the names of its own objects.

    The name with the entry's offsets counts. Raises Corrupt if there is none.
    """
    for key in (row.indexes_key, row.data_key):
        says = parse_data_key(own_part(key))
        if says is None:
            continue
        home = key.removesuffix(own_part(key))  # of a fork's entry: the partition that owns the object
        is_same = (says.base_offset, says.last_offset + 1) == (row.base_offset, row.next_offset)
        if is_same or row.is_named(says.base_offset, says.last_offset, says.ulid):
            names = says.base_offset, says.last_offset, says.epoch, says.ulid
            is_zstd, is_encrypted = row.codec != CODECS[RAW], row.key_id is not None
            data = data_key(*names, is_zstd=is_zstd, is_encrypted=is_encrypted)
            data = key if key == row.data_key else home + data
            return replace(row, ulid=says.ulid, data_key=data, indexes_key=home + indexes_key(*names))
    raise Corrupt("repairing a segment, its row says other offsets than its objects' names", ulid=row.ulid)


def _indexed(store: ObjectStore, prefix: str, row: SegmentEntry, keys: KeyRing) -> _Bytes | None:
    """Read through the indexes object, ignoring the entry's sizes and checksums; None if it is damaged.

    None also if it is missing.
    """
    try:
        body = store.get(full_key(prefix, row.indexes_key))
        cipher = open_ring(row, prefix, keys)
        bundle = decode_bundle(body if cipher is None else cipher.open_indexes(body))
    except (Corrupt, NotFound, AccessDenied):
        return None
    true = as_indexed(row, bundle, len(body))
    remote = RemotePartition(store, prefix, ChunkCache(), read_ahead_chunks=0, keys=keys)
    return _Bytes(read=partial(remote.read, true), size_bytes=true.size_bytes, bundle=bundle)


def as_indexed(row: SegmentEntry, bundle: IndexBundle, indexes_bytes: int) -> SegmentEntry:
    """Return the entry with the sizes, checksums and codec of its indexes."""
    table = bundle.chunks
    return replace(
        row,
        size_bytes=table.size_bytes,
        stored_bytes=table.stored_bytes,
        data_crc32c=table.whole_crc,
        segment_crc32c=None if table.is_as_it_is else table.segment_crc,
        codec=CODECS[table.codec],
        indexes_bytes=indexes_bytes,
    )


def _raw(store: ObjectStore, prefix: str, row: SegmentEntry) -> _Bytes:
    """Read a plain object, checked by the entry's size and checksum."""
    key = full_key(prefix, row.data_key)
    if row.codec != "none" or row.key_id is not None:
        raise Corrupt("repairing a segment, its chunks cannot be told apart without its indexes", object=key)
    checksum = 0
    try:
        for at in range(0, row.size_bytes, RANGE_BYTES):
            checksum = crc32c(store.get_range(key, at, min(RANGE_BYTES, row.size_bytes - at)), checksum)
    except NotFound as error:
        raise Corrupt("repairing a segment, its object is not there", object=key) from error
    if checksum != row.data_crc32c:
        raise Corrupt("repairing a segment, its data is damaged too", object=key)
    return _Bytes(read=partial(store.get_range, key), size_bytes=row.size_bytes, bundle=None)


def _tables(found: _Bytes) -> list[BatchTable]:
    walk = BatchRuns(_as_view(found.read), found.size_bytes)
    tables = []
    for run in walk:
        if run.damage is not None:
            raise Corrupt(f"repairing a segment, {run.damage}", at=run.position)
        tables.append(run.table)
    if walk.problem is not None:
        raise Corrupt(f"repairing a segment, {walk.problem}", at=walk.position)
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
    bundle: IndexBundle | None, row: SegmentEntry, tables: Sequence[BatchTable], *, is_last: bool
) -> tuple[bytes, bytes, bytes]:
    """Return transaction index, producers and leader epochs: as stored, or empty if they must have been."""
    if bundle is not None:
        return bytes(bundle.txn), bytes(bundle.producers), bytes(bundle.epochs)
    if row.aborted_bytes:
        raise Corrupt("repairing a segment, its aborted transactions are known to its indexes alone", ulid=row.ulid)
    if is_last and any((table.producer_ids >= 0).any() for table in tables):
        raise Corrupt("repairing the last segment, its producers are known to its indexes alone", ulid=row.ulid)
    return b"", b"", b""


# --- pages -----------------------------------------------------------------------------------------------------------


def entries_of_page(store: ObjectStore, prefix: str, head: Head, spill: PageEntry) -> tuple[Rows, str]:
    """Return the entries of an unreadable page, and their source; they match the manifest's summary.

    Raises Corrupt if there is no good copy.
    """
    if (rows := _from_older_manifests(store, prefix, head, spill)) is not None:
        return rows, "older head"
    rows = _from_objects(store, prefix, head, spill)
    if (wrong := _unlike(spill, rows)) is not None:
        raise Corrupt("repairing a page, its objects say something else than the head", page=spill.key, found=wrong)
    return rows, "objects"


def _from_older_manifests(store: ObjectStore, prefix: str, head: Head, spill: PageEntry) -> Rows | None:
    chain, pages = ManifestChain(store, prefix), Pages(store, prefix)
    for sequence in range(head.sequence - 1, max(head.void_upto, head.sequence - MANIFESTS_MAX), -1):
        older = None
        with suppress(Corrupt):
            older = chain.read(sequence)
        if older is None or (spill.seal_key_id is not None and older.seal_key_id is None):
            continue  # unsealed manifests prove nothing about a sealed page
        with suppress(Corrupt, NotFound):
            rows = [
                row
                for each in older.spills
                if _touch(each, spill) and _is_proof(each, spill)
                for row in pages.rows(each)
            ]
            rows += [row for row in older.segments if _touch(row, spill)]
            if rows and summary_contradiction(spill, tuple(rows)) is None:
                return tuple(rows)
    return None


def _is_proof(page: PageEntry, of: PageEntry) -> bool:
    return page.seal_key_id is not None or of.seal_key_id is None


def _touch(part: PageEntry | SegmentEntry, spill: PageEntry) -> bool:
    return part.base_offset < spill.next_offset and spill.base_offset < part.next_offset


def _from_objects(store: ObjectStore, prefix: str, head: Head, spill: PageEntry) -> Rows:
    """Build an entry for each pair of objects in the page's range that is not a pending delete."""
    if spill.seal_key_id is not None:
        raise Corrupt("repairing a page, it was sealed, and objects alone prove nothing: forgeries", page=spill.key)
    gone = set(waiting_keys(head, Pages(store, prefix).rows))
    rows: list[SegmentEntry] = []
    for info in store.list(prefix + DATA):
        key = info.key.removeprefix(prefix)
        says = parse_data_key(key)
        if says is None or says.suffix == ".indexes" or key in gone:
            continue
        if spill.base_offset <= says.base_offset and says.last_offset < spill.next_offset:
            rows.append(_row_of(store, prefix, key, spill, info.modified_ms or 0))
    rows.sort(key=lambda row: row.base_offset)
    if any(one.next_offset > other.base_offset for one, other in pairwise(rows)):
        raise Corrupt("repairing a page, several objects claim the same offsets", page=spill.key)
    if not rows:
        raise Corrupt("repairing a page, there are no objects of its rows", page=spill.key)
    return tuple(rows)


def _row_of(store: ObjectStore, prefix: str, key: str, spill: PageEntry, modified_ms: int) -> SegmentEntry:
    says = parse_data_key(key)
    assert says is not None
    if says.suffix.endswith(".enc"):
        raise Corrupt("repairing a page, the data keys of its segments were in it alone", page=spill.key, object=key)
    beside = key.removesuffix(says.suffix) + ".indexes"
    try:
        body = store.get(prefix + beside)
    except NotFound as error:
        raise Corrupt("repairing a page, a segment has no indexes", page=spill.key, object=key) from error
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
        cleaned_through=spill.cleaned_through,
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


def _facts(remote: RemotePartition, row: SegmentEntry) -> SegmentFacts:
    watch = SegmentInspector(row.data_key, row.base_offset, row.next_offset, row.epochs)
    walk = BatchRuns(lambda start, length: remote.read(row, start, length), row.size_bytes)
    for run in walk:
        watch.take(run.data)
    return watch.facts()


def _ranges(bundle: IndexBundle, body_bytes: int) -> dict[str, IndexRange]:
    """Return the positions of the sections, as `encode_bundle` places them."""
    body, ranges = encode_bundle(bundle)
    if len(body) != body_bytes:
        raise Corrupt("repairing a page, an indexes object is laid out in another way", size_bytes=body_bytes)
    return ranges


def _unlike(spill: PageEntry, rows: Rows) -> str | None:
    """Return a difference between entries and page, ignoring facts that only entries have."""
    names = ("base_offset", "next_offset", "segment_count", "record_count", "size_bytes", "stored_bytes")
    sums = {
        "base_offset": rows[0].base_offset,
        "next_offset": rows[-1].next_offset,
        "segment_count": len(rows),
        **{name: sum(getattr(row, name) for row in rows) for name in names[3:]},
    }
    return next((f"{name}={sums[name]}" for name in names if sums[name] != getattr(spill, name)), None)
