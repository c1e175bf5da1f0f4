"""A streaming read: the planner of its micro-batches, and the adapter to Spark's streaming engine.

Polling costs one small GET a partition, for the manifest after the last one seen, at most every POLL_MS. New partitions
and topics are listed every LIST_MS.

A batch is planned on the newest manifests seen, without a pin: it is far shorter than the grace period. If an object is
missing, the batch fails; at the restart of the query it is planned again. A batch is a range of offsets: its replay has
fewer records if compaction ran in between.

Data loss means that the bucket lacks the checkpoint's next offsets: they are below the log start, or a partition or
topic is missing or was created again. It is an error; with failOnDataLoss=false it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.names import TopicPartition
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_lookup import MetadataIndex
from remote.store import ObjectStore
from tiered.read.partition_source import PartitionSource
from tiered.spark.options import StreamOptions
from tiered.spark.source.planning import (
    CACHE_BYTES,
    OpenPartition,
    check_complete,
    chosen_partitions,
    listed_partitions,
    named_partitions,
    side_by_side,
    splits_of,
    wall_ms,
)
from tiered.spark.source.splits import ReadPlan, bytes_between

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
POLL_MS = 1_000  # Spark asks every 10 ms if a trigger has no interval
LIST_MS = 60_000
Partitions = Mapping[TopicPartition, OpenPartition]
Offsets = Mapping[TopicPartition, int]
_IDS, _SINCE, _INITIAL = "@ids", "@since", "@initial"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """A stream's position: offsets as JSON in Spark's checkpoint.

    | JSON | meaning |
    |---|---|
    | ``{"orders":{"0":120}}`` | the first unread offset, as Spark's Kafka source writes it |
    | ``"@ids": {"orders":"<topic id>"}`` | the topic of the offsets: a topic that is created again begins at 0 |
    | ``"@since": {"orders":{"0":100}}`` | the start of the batch that ends here, where its start position lacks it |
    | ``"@initial": true`` | no batch was read: a restart may choose another start |

    With the last two, a planned batch is the same batch after a restart: Spark does not store the initial offsets.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str]
    since: Offsets = field(default_factory=dict)
    is_initial: bool = False

    def encode(self) -> dict[str, object]:
        found: dict[str, object] = dict(_nested(self.offsets))
        found[_IDS] = dict(sorted(self.topic_ids.items()))
        if self.since:
            found[_SINCE] = _nested(self.since)
        if self.is_initial:
            found[_INITIAL] = True
        return found

    @staticmethod
    def decode(given: Mapping[str, object]) -> StreamPosition:
        """The position in `given`. Raises InvalidRequest if it has none, as in the checkpoint of another source."""
        try:
            return StreamPosition(
                offsets=_flat({name: each for name, each in given.items() if not name.startswith("@")}),
                topic_ids=msgspec.convert(given.get(_IDS, {}), dict[str, str]),
                since=_flat(given.get(_SINCE, {})),
                is_initial=given.get(_INITIAL) is True,
            )
        except (msgspec.ValidationError, AttributeError) as error:  # the latter: no object
            wrong = "cannot read the checkpoint of a stream, it is not an offset of this source"
            raise InvalidRequest(wrong, offset=given) from error


