"""One Spark task: settle its split (`settling`), fetch the pieces of its segments, decode them, return Arrow batches.

Data is fetched in windows of up to WINDOW_BYTES, the next one by a thread while one is decoded. All bytes pass the
chunk checksums of `remote.fetch.range_reader` and the batch CRCs. The batches have the row schema of Spark's Kafka
source (TYPES): headers are null for a record without them. With compiled kernels no cell becomes a Python object.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from local import kernels
from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.batch_header import CONTROL, HEADER_BYTES, read_header
from local.format.columns import Columns
from local.format.record import StoredRecord
from local.index import offset_index
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from local.records.isolation import aborted_batches, without_aborted
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
from tiered.spark.source.planning import PinKeeper, T
from tiered.spark.source.settling import Settled, settled
from tiered.spark.source.splits import Split

WINDOW_BYTES = 8 << 20
FIRST_WINDOW_BYTES = 256 << 10  # doubled up to WINDOW_BYTES, so that a query with a limit reads little
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
BUILT_BYTES = 4 << 20  # of records in one batch of the kernel
Aborted = Sequence[AbortedTransaction]
Build = Callable[[kernels.Sections, Aborted, int, int], Iterator[T]]


def read_split(split: Split, options: ReadOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The split's records as Arrow batches of the columns `names`.

    Raises Corrupt for damaged bytes. Raises NotFound if a segment left the bucket since the plan, and
    `fail_on_data_loss` is on or a compacted view is read.
    """
    # The log below a view has records that the view removed: older records of a key, and aborted ones.
    is_strict = options.fail_on_data_loss or options.view is not None
    keys, pin_ms, layout = options.bucket.keys(), options.pin_ms, options.layout
    build = partial(built_batches, names=tuple(names), topic=split.topic, partition=split.partition)
    if "pyspark.worker" in sys.modules:  # in a worker, whose memory is ours to manage
        kernels.keep_freed_memory(64 << 20)
    with options.bucket.opened() as store:
        yield from split_steps(store, split, build, keys, pin_ms=pin_ms, fail_on_data_loss=is_strict, layout=layout)


def split_steps(
    store: ObjectStore,
    split: Split,
    build: Build[T],
    keys: KeyRing = NO_KEYS,
    *,
    pin_ms: int | None = None,
    fail_on_data_loss: bool = True,
    layout: LayoutOptions = OURS,
) -> Iterator[T]:
    """What `build` makes of the split's batches, in offset order.

    `build` receives batches, aborted transactions, and the offsets ``[start, next)`` outside which to omit records.
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
                    for sections, made in _piece_steps(fetch, found, entry, following):
                        first, reached = reached, max(reached, int(sections.table.last_offsets[-1]) + 1)
                        with made:
                            yield from build(sections, found.aborted, first, end)
                        del sections  # before the next step is inflated
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
        self._ahead: Future[None] | None = None
        self._want = FIRST_WINDOW_BYTES
        self._fetched: dict[str, int] = {}  # by data object: the end of the bytes that were requested

    def window(self, piece: Piece, position: int, end: int, joined_bytes: int = 0) -> memoryview:
        """The bytes from `position` to the end of a GET's body, without a copy, or `joined_bytes` of several bodies."""
        self._pin.keep()
        fetched = self._fetched.get(piece.segment.data_key, 0)
        upto = position + (joined_bytes or (fetched - position if fetched > position else self._want))
        self._fetched[piece.segment.data_key] = max(fetched, min(upto, end))
        return self.remote.read(piece.segment, position, min(upto, end) - position, in_one_piece=not joined_bytes)

    def ahead(self, piece: Piece, following: Piece | None, reached: int) -> int:
        """Fetch the next window, twice as large as the last one, if `reached` ends that; return the end of both."""
        fetched = max(self._fetched.get(piece.segment.data_key, 0), piece.position)
        if fetched >= piece.end_position and following is not None:
            self.ahead(following, None, following.position)
        elif reached >= fetched < piece.end_position and (self._ahead is None or self._ahead.done()):
            self._want = min(2 * self._want, WINDOW_BYTES)
            length = min(self._want, piece.end_position - fetched)
            self._fetched[piece.segment.data_key] = fetched = fetched + length
            self._ahead = self._threads.submit(self.remote.warm, piece.segment, fetched - length, length)
        return fetched


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


