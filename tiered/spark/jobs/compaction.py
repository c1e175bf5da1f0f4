"""Compact topics of a bucket by a Spark job: the passes of `tiered.jobs.bucket_compaction` in tasks.

Only digests of keys and offsets are shuffled, 19 bytes for each record that may stay (`tiered.jobs.key_exchange`). Keys
and values never leave the Python worker that read them. One action runs both passes
(`tiered.spark.jobs.compaction_job`). The driver then commits each partition with one manifest. Partitions with very
many entries need further rounds.

Tasks may fail, be retried and run twice: each attempt uploads under its own names, and only those of the successful
attempts are committed. Executors need disk for one group each (``work_directory``) and no memory for data. The driver
holds segment entries, never records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from local.cleaner.offset_map import Buffer
from local.errors import LogError, NotFound
from local.names import TopicPartition
from remote.keys import new_ulid
from tiered.jobs.bucket_compaction import (
    GROUP_BYTES,
    ROWS_MAX,
    CompactionOutcome,
    CompactionPlan,
    GroupResult,
    commit_compaction,
    plan_compaction,
    wants_another,
)
from tiered.jobs.job_bucket import Bucket
from tiered.spark.jobs.compaction_job import rewritten

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remote.manifest.catalog import RemotePartitionName
    from remote.store import ObjectStore

_log = logging.getLogger(__name__)

BUFFER_BYTES = 64 << 20  # of one task, for keys that come twice in its input; without it more would be shuffled


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
    rows_max: int = ROWS_MAX,
    buffer_bytes: int = BUFFER_BYTES,
    work_directory: str | None = None,
    now_ms: int | None = None,
    bucket: Bucket | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    errors: dict[TopicPartition, LogError] | None = None,
) -> list[CompactionOutcome]:
    """Compact topics in the bucket, all of their partitions or `partitions`; the outcome of each.

    `settings` override the topics' own, which are in their manifests. `start_offset` and `upto_offset` limit the
    segments to compact, in every partition. A run with the `job_id` of an earlier one skips partitions that the earlier
    run committed. Managers may run at the same time. `bucket` replaces url, options, ring and directory. Between rounds
    (of `rows_max` entries a partition) the job ends if `should_stop`; a run under its `job_id` continues it.

    If an outcome has `given_up` groups, the job is still due: run it again under its `job_id`.

    Raises NotFound for a topic or partition that the bucket lacks, InvalidRequest for one that is not compacted. After
    the commits of all other partitions it raises the first error of a partition that could not be committed: Fenced
    after a takeover by another writer, Conflict after too many changes. The job may then be run again. With `errors`
    these errors are added there instead.
    """
    bucket = bucket or Bucket(
        url=url,
        options=store_options or {},
        key_ring=key_ring,
        settings=settings or {},
        work_directory=work_directory,
    )
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    job_id = job_id or f"compact-{new_ulid(now_ms)}"
    outcomes: dict[RemotePartitionName, CompactionOutcome] = {}
    failed: dict[TopicPartition, LogError] = {}
    with bucket.opened() as store:
        names = left = _chosen(store, topics, partitions, topic_id)
        while left and not (outcomes and should_stop()):
            plans = [
                plan_compaction(
                    store,
                    name,
                    now_ms=now_ms,
                    start_offset=start_offset,
                    upto_offset=upto_offset,
                    job_id=job_id,
                    group_bytes=group_bytes,
                    rows_max=rows_max,
                    settings=settings,
                    keys=bucket.keys(),
                )
                for name in left
            ]
            results = rewritten(spark, bucket, plans, Buffer(size_bytes=buffer_bytes))
            done = _committed(store, plans, results, now_ms, failed)
            for name, outcome in done.items():
                outcomes[name] = outcomes[name].then(outcome) if name in outcomes else outcome
            left = [
                each.name
                for each in plans
                if each.name in done and wants_another(store, each, done[each.name], rows_max=rows_max)
            ]
    if errors is not None:
        errors.update(failed)
    elif failed:
        raise next(iter(failed.values()))
    return [outcomes[name] for name in names if name in outcomes]


def _chosen(
    store: ObjectStore, topics: Sequence[str], partitions: Sequence[TopicPartition] | None, topic_id: str | None
) -> list[RemotePartitionName]:
    """The partitions of living topics. Raises NotFound, and the errors of `MetadataLog.missing`."""
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


def _committed(
    store: ObjectStore,
    plans: Sequence[CompactionPlan],
    results: Mapping[int, list[GroupResult]],
    now_ms: int,
    failed: dict[TopicPartition, LogError],
) -> dict[RemotePartitionName, CompactionOutcome]:
    """Commit all partitions that can be committed; errors of the others are added to `failed`."""
    outcomes = {}
    for number, plan in enumerate(plans):
        try:
            outcome = commit_compaction(store, plan, results.get(number, []), now_ms=now_ms)
        except LogError as error:
            _log.error("compaction not committed: partition=%s error=%s", plan.name.topic_partition, error)
            failed[plan.name.topic_partition] = error
            continue
        _log.info("compaction committed: partition=%s outcome=%s", plan.name.topic_partition, outcome)
        outcomes[plan.name] = outcome
    return outcomes
