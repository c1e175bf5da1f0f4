"""From options to splits: which partitions the bucket has, which offsets are meant, which segments hold them.

Each partition's newest head is read once; what follows is computed from it, so one ``load()`` is one state of the log.
Timestamps become offsets here, as in Spark's Kafka source: the first record at or after the timestamp, in offset order.
The costs in requests: a listing for the topics, one for each topic, a few for each partition's head; an index for each
segment that is cut, and an index and a range for each timestamp. Partitions (and then cut segments) are
asked side by side; what comes out, and which error, is as if they were asked one after another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from local import offset_index
from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.names import TopicPartition
from remote.catalog import RemotePartitionName, list_partitions
from remote.chunk_cache import ChunkCache
from remote.encryption import KeyRing
from remote.head import Head
from remote.metadata_log import MetadataLog
from remote.range_reader import RemotePartition
from remote.segment import RemoteSegment
from remote.store import ObjectStore
from tiered.key_rings import load_key_ring
from tiered.partition_source import PartitionSource
from tiered.reader import TieredReader
from tiered.spark.options import EARLIEST, LATEST, Bound, BoundKind, ReadOptions
from tiered.spark.splits import Entries, PartitionRange, Split, plan_splits

THREADS = 16  # requests under way; the driver waits for nothing else, and a store's client keeps 32 connections
INDEX_THREADS = 8  # indexes of cut segments under way; an index of a large segment is tens of megabytes once decoded
_CACHE_BYTES = 64 << 20
T = TypeVar("T")
R = TypeVar("R")


def plan_read(store: ObjectStore, options: ReadOptions) -> list[Split]:
    """The tasks of one read; none where nothing is to be read.

    Raises NotFound for a topic or partition that the bucket lacks, InvalidRequest for offsets of other partitions than
    those chosen, OffsetOutOfRange for offsets outside the log (unless `fail_on_data_loss` is off).
    """
    cache = ChunkCache(_CACHE_BYTES)
    open_one = partial(_Partition.open, store, cache, load_key_ring(options.key_ring, os.environ))
    planned = _each(open_one, chosen_partitions(list_partitions(store), options))
    known = {each.name.topic_partition for each in planned}
    for side, bound in (("starting", options.start), ("ending", options.end)):
        _check_complete(side, bound, known)
    by_prefix = {each.name.prefix: each for each in planned}
    return plan_splits(
        _each(lambda each: each.range(options), planned),
        lambda each, segment: by_prefix[each.prefix].entries(segment),
        split_bytes=options.split_bytes,
        partitions_min=options.partitions_min,
        side_by_side=partial(_each, threads_max=INDEX_THREADS),
    )


def chosen_partitions(there: list[RemotePartitionName], options: ReadOptions) -> list[RemotePartitionName]:
    """Those that `options` name, in order. Raises NotFound, and InvalidRequest where a name stands for two topics."""
    topics = {name.topic for name in there}
    if options.pattern is not None:
        wanted = {topic for topic in topics if re.fullmatch(options.pattern, topic)}
    else:
        wanted = set(options.topics or ()) | {each.topic for each in options.partitions or ()}
    if missing := sorted(wanted - topics):
        there_are = ",".join(sorted(topics)[:10]) or "none"
        raise NotFound("reading with spark, no such topic in the bucket", topic=missing[0], there_are=there_are)
    found = [name for name in there if name.topic in wanted and options.topic_id in (None, name.topic_id)]
    for topic in sorted(wanted):
        ids = sorted({name.topic_id for name in found if name.topic == topic})
        if not ids:
            raise NotFound("reading with spark, no topic of this id", topic=topic, topic_id=options.topic_id)
        if len(ids) > 1:
            needed = "reading with spark, the bucket holds several topics of one name, option topicId is needed"
            raise InvalidRequest(needed, topic=topic, topic_ids=",".join(ids))
    if options.partitions is None:
        return found
    by_name = {name.topic_partition: name for name in found}
    for partition in options.partitions:
        if partition not in by_name:
            raise NotFound("reading with spark, no such partition in the bucket", partition=partition)
    return [by_name[partition] for partition in options.partitions]


def _each(work: Callable[[T], R], of: Iterable[T], threads_max: int = THREADS) -> list[R]:
    """`work` of each, side by side, in order. Raises the error of the first in order that has one."""
    with ThreadPoolExecutor(threads_max, "tiered-plan") as threads:
        return list(threads.map(work, of))  # on an error, map cancels what has not begun


def _check_complete(side: str, bound: Bound, known: set[TopicPartition]) -> None:
    """As in Kafka's source, values given for partitions must be given for exactly those that are read."""
    if bound.everywhere is not None:
        return
    for partition in sorted(known - bound.by_partition.keys()):
        raise InvalidRequest(f"reading with spark, {side} values must name every partition read", missing=partition)
    for partition in sorted(bound.by_partition.keys() - known):
        raise InvalidRequest(f"reading with spark, {side} values name a partition not read", partition=partition)


