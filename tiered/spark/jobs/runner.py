"""The jobs of `tiered.jobs` in Spark tasks: the executor, and a function for each job.

The driver plans, and commits after each wave of tasks. Keys and values never leave the Python worker that read them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar, Unpack, cast

import numpy as np
import pyarrow as pa

from local.cleaner.offset_map import Buffer
from local.errors import LogError, NotFound
from local.names import TopicPartition
from local.storage import DiskStorage
from remote.manifest.catalog import RemotePartitionName, chosen_partitions, list_topics, missing_between
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore
from tiered.health.scrub import LocalCopy, plan_scrub, read_segments, report_of
from tiered.health.scrub_report import ScrubReport, ScrubState
from tiered.jobs import compaction_passes, orphan_deletion
from tiered.jobs.bucket_compaction import (
    CompactionOutcome,
    CompactionPlan,
    GroupResult,
    PlanOptions,
    RowGroup,
    compact_partitions,
)
from tiered.jobs.bucket_copying import CopyJob, CopyOutcome, CopyPlan
from tiered.jobs.compaction_passes import Combiner, GroupWork, KeyRun
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.orphan_deletion import ENTRIES_MAX, GRACE_MS, PARTITIONS_A_TASK, Deleted, GarbageList
from tiered.jobs.rewriting import RewriteJob, RewriteOutcome, RewritePlan
from tiered.jobs.runner import TASK_BYTES, Clock, Done, packed, run_job
from tiered.spark.source.planning import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

W = TypeVar("W")
R = TypeVar("R")

TASKS_PER_CORE = 8  # of a wave: enough that one slow task leaves few cores idle, few enough that little is repeated
BUFFER_BYTES = 64 << 20  # of one task, for keys that come twice in its input; without it more would be shuffled
PART_BYTES = 1 << 30  # of one task of pass one: a key that repeats in it is sent once
_ROWS_BYTES = 4 << 20  # of byte strings in one Arrow batch
_GROUPS = "tp int, part int, slot int, range binary"
_KEYS = "bucket int, tp int, records binary"
_OFFSETS = "slot int, offsets binary"
_RESULTS = "tp int, result binary"
_RANGE = Struct("<qq")  # base and next offset of a group: all that a row says about it


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """An executor with one task for each piece, in waves of `wave_tasks` tasks. It stops between two waves.

    A wave is one action, collected once and never cached: a second action would repeat the effects. `job_id` groups the
    waves in Spark's UI, where pieces, which are pickled into the tasks' function, do not appear. `buffer_bytes` is the
    memory of a compaction's task for keys.
    """

    is_parallel: ClassVar[bool] = True
    spark: SparkSession
    job_id: str | None = field(default=None, kw_only=True)
    wave_tasks: int | None = field(default=None, kw_only=True)
    should_stop: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    buffer_bytes: int = field(default=BUFFER_BYTES, kw_only=True)

    def run(self, description: str, work: Iterable[W], do: Callable[[W], R], total: int | None = None) -> Done[W, R]:
        """Yield one list for each wave; the driver holds the results. Raises Spark's error for a failed task."""
        everything = len(work) if isinstance(work, Sequence) else total
        done, remaining = 0, iter(work)
        while wave := list(islice(remaining, self.tasks_of_a_wave)):
            if self.should_stop():
                return
            of = f" of {everything}" if everything is not None else ""
            with named_job(self.spark, f"{description}: {done + 1} to {done + len(wave)}{of}", self.job_id):
                results = _wave(self.spark, [pickle.dumps(each) for each in wave], do)
            done += len(wave)
            yield list(zip(wave, results, strict=True))

    @property
    def tasks_of_a_wave(self) -> int:
        return self.wave_tasks or max(1, self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE)

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        with named_job(self.spark, f"compacting {len(plans)} partitions in the bucket", self.job_id):
            return rewritten(self.spark, bucket, plans, Buffer(size_bytes=self.buffer_bytes))


