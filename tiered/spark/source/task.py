"""One Spark task: fetch the pieces of its split, decode them, return Arrow batches.

Data is fetched in windows of WINDOW_BYTES. A thread fetches the next window while one is decoded. All bytes pass the
chunk checksums of `remote.fetch.range_reader` and the batch CRCs. The begin and end of a piece are compared with the
batches there (`of_piece`). The store is opened here, in the worker process that uses it: a client
created before a fork hangs or fails after it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from local import kernels
from local.errors import Corrupt, NotFound
from local.format.columns import Columns
from local.index import offset_index
from local.names import TopicPartition
from local.records.batch import HEADER_BYTES, BatchHeader, read_header
from local.records.isolation import without_aborted
from remote.external.external_layout import OURS, LayoutOptions
from remote.external.layout_detection import external_format
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.store.open_store import open_store
from tiered.config.key_rings import keyed_store, load_key_ring
from tiered.read.external_partition import ExternalPartition
from tiered.read.view_entries import decoded, leads_astray, report_wrong_index, row_runs
from tiered.spark.source.options import ReadOptions
from tiered.spark.source.pinning import PinKeeper
from tiered.spark.source.rows import record_batches
from tiered.spark.source.splits import OFFSET_MAX, Piece, Split, is_partial, trimmed

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES = 8 << 20
STEP_BYTES = 16 << 20  # of inflated batches at once: some of its columns, their copy in Arrow, and no earlier step
_CACHE_BYTES = 4 * WINDOW_BYTES  # the current window, the next one, and room for indexes
_log = logging.getLogger(__name__)
BEYOND_BYTES = 256 << 10  # read at once behind the position where a piece ends by the index


def read_split(split: Split, options: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of the columns `names`.

    Raises NotFound if a segment has left the bucket since the plan (not without `fail_on_data_loss`, unless a compacted
    view is read), Corrupt for damaged bytes.
    """
    store = keyed_store(open_store(options.url, options.store_options), options.key_ring)
    try:
        for columns in split_columns(
            store,
            split,
            load_key_ring(options.key_ring, os.environ),
            pin_ms=options.pin_ms,
            # The log below a view has records that the view removed: older records of a key, and aborted ones.
            fail_on_data_loss=options.fail_on_data_loss or options.view is not None,
            layout=options.layout,
        ):
            yield from record_batches(columns, names, split.topic, split.partition)
            del columns
    finally:
        store.close()


def split_columns(
    store: ObjectStore,
    split: Split,
    keys: KeyRing = NO_KEYS,
    *,
    pin_ms: int | None = None,
    fail_on_data_loss: bool = True,
    layout: LayoutOptions = OURS,
) -> Iterator[Columns]:
    """The split's records in offset order, without records outside its offsets or of aborted transactions.

    `pin_ms` is the life of its pin and of those in `others` after a renewal; None does not renew them. Raises as
    `read_split`. Without `fail_on_data_loss`, the newest manifest's records replace a deleted segment.
    """
    remote = _remote(store, split, keys, layout)
    with ThreadPoolExecutor(1, "tiered-ahead") as threads:
        for prefix, pin in split.others:
            threads.submit(PinKeeper(store, prefix, pin, pin_ms).keep)
        fetch = _Fetch(remote, threads, PinKeeper(store, split.prefix, split.pin, pin_ms))
        for piece, following in zip(split.pieces, [*split.pieces[1:], None], strict=True):
            reached = 0
            try:
                likely_next = _tightened_if_there(remote, split, following)
                for columns in _piece_columns(fetch, split, _tightened(remote, split, piece), likely_next):
                    reached = columns.next_offset
                    yield _wanted(of_piece(columns, piece), split)
                    del columns  # before the next step is inflated
            except NotFound as error:
                if fail_on_data_loss:
                    raise _gone(split, error) from error
                for columns in fallback_reads(store, remote, split, piece, reached):
                    yield _wanted(columns, split)


def _remote(store: ObjectStore, split: Split, keys: KeyRing, layout: LayoutOptions) -> RemotePartition:
    """The partition in the layout that the plan of the split detected."""
    cache = ChunkCache(_CACHE_BYTES)
    found = external_format(store, replace(layout, layout=split.layout)) if split.layout != OURS.layout else None
    if found is None:
        return RemotePartition(store, split.prefix, cache, read_ahead_chunks=0, keys=keys)
    return ExternalPartition(store, found, cache)


