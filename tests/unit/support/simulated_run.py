"""A real manager over weeks of a virtual clock with counted requests: the reference of the simulation."""

from __future__ import annotations

import random
import secrets
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from unittest.mock import patch

from local.format.record import Record
from local.names import TopicPartition
from policies.cost.simulation import CELL_BYTES
from remote.fetch import read_ahead
from remote.manifest.manifest import Manifest
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.read.partition_source import Readable

START = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
NAME = TopicPartition("t", 0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Results of a run: all requests of the manager and of readers, and the final state."""

    counts: RequestCounts
    manifest: Manifest
    first_rows: tuple[SegmentEntry, ...]
    stored_bytes: float
    local_bytes: float
    batch_bytes: float
    begins: float


class Inline:
    """Replacement of threads: each fetch ahead is complete at once, so that timing does not change the counts."""

    def submit(self, act: Callable[..., object], *args: object) -> Future[object]:
        future: Future[object] = Future()
        try:
            future.set_result(act(*args))
        except Exception as error:  # noqa: BLE001 - raised by the future
            future.set_exception(error)
        return future


@contextmanager
def _same_names(seed: int) -> Iterator[None]:
    """Make random names equal in every run, because the size of a compressed manifest depends on them."""
    rng = random.Random(seed)
    with (
        patch.object(secrets, "randbits", rng.getrandbits),
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        patch.object(socket, "gethostname", lambda: "node-1"),
    ):
        yield


def run(
    store: ObjectStore,
    directory: str,
    settings: Mapping[str, str],
    *,
    weeks: int,
    batch_every_ms: int = HOUR,
    tick_ms: int = HOUR,
    records: int = 100,
    value_bytes: int = 600,
    keys: int | None = None,
    reads_every_ms: int | None = None,
    is_managers: bool = False,
    is_random: bool = True,
    partitions: int = 1,
    seed: int = 7,
) -> Run:
    """Append a batch of random bytes to each partition, run maintenance until idle, and read the whole bucket,
    repeatedly.

    The reader is a new one each time, or the manager itself. The topic exists before the counting begins. Counts cover
    all
    partitions, the final state is that of the first partition.
    """
    rng, read = random.Random(seed), RequestCounts()
    config = replace(
        Config.load(None, {"file.delete.delay.ms": "0"}, {}, local_dir=directory), remote_url="memory://ignored"
    )
    topic = {"remote.storage.enable": "true", "append.batch.bytes": "100MiB", **settings}
    held, local, sizes, fullest = [], [], [], None
    with _same_names(seed), LogManager.open(config, now_ms=START, store=_Shared(store)) as manager:
        manager.topics.create("t", partitions, topic, now_ms=START)
        before = manager.store.counts()
        assert before is not None
        for at in range(0, weeks * 7 * DAY, min(batch_every_ms, tick_ms)):
            now = START + at
            if at % batch_every_ms == 0:
                size = manager.partitions.find(NAME).log.size_bytes
                for partition in range(partitions):
                    batch = [_record(rng, value_bytes, keys, number, now, is_random) for number in range(records)]
                    manager.append("t", batch, partition, now_ms=now)
                sizes.append(manager.partitions.find(NAME).log.size_bytes - size)
            if at % tick_ms == 0:
                while manager.tick(now):
                    pass
                assert manager.problems == {}
                if reads_every_ms is not None and at and at % reads_every_ms == 0:
                    for partition in range(partitions):
                        name = TopicPartition("t", partition)
                        if is_managers:
                            read_all(manager, name)
                        else:
                            read += scan(store, name)
                seen = manager.partitions.find(NAME).manifest()
                fullest = seen if seen.segments else fullest
                held.append(sum(each.stored_bytes for each in seen.parts))
                local.append(sum(each.size_bytes for each in manager.partitions.find(NAME).log.segments()))
        counts = manager.store.counts()
        manifest = fullest
    assert counts is not None
    assert manifest is not None
    last = scan(store)  # a full read from its beginning, as in a history
    sizes_of_rows = [(each.stored_bytes, getattr(each, "segment_count", 1)) for each in manifest.parts]
    cells = sum(ceil(size / count / CELL_BYTES) * count for size, count in sizes_of_rows)
    return Run(
        counts=counts - before + read,
        manifest=manifest,
        first_rows=manifest.segments,
        stored_bytes=sum(held) / len(held),
        local_bytes=sum(local) / len(local),
        batch_bytes=sum(sizes) / len(sizes),
        begins=last.data_gets - cells,
    )


class _Shared:
    """A store that stays open after the manager closes it."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def close(self) -> None:
        """Left to the caller that opened it."""


def scan(store: ObjectStore, name: TopicPartition = NAME) -> RequestCounts:
    """Read the whole bucket with a reader that has no local state."""
    metered = MeteredStore(store)
    bucket = RemoteLog(metered)
    read_all(bucket, name)
    return metered.counts()


def read_all(of: Readable, name: TopicPartition) -> None:
    """Read all retained records on one thread."""
    threads, read_ahead._threads = read_ahead._threads, Inline()
    try:
        reader = of.reader()
        for _ in reader.records(name, reader.offsets(name)[0]):
            pass
    finally:
        read_ahead._threads = threads


def _record(rng: random.Random, value_bytes: int, keys: int | None, number: int, now: int, is_random: bool) -> Record:
    """A record. Half of a value that is not random is zeros."""
    key = None if keys is None else b"%06d" % (number % keys)
    value = rng.randbytes(value_bytes if is_random else value_bytes // 2)
    return Record(key, value.ljust(value_bytes, b"\0"), now)
