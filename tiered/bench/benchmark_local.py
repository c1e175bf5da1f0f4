"""The disk's part of `tiered.bench.benchmark`, compared with plain system calls.

It measures fsyncs, appends, reads, lookups and compaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from local.format.record import Record
from local.log.log_appender import Durability
from local.names import TopicPartition
from tiered.bench.benchmark import KEYS_SHARE, WRITERS, Bench
from tiered.config.config import Config
from tiered.jobs.topic_compaction import compact_topic
from tiered.manager.manager import LogManager

BATCH_BYTES = 16 << 10  # Kafka's batch.size
FSYNC_BYTES = 4096
COPY_BYTES = 1 << 20
READ_BYTES = 1 << 20

EACH, GROUP, BULK, COMPACT = "each", "group", "bulk", "compact"


def measure_disk(bench: Bench) -> None:
    """Measure all parts, in the order of the table of `tiered.bench.benchmark`. Raises Stopped."""
    _fsync(bench)
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
    """A configuration of logs in `directory` without a bucket; only the measured code flushes or rolls."""
    given = {"min.cleanable.dirty.ratio": "0", "segment.bytes": "256MiB", "append.batch.bytes": str(BATCH_BYTES)}
    return Config.load(None, {**given, **(settings or {})}, {}, local_dir=directory)


def records(bench: Bench, size_bytes: int, *, keys: int | None = None) -> list[Record]:
    """Records of about `size_bytes`; with `keys` different keys in rotation, or one for each.

    Values do not compress.
    """
    filler = Random(bench.options.seed).randbytes(bench.options.value_bytes + 256)  # noqa: S311 - the same every time
    count, size = max(1, size_bytes // (bench.options.value_bytes + 32)), bench.options.value_bytes
    return [
        Record(b"key-%016d" % (at % keys if keys else at), filler[at % 256 : at % 256 + size], bench.now_ms)
        for at in range(count)
    ]


def log_files(bench: Bench, topic: str, data: str = "data") -> list[str]:
    """The ``.log`` files of the one partition, in offset order."""
    directory = os.path.join(bench.root, data, f"{topic}-0")
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".log")]


def _fsync(bench: Bench) -> None:
    took = bench.each_timed(_synced_writes(bench, [b"x" * FSYNC_BYTES] * bench.options.fsyncs))
    bench.note_each("fsync", len(took) * FSYNC_BYTES, took)


def _append_each(bench: Bench, manager: LogManager) -> None:
    """Durable acknowledgements: fsync before each answer."""
    batches = _batches(records(bench, bench.options.fsyncs * BATCH_BYTES))
    took = bench.each_timed(_appends(manager, EACH, batches, Durability.FLUSHED))
    pieces = _pieces(log_files(bench, EACH)[0], len(batches))
    raw = bench.each_timed(_synced_writes(bench, pieces))
    bench.note_each("append, fsync each", sum(map(len, pieces)), took, raw)


def _append_group(bench: Bench, manager: LogManager) -> None:
    """Writers that share the wait for the disk."""
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
    path = log_files(bench, BULK)[0]
    raw = bench.each_timed(_random_reads(path, sizes, chance))
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
    """The file's bytes in `count` pieces."""
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
    whole = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            yield os.pread(file.fileno(), size, chance.randrange(max(1, whole - size)))
