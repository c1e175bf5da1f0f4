"""One Spark task: settle its split (`settling`), fetch the pieces of its segments, decode them, return Arrow batches.

Data is fetched in windows of WINDOW_BYTES, the next one by a thread while one is decoded. All bytes pass the chunk
checksums of `remote.fetch.range_reader` and the batch CRCs. The batches have the row schema of Spark's Kafka source
(TYPES): headers are null for a record without them. Keys and values never become Python objects, headers do.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from local import kernels
from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.format.columns import Columns
from local.index import offset_index
from local.names import TopicPartition
from local.records.isolation import without_aborted
from remote.cache.chunk_cache import ChunkCache
from remote.external.external_formats import external_format
from remote.external.external_layout import OURS, LayoutOptions
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.read.external_partition import ExternalPartition
from tiered.read.reader import index_is_wrong, report_wrong_index, within
from tiered.spark.options import ReadOptions
from tiered.spark.source.planning import PinKeeper
from tiered.spark.source.settling import Settled, settled
from tiered.spark.source.splits import Split

WINDOW_BYTES = 8 << 20
STEP_BYTES = 16 << 20  # of inflated batches in one step; a step is freed before the next one is inflated
_CACHE_BYTES = 4 * WINDOW_BYTES  # the current window, the next one, and room for indexes
_log = logging.getLogger(__name__)
BEYOND_BYTES = 256 << 10  # read at once behind the position where a piece ends by the index
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}
# Spark's speed is flat from 5 000 to 50 000 rows a batch and falls outside (1 000: -20 %, 200 000: -10 %).
BATCH_ROWS = 20_000
BATCH_BYTES = 8 << 20
_LOG_APPEND_TIME = 1 << 3  # of a batch's attributes
_MS_MAX = (2**63 - 1) // 1000


def read_split(split: Split, options: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of the columns `names`.

    Raises Corrupt for damaged bytes. Raises NotFound if a segment left the bucket since the plan, and
    `fail_on_data_loss` is on or a compacted view is read.
    """
    # The log below a view has records that the view removed: older records of a key, and aborted ones.
    is_strict = options.fail_on_data_loss or options.view is not None
    keys, pin_ms, layout = options.bucket.keys(), options.pin_ms, options.layout
    with options.bucket.opened() as store:
        for columns in split_columns(store, split, keys, pin_ms=pin_ms, fail_on_data_loss=is_strict, layout=layout):
            yield from record_batches(columns, names, split.topic, split.partition)
            del columns


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
    remote, is_newest = _remote(store, split, keys, layout), False
    with ThreadPoolExecutor(1, "tiered-ahead") as threads:
        for prefix, pin in split.others:
            threads.submit(PinKeeper(store, prefix, pin, pin_ms).keep)
        fetch = _Fetch(remote, threads, PinKeeper(store, split.prefix, split.pin, pin_ms))
        while True:
            reached, lost = split.start_offset, None
            try:
                found = settled(store, split, remote, is_newest=is_newest)
                for entry, following in zip(found.entries, (*found.entries[1:], None), strict=False):
                    reached, lost = max(entry.base_offset, found.start_offset), entry
                    end = min(entry.next_offset, found.next_offset)
                    for columns in _piece_columns(fetch, found, entry, following):
                        first, reached = reached, max(reached, columns.next_offset)
                        yield within(without_aborted(columns, found.aborted), first, end)
                        del columns  # before the next step is inflated
                return
            except NotFound as error:
                if fail_on_data_loss or is_newest or (lost is None and split.shares > 1):
                    raise _gone(split, error) from error
                end = split.next_offset if lost is None else found.next_offset
                given = tuple(each for each in split.given[0] if lost is None or each.base_offset > lost.base_offset)
                split = replace(
                    split, start_offset=reached, next_offset=end, share=0, shares=1, given=(given, split.given[1])
                )
                is_newest = split.layout == OURS.layout
                _check_unnamed(store, split, lost)


def _gone(split: Split, error: NotFound) -> NotFound:
    where = {"topic": split.topic, "partition": split.partition, "head": split.head_sequence}
    attempt = "cannot read a segment, it was removed from the bucket after the read was planned"
    return NotFound(f"{attempt}; call load() again", **where, **error.facts)


