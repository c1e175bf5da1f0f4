"""How fast this machine, this disk and this bucket are, and what of that our own code leaves: `tiered bench`.

Every figure stands beside a raw reference that was measured next to it, in the same run, on the same bytes: a file
written and synced, a file read, an object put and got. Their ratio says what our code costs; the reference alone says
what was bought. All of it happens in a directory made for it, below one that is named, and in a bucket below a prefix
of its own; both are removed when the run ends, is told to stop, or fails. A process that is killed leaves them:
``tiered-bench-...`` by name, which nothing else takes for its own.

| part | what is measured | reference |
|---|---|---|
| `bench.benchmark_local` | fsync, appends, reads, lookups, compaction | the same bytes through the system's calls |
| `bench.benchmark_remote` | upload, ranged reads, cold random reads | the same bytes through the store's own verbs |

Elapsed time, on a clock that the caller may give. The page cache is warm for what was just written: reads measure our
code, not the disk's platters. Who runs it while the machine does something else measures that, too.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from local.errors import InvalidRequest
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.metered_store import MeteredStore, RequestCounts

PREFIX = "tiered-bench-"
FIGURES = 10  # that a complete run measures
SIZE_BYTES_LEAST, SIZE_BYTES_MOST = 1 << 20, 1 << 40
_DELETE_PAGE = 1000

Clock = Callable[[], float]
OnMeasured = Callable[["Measured"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`size_bytes` of records in each part. `fsyncs` are timed one after another; `lookups` on the disk and so many
    `cold_reads` in the bucket go to places drawn by `seed`."""

    size_bytes: int = 64 << 20
    value_bytes: int = 1000
    fsyncs: int = 200
    lookups: int = 2000
    cold_reads: int = 20
    seed: int = 1

    @classmethod
    def of(cls, size_bytes: int) -> BenchOptions:
        """As many single operations as fit to the size: fewer below 64 MiB. Raises as `check`."""
        share = min(1.0, size_bytes / (64 << 20))
        made = cls(
            size_bytes=size_bytes,
            fsyncs=max(4, round(200 * share)),
            lookups=max(20, round(2000 * share)),
            cold_reads=max(2, round(20 * share)),
        )
        made.check()
        return made

    def check(self) -> None:
        """Raises InvalidRequest for a size that measures nothing, or fills the disk."""
        if not SIZE_BYTES_LEAST <= self.size_bytes <= SIZE_BYTES_MOST:
            raise InvalidRequest("measuring, a size out of range", size_bytes=self.size_bytes, expected="1MiB to 1TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure. `count` operations over `size_bytes` took `seconds`, those of the reference `reference_seconds`.

    `latencies_ms` are percentiles of single operations where each was timed, those of the reference beside them.
    """

    name: str
    what: str
    reference: str
    count: int
    size_bytes: int
    seconds: float
    reference_seconds: float | None = None
    latencies_ms: Mapping[str, float] = field(default_factory=dict)
    reference_latencies_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes / self.seconds if self.seconds else 0.0

    @property
    def ms_each(self) -> float:
        return 1000 * self.seconds / self.count if self.count else 0.0

    @property
    def ratio(self) -> float | None:
        """1.0 is as fast as the reference, 0.5 half as fast; None without one."""
        return self.reference_seconds / self.seconds if self.reference_seconds is not None and self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What was measured, in order; not all of it where it was told to stop. `requests` are those to the bucket, the
    clean-up's too, None where the bucket was a folder beside the log."""

    measured: tuple[Measured, ...]
    machine: Mapping[str, str]
    directory: str
    bucket: str
    is_complete: bool
    requests: RequestCounts | None = None


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run under way: what its parts share. `give` takes a figure; `check` ends the run when told to stop."""

    root: str
    options: BenchOptions
    clock: Clock
    now_ms: int
    should_stop: Callable[[], bool]
    on_measured: OnMeasured
    measured: list[Measured] = field(default_factory=list)

    def check(self) -> None:
        if self.should_stop():
            raise Stopped

    def give(self, measured: Measured) -> None:
        self.measured.append(measured)
        self.on_measured(measured)
        self.check()

    def timed(self, do: Callable[[], object]) -> float:
        """Seconds that `do` took."""
        begun = self.clock()
        do()
        return self.clock() - begun

    def each_timed(self, steps: Iterator[object]) -> list[float]:
        """Seconds that each step of an iterator took."""
        took: list[float] = []
        while True:
            begun = self.clock()
            if next(steps, self) is self:
                return took
            took.append(self.clock() - begun)
            self.check()


class Stopped(Exception):
    """The run was told to stop."""


def run_benchmark(
    directory: str,
    *,
    now_ms: int,
    options: BenchOptions | None = None,
    store: ObjectStore | None = None,
    clock: Clock = time.perf_counter,
    on_measured: OnMeasured = lambda measured: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> BenchReport:
    """Measure in a directory made below `directory`, and in `store` (None: a folder in that directory).

    `store` holds nothing but what this run puts there, all of which it deletes; it is not closed. Raises InvalidRequest
    for options that measure nothing, DiskFailed and what the store raises; then, too, everything is removed.
    """
    from tiered.bench.benchmark_local import measure_disk
    from tiered.bench.benchmark_remote import folder_store, measure_bucket

    options = options or BenchOptions()
    options.check()
    metered = MeteredStore(store) if store is not None else None
    with _place(directory) as root:
        bench = Bench(
            root=root, options=options, clock=clock, now_ms=now_ms, should_stop=should_stop, on_measured=on_measured
        )
        is_complete = False
        try:
            measure_disk(bench)
            if metered is None:
                measure_bucket(bench, folder_store(root))
            else:
                with emptied(metered):
                    measure_bucket(bench, metered)
            is_complete = True
        except Stopped:
            pass
    return BenchReport(
        measured=tuple(bench.measured),
        machine=machine(),
        directory=directory,
        bucket=store.url if store is not None else "a folder beside the log",
        is_complete=is_complete,
        requests=metered.counts() if metered is not None else None,
    )


def foretell_requests(*, now_ms: int, options: BenchOptions | None = None) -> RequestCounts:
    """What a run sends to a bucket, its clean-up included: the same run, rehearsed against memory.

    Not under a memory's address: of any other store a manager first asks who wins a race of creates, too
    (`tiered.stores.store_check`), and so the rehearsal has to.
    """
    from tiered.bench.benchmark_remote import measure_bucket

    options = options or BenchOptions()
    options.check()
    store = MeteredStore(MemoryStore("rehearsal://bucket"))
    with _place(tempfile.gettempdir()) as root:
        bench = Bench(
            root=root,
            options=options,
            clock=time.perf_counter,
            now_ms=now_ms,
            should_stop=lambda: False,
            on_measured=lambda measured: None,
        )
        with emptied(store):
            measure_bucket(bench, store)
    return store.counts()


@contextmanager
def emptied(store: ObjectStore) -> Iterator[None]:
    """Whatever happens, nothing is in the store afterwards. Only for one that is the caller's own, prefix and all."""
    try:
        yield
    finally:
        while keys := [info.key for _, info in zip(range(_DELETE_PAGE), store.list(""), strict=False)]:
            store.delete(keys)


def machine() -> dict[str, str]:
    """What the figures are of."""
    from local.kernels import implementation
    from tiered import __version__

    return {
        "tiered": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "kernels": implementation(),
    }


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and max, as ms; empty for nothing."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}


@contextmanager
def _place(directory: str) -> Iterator[str]:
    """A directory of this run's own. Raises InvalidRequest where none can be made."""
    try:
        root = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    except OSError as error:
        cause = (error.strerror or "failed").lower()
        raise InvalidRequest("measuring, no directory can be made", directory=directory, cause=cause) from None
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
