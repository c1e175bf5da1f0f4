"""Plan a read: select partitions and offsets by the options. The manifests' parts become tasks (`splits`).

Each partition's newest manifest is read once and pinned, so one ``load()`` is one state of the log. Partitions are read
in parallel; the result or error is that of a sequential plan. No page and no index is read to make tasks. A failed plan
releases its pins, and a partition without records to read its pin.

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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound, OffsetOutOfRange
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
from remote.manifest.view import CompactedView, find_view
from remote.store import ObjectStore
from tiered.read.external_partition import external_source
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import CompactedReader, TieredReader, lost_behind, no_view
from tiered.spark.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions
from tiered.spark.source.settling import pinned_log
from tiered.spark.source.splits import Part, PartitionRange, ReadPlan, ReadRange, plan_splits

CACHE_BYTES = 64 << 20
_log = logging.getLogger(__name__)
_known_ends: dict[str, int] = {}  # by pin, in this process: its expiry as last seen
Aborted = tuple[AbortedTransaction, ...]
THREADS = 16  # requests in parallel; the driver waits for nothing else, and a store's client has 32 connections
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], of: Iterable[T]) -> list[R]:
    """The results of `work`, computed in parallel, in order. Raises the first failure in that order."""
    with ThreadPoolExecutor(THREADS, "tiered-plan") as threads:
        return list(threads.map(work, of))  # after an error, map cancels the work that has not begun


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
            wrong = "cannot read, the start is above the end (failOnDataLoss=false reads nothing there)"
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
        found = [self._range(start, horizon, view.entries, view=view.name)] if start < horizon else []
        return [*found, self._log_range(horizon, end)] if horizon < end else found

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
            wrong = "cannot read, the offset is outside the log"
            raise OffsetOutOfRange(wrong, partition=self.name.topic_partition, **facts)
        return min(max(offset, first), after)

    def _log_range(self, start: int, end: int) -> PartitionRange:
        if self.options.fail_on_data_loss:
            self._check_lacking(start, end)
        parts = self.source.ask(lambda index: tuple(index.parts(start, end))) or ()
        is_external = external_manifests(self.source.metadata) is not None
        aborted: Aborted = ()
        if is_external and self.options.is_committed and parts:  # no task can find them without all earlier batches
            aborted = tuple(self.source.aborted_transactions(start, end))
        return self._range(start, end, parts, aborted)

    def _range(
        self, start: int, end: int, parts: tuple[Part, ...], aborted: Aborted = (), *, view: str | None = None
    ) -> PartitionRange:
        assert self.manifest is not None, "parts come from a manifest"
        source = external_manifests(self.source.metadata)
        read = ReadRange(
            topic=self.name.topic,
            partition=self.name.partition,
            prefix=self.name.prefix,
            head_sequence=self.manifest.sequence,
            commit_id=self.manifest.commit_id,
            start_offset=start,
            next_offset=end,
            view=view,
            is_committed=self.options.is_committed and view is None,
            pin=self.pin,
            layout=OURS.layout if source is None else source.layout.value,
        )
        return PartitionRange(read=read, parts=parts, aborted=aborted)

    def _check_lacking(self, start: int, end: int) -> None:
        """Raises OffsetOutOfRange for a gap in an external bucket, unless its layout may have compacted logs."""
        source = external_manifests(self.source.metadata)
        if source is None or source.layout in (Layout.LOGS, Layout.PINTEREST):
            return
        lost = [(first, after) for first, after in source.gaps if first < end and after > start]
        if lost:
            gaps = " ".join(f"[{first}, {after})" for first, after in lost[:5])
            attempt = "cannot read, the bucket lacks segments (failOnDataLoss=false reads the others)"
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
            wrong = "cannot read, there is no record at or after the starting timestamp"
            raise InvalidRequest(wrong, partition=partition, timestamp_ms=timestamp_ms, fix=fix)
        return after


def plan_read(store: ObjectStore, options: ReadOptions, *, now_ms: int | None = None) -> ReadPlan:
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
        plan = splits_of(ranges, options)
    except BaseException:
        _release(store, opened, options)
        raise
    read = {each.prefix for each, *_ in plan.tasks()}
    _release(store, [each for each in opened if each.name.prefix not in read], options)
    return plan


def splits_of(ranges: Sequence[PartitionRange], options: ReadOptions) -> ReadPlan:
    return plan_splits(
        ranges, split_bytes=options.split_bytes, partitions_min=options.partitions_min, records_max=options.records_max
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
        raise NotFound("cannot read, the topic is not in the bucket", topic=missing[0], there_are=there_are)
    found = [name for name in there if name.topic in wanted and options.topic_id in (None, name.topic_id)]
    for topic in sorted(wanted):
        if all(name.topic != topic for name in found):
            raise NotFound("cannot read, no topic has this id", topic=topic, topic_id=options.topic_id)
    requested = None if options.partitions is None else set(options.partitions)
    return [name for name in found if requested is None or name.topic_partition in requested]


def chosen_partitions(opened: Sequence[OpenPartition], options: ReadOptions) -> list[OpenPartition]:
    """The partitions of living topics, in option order. Raises NotFound, InvalidRequest for two topics of one name."""
    living = [each for each in opened if not each.is_deleted]
    for topic in sorted({each.name.topic for each in opened}):
        ids = sorted({each.name.topic_id for each in living if each.name.topic == topic})
        if not ids and options.pattern is None:
            raise NotFound("cannot read, the topic was deleted", topic=topic)
        if len(ids) > 1:
            wrong = "cannot read, the bucket has several topics of this name"
            raise InvalidRequest(f"{wrong}, the option topicId is required", topic=topic, topic_ids=",".join(ids))
    if options.partitions is None:
        return living
    by_name = {each.name.topic_partition: each for each in living}
    for partition in options.partitions:
        if partition not in by_name:
            raise NotFound("cannot read, the partition is not in the bucket", partition=partition)
    return [by_name[partition] for partition in options.partitions]


def check_complete(side: str, bound: Bound, known: set[TopicPartition]) -> None:
    """Check that the values name exactly the topics and partitions to read, as in Kafka's source."""
    if bound.everywhere is not None:
        return
    for partition in sorted(known):
        if bound.value_of(partition) is None:
            wrong = f"cannot read, {side} values must name every partition that is read"
            raise InvalidRequest(wrong, missing=partition)
    for topic in sorted(bound.by_topic.keys() - {partition.topic for partition in known}):
        raise InvalidRequest(f"cannot read, {side} values name a topic that is not read", topic=topic)
    for partition in sorted(bound.by_partition.keys() - known):
        wrong = f"cannot read, {side} values name a partition that is not read"
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
    expires_ms, holder = now_ms + options.pin_ms, f"reader, process {os.getpid()} of {os.uname().nodename}"
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