def prorated(start: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends that take `limit` offsets in all, shared by backlog; as in Kafka's source a share is at least one."""
    sizes = {each: max(0, ends[each] - start[each]) for each in ends}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {each: min(ends[each], start[each] + share(limit, sizes[each], total)) for each in ends}


def share(limit: int, size: int, total: int) -> int:
    """The share of `limit` for `size` of `total`; at least one if `size` is not zero."""
    exact = limit * size / total
    return ceil(exact) if exact < 1 else floor(exact)


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def _flat(nested: object) -> dict[TopicPartition, int]:
    found = msgspec.convert(nested, dict[str, dict[int, int]], strict=False)
    return {TopicPartition(topic, number): at for topic, offsets in found.items() for number, at in offsets.items()}


class StreamPlanner:
    """One query's view of the bucket. Not thread safe. Every method may raise Unavailable."""

    def __init__(self, store: ObjectStore, options: StreamOptions, clock: Callable[[], int] = wall_ms) -> None:
        self._store, self._stream, self._options, self._clock = store, options, options.read, clock
        self._cache, self._keys = ChunkCache(CACHE_BYTES), options.read.bucket.keys()
        self._names: list[RemotePartitionName] = []
        self._logs: dict[RemotePartitionName, MetadataLog] = {}
        self._opened: dict[RemotePartitionName, OpenPartition] = {}
        self._seen: Partitions = {}
        self._listed_ms = self._polled_ms = -LIST_MS
        self._batch_ms: int | None = None  # when the last batch was planned
        self._target: Offsets | None = None

    def initial(self) -> StreamPosition:
        """The first position by the options. Raises the errors of planning a batch read."""
        seen = self._newest_partitions()
        check_complete("starting", self._options.start, set(seen))
        starts = side_by_side(lambda each: each.offset_of(self._options.start), seen.values())
        return StreamPosition(offsets=dict(zip(seen, starts, strict=True)), topic_ids=_ids(seen), is_initial=True)

    def freeze(self) -> None:
        """Set the present end as the end of the stream: later records are not read."""
        self._target = self._ends(self._newest_partitions())

    def newest(self) -> StreamPosition:
        seen = self._newest_partitions()
        return StreamPosition(offsets=self._ends(seen), topic_ids=_ids(seen))

    def next_end(
        self, start: StreamPosition, *, offsets_max: int | None, bytes_max: int | None, may_wait: bool = True
    ) -> StreamPosition:
        """The end of the batch from `start`, perhaps `start` itself. Raises OffsetOutOfRange and NotFound."""
        now_ms = self._clock()
        self._batch_ms = now_ms if self._batch_ms is None else self._batch_ms
        seen = self._checked(start, self._newest_partitions())
        starts = {name: self._start_of(start, each) for name, each in seen.items()}
        ends = {name: max(starts[name], end) for name, end in self._ends(seen).items()}
        if self._target is not None:
            ends = {name: max(starts[name], min(end, self._target.get(name, 0))) for name, end in ends.items()}
        total = sum(ends.values()) - sum(starts.values())
        waits = may_wait and self._target is None and now_ms - self._batch_ms < self._stream.delay_max_ms
        if total == 0 or (waits and total < self._stream.offsets_min):
            return start
        if bytes_max is not None:
            ends = self._within_bytes(seen, starts, ends, bytes_max)
        if offsets_max is not None:
            ends = prorated(starts, ends, offsets_max)
        self._batch_ms = now_ms
        new = {name: at for name, at in starts.items() if start.is_initial or start.offsets.get(name) != at}
        return StreamPosition(offsets=ends, topic_ids=_ids(seen), since=new)

    def splits(self, start: StreamPosition, end: StreamPosition) -> ReadPlan:
        """The tasks that read the batch between two positions. Raises as `next_end`."""
        seen = self._checked(end, self._newest_partitions())
        wanted = []
        for name, each in seen.items():
            if name in end.offsets and end.topic_ids.get(name.topic) in (None, each.name.topic_id):
                begin = end.since[name] if name in end.since else start.offsets[name]
                wanted.append((each, each.within(begin), each.within(end.offsets[name])))
        ranges = side_by_side(lambda one: one[0].ranges_between(one[1], one[2]), wanted)
        return splits_of([part for each in ranges for part in each], self._options)

    def _newest_partitions(self) -> Partitions:
        now_ms = self._clock()
        is_due = now_ms - self._listed_ms >= LIST_MS
        if is_due:
            self._names = named_partitions(listed_partitions(self._store, None, self._options), self._options)
            self._listed_ms = now_ms
        if is_due or now_ms - self._polled_ms >= POLL_MS:
            opened = side_by_side(self._open, self._names)
            self._seen = {each.name.topic_partition: each for each in chosen_partitions(opened, self._options)}
            self._polled_ms = now_ms
        return self._seen

    def _open(self, name: RemotePartitionName) -> OpenPartition:
        metadata = self._logs.get(name)
        if metadata is None:
            metadata = self._logs[name] = MetadataLog(self._store, name.prefix)
        metadata.refresh()
        known = self._opened.get(name)
        if known is None or known.manifest is not metadata.cached:
            remote = RemotePartition(self._store, name.prefix, self._cache, metadata=metadata, keys=self._keys)
            source = PartitionSource(name.topic_partition, None, remote, metadata)
            known = self._opened[name] = OpenPartition(name, metadata.cached, source, self._options)
        return known

    def _ends(self, seen: Partitions) -> dict[TopicPartition, int]:
        if not self._options.is_committed:  # the manifests have the ends, and Spark may ask every few ms
            return {name: each.edges[1] for name, each in seen.items()}
        return dict(zip(seen, side_by_side(lambda each: each.edges[1], seen.values()), strict=True))

    def _checked(self, position: StreamPosition, seen: Partitions) -> Partitions:
        for name in sorted(position.offsets):
            each = seen.get(name)
            known_id = position.topic_ids.get(name.topic)
            if each is None:
                self._lost(NotFound("cannot read the stream, one of its partitions no longer exists", partition=name))
            elif known_id not in (None, each.name.topic_id):
                facts = {"partition": name, "topic_id": each.name.topic_id, "before": known_id}
                self._lost(NotFound("cannot read the stream, the topic was deleted and created again", **facts))
        return seen

    def _start_of(self, start: StreamPosition, each: OpenPartition) -> int:
        name = each.name.topic_partition
        if name in start.offsets and start.topic_ids.get(name.topic) in (None, each.name.topic_id):
            return each.within(start.offsets[name])
        return each.edges[0]

    def _lost(self, error: NotFound | OffsetOutOfRange) -> None:
        if self._options.fail_on_data_loss:
            raise error.restated(f"{error.attempt}; data was lost, failOnDataLoss=false continues", **error.facts)

    def _within_bytes(
        self, seen: Partitions, starts: Offsets, ends: Offsets, bytes_max: int
    ) -> dict[TopicPartition, int]:
        def backlog(name: TopicPartition) -> int:
            between, ask = (starts[name], ends[name]), seen[name].source.ask
            return ask(lambda index: sum(bytes_between(each, *between) for each in index.parts(*between))) or 0

        sizes = dict(zip(ends, side_by_side(backlog, ends), strict=True))
        total = sum(sizes.values())
        if total <= bytes_max:
            return dict(ends)

        def end_of(name: TopicPartition) -> int:
            budget = share(bytes_max, sizes[name], total)
            found = seen[name].source.ask(lambda index: _reached(index, starts[name], ends[name], budget))
            return ends[name] if found is None else found

        return dict(zip(ends, side_by_side(end_of, ends), strict=True))


def _reached(index: MetadataIndex, start: int, end: int, budget: int) -> int:
    """The offset `budget` bytes behind `start`: at least one offset further, at most `end`."""
    at = start
    for row in index.entries(start, end):
        inside = bytes_between(row, start, end)
        if inside > budget:
            span = min(row.next_offset, end) - max(row.base_offset, start)
            at = max(at, row.base_offset) + span * budget // inside
            return min(end, max(at, start + 1))
        budget -= inside
        at = row.next_offset
    return end


def _ids(seen: Partitions) -> dict[str, str]:
    return {name.topic: each.name.topic_id for name, each in seen.items()}


class BucketStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader. One instance lives next to the driver; a pickled one reads in the workers."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options, self._names = options, names
        self._store: ObjectStore | None = None
        self._planner: StreamPlanner | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows, size_bytes, rows_min = self._options.offsets_max, self._options.bytes_max, self._options.offsets_min
        if rows is not None:
            return ReadMaxRows(rows)
        if size_bytes is not None:
            return ReadMaxBytes(size_bytes)
        return ReadMinRows(rows_min) if rows_min else ReadAllAvailable()

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._plan().initial().encode()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next batch. `limit` is `getDefaultReadLimit`'s, or unlimited if the trigger takes all."""
        is_unlimited = isinstance(limit, ReadAllAvailable)
        begin = StreamPosition.decode(start)
        offsets_max, bytes_max = (None, None) if is_unlimited else (self._options.offsets_max, self._options.bytes_max)
        end = self._plan().next_end(begin, offsets_max=offsets_max, bytes_max=bytes_max, may_wait=not is_unlimited)
        return start if end is begin else end.encode()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._plan().newest().encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().freeze()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        begin, after = StreamPosition.decode(start), StreamPosition.decode(end)
        return [InputPartition(split) for split in self._plan().splits(begin, after)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        split: Any = partition.value
        if split is not None:
            yield from read_split(split, self._options.read, self._names)

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark's checkpoint has the position, and nothing in the bucket depends on it."""

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._planner = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._store = self._options.read.bucket.open_store()
            self._planner = StreamPlanner(self._store, self._options)
        return self._planner
