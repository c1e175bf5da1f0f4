"""The local log and the reader over both tiers, each against a raw reference in the same run.

    python tests/bench/bench_log.py [MiB]

| row | reference |
|---|---|
| append of tuples, batches of about 256 KiB | os.write of the same bytes |
| append of an Arrow table, and of the same records as columns of another log | os.write of the same bytes |
| local read: columns, CRC checked | os.pread of the same bytes |
| open after a crash: every CRC checked, indexes rebuilt | os.pread of the same bytes |
| clean: tenfold duplication of keys, CRC checked | read and write of the same bytes |
| open of a directory of 10,000 segments after a clean shutdown | os.scandir and a stat of the same files |
| the same after a crash: the last segment recovered | the same |
| random reads by offset in it, first and second pass | open, os.pread, close of the same bytes |
| random lookups by timestamp in it, each followed by a read | the same |
| tiered read: columns from a file:// bucket, chunk and batch CRCs checked | os.pread of the same bytes |

Medians of the runs, with the reference measured next to each. Page cache to page cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa

from local import kernels
from local.cleaner import cleaner
from local.format.record import Record
from local.index.index_files import build_indexes
from local.log import Log
from local.log.encoding import encode_batches
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition, segment_file
from local.records.batch import assign_offset, encode_batch
from local.settings import LogSettings
from local.storage import DiskStorage
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.tables.remote_tables import open_remote

RUNS = 5
SEGMENTS = 10_000
BATCHES = 12
LOOKUPS = 5_000
NOW = 1_700_000_000_000
NAME = TopicPartition("bench", 0)


def main() -> None:
    size = int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 64 << 20
    print(f"kernels: {kernels.implementation()}, input about {size >> 20} MiB, medians of {RUNS}")
    for label, value_bytes in (("100-byte values", 100), ("1 KiB values", 1024)):
        records = _records(size // (value_bytes + 32), value_bytes)
        with tempfile.TemporaryDirectory() as root:
            print(f"\n{label}: {len(records):,} records")
            _bench_local(Path(root), records)
            _bench_columns(Path(root), records)
            _bench_tiered(Path(root), records)
    with tempfile.TemporaryDirectory() as root:
        print(f"\n{SEGMENTS:,} segments of {BATCHES} batches")
        _bench_many_segments(Path(root) / "many")


def _records(count: int, value_bytes: int) -> list[Record]:
    keys = max(1, count // 10)
    filler = os.urandom(value_bytes + 256)
    return [
        Record(b"key-%016d" % (at * 2_654_435_761 % keys), filler[at % 256 : at % 256 + value_bytes], NOW + at)
        for at in range(count)
    ]


def _bench_local(root: Path, records: list[Record]) -> None:
    settings = LogSettings(segment_bytes=256 << 20)
    appends, writes, size = [], [], 0
    for run in range(RUNS):
        log = Log.open(DiskStorage(), str(root / f"a{run}"), NAME, settings, now_ms=NOW)
        appends.append(_timed(lambda log=log: log.append(records, now_ms=NOW)))
        size = log.size_bytes
        path = Path(log.segment(0).path(".log"))
        writes.append(_timed(lambda path=path: _write_like(path, root / "raw")))
        if run < RUNS - 1:
            log.release()
            shutil.rmtree(root / f"a{run}")
    _tell("append of tuples", "raw write", appends, writes, size, len(records))
    reads = [_timed(lambda: _read_columns(log)) for _ in range(RUNS)]
    raw = [_timed(lambda: _read_raw(path)) for _ in range(RUNS)]
    _tell("local read, columns + CRC", "raw read", reads, raw, size, len(records))
    log.release()
    opens = [_timed(lambda: _recover(root / f"a{RUNS - 1}", settings)) for _ in range(RUNS)]
    _tell("open after a crash", "raw read", opens, raw, size, len(records))
    shutil.rmtree(root / f"a{RUNS - 1}")
    _bench_clean(root, records)


def _bench_columns(root: Path, records: list[Record]) -> None:
    settings = LogSettings(segment_bytes=1 << 30)
    table = pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "timestamp": pa.array([record.timestamp_ms for record in records], pa.int64()),
        }
    )
    batches = encode_batches(records, settings, partition=NAME, now_ms=NOW)
    for at, batch in enumerate(batches):
        assign_offset(batch, at << 20, 0)
    columns = kernels.decode_columns(b"".join(batches))
    for what, source in (("append of an Arrow table", table), ("append of another log's columns", columns)):
        appends, writes, size = [], [], 0
        for run in range(RUNS):
            log = Log.open(DiskStorage(), str(root / f"k{run}"), NAME, settings, now_ms=NOW)
            appends.append(_timed(lambda log=log, source=source: log.append_columns(source, now_ms=NOW)))
            size = log.size_bytes
            writes.append(_timed(lambda: _write(batches, root / "raw")))
            (root / "raw").unlink()
            log.release()
            shutil.rmtree(root / f"k{run}")
        _tell(what, "raw write", appends, writes, size, len(records))


def _bench_clean(root: Path, records: list[Record]) -> None:
    cleans, copies, size, kept = [], [], 0, 0
    for run in range(RUNS):
        storage = DiskStorage()
        directory = LogDirectory(storage, str(root / f"c{run}"))
        directory.create(NAME, "A" * 22)
        settings = LogSettings(segment_bytes=16 << 20, is_compacted=True)
        log = directory.open_log(NAME, settings, now_ms=NOW)
        log.append(records, now_ms=NOW)
        log.roll(now_ms=NOW)
        size = log.size_bytes
        paths = [Path(log.segment(info.base_offset).path(".log")) for info in log.segments() if info.size_bytes]
        copies.append(_timed(lambda paths=paths: [_write_like(path, root / "raw") for path in paths]))
        seconds = time.perf_counter()
        result = cleaner.clean(log, clean_from=0, now_ms=NOW)
        cleans.append(time.perf_counter() - seconds)
        assert result is not None
        kept = result.records_after
        directory.abandon()
        shutil.rmtree(root / f"c{run}")
    _tell(f"clean, {kept * 100 // len(records)} % survive", "raw copy", cleans, copies, size, len(records))


def _bench_tiered(root: Path, records: list[Record]) -> None:
    properties = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "1ms"}
    (root / "bucket").mkdir()
    path = root / "tiered.toml"
    path.write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{root / "bucket"}"\n')
    config = Config.load(str(path), {"segment.bytes": "64MiB"}, {})
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.topics.create(NAME.topic, 1, properties, now_ms=NOW)
        manager.append(NAME.topic, records, 0, now_ms=NOW)
        manager.partitions.roll(NAME.topic, now_ms=NOW)
        while manager.tick(NOW * 2):
            pass
    objects = sorted((root / "bucket").rglob("*.log"))
    size = sum(each.stat().st_size for each in objects)
    raw = [_timed(lambda: [_read_raw(each) for each in objects]) for _ in range(RUNS)]
    reads = []
    for _ in range(RUNS):
        with open_remote(str(config.remote_url)) as bucket:
            seconds = time.perf_counter()
            found = sum(len(columns) for columns in bucket.reader().columns(NAME, 0))
            reads.append(time.perf_counter() - seconds)
            assert found == len(records)
    _tell("tiered read, columns + CRCs", "raw read", reads, raw, size, len(records))


def _bench_many_segments(directory: Path) -> None:
    settings = LogSettings(segment_ms=1 << 50)
    following = _write_segments(directory)
    stats = [_timed(lambda: [entry.stat() for entry in os.scandir(directory)]) for _ in range(RUNS)]
    clean, crashed = [], []
    for _ in range(RUNS):
        clean.append(_timed(lambda: _open_many(directory, settings, was_clean=True)))
        crashed.append(_timed(lambda: _open_many(directory, settings, recovery_point=following - 1)))
    size = sum(entry.stat().st_size for entry in os.scandir(directory))
    _tell("open, clean", "listing with stats", clean, stats, size, following)
    _tell("open, last segment recovered", "listing with stats", crashed, stats, size, following)
    log = Log.open(DiskStorage(), str(directory), NAME, settings, now_ms=NOW, was_clean=True)
    random = Random(1)
    offsets = [random.randrange(following) for _ in range(LOOKUPS)]
    for turn in ("first", "second"):
        reads = [_timed(lambda: [log.read(offset, 4096) for offset in offsets])]
        raw = [_timed(lambda: [_pread(directory, offset) for offset in offsets]) for _ in range(RUNS)]
        _tell(f"reads by offset, {turn} time", "open, pread, close", reads, raw, LOOKUPS * 4096, LOOKUPS)
    times = [_timed(lambda: [_read_at_time(log, NOW + offset) for offset in offsets]) for _ in range(2)]
    for turn, seconds in zip(("first", "second"), times, strict=True):
        _tell(f"reads by time, {turn} time", "open, pread, close", [seconds], raw, LOOKUPS * 4096, LOOKUPS)
    log.release()


def _write_segments(directory: Path) -> int:
    """Write segments like an appending log, without its fsyncs. Returns the next offset."""
    directory.mkdir()
    value = os.urandom(1000)
    for base in range(0, SEGMENTS * BATCHES, BATCHES):
        batches = (encode_batch([Record(None, value, NOW + at)], base_offset=at) for at in range(base, base + BATCHES))
        body = b"".join(batches)
        indexes = build_indexes(kernels.scan_batches(body), base, 4096)
        for suffix, data in ((".log", body), (".index", indexes.offset), (".timeindex", indexes.time)):
            (directory / segment_file(base, suffix)).write_bytes(data)
    return SEGMENTS * BATCHES


def _open_many(directory: Path, settings: LogSettings, *, was_clean: bool = False, recovery_point: int = 0) -> None:
    storage, place = DiskStorage(), str(directory)
    Log.open(storage, place, NAME, settings, now_ms=NOW, was_clean=was_clean, recovery_point=recovery_point).release()


def _read_at_time(log: Log, timestamp_ms: int) -> memoryview:
    found = log.offset_for_timestamp(timestamp_ms)
    assert found is not None
    return log.read(found, 4096)


def _pread(directory: Path, offset: int) -> bytes:
    fd = os.open(directory / segment_file(offset - offset % BATCHES, ".log"), os.O_RDONLY)
    try:
        return os.pread(fd, 4096, offset % BATCHES * 1000)
    finally:
        os.close(fd)


def _read_columns(log: Log) -> None:
    at = 0
    while data := log.read(at, 8 << 20):
        at = kernels.decode_columns(data).next_offset


def _recover(directory: Path, settings: LogSettings) -> None:
    Log.open(DiskStorage(), str(directory), NAME, settings, now_ms=NOW).release()


def _read_raw(path: Path) -> int:
    fd, size = os.open(path, os.O_RDONLY), 0
    while part := os.read(fd, 8 << 20):
        size += len(part)
    os.close(fd)
    return size


def _write_like(source: Path, target: Path) -> None:
    fd, out = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT)
    while part := os.read(fd, 256 << 10):
        os.write(out, part)
    os.close(fd)
    os.close(out)
    target.unlink()


def _write(batches: list[bytearray], target: Path) -> None:
    out = os.open(target, os.O_WRONLY | os.O_CREAT)
    for batch in batches:
        os.write(out, batch)
    os.close(out)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _tell(what: str, reference: str, ours: list[float], theirs: list[float], size: int, count: int) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    rate = f"{size / mine / 1e6:7.0f} MB/s {count / mine / 1e6:6.2f} Mrec/s"
    print(f"  {what:<32}{rate}   {other / mine:5.2f} x {reference} ({size / other / 1e6:.0f} MB/s)")


if __name__ == "__main__":
    main()
