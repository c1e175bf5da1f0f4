"""Verification of a bucket: a shallow scrub, a deep scrub, or a deep scrub of a sample of segments.

All manifests, pages, entries, names and sizes are checked every time: metadata and one listing. A `Sample` is the share
of segments to read and decode, of all segments in the newest manifests of the chosen partitions, at least one. Each
segment's rank depends on the seed and its own name only. So the same seed draws the same sample of the same segments,
and another seed draws another sample.
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

Telling = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # bytes to read -> callback of bytes read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A `share` of the segments, above 0 and at most 1, drawn by `seed`.

    Raises InvalidRequest for another share.
    """

    share: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:  # NaN is neither
            raise InvalidRequest(
                "invalid sample of segments, the share must be above 0% and at most 100%", share=self.share
            )

    def of(self, jobs: Sequence[SegmentJob]) -> tuple[SegmentJob, ...]:
        """Return the drawn segments, in their order."""
        count = math.ceil(self.share * len(jobs))
        drawn = set(sorted(range(len(jobs)), key=lambda at: self._lot(jobs[at]))[:count])
        return tuple(job for at, job in enumerate(jobs) if at in drawn)

    def _lot(self, job: SegmentJob) -> bytes:
        return blake2b(f"{self.seed} {job.name} {job.entry.base_offset}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketVerdict:
    """Findings of a verification.

    The newest manifests name `segments` segments; the bytes of `read_segments` of them were decoded.
    """

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
    local_copy: LocalCopy = lambda name, entry: False,
    should_stop: Callable[[], bool] = lambda: False,
    telling: Telling = lambda size_bytes: nullcontext(lambda read_bytes: None),
) -> BucketVerdict | None:
    """Check everything, and with `deep` or a `sample` the content of segments. Changes nothing.

    Returns None if `should_stop` ended it early. `missing` as in `tiered.health.scrub.plan_scrub`. Raises Unavailable.
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
    return sum(len(survey.entries) for survey in plan.surveys.values())
