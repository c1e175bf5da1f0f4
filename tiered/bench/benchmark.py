"""The speed of this machine, disk and bucket, and our code's share of it: `tiered bench`.

The run uses its own directory and its own prefix in a bucket, and removes both at its end or failure. A killed process
leaves them, with names that begin with ``tiered-bench-``.

Each figure has a reference: system calls or the store's operations on the same bytes in the same run. Times include
other work on the machine. The page cache is warm after a write: reads measure our code, not the disk.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pkgutil import get_data
from random import Random

from local.errors import InvalidRequest
from local.format.record import Record
from local.kernels import implementation
from local.log.log_appender import Durability
from local.names import TopicPartition
from remote.fetch.range_reader import RANGE_BYTES
from remote.fetch.read_ahead import THREADS
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.segments.stored_segment import CHUNK_BYTES
from remote.store import ObjectStore, ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from remote.store.open_store import open_store
from tiered import __version__
from tiered.config.config import Config, file_url
from tiered.jobs.topic_compaction import compact_topic
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

PREFIX = "tiered-bench-"
SIZE_BYTES_LEAST, SIZE_BYTES_MOST = 1 << 20, 1 << 40
_DELETE_PAGE = 1000
WRITERS = 8
KEYS_SHARE = 10  # records for each key, before compaction
BATCH_BYTES = 16 << 10  # Kafka's batch.size
FSYNC_BYTES = 4096
READ_BYTES = 1 << 20
EACH, GROUP, BULK, COMPACT = "each", "group", "bulk", "compact"
TOPIC, DATA = "bench", "tiered"
RAW = "raw/"
SEGMENTS = 4  # so that uploads and commits overlap, as in production

_NUMBERS = {
    "writers": WRITERS,
    "keys_share": KEYS_SHARE,
    "range_mib": RANGE_BYTES >> 20,
    "threads": THREADS,
    "chunk_kib": CHUNK_BYTES >> 10,
}
_FIGURES: dict[str, list[str]] = {
    name: [text.format_map(_NUMBERS) for text in texts]
    for name, texts in tomllib.loads((get_data(__package__, "figures.toml") or b"").decode()).items()
}
FIGURES = len(_FIGURES)

Clock = Callable[[], float]
OnMeasured = Callable[["Measured"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`size_bytes` of records in each part; `lookups` and `cold_reads` use places drawn by `seed`.

    Raises InvalidRequest below 1 MiB, which is too little to measure, and above 1 TiB.
    """

    size_bytes: int = 64 << 20
    value_bytes: int = 1000
    fsyncs: int = 200
    lookups: int = 2000
    cold_reads: int = 20
    seed: int = 1

    def __post_init__(self) -> None:
        if not SIZE_BYTES_LEAST <= self.size_bytes <= SIZE_BYTES_MOST:
            reason = "cannot run the benchmark, the size is out of range"
            raise InvalidRequest(reason, size_bytes=self.size_bytes, expected="1MiB to 1TiB")

    @classmethod
    def of(cls, size_bytes: int) -> BenchOptions:
        """Return options with fewer single operations below 64 MiB."""
        share = min(1.0, size_bytes / (64 << 20))
        return cls(
            size_bytes=size_bytes,
            fsyncs=max(4, round(200 * share)),
            lookups=max(20, round(2000 * share)),
            cold_reads=max(2, round(20 * share)),
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
    latencies_ms: dict[str, float] = field(default_factory=dict)
    reference_latencies_ms: dict[str, float] = field(default_factory=dict)

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
    machine: dict[str, str]
    directory: str
    bucket: str
    is_complete: bool
    requests: RequestCounts | None = None


@dataclass(slots=True, kw_only=True)
class Bench:
    """The state of one run, shared by its parts. `check` ends a stopped run."""

    root: str
    options: BenchOptions
    now_ms: int
    clock: Clock = time.perf_counter
    should_stop: Callable[[], bool] = lambda: False
    on_measured: OnMeasured = lambda measured: None
    measured: list[Measured] = field(default_factory=list)

    def check(self) -> None:
        if self.should_stop():
            raise Stopped

    def note(
        self, name: str, count: int, size_bytes: int, seconds: float, raw: float | None, **more: dict[str, float]
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
        percentiles = {"latencies_ms": percentiles_ms(seconds), "reference_latencies_ms": percentiles_ms(raw)}
        self.note(name, len(seconds), size_bytes, sum(seconds), sum(raw) if raw else None, **percentiles)

    def timed(self, do: Callable[[], object]) -> float:
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
    options: BenchOptions = BenchOptions(),
    store: ObjectStore | None = None,
    clock: Clock = time.perf_counter,
    on_measured: OnMeasured = lambda measured: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> BenchReport:
    """Measure in a new directory below `directory`, and in `store` (None: a folder in that directory).

    `store` must hold only the objects of this run, which deletes them all, after an error too. The store is not closed.
    Raises InvalidRequest if the directory cannot be created, DiskFailed, and the store's errors.
    """
    metered = MeteredStore(store) if store is not None else None
    with _place(directory) as root:
        bench = Bench(
            root=root, options=options, clock=clock, now_ms=now_ms, should_stop=should_stop, on_measured=on_measured
        )
        is_complete = False
        try:
            measure_disk(bench)
            if metered is None:
                path = os.path.join(root, "bucket")
                os.makedirs(path)
                measure_bucket(bench, open_store(file_url(path), {}))
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


def predict_requests(*, now_ms: int, options: BenchOptions = BenchOptions()) -> RequestCounts:
    """Return the requests of a run to a bucket, clean-up included, counted in a rehearsal against memory."""
    # Not the URL of a memory store: for other stores a manager first checks races of creates.
    store = MeteredStore(MemoryStore("rehearsal://bucket"))
    with _place(tempfile.gettempdir()) as root, emptied(store):
        measure_bucket(Bench(root=root, options=options, now_ms=now_ms), store)
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
        reason = "cannot run the benchmark, no directory can be created"
        raise InvalidRequest(reason, directory=directory, cause=cause) from None
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure_disk(bench: Bench) -> None:
    """Measure all parts, in the order of _FIGURES. Raises Stopped."""
    took = bench.each_timed(_synced_writes(bench, [b"x" * FSYNC_BYTES] * bench.options.fsyncs))
    bench.note_each("fsync", len(took) * FSYNC_BYTES, took)
    with LogManager.open(local_config(os.path.join(bench.root, "data")), now_ms=bench.now_ms) as manager:
        for topic in (EACH, GROUP, BULK):
            manager.topics.create(topic, now_ms=bench.now_ms)
        manager.topics.create(COMPACT, properties={"cleanup.policy": "compact"}, now_ms=bench.now_ms)
        _append_each(bench, manager)
        _append_group(bench, manager)
        _append_bulk(bench, manager)
        _read(bench, manager)
        _look_up(bench, manager)
        _compact(bench, manager)


def local_config(directory: str, settings: Mapping[str, str] | None = None) -> Config:
    """Return a configuration without a bucket, under which only the measured code flushes or rolls."""
    given = {"min.cleanable.dirty.ratio": "0", "segment.bytes": "256MiB", "append.batch.bytes": str(BATCH_BYTES)}
    return Config.load(None, {**given, **(settings or {})}, {}, local_dir=directory)


def records(bench: Bench, size_bytes: int, *, keys: int | None = None) -> list[Record]:
    """Return incompressible records of about `size_bytes`, with `keys` different keys or one for each."""
    filler = Random(bench.options.seed).randbytes(bench.options.value_bytes + 256)  # noqa: S311 - the same every time
    count, size = max(1, size_bytes // (bench.options.value_bytes + 32)), bench.options.value_bytes
    return [
        Record(b"key-%016d" % (at % keys if keys else at), filler[at % 256 : at % 256 + size], bench.now_ms)
        for at in range(count)
    ]


def log_files(bench: Bench, topic: str, data: str = "data") -> list[str]:
    """Return the ``.log`` files of the one partition, in offset order."""
    directory = os.path.join(bench.root, data, f"{topic}-0")
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".log")]


def _append_each(bench: Bench, manager: LogManager) -> None:
    batches = _batches(records(bench, bench.options.fsyncs * BATCH_BYTES))
    took = bench.each_timed(_appends(manager, EACH, batches, Durability.FLUSHED))
    pieces = _pieces(log_files(bench, EACH)[0], len(batches))
    raw = bench.each_timed(_synced_writes(bench, pieces))
    bench.note_each("append, fsync each", sum(map(len, pieces)), took, raw)


def _append_group(bench: Bench, manager: LogManager) -> None:
    batches = _batches(records(bench, bench.options.fsyncs * BATCH_BYTES))
    shares = [batches[at::WRITERS] for at in range(WRITERS)]

    def all_at_once() -> None:
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(lambda share: list(_appends(manager, GROUP, share, Durability.FLUSHED)), shares))

    seconds = bench.timed(all_at_once)
    pieces = _pieces(log_files(bench, GROUP)[0], len(batches))
    raw = sum(bench.each_timed(_synced_writes(bench, pieces)))
    bench.note("append, shared fsync", len(batches), sum(map(len, pieces)), seconds, raw)


