"""Compaction of what is in a bucket, by a Spark job: `tiered.bucket_compaction` with its passes in tasks.

Only digests of keys and offsets are shuffled, 32 bytes a record that may stay; keys and values never leave the Python
worker that read them. One action does it all: pass one, the shuffle that finds the largest offset of each digest, a
second one that brings a group's offsets together, pass two, and the results of the attempts that won, collected. Each
partition is then committed by one head, in the driver.

Tasks may fail, be retried and run twice: what an attempt uploads has names of its own, and only the winners' are
committed. Executors need disk for one group each (``work_directory``) and no memory for data; the driver holds rows of
the index, never records.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from local.errors import LogError, NotFound
from local.names import TopicPartition
from local.newest_records import Buffer
from tiered.bucket_compaction import (
    GROUP_BYTES,
    CompactionOutcome,
    CompactionPlan,
    GroupResult,
    commit_compaction,
    plan_compaction,
    with_groups,
)
from tiered.spark.bucket import Bucket

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from remote.catalog import RemotePartitionName
    from remote.store import ObjectStore

_log = logging.getLogger(__name__)

KEYS = "tp int, h1 long, h2 long, offset long, grp int"
RESULT = "tp int, grp int, result binary"
BUFFER_BYTES = 64 << 20  # of one task, for keys that come twice in a group; without it more would be shuffled


def compact(
    spark: SparkSession,
    url: str,
    topics: Sequence[str],
    *,
    partitions: Sequence[TopicPartition] | None = None,
    topic_id: str | None = None,
    store_options: Mapping[str, object] | None = None,
    key_ring: str | None = None,
    settings: Mapping[str, str] | None = None,
    start_offset: int = 0,
    upto_offset: int | None = None,
    job_id: str | None = None,
    group_bytes: int = GROUP_BYTES,
    buffer_bytes: int = BUFFER_BYTES,
    work_directory: str | None = None,
    now_ms: int | None = None,
    bucket: Bucket | None = None,
) -> list[CompactionOutcome]:
    """Compact topics in the bucket, all of their partitions or those named; what came of each.

    `settings` outweigh the topics' own, as their heads have them. `start_offset` and `upto_offset` bound the rows that
    are looked at, in every partition. A `job_id` makes the job one that may be run again: partitions that it has
    committed are passed over. Managers at work go on. `bucket` stands in for url, options, ring and directory.

    Raises NotFound for a topic or partition that the bucket lacks, InvalidRequest for one that is not compacted, and
    after all other partitions are committed what the first one raised that could not be: Fenced when another writer
    took it over meanwhile, Conflict when it changed too much. Then the job may simply be run again.
    """
    bucket = bucket or Bucket(
        url=url,
        options=store_options or {},
        key_ring=key_ring,
        settings=settings or {},
        work_directory=work_directory,
    )
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    with bucket.opened() as store:
        names = _chosen(store, topics, partitions, topic_id)
        plans = [
            plan_compaction(
                store,
                name,
                now_ms=now_ms,
                start_offset=start_offset,
                upto_offset=upto_offset,
                job_id=job_id,
                group_bytes=group_bytes,
                settings=settings,
                keys=bucket.keys(),
            )
            for name in names
        ]
        results = _rewritten(spark, bucket, plans, Buffer(size_bytes=buffer_bytes))
        return _committed(store, plans, results, now_ms)


def _chosen(
    store: ObjectStore, topics: Sequence[str], partitions: Sequence[TopicPartition] | None, topic_id: str | None
) -> list[RemotePartitionName]:
    """The partitions that have a head. Raises NotFound."""
    from remote.catalog import list_partitions
    from remote.metadata_log import MetadataLog

    there = [
        name
        for name in list_partitions(store)
        if (head := MetadataLog(store, name.prefix).load()) is not None and head.deleted_ms is None
    ]
    found = [
        name
        for name in there
        if name.topic in topics
        and topic_id in (None, name.topic_id)
        and (partitions is None or name.topic_partition in partitions)
    ]
    wanted = set(partitions or ())
    missing = [topic for topic in topics if topic not in {name.topic for name in found}]
    missing += [str(each) for each in sorted(wanted - {name.topic_partition for name in found})]
    if missing:
        facts = {"missing": missing[0], "there_are": ",".join(sorted({name.topic for name in there})[:10]) or "none"}
        raise NotFound("compacting with spark, no such topic or partition in the bucket", **facts)
    return found


def _committed(
    store: ObjectStore, plans: Sequence[CompactionPlan], results: Mapping[int, list[GroupResult]], now_ms: int
) -> list[CompactionOutcome]:
    """All that can be. Raises the first error of those that cannot, after the others."""
    outcomes, errors = [], []
    for number, plan in enumerate(plans):
        try:
            outcome = commit_compaction(store, plan, results.get(number, []), now_ms=now_ms)
        except LogError as error:
            _log.error("compaction not committed: partition=%s error=%s", plan.name.topic_partition, error)
            errors.append(error)
            continue
        _log.info("compaction committed: partition=%s outcome=%s", plan.name.topic_partition, outcome)
        outcomes.append(outcome)
    if errors:
        raise errors[0]
    return outcomes


def _rewritten(
    spark: SparkSession, bucket: Bucket, plans: Sequence[CompactionPlan], buffer: Buffer
) -> dict[int, list[GroupResult]]:
    """Both passes of every group, one action; the results by the number of their plan."""
    work = [
        (number, group.number, bytearray(pickle.dumps(with_groups(plan, [group]))))
        for number, plan in enumerate(plans)
        for group in plan.groups
    ]
    if not work:
        return {}
    groups = spark.createDataFrame(work, "tp int, grp int, plan binary").repartition(len(work))
    rewritten = _as_job(spark, f"compacting {len(plans)} partitions in the bucket", groups, bucket, buffer, len(work))
    found: dict[int, list[GroupResult]] = {}
    for row in rewritten:
        found.setdefault(row["tp"], []).append(pickle.loads(bytes(row["result"])))  # noqa: S301 - our own task's
    return found


def _as_job(
    spark: SparkSession, description: str, groups: DataFrame, bucket: Bucket, buffer: Buffer, tasks: int
) -> list[Any]:
    """The one action, under a name that people see; exactly once, for it has effects."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    newest = (
        groups.mapInArrow(_pass_one(bucket, buffer), KEYS)
        .groupBy("tp", "h1", "h2")
        .agg(F.max(F.struct("offset", "grp")).alias("newest"))
        .select("tp", "newest.grp", "newest.offset", F.lit(None).cast("binary").alias("plan"))
    )
    # A group that lost every record is rewritten as well: its plan comes along as a row of its own. As many tasks as
    # groups, told by number: left to itself, adaptive execution puts groups of few offsets into one task.
    every = newest.unionByName(groups.select("tp", "grp", F.lit(-1).cast("long").alias("offset"), "plan"))
    together = every.repartition(tasks, "tp", "grp").groupBy("tp", "grp")
    before = spark.sparkContext.getLocalProperty("spark.job.description")
    spark.sparkContext.setJobDescription(description)
    try:
        return together.applyInArrow(_pass_two(bucket), RESULT).collect()
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", cast(str, before))  # None takes it away


