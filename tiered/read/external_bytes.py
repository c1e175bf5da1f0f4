"""What only the bytes of a foreign segment tell: where it ends, how late it is, and the indexes that nobody kept.

The end of a segment with an offset index costs two small reads: the index's last entry, and the log from there on.
Without one the log is read from its beginning, once, in pieces; then both of its indexes are known as well. Batches'
headers are enough for that, their CRCs are looked at when records are read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index
from local.index.index_building import IndexRows
from local.index.index_files import slices_of
from local.log.checkpoints import parse_entries
from local.log.leader_epochs import LeaderEpochs
from remote.external.aiven_manifest import EPOCH_MAX
from remote.external.external_layout import ForeignFormat, ForeignSegment
from remote.external.external_object import ForeignObject
from remote.segment_entry import IndexRange, RemoteSegment
from remote.store import ObjectStore

INTERVAL_BYTES = 4096  # between two entries of an index made here; Kafka's default
Read = Callable[[int, int], bytes]  # position, length; fewer bytes at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A segment with nothing left to ask. `size_bytes` is less than the object has where its end was torn.

    `epochs` are those of its first batch alone where not `has_all_epochs`. `is_begun`: its first batch was asked for
    its epoch; `is_verified`: all of them were.
    """

    segment: ForeignSegment
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int | None
    epochs: tuple[tuple[int, int], ...]
    has_all_epochs: bool = True
    is_begun: bool = False
    is_verified: bool = False