def _append_bulk(bench: Bench, manager: LogManager) -> None:
    given = records(bench, bench.options.size_bytes)

    def append() -> None:
        manager.append(BULK, given, 0, now_ms=bench.now_ms)
        manager.flush()

    seconds = bench.timed(append)
    size = sum(map(os.path.getsize, log_files(bench, BULK)))
    raw = bench.timed(lambda: _copied(bench, log_files(bench, BULK)))
    bench.note("append in bulk", len(given), size, seconds, raw)


def _read(bench: Bench, manager: LogManager) -> None:
    name = TopicPartition(BULK, 0)
    found: list[int] = []
    seconds = bench.timed(lambda: found.extend(len(each) for each in manager.reader().batches(name, 0)))
    raw = bench.timed(lambda: _read_raw(log_files(bench, BULK)))
    bench.note("read in order", len(found), sum(found), seconds, raw)


def _look_up(bench: Bench, manager: LogManager) -> None:
    name = TopicPartition(BULK, 0)
    log, chance = manager.partitions.find(name).log, Random(bench.options.seed)  # noqa: S311 - the same places every time
    start, end = log.log_start_offset, log.next_offset
    offsets = [chance.randrange(start, end) for _ in range(bench.options.lookups)]
    sizes: list[int] = []

    def looks() -> Iterator[int]:
        for offset in offsets:
            batch = log.read(offset, 1)  # one whole batch, however small the requested size
            sizes.append(len(batch))
            yield len(batch)

    took = bench.each_timed(looks())
    raw = bench.each_timed(_random_reads(log_files(bench, BULK)[0], sizes, chance))
    bench.note_each("index lookup", sum(sizes), took, raw)