_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def named_job(spark: SparkSession, description: str, group: str | None = None) -> Iterator[None]:
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    if group is not None:
        context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, cast(str, value))  # None removes it


def _wave(spark: SparkSession, pieces: list[bytes], do: Callable[[W], R]) -> list[R]:
    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_numpy().tolist():
                result = do(pickle.loads(pieces[number]))  # noqa: S301 - our own driver's
                columns: list[Any] = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    rows = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, "number long, result binary").collect()
    results = {row["number"]: pickle.loads(bytes(row["result"])) for row in rows}  # noqa: S301 - our own task's
    return [results[number] for number in range(len(pieces))]


class Waves(TypedDict, total=False):
    """Optional arguments of every function of this module, as in `SparkRunner`."""

    job_id: str | None
    wave_tasks: int | None
    should_stop: Callable[[], bool]


def rewrite(
    spark: SparkSession,
    bucket: Bucket,
    plans: Sequence[RewritePlan],
    *,
    target: Bucket | None = None,
    task_bytes: int = TASK_BYTES,
    now_ms: Clock = wall_ms,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
    **waves: Unpack[Waves],
) -> list[RewriteOutcome]:
    """Run plans of `tiered.jobs.rewriting.RewriteJob`, of any number of partitions; the outcome of each, in order."""
    job = RewriteJob(bucket=bucket, plans=plans, now_ms=now_ms, target=target)
    return run_job(job, SparkRunner(spark, **waves), task_bytes=task_bytes, progress=progress, errors=errors)


def copy(
    spark: SparkSession,
    source: Bucket,
    target: Bucket,
    plans: Sequence[CopyPlan],
    *,
    task_bytes: int = TASK_BYTES,
    now_ms: Clock = wall_ms,
    progress: Callable[[int], None] = lambda size_bytes: None,
    **waves: Unpack[Waves],
) -> list[CopyOutcome]:
    """Run plans of `tiered.jobs.bucket_copying` and compare; the outcome of each, in order.

    After the other partitions it raises the first error: Conflict for another writer, Fenced for another run, NotFound
    for an expired entry, Corrupt for a damaged one.
    """
    job = CopyJob(source=source, target=target, plans=plans, now_ms=now_ms)
    return run_job(job, SparkRunner(spark, **waves), task_bytes=task_bytes, progress=progress)


def list_garbage(
    spark: SparkSession,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    *,
    now_ms: int | None = None,
    entries_max: int = ENTRIES_MAX,
    partitions_a_task: int = PARTITIONS_A_TASK,
    progress: Callable[[int], None] = lambda partitions: None,
    **waves: Unpack[Waves],
) -> GarbageList | None:
    """The orphans of these partitions, in order, as in `tiered.jobs.orphan_deletion.search_garbage`."""
    runner, now_ms = SparkRunner(spark, **waves), wall_ms() if now_ms is None else now_ms
    limits = {"entries_max": entries_max, "partitions_a_task": partitions_a_task}
    return orphan_deletion.search_garbage(runner, bucket, names, now_ms=now_ms, **limits, progress=progress)


def delete_garbage(
    spark: SparkSession,
    bucket: Bucket,
    listed: GarbageList,
    *,
    now_ms: int | None = None,
    grace_ms: int = GRACE_MS,
    **waves: Unpack[Waves],
) -> Deleted:
    """Delete listed objects that are still orphans and old enough. Raises InvalidRequest for another store's list."""
    now_ms = wall_ms() if now_ms is None else now_ms
    return orphan_deletion.delete_listed(SparkRunner(spark, **waves), bucket, listed, now_ms=now_ms, grace_ms=grace_ms)