def _piece_steps(
    fetch: _Fetch, found: Settled, entry: SegmentEntry, next_entry: SegmentEntry | None
) -> Iterator[tuple[kernels.Sections, AbstractContextManager[None]]]:
    piece, following = _piece(fetch.remote, found, entry), None
    with suppress(NotFound):
        following = _piece(fetch.remote, found, next_entry) if next_entry is not None else None
    position, end, joined = piece.position, piece.end_position, 0
    start, size_bytes = position, piece.segment.size_bytes
    while position < end:
        data = fetch.window(piece, position, end, joined)
        if position == start > 0 and index_is_wrong(piece.segment, data, piece.start_offset, position):
            position = start = 0
            continue
        reached = position + len(data)
        fetched = fetch.ahead(piece, following, reached)
        whole = 0
        with _placed(piece, position):
            for sections in kernels.sections_in_steps(data, step_bytes=STEP_BYTES):
                whole = sections.table.valid_bytes  # of the whole window, the same in every step
                yield sections, _placed(piece, position)
                del sections
        if whole == 0 and reached >= size_bytes:
            raise Corrupt("cannot read a segment, it ends inside a batch", object=piece.segment.data_key, at=position)
        # A batch across two bodies, or larger than the window, is joined; the windows around it are not copied.
        rest = fetched - position if entry.codec != "none" or entry.key_id else 0  # encoded: each chunk is a body
        is_cut = whole < len(data) if not joined else not whole
        position, joined = position + whole, max(FIRST_WINDOW_BYTES, 2 * joined, rest) if is_cut else 0
        if reached >= end and end < size_bytes:
            header = fetch.window(piece, position, position + HEADER_BYTES, HEADER_BYTES)
            end = end_of_piece(piece, header, position, end)


@contextmanager
def _placed(piece: Piece, position: int) -> Iterator[None]:  # adds the object to an error of the decoder
    try:
        yield
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


def built_batches(
    sections: kernels.Sections, aborted: Aborted, first: int, end: int, names: Sequence[str], topic: str, partition: int
) -> Iterator[pa.RecordBatch]:
    """The records of `sections` as Arrow batches: built in one pass of the kernel, or by its twin."""
    row, fields, constants = 0, {name: TYPES[name] for name in names}, {"topic": topic, "partition": partition}
    skipped = aborted_batches(sections.table, aborted) | ((sections.table.attributes & CONTROL) != 0)
    while row < len(skipped):
        made = sections.arrow_batch(skipped, row, first, end, fields, constants, BATCH_ROWS, BUILT_BYTES)
        if made is None:
            rest = within(without_aborted(sections.columns(row), aborted), first, end)
            yield from record_batches(rest, names, topic, partition)
            return
        row = made[0]
        yield from made[1]


def record_batches(columns: Columns, names: Sequence[str], topic: str, partition: int) -> Iterator[pa.RecordBatch]:
    """The twin of the kernel, from records as objects. A batch has at most BATCH_BYTES, or one record."""
    cells: dict[str, Callable[[StoredRecord], Any]] = {
        "topic": lambda _: topic,
        "partition": lambda _: partition,
        "timestamp": lambda each: _microseconds(each, topic, partition),
        "timestampType": lambda each: int(each.timestamp_type),
        "headers": lambda each: list(each.headers) or None,
    }
    rows = int(BATCH_BYTES // (columns.key_lengths + columns.value_lengths.astype("i8")).max(initial=1))
    for at in range(0, len(columns), rows := min(BATCH_ROWS, max(1, rows))):
        records = list(columns.select(slice(at, at + rows)).records())
        arrays = [pa.array(map(cells.get(name, attrgetter(name)), records), TYPES[name]) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema({name: TYPES[name] for name in names}))


def _microseconds(record: StoredRecord, topic: str, partition: int) -> int:
    if abs(record.timestamp_ms) > (2**63 - 1) // 1000:
        wrong = "cannot read, a timestamp does not fit in its column; leave the column out by .schema(...) or columns="
        where = {"partition": TopicPartition(topic, partition), "offset": record.offset}
        raise InvalidRequest(wrong, **where, timestamp_ms=record.timestamp_ms)
    return record.timestamp_ms * 1000
