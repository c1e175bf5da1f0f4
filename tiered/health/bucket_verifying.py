"""A bucket verified: the shallow scrub, a deep one, or a deep one of some of its segments, drawn by a seed.

All heads, pages, rows, names and sizes are always looked at: that is metadata and one listing. A `Sample` says of how
many segments the bytes are read and decoded: of those that the newest heads of the chosen partitions name, together,
at least one. Which ones hangs on the seed and their names alone, so the same seed draws the same ones again, however
many are beside them, and another seed others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b

from local.errors import InvalidRequest
from remote.manifest.catalog import RemotePartitionName
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.health.scrub import THREADS, LocalCopy, ScrubPlan, SegmentJob, plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import ScrubReport

Telling = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # of bytes to read: a progress of bytes read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`share` of the segments, above 0 and at most 1, drawn by `seed`. Raises InvalidRequest for another share."""

    share: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:  # no number is neither
            raise InvalidRequest(
                "drawing a sample of segments, its share is above 0% and at most 100%", share=self.share
            )

    def of(self, jobs: Sequence[SegmentJob]) -> tuple[SegmentJob, ...]:
        """Those drawn, in their order."""
        count = math.ceil(self.share * len(jobs))
        drawn = set(sorted(range(len(jobs)), key=lambda at: self._lot(jobs[at]))[:count])
        return tuple(job for at, job in enumerate(jobs) if at in drawn)

    def _lot(self, job: SegmentJob) -> bytes:
        return blake2b(f"{self.seed} {job.name} {job.row.base_offset}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketVerdict:
    """What was found. The newest heads name `segments`; the bytes of `read_segments` of them were decoded."""

    report: ScrubReport
    segments: int
    read_segments: int
    sample: Sample | None


def verify_bucket(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    *,
    missing: Sequence[RemotePartitionName] = (),
    now_ms: int,
    deep: bool = False,
    sample: Sample | None = None,
    keys: KeyRing = NO_KEYS,
    threads: int = THREADS,
    local_copy: LocalCopy = lambda name, row: False,
    should_stop: Callable[[], bool] = lambda: False,
    telling: Telling = lambda size_bytes: nullcontext(lambda read_bytes: None),
) -> BucketVerdict | None:
    """Look at everything, and with `deep` or a `sample` into the segments; None when told to stop before the end.

    `missing` as in `tiered.health.scrub.plan_scrub`. Changes nothing. Raises Unavailable.
    """
    plan = plan_scrub(store, names, deep=deep or sample is not None, missing=missing)
    if sample is not None:
        plan = replace(plan, jobs=sample.of(plan.jobs))
    with telling(plan.size_bytes) as progress:
        results = run_scrub(store, plan, keys=keys, threads=threads, should_stop=should_stop, progress=progress)
    if results is None:
        return None
    report = report_of(store, plan, results, started_ms=now_ms, now_ms=now_ms, local_copy=local_copy)
    read = len(plan.jobs) - report.unread_segments
    return BucketVerdict(report=report, segments=_segments(plan), read_segments=read, sample=sample)


def _segments(plan: ScrubPlan) -> int:
    return sum(len(survey.rows) for survey in plan.surveys.values())
