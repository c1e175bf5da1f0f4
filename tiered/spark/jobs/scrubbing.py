"""A deep scrub that reads in Spark tasks; the plan and the report are those of `tiered.health.scrub`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from local.errors import NotFound
from tiered.health.scrub import LocalCopy, SegmentJob, plan_scrub, report_of, scrub_segment
from tiered.health.scrub_report import ScrubReport
from tiered.health.scrub_state import ScrubState, SegmentResult
from tiered.jobs.job_bucket import Bucket
from tiered.spark.jobs.task_batches import in_task_batches, packed
from tiered.spark.source.pinning import wall_ms
from tiered.stores.object_encoding import SettingsOf, own_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remote.manifest.catalog import RemotePartitionName

Telling = Callable[[int], AbstractContextManager[Callable[[int], None]]]
TASK_BYTES = 128 << 20  # stored bytes that one task reads


def scrub(
    spark: SparkSession,
    url: str,
    topics: Sequence[str] = (),
    *,
    store_options: Mapping[str, object] | None = None,
    key_ring: str | None = None,
    state: ScrubState | None = None,
    task_bytes: int = TASK_BYTES,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda read_bytes: None,
    local_copy: LocalCopy = lambda name, row: False,
) -> ScrubReport | None:
    """Read every byte of `topics`, by default of all; the report is that of ``tiered scrub --deep``.

    `state` records the finished segments after each wave; segments in it are not read again. `progress` receives the
    bytes of each segment. None if `should_stop` ended the scrub. Changes nothing in the bucket.

    Raises NotFound for a topic that the bucket lacks.
    """
    from remote.manifest.catalog import chosen_partitions, missing_between

    bucket = Bucket(url=url, options=store_options or {}, key_ring=key_ring)
    with bucket.opened() as store:
        names = chosen_partitions(store, [(topic, None) for topic in topics])
    if missing := sorted(set(topics) - {name.topic for name in names}):
        raise NotFound("cannot scrub with Spark, the topic is not in the bucket", topic=missing[0])
    return scrub_partitions(
        spark,
        bucket,
        names,
        missing=missing_between(names),
        state=state,
        task_bytes=task_bytes,
        wave_tasks=wave_tasks,
        should_stop=should_stop,
        telling=lambda size_bytes: nullcontext(progress),
        local_copy=local_copy,
    )


def scrub_partitions(
    spark: SparkSession,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    *,
    missing: Sequence[RemotePartitionName] = (),
    state: ScrubState | None = None,
    task_bytes: int = TASK_BYTES,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    telling: Telling = lambda size_bytes: nullcontext(lambda read_bytes: None),
    local_copy: LocalCopy = lambda name, row: False,
    settings: SettingsOf = own_settings,
) -> ScrubReport | None:
    """`scrub` for selected partitions; `telling` creates its `progress` when the total is known."""
    started_ms = state.started_ms if state is not None else wall_ms()
    with bucket.opened() as store:
        plan = plan_scrub(store, names, deep=True, settings=settings, missing=missing)
        done = state.results(job.identity for job in plan.jobs) if state is not None else {}
        with telling(plan.size_bytes) as progress:
            for result in done.values():
                progress(result.read_bytes)
            due = packed([job for job in plan.jobs if job.identity not in done], lambda job: job.read_bytes, task_bytes)
            description = f"scrubbing {len(plan.jobs)} segments"
            for wave in in_task_batches(
                spark, description, due, _reading(bucket), wave_tasks=wave_tasks, should_stop=should_stop
            ):
                for result in (result for task in wave for result in task):
                    done[result.name] = result
                    if state is not None:
                        state.note(result)
                    progress(result.read_bytes)
        if any(job.identity not in done for job in plan.jobs):
            return None
        results = [done[job.identity] for job in plan.jobs]
        return report_of(store, plan, results, started_ms=started_ms, now_ms=wall_ms(), local_copy=local_copy)


def _reading(bucket: Bucket) -> Callable[[Sequence[SegmentJob]], list[SegmentResult]]:
    def read(jobs: Sequence[SegmentJob]) -> list[SegmentResult]:
        with bucket.opened() as store:
            keys = bucket.keys()
            return [scrub_segment(job, store, keys) for job in jobs]

    return read