@dataclass(frozen=True, slots=True)
class _Partition:
    """One partition as its newest head has it."""

    name: RemotePartitionName
    head: Head | None
    remote: RemotePartition
    metadata: MetadataLog

    @staticmethod
    def open(store: ObjectStore, cache: ChunkCache, keys: KeyRing, name: RemotePartitionName) -> _Partition:
        metadata = MetadataLog(store, name.prefix)
        remote = RemotePartition(store, name.prefix, cache, metadata=metadata, read_ahead_chunks=0, keys=keys)
        return _Partition(name, metadata.load(), remote, metadata)

    def range(self, options: ReadOptions) -> PartitionRange:
        """The offsets to read; empty where the partition has no head yet."""
        start, end = self._offset(options.start, options), self._offset(options.end, options, is_end=True)
        return PartitionRange(
            topic=self.name.topic,
            partition=self.name.partition,
            prefix=self.name.prefix,
            head_sequence=self.head.sequence if self.head else 0,
            start_offset=start,
            next_offset=max(start, end),
            segments=self.metadata.ask(self.head, lambda index: tuple(index.rows(start, end))) if self.head else (),
        )

    def entries(self, segment: RemoteSegment) -> Entries:
        return offset_index.entries(self.remote.indexes(segment).offset, segment.base_offset)

    def _offset(self, bound: Bound, options: ReadOptions, *, is_end: bool = False) -> int:
        """The offset that a bound means here."""
        value = bound.everywhere
        if value is None:
            value = bound.by_partition[self.name.topic_partition]
        first, after = (self.head.log_start_offset, self.head.next_offset) if self.head else (0, 0)
        if bound.kind is BoundKind.TIMESTAMP:
            return self._offset_of_timestamp(value, after, strict=not (is_end or options.latest_without_match))
        if value in (EARLIEST, LATEST):
            return first if value == EARLIEST else after
        if options.fail_on_data_loss and not first <= value <= after:
            facts = {"offset": value, "log_start_offset": first, "next_offset": after}
            raise OffsetOutOfRange(
                "reading with spark, offset outside the log", partition=self.name.topic_partition, **facts
            )
        return min(max(value, first), after)

    def _offset_of_timestamp(self, timestamp_ms: int, after: int, *, strict: bool) -> int:
        source = PartitionSource(self.name.topic_partition, None, self.remote, self.metadata)
        found = TieredReader(lambda _: source).offset_for_timestamp(self.name.topic_partition, timestamp_ms)
        if found is None and strict:
            fix = "startingOffsetsByTimestampStrategy=latest reads nothing there"
            raise InvalidRequest(
                "reading with spark, no record at or after the starting timestamp",
                partition=self.name.topic_partition,
                timestamp_ms=timestamp_ms,
                fix=fix,
            )
        return after if found is None else found
