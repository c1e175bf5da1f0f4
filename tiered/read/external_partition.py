"""Read one partition of an external layout through the interface of this project's own partitions.

Missing indexes are built from the batches at the first request. Without a transaction index, readers of committed
records read all batches from the first segment on once (`Replay`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from local.errors import Corrupt
from local.index import offset_index, time_index, txn_index
from local.index.index_files import slices_of
from local.log.producer_state import ProducerState, encode_snapshot
from local.verify.findings import Finding, Severity, damaged, finding
from remote.cache.chunk_cache import ChunkCache, Slice
from remote.external.external_layout import (
    Cipher,
    ExternalFormat,
    ExternalManifests,
    ExternalName,
    ExternalObject,
    ExternalParts,
    ExternalSegment,
    SegmentFacts,
    choose,
    open_chunk,
)
from remote.fetch.range_reader import Opener, RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import ChunkTable, IndexBundle
from remote.store import Body, ObjectStore
from tiered.read.external_segments import (
    THREADS,
    built_indexes,
    entry_of_facts,
    has_known_transactions,
    hidden,
    newest_checkpoint,
    overlaps,
    position_of,
    read_segment_facts,
    verified,
    with_all_epochs,
)
from tiered.read.partition_source import PartitionSource
from tiered.stores.parallel import side_by_side

_log = logging.getLogger(__name__)


class ExternalPartition(RemotePartition):
    """A partition of an external layout. Its chunks have no checksums: readers check the batches' CRCs."""

    is_checked = False

    def __init__(
        self,
        store: ObjectStore,
        layout: ExternalFormat,
        cache: ChunkCache | None = None,
        *,
        metadata: MetadataLog | None = None,
    ) -> None:
        super().__init__(store, "", cache, metadata=metadata)
        self._layout = layout
        self._ciphers: dict[str, Cipher | None] = {}
        self._replay = Replay(self)

    def read(self, segment: SegmentEntry, position: int, length: int, *, in_one_piece: bool = False) -> memoryview:
        """As in the parent class, but never past the entry's end; bytes behind it in the object do not count."""
        length = max(0, min(length, segment.size_bytes - position))
        return super().read(segment, position, length, in_one_piece=in_one_piece)

    def txn_index(self, segment: SegmentEntry) -> Body:
        if has_known_transactions(segment):
            return self.indexes(segment).txn
        return self._replay.found(segment, self.manifest().segments)[0]

    def producer_snapshot(self, segment: SegmentEntry) -> Body:
        if has_known_transactions(segment) and "producers" in segment.indexes:
            return self.indexes(segment).producers
        return self._replay.found(segment, self.manifest().segments)[1]

    def object_of(self, segment: SegmentEntry) -> ExternalObject:
        return ExternalObject(self._store, segment.data_key, self._layout.parts(self._store, segment))

    def _checked_indexes(self, segment: SegmentEntry) -> IndexBundle:
        parts = self._layout.parts(self._store, segment)
        self._ciphers[segment.data_key] = parts.cipher
        offsets, times = self._sound_indexes(segment, parts)
        return IndexBundle(
            offset=offsets,
            time=times,
            # Only transactions that end below the entry's end: batches beyond it do not count.
            txn=txn_index.truncate(parts.txn, segment.next_offset) if parts.txn else b"",
            producers=parts.producers or b"",
            epochs=parts.epochs or b"",
            chunks=parts.chunks,
        )

    def _sound_indexes(self, segment: SegmentEntry, parts: ExternalParts) -> tuple[bytes, bytes]:
        if parts.offset is None or parts.time is None:
            body = ExternalObject(self._store, segment.data_key, parts)
            made = built_indexes(body.read, segment.base_offset)
            return made[0][: _entries_below(made[0], segment)], made[1]
        times = parts.time[: time_index.sound_entries(parts.time) * time_index.ENTRY_BYTES]
        return parts.offset[: _entries_below(parts.offset, segment)], times

    def _opener(self, segment: SegmentEntry, table: ChunkTable) -> Opener:
        if segment.data_key not in self._ciphers:  # another instance of this partition filled the cache
            self._ciphers[segment.data_key] = self._layout.parts(self._store, segment).cipher
        cipher = self._ciphers[segment.data_key]

        def opened(number: int, stored: Slice, *, is_sound: bool = False) -> Slice:
            del is_sound  # there is no checksum to compare with
            end = stored.start + stored.size_bytes
            if stored.size_bytes != table.stored_range(number)[1] or len(stored.body) < end:
                raise Corrupt("a chunk is too short", chunk=number)
            if table.is_as_it_is:
                return stored
            view = memoryview(stored.body)[stored.start : end]
            return Slice(open_chunk(table, number, view, cipher), 0, table.lengths[number])

        return opened


class Replay:
    """The transactions of a partition, from all batches since the first entry; read as far as asked for."""

    def __init__(self, remote: ExternalPartition) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        self._state = ProducerState()
        self._found: dict[str, tuple[bytes, bytes]] = {}
        self._reached = 0

    def found(self, segment: SegmentEntry, entries: Sequence[SegmentEntry]) -> tuple[bytes, bytes]:
        """The ``.txnindex`` of an entry, and the ``.snapshot`` at its end. Raises Corrupt, NotFound."""
        with self._lock:
            for entry in entries:
                if self._reached <= entry.base_offset <= segment.base_offset:
                    self._take(entry)
            return self._found.get(segment.data_key, (b"", b""))

    def _take(self, entry: SegmentEntry) -> None:
        body = self._remote.object_of(entry)
        found = []
        for _, data, table in slices_of(lambda at, length: body.read(at, min(length, max(0, entry.size_bytes - at)))):
            found += self._state.replay(data, table)
        self._found[entry.data_key] = txn_index.encode(found), encode_snapshot(self._state.entries())
        self._reached = entry.next_offset


