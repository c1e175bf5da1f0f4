"""One runner for every job: plan -> units -> commit.

1. A `Job` divides its plans into units. An executor does them, in any order and any number of times: in this process
   (`Here`) or in Spark tasks (`tiered.spark.jobs.runner.SparkRunner`).
2. `run_job` hands the results of each batch to the job, which commits them. Only the process of the runner commits.

A unit that fails for good is recorded and does not affect the other units. If the store does not answer, the job ends
with Unavailable: here after a commit of the finished units, in Spark after the retries of the task. An interrupted job
loses one batch at most; to continue, plan again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from os.path import dirname
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from local.names import TEMPORARY
from local.storage import DiskStorage, Storage
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
Done = Iterator[list[tuple[W, R]]]  # pieces of work with their results
F = TypeVar("F", bound="_OfStore")
L = TypeVar("L")
Decoders = tuple[msgspec.json.Decoder[F], msgspec.json.Decoder[L]]


class Executor(Protocol):
    """Does pieces of work. With `is_parallel` pieces run at the same time, so small ones are packed together."""

    @property
    def is_parallel(self) -> bool: ...
    @property
    def should_stop(self) -> Callable[[], bool]: ...

    def run(self, description: str, work: Iterable[W], do: Callable[[W], R], total: int | None = None) -> Done[W, R]:
        """Yield lists of (piece of `work`, result of `do`) that finished together, in order; ends if `should_stop`.

        `work` is read as pieces begin; `total` is the length of a `work` that is no sequence. Raises the error of `do`,
        after the earlier pieces.
        """

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        """Run both passes of `plans`; return the results of their groups by the number of the plan."""


@dataclass(frozen=True, slots=True)
class Here:
    """Does all work in this process: one piece after another, or `threads` pieces at a time."""

    should_stop: Callable[[], bool] = lambda: False
    threads: int = field(default=1, kw_only=True)
    is_parallel: bool = field(default=False, init=False)

    def run(self, description: str, work: Iterable[W], do: Callable[[W], R], total: int | None = None) -> Done[W, R]:
        pieces, several = iter(work), self.threads > 1
        with ThreadPoolExecutor(self.threads, thread_name_prefix="job") if several else nullcontext() as pool:
            apply: Callable[[Callable[[W], R], Iterable[W]], Iterator[R]] = map if pool is None else pool.map
            while not self.should_stop() and (some := list(islice(pieces, self.threads))):
                yield from ([pair] for pair in zip(some, apply(do, some), strict=True))

    def compacted(self, bucket: Bucket, plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        from tiered.jobs.compaction_passes import both_passes

        found = {}
        with bucket.opened() as store:
            for number, plan in enumerate(plans):
                with bucket.scratch() as directory:
                    found[number] = both_passes(store, plan, DiskStorage(), directory, keys=bucket.keys())
        return found


class PlanUnit(Protocol):
    @property
    def number(self) -> int:
        """The number of its plan. Units can be pickled."""


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
        _log.error("work failed: partition=%s error=%s", self._names[number].topic_partition, error)

    @contextmanager
    def noted(self, number: int, errors: tuple[type[LogError], ...] = (LogError,)) -> Iterator[None]:
        """End the block after an error, and record it if it is one of `errors`. Raises Unavailable and other errors."""
        try:
            yield
        except Unavailable:
            raise
        except errors as error:
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


class Job(ABC, Generic[U, R, Outcome]):
    """The state of a job in the process that commits. A unit has the size of the bytes that it reads."""

    description: str
    failures: Failures
    batch_size: int = 1  # units to commit together
    plan_ends_with_error: ClassVar[bool] = True

    def begin(self, opened: ExitStack) -> None:
        """Open what the job needs, until `opened` ends."""

    @abstractmethod
    def units(self) -> Iterable[U]:
        """Yield the due units in the order of the plans; in one process each is read after the commits before it."""

    @abstractmethod
    def size_of(self, unit: U) -> int: ...

    def is_wanted(self, unit: U) -> bool:
        """Return whether the unit can still be committed. Called before the unit begins."""
        return not self.plan_ends_with_error or unit.number not in self.failures.first

    @abstractmethod
    def worker(self) -> Callable[[Sequence[U]], list[R | LogError]]:
        """Return a function that does units in any process, without the state of the job; see `or_error`."""

    @abstractmethod
    def commit(self, results: Sequence[tuple[U, R | LogError]]) -> None:
        """Commit the results of a batch, in order. Errors among them are in `failures` already."""

    @abstractmethod
    def outcomes(self) -> list[Outcome]: ...  # of each plan, in order


class BucketJob(Job[U, R, Outcome]):
    """A job on `bucket`, or on other `buckets`, which each process opens for itself."""

    bucket: Bucket

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return (self.bucket,)

    def begin(self, opened: ExitStack) -> None:
        self._stores = [opened.enter_context(each.opened()) for each in self.buckets]

    @abstractmethod
    def task(self) -> Callable[..., R]:
        """Return a function (unit, a store for each bucket), without the state of the job. It raises LogError."""

    def worker(self) -> Callable[[Sequence[U]], list[R | LogError]]:
        buckets, do = self.buckets, self.task()

        def work(units: Sequence[U]) -> list[R | LogError]:
            with ExitStack() as opened:
                stores = [opened.enter_context(each.opened()) for each in buckets]
                return [or_error(partial(do, unit, *stores)) for unit in units]

        return work


class LocalJob(Job[U, R, Outcome]):
    """A job of this process alone. An error that is none of `errors_of_plan` ends the job."""

    errors_of_plan: ClassVar[tuple[type[LogError], ...]] = (LogError,)

    @abstractmethod
    def do(self, unit: U) -> R: ...

    def worker(self) -> Callable[[Sequence[U]], list[R | LogError]]:
        return lambda units: [or_error(partial(self.do, unit), self.errors_of_plan) for unit in units]


def run_job(
    job: Job[U, R, Outcome],
    executor: Executor,
    *,
    task_bytes: int = TASK_BYTES,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
) -> list[Outcome]:
    """Do and commit all units; return the outcome of each plan, in order. `progress` receives a unit's bytes.

    If the executor is to stop, all finished units are committed. The first error of each plan is added to `errors`, by
    the number of the plan; without `errors` the first one is raised after all possible commits. Raises Unavailable, and
    Spark's error for a task that failed for good.
    """

    def finished() -> Iterator[list[tuple[U, R | LogError]]]:
        units = job.units()
        packs = packed(list(units), job.size_of, task_bytes) if executor.is_parallel else None
        wanted = (tuple(filter(job.is_wanted, pack)) for pack in packs or ((unit,) for unit in units))
        total = len(packs) if packs is not None else None
        for done in executor.run(job.description, filter(None, wanted), job.worker(), total):
            pairs = [pair for pack, results in done for pair in zip(pack, results, strict=True)]
            for unit, result in pairs:
                if isinstance(result, LogError):
                    job.failures.note(unit.number, result)
                else:
                    progress(job.size_of(unit))
            yield pairs

    with ExitStack() as opened:
        job.begin(opened)
        for batch in _in_batches(finished(), 1 if executor.is_parallel else job.batch_size):
            job.commit(batch)
        outcomes = job.outcomes()
    job.failures.settle(errors)
    return outcomes


def _in_batches(lists: Iterator[list[W]], batch_size: int) -> Iterator[list[W]]:
    batch: list[W] = []
    try:
        for items in lists:
            batch += items
            if len(batch) >= batch_size:
                yield batch
                batch = []
    except LogError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


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


def or_error(do: Callable[[], R], errors: tuple[type[LogError], ...] = (LogError,)) -> R | LogError:
    """Return the result of `do`, or one of `errors`. Raises Unavailable, which is worth a retry, and other errors."""
    try:
        return do()
    except Unavailable:
        raise
    except errors as error:
        return error


class _OfStore(Protocol):
    @property
    def store(self) -> str: ...


class StateFile(Generic[F, L]):
    """The state of a resumable job: JSON lines, the first about the job, then one for each finished unit.

    A crash may lose or tear the last lines: these units are done again, which is safe. So no fsync is needed, and an
    unreadable line ends the file. A context manager that closes the file. Not thread safe.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        first: F,
        decoders: Decoders[F, L],
        *,
        job: str,
        is_resumable: Callable[[F], bool],
    ) -> None:
        """Continue an earlier file that `is_resumable`, else begin one with `first`. Raises InvalidRequest."""
        self._storage, self._path = storage, path
        self.first, self.lines = first, list[L]()
        self.is_resumed = self._read(decoders, job, is_resumable)
        if dirname(path):
            storage.make_directory(dirname(path))
        # Rewritten: a torn line would join the next one. Under another name: a crash must not lose the old file.
        self._file = storage.create(path + TEMPORARY)
        for each in (self.first, *self.lines):
            self._file.append(msgspec.json.encode(each) + b"\n")
        storage.rename(path + TEMPORARY, path)

    def append(self, line: L) -> None:
        self._file.append(msgspec.json.encode(line) + b"\n")

    def remove(self) -> None:
        self.close()
        self._storage.unlink(self._path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def _read(self, decoders: Decoders[F, L], job: str, is_resumable: Callable[[F], bool]) -> bool:
        try:
            lines = self._storage.read(self._path).split(b"\n")[:-1]
            first = decoders[0].decode(lines[0]) if lines else None
        except (NotFound, msgspec.DecodeError):
            return False
        if first is None or not is_resumable(first):
            return False
        if first.store != self.first.store:
            facts = {"path": self._path, "store": self.first.store, "found": first.store}
            raise InvalidRequest(f"cannot resume the {job}, its state belongs to another store", **facts)
        self.first = first
        with suppress(msgspec.DecodeError):
            for text in lines[1:]:
                self.lines.append(decoders[1].decode(text))
        return True
