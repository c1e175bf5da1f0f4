"""Facts of an external segment from its bytes: its end, times, missing indexes, leader epochs.

The end of a segment costs two small reads, or without an index one read of the whole log. Leader epochs decide which of
several copies is read; the batches are authoritative over other software's manifests and checkpoints. Their headers are
read if the epochs would hide offsets that a segment holds, if different segments hold the same offsets, or if a
checkpoint contradicts its segment. A contradiction is a finding. An unreadable segment is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index
from local.index.index_files import IndexRows, slices_of
from local.log.checkpoints import parse_entries
from local.log.leader_epochs import LeaderEpochs
from local.verify.findings import Finding, Severity, damaged, finding
from remote.external.aiven_layout import EPOCH_MAX
from remote.external.external_layout import ExternalFormat, ExternalObject, ExternalSegment, SegmentFacts
from remote.segment_entry import IndexRange, SegmentEntry
from remote.store import ObjectStore
from tiered.stores.parallel import side_by_side

INTERVAL_BYTES = 4096  # between two entries of an index made here; Kafka's default
Read = Callable[[int, int], bytes]  # position, length; fewer bytes at the end
THREADS = 16
Note = Callable[[Finding], None]


def read_segment_facts(store: ObjectStore, layout: ExternalFormat, segment: ExternalSegment) -> SegmentFacts | None:
    """The facts that the layout left open, from the bytes; None without a whole batch. Raises Corrupt."""
    if segment.next_offset is not None and segment.epochs is not None:
        return SegmentFacts(
            segment=segment,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            max_timestamp_ms=segment.max_timestamp_ms,
            epochs=segment.epochs,
        )
    read = reader_of(store, layout, segment)
    end = _end(store, segment, read)
    if end is None:
        if segment.may_be_torn:
            return None
        raise Corrupt("cannot read a segment, it does not begin with a batch", object=segment.data_key)
    found_offset, size_bytes, latest_ms = end
    next_offset = segment.next_offset or found_offset
    checkpoint_epochs = None
    if not segment.epochs and (key := segment.index_keys.get("epochs")) is not None:
        with suppress(Corrupt):  # then the first batch decides; the checkpoint is a finding
            checkpoint = LeaderEpochs(parse_lineage(store.get(key), key))
            checkpoint_epochs = checkpoint.between(segment.base_offset, next_offset)
    header = read_header(read(0, HEADER_BYTES)) if not segment.epochs and checkpoint_epochs is None else None
    first_epoch = () if header is None or header.leader_epoch < 0 else ((header.leader_epoch, segment.base_offset),)
    return SegmentFacts(
        segment=segment,
        next_offset=next_offset,
        size_bytes=size_bytes if segment.may_be_torn else segment.size_bytes,
        max_timestamp_ms=latest_ms if segment.max_timestamp_ms is None else segment.max_timestamp_ms,
        epochs=segment.epochs or (first_epoch if checkpoint_epochs is None else checkpoint_epochs),
        has_all_epochs=segment.epochs is not None or checkpoint_epochs is not None,
    )


def with_all_epochs(store: ObjectStore, layout: ExternalFormat, facts: SegmentFacts) -> SegmentFacts:
    if facts.has_all_epochs:
        return facts
    if facts.segment.index_bytes.get("epochs"):
        with suppress(Corrupt):  # then the batches decide
            checkpoint_epochs = LeaderEpochs(checkpoint_of(store, layout, facts))
            own = checkpoint_epochs.between(facts.segment.base_offset, facts.next_offset)
            return replace(facts, epochs=own, has_all_epochs=True)
    epochs, _ = _epochs_of_batches(reader_of(store, layout, facts.segment), facts)
    return replace(facts, epochs=epochs, has_all_epochs=True)


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


def entry_of_facts(facts: SegmentFacts, layout: ExternalFormat, *, next_offset: int, size_bytes: int) -> SegmentEntry:
    """The entry of a segment up to `next_offset`. A transaction index at -1 must be rebuilt; the record count is 0."""
    segment = facts.segment
    indexes = {section: IndexRange(start=0, length=size) for section, size in segment.index_bytes.items()}
    knows = segment.snapshot_offset in (None, facts.next_offset)
    if not segment.has_transactions or not knows:
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


def reader_of(store: ObjectStore, layout: ExternalFormat, segment: ExternalSegment) -> Read:
    """A reader of the log's bytes. Sends no request for the indexes if the object is the log itself."""
    if segment.index_keys or (segment.codec == "none" and segment.key_id is None):
        size = segment.size_bytes
        return lambda at, length: store.get_range(segment.data_key, at, min(length, max(0, size - at)))
    pseudo = SegmentFacts(
        segment=segment, next_offset=segment.base_offset + 1, size_bytes=0, max_timestamp_ms=None, epochs=()
    )
    entry = entry_of_facts(pseudo, layout, next_offset=pseudo.next_offset, size_bytes=segment.size_bytes)
    return ExternalObject(store, segment.data_key, layout.parts(store, entry)).read