@dataclass(slots=True)
class Known:
    """Results of earlier scans of a partition: segments by key, size and time; findings by key."""

    facts: dict[tuple[str, int, int], SegmentFacts | None] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)


def external_source(
    store: ObjectStore, layout: ExternalFormat, name: RemotePartitionName, cache: ChunkCache
) -> PartitionSource:
    assert isinstance(name, ExternalName), "a layout gives names of its own"
    known = Known()

    def listed(findings: dict[str, Finding]) -> list[SegmentEntry]:
        return list_entries(store, layout, name, known, findings)

    metadata = MetadataLog(store, name.prefix, source=ExternalManifests(name, layout.layout, listed))
    remote = ExternalPartition(store, layout, cache, metadata=metadata)
    return PartitionSource(name.topic_partition, None, remote, metadata)


def list_entries(
    store: ObjectStore,
    layout: ExternalFormat,
    name: ExternalName,
    known: Known | None = None,
    findings: dict[str, Finding] | None = None,
) -> list[SegmentEntry]:
    """The segment entries, ascending, without overlaps. Raises the layout's errors.

    Copies that leader epochs rule out, and broken segments, are left out; `findings`, by object, receives
    contradictions. `known` caches the facts of segments: objects never change under one name, size and time.
    """
    seen = Known() if known is None else known
    known_facts, findings = seen.facts, {} if findings is None else findings

    def note(found: Finding) -> None:
        findings[found.where] = seen.findings[found.where] = found

    segments = []
    for each in layout.segments(store, name):
        if each.finding is not None:
            note(replace(each.finding, offsets=(each.base_offset, each.next_offset or each.base_offset + 1)))
        if not each.is_blocked:
            segments.append(each)
            if each.data_key in seen.findings:
                note(seen.findings[each.data_key])
    keys = [(each.data_key, each.stored_bytes, each.stamp_ms) for each in segments]
    fresh = [(key, each) for key, each in zip(keys, segments, strict=True) if key not in known_facts]

    def read_facts(pair: tuple[tuple[str, int, int], ExternalSegment]) -> SegmentFacts | None:
        segment = pair[1]
        try:
            return read_segment_facts(store, layout, segment)
        except Corrupt as error:
            note(damaged(error, segment.data_key, offsets=(segment.base_offset, segment.base_offset + 1)))
            return None

    answers = side_by_side(read_facts, fresh, threads=THREADS, name="tiered-foreign")
    known_facts.update((key, facts) for (key, _), facts in zip(fresh, answers, strict=True))
    found = [facts for key in keys if (facts := known_facts[key]) is not None]
    found, known_epochs = _with_checked_epochs(store, layout, found, note)
    facts_by_key = {facts.segment.data_key: facts for facts in found}
    known_facts.update((key, facts_by_key.get(key[0])) for key in keys)
    selected = choose(found, known_epochs)
    try:
        entries = [_entry(store, layout, *each) for each in selected]
    except Corrupt as error:
        if not known_epochs:
            raise
        # No leader begins inside a batch: the checkpoint is wrong, and the batches alone decide.
        note(replace(damaged(error, f"{name.prefix}epochs"), severity=Severity.WARNING))
        selected = choose(found)
        entries = [_entry(store, layout, *each) for each in selected]
    for start, end in hidden(found, selected):
        note(finding("external.not-read", f"{name.prefix}{start}-{end}", offsets=(start, end)))
    if superseded := len(found) - len(entries):
        where = name.topic_partition
        _log.info("left out copies that another copy supersedes: partition=%s segments=%d", where, superseded)
    if all(has_known_transactions(entry) for entry in entries):
        return entries
    # The transactions of all entries or of none: each index relies on those before it.
    unknown = {"txn": IndexRange(start=-1, length=1)}
    return [replace(entry, indexes={**entry.indexes, **unknown}) for entry in entries]


def _with_checked_epochs(
    store: ObjectStore, layout: ExternalFormat, found: list[SegmentFacts], note: Callable[[Finding], None]
) -> tuple[list[SegmentFacts], tuple[tuple[int, int], ...]]:
    known_epochs, is_doubtful = newest_checkpoint(store, layout, found, note)
    if known_epochs or is_doubtful or overlaps(found):
        # The offset of each epoch's first batch decides which copy counts.
        found = side_by_side(partial(with_all_epochs, store, layout), found, threads=THREADS, name="tiered-foreign")
    for _ in range(2):  # epochs corrected in the first pass may hide other offsets
        unread = hidden(found, choose(found, known_epochs))
        if is_doubtful or unread or overlaps(found):
            found = verified(store, layout, found, unread, note)
            known_epochs, is_doubtful = newest_checkpoint(store, layout, found, note)
    return found, known_epochs


def _entry(store: ObjectStore, layout: ExternalFormat, facts: SegmentFacts, next_offset: int) -> SegmentEntry:
    entry = entry_of_facts(facts, layout, next_offset=facts.next_offset, size_bytes=facts.size_bytes)
    if next_offset >= facts.next_offset:
        return entry
    parts = layout.parts(store, entry)
    body = ExternalObject(store, entry.data_key, parts)
    offsets = parts.offset if parts.offset is not None else built_indexes(body.read, entry.base_offset)[0]
    cut = position_of(body.read, offsets, entry.base_offset, next_offset)
    return entry_of_facts(facts, layout, next_offset=next_offset, size_bytes=cut)


def _entries_below(offsets: bytes, segment: SegmentEntry) -> int:
    return offset_index.sound_entries(offsets, segment.size_bytes) * offset_index.ENTRY_BYTES