def scrub(
    spark: SparkSession,
    url: str,
    topics: Sequence[str] = (),
    *,
    store_options: Mapping[str, object] | None = None,
    key_ring: str | None = None,
    state: ScrubState | None = None,
    task_bytes: int = TASK_BYTES,
    progress: Callable[[int], None] = lambda read_bytes: None,
    local_copy: LocalCopy = lambda name, row: False,
    **waves: Unpack[Waves],
) -> ScrubReport | None:
    """Read every byte of `topics`, by default of all; the report is that of ``tiered scrub --deep``.

    `state` records the finished segments after each wave: they are not read again. None if `should_stop` ended the
    scrub. Raises NotFound for a topic that the bucket lacks.
    """
    started_ms = state.started_ms if state is not None else wall_ms()
    bucket = Bucket(url=url, options=store_options or {}, key_ring=key_ring)
    with bucket.opened() as store:
        names = chosen_partitions(store, [(topic, None) for topic in topics])
        if missing := sorted(set(topics) - {name.topic for name in names}):
            raise NotFound("cannot scrub with Spark, the topic is not in the bucket", topic=missing[0])
        plan = plan_scrub(store, names, deep=True, missing=missing_between(names))
        runner = SparkRunner(spark, **waves)
        results = read_segments(runner, bucket, plan, state=state, task_bytes=task_bytes, progress=progress)
        if results is None:
            return None
        return report_of(store, plan, results, started_ms=started_ms, now_ms=wall_ms(), local_copy=local_copy)


def compact(
    spark: SparkSession,
    url: str,
    topics: Sequence[str],
    *,
    partitions: Sequence[TopicPartition] | None = None,
    topic_id: str | None = None,
    store_options: Mapping[str, object] | None = None,
    key_ring: str | None = None,
    job_id: str | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    work_directory: str | None = None,
    now_ms: int | None = None,
    bucket: Bucket | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    errors: dict[TopicPartition, LogError] | None = None,
    **options: Unpack[PlanOptions],
) -> list[CompactionOutcome]:
    """Compact topics in the bucket, all of their partitions or `partitions`; the outcome of each.

    `settings` override the topics' own; `start_offset` and `upto_offset` limit the segments of every partition. A job
    with `given_up` groups is still due: run it again under its `job_id`. `bucket` replaces url, options, ring and
    directory. `should_stop` ends the job between rounds. Raises as `tiered.jobs.bucket_compaction.compact_partitions`,
    and NotFound for a topic or partition that the bucket lacks.
    """
    settings = options.get("settings") or {}
    bucket = bucket or Bucket(
        url=url, options=store_options or {}, key_ring=key_ring, settings=settings, work_directory=work_directory
    )
    with bucket.opened() as store:
        names = _selected(store, topics, partitions, topic_id)
    runner = SparkRunner(spark, job_id=job_id, buffer_bytes=buffer_bytes)
    now_ms = wall_ms() if now_ms is None else now_ms
    return compact_partitions(
        runner, bucket, names, now_ms=now_ms, job_id=job_id, errors=errors, should_stop=should_stop, **options
    )


def _selected(
    store: ObjectStore, topics: Sequence[str], partitions: Sequence[TopicPartition] | None, topic_id: str | None
) -> list[RemotePartitionName]:
    pairs: list[tuple[str, int | None]] = [(topic, None) for topic in topics]
    if partitions is not None:
        pairs = [(each.topic, each.partition) for each in partitions if each.topic in topics]
    ids = dict.fromkeys(topics, topic_id) if topic_id is not None else {}
    named = chosen_partitions(store, pairs, topic_ids=ids)
    found = [name for name in named if MetadataLog(store, name.prefix).refresh().deleted_ms is None]
    missing = [topic for topic in topics if topic not in {name.topic for name in found}]
    missing += sorted(map(str, {*(partitions or ())} - {name.topic_partition for name in found}))
    if missing:
        known = sorted({topic for topic, _ in list_topics(store)})
        facts = {"missing": missing[0], "there_are": ",".join(known[:10]) or "none"}
        raise NotFound("cannot compact with Spark, the bucket has no such topic or partition", **facts)
    return found