def _compact(bench: Bench, manager: LogManager) -> None:
    count = bench.options.size_bytes // (bench.options.value_bytes + 32)
    given = records(bench, bench.options.size_bytes, keys=max(1, count // KEYS_SHARE))
    manager.append(COMPACT, given, 0, now_ms=bench.now_ms)
    manager.partitions.roll(COMPACT, now_ms=bench.now_ms)
    size = sum(map(os.path.getsize, log_files(bench, COMPACT)))
    raw = bench.timed(lambda: _copied(bench, log_files(bench, COMPACT)))
    bench.check()
    seconds = bench.timed(lambda: compact_topic(manager, COMPACT, now_ms=bench.now_ms))
    bench.note("compaction", len(given), size, seconds, raw)


def _batches(given: Sequence[Record]) -> list[Sequence[Record]]:
    """Runs of records that make a batch of about BATCH_BYTES each."""
    each = max(1, BATCH_BYTES // (len(given[0].value or b"") + 32))
    return [given[at : at + each] for at in range(0, len(given), each)]


def _appends(
    manager: LogManager, topic: str, batches: Sequence[Sequence[Record]], durability: Durability
) -> Iterator[None]:
    for batch in batches:
        manager.append(topic, batch, 0, now_ms=batch[0].timestamp_ms, durability=durability)
        yield


def _pieces(path: str, count: int) -> list[bytes]:
    with open(path, "rb") as file:
        data = file.read()
    step = max(1, -(-len(data) // count))
    return [data[at : at + step] for at in range(0, len(data), step)]


def _synced_writes(bench: Bench, pieces: Sequence[bytes]) -> Iterator[None]:
    path = os.path.join(bench.root, "raw")
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            os.fsync(file.fileno())
            yield
    os.unlink(path)


def _copied(bench: Bench, paths: Sequence[str]) -> None:
    path = os.path.join(bench.root, "raw")
    with open(path, "wb", buffering=0) as out:
        _read_raw(paths, out.write)
        os.fsync(out.fileno())
    os.unlink(path)


def _read_raw(paths: Sequence[str], give: Callable[[bytes], object] = len) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(READ_BYTES):
                give(data)


def _random_reads(path: str, sizes: Sequence[int], chance: Random) -> Iterator[bytes]:
    file_bytes = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            yield os.pread(file.fileno(), size, chance.randrange(max(1, file_bytes - size)))


def measure_bucket(bench: Bench, store: ObjectStore) -> None:
    """Measure all parts. The `store` must be empty; the objects stay in it. Raises Stopped."""
    _upload(bench, store)
    _read_ranges(bench, store)
    _read_cold(bench, store)


def _upload(bench: Bench, store: ObjectStore) -> None:
    """Measure uploads by a manager's maintenance; the reference puts the same files unchanged."""
    segment = max(1 << 20, bench.options.size_bytes // SEGMENTS)
    settings = {"remote.storage.enable": "true", "segment.bytes": str(segment)}
    config = replace(local_config(os.path.join(bench.root, DATA), settings), remote_url=store.url)
    with LogManager.open(config, now_ms=bench.now_ms, store=_Borrowed(store)) as manager:
        manager.topics.create(TOPIC, now_ms=bench.now_ms)
        manager.append(TOPIC, records(bench, bench.options.size_bytes), 0, now_ms=bench.now_ms)
        manager.partitions.roll(TOPIC, now_ms=bench.now_ms)
        paths = [path for path in log_files(bench, TOPIC, DATA) if os.path.getsize(path)]
        bench.check()
        seconds = bench.timed(lambda: _tick(bench, manager))
        bench.check()
        raw = bench.timed(lambda: _put_all(store, paths))
    bench.note("upload", len(paths), sum(map(os.path.getsize, paths)), seconds, raw)


def _tick(bench: Bench, manager: LogManager) -> None:
    while manager.tick(bench.now_ms, should_stop=bench.should_stop):
        bench.check()
    for problem in manager.problems.values():
        raise problem  # the data to measure is missing


def _put_all(store: ObjectStore, paths: Sequence[str]) -> None:
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            source = ranged_source(os.path.getsize(path), lambda start, length: os.pread(file.fileno(), length, start))
            store.upload(f"{RAW}{number}", source)


def _read_ranges(bench: Bench, store: ObjectStore) -> None:
    name, sizes = TopicPartition(TOPIC, 0), list[int]()
    view = RemoteLog(_Borrowed(store))
    seconds = bench.timed(lambda: sizes.extend(len(each) for each in view.reader().batches(name, 0)))
    view.close()
    bench.check()
    bench.note("ranged reads", len(sizes), sum(sizes), seconds, bench.timed(lambda: _get_all(store)))


def _get_all(store: ObjectStore) -> None:
    ranges = [
        (info.key, at, min(RANGE_BYTES, info.size_bytes - at))
        for info in store.list(RAW)
        for at in range(0, info.size_bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda each: len(store.get_range(*each)), ranges):
            pass


def _read_cold(bench: Bench, store: ObjectStore) -> None:
    """One record at a random offset, by a reader with an empty cache: manifest, indexes, chunk."""
    name, sizes = TopicPartition(TOPIC, 0), list[int]()
    chance = Random(bench.options.seed)  # noqa: S311 - the same places every time
    with RemoteLog(_Borrowed(store)) as view:
        start, end = view.reader().offsets(name)

    def cold() -> Iterator[int]:
        for _ in range(bench.options.cold_reads):
            with RemoteLog(_Borrowed(store)) as view:
                offset = chance.randrange(start, end)
                batches = view.reader().batches(name, offset, offset + 1)
                sizes.append(len(next(batches)))
                batches.close()
            yield sizes[-1]

    took = bench.each_timed(cold())
    bench.note_each("cold random read", sum(sizes), took, bench.each_timed(_random_gets(bench, store, chance)))


def _random_gets(bench: Bench, store: ObjectStore, chance: Random) -> Iterator[int]:
    objects = list(store.list(RAW))
    for _ in range(bench.options.cold_reads):
        info = chance.choice(objects)
        length = min(CHUNK_BYTES, info.size_bytes)
        yield len(store.get_range(info.key, chance.randrange(info.size_bytes - length + 1), length))


class _Borrowed(MeteredStore):
    def close(self) -> None:
        """Do nothing: the owner of the run closes the store."""
