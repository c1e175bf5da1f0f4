"""The bucket's part of `tiered.bench.benchmark`, compared with the store's plain operations.

It measures upload, ranged reads and cold random reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random

from local.names import TopicPartition
from remote.fetch.range_reader import RANGE_BYTES
from remote.fetch.read_ahead import THREADS
from remote.segments.chunk_table import CHUNK_BYTES
from remote.store import ObjectStore, ranged_source
from remote.store.middleware.metered_store import MeteredStore
from tiered.bench.benchmark import Bench
from tiered.bench.benchmark_local import local_config, log_files, records
from tiered.config.config import file_url
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

TOPIC, DATA = "bench", "tiered"
RAW = "raw/"
SEGMENTS = 4  # so that uploads and commits overlap, as in production


def folder_store(root: str) -> ObjectStore:
    """A store in a folder below `root`."""
    from remote.store.open_store import open_store

    path = os.path.join(root, "bucket")
    os.makedirs(path)
    return open_store(file_url(path), {})


def measure_bucket(bench: Bench, store: ObjectStore) -> None:
    """Measure all parts. The `store` must be empty; the objects stay in it. Raises Stopped."""
    _upload(bench, store)
    _read(bench, store)
    _read_cold(bench, store)


def _upload(bench: Bench, store: ObjectStore) -> None:
    """Measure the upload of segments by a manager's maintenance, with checks and commits.

    The reference puts the same files unchanged.
    """
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
            read = partial(_pread, file.fileno())
            store.upload(f"{RAW}{number}", ranged_source(os.path.getsize(path), read))


def _pread(descriptor: int, start: int, length: int) -> bytes:
    return os.pread(descriptor, length, start)


def _read(bench: Bench, store: ObjectStore) -> None:
    name, sizes = TopicPartition(TOPIC, 0), list[int]()
    view = RemoteLog(_Borrowed(store))
    seconds = bench.timed(lambda: sizes.extend(len(each) for each in view.reader().batches(name, 0)))
    view.close()
    bench.check()
    raw = bench.timed(lambda: _get_all(store))
    bench.note("ranged reads", len(sizes), sum(sizes), seconds, raw)


def _get_all(store: ObjectStore) -> None:
    asked = [
        (info.key, at, min(RANGE_BYTES, info.size_bytes - at))
        for info in store.list(RAW)
        for at in range(0, info.size_bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda each: len(store.get_range(*each)), asked):
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
    raw = bench.each_timed(_random_gets(bench, store, chance))
    bench.note_each("cold random read", sum(sizes), took, raw)


def _random_gets(bench: Bench, store: ObjectStore, chance: Random) -> Iterator[int]:
    objects = list(store.list(RAW))
    for _ in range(bench.options.cold_reads):
        info = chance.choice(objects)
        length = min(CHUNK_BYTES, info.size_bytes)
        yield len(store.get_range(info.key, chance.randrange(info.size_bytes - length + 1), length))


class _Borrowed(MeteredStore):
    """A store that ignores `close`, because its user does not own it."""

    def close(self) -> None:
        """Do nothing: the owner of the run closes the store."""