def _wanted(columns: Columns, split: Split) -> Columns:
    committed = without_aborted(columns, split.aborted)
    inside = (committed.offsets >= split.start_offset) & (committed.offsets < split.next_offset)
    return committed if inside.all() else committed.select(inside)


def _gone(split: Split, error: NotFound) -> NotFound:
    where = {"topic": split.topic, "partition": split.partition, "head": split.head_sequence}
    return NotFound(
        ("cannot read a segment, it was removed from the bucket after the read was planned; call load() again"),
        **where,
        **error.facts,
    )


class _Fetch:
    """Reads windows, and fetches the likely next one into the cache.

    An error there reappears in the real read.
    """

    def __init__(self, remote: RemotePartition, threads: ThreadPoolExecutor, pin: PinKeeper) -> None:
        self._remote = remote
        self._pin = pin
        self._threads = threads
        self._ahead: Future[memoryview] | None = None

    def window(self, piece: Piece, position: int, length: int) -> memoryview:
        self._pin.keep()
        return self._remote.read(piece.segment, position, length)

    def ahead(self, piece: Piece, position: int) -> None:
        if self._ahead is None or self._ahead.done():
            length = min(WINDOW_BYTES, piece.end_position - position)
            self._ahead = self._threads.submit(self._remote.read, piece.segment, position, length)


def _tightened(remote: RemotePartition, split: Split, piece: Piece) -> Piece:
    """The piece without the batches that are outside the split's offsets by its segment's index."""
    segment = piece.segment
    if not is_partial(segment, split.start_offset, split.next_offset):
        return piece
    entries = offset_index.entries(remote.indexes(segment).offset, segment.base_offset)
    tight = trimmed(entries, segment, split.start_offset, split.next_offset)
    position = max(piece.position, tight.position)
    end_position = min(piece.end_position, tight.end_position)
    if position >= end_position:
        return piece  # a wrong index: the piece was cut by another one
    return replace(piece, position=position, end_position=end_position)


def _tightened_if_there(remote: RemotePartition, split: Split, piece: Piece | None) -> Piece | None:
    """The piece for reading ahead; None if its segment is missing, which the real read reports."""
    with suppress(NotFound):
        return _tightened(remote, split, piece) if piece is not None else None
    return None


def _piece_columns(fetch: _Fetch, split: Split, piece: Piece, following: Piece | None) -> Iterator[Columns]:
    position, end, want = piece.position, piece.end_position, WINDOW_BYTES
    begun, size_bytes = position, piece.segment.size_bytes
    while position < end:
        data = fetch.window(piece, position, min(want, end - position))
        if position == begun > 0 and starts_astray(piece, split, data):
            position = begun = 0
            continue
        reached = position + len(data)
        if reached < piece.end_position:
            fetch.ahead(piece, reached)
        elif following is not None:
            fetch.ahead(following, following.position)
        whole = 0
        for columns in _decoded(data, piece, position):
            whole = columns.table.valid_bytes  # of the whole window, the same in every step
            yield columns
            del columns
        if whole == 0 and reached >= size_bytes:
            raise Corrupt("cannot read a segment, it ends inside a batch", object=piece.segment.data_key, at=position)
        # Doubled for a batch larger than the window.
        position, want = position + whole, WINDOW_BYTES if whole else want * 2
        if reached >= end and end < size_bytes:
            end = end_of_piece(piece, split, fetch.window(piece, position, HEADER_BYTES), position, end)


def _decoded(data: memoryview, piece: Piece, position: int) -> Iterator[Columns]:
    """The batches in steps of bounded memory, at any compression ratio."""
    try:
        yield from kernels.decode_in_steps(data, step_bytes=STEP_BYTES)
    except Corrupt as error:
        facts = {**error.facts, "object": piece.segment.data_key}
        if isinstance(at := facts.get("at"), int):
            facts["at"] = position + at
        raise Corrupt(error.attempt, **facts) from error


