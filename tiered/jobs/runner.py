"""One runner for every job: plan -> units -> commit.

1. A plan lists what is due. It is made and shown before a job runs.
2. A `Job` divides its plans into units. An executor does them, in any order and any number of times: in this process
   (`Here`) or in Spark tasks (`tiered.spark.jobs.runner.SparkRunner`). The results are the same.
3. `run_job` hands the results of each batch to the job, which commits them. Only the process of the runner commits.

A unit that fails for good (damaged, expired, a missing key) is recorded and does not affect the other units. If the
store does not answer, the job ends with Unavailable: here after a commit of the finished units, in Spark after the
retries of the task. An interrupted job loses one batch at most; to continue, plan again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Protocol, TypeVar

from local.errors import LogError, Unavailable
from remote.manifest.catalog import RemotePartitionName
from tiered.jobs.job_bucket import Bucket

if TYPE_CHECKING:
    from tiered.jobs.bucket_compaction import CompactionPlan, GroupResult

_log = logging.getLogger(__name__)

TASK_BYTES = 128 << 20  # of segments that one task reads
W = TypeVar("W")
R = TypeVar("R")
Outcome = TypeVar("Outcome")
Clock = Callable[[], int]


class Executor(Protocol):
    """Does pieces of work. With `is_parallel` pieces run at the same time, so small ones are packed together."""

    @property
    def is_parallel(self) -> bool: ...

    @property
    def should_stop(self) -> Callable[[], bool]: ...

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
        """Yield the results of `do` for each piece of `work`, in order, in lists. Ends early if `should_stop`.

        `work` is read as pieces are begun, and may skip pieces that are no longer wanted; `total` is its length if it
        is no sequence. A list has `batch_size` results, or those of all tasks of a wave. `on_done` is called in this
        process for each piece, before the list with its result.
        """
        ...

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        """Run both passes of `plans`; return the results of their groups by the number of the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """Does all work in this process: one piece after another, or with `threads` as many at a time."""

    should_stop: Callable[[], bool] = lambda: False
    threads: int = field(default=1, kw_only=True)
    is_parallel: bool = field(default=False, init=False)

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
        done: list[R] = []
        for piece, result in self._results(work, do):
            if isinstance(result, LogError):
                if done:
                    yield done
                raise result
            on_done(piece, result)
            done.append(result)
            if len(done) == batch_size:
                yield done
                done = []
        if done:
            yield done

    def _results(self, work: Iterable[W], do: Callable[[W], R]) -> Iterator[tuple[W, R | LogError]]:
        def attempt(piece: W) -> R | LogError:
            try:
                return do(piece)
            except LogError as error:
                return error

        pieces = takewhile(lambda piece: not self.should_stop(), work)
        if self.threads == 1:
            yield from ((piece, attempt(piece)) for piece in pieces)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="job") as pool:
            while some := list(islice(pieces, self.threads)):
                yield from zip(some, pool.map(attempt, some), strict=True)

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        from local.storage import DiskStorage
        from tiered.jobs.compaction_passes import both_passes

        found = {}
        with bucket.opened() as store:
            for number, plan in enumerate(plans):
                with bucket.scratch() as directory:
                    found[number] = both_passes(store, plan, DiskStorage(), directory, keys=bucket.keys())
        return found


class PlanUnit(Protocol):
    """A unit of work, which can be pickled; `number` is the number of its plan."""

    @property
    def number(self) -> int: ...


U = TypeVar("U", bound=PlanUnit)


class Failures:
    """The first error of each plan of a job, by the number of the plan."""

    def __init__(self, names: Sequence[RemotePartitionName]) -> None:
        self._names = names
        self.first: dict[int, LogError] = {}

    def note(self, number: int, error: LogError) -> None:
        if self.first.setdefault(number, error) is not error:
            self._log(number, error)

    def _log(self, number: int, error: LogError) -> None:
        """Log an error that no caller receives."""
        _log.error("work failed: partition=%s error=%s", self._names[number].topic_partition, error)

    @contextmanager
    def noted(self, number: int) -> Iterator[None]:
        """Record an error of the block, which then ends. Raises Unavailable."""
        try:
            yield
        except Unavailable:
            raise
        except LogError as error:
            self.note(number, error)

    def settle(self, errors: dict[int, LogError] | None) -> None:
        """Add the errors to `errors`; without it, raise the first one and log those of the other plans."""
        if errors is not None:
            errors.update(self.first)
            return
        numbers = sorted(self.first)
        for number in numbers[1:]:
            self._log(number, self.first[number])
        if numbers:
            raise self.first[numbers[0]]


class Job(Protocol[U, R, Outcome]):
    """The state of a job in the process that commits."""

    description: str
    batch_size: int  # units to commit together
    failures: Failures

    def begin(self, opened: ExitStack) -> None:
        """Open the stores, until `opened` ends."""
        ...

    def units(self) -> Iterable[U]:
        """Return the units that are due now, in the order of the plans."""
        ...

    def size_of(self, unit: U) -> int:
        """Return the bytes that the unit reads."""
        ...

    def is_wanted(self, unit: U) -> bool:
        """Return whether the unit can still be committed. Called before the unit begins."""
        ...

    def worker(self) -> Callable[[Sequence[U]], list[R | LogError]]:
        """Return a function for any process, without the state of the job; see `or_error`."""
        ...

    def commit(self, results: Sequence[tuple[U, R | LogError]]) -> None:
        """Commit the results of a batch, in order. Errors among them are in `failures` already."""
        ...

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each plan, in order."""
        ...


def run_job(
    job: Job[U, R, Outcome],
    executor: Executor,
    *,
    task_bytes: int = TASK_BYTES,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
) -> list[Outcome]:
    """Do and commit all units; return the outcome of each plan, in order. `progress` receives the bytes of each unit.

    If the executor is to stop, all finished units are committed. The first error of each plan is added to `errors`, by
    the number of the plan; without `errors` the first one is raised after all possible commits. Raises Unavailable,
    and Spark's error for a task that failed for good.
    """
    finished: list[tuple[U, R | LogError]] = []

    def on_done(pack: Sequence[U], results: Sequence[R | LogError]) -> None:
        for unit, result in zip(pack, results, strict=True):
            finished.append((unit, result))
            if isinstance(result, LogError):
                job.failures.note(unit.number, result)
            else:
                progress(job.size_of(unit))

    with ExitStack() as opened:
        job.begin(opened)
        packs = packed(list(job.units()), job.size_of, task_bytes if executor.is_parallel else 0)
        due = (rest for pack in packs if (rest := tuple(filter(job.is_wanted, pack))))
        for _ in executor.run_in_batches(
            job.description, due, job.worker(), total=len(packs), batch_size=job.batch_size, on_done=on_done
        ):
            job.commit(finished)
            finished.clear()
        outcomes = job.outcomes()
    job.failures.settle(errors)
    return outcomes


def packed(work: Sequence[W], size_of: Callable[[W], int], task_bytes: int) -> list[tuple[W, ...]]:
    """Divide `work` into runs, in order, each of up to `task_bytes` or of one piece."""
    packs: list[list[W]] = []
    size = 0
    for each in work:
        if not packs or size + size_of(each) > task_bytes:
            packs.append([])
            size = 0
        packs[-1].append(each)
        size += size_of(each)
    return [tuple(pack) for pack in packs]


def or_error(do: Callable[[], R]) -> R | LogError:
    """Return the result of `do`, or its error. Raises Unavailable, which is worth a retry."""
    try:
        return do()
    except Unavailable:
        raise
    except LogError as error:
        return error
