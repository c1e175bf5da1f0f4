"""Read one partition of an external layout through the interface of this project's own partitions.

**Facts of a segment** come from its bytes: its end, times, missing indexes, leader epochs. The end costs two small
reads, or without an index one read of the whole log. Missing indexes are built at the first request. Without a
transaction index, readers of committed records read all batches from the first segment on once (`Replay`).

**Leader epochs** decide which of several copies is read; the batches are authoritative over other software's manifests
and checkpoints. Their headers are read if the epochs would hide offsets that a segment holds, if different segments
hold the same offsets, or if a checkpoint contradicts its segment. A contradiction is a finding. An unreadable segment
is left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index, txn_index
from local.index.index_files import IndexRows, slices_of
from local.log.checkpoints import parse_entries
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerState, encode_snapshot
from local.verify.findings import Finding, Severity, damaged, finding
from remote.cache.chunk_cache import ChunkCache, Slice
from remote.external.aiven_layout import EPOCH_MAX
from remote.external.external_layout import (
    Cipher,
    ExternalFormat,
    ExternalManifests,
    ExternalName,
    ExternalObject,
    ExternalParts,
    ExternalSegment,
    KnownSegment,
    choose,
    open_chunk,
)
from remote.fetch.range_reader import Opener, RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import ChunkTable, IndexBundle
from remote.store import Body, ObjectStore
from tiered.read.partition_source import PartitionSource
from tiered.stores.parallel import side_by_side

_log = logging.getLogger(__name__)

INTERVAL_BYTES = 4096  # between two entries of an index made here; Kafka's default
Read = Callable[[int, int], bytes]  # position, length; fewer bytes at the end
THREADS = 16
Pairs = tuple[tuple[int, int], ...]


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
            made = built_indexes(ExternalObject(self._store, segment.data_key, parts).read, segment.base_offset)
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

    facts: dict[tuple[str, int, int], KnownSegment | None] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)


def external_source(
    store: ObjectStore, layout: ExternalFormat, name: RemotePartitionName, cache: ChunkCache
) -> PartitionSource:
    assert isinstance(name, ExternalName), "a layout gives names of its own"
    known = Known()

    def listed(findings: dict[str, Finding]) -> list[SegmentEntry]:
        return list_entries(store, layout, name, findings, known)

    metadata = MetadataLog(store, name.prefix, source=ExternalManifests(name, layout.layout, listed))
    remote = ExternalPartition(store, layout, cache, metadata=metadata)
    return PartitionSource(name.topic_partition, None, remote, metadata)


def list_entries(
    store: ObjectStore,
    layout: ExternalFormat,
    name: ExternalName,
    findings: dict[str, Finding],
    known: Known | None = None,
) -> list[SegmentEntry]:
    """The segment entries, ascending, without overlaps. Raises the layout's errors.

    Copies that leader epochs rule out, and broken segments, are left out; `findings`, by object, receives
    contradictions. `known` caches the facts of segments: objects never change under one name, size and time.
    """
    seen = known or Known()

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
    fresh = [(key, each) for key, each in zip(keys, segments, strict=True) if key not in seen.facts]
    scan = _Scan(store, layout, note)
    answers = side_by_side(scan.facts_of, [each for _, each in fresh], threads=THREADS, name="tiered-foreign")
    seen.facts.update((key, facts) for (key, _), facts in zip(fresh, answers, strict=True))
    found = [facts for key in keys if (facts := seen.facts[key]) is not None]
    found, known_epochs = scan.with_checked_epochs(found)
    facts_by_key = {facts.segment.data_key: facts for facts in found}
    seen.facts.update((key, facts_by_key.get(key[0])) for key in keys)
    selected = choose(found, known_epochs)
    try:
        entries = [scan.entry(facts, end) for facts, end in selected]
    except Corrupt as error:
        if not known_epochs:
            raise
        # No leader begins inside a batch: the checkpoint is wrong, and the batches alone decide.
        note(replace(damaged(error, f"{name.prefix}epochs"), severity=Severity.WARNING))
        selected = choose(found)
        entries = [scan.entry(facts, end) for facts, end in selected]
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


@dataclass(frozen=True, slots=True)
class _Scan:
    """One listing of a partition's segments. `note` receives contradictions."""

    store: ObjectStore
    layout: ExternalFormat
    note: Callable[[Finding], None]

    def facts_of(self, segment: ExternalSegment) -> KnownSegment | None:
        try:
            return self._read_facts(segment)
        except Corrupt as error:
            self.note(damaged(error, segment.data_key, offsets=(segment.base_offset, segment.base_offset + 1)))
            return None

    def _read_facts(self, segment: ExternalSegment) -> KnownSegment | None:
        """The facts that the layout left open, from the bytes; None without a whole batch. Raises Corrupt."""
        if segment.next_offset is not None and segment.epochs is not None:
            return KnownSegment(
                segment=segment,
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                max_timestamp_ms=segment.max_timestamp_ms,
                epochs=segment.epochs,
            )
        read = self._reader_of(segment)
        end = self._end(segment, read)
        if end is None:
            if segment.may_be_torn:
                return None
            raise Corrupt("cannot read a segment, it does not begin with a batch", object=segment.data_key)
        found_offset, size_bytes, latest_ms = end
        next_offset = segment.next_offset or found_offset
        checkpoint_epochs = None
        if not segment.epochs and (key := segment.index_keys.get("epochs")) is not None:
            with suppress(Corrupt):  # then the first batch decides; the checkpoint is a finding
                checkpoint = LeaderEpochs(parse_lineage(self.store.get(key), key))
                checkpoint_epochs = checkpoint.between(segment.base_offset, next_offset)
        header = read_header(read(0, HEADER_BYTES)) if not segment.epochs and checkpoint_epochs is None else None
        first_epoch = () if header is None or header.leader_epoch < 0 else ((header.leader_epoch, segment.base_offset),)
        return KnownSegment(
            segment=segment,
            next_offset=next_offset,
            size_bytes=size_bytes if segment.may_be_torn else segment.size_bytes,
            max_timestamp_ms=latest_ms if segment.max_timestamp_ms is None else segment.max_timestamp_ms,
            epochs=segment.epochs or (first_epoch if checkpoint_epochs is None else checkpoint_epochs),
            has_all_epochs=segment.epochs is not None or checkpoint_epochs is not None,
        )

    def with_checked_epochs(self, found: list[KnownSegment]) -> tuple[list[KnownSegment], Pairs]:
        known_epochs, is_doubtful = self._newest_checkpoint(found)
        if known_epochs or is_doubtful or overlaps(found):
            # The offset of each epoch's first batch decides which copy counts.
            found = side_by_side(self._with_all_epochs, found, threads=THREADS, name="tiered-foreign")
        for _ in range(2):  # epochs corrected in the first pass may hide other offsets
            unread = hidden(found, choose(found, known_epochs))
            if is_doubtful or unread or overlaps(found):
                found = self._verified(found, unread)
                known_epochs, is_doubtful = self._newest_checkpoint(found)
        return found, known_epochs

    def entry(self, facts: KnownSegment, next_offset: int) -> SegmentEntry:
        entry = entry_of_facts(facts, self.layout, next_offset=facts.next_offset, size_bytes=facts.size_bytes)
        if next_offset >= facts.next_offset:
            return entry
        parts = self.layout.parts(self.store, entry)
        body = ExternalObject(self.store, entry.data_key, parts)
        offsets = parts.offset if parts.offset is not None else built_indexes(body.read, entry.base_offset)[0]
        cut = position_of(body.read, offsets, entry.base_offset, next_offset)
        return entry_of_facts(facts, self.layout, next_offset=next_offset, size_bytes=cut)

    def _with_all_epochs(self, facts: KnownSegment) -> KnownSegment:
        if facts.has_all_epochs:
            return facts
        if facts.segment.index_bytes.get("epochs"):
            with suppress(Corrupt):  # then the batches decide
                own = LeaderEpochs(self._checkpoint_of(facts)).between(*facts.range)
                return replace(facts, epochs=own, has_all_epochs=True)
        epochs, _ = _epochs_of_batches(self._reader_of(facts.segment), facts)
        return replace(facts, epochs=epochs, has_all_epochs=True)

    def _reader_of(self, segment: ExternalSegment) -> Read:
        """A reader of the log's bytes. Sends no request for the indexes if the object is the log itself."""
        if segment.index_keys or (segment.codec == "none" and segment.key_id is None):
            size = segment.size_bytes
            return lambda at, length: self.store.get_range(segment.data_key, at, min(length, max(0, size - at)))
        following = segment.base_offset + 1
        pseudo = KnownSegment(segment=segment, next_offset=following, size_bytes=0, max_timestamp_ms=None, epochs=())
        entry = entry_of_facts(pseudo, self.layout, next_offset=following, size_bytes=segment.size_bytes)
        return ExternalObject(self.store, segment.data_key, self.layout.parts(self.store, entry)).read

    def _end(self, segment: ExternalSegment, read: Read) -> tuple[int, int, int | None] | None:
        entry = self._last(segment, "offset", offset_index.ENTRY_BYTES)
        latest = self._last(segment, "time", time_index.ENTRY_BYTES)
        if entry is not None and latest is not None:
            _, position = offset_index.ENTRY.unpack(entry)
            known = time_index.ENTRY.unpack(latest)[0]
            if 0 < position < segment.size_bytes and (found := _scanned(read, position)) is not None:
                next_offset, size_bytes, largest = found
                if next_offset > segment.base_offset:
                    return next_offset, size_bytes, max(known, -1 if largest is None else largest)
        return _scanned(read, 0)

    def _last(self, segment: ExternalSegment, section: str, entry_bytes: int) -> bytes | None:
        """The last entry of an index file; None without one, or if it ends in the zeros of an open index."""
        size = segment.index_bytes.get(section, 0)
        if size < entry_bytes or section not in segment.index_keys:
            return None
        try:
            start = (size // entry_bytes - 1) * entry_bytes
            entry = self.store.get_range(segment.index_keys[section], start, entry_bytes)
        except NotFound:
            return None
        return entry if any(entry) else None

    def _checkpoint_of(self, facts: KnownSegment) -> Pairs:
        """The leader-epoch checkpoint copied with a segment; empty without one. Raises Corrupt."""
        key = facts.segment.index_keys.get("epochs")
        if key is not None:
            return parse_lineage(self.store.get(key), key)
        entry = entry_of_facts(facts, self.layout, next_offset=facts.next_offset, size_bytes=facts.size_bytes)
        return parse_lineage(self.layout.parts(self.store, entry).epochs or b"", entry.data_key)

    def _newest_checkpoint(self, found: Sequence[KnownSegment]) -> tuple[Pairs, bool]:
        """(the newest valid leader-epoch checkpoint, else empty; whether a newer one is damaged or contradicted)."""
        with_epochs = [each for each in found if each.epochs and each.segment.index_bytes.get("epochs")]
        is_doubtful = False
        for each in sorted(with_epochs, key=lambda each: (each.epochs[-1][0], each.next_offset), reverse=True):
            try:
                entries = self._checkpoint_of(each)
            except Corrupt as error:
                self.note(replace(damaged(error, each.segment.data_key), severity=Severity.WARNING, offsets=each.range))
                is_doubtful = True
                continue
            if entries and not _agrees(LeaderEpochs(entries), each):
                if each.is_first_epoch_read or each.is_verified:
                    self.note(finding("external.checkpoint", each.segment.data_key, offsets=each.range))
                is_doubtful = True
                continue
            return entries, is_doubtful
        return (), is_doubtful

    def _verified(self, found: Sequence[KnownSegment], unread: Sequence[tuple[int, int]]) -> list[KnownSegment]:
        """The readable segments, doubtful ones with the epochs of all batches; `unread`: hidden offsets."""
        bases = sorted({each.base_offset for each in found})

        def is_doubtful(facts: KnownSegment) -> bool:
            is_unread = any(base < facts.next_offset and facts.base_offset < end for base, end in unread)
            return is_unread or any(_overlap(facts, each) for each in found)

        def checked(facts: KnownSegment) -> KnownSegment | None:
            return self._checked(facts, is_doubtful(facts), bases)

        answers = side_by_side(checked, found, threads=THREADS, name="tiered-epochs")
        return [facts for facts in answers if facts is not None]

    def _checked(self, facts: KnownSegment, is_doubtful: bool, bases: Sequence[int]) -> KnownSegment | None:
        if facts.is_verified or (facts.is_first_epoch_read and not is_doubtful):
            return facts
        try:
            read = self._reader_of(facts.segment)
            header = read_header(read(0, HEADER_BYTES))
            if header is None:
                raise Corrupt("cannot read a segment, it does not begin with a batch", object=facts.segment.data_key)
            is_plain = len(facts.epochs) == 1 and header.leader_epoch in (-1, facts.epochs[0][0])
            if is_plain and not is_doubtful:
                return replace(facts, is_first_epoch_read=True, has_all_epochs=True)
            epochs, end = _epochs_of_batches(read, facts)
        except Corrupt as error:
            self.note(damaged(error, facts.segment.data_key, offsets=facts.range))
            return None
        claimed = facts.epochs
        if epochs and claimed and epochs != claimed:
            code, ours, theirs = "external.leader-epochs", _text(epochs), _text(claimed)
            self.note(finding(code, facts.segment.data_key, offsets=facts.range, claimed=theirs, batches=ours))
        # The batches of a cleaned segment may end below its end, which is trusted up to the next segment's base.
        limit = min((base for base in bases if base >= end), default=facts.next_offset)
        next_offset = min(facts.next_offset, max(end, limit))
        return replace(facts, epochs=epochs or claimed, next_offset=next_offset, has_all_epochs=True, is_verified=True)


def built_indexes(read: Read, base_offset: int) -> tuple[bytes, bytes]:
    """The offset and time index of a log, as a broker's recovery would make them. Reads all of it."""
    entries = IndexRows()
    for _, _, table in slices_of(read):
        entries.add(table)
    made = entries.indexes(base_offset, INTERVAL_BYTES)
    return bytes(made.offset), bytes(made.time)


def position_of(read: Read, offsets: bytes, base_offset: int, offset: int) -> int:
    """The position of the first batch at or above `offset`. Raises Corrupt if a batch has `offset` inside."""
    start = offset_index.lookup(offsets, base_offset, offset)[1]
    for at, _, table in slices_of(lambda position, length: read(start + position, length)):
        for batch in range(len(table)):
            if int(table.base_offsets[batch]) >= offset:
                return start + at + int(table.positions[batch])
            if int(table.last_offsets[batch]) >= offset:
                facts = {"offset": offset, "base_offset": base_offset}
                wrong = "cannot cut a segment at the start of another leader epoch, the offset is inside a batch"
                raise Corrupt(wrong, **facts)
    raise Corrupt("cannot cut a segment, it ends before the offset", offset=offset, base_offset=base_offset)


def entry_of_facts(facts: KnownSegment, layout: ExternalFormat, *, next_offset: int, size_bytes: int) -> SegmentEntry:
    """The entry of a segment up to `next_offset`. A transaction index at -1 must be rebuilt; the record count is 0."""
    segment = facts.segment
    indexes = {section: IndexRange(start=0, length=size) for section, size in segment.index_bytes.items()}
    if not segment.has_transactions or segment.snapshot_offset not in (None, facts.next_offset):
        indexes["txn"] = IndexRange(start=-1, length=1)
        indexes.pop("producers", None)
    return SegmentEntry(
        ulid=segment.data_key,
        base_offset=segment.base_offset,
        next_offset=next_offset,
        size_bytes=size_bytes,
        stored_bytes=segment.stored_bytes,
        record_count=0,
        max_timestamp_ms=facts.max_timestamp_ms,
        min_timestamp_ms=None,
        epochs=tuple((epoch, start) for epoch, start in facts.epochs if start < next_offset),
        data_crc32c=0,
        data_key=segment.data_key,
        indexes_key=f"{segment.data_key} of {layout.layout.value}",
        indexes_bytes=sum(segment.index_bytes.values()),
        indexes=indexes,
        codec=segment.codec,
        key_id=segment.key_id,
    )


def has_known_transactions(entry: SegmentEntry) -> bool:
    """Whether the bucket has this entry's transactions; if not, all batches up to its end must be read."""
    return "txn" not in entry.indexes or entry.indexes["txn"].start >= 0


def _scanned(read: Read, start: int) -> tuple[int, int, int | None] | None:
    reached, size, latest = None, start, -1
    for at, _, table in slices_of(lambda position, length: read(start + position, length)):
        reached = int(table.last_offsets[-1]) + 1
        size = start + at + table.valid_bytes
        latest = max(latest, int(table.max_timestamps.max()))
    return None if reached is None else (reached, size, latest if latest >= 0 else None)


def parse_lineage(checkpoint: bytes, key: str) -> Pairs:
    """The pairs (epoch, start) of a leader-epoch checkpoint. Raises Corrupt."""
    try:
        entries = tuple((int(epoch), int(start)) for _, (epoch, start) in parse_entries(checkpoint, key, 2))
    except ValueError as error:
        raise Corrupt("cannot read a leader epoch checkpoint, a line is not an entry", path=key) from error
    if any(not 0 <= epoch <= EPOCH_MAX or start < 0 for epoch, start in entries):
        raise Corrupt("cannot read a leader epoch checkpoint, an epoch or an offset is out of range", path=key)
    if any(one[0] >= two[0] or one[1] >= two[1] for one, two in pairwise(entries)):
        raise Corrupt("cannot read a leader epoch checkpoint, its entries are out of order", path=key)
    return entries


def hidden(copies: Sequence[KnownSegment], selected: Sequence[tuple[KnownSegment, int]]) -> list[tuple[int, int]]:
    read = sorted((copy.base_offset, end) for copy, end in selected)
    found: list[tuple[int, int]] = []
    reached = 0
    for base, end in sorted((copy.base_offset, copy.next_offset) for copy in copies):
        for at, to in _without(max(base, reached), end, read):
            if found and found[-1][1] == at:
                found[-1] = found[-1][0], to
            else:
                found.append((at, to))
        reached = max(reached, end)
    return found


def overlaps(found: Sequence[KnownSegment]) -> bool:
    """Whether different segments hold the same offset; copies of one segment do not count."""
    return any(one[1] > two[0] for one, two in pairwise(sorted({(*each.range, each.epochs) for each in found})))


def _epochs_of_batches(read: Read, facts: KnownSegment) -> tuple[Pairs, int]:
    """(epochs of all batches, the first from the segment's base; the offset after the last batch)."""
    epochs, end = LeaderEpochs(), facts.base_offset
    for _, _, table in slices_of(read):
        epochs, end = epochs.with_batches(table), int(table.last_offsets[-1]) + 1
    entries = epochs.entries
    return ((entries[0][0], facts.base_offset), *entries[1:]) if entries else (), end


def _agrees(checkpoint: LeaderEpochs, facts: KnownSegment) -> bool:
    """Whether a checkpoint has the segment's epochs, or begins inside the segment (after DeleteRecords)."""
    if checkpoint.entries[0][1] > facts.base_offset:
        return True
    return [epoch for epoch, _ in checkpoint.between(*facts.range)] == [epoch for epoch, _ in facts.epochs]


def _overlap(one: KnownSegment, two: KnownSegment) -> bool:
    is_copy = one.range == two.range and one.epochs == two.epochs
    return not is_copy and max(one.base_offset, two.base_offset) < min(one.next_offset, two.next_offset)


def _without(start: int, end: int, read: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    remaining = []
    for base, following in read:
        if following <= start or base >= end:
            continue
        if base > start:
            remaining.append((start, base))
        start = max(start, following)
    return [*remaining, (start, end)] if start < end else remaining


def _text(epochs: Sequence[tuple[int, int]]) -> str:
    return ",".join(f"{epoch}@{start}" for epoch, start in epochs[:5])


def _entries_below(offsets: bytes, segment: SegmentEntry) -> int:
    return offset_index.sound_entries(offsets, segment.size_bytes) * offset_index.ENTRY_BYTES
