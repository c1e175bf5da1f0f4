"""Run a pipeline's work in Spark tasks (`tiered.jobs.pipeline_job.Runner`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from local.errors import LogError
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from tiered.jobs.pipeline import Fleet, Unit, compacted_unit
from tiered.jobs.pipeline_job import Clock
from tiered.jobs.rewriting import RewriteOutcome, RewritePlan
from tiered.spark.jobs.compaction import compact
from tiered.spark.jobs.rewriting import rewrite
from tiered.spark.jobs.task_batches import in_task_batches, named_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

W = TypeVar("W")
R = TypeVar("R")


class SparkRunner:
    """A runner with waves of tasks.

    The compaction of a large partition, and the groups of merges, are spread over all tasks.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        job_id: str,
        wave_tasks: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spark, self._job_id, self._wave_tasks, self._should_stop = spark, job_id, wave_tasks, should_stop

    def run_in_batches(self, description: str, work: Sequence[W], do: Callable[[W], R]) -> Iterator[list[R]]:
        return in_task_batches(
            self._spark,
            description,
            work,
            do,
            wave_tasks=self._wave_tasks,
            group=self._job_id,
            should_stop=self._should_stop,
        )

    def compact(self, fleet: Fleet, name: RemotePartitionName, *, job_id: str, now_ms: int) -> Unit:
        with fleet.bucket.opened() as store:
            own = MetadataLog(store, name.prefix).join().properties
        with named_job(self._spark, f"compacting {name.topic}/{name.partition}", self._job_id):
            (outcome,) = compact(
                self._spark,
                fleet.bucket.url,
                [name.topic],
                partitions=[name.topic_partition],
                topic_id=name.topic_id,
                settings=fleet.settings_of(name.topic, own),
                job_id=job_id,
                now_ms=now_ms,
                bucket=fleet.bucket,
            )
        return compacted_unit(outcome)

    def merge(
        self, fleet: Fleet, plans: Sequence[RewritePlan], *, job_id: str, now_ms: Clock
    ) -> tuple[list[RewriteOutcome], dict[int, LogError]]:
        errors: dict[int, LogError] = {}
        outcomes = rewrite(
            self._spark,
            fleet.bucket,
            plans,
            job_id=self._job_id,
            wave_tasks=self._wave_tasks,
            now_ms=now_ms,
            should_stop=self._should_stop,
            errors=errors,
        )
        return outcomes, errors