def _end(store: ObjectStore, segment: ExternalSegment, read: Read) -> tuple[int, int, int | None] | None:
    entry = _last(store, segment, "offset", offset_index.ENTRY_BYTES)
    latest = _last(store, segment, "time", time_index.ENTRY_BYTES)
    if entry is not None and latest is not None:
        _, position = offset_index.ENTRY.unpack(entry)
        known = time_index.ENTRY.unpack(latest)[0]
        if 0 < position < segment.size_bytes and (found := _scanned(read, position)) is not None:
            next_offset, size_bytes, largest = found
            if next_offset > segment.base_offset:
                return next_offset, size_bytes, max(known, -1 if largest is None else largest)
    return _scanned(read, 0)


def _last(store: ObjectStore, segment: ExternalSegment, section: str, entry_bytes: int) -> bytes | None:
    """The last entry of an index file; None without one, or if it ends in the zeros of an open index."""
    size = segment.index_bytes.get(section, 0)
    if size < entry_bytes or section not in segment.index_keys:
        return None
    try:
        start = (size // entry_bytes - 1) * entry_bytes
        entry = store.get_range(segment.index_keys[section], start, entry_bytes)
    except NotFound:
        return None
    return entry if any(entry) else None


def _scanned(read: Read, start: int) -> tuple[int, int, int | None] | None:
    reached, size, latest = None, start, -1
    for at, _, table in slices_of(lambda position, length: read(start + position, length)):
        reached = int(table.last_offsets[-1]) + 1
        size = start + at + table.valid_bytes
        latest = max(latest, int(table.max_timestamps.max()))
    return None if reached is None else (reached, size, latest if latest >= 0 else None)


def checkpoint_of(store: ObjectStore, layout: ExternalFormat, facts: SegmentFacts) -> tuple[tuple[int, int], ...]:
    """The leader-epoch checkpoint copied with a segment; empty without one. Raises Corrupt."""
    key = facts.segment.index_keys.get("epochs")
    if key is not None:
        return parse_lineage(store.get(key), key)
    entry = entry_of_facts(facts, layout, next_offset=facts.next_offset, size_bytes=facts.size_bytes)
    return parse_lineage(layout.parts(store, entry).epochs or b"", entry.data_key)


def parse_lineage(checkpoint: bytes, key: str) -> tuple[tuple[int, int], ...]:
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


def newest_checkpoint(
    store: ObjectStore, layout: ExternalFormat, found: Sequence[SegmentFacts], note: Note
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """(the newest valid leader-epoch checkpoint, else empty; whether a newer one is damaged or contradicted)."""
    with_epochs = [each for each in found if each.epochs and each.segment.index_bytes.get("epochs")]
    is_doubtful = False
    for each in sorted(with_epochs, key=lambda each: (each.epochs[-1][0], each.next_offset), reverse=True):
        try:
            entries = checkpoint_of(store, layout, each)
        except Corrupt as error:
            note(replace(damaged(error, each.segment.data_key), severity=Severity.WARNING, offsets=_range(each)))
            is_doubtful = True
            continue
        if entries and not _agrees(LeaderEpochs(entries), each):
            if each.is_first_epoch_read or each.is_verified:
                note(finding("external.checkpoint", each.segment.data_key, offsets=_range(each)))
            is_doubtful = True
            continue
        return entries, is_doubtful
    return (), is_doubtful


def hidden(copies: Sequence[SegmentFacts], selected: Sequence[tuple[SegmentFacts, int]]) -> list[tuple[int, int]]:
    read = sorted((copy.segment.base_offset, end) for copy, end in selected)
    found: list[tuple[int, int]] = []
    reached = 0
    for base, end in sorted(map(_range, copies)):
        for at, to in _without(max(base, reached), end, read):
            if found and found[-1][1] == at:
                found[-1] = found[-1][0], to
            else:
                found.append((at, to))
        reached = max(reached, end)
    return found


def overlaps(found: Sequence[SegmentFacts]) -> bool:
    """Whether different segments hold the same offset; copies of one segment do not count."""
    ordered = sorted({(each.segment.base_offset, each.next_offset, each.epochs) for each in found})
    return any(one[1] > two[0] for one, two in pairwise(ordered))


def verified(
    store: ObjectStore,
    layout: ExternalFormat,
    found: Sequence[SegmentFacts],
    unread: Sequence[tuple[int, int]],
    note: Note,
) -> list[SegmentFacts]:
    """The readable segments, doubtful ones with the epochs of all batches; `unread`: offsets that would be hidden."""
    bases = sorted({each.segment.base_offset for each in found})

    def is_doubtful(facts: SegmentFacts) -> bool:
        is_unread = any(base < facts.next_offset and facts.segment.base_offset < end for base, end in unread)
        return is_unread or any(_overlap(facts, each) for each in found)

    def checked(facts: SegmentFacts) -> SegmentFacts | None:
        return _verified(store, layout, facts, is_doubtful(facts), bases, note)

    answers = side_by_side(checked, found, threads=THREADS, name="tiered-epochs")
    return [facts for facts in answers if facts is not None]


def _verified(
    store: ObjectStore, layout: ExternalFormat, facts: SegmentFacts, is_doubtful: bool, bases: Sequence[int], note: Note
) -> SegmentFacts | None:
    if facts.is_verified or (facts.is_first_epoch_read and not is_doubtful):
        return facts
    try:
        read = reader_of(store, layout, facts.segment)
        header = read_header(read(0, HEADER_BYTES))
        if header is None:
            raise Corrupt("cannot read a segment, it does not begin with a batch", object=facts.segment.data_key)
        is_plain = len(facts.epochs) == 1 and header.leader_epoch in (-1, facts.epochs[0][0])
        if is_plain and not is_doubtful:
            return replace(facts, is_first_epoch_read=True, has_all_epochs=True)
        epochs, end = _epochs_of_batches(read, facts)
    except Corrupt as error:
        note(damaged(error, facts.segment.data_key, offsets=_range(facts)))
        return None
    claimed = facts.epochs
    if epochs and claimed and epochs != claimed:
        place, offsets = facts.segment.data_key, _range(facts)
        note(finding("external.leader-epochs", place, offsets=offsets, claimed=_text(claimed), batches=_text(epochs)))
    # The batches of a cleaned segment may end below its end, which is trusted up to the next segment's base.
    limit = min((base for base in bases if base >= end), default=facts.next_offset)
    next_offset = min(facts.next_offset, max(end, limit))
    return replace(facts, epochs=epochs or claimed, next_offset=next_offset, has_all_epochs=True, is_verified=True)


def _epochs_of_batches(read: Read, facts: SegmentFacts) -> tuple[tuple[tuple[int, int], ...], int]:
    """(epochs of all batches, the first from the segment's base; the offset after the last batch)."""
    epochs, end = LeaderEpochs(), facts.segment.base_offset
    for _, _, table in slices_of(read):
        epochs, end = epochs.with_batches(table), int(table.last_offsets[-1]) + 1
    entries = epochs.entries
    return ((entries[0][0], facts.segment.base_offset), *entries[1:]) if entries else (), end


def _agrees(checkpoint: LeaderEpochs, facts: SegmentFacts) -> bool:
    """Whether a checkpoint has the segment's epochs, or begins inside the segment (after DeleteRecords)."""
    base, end = _range(facts)
    if checkpoint.entries[0][1] > base:
        return True
    return [epoch for epoch, _ in checkpoint.between(base, end)] == [epoch for epoch, _ in facts.epochs]


def _overlap(one: SegmentFacts, two: SegmentFacts) -> bool:
    is_copy = _range(one) == _range(two) and one.epochs == two.epochs
    (base, end), (other, other_end) = _range(one), _range(two)
    return not is_copy and max(base, other) < min(end, other_end)


def _range(facts: SegmentFacts) -> tuple[int, int]:
    return facts.segment.base_offset, facts.next_offset


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