# Both passes of a compaction (`tiered.jobs.bucket_compaction`) as one Spark action:
#
# | stage | input of a task | output |
# |---|---|---|
# | pass one | neighbouring groups, `PART_BYTES` at most, in sequence | digests of keys with offsets, by bucket |
# | the newest of each key | a bucket: all records of some keys | the offsets that stay, by group |
# | pass two | a group | the uploaded segments |
#
# It is one action, because a second one would repeat the uploads. Only uploads of successful attempts are committed.
# Executors need disk for one group each (``work_directory``). The driver holds segment entries, never records.
# Rows have the offsets of groups; the plans without groups are sent once, with the function of a stage.


@dataclass(frozen=True, slots=True)
class _Layout:
    """What all tasks share. Buckets and groups (slots) are counted over all plans, which have no groups here."""

    plans: tuple[CompactionPlan, ...]
    buffer_bytes: int
    bases: tuple[tuple[int, ...], ...]  # by plan: each group's first offset
    buckets: tuple[int, ...]  # by plan: number of buckets

    @staticmethod
    def of(plans: Sequence[CompactionPlan], buffer_bytes: int) -> _Layout:
        counts = [sum(row.record_count for group in plan.groups for row in group.entries) for plan in plans]
        bases = tuple(tuple(group.base_offset for group in plan.groups) for plan in plans)
        buckets = tuple(compaction_passes.bucket_count(each, buffer_bytes) for each in counts)
        return _Layout(tuple(replace(plan, groups=()) for plan in plans), buffer_bytes, bases, buckets)

    def work(self, bucket: Bucket, log: MetadataLog, tp: int, slot: int, offsets: bytes, directory: str) -> GroupWork:
        base, following = _RANGE.unpack(offsets)
        group = RowGroup(number=slot - self.first_slots[tp], base_offset=base, next_offset=following)
        plan, disk, keys = self.plans[tp], DiskStorage(), bucket.keys()
        return GroupWork(log.store, plan, group, storage=disk, directory=directory, keys=keys, log=log)

    @property
    def first_slots(self) -> list[int]:
        return list(accumulate((len(each) for each in self.bases), initial=0))

    @property
    def first_buckets(self) -> list[int]:
        return list(accumulate(self.buckets, initial=0))