def _remote(store: ObjectStore, split: Split, keys: KeyRing, layout: LayoutOptions) -> RemotePartition:
    cache = ChunkCache(_CACHE_BYTES)
    found = external_format(store, replace(layout, layout=split.layout)) if split.layout != OURS.layout else None
    if found is None:
        return RemotePartition(store, split.prefix, cache, keys=keys)
    return ExternalPartition(store, found, cache)


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches of one segment that may hold the offsets ``[start_offset, next_offset)``.

    By the offset index they are in the bytes ``[position, end_position)``. The offsets define the piece: a task
    compares both positions with the batches there, so a wrong index entry cannot change it.
    """

    segment: SegmentEntry
    start_offset: int
    next_offset: int
    position: int
    end_position: int


class _Fetch:
    """Reads windows and prefetches the likely next one; the read itself meets an error of a prefetch again."""

    def __init__(self, remote: RemotePartition, threads: ThreadPoolExecutor, pin: PinKeeper) -> None:
        self.remote, self._threads, self._pin = remote, threads, pin
        pin.keep()
        self._ahead: Future[memoryview] | None = None

    def window(self, piece: Piece, position: int, length: int) -> memoryview:
        self._pin.keep()
        return self.remote.read(piece.segment, position, length)

    def ahead(self, piece: Piece, position: int) -> None:
        if self._ahead is None or self._ahead.done():
            length = min(WINDOW_BYTES, piece.end_position - position)
            self._ahead = self._threads.submit(self.remote.read, piece.segment, position, length)


def _piece(remote: RemotePartition, found: Settled, segment: SegmentEntry) -> Piece:
    start, end = found.start_offset, found.next_offset
    is_partial = segment.base_offset < start or segment.next_offset > end
    entries = offset_index.entries(remote.indexes(segment).offset, segment.base_offset) if is_partial else []
    return trimmed(entries, segment, start, end)


def trimmed(entries: Sequence[tuple[int, int]], segment: SegmentEntry, start_offset: int, next_offset: int) -> Piece:
    """The segment without leading and trailing batches that are outside the offsets by the index.

    An entry names the last offset of the batch at its position: everything from the **following** entry on is above it.
    An entry outside the segment, or before the other cut, cuts nothing.
    """
    first = bisect_right(entries, start_offset, key=itemgetter(0)) - 1
    past = bisect_left(entries, next_offset - 1, key=itemgetter(0)) + 1
    position = entries[first][1] if first >= 0 else 0
    end_position = entries[past][1] if past < len(entries) else segment.size_bytes
    if not 0 <= position < segment.size_bytes:
        position = 0
    if not position < end_position <= segment.size_bytes:
        end_position = segment.size_bytes
    start, end = max(segment.base_offset, start_offset), min(segment.next_offset, next_offset)
    return Piece(segment, start, end, position, end_position)


def _piece_columns(
    fetch: _Fetch, found: Settled, entry: SegmentEntry, next_entry: SegmentEntry | None
) -> Iterator[Columns]:
    piece, following = _piece(fetch.remote, found, entry), None
    with suppress(NotFound):
        following = _piece(fetch.remote, found, next_entry) if next_entry is not None else None
    position, end, want = piece.position, piece.end_position, WINDOW_BYTES
    start, size_bytes = position, piece.segment.size_bytes
    while position < end:
        data = fetch.window(piece, position, min(want, end - position))
        if position == start > 0 and index_is_wrong(piece.segment, data, piece.start_offset, position):
            position = start = 0
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
            end = end_of_piece(piece, fetch.window(piece, position, HEADER_BYTES), position, end)


def _decoded(data: memoryview, piece: Piece, position: int) -> Iterator[Columns]:
    try:
        yield from kernels.decode_in_steps(data, step_bytes=STEP_BYTES)
    except Corrupt as error:
        facts = {**error.facts, "object": piece.segment.data_key}
        if isinstance(at := facts.get("at"), int):
            facts["at"] = position + at
        raise Corrupt(error.attempt, **facts) from error


# With failOnDataLoss=false a task continues after a deleted segment or manifest with the newest manifest.
#
# Without a pin, or after its expiry, a segment may leave the bucket during a job:
#
# - Retention removes it, and its offsets are lost.
# - Compaction, merging or encoding replaces it. Its offsets remain, some of its records perhaps not.
#
# Offsets survive a rewriting, so no record is read twice or missed, also between two tasks. A share of a page needs the
# page: without it the task fails.


def _check_unnamed(store: ObjectStore, split: Split, lost: SegmentEntry | None) -> None:
    """Log the loss. Raises Corrupt if the newest manifest names the object of the `lost` segment."""
    name, log = TopicPartition(split.topic, split.partition), MetadataLog(store, split.prefix)
    key, is_ours = lost.data_key if lost is not None else None, split.layout == OURS.layout
    if is_ours and lost and (newest := log.load()) and log.ask(newest, lambda index: index.holds(lost)):
        raise Corrupt("cannot read a segment, its object is missing", partition=name, object=key)
    _log.warning("a planned object does not exist: partition=%s object=%s from=%d", name, key, split.start_offset)


# An index may already have been wrong when it was copied. So the offsets of a piece decide which batches belong to it.
# The bytes at both positions of the piece are compared with these offsets:
#
# | the bytes there | the task |
# |---|---|
# | at the first position: a batch that begins at or below the piece's first offset | reads from there |
# | anything else | reads from the segment's start |
# | at the last position: a batch that begins behind the piece | stops |
# | anything else | reads on until such a batch, or the segment's end |
#
# Kafka's entries may name a batch some way behind their position. The last row of the table reads up to that batch.


def end_of_piece(piece: Piece, data: memoryview, position: int, end_position: int) -> int:
    """The position up to which to read a piece further; `position` if it is complete.

    The piece was read up to the batch at `position`, where `data` begins. `position` is below `end_position` if
    `end_position` is inside a batch.
    """
    header = None
    with suppress(Corrupt):  # reading the batch reports it in detail
        header = read_header(data)
    if header is not None and header.base_offset >= piece.next_offset:
        return position
    report_wrong_index(piece.segment, piece.next_offset, end_position)
    size_bytes = BEYOND_BYTES if header is None else max(BEYOND_BYTES, header.size_bytes)
    return min(position + size_bytes, piece.segment.size_bytes)


def record_batches(columns: Columns, names: Sequence[str], topic: str, partition: int) -> Iterator[pa.RecordBatch]:
    """The records in order, in batches of bounded rows and bytes; a record above BATCH_BYTES is a batch."""
    schema = pa.schema([(name, TYPES[name]) for name in names])
    for rows in _slices(columns, names):
        part = columns.select(rows)
        yield pa.RecordBatch.from_arrays([_column(part, name, topic, partition) for name in names], schema=schema)


def _slices(columns: Columns, names: Sequence[str]) -> Iterator[slice]:
    weights = np.zeros(len(columns), np.int64)
    for name, lengths in (("key", columns.key_lengths), ("value", columns.value_lengths)):
        if name in names:
            weights += np.maximum(lengths, 0)
    through = np.cumsum(weights)
    start = 0
    while start < len(columns):
        before = int(through[start - 1]) if start else 0
        fits = int(np.searchsorted(through, before + BATCH_BYTES, side="right"))
        end = min(max(fits, start + 1), start + BATCH_ROWS)
        yield slice(start, end)
        start = end


def _column(columns: Columns, name: str, topic: str, partition: int) -> pa.Array[Any]:
    count = len(columns)
    match name:
        case "key":
            return _binary(columns.data, columns.key_starts, columns.key_lengths)
        case "value":
            return _binary(columns.data, columns.value_starts, columns.value_lengths)
        case "topic":
            return _repeated(topic.encode(), count)
        case "partition":
            return _numbers(TYPES[name], np.full(count, partition, np.int32))
        case "offset":
            return _numbers(TYPES[name], columns.offsets)
        case "timestamp":
            return _numbers(TYPES[name], _microseconds(columns, topic, partition))
        case "timestampType":
            attributes = columns.table.attributes[columns.batch_ordinals]
            return _numbers(TYPES[name], ((attributes & _LOG_APPEND_TIME) != 0).astype(np.int32))
    assert name == "headers"
    return _headers(columns)


def _microseconds(columns: Columns, topic: str, partition: int) -> NDArray[np.int64]:
    strange = np.flatnonzero((columns.timestamps > _MS_MAX) | (columns.timestamps < -_MS_MAX))
    if len(strange):
        at = int(strange[0])
        raise InvalidRequest(
            "cannot read, a timestamp does not fit in its column; leave the column out by .schema(...) or columns=",
            partition=TopicPartition(topic, partition),
            offset=int(columns.offsets[at]),
            timestamp_ms=int(columns.timestamps[at]),
        )
    return columns.timestamps * 1000


def _numbers(kind: pa.DataType, values: NDArray[Any]) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


def _repeated(word: bytes, count: int) -> pa.Array[Any]:
    """One word `count` times; `pyarrow.scalar` would import pandas into every worker (0.25 s)."""
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(word))
    return pa.Array.from_buffers(pa.string(), count, [None, _buffer(ends), pa.py_buffer(word * count)])


def _binary(data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> pa.Array[Any]:
    offsets, joined = kernels.gather(data, starts, lengths)
    buffers = [_validity(lengths >= 0), _buffer(offsets), _buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _headers(columns: Columns) -> pa.Array[Any]:
    counts = columns.header_counts
    pairs = [pair for row in np.flatnonzero(counts).tolist() for pair in columns.headers(row)]
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    flat = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    buffers = [_validity(counts > 0), _buffer(offsets)]
    return pa.Array.from_buffers(TYPES["headers"], len(counts), buffers, children=[flat])


def _validity(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if is_there.all() else _buffer(np.packbits(is_there, bitorder="little"))


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    """The array's own memory, which Arrow keeps alive."""
    return pa.py_buffer(np.ascontiguousarray(values).data)
