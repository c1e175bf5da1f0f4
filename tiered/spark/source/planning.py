"""Plan a read: select partitions, offsets and segments by the options and make splits.

Each partition's newest manifest is read once and pinned. The plan is computed from it, so one ``load()`` is one state
of the log. The requests:

| for | requests |
|---|---|
| each named topic | two listings |
| a pattern | one listing of the bucket's topics and one for each topic |
| each partition | a few for its newest manifest, two for its pin |
| a range that reaches into older entries | a manifest page |
| each segment that is cut | an index |
| each timestamp | an index and a range |

Partitions, and then cut segments, are read in parallel. The result, and which error is raised, are as in sequence.

A failed plan releases its pins. A partition without records to read releases its pin too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from local.errors import InvalidRequest, NotFound
from local.names import TopicPartition
from remote.external.external_layout import ExternalFormat, ExternalName
from remote.external.layout_detection import external_format
from remote.fetch.chunk_cache import ChunkCache
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.store import ObjectStore
from tiered.config.key_rings import load_key_ring
from tiered.spark.source.options import Bound, ReadOptions
from tiered.spark.source.partitions import OpenPartition
from tiered.spark.source.pinning import release_all, seen_manifest, wall_ms
from tiered.spark.source.splits import PartitionRange, Split, plan_splits, with_others

THREADS = 16  # requests in parallel; the driver waits for nothing else, and a store's client has 32 connections
INDEX_THREADS = 8  # indexes of cut segments in parallel; a large segment's decoded index has tens of megabytes
_CACHE_BYTES = 64 << 20
T = TypeVar("T")
R = TypeVar("R")


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
        ranges = [part for each in side_by_side(lambda each: each.ranges(options), opened) for part in each]
        splits = splits_of(opened, ranges, options)
    except BaseException:
        _let_go(store, opened, options)
        raise
    read = {split.prefix for split in splits}
    _let_go(store, [each for each in opened if each.name.prefix not in read], options)
    return with_others(splits)


def splits_of(opened: Sequence[OpenPartition], ranges: Sequence[PartitionRange], options: ReadOptions) -> list[Split]:
    """The tasks that together read `ranges` of `opened`."""
    by_prefix = {each.name.prefix: each for each in opened}
    return plan_splits(
        ranges,
        lambda each, segment: by_prefix[each.prefix].entries(segment),
        split_bytes=options.split_bytes,
        partitions_min=options.partitions_min,
        records_max=options.records_max,
        side_by_side=partial(side_by_side, threads_max=INDEX_THREADS),
    )


def open_partitions(store: ObjectStore, options: ReadOptions, now_ms: int) -> list[OpenPartition]:
    """The partitions that the options select, in order, by their newest manifests, which are pinned.

    Raises NotFound and InvalidRequest as `plan_read` does; no pin remains then.
    """
    layout = format_of(store, options)
    names = named_partitions(listed_partitions(store, layout, options), options)
    cache, keys = ChunkCache(_CACHE_BYTES), load_key_ring(options.key_ring, os.environ)
    opened: list[OpenPartition] = []

    def open_one(name: RemotePartitionName) -> OpenPartition:
        if layout is not None:
            assert isinstance(name, ExternalName), "a layout gives names of its own"
            return OpenPartition.foreign(store, layout, name, cache)
        metadata, pin = seen_manifest(store, name.prefix, options, now_ms)
        each = OpenPartition.of(store, name, metadata, cache=cache, keys=keys, pin=pin)
        opened.append(each)
        return each

    try:
        in_order = side_by_side(open_one, names)
        living = chosen_partitions(in_order, options)
    except BaseException:
        _let_go(store, opened, options)
        raise
    _let_go(store, [each for each in in_order if each not in living], options)
    return living


def format_of(store: ObjectStore, options: ReadOptions) -> ExternalFormat | None:
    """The bucket's external layout; None for our own.

    Raises InvalidRequest if its names do not identify one.
    """
    return None if options.layout.is_ours else external_format(store, options.layout)


def listed_partitions(
    store: ObjectStore, layout: ExternalFormat | None, options: ReadOptions
) -> list[RemotePartitionName]:
    """The partitions of the named topics, or of the whole bucket for a pattern, ordered by name.

    If a named topic is missing, all partitions of the bucket, for the error message.
    """
    if layout is not None:
        return list(layout.partitions(store))
    if options.pattern is not None:
        return list_partitions(store)
    wanted = {*(options.topics or ()), *(each.topic for each in options.partitions or ())}
    found = list_partitions(store, wanted)
    return found if wanted <= {name.topic for name in found} else list_partitions(store)


def named_partitions(there: list[RemotePartitionName], options: ReadOptions) -> list[RemotePartitionName]:
    """The partitions of the topics that `options` name, ordered by name.

    Raises NotFound for a missing topic.
    """
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
    asked = None if options.partitions is None else set(options.partitions)
    return [name for name in found if asked is None or name.topic_partition in asked]


def chosen_partitions(opened: Sequence[OpenPartition], options: ReadOptions) -> list[OpenPartition]:
    """The partitions of living topics, in the order of the options.

    Raises InvalidRequest if a name means two living topics. Raises NotFound for a partition that is missing or was
    deleted with its topic; a pattern skips deleted topics.
    """
    living = [each for each in opened if not each.is_deleted]
    for topic in sorted({each.name.topic for each in opened}):
        ids = sorted({each.name.topic_id for each in living if each.name.topic == topic})
        if not ids and options.pattern is None:
            raise NotFound("cannot read with Spark, the topic was deleted", topic=topic)
        if len(ids) > 1:
            needed = (
                "cannot read with Spark, the bucket has several topics of this name, the option topicId is required"
            )
            raise InvalidRequest(needed, topic=topic, topic_ids=",".join(ids))
    if options.partitions is None:
        return living
    by_name = {each.name.topic_partition: each for each in living}
    for partition in options.partitions:
        if partition not in by_name:
            raise NotFound("cannot read with Spark, the partition is not in the bucket", partition=partition)
    return [by_name[partition] for partition in options.partitions]


def side_by_side(work: Callable[[T], R], of: Iterable[T], threads_max: int = THREADS) -> list[R]:
    """The results of `work`, computed in parallel, in order. Raises the first failure in that order."""
    with ThreadPoolExecutor(threads_max, "tiered-plan") as threads:
        return list(threads.map(work, of))  # after an error, map cancels the work that has not begun


def check_complete(side: str, bound: Bound, known: set[TopicPartition]) -> None:
    """Check that the values name exactly the topics and partitions to read, as in Kafka's source."""
    if bound.everywhere is not None:
        return
    for partition in sorted(known):
        if bound.value_of(partition) is None:
            raise InvalidRequest(
                f"cannot read with Spark, {side} values must name every partition that is read", missing=partition
            )
    for topic in sorted(bound.by_topic.keys() - {partition.topic for partition in known}):
        raise InvalidRequest(f"cannot read with Spark, {side} values name a topic that is not read", topic=topic)
    for partition in sorted(bound.by_partition.keys() - known):
        raise InvalidRequest(
            f"cannot read with Spark, {side} values name a partition that is not read", partition=partition
        )


def _let_go(store: ObjectStore, opened: Iterable[OpenPartition], options: ReadOptions) -> None:
    """Release the pins that this plan made."""
    pins = [(each.name.prefix, each.pin) for each in opened if each.pin and each.name.prefix not in options.pins]
    side_by_side(lambda pin: release_all(store, [pin]), pins)