def rewritten(
    spark: SparkSession, bucket: Bucket, plans: Sequence[CompactionPlan], buffer: Buffer
) -> dict[int, list[GroupResult]]:
    layout = _Layout.of(plans, buffer.size_bytes)
    groups = [(number, group) for number, plan in enumerate(plans) for group in plan.groups]
    if not groups:
        return {}
    cores, size_bytes = spark.sparkContext.defaultParallelism, sum(group.size_bytes for _, group in groups)
    parts = packed(groups, lambda each: each[1].size_bytes, min(PART_BYTES, -(-size_bytes // cores)))
    of_group = [number for number, part in enumerate(parts) for _ in part]
    work = [
        (number, of_group[slot], slot, bytearray(_RANGE.pack(group.base_offset, group.next_offset)))
        for slot, (number, group) in enumerate(groups)
    ]
    found: dict[int, list[GroupResult]] = {}
    for row in _as_job(spark.createDataFrame(work, _GROUPS), bucket, layout, len(parts)):
        found.setdefault(row["tp"], []).append(pickle.loads(bytes(row["result"])))  # noqa: S301 - our own task's
    return found


def _as_job(groups: DataFrame, bucket: Bucket, layout: _Layout, parts: int) -> list[Any]:
    """Run the one action, exactly once because it has effects; return its result rows."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    keys = _placed(groups, parts, "part").mapInArrow(partial(_pass_one, bucket, layout), _KEYS)
    offsets = _placed(keys, layout.first_buckets[-1], "bucket").mapInArrow(partial(_newest, layout), _OFFSETS)
    nothing = F.lit(None)
    # A group that lost every record is rewritten too: its range is a row of its own.
    every = offsets.select(nothing.cast("int").alias("tp"), "slot", "offsets", nothing.cast("binary").alias("range"))
    every = every.unionByName(groups.select("tp", "slot", nothing.cast("binary").alias("offsets"), "range"))
    two = partial(_pass_two, bucket, layout)
    return _placed(every, layout.first_slots[-1], "slot").mapInArrow(two, _RESULTS).collect()


def _placed(frame: DataFrame, tasks: int, column: str) -> DataFrame:
    """One task for each number in `column`; before Spark 4.1 some numbers share a task, and some tasks are empty."""
    by_number = getattr(frame, "repartitionById", None)
    return cast("DataFrame", by_number(tasks, column)) if by_number else frame.repartition(tasks, column)


def _pass_one(bucket: Bucket, layout: _Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    buckets, firsts = layout.buckets, layout.first_buckets
    rows = (
        (firsts[tp] + number, tp, string)
        for tp, run in _combined(bucket, layout, batches)
        for number, string in compaction_passes.parted(run, buckets[tp])
    )
    yield from _as_batches(rows, _KEYS)


def _combined(bucket: Bucket, layout: _Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, KeyRun]]:
    buffer = Buffer(size_bytes=layout.buffer_bytes)
    at, combiner = -1, Combiner(compaction_passes.records_held(layout.buffer_bytes))
    with bucket.opened() as store:
        for tp, _, slot, offsets in sorted(_rows_of(batches), key=lambda row: row[2]):
            if tp != at:  # another partition: another secret, so nothing to combine
                yield from ((at, run) for run in combiner.rest())
                at, log = tp, MetadataLog(store, layout.plans[tp].name.prefix)
            with bucket.scratch() as directory:
                for run in layout.work(bucket, log, tp, slot, offsets, directory).newest_keys(buffer):
                    yield from ((tp, ready) for ready in combiner.add(run))
        yield from ((at, run) for run in combiner.rest())


def _newest(layout: _Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    strings: dict[tuple[int, int], list[bytes]] = {}
    for number, tp, string in _rows_of(batches):
        strings.setdefault((number, tp), []).append(string)
    firsts = layout.first_slots
    rows = (
        (firsts[tp] + group, offsets)
        for (number, tp) in sorted(strings)
        for group, offsets in compaction_passes.by_group(
            compaction_passes.newest(strings.pop((number, tp))), np.array(layout.bases[tp], np.int64)
        )
    )
    yield from _as_batches(rows, _OFFSETS)


def _pass_two(bucket: Bucket, layout: _Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    strings: dict[int, list[bytes]] = {}
    ranges: dict[int, tuple[int, bytes]] = {}
    for tp, slot, offsets, of_group in _rows_of(batches):
        if of_group is None:
            strings.setdefault(slot, []).append(offsets)
        else:
            ranges[slot] = tp, of_group
    assert strings.keys() <= ranges.keys(), "offsets of an unplanned group"

    def rewritten() -> Iterator[tuple[int, bytes]]:
        for slot, (tp, of_group) in sorted(ranges.items()):
            newest = compaction_passes.offsets_of(strings.pop(slot, []))
            with bucket.opened() as store, bucket.scratch() as directory:
                log = MetadataLog(store, layout.plans[tp].name.prefix)
                yield tp, pickle.dumps(layout.work(bucket, log, tp, slot, of_group, directory).rewrite(newest))

    yield from _as_batches(rewritten(), _RESULTS)


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _as_batches(rows: Iterable[tuple[Any, ...]], ddl: str) -> Iterator[pa.RecordBatch]:
    fields = [field.split() for field in ddl.split(", ")]
    schema = pa.schema([(name, pa.binary() if kind == "binary" else pa.int32()) for name, kind in fields])
    held: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += 64 + len(row[-1])
        if size >= _ROWS_BYTES:
            yield _batch(held, schema)
            held, size = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_column(kind, values) for kind, values in zip(schema.types, zip(*rows, strict=True), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array[Any]:
    """A column from buffers: `pyarrow.array` would import pandas into every worker (0.25 s)."""
    if pa.types.is_int32(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, np.int32).data)])
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends.data), pa.py_buffer(b"".join(values))])
