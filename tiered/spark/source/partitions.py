"""One partition by one manifest: the offsets that a read selects, and the entries that hold them.

Timestamps become offsets here, as in Spark's Kafka source: the first record at or after the timestamp, in offset order.
Under read_committed the log ends before the first transaction without a known end in the bucket, and a range has the
aborted transactions of its offsets. With a compacted view a partition has two ranges: the view's below its horizon, the
log's from there on.
"""

from __future__ import annotations

from dataclasses import dataclass

from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.index import offset_index
from local.index.txn_index import AbortedTransaction
from local.records.isolation import Isolation
from remote.external.external_layout import OURS, ExternalFormat, ExternalName, Layout
from remote.external.external_log import ExternalLog
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import Pin
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.view import CompactedView, find_view
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing
from remote.store import ObjectStore
from tiered.read.external_partition import external_source
from tiered.read.partition_source import PartitionSource
from tiered.read.read_committed import aborted_transactions, stable_end
from tiered.read.reader import TieredReader
from tiered.read.view_reader import CompactedReader
from tiered.spark.source.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions
from tiered.spark.source.splits import Entries, PartitionRange

Aborted = tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True)
class OpenPartition:
    """A partition, its newest manifest seen (None: it has none yet) and a pin of that manifest or None."""

    name: RemotePartitionName
    manifest: Manifest | None
    source: PartitionSource
    pin: Pin | None = None

    @staticmethod
    def of(
        store: ObjectStore,
        name: RemotePartitionName,
        metadata: MetadataLog,
        *,
        cache: ChunkCache,
        keys: KeyRing,
        pin: Pin | None = None,
    ) -> OpenPartition:
        """`metadata` has already read the manifest, if there is one."""
        remote = RemotePartition(store, name.prefix, cache, metadata=metadata, read_ahead_chunks=0, keys=keys)
        return OpenPartition(name, metadata.cached, PartitionSource(name.topic_partition, None, remote, metadata), pin)

    @staticmethod
    def foreign(store: ObjectStore, layout: ExternalFormat, name: ExternalName, cache: ChunkCache) -> OpenPartition:
        """A partition of an external bucket by its present listing: no pin protects it."""
        source = external_source(store, layout, name, cache)
        return OpenPartition(name, source.manifest(), source)

    @property
    def is_deleted(self) -> bool:
        return self.manifest is not None and self.manifest.deleted_ms is not None

    def view(self, options: ReadOptions) -> CompactedView | None:
        """The view to read with; None for the log alone. Raises NotFound if it was never built."""
        if options.view is None or self.manifest is None:
            return None
        view = find_view(self.manifest.views, options.view)
        if view is None or not view.is_built:
            attempt = f"the topic has no compacted view: build it with 'tiered view build {self.name.topic}'"
            raise NotFound(attempt, partition=self.name.topic_partition, view=options.view)
        return view

    def edges(self, options: ReadOptions) -> tuple[int, int]:
        """The readable offsets ``[first, after)``. Under read_committed this may fetch an index."""
        if self.manifest is None:
            return 0, 0
        view = self.view(options)
        first = self.manifest.log_start_offset if view is None else view.start_offset
        after = stable_end(self.source) if options.is_committed else self.manifest.next_offset
        return first, max(first, after)

    def ranges(self, options: ReadOptions) -> list[PartitionRange]:
        """The ranges that the options select in this partition."""
        first, after = self.edges(options)
        start = self.offset_of(options.start, options, (first, after))
        end = self.offset_of(options.end, options, (first, after), is_end=True)
        if start > end and options.fail_on_data_loss and options.start.kind is options.end.kind:
            raise OffsetOutOfRange(
                ("cannot read with Spark, the start is above the end (failOnDataLoss=false reads nothing there)"),
                partition=self.name.topic_partition,
                start=start,
                end=end,
            )
        return self.ranges_between(start, max(start, end), options)

    def ranges_between(self, start: int, end: int, options: ReadOptions) -> list[PartitionRange]:
        """The offsets ``[start, end)``, which must be within `edges`; an empty list for an empty range."""
        if self.manifest is None or start >= end:
            return []
        view = self.view(options)
        if view is None:
            return [self._log_range(start, end, options)]
        if options.fail_on_data_loss:
            self._check_gap(view, start, end)
        horizon = min(max(view.horizon_offset, start), end)
        found = [self._range(start, horizon, view.entries)] if start < horizon else []
        return [*found, self._log_range(horizon, end, options)] if horizon < end else found

    def entries(self, segment: SegmentEntry) -> Entries:
        remote = self.source.remote
        assert remote is not None, "a partition of a bucket has objects"
        return offset_index.entries(remote.indexes(segment).offset, segment.base_offset)

    def offset_of(self, bound: Bound, options: ReadOptions, edges: tuple[int, int], *, is_end: bool = False) -> int:
        """The offset that a bound means here. Raises OffsetOutOfRange and InvalidRequest."""
        value = bound.value_of(self.name.topic_partition)
        assert value is not None, "the values were checked to name every partition"
        if bound.kind is BoundKind.TIMESTAMP:
            return self._offset_of_timestamp(value, options, edges, strict=not (is_end or options.latest_without_match))
        if value in (EARLIEST, LATEST):
            return edges[0] if value == EARLIEST else edges[1]
        return self.within(value, options, edges)

    def within(self, offset: int, options: ReadOptions, edges: tuple[int, int]) -> int:
        """`offset` if it is in the log, else the nearest edge; with `fail_on_data_loss` OffsetOutOfRange."""
        first, after = edges
        if options.fail_on_data_loss and not first <= offset <= after:
            facts = {"offset": offset, "log_start_offset": first, "next_offset": after}
            raise OffsetOutOfRange(
                "cannot read with Spark, the offset is outside the log", partition=self.name.topic_partition, **facts
            )
        return min(max(offset, first), after)

    def _log_range(self, start: int, end: int, options: ReadOptions) -> PartitionRange:
        if options.fail_on_data_loss:
            self._check_lacking(start, end)
        rows = self.source.ask(lambda index: tuple(index.entries(start, end))) or ()
        aborted = tuple(aborted_transactions(self.source, start, end)) if options.is_committed and rows else ()
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
            layout=metadata.layout.value if isinstance(metadata := self.source.metadata, ExternalLog) else OURS.layout,
        )

    def _check_lacking(self, start: int, end: int) -> None:
        """Raises OffsetOutOfRange if an external bucket lacks a segment: Kafka tiers every segment of a log.

        A directory of logs may have been compacted: offsets between two segments may then have no records.
        """
        log = self.source.metadata
        if not isinstance(log, ExternalLog) or log.layout in (Layout.LOGS, Layout.PINTEREST):
            return
        lost = [(first, after) for first, after in log.gaps if first < end and after > start]
        if lost:
            told = " ".join(f"[{first}, {after})" for first, after in lost[:5])
            attempt = "cannot read with Spark, the bucket lacks segments (failOnDataLoss=false reads the others)"
            raise OffsetOutOfRange(attempt, partition=self.name.topic_partition, lost=told)

    def _check_gap(self, view: CompactedView, start: int, end: int) -> None:
        assert self.manifest is not None, "a view lies in a head"
        gap = view.gap(self.manifest.log_start_offset)
        if gap is not None and start < gap[1] and end > gap[0]:
            attempt = "cannot read the compacted view, the log no longer holds the records that follow it"
            raise OffsetOutOfRange(
                attempt, partition=self.name.topic_partition, view=view.name, lost=f"[{gap[0]}, {gap[1]})"
            )

    def _offset_of_timestamp(
        self, timestamp_ms: int, options: ReadOptions, edges: tuple[int, int], *, strict: bool
    ) -> int:
        isolation = Isolation.READ_COMMITTED if options.is_committed else Isolation.READ_UNCOMMITTED
        view = self.view(options)
        reader = (
            TieredReader(lambda _: self.source, isolation)
            if view is None
            else CompactedReader(lambda _: self.source, isolation, view.name)
        )
        found = (
            reader.offset_for_timestamp(self.name.topic_partition, timestamp_ms) if self.manifest is not None else None
        )
        if found is not None and found >= edges[1]:
            found = None
        if found is None and strict:
            fix = "startingOffsetsByTimestampStrategy=latest reads nothing there"
            raise InvalidRequest(
                "cannot read with Spark, there is no record at or after the starting timestamp",
                partition=self.name.topic_partition,
                timestamp_ms=timestamp_ms,
                fix=fix,
            )
        return edges[1] if found is None else found