def _pass_one(bucket: Bucket, buffer: Buffer) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        from local.storage import DiskStorage
        from tiered.bucket_passes import GroupWork

        with bucket.opened() as store:
            for tp, number, plan in _work_of(batches):
                group = plan.groups[0]
                with bucket.scratch() as directory:
                    one = GroupWork(store, plan, group, storage=DiskStorage(), directory=directory, keys=bucket.keys())
                    for run in one.newest_keys(buffer):
                        rows = len(run.offsets)
                        names = np.full(rows, tp, np.int32), np.full(rows, number, np.int32)
                        columns: list[Any] = [names[0], run.low, run.high, run.offsets, names[1]]
                        yield pa.RecordBatch.from_arrays([pa.array(each) for each in columns], names=KEY_NAMES)

    return work


def _pass_two(bucket: Bucket) -> Callable[[pa.Table], pa.Table]:
    def work(rows: pa.Table) -> pa.Table:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from local.storage import DiskStorage
        from tiered.bucket_passes import GroupWork

        plans = rows.filter(pc.is_valid(rows["plan"])).to_batches()
        ((tp, number, plan),) = _work_of(iter(plans))
        offsets = np.sort(rows["offset"].to_numpy())
        with bucket.opened() as store, bucket.scratch() as directory:
            one = GroupWork(store, plan, plan.groups[0], storage=DiskStorage(), directory=directory, keys=bucket.keys())
            result = one.rewrite(offsets[offsets >= 0])
        columns: list[Any] = [pa.array([tp], pa.int32()), pa.array([number], pa.int32())]
        columns.append(pa.array([pickle.dumps(result)], pa.binary()))
        return pa.Table.from_arrays(columns, names=["tp", "grp", "result"])

    return work


KEY_NAMES = [field.split()[0] for field in KEYS.split(", ")]


def _work_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, CompactionPlan]]:
    for batch in batches:
        for row in batch.select(["tp", "grp", "plan"]).to_pylist():
            yield row["tp"], row["grp"], pickle.loads(row["plan"])  # noqa: S301 - our own driver's
