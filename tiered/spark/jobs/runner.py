"""The jobs of `tiered.jobs` in Spark tasks: the executor, and a function for each job.

A function runs plans that were made in this process, which is the driver, and commits here after each wave of tasks.
Keys and values of records never leave the Python worker that read them. Managers may run at the same time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar, Unpack, cast

from local.cleaner.offset_map import Buffer
from local.errors import LogError, NotFound
from local.names import TopicPartition
from remote.segments.chunk_table import CHUNK_BYTES
from tiered.health.scrub import LocalCopy, plan_scrub, read_segments, report_of
from tiered.health.scrub_report import ScrubReport, ScrubState
from tiered.jobs import orphan_deletion
from tiered.jobs.bucket_compaction import (
    CompactionOutcome,
    CompactionPlan,
    GroupResult,
    PlanOptions,
    compact_partitions,
)
from tiered.jobs.bucket_copying import CopyJob, CopyOutcome, CopyPlan
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.orphan_deletion import ENTRIES_MAX, GRACE_MS, PARTITIONS_A_TASK, Deleted, GarbageList
from tiered.jobs.rewriting import RewriteJob, RewriteOutcome, RewritePlan
from tiered.jobs.runner import TASK_BYTES, Clock, run_job
from tiered.spark.jobs.compaction import rewritten
from tiered.spark.source.pinning import wall_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from remote.manifest.catalog import RemotePartitionName
    from remote.store import ObjectStore

W = TypeVar("W")
R = TypeVar("R")

TASKS_PER_CORE = 8  # of a wave: enough that one slow task leaves few cores idle, few enough that little is repeated
BUFFER_BYTES = 64 << 20  # of one task, for keys that come twice in its input; without it more would be shuffled


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """An executor with one task for each piece, in waves of `wave_tasks` tasks. It stops between two waves.

    A wave is one action, which is collected once and never cached: a second action would repeat the effects. It ends
    with its slowest task. `job_id` groups the waves in Spark's UI. Pieces are pickled into the function that the tasks
    run, so neither they nor their content appear there. `buffer_bytes` is the memory of a compaction's task for keys.
    """

    is_parallel: ClassVar[bool] = True
    spark: SparkSession
    job_id: str | None = field(default=None, kw_only=True)
    wave_tasks: int | None = field(default=None, kw_only=True)
    should_stop: Callable[[], bool] = field(default=lambda: False, kw_only=True)
    buffer_bytes: int = field(default=BUFFER_BYTES, kw_only=True)

    def run_in_batches(
        self,
        description: str,
        work: Iterable[W],
        do: Callable[[W], R],
        *,
        total: int | None = None,
        batch_size: int = 1,
        on_done: Callable[[W, R], None] = lambda piece, result: None,
    ) -> Iterator[list[R]]:
        """One list for each wave. The driver holds the results: they should be small.

        `description` is shown in Spark's UI, with the progress. Raises Spark's error if a task has failed for good;
        earlier waves have been returned by that time.
        """
        everything = len(work) if isinstance(work, Sequence) else total
        done, remaining = 0, iter(work)
        while wave := list(islice(remaining, self.tasks_of_a_wave)):
            if self.should_stop():
                return
            of = f" of {everything}" if everything is not None else ""
            with named_job(self.spark, f"{description}: {done + 1} to {done + len(wave)}{of}", self.job_id):
                results = _wave(self.spark, [pickle.dumps(each) for each in wave], do)
            for piece, result in zip(wave, results, strict=True):
                on_done(piece, result)
            done += len(wave)
            yield results

    @property
    def tasks_of_a_wave(self) -> int:
        return self.wave_tasks or max(1, self.spark.sparkContext.defaultParallelism * TASKS_PER_CORE)

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        with named_job(self.spark, f"compacting {len(plans)} partitions in the bucket", self.job_id):
            return rewritten(self.spark, bucket, plans, Buffer(size_bytes=self.buffer_bytes))


_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def named_job(spark: SparkSession, description: str, group: str | None = None) -> Iterator[None]:
    """Set the description, and the job group if given, of all Spark jobs inside the block."""
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
        import pyarrow as pa

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
    chunk_bytes: int = CHUNK_BYTES,
    now_ms: Clock = wall_ms,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
    **waves: Unpack[Waves],
) -> list[RewriteOutcome]:
    """Run plans of `tiered.jobs.rewriting`, of any number of partitions; the outcome of each, in order.

    `target`, `progress` and `errors` as in `tiered.jobs.rewriting.RewriteJob` and `tiered.jobs.runner.run_job`.
    """
    job = RewriteJob(bucket=bucket, plans=plans, now_ms=now_ms, target=target, chunk_bytes=chunk_bytes)
    return run_job(job, SparkRunner(spark, **waves), task_bytes=task_bytes, progress=progress, errors=errors)


def copy(
    spark: SparkSession,
    source: Bucket,
    target: Bucket,
    plans: Sequence[CopyPlan],
    *,
    task_bytes: int = TASK_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
    now_ms: Clock = wall_ms,
    progress: Callable[[int], None] = lambda size_bytes: None,
    **waves: Unpack[Waves],
) -> list[CopyOutcome]:
    """Run plans of `tiered.jobs.bucket_copying` and compare; the outcome of each, in order.

    After the other partitions it raises the first error of the failed ones: Conflict if another writer writes to the
    copy, Fenced if another run of it began, NotFound for an entry that has expired, Corrupt for a damaged one.
    """
    job = CopyJob(source=source, target=target, plans=plans, now_ms=now_ms, chunk_bytes=chunk_bytes)
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
    return orphan_deletion.search_garbage(
        SparkRunner(spark, **waves),
        bucket,
        names,
        now_ms=wall_ms() if now_ms is None else now_ms,
        entries_max=entries_max,
        partitions_a_task=partitions_a_task,
        progress=progress,
    )


def delete_garbage(
    spark: SparkSession,
    bucket: Bucket,
    listed: GarbageList,
    *,
    now_ms: int | None = None,
    grace_ms: int = GRACE_MS,
    **waves: Unpack[Waves],
) -> Deleted:
    """Delete the listed objects that a new check of the task confirms as orphans and that are old enough.

    If `should_stop` ends the job, the rest stays listed. Raises InvalidRequest for another store's list.
    """
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

    `state` records the finished segments after each wave; segments in it are not read again. `progress` receives the
    bytes of each segment. None if `should_stop` ended the scrub. Changes nothing in the bucket.

    Raises NotFound for a topic that the bucket lacks.
    """
    from remote.manifest.catalog import chosen_partitions, missing_between

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

    `options` are `settings`, which override the topics' own in their manifests; `start_offset` and `upto_offset`, which
    limit the segments to compact in every partition; `group_bytes` and `rows_max`. `bucket` replaces url, options, ring
    and directory. Between rounds (of `rows_max` entries a partition) the job ends if `should_stop`; a run under its
    `job_id` continues it.

    If an outcome has `given_up` groups, the job is still due: run it again under its `job_id`.

    Raises NotFound for a topic or partition that the bucket lacks, InvalidRequest for one that is not compacted, and
    the errors of `tiered.jobs.bucket_compaction.compact_partitions`. The job may then be run again.
    """
    bucket = bucket or Bucket(
        url=url,
        options=store_options or {},
        key_ring=key_ring,
        settings=options.get("settings") or {},
        work_directory=work_directory,
    )
    with bucket.opened() as store:
        names = _selected(store, topics, partitions, topic_id)
    return compact_partitions(
        SparkRunner(spark, job_id=job_id, buffer_bytes=buffer_bytes),
        bucket,
        names,
        now_ms=wall_ms() if now_ms is None else now_ms,
        job_id=job_id,
        errors=errors,
        should_stop=should_stop,
        **options,
    )


def _selected(
    store: ObjectStore, topics: Sequence[str], partitions: Sequence[TopicPartition] | None, topic_id: str | None
) -> list[RemotePartitionName]:
    """The partitions of topics that are not deleted. Raises NotFound, and the errors of `MetadataLog.missing`."""
    from remote.manifest.catalog import list_partitions, list_topics
    from remote.manifest.commit_protocol import MetadataLog

    found = [
        name
        for name in list_partitions(store, topics)
        if topic_id in (None, name.topic_id)
        and (partitions is None or name.topic_partition in partitions)
        and MetadataLog(store, name.prefix).refresh().deleted_ms is None
    ]
    wanted = set(partitions or ())
    missing = [topic for topic in topics if topic not in {name.topic for name in found}]
    missing += [str(each) for each in sorted(wanted - {name.topic_partition for name in found})]
    if missing:
        known = sorted({topic for topic, _ in list_topics(store)})
        facts = {"missing": missing[0], "there_are": ",".join(known[:10]) or "none"}
        raise NotFound("cannot compact with Spark, the bucket has no such topic or partition", **facts)
    return found
