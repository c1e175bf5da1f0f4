"""The speed of this machine, disk and bucket, and our code's share of it: `tiered bench`.

The run uses its own directory and its own prefix in a bucket, and removes both at its end or failure. A killed process
leaves them, with names that begin with ``tiered-bench-``.

| part | measures | reference, on the same bytes in the same run |
|---|---|---|
| `measure_disk` | fsync, appends, reads, lookups, compaction | system calls |
| `measure_bucket` | upload, ranged reads, cold random reads | the store's operations |

Times are elapsed times and include other work on the machine. The page cache is warm after a write: reads measure our
code, not the disk.
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
from remote.fetch.range_reader import RANGE_BYTES
from remote.fetch.read_ahead import THREADS
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.segments.index_bundle import CHUNK_BYTES
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.metered_store import MeteredStore, RequestCounts

PREFIX = "tiered-bench-"
SIZE_BYTES_LEAST, SIZE_BYTES_MOST = 1 << 20, 1 << 40
_DELETE_PAGE = 1000
WRITERS = 8
KEYS_SHARE = 10  # records of a key, before compaction

# In order of a complete run: name, measured operation, reference.
_FIGURES = {
    "fsync": ("write 4 KiB and fsync, one after another", "none: this is the figure of the disk"),
    "append, fsync each": (
        "a batch of 16 KiB appended and synced before the reply",
        "write and fsync of the same bytes",
    ),
    "append, shared fsync": (
        f"the same by {WRITERS} concurrent writers that share fsyncs",
        "write and fsync of the same batches, one after another",
    ),
    "append in bulk": (
        "records encoded, checked and appended, one fsync at the end",
        "the same bytes copied to a file, one fsync",
    ),
    "read in order": ("every batch of the log, with its checksum verified", "the same files read"),
    "index lookup": (
        "a batch at a random offset, through the offset index",
        "pread of the same number of bytes at a random position of the file",
    ),
    "compaction": (
        f"a log of {KEYS_SHARE} records per key cleaned, two passes",
        "the same bytes copied to a file, one fsync",
    ),
    "upload": ("segments copied, verified and committed", "the same files put, without verification"),
    "ranged reads": (
        "every batch from the bucket, chunks and batches verified, with read-ahead",
        f"ranges of {RANGE_BYTES >> 20} MiB of the same objects, {THREADS} at a time",
    ),
    "cold random read": (
        "a batch by offset, without cached data",
        f"one range of {CHUNK_BYTES >> 10} KiB at a random position",
    ),
}
FIGURES = len(_FIGURES)

Clock = Callable[[], float]
OnMeasured = Callable[["Measured"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`size_bytes` of records in each part; `lookups` and `cold_reads` use places drawn by `seed`."""

    size_bytes: int = 64 << 20
    value_bytes: int = 1000
    fsyncs: int = 200
    lookups: int = 2000
    cold_reads: int = 20
    seed: int = 1

    @classmethod
    def of(cls, size_bytes: int) -> BenchOptions:
        """Return options with fewer single operations below 64 MiB. Raises as `check`."""
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
        """Raises InvalidRequest for a size that is too small to measure or fills the disk."""
        if not SIZE_BYTES_LEAST <= self.size_bytes <= SIZE_BYTES_MOST:
            raise InvalidRequest(
                "cannot run the benchmark, the size is out of range",
                size_bytes=self.size_bytes,
                expected="1MiB to 1TiB",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure: `count` operations over `size_bytes` took `seconds`, the reference `reference_seconds`."""

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
    """The figures in order. `requests` to the bucket include the clean-up's; None for a local folder."""

    measured: tuple[Measured, ...]
    machine: Mapping[str, str]
    directory: str
    bucket: str
    is_complete: bool
    requests: RequestCounts | None = None


@dataclass(slots=True, kw_only=True)
class Bench:
    """The state of one run, shared by its parts. `check` ends a stopped run."""

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

    def note(
        self, name: str, count: int, size_bytes: int, seconds: float, raw: float | None, **more: Mapping[str, float]
    ) -> None:
        """Record a figure; `raw` are the seconds of the reference."""
        what, reference = _FIGURES[name]
        measured = Measured(
            name=name,
            what=what,
            reference=reference,
            count=count,
            size_bytes=size_bytes,
            seconds=seconds,
            reference_seconds=raw,
            **more,
        )
        self.measured.append(measured)
        self.on_measured(measured)
        self.check()

    def note_each(self, name: str, size_bytes: int, seconds: Sequence[float], raw: Sequence[float] = ()) -> None:
        """Record a figure of operations that were timed one by one."""
        percentiles = {"latencies_ms": percentiles_ms(seconds), "reference_latencies_ms": percentiles_ms(raw)}
        self.note(name, len(seconds), size_bytes, sum(seconds), sum(raw) if raw else None, **percentiles)

    def timed(self, do: Callable[[], object]) -> float:
        """Seconds of a call of `do`."""
        started_s = self.clock()
        do()
        return self.clock() - started_s

    def each_timed(self, steps: Iterator[object]) -> list[float]:
        """Seconds of each step of an iterator."""
        took: list[float] = []
        while True:
            started_s = self.clock()
            if next(steps, self) is self:
                return took
            took.append(self.clock() - started_s)
            self.check()


class Stopped(Exception):
    """`should_stop` ended the run."""


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
    """Measure in a new directory below `directory`, and in `store` (None: a folder in that directory).

    `store` must hold only the objects of this run, which deletes them all, after an error too. The store is not closed.
    Raises InvalidRequest for options that cannot be measured, DiskFailed, and the store's errors.
    """
    from tiered.bench.measurements import folder_store, measure_bucket, measure_disk

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
        bucket=store.url if store is not None else "a folder on the disk of the log",
        is_complete=is_complete,
        requests=metered.counts() if metered is not None else None,
    )


def predict_requests(*, now_ms: int, options: BenchOptions | None = None) -> RequestCounts:
    """Return the requests of a run to a bucket, clean-up included, counted in a rehearsal against memory.

    The URL is not that of a memory store: for other stores a manager first checks races of creates
    (`tiered.stores.store_check`).
    """
    from tiered.bench.measurements import measure_bucket

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
    """Delete all objects of the store at the end, also after an error. Its prefix must be the caller's."""
    try:
        yield
    finally:
        while keys := [info.key for _, info in zip(range(_DELETE_PAGE), store.list(""), strict=False)]:
            delete_objects(store, "", keys, DeleteReason.BENCHMARK)


def machine() -> dict[str, str]:
    """The machine and the software of the figures."""
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
    """p50, p90, p99 and max in ms; empty for no values."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()}


@contextmanager
def _place(directory: str) -> Iterator[str]:
    """A directory of this run's own. Raises InvalidRequest if it cannot be created."""
    try:
        root = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    except OSError as error:
        cause = (error.strerror or "failed").lower()
        raise InvalidRequest(
            "cannot run the benchmark, no directory can be created", directory=directory, cause=cause
        ) from None
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