def tell(store: ObjectStore, layout: ForeignFormat, segment: ForeignSegment) -> Told | None:
    """Asks the bytes for what the layout left open; None for a torn log without one whole batch.

    Raises Corrupt for a log that begins with no batch, or whose side files contradict it.
    """
    if segment.next_offset is not None and segment.epochs is not None:
        return Told(
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
        raise Corrupt("reading a segment, it does not begin with a batch", object=segment.data_key)
    found_offset, size_bytes, latest_ms = end
    next_offset = segment.next_offset or found_offset
    beside = None if segment.epochs else _epochs_beside(store, segment, next_offset)
    return Told(
        segment=segment,
        next_offset=next_offset,
        size_bytes=size_bytes if segment.may_be_torn else segment.size_bytes,
        max_timestamp_ms=latest_ms if segment.max_timestamp_ms is None else segment.max_timestamp_ms,
        epochs=segment.epochs or (_first_epoch(segment, read) if beside is None else beside),
        has_all_epochs=segment.epochs is not None or beside is not None,
    )


def with_all_epochs(store: ObjectStore, layout: ForeignFormat, told: Told) -> Told:
    """With the epochs of all its batches, whose headers are read for it where no checkpoint was copied with them."""
    if told.has_all_epochs:
        return told
    if told.segment.index_bytes.get("epochs"):
        with suppress(Corrupt):  # then the batches say it
            beside = LeaderEpochs(checkpoint_of(store, layout, told))
            own = beside.between(told.segment.base_offset, told.next_offset)
            return replace(told, epochs=own, has_all_epochs=True)
    epochs = LeaderEpochs()
    for _, _, table in slices_of(reader_of(store, layout, told.segment)):
        changes = np.flatnonzero(np.diff(table.leader_epochs, prepend=-2))
        for row in changes.tolist():
            if (epoch := int(table.leader_epochs[row])) >= 0:
                epochs = epochs.assign(epoch, int(table.base_offsets[row]))
    first = ((epochs.entries[0][0], told.segment.base_offset), *epochs.entries[1:]) if epochs.entries else ()
    return replace(told, epochs=first, has_all_epochs=True)


def built_indexes(read: Read, base_offset: int) -> tuple[bytes, bytes]:
    """The offset and the time index of a log, as a broker's recovery would make them. Reads all of it."""
    rows = IndexRows()
    for _, _, table in slices_of(read):
        rows.add(table)
    made = rows.indexes(base_offset, INTERVAL_BYTES)
    return bytes(made.offset), bytes(made.time)


def position_of(read: Read, offsets: bytes, base_offset: int, offset: int) -> int:
    """Where the first batch at or above `offset` begins. Raises Corrupt when a batch has `offset` inside it."""
    start = offset_index.lookup(offsets, base_offset, offset)[1]
    for at, _, table in slices_of(lambda position, length: read(start + position, length)):
        for row in range(len(table)):
            if int(table.base_offsets[row]) >= offset:
                return start + at + int(table.positions[row])
            if int(table.last_offsets[row]) >= offset:
                facts = {"offset": offset, "base_offset": base_offset}
                raise Corrupt("cutting a segment where another leader's begins, a batch has that inside it", **facts)
    raise Corrupt("cutting a segment, it ends before", offset=offset, base_offset=base_offset)


def row_of(told: Told, layout: ForeignFormat, *, next_offset: int, size_bytes: int) -> RemoteSegment:
    """The row of a segment that is read up to `next_offset`, its first `size_bytes` bytes.

    An index that is there has its size in `indexes`. A transaction index that starts at -1 has to be made from the
    batches. How many records there are nobody has counted: 0.
    """
    segment = told.segment
    indexes = {section: IndexRange(start=0, length=size) for section, size in segment.index_bytes.items()}
    knows = segment.snapshot_offset in (None, told.next_offset)
    if not segment.tells_transactions or not knows:
        indexes["txn"] = IndexRange(start=-1, length=1)
        indexes.pop("producers", None)
    return RemoteSegment(
        ulid=segment.data_key,
        base_offset=segment.base_offset,
        next_offset=next_offset,
        size_bytes=size_bytes,
        stored_bytes=segment.stored_bytes,
        record_count=0,
        max_timestamp_ms=told.max_timestamp_ms,
        min_timestamp_ms=None,
        epochs=tuple((epoch, start) for epoch, start in told.epochs if start < next_offset),
        data_crc32c=0,
        data_key=segment.data_key,
        indexes_key=f"{segment.data_key} of {layout.layout.value}",
        indexes_bytes=sum(segment.index_bytes.values()),
        indexes=indexes,
        codec=segment.codec,
        key_id=segment.key_id,
    )


def is_told(row: RemoteSegment) -> bool:
    """Whether the bucket tells of this row's transactions; otherwise all batches up to its end have to."""
    return "txn" not in row.indexes or row.indexes["txn"].start >= 0


def reader_of(store: ObjectStore, layout: ForeignFormat, segment: ForeignSegment) -> Read:
    """Without asking for the indexes where the object is the log itself."""
    if segment.index_keys or (segment.codec == "none" and segment.key_id is None):
        size = segment.size_bytes
        return lambda at, length: store.get_range(segment.data_key, at, min(length, max(0, size - at)))
    pseudo = Told(segment=segment, next_offset=segment.base_offset + 1, size_bytes=0, max_timestamp_ms=None, epochs=())
    row = row_of(pseudo, layout, next_offset=pseudo.next_offset, size_bytes=segment.size_bytes)
    return ForeignObject(store, segment.data_key, layout.parts(store, row)).read


def _end(store: ObjectStore, segment: ForeignSegment, read: Read) -> tuple[int, int, int | None] | None:
    """(next offset, bytes of whole batches, largest timestamp) from where the indexes lead, or from the beginning."""
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


def _last(store: ObjectStore, segment: ForeignSegment, section: str, entry_bytes: int) -> bytes | None:
    """The last entry of an index file; None where there is none, or it ends in the zeros of an open one."""
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


def _epochs_beside(store: ObjectStore, segment: ForeignSegment, end: int) -> tuple[tuple[int, int], ...] | None:
    """From the checkpoint beside the segment; None where there is none, or it makes no sense."""
    if (key := segment.index_keys.get("epochs")) is not None:
        with suppress(Corrupt):  # then the first batch says it; the checkpoint is a finding
            return epochs_between(store.get(key), key, segment.base_offset, end)
    return None


def _first_epoch(segment: ForeignSegment, read: Read) -> tuple[tuple[int, int], ...]:
    """From the first batch; none where it does not say."""
    header = read_header(read(0, HEADER_BYTES))
    return ((header.leader_epoch, segment.base_offset),) if header is not None and header.leader_epoch >= 0 else ()


def checkpoint_of(store: ObjectStore, layout: ForeignFormat, told: Told) -> tuple[tuple[int, int], ...]:
    """The leader-epoch checkpoint that was copied with a segment; empty without one. Raises Corrupt."""
    key = told.segment.index_keys.get("epochs")
    if key is not None:
        return parse_lineage(store.get(key), key)
    row = row_of(told, layout, next_offset=told.next_offset, size_bytes=told.size_bytes)
    return parse_lineage(layout.parts(store, row).epochs or b"", row.data_key)


def epochs_between(checkpoint: bytes, key: str, base: int, end: int) -> tuple[tuple[int, int], ...]:
    """The epochs of ``[base, end)`` by a leader-epoch checkpoint. Raises Corrupt."""
    return LeaderEpochs(parse_lineage(checkpoint, key)).between(base, end)


def parse_lineage(checkpoint: bytes, key: str) -> tuple[tuple[int, int], ...]:
    """The pairs (epoch, start) of a leader-epoch checkpoint. Raises Corrupt."""
    try:
        entries = tuple((int(epoch), int(start)) for _, (epoch, start) in parse_entries(checkpoint, key, 2))
    except ValueError as error:
        raise Corrupt("reading a leader-epoch checkpoint, not an entry", path=key) from error
    if any(not 0 <= epoch <= EPOCH_MAX or start < 0 for epoch, start in entries):
        raise Corrupt("reading a leader-epoch checkpoint, an epoch or an offset that none can be", path=key)
    if any(one[0] >= two[0] or one[1] >= two[1] for one, two in pairwise(entries)):
        raise Corrupt("reading a leader-epoch checkpoint, not in order", path=key)
    return entries
