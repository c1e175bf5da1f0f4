"""Merge and recode segments of a bucket in Spark tasks.

Plans and commits are those of `tiered.jobs.rewriting`. A task reads a few groups and uploads the results. The driver
commits each wave, with one or two manifests for each partition. An interrupted job, or a crashed driver, therefore
loses one wave; the next run plans again. A group that fails for good (damaged, expired, a missing key) is reported and
does not affect the others. If the store does not answer, the task fails and Spark retries it. Managers may run at the
same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from local.errors import LogError, Unavailable
from policies.remote_retention import UNLINKED_MAX
from remote.manifest.commit_protocol import MetadataLog
from remote.segments.chunk_table import CHUNK_BYTES
from remote.store import ObjectStore
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.rewriting import (
    GROUPS_A_MANIFEST,
    RewriteGroup,
    RewriteOutcome,
    RewritePlan,
    RewrittenGroup,
    commit_groups,
    rewrite_group,
)
from tiered.spark.jobs.task_batches import in_task_batches, or_error, packed
from tiered.spark.source.pinning import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

TASK_BYTES = 128 << 20  # of segments that one task rewrites

_Work = tuple[int, RewritePlan, RewriteGroup]  # the plan by its number, without its groups


def rewrite(
    spark: SparkSession,
    bucket: Bucket,
    plans: Sequence[RewritePlan],
    *,
    target: Bucket | None = None,
    job_id: str | None = None,
    task_bytes: int = TASK_BYTES,
    wave_tasks: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    now_ms: Callable[[], int] = wall_ms,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
) -> list[RewriteOutcome]:
    """Run plans of `tiered.jobs.rewriting`, of any number of partitions; the outcome of each, in order.

    `target` is the same bucket opened in another way. `should_stop` ends the job between two waves, with all results
    committed. `job_id` groups the jobs in Spark's UI. `progress` receives the bytes of each group. The job does as much
    of a partition as its manifest can list pending deletes for; the rest waits for the grace period.

    After all possible commits it raises the first error of the others: Fenced for a partition that another writer took
    over, Corrupt for a damaged segment. With `errors` the first error of each plan is added there instead, by the
    plan's number. Raises Spark's error for a task that failed for good.
    """
    with bucket.opened() as store:
        job = _Job(store, plans, now_ms)
        description = (
            f"rewriting {sum(len(plan.groups) for plan in plans)} groups of segments in {len(plans)} partitions"
        )
        packs = packed(list(job.work()), lambda each: each[2].size_bytes, task_bytes)
        due = (pack for pack in map(job.wanted, packs) if pack)
        do = _rewriting(bucket, target or bucket, chunk_bytes)
        waves = in_task_batches(
            spark, description, due, do, wave_tasks=wave_tasks, total=len(packs), group=job_id, should_stop=should_stop
        )
        for wave in waves:
            job.commit([each for results in wave for each in results], progress)
        if errors is None and job.errors:
            raise job.errors[min(job.errors)]
        (errors if errors is not None else {}).update(job.errors)
        return job.outcomes()


def _rewriting(
    bucket: Bucket, target: Bucket, chunk_bytes: int
) -> Callable[[Sequence[_Work]], list[tuple[int, RewrittenGroup | LogError]]]:
    def do(works: Sequence[_Work]) -> list[tuple[int, RewrittenGroup | LogError]]:
        with bucket.opened() as store, target.opened() as to:
            rewritten = partial(rewrite_group, store=store, keys=bucket.keys(), target=to, chunk_bytes=chunk_bytes)
            return [(number, or_error(partial(rewritten, plan, group))) for number, plan, group in works]

    return do


class _Job:
    """The state of each plan, in the driver only."""

    def __init__(self, store: ObjectStore, plans: Sequence[RewritePlan], now_ms: Callable[[], int]) -> None:
        self._store, self._plans, self._now_ms = store, plans, now_ms
        self._outcomes = [RewriteOutcome() for _ in plans]
        self._turns = [0] * len(plans)
        self.errors: dict[int, LogError] = {}
        self._over: set[int] = set()

    def work(self) -> Iterator[_Work]:
        """The groups of each partition, as far as its manifest can list the pending deletes."""
        for number, plan in enumerate(self._plans):
            room = 0
            if plan.groups:
                room = UNLINKED_MAX - len(MetadataLog(self._store, plan.name.prefix).refresh().pending_deletes)
            bare = replace(plan, groups=())
            for group in plan.groups:
                if room <= 0:
                    break
                room -= 2 * len(group.entries)
                yield number, bare, group

    def wanted(self, pack: Sequence[_Work]) -> tuple[_Work, ...]:
        """The pack without groups that can no longer be committed."""
        return tuple(each for each in pack if each[0] not in self._over)

    def commit(self, results: Sequence[tuple[int, RewrittenGroup | LogError]], progress: Callable[[int], None]) -> None:
        """Commit the results of a wave by partition.

        An error is recorded for the end. It ends its partition if no later commit would be safe.
        """
        done: dict[int, list[RewrittenGroup]] = {}
        for number, result in results:
            if isinstance(result, LogError):
                self._keep(number, result)
            else:
                done.setdefault(number, []).append(result)
        for number, groups in done.items():
            for at in range(0, len(groups), GROUPS_A_MANIFEST):
                if number not in self._over:
                    self._commit_one(number, groups[at : at + GROUPS_A_MANIFEST], progress)

    def _commit_one(self, number: int, groups: Sequence[RewrittenGroup], progress: Callable[[int], None]) -> None:
        plan = self._plans[number]
        self._turns[number] += 1
        try:
            outcome = commit_groups(self._store, plan, groups, turn=self._turns[number], now_ms=self._now_ms())
        except Unavailable:
            raise
        except LogError as error:  # another writer, or the topic is deleted: no later group could be committed
            self._over.add(number)
            self._keep(number, error)
            return
        self._outcomes[number] = self._outcomes[number].plus(outcome)
        sizes = {group.number: group.size_bytes for group in plan.groups}
        for each in groups:
            progress(sizes[each.number])

    def _keep(self, number: int, error: LogError) -> None:
        _log.error("not rewritten: partition=%s error=%s", self._plans[number].name.topic_partition, error)
        self.errors.setdefault(number, error)

    def outcomes(self) -> list[RewriteOutcome]:
        return [
            replace(outcome, is_complete=outcome.groups == len(plan.groups))
            for plan, outcome in zip(self._plans, self._outcomes, strict=True)
        ]
