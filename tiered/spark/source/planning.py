"""Plan a read: select partitions, offsets and segments by the options and make splits.

Each partition's newest manifest is read once and pinned, so one ``load()`` is one state of the log. Partitions, and
then the indexes of segments to cut, are read in parallel; the result or error is that of a sequential plan. A failed
plan releases its pins, and a partition without records to read its pin.

Spark does not notify a batch source of the end of its job: a pin (`remote.gc.pins`) expires `PIN_MS` after its last
renewal. Every task checks its pin when it begins and while it reads, and some pins of other partitions when it begins.
It renews a pin in the second half of its life. A read-only bucket relies on the grace period.

Timestamps become offsets as in Spark's Kafka source: the first record at or after the timestamp, in offset order. With
a compacted view a partition has two ranges: the view's below its horizon, the log's from there on.
"""

from __future__ import annotations

import logging
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound, OffsetOutOfRange
from local.index import offset_index
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.cache.chunk_cache import ChunkCache
from remote.external.external_formats import external_format
from remote.external.external_layout import OURS, ExternalFormat, Layout, external_manifests
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import Pin, pin_newest, release_all, renew
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.view import CompactedView, find_view
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.jobs.runner import packed
from tiered.read.external_partition import external_source
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import CompactedReader, TieredReader, lost_behind, no_view
from tiered.spark.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions

