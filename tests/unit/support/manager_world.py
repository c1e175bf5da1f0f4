"""One disk and one bucket for tests of the manager, with common operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from disk_model import ModelDisk

from local.errors import Unavailable
from local.format.record import Record
from local.names import TopicPartition
from remote.manifest.manifest_memory_cache import ManifestMemoryCache
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.read.reader import TieredReader

NOW = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
NAME = TopicPartition("t", 0)
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1ms", "retention.ms": "-1"}
COMPACTED = {**TIERED, "cleanup.policy": "compact"}


class World:
    """One disk and one bucket for any number of managers. After each test all objects of its buckets are decoded."""

    made: ClassVar[list[World]] = []

    def __init__(self) -> None:
        World.made.append(self)
        self.disk = ModelDisk()
        self.store = MemoryStore("memory://bucket")
        small = {
            "num.recovery.threads.per.data.dir": "1",  # the same calls in the same order every time
            "segment.bytes": "2000",
            "index.interval.bytes": "200",
            "append.batch.bytes": "300",
            "file.delete.delay.ms": "0",
            "min.cleanable.dirty.ratio": "0",
        }
        self.config = replace(
            Config.load(None, small, {}, local_dir="data"), data_dir="./data", remote_url="memory://b"
        )

    def open(
        self,
        *,
        now_ms: int = NOW,
        read_only: bool = False,
        disk: ModelDisk | None = None,
        store: ObjectStore | None = None,
        known: ManifestMemoryCache | None = None,
        takes_over: bool = False,
        **settings: str,
    ) -> LogManager:
        """Open a manager. `settings` are overrides like ``-X``, with underscores instead of dots."""
        asked = {key.replace("_", "."): value for key, value in settings.items()}
        config = replace(self.config, overrides={**self.config.overrides, **asked})
        return LogManager.open(
            config,
            now_ms=now_ms,
            read_only=read_only,
            storage=disk or self.disk,
            store=store or self.store,
            known=known,
            takes_over=takes_over,
        )

    def other_disk(self) -> ModelDisk:
        """The disk of another node, which has the topics and no log."""
        other = ModelDisk()
        other.make_directory("./data")
        other.create("./data/topics.json").append(self.disk.read("./data/topics.json"))
        return other


class SwitchableStore:
    """A store that is unreachable while `is_down`, for reads too unless `is_readable`."""

    def __init__(self, inner: MemoryStore, *, is_down: bool = True) -> None:
        self.inner = inner
        self.is_down = is_down
        self.is_readable = False
        self.closed = 0

    @property
    def url(self) -> str:
        return self.inner.url

    def close(self) -> None:
        self.closed += 1

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if self.is_down and not (self.is_readable and verb in ("get", "get_each", "list")):
                raise Unavailable("the store is down", verb=verb)
            return getattr(self.inner, verb)(*args, **more)

        return call


class MuteStore:
    """A store that gives no reply after the first create once armed. That create takes effect."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self.is_armed, self.is_mute = inner, False, False
        self.url = inner.url

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            is_last = self.is_armed and verb == "put_if_absent"
            found = None if self.is_mute else getattr(self.inner, verb)(*args, **more)
            self.is_mute = self.is_mute or is_last
            if self.is_mute:
                raise Unavailable("no reply", verb=verb)
            return found

        return call

    def close(self) -> None:
        """Keep the inner store open after a manager."""


def send(manager: LogManager, count: int, *, topic: str = "t", start: int = 0, keys: int = 9) -> list[Record]:
    records = [Record(b"k%d" % (at % keys), b"value %d" % at, NOW - DAY + at) for at in range(start, start + count)]
    for at in range(0, count, 10):
        manager.append(topic, records[at : at + 10], 0, now_ms=NOW)
    return records


def settle(manager: LogManager, now_ms: int = NOW) -> None:
    for _ in range(20):
        if not manager.tick(now_ms):
            break
    else:
        raise AssertionError("the manager does not settle")
    assert manager.problems == {}


def values(reader: TieredReader, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in reader.records(NAME, start, end)]