# Read the remaining records of a piece with a deleted segment, for failOnDataLoss=false.
#
# A pinned read never needs this. Without a pin, or after its expiry, a segment may leave the bucket during a job:
#
# - Retention removes it, and its offsets are lost.
# - Compaction, merging or encoding replaces it. Its offsets remain, some of its records perhaps not.
#
# The piece then continues with the newest manifest's entries for its offsets. Several tasks may share one segment. Each
# task takes the same batches as before, selected by their last offsets, which survive a rewriting. No record is
# read twice, and none is missed between two tasks.


def fallback_reads(
    store: ObjectStore, remote: RemotePartition, split: Split, piece: Piece, from_offset: int
) -> Iterator[Columns]:
    """The piece's records from `from_offset` on that the newest manifest still has, in offset order.

    Raises Corrupt if that manifest names the missing object: this is damage, not data loss. Raises NotFound if the
    replacement is missing too.
    """
    segment, name = piece.segment, TopicPartition(split.topic, split.partition)
    start, end = max(segment.base_offset, from_offset), segment.next_offset
    rows = _rows(store, split, start, end)
    if any(row.ulid == segment.ulid for row in rows):
        raise Corrupt("cannot read a segment, its object is missing", partition=name, object=segment.data_key)
    has = sum(min(row.next_offset, end) - max(row.base_offset, start) for row in rows)
    _log.warning(
        "an object of a segment does not exist: partition=%s object=%s offsets_left=%d", name, segment.data_key, has
    )
    for row in rows:
        offset = max(start, row.base_offset)
        for data in row_runs(remote, row, offset, remote.position_of_offset(row, offset)):
            for columns in decoded(data, name):
                yield of_piece(columns.select((columns.offsets >= start) & (columns.offsets < end)), piece)


def _rows(store: ObjectStore, split: Split, start: int, end: int) -> list[SegmentEntry]:
    log = MetadataLog(store, split.prefix)
    manifest = log.load()
    if manifest is None or manifest.deleted_ms is not None or start >= end:
        return []
    return log.ask(manifest, lambda index: list(index.entries(start, end)))


# The boundaries of a piece, compared with the batches there: an offset index is only a hint.
#
# An index bundle has a checksum, but its index may already have been wrong when it was copied. The offsets of a piece
# therefore decide which batches belong to it. The bytes at both positions of the piece are compared with these offsets:
#
# | the bytes there | the task |
# |---|---|
# | at the first position: a batch that begins at or below the piece's first offset | reads from there |
# | anything else | reads from the segment's start, and skips the batches of other pieces |
# | at the last position: a batch that belongs to another piece or follows the split | stops |
# | anything else | reads on until such a batch, or the segment's end |
#
# Kafka's entries may name a batch some way behind their position. The last row of the table reads up to that batch.


def of_piece(columns: Columns, piece: Piece) -> Columns:
    """The records of the piece's own batches."""
    if piece.from_last <= 0 and piece.upto_last == OFFSET_MAX:
        return columns
    last_offsets = columns.table.last_offsets
    own = np.logical_and(last_offsets >= piece.from_last, last_offsets < piece.upto_last)
    return columns if own.all() else columns.select(own[columns.batch_ordinals])


def starts_astray(piece: Piece, split: Split, data: memoryview) -> bool:
    """Whether batches of the piece may precede its first position, where `data` begins; reports it if so."""
    return leads_astray(piece.segment, data, max(piece.from_last, split.start_offset), piece.position)


def end_of_piece(piece: Piece, split: Split, data: memoryview, position: int, end_position: int) -> int:
    """The position up to which to read a piece further; `position` if it is complete.

    The piece was read up to the batch at `position`, where `data` begins. `position` is below `end_position` if
    `end_position` is inside a batch.
    """
    header = _header(data)
    if header is not None and (header.last_offset >= piece.upto_last or header.base_offset >= split.next_offset):
        return position
    if position < end_position or piece.upto_last == OFFSET_MAX:
        report_wrong_index(piece.segment, min(piece.upto_last, split.next_offset), end_position)
    size_bytes = BEYOND_BYTES if header is None else max(BEYOND_BYTES, header.size_bytes)
    return min(position + size_bytes, piece.segment.size_bytes)


def _header(data: memoryview) -> BatchHeader | None:
    """The header of a batch; None for damage too, which the reading of the batch reports in detail."""
    with suppress(Corrupt):
        return read_header(data)
    return None
