"""Copy partitions to another bucket in Spark tasks.

Plans, commits and the comparison are those of `tiered.jobs.bucket_copying`.

1. The driver begins every partition's copy (its writer epoch).
2. Tasks copy segments.
3. The driver commits each wave in offset order. Entries of a cleaned partition are committed together, after the last.

A second run continues behind the committed entries. A segment that cannot be copied ends only its own partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from local.errors import LogError, Unavailable
from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import CHUNK_BYTES
from remote.store import ObjectStore
from tiered.jobs.bucket_copying import (
    ENTRIES_A_MANIFEST,
    CopyEntry,
    CopyOutcome,
    CopyPlan,
    begin_copy,
    commit_entries,
    compare,
    copy_entry,
    finish_copy,
)
from tiered.jobs.job_bucket import Bucket
from tiered.spark.jobs.rewriting import TASK_BYTES
from tiered.spark.jobs.task_batches import in_task_batches, or_error, packed
from tiered.spark.source.pinning import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_Work = tuple[int, CopyPlan, int, CopyEntry]  # the plan's number, the plan without its entries, the epoch, an entry


def copy(
    spark: SparkSession,
    source: Bucket,
    target: Bucket,
    plans: Sequence[CopyPlan],
    *,
    job_id: str | None = None,
    task_bytes: int = TASK_BYTES,
    wave_tasks: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    now_ms: Callable[[], int] = wall_ms,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> list[CopyOutcome]:
    """Run plans of `tiered.jobs.bucket_copying` and compare; the outcome of each, in order.

    `should_stop` ends the job between two waves, with a commit of everything that may be committed alone.

    After the other partitions it raises the first error of the failed ones: Conflict if another writer writes to the
    copy, Fenced if another run of it began, NotFound for an entry that has expired, Corrupt for a damaged one. Raises
    Spark's error for a task that failed for good.
    """
    with source.opened() as store, target.opened() as to:
        job = _Job(store, to, plans, now_ms)
        packs = packed(list(job.work()), lambda each: each[3].entry.size_bytes, task_bytes)
        due = (pack for pack in map(job.wanted, packs) if pack)
        description = (
            f"copying {sum(len(plan.entries) for plan in plans)} segments of {len(plans)} partitions to {to.url}"
        )
        do = _copying(source, target, chunk_bytes)
        waves = in_task_batches(
            spark, description, due, do, wave_tasks=wave_tasks, total=len(packs), group=job_id, should_stop=should_stop
        )
        for wave in waves:
            job.commit([each for results in wave for each in results])
            for number, result in (each for results in wave for each in results):
                if not isinstance(result, LogError) and number not in job.errors:
                    progress(result.size_bytes)
        return job.outcomes()


def _copying(
    source: Bucket, target: Bucket, chunk_bytes: int
) -> Callable[[Sequence[_Work]], list[tuple[int, SegmentEntry | LogError]]]:
    def do(works: Sequence[_Work]) -> list[tuple[int, SegmentEntry | LogError]]:
        with source.opened() as store, target.opened() as to:
            copied = partial(copy_entry, store, to, keys=source.keys(), chunk_bytes=chunk_bytes)
            return [(number, or_error(partial(copied, plan, each, epoch=epoch))) for number, plan, epoch, each in works]

    return do


class _Job:
    """The state of each partition's copy, in the driver only. Begins all copies."""

    def __init__(
        self, source: ObjectStore, target: ObjectStore, plans: Sequence[CopyPlan], now_ms: Callable[[], int]
    ) -> None:
        self._source, self._target, self._plans, self._now_ms = source, target, plans, now_ms
        self.errors: dict[int, LogError] = {}
        self._epochs: dict[int, int] = {}
        self._waiting: list[list[SegmentEntry]] = [[] for _ in plans]
        self._there = [0] * len(plans)  # committed entries
        self._sizes = [0] * len(plans)  # their bytes
        for number, plan in enumerate(plans):
            self._guarded(number, partial(self._begin, number, plan))

    def _begin(self, number: int, plan: CopyPlan) -> None:
        self._epochs[number] = begin_copy(self._source, self._target, plan).epoch

    def work(self) -> Iterator[_Work]:
        for number, plan in enumerate(self._plans):
            bare = replace(plan, entries=())
            for row in plan.entries if number in self._epochs else ():
                yield number, bare, self._epochs[number], row

    def wanted(self, pack: Sequence[_Work]) -> tuple[_Work, ...]:
        """The pack without entries behind a missing one."""
        return tuple(each for each in pack if each[0] not in self.errors)

    def commit(self, results: Sequence[tuple[int, SegmentEntry | LogError]]) -> None:
        """Commit the results of a wave that precede the first missing entry."""
        for number, result in results:
            if number in self.errors:
                continue
            if isinstance(result, LogError):
                self._keep(number, result)
            else:
                self._waiting[number].append(result)
        for number, plan in enumerate(self._plans):
            is_whole = self._there[number] + len(self._waiting[number]) == len(plan.entries)
            if self._waiting[number] and (is_whole or not plan.at_once):
                self._guarded(number, partial(self._commit_one, number, plan))

    def _commit_one(self, number: int, plan: CopyPlan) -> None:
        waiting, self._waiting[number] = self._waiting[number], []
        step = len(waiting) if plan.at_once else ENTRIES_A_MANIFEST
        for at in range(0, len(waiting), step):
            rows = waiting[at : at + step]
            commit_entries(self._target, plan, rows, epoch=self._epochs[number], now_ms=self._now_ms())
            self._there[number] += len(rows)
            self._sizes[number] += sum(row.size_bytes for row in rows)

    def outcomes(self) -> list[CopyOutcome]:
        """Finish the complete copies. Raises the first recorded error."""
        found: list[CopyOutcome] = []
        for number, plan in enumerate(self._plans):
            if number not in self.errors:
                self._guarded(number, partial(self._finish, number, plan, found))
        if self.errors:
            raise self.errors[min(self.errors)]
        return found

    def _finish(self, number: int, plan: CopyPlan, found: list[CopyOutcome]) -> None:
        rows, size = self._there[number], self._sizes[number]
        if rows < len(plan.entries):
            found.append(CopyOutcome(name=plan.name, entries=rows, size_bytes=size, is_complete=False))
            return
        finish_copy(self._target, plan, epoch=self._epochs[number], now_ms=self._now_ms())
        behind, other = compare(self._source, self._target, plan.name)
        found.append(
            CopyOutcome(name=plan.name, entries=rows, size_bytes=size, behind=behind, differences=tuple(other))
        )

    def _guarded(self, number: int, do: Callable[[], object]) -> None:
        try:
            do()
        except Unavailable:
            raise
        except LogError as error:
            self._keep(number, error)

    def _keep(self, number: int, error: LogError) -> None:
        _log.error("not copied: partition=%s error=%s", self._plans[number].name.topic_partition, error)
        self.errors.setdefault(number, error)