CACHE_BYTES = 64 << 20
_log = logging.getLogger(__name__)
_known_ends: dict[str, int] = {}  # by pin, in this process: its expiry as last seen
Aborted = tuple[AbortedTransaction, ...]
Entries = Sequence[tuple[int, int]]  # an offset index: (last offset of a batch, its position), ascending
OFFSET_MAX = 2**63 - 1
OTHERS = 8  # pins; of a thousand partitions, each is checked by one task in 125
THREADS = 16  # requests in parallel; the driver waits for nothing else, and a store's client has 32 connections
INDEX_THREADS = 8  # indexes of cut segments in parallel; a large segment's decoded index has tens of megabytes
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], of: Iterable[T], threads_max: int = THREADS) -> list[R]:
    """The results of `work`, computed in parallel, in order. Raises the first failure in that order."""
    with ThreadPoolExecutor(threads_max, "tiered-plan") as threads:
        return list(threads.map(work, of))  # after an error, map cancels the work that has not begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole batches of one segment: the batches with last offsets in ``[from_last, upto_last)``.

    By the offset index they are in the bytes ``[position, end_position)``. The offsets define the piece: a task
    compares both positions with the batches there, so a wrong index entry cannot change it.
    """

    segment: SegmentEntry
    position: int
    end_position: int
    from_last: int = 0
    upto_last: int = OFFSET_MAX

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets ``[start_offset, next_offset)`` of one partition to read, by the manifest `head_sequence`.

    Records of the `aborted` transactions are left out. `layout` is the bucket's (`remote.external.external_layout`).
    """

    topic: str
    partition: int
    prefix: str
    head_sequence: int
    start_offset: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    pin: Pin | None = None
    layout: str = OURS.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange(ReadRange):
    """One partition's part of a read; `segments` are the manifest's entries, ascending."""

    segments: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(ReadRange):
    """One task; drops records outside its offsets. It renews the pins of `others`, partitions of the same read."""

    pieces: tuple[Piece, ...]
    others: tuple[tuple[str, Pin], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


def plan_splits(
    ranges: Sequence[PartitionRange],
    index_of: Callable[[PartitionRange, SegmentEntry], Entries],
    *,
    split_bytes: int,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[Split]:
    """Tasks that together hold every batch of `ranges` once, in the order of the ranges and their offsets.

    A task has neighbouring pieces of one partition. A segment above `split_bytes` is cut at batch starts. `index_of`
    returns a segment's offset index; it is called only for segments to cut, in parallel. `partitions_min`
    makes smaller splits, as far as batches can be separated. `records_max` limits the offsets of a split.
    """
    ranges = [replace(each, segments=wanted_segments(each)) for each in ranges]
    if partitions_min is not None:
        total = sum(segment.size_bytes for each in ranges for segment in each.segments)
        split_bytes = max(1, min(split_bytes, -(-total // partitions_min)))
    if records_max is not None:
        ranges = [part for each in ranges for part in _of_records(each, records_max)]
    large = [(each, segment) for each in ranges for segment in each.segments if segment.size_bytes > split_bytes]

    def cut_at_index(pair: tuple[PartitionRange, SegmentEntry]) -> list[Piece]:
        (each, segment), entries = pair, index_of(*pair)
        return list(_cut(trimmed(entries, segment, each.start_offset, each.next_offset), entries, split_bytes))

    cut = iter(side_by_side(cut_at_index, large, INDEX_THREADS))
    splits = []
    for each in ranges:
        pieces: list[Piece] = []
        for segment in each.segments:
            whole = Piece(segment=segment, position=0, end_position=segment.size_bytes)
            pieces += next(cut) if segment.size_bytes > split_bytes else [whole]
        splits += [_split(each, run) for run in packed(pieces, lambda piece: piece.size_bytes, split_bytes)]
    return splits


def wanted_segments(each: PartitionRange) -> tuple[SegmentEntry, ...]:
    start, end = each.start_offset, each.next_offset
    inside = (one for one in each.segments if max(one.base_offset, start) < min(one.next_offset, end))
    return tuple(segment for segment in inside if segment.size_bytes)


def _of_records(each: PartitionRange, records_max: int) -> Iterator[PartitionRange]:
    span = each.next_offset - each.start_offset
    shares = -(-span // records_max)
    bounds = [each.start_offset + share * span // shares for share in range(shares + 1)] if span else []
    for start, end in pairwise(bounds):
        first = bisect_right(each.segments, start, key=lambda segment: segment.next_offset)
        past = bisect_left(each.segments, end, key=lambda segment: segment.base_offset)
        if first < past:
            yield replace(each, start_offset=start, next_offset=end, segments=each.segments[first:past])


def trimmed(entries: Entries, segment: SegmentEntry, start_offset: int, next_offset: int) -> Piece:
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
    return Piece(segment=segment, position=position, end_position=end_position)


def is_partial(segment: SegmentEntry, start_offset: int, next_offset: int) -> bool:
    return segment.base_offset < start_offset or segment.next_offset > next_offset


def with_others(splits: Sequence[Split]) -> list[Split]:
    """Add to each split up to OTHERS pins of other partitions, in rotation: their tasks may wait for hours."""
    pins = list(dict.fromkeys((split.prefix, split.pin) for split in splits if split.pin is not None))
    found, at = [], 0
    for split in splits:
        turn = [pins[(at + step) % len(pins)] for step in range(min(OTHERS, len(pins)))]
        at += len(turn)
        found.append(replace(split, others=tuple(each for each in turn if each[0] != split.prefix)))
    return found


def _cut(piece: Piece, entries: Entries, split_bytes: int) -> Iterator[Piece]:
    """Equal shares up to `split_bytes`, as nearly as the index allows; an entry that does not ascend cuts nothing."""
    shares = -(-piece.size_bytes // split_bytes)
    inside = [entry for entry in entries if piece.position < entry[1] < piece.end_position]
    starts = [position for _, position in inside]
    position, from_last = piece.position, piece.from_last
    for share in range(1, shares):
        ideal = piece.position + share * piece.size_bytes // shares
        at = bisect_left(starts, ideal)
        if at == len(starts):
            break
        if starts[at] > position and inside[at][0] > from_last:
            last = inside[at][0]
            yield replace(piece, position=position, end_position=starts[at], from_last=from_last, upto_last=last)
            position, from_last = starts[at], last
    if position < piece.end_position:
        yield replace(piece, position=position, from_last=from_last)


def _split(each: PartitionRange, pieces: Sequence[Piece]) -> Split:
    shared = {field.name: getattr(each, field.name) for field in fields(ReadRange)}
    start, end = pieces[0].segment.base_offset, pieces[-1].segment.next_offset
    shared["aborted"] = tuple(one for one in each.aborted if one.first_offset < end and one.last_offset >= start)
    return Split(**shared, pieces=tuple(pieces))


@dataclass(frozen=True)
class OpenPartition:
    """A partition to read, its newest manifest seen (None: it has none yet) and a pin of that manifest or None."""

    name: RemotePartitionName
    manifest: Manifest | None
    source: PartitionSource
    options: ReadOptions
    pin: Pin | None = None

    @property
    def is_deleted(self) -> bool:
        return self.manifest is not None and self.manifest.deleted_ms is not None

    @property
    def view(self) -> CompactedView | None:
        """The view to read with; None for the log alone. Raises NotFound if it was never built."""
        if self.options.view is None or self.manifest is None:
            return None
        view = find_view(self.manifest.views, self.options.view)
        if view is None or not view.is_built:
            raise no_view(self.name.topic_partition, self.options.view)
        return view

    @cached_property
    def edges(self) -> tuple[int, int]:
        """The readable offsets ``[first, after)``. Under read_committed this may fetch an index."""
        if self.manifest is None:
            return 0, 0
        view = self.view
        first = self.manifest.log_start_offset if view is None else view.start_offset
        after = self.source.stable_end() if self.options.is_committed else self.manifest.next_offset
        return first, max(first, after)

    def ranges(self) -> list[PartitionRange]:
        options = self.options
        start, end = self.offset_of(options.start), self.offset_of(options.end, is_end=True)
        if start > end and options.fail_on_data_loss and options.start.kind is options.end.kind:
            wrong = "cannot read with Spark, the start is above the end (failOnDataLoss=false reads nothing there)"
            raise OffsetOutOfRange(wrong, partition=self.name.topic_partition, start=start, end=end)
        return self.ranges_between(start, max(start, end))

    def ranges_between(self, start: int, end: int) -> list[PartitionRange]:
        """The offsets ``[start, end)``, which must be within `edges`; an empty list for an empty range."""
        if self.manifest is None or start >= end:
            return []
        view = self.view
        if view is None:
            return [self._log_range(start, end)]
        gap = view.gap(self.manifest.log_start_offset)
        if self.options.fail_on_data_loss and gap is not None and start < gap[1] and end > gap[0]:
            raise lost_behind(self.name.topic_partition, view, gap)
        horizon = min(max(view.horizon_offset, start), end)
        found = [self._range(start, horizon, view.entries)] if start < horizon else []
        return [*found, self._log_range(horizon, end)] if horizon < end else found

    def entries(self, segment: SegmentEntry) -> Entries:
        remote = self.source.remote
        assert remote is not None, "a partition of a bucket has objects"
        return offset_index.entries(remote.indexes(segment).offset, segment.base_offset)

    def offset_of(self, bound: Bound, *, is_end: bool = False) -> int:
        """The offset that a bound means here. Raises OffsetOutOfRange and InvalidRequest."""
        value = bound.value_of(self.name.topic_partition)
        assert value is not None, "the values were checked to name every partition"
        if bound.kind is BoundKind.TIMESTAMP:
            return self._offset_of_timestamp(value, strict=not (is_end or self.options.latest_without_match))
        if value in (EARLIEST, LATEST):
            return self.edges[0] if value == EARLIEST else self.edges[1]
        return self.within(value)

    def within(self, offset: int) -> int:
        """`offset` if it is in the log, else the nearest edge; with `fail_on_data_loss` OffsetOutOfRange."""
        first, after = self.edges
        if self.options.fail_on_data_loss and not first <= offset <= after:
            facts = {"offset": offset, "log_start_offset": first, "next_offset": after}
            wrong = "cannot read with Spark, the offset is outside the log"
            raise OffsetOutOfRange(wrong, partition=self.name.topic_partition, **facts)
        return min(max(offset, first), after)

    def _log_range(self, start: int, end: int) -> PartitionRange:
        if self.options.fail_on_data_loss:
            self._check_lacking(start, end)
        rows = self.source.ask(lambda index: tuple(index.entries(start, end))) or ()
        aborted = tuple(self.source.aborted_transactions(start, end)) if self.options.is_committed and rows else ()
        return self._range(start, end, rows, aborted)

    def _range(self, start: int, end: int, rows: tuple[SegmentEntry, ...], aborted: Aborted = ()) -> PartitionRange:
        assert self.manifest is not None, "rows come from a head"
        return PartitionRange(
            topic=self.name.topic,
            partition=self.name.partition,
            prefix=self.name.prefix,
            head_sequence=self.manifest.sequence,
            start_offset=start,
            next_offset=end,
            segments=rows,
            aborted=aborted,
            pin=self.pin,
            layout=OURS.layout if (source := external_manifests(self.source.metadata)) is None else source.layout.value,
        )

    def _check_lacking(self, start: int, end: int) -> None:
        """Raises OffsetOutOfRange for a gap in an external bucket, unless its layout may have compacted logs."""
        source = external_manifests(self.source.metadata)
        if source is None or source.layout in (Layout.LOGS, Layout.PINTEREST):
            return
        lost = [(first, after) for first, after in source.gaps if first < end and after > start]
        if lost:
            gaps = " ".join(f"[{first}, {after})" for first, after in lost[:5])
            attempt = "cannot read with Spark, the bucket lacks segments (failOnDataLoss=false reads the others)"
            raise OffsetOutOfRange(attempt, partition=self.name.topic_partition, lost=gaps)

    def _offset_of_timestamp(self, timestamp_ms: int, *, strict: bool) -> int:
        isolation = Isolation.READ_COMMITTED if self.options.is_committed else Isolation.READ_UNCOMMITTED
        view, partition, after = self.view, self.name.topic_partition, self.edges[1]
        reader = TieredReader(lambda _: self.source, isolation)
        if view is not None:
            reader = CompactedReader(lambda _: self.source, isolation, view.name)
        found = reader.offset_for_timestamp(partition, timestamp_ms) if self.manifest is not None else None
        if found is not None and found < after:
            return found
        if strict:
            fix = "startingOffsetsByTimestampStrategy=latest reads nothing there"
            wrong = "cannot read with Spark, there is no record at or after the starting timestamp"
            raise InvalidRequest(wrong, partition=partition, timestamp_ms=timestamp_ms, fix=fix)
        return after


def plan_read(store: ObjectStore, options: ReadOptions, *, now_ms: int | None = None) -> list[Split]:
    """The tasks of one read; none if there is nothing to read.

    Raises NotFound for a topic or partition that the bucket lacks, InvalidRequest for offsets of unselected partitions,
    OffsetOutOfRange for offsets outside the log (unless `fail_on_data_loss` is off).
    """
    opened = open_partitions(store, options, wall_ms() if now_ms is None else now_ms)
    try:
        known = {each.name.topic_partition for each in opened}
        for side, bound in (("starting", options.start), ("ending", options.end)):
            check_complete(side, bound, known)
        ranges = [part for each in side_by_side(lambda each: each.ranges(), opened) for part in each]
        splits = splits_of(opened, ranges, options)
    except BaseException:
        _release(store, opened, options)
        raise
    read = {split.prefix for split in splits}
    _release(store, [each for each in opened if each.name.prefix not in read], options)
    return with_others(splits)


def splits_of(opened: Sequence[OpenPartition], ranges: Sequence[PartitionRange], options: ReadOptions) -> list[Split]:
    by_prefix = {each.name.prefix: each for each in opened}
    return plan_splits(
        ranges,
        lambda each, segment: by_prefix[each.prefix].entries(segment),
        split_bytes=options.split_bytes,
        partitions_min=options.partitions_min,
        records_max=options.records_max,
    )


def open_partitions(store: ObjectStore, options: ReadOptions, now_ms: int) -> list[OpenPartition]:
    """Pin and return the selected partitions, in order. Raises as `plan_read`; no pin remains then."""
    layout = external_format(store, options.layout)
    names = named_partitions(listed_partitions(store, layout, options), options)
    cache, keys = ChunkCache(CACHE_BYTES), options.bucket.keys()
    opened: list[OpenPartition] = []

    def open_one(name: RemotePartitionName) -> OpenPartition:
        if layout is not None:
            source = external_source(store, layout, name, cache)  # by its present listing: no pin protects it
            return OpenPartition(name, source.manifest(), source, options)
        metadata, pin = seen_manifest(store, name.prefix, options, now_ms)
        remote = RemotePartition(store, name.prefix, cache, metadata=metadata, keys=keys)
        source = PartitionSource(name.topic_partition, None, remote, metadata)
        each = OpenPartition(name, metadata.cached, source, options, pin)
        opened.append(each)
        return each

    try:
        in_order = side_by_side(open_one, names)
        living = chosen_partitions(in_order, options)
    except BaseException:
        _release(store, opened, options)
        raise
    _release(store, [each for each in in_order if each not in living], options)
    return living


def listed_partitions(
    store: ObjectStore, layout: ExternalFormat | None, options: ReadOptions
) -> list[RemotePartitionName]:
    """The partitions of the named topics, by name; all for a pattern, a missing topic or an external layout."""
    if layout is not None:
        return list(layout.partitions(store))
    if options.pattern is not None:
        return list_partitions(store)
    wanted = {*(options.topics or ()), *(each.topic for each in options.partitions or ())}
    found = list_partitions(store, wanted)
    return found if wanted <= {name.topic for name in found} else list_partitions(store)


def named_partitions(there: list[RemotePartitionName], options: ReadOptions) -> list[RemotePartitionName]:
    """The partitions of the topics that `options` name, by name. Raises NotFound for a missing topic."""
    topics = {name.topic for name in there}
    if options.pattern is not None:
        wanted = {topic for topic in topics if re.fullmatch(options.pattern, topic)}
    else:
        wanted = set(options.topics or ()) | {each.topic for each in options.partitions or ()}
    if missing := sorted(wanted - topics):
        there_are = ",".join(sorted(topics)[:10]) or "none"
        raise NotFound("cannot read with Spark, the topic is not in the bucket", topic=missing[0], there_are=there_are)
    found = [name for name in there if name.topic in wanted and options.topic_id in (None, name.topic_id)]
    for topic in sorted(wanted):
        if all(name.topic != topic for name in found):
            raise NotFound("cannot read with Spark, no topic has this id", topic=topic, topic_id=options.topic_id)
    requested = None if options.partitions is None else set(options.partitions)
    return [name for name in found if requested is None or name.topic_partition in requested]


def chosen_partitions(opened: Sequence[OpenPartition], options: ReadOptions) -> list[OpenPartition]:
    """The partitions of living topics, in option order. Raises NotFound, InvalidRequest for two topics of one name."""
    living = [each for each in opened if not each.is_deleted]
    for topic in sorted({each.name.topic for each in opened}):
        ids = sorted({each.name.topic_id for each in living if each.name.topic == topic})
        if not ids and options.pattern is None:
            raise NotFound("cannot read with Spark, the topic was deleted", topic=topic)
        if len(ids) > 1:
            wrong = "cannot read with Spark, the bucket has several topics of this name"
            raise InvalidRequest(f"{wrong}, the option topicId is required", topic=topic, topic_ids=",".join(ids))
    if options.partitions is None:
        return living
    by_name = {each.name.topic_partition: each for each in living}
    for partition in options.partitions:
        if partition not in by_name:
            raise NotFound("cannot read with Spark, the partition is not in the bucket", partition=partition)
    return [by_name[partition] for partition in options.partitions]


def check_complete(side: str, bound: Bound, known: set[TopicPartition]) -> None:
    """Check that the values name exactly the topics and partitions to read, as in Kafka's source."""
    if bound.everywhere is not None:
        return
    for partition in sorted(known):
        if bound.value_of(partition) is None:
            wrong = f"cannot read with Spark, {side} values must name every partition that is read"
            raise InvalidRequest(wrong, missing=partition)
    for topic in sorted(bound.by_topic.keys() - {partition.topic for partition in known}):
        raise InvalidRequest(f"cannot read with Spark, {side} values name a topic that is not read", topic=topic)
    for partition in sorted(bound.by_partition.keys() - known):
        wrong = f"cannot read with Spark, {side} values name a partition that is not read"
        raise InvalidRequest(wrong, partition=partition)


def _release(store: ObjectStore, opened: Iterable[OpenPartition], options: ReadOptions) -> None:
    pins = [(each.name.prefix, each.pin) for each in opened if each.pin and each.name.prefix not in options.pins]
    side_by_side(lambda pin: release_all(store, [pin]), pins)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def seen_manifest(store: ObjectStore, prefix: str, options: ReadOptions, now_ms: int) -> tuple[MetadataLog, Pin | None]:
    """The metadata log, positioned at the manifest to read, and its pin; a partition of a deleted topic has none.

    Raises AccessDenied if a required pin cannot be written, NotFound without a manifest.
    """
    if (held := options.pins.get(prefix)) is not None:
        pinned = pinned_log(store, prefix, held)
        pinned.load()
        return pinned, held
    metadata = MetadataLog(store, prefix)
    if metadata.refresh().deleted_ms is not None or options.pin_ms is None:
        return metadata, None
    expires_ms, holder = now_ms + options.pin_ms, f"spark, process {os.getpid()} of {os.uname().nodename}"
    try:
        pin, _ = pin_newest(store, prefix, metadata, now_ms=now_ms, expires_ms=expires_ms, holder=holder)
    except NotFound:
        if metadata.cached is not None and metadata.cached.deleted_ms is None:
            raise
        return metadata, None  # deleted in between
    except AccessDenied as error:
        if options.must_pin:
            raise
        _log.warning("cannot pin a manifest, the job relies on the grace period: prefix=%s cause=%s", prefix, error)
        return metadata, None
    return metadata, pin


class PinKeeper:
    """Renews the pin of a task's split in the second half of its life of `pin_ms`; None: never. Not thread safe."""

    def __init__(
        self, store: ObjectStore, prefix: str, pin: Pin | None, pin_ms: int | None, clock: Callable[[], int] = wall_ms
    ) -> None:
        self._store, self._prefix, self._clock = store, prefix, clock
        self._pin, self._pin_ms = pin if pin_ms is not None else None, pin_ms or 0

    def keep(self) -> None:
        """Renew the pin if it is due; call it repeatedly. An error is only logged: the read continues."""
        if self._pin is None:
            return
        now_ms, name = self._clock(), self._prefix + self._pin.key
        ends_ms = max(self._pin.expires_ms, _known_ends.get(name, 0))
        if ends_ms - now_ms > self._pin_ms // 2:
            return
        try:
            later = renew(self._store, self._prefix, self._pin, clock=self._clock, expires_ms=now_ms + self._pin_ms)
        except LogError as error:
            _log.warning("cannot renew a pin: prefix=%s key=%s cause=%s", self._prefix, self._pin.key, error)
            return
        if later is None:
            _log.warning("a pin has expired, or was released: prefix=%s key=%s", self._prefix, self._pin.key)
            self._pin = None
            return
        _known_ends[name] = later.expires_ms  # by the first pin's name, although the renewed pin has another one


def pinned_log(store: ObjectStore, prefix: str, pin: Pin) -> MetadataLog:
    """The metadata log of a pinned manifest. A read is one GET; NotFound if pin and manifest are deleted."""
    return MetadataLog(store, prefix, source=_PinnedManifest(ManifestChain(store, prefix), prefix, pin))


@dataclass(frozen=True)
class _PinnedManifest:
    chain: ManifestChain
    prefix: str
    pin: Pin

    def newest(self, known: Manifest | None) -> Manifest:
        found = known or self.chain.read(self.pin.sequence)
        if found is None or found.commit_id != self.pin.commit_id:
            raise self.missing()
        return found

    def missing(self) -> LogError:
        facts = {"prefix": self.prefix, "sequence": self.pin.sequence, "holder": self.pin.holder}
        return NotFound("the pinned manifest does not exist, the pin has expired", **facts)
