"""Every flow of a manager with its bucket, from a prepared state, under store faults; then the checks.

A case is (flow, call, kind, mode): the flow runs, and one of its calls meets one kind of `fault_kinds`. The mode is the
object encoding (plain, encrypted, compressed and encrypted). Steps of a case:

1. The flow runs with the fault. It may fail.
2. The store works again, and the same manager continues: a daemon is not restarted for a passing fault.
3. The manager opens again.
4. The whole bucket is decoded.

At every step: each acknowledged record is readable at its offset with its value, no other record is returned, and no
offset is given twice.
"""

from __future__ import annotations

import base64
import copy
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from unittest import mock

from bucket_truth import assert_sound
from disk_model import ModelDisk
from fault_kinds import Clock, FaultStore, Kind, Plan

from local.errors import LogError
from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from remote.check.partition_check import ObjectKind
from remote.fetch import read_ahead
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.segments.encryption import KeyRing
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import Deadlines, WatchedStore
from tiered.config.config import Config
from tiered.config.secrets import KEYS_VARIABLE
from tiered.maintenance import upload_and_commit
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
NAME = TopicPartition("t", 0)
TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1h",
    "retention.ms": "2d",
    "remote.log.delete.grace.ms": "1h",
}
ENABLE = "remote.storage.enable"
SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",
    "segment.bytes": "1100",
    "index.interval.bytes": "200",
    "append.batch.bytes": "300",
    "file.delete.delay.ms": "0",
}
SHORT = Deadlines(call_s=0.05, upload_stall_s=0.05, close_s=0.05)
HARMLESS = {Kind.SLOW, Kind.DUPLICATE, Kind.STALE_LIST, Kind.PHANTOM_ENTRY}  # the flow may not fail

KEY = b"0123456789abcdef0123456789abcdef"
RING = KeyRing({"k1": KEY})


class Mode(Enum):
    """The object encoding, with the settings of a topic for it."""

    RAW = ("as they are", {})
    ENCRYPTED = ("encrypted", {"remote.encryption.key.id": "k1"})
    BOTH = ("compressed and encrypted", {"remote.encryption.key.id": "k1", "remote.compression": "zstd"})

    @property
    def settings(self) -> dict[str, str]:
        return self.value[1]

    @property
    def suffix(self) -> str:
        return {Mode.RAW: ".log", Mode.ENCRYPTED: ".log.enc", Mode.BOTH: ".log.zst.enc"}[self]


@dataclass
class World:
    """One disk, one bucket, one clock, and the acknowledged records by offset."""

    disk: ModelDisk = field(default_factory=ModelDisk)
    inner: MemoryStore = field(default_factory=lambda: MemoryStore("memory://b", now_ms=lambda: NOW))
    clock: Clock = field(default_factory=lambda: Clock(NOW))
    acked: dict[int, Record] = field(default_factory=dict)
    sent: dict[int, set[Record]] = field(default_factory=dict)
    log_start: int = 0
    mode: Mode = Mode.RAW

    def __post_init__(self) -> None:
        self.store = FaultStore(self.inner, self.clock)
        self.watched: WatchedStore | None = None

    def copied(self) -> World:
        inner = MemoryStore("memory://b", now_ms=lambda: NOW)
        inner._objects = dict(self.inner._objects)
        self.disk.locks.clear()
        sent = {offset: set(records) for offset, records in self.sent.items()}
        disk = copy.deepcopy(self.disk)
        return World(disk, inner, Clock(self.clock.now_ms), dict(self.acked), sent, self.log_start, self.mode)

    def open(self, disk: ModelDisk | None = None) -> LogManager:
        loaded = Config.load(None, SETTINGS, {}, local_dir="data")
        config = replace(loaded, data_dir="./data", remote_url="memory://b")
        storage, store = disk or self.disk, self.watched or self.store
        with mock.patch.dict(os.environ, {KEYS_VARIABLE: f"k1 {base64.b64encode(KEY).decode()}"}):
            return LogManager.open(config, now_ms=self.clock.now_ms, storage=storage, store=store)

    def create_topic(self, manager: LogManager) -> None:
        if not manager.topics.all():
            manager.topics.create("t", 1, {**TOPIC, **self.mode.settings}, now_ms=NOW)

    def append(self, manager: LogManager, count: int) -> None:
        first = manager.partitions.all()[0].log.next_offset
        records = [
            Record(b"k%d" % at, b"%d at %d" % (at, self.clock.now_ms) + b"." * 25, self.clock.now_ms)
            for at in range(first, first + count)
        ]
        for at, record in enumerate(records, start=first):
            self.sent.setdefault(at, set()).add(record)
        result = manager.append("t", records, 0, now_ms=self.clock.now_ms, durability=Durability.FLUSHED)
        assert result[NAME][:2] == (first, first + count)
        assert first not in self.acked, "an offset was given twice"
        self.acked.update(enumerate(records, start=first))

    def settle(self, manager: LogManager) -> None:
        for _ in range(12):
            if not manager.tick(self.clock.now_ms):
                return
        raise AssertionError("the manager does not settle")

    def retained(self) -> dict[int, Record]:
        """The acknowledged records that retention has not reached at the current time."""
        return {
            offset: record
            for offset, record in self.acked.items()
            if offset >= self.log_start and record.timestamp_ms > self.clock.now_ms - 2 * DAY
        }

    def true(self, records: Iterator[object]) -> dict[int, object]:
        """The records by offset; fail for a record that was not sent with this offset."""
        found: dict[int, object] = {}
        for record in records:
            plain = Record(record.key, record.value, record.timestamp_ms)  # type: ignore[attr-defined]
            offset: int = record.offset  # type: ignore[attr-defined]
            assert plain in self.sent.get(offset, ()), f"a record at {offset} was read that no producer sent"
            assert offset not in found
            assert offset > max(found, default=-1)
            found[offset] = plain
        return found


Flow = Callable[[World, LogManager], None]


def copy_segments(world: World, manager: LogManager) -> None:
    world.settle(manager)


def read_sequential(world: World, manager: LogManager) -> None:
    world.true(manager.reader().records(NAME, manager.reader().offsets(NAME)[0]))


def read_random(world: World, manager: LogManager) -> None:
    for offset in (31, 2, 77, 50, 3):
        found = world.true(manager.reader().records(NAME, offset, offset + 4))
        assert list(found) == list(range(offset, offset + 4))


def read_by_time(world: World, manager: LogManager) -> None:
    for offset in (40, 5):
        wanted = world.acked[offset].timestamp_ms
        found = manager.reader().offset_for_timestamp(NAME, wanted)
        assert found == min(at for at, record in world.acked.items() if record.timestamp_ms >= wanted)


def local_retention(world: World, manager: LogManager) -> None:
    world.clock.now_ms += 2 * HOUR
    world.settle(manager)


def remote_retention(world: World, manager: LogManager) -> None:
    world.clock.now_ms = NOW + 2 * DAY + HOUR
    world.settle(manager)


def delete_pending(world: World, manager: LogManager) -> None:
    world.clock.now_ms += 2 * HOUR
    world.settle(manager)


def delete_records(world: World, manager: LogManager) -> None:
    world.log_start = 45  # no promise holds any more for the records below
    manager.maintenance.delete_records({NAME: 45}, now_ms=world.clock.now_ms)
    world.settle(manager)


def write_on(world: World, manager: LogManager) -> None:
    world.append(manager, 30)
    manager.partitions.roll("t", now_ms=world.clock.now_ms)
    world.settle(manager)


def switch_off_and_on(world: World, manager: LogManager) -> None:
    """Switch tiering off and on: remote-only segments are deleted, and the rest is copied again.

    Unlinked segments are deleted after the grace period.
    """
    world.log_start = manager.partitions.all()[0].log.local_log_start_offset
    manager.topics.alter("t", {ENABLE: "false", "remote.log.delete.on.disable": "true"}, now_ms=world.clock.now_ms)
    world.settle(manager)
    world.clock.now_ms += 2 * HOUR
    world.settle(manager)
    manager.topics.alter("t", {ENABLE: "true"}, now_ms=world.clock.now_ms)
    world.settle(manager)


def list_named_offsets(world: World, manager: LogManager) -> None:
    for spec in (-1, -2, -3, -4, -5):
        manager.list_offsets({NAME: spec})


def read_bucket(world: World, manager: LogManager) -> None:
    bucket = RemoteLog(world.watched or world.store, keys=RING)
    start, end = bucket.reader().offsets(NAME)
    assert len(world.true(bucket.reader().records(NAME, start))) == end - start


# --- initial states --------------------------------------------------------------------------------------------------


@cache
def _new(mode: Mode) -> World:
    return World(mode=mode)


@cache
def _written(mode: Mode) -> World:
    """Three rolled batches of records, an hour apart; the bucket has only the first manifest."""
    world = World(mode=mode)
    manager = world.open()
    world.create_topic(manager)
    for _ in range(3):
        world.append(manager, 30)
        world.clock.now_ms += 1000
    manager.partitions.roll("t", now_ms=world.clock.now_ms)
    manager.close()
    return world


@cache
def _tiered(mode: Mode) -> World:
    """All closed segments are copied and still on the disk; newer records exist on the disk only."""
    world = _written(mode).copied()
    manager = world.open()
    world.settle(manager)
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    assert all(entry.data_key.endswith(mode.suffix) for entry in manifest.segments)
    world.append(manager, 10)
    manager.close()
    return world


@cache
def _dropped(mode: Mode) -> World:
    """The disk dropped every segment that the bucket holds."""
    world = _tiered(mode).copied()
    world.clock.now_ms += 2 * HOUR
    manager = world.open()
    world.settle(manager)
    assert manager.partitions.all()[0].log.local_log_start_offset > 80
    world.append(manager, 5)
    manager.close()
    return world


@cache
def _expired(mode: Mode) -> World:
    """Expired entries left the manifest; their objects are pending deletes."""
    world = _dropped(mode).copied()
    world.log_start = 45
    manager = world.open()
    manager.maintenance.delete_records({NAME: 45}, now_ms=world.clock.now_ms)
    world.settle(manager)
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    assert manifest.pending_deletes
    manager.close()
    return world


@cache
def _in_pages(mode: Mode) -> World:
    """As `_dropped`, with nearly all entries in manifest pages of three."""
    with pages_of_three():
        world = _written(mode).copied()
        manager = world.open()
        world.settle(manager)
        world.append(manager, 10)
        world.clock.now_ms += 2 * HOUR
        world.settle(manager)
        manifest = manager.partitions.all()[0].manifest()
        assert manifest is not None
        assert len(manifest.pages) > 1
        manager.close()
    return world


@cache
def _pages_expired(mode: Mode) -> World:
    """Whole manifest pages are unlinked and pending deletes."""
    with pages_of_three():
        world = _in_pages(mode).copied()
        world.log_start = 60
        manager = world.open()
        manager.maintenance.delete_records({NAME: 60}, now_ms=world.clock.now_ms)
        world.settle(manager)
        manifest = manager.partitions.all()[0].manifest()
        assert manifest is not None
        assert manifest.pending_page_deletes
        manager.close()
    return world


@dataclass(frozen=True)
class Scene:
    """A flow, its initial state, and whether the flow includes opening the manager."""

    begin: Callable[[Mode], World]
    flow: Flow
    opens: bool = False
    loses_disk: bool = False
    in_pages: bool = False


def _nothing(world: World, manager: LogManager) -> None:
    pass


def _create(world: World, manager: LogManager) -> None:
    world.create_topic(manager)
    write_on(world, manager)


SCENES = {
    "open fresh": Scene(_new, _create, opens=True),
    "open existing": Scene(_dropped, write_on, opens=True),
    "open on another disk": Scene(_dropped, write_on, opens=True, loses_disk=True),
    "copy": Scene(_written, copy_segments),
    "read sequentially": Scene(_dropped, read_sequential),
    "read at random": Scene(_dropped, read_random),
    "read by time": Scene(_dropped, read_by_time),
    "named offsets": Scene(_dropped, list_named_offsets, opens=True),
    "the bucket alone": Scene(_dropped, read_bucket),
    "local retention": Scene(_tiered, local_retention),
    "remote retention": Scene(_dropped, remote_retention),
    "deletion of the unlinked": Scene(_expired, delete_pending),
    "delete-records": Scene(_dropped, delete_records),
    "write, roll, copy": Scene(_dropped, write_on),
    "retention of pages": Scene(_in_pages, remote_retention, in_pages=True),
    "switched off and on": Scene(_dropped, switch_off_and_on),
    "switched off and on, both tiers full": Scene(_tiered, switch_off_and_on),
    "switched off and on, in pages": Scene(_in_pages, switch_off_and_on, in_pages=True),
    "deletion of pages": Scene(_pages_expired, delete_pending, in_pages=True),
}


@contextmanager
def small_chunks() -> Iterator[None]:
    """Make chunks so small that a segment has several, and ranges begin inside an object."""
    real = upload_and_commit.copy_segment
    upload_and_commit.copy_segment = partial(real, chunk_bytes=256)
    try:
        yield
    finally:
        upload_and_commit.copy_segment = real


@contextmanager
def pages_of_three() -> Iterator[None]:
    """Limit manifest pages to three entries and let a manifest keep hardly any entry of its own."""
    real = commit_protocol.PAGE_RULE
    commit_protocol.PAGE_RULE = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    try:
        yield
    finally:
        commit_protocol.PAGE_RULE = real


class _AtOnce:
    """Runs each read ahead in the thread of the reader."""

    def submit(self, call: Callable[..., object], *given: object) -> Future[object]:
        done = Future[object]()
        try:
            done.set_result(call(*given))
        except BaseException as error:  # noqa: BLE001 - the future raises the error
            done.set_exception(error)
        return done


@contextmanager
def read_ahead_at_once() -> Iterator[None]:
    """Read ahead without threads, so that a call of a flow has the same number in every run."""
    with mock.patch.object(read_ahead, "_threads", _AtOnce()):
        yield


def _begin(scene: Scene, mode: Mode) -> World:
    with small_chunks():
        world = scene.begin(mode).copied()
    if scene.loses_disk:
        fresh = ModelDisk()
        fresh.make_directory("./data")
        fresh.create("./data/topics.json").append(world.disk.read("./data/topics.json"))
        end = max(offset for offset, _ in world.acked.items())
        # Records that were never copied are lost with the disk; their offsets may be given again.
        reached = RemoteLog(world.inner, keys=RING).reader().offsets(NAME)[1]
        world.acked = {offset: record for offset, record in world.acked.items() if offset < reached}
        assert max(world.acked) < end
        world.disk = fresh
    return world


def calls_of(name: str, mode: Mode = Mode.RAW) -> list[str]:
    """The calls of a scene without any fault."""
    with read_ahead_at_once(), pages_of_three() if SCENES[name].in_pages else nullcontext():
        return _calls_of(SCENES[name], mode)


def _calls_of(scene: Scene, mode: Mode) -> list[str]:
    world = _begin(scene, mode)
    manager = None if scene.opens else world.open()
    world.store.arm()
    manager = manager or world.open()
    scene.flow(world, manager)
    calls = list(world.store.calls)
    manager.abandon()
    return calls


def cases(name: str, mode: Mode = Mode.RAW) -> list[tuple[int, Kind]]:
    """(call, kind) for every kind that each call can meet."""
    return [(at, kind) for at, verb in enumerate(calls_of(name, mode)) for kind in Kind if verb in kind.verbs]


def run_case(name: str, at: int, kind: Kind, mode: Mode = Mode.RAW) -> bool:
    """Run one complete case; return whether the fault was met. Raises AssertionError for a broken promise."""
    return _run(name, lambda number, verb: kind if number == at else None, kind, mode)


def run_drawn(name: str, seed: int, mode: Mode = Mode.RAW) -> bool:
    """As `run_case`, with drawn faults: any call may meet any kind, and one flow may meet several."""
    rng = random.Random(f"{name} {seed}")
    rate = rng.choice((0.05, 0.15, 0.4))

    def plan(number: int, verb: str) -> Kind | None:
        kinds = [kind for kind in Kind if verb in kind.verbs and kind is not Kind.HANG]
        return rng.choice(kinds) if rng.random() < rate else None

    return _run(name, plan, None, mode)


def _run(name: str, plan: Plan, kind: Kind | None, mode: Mode) -> bool:
    with read_ahead_at_once(), pages_of_three() if SCENES[name].in_pages else nullcontext():
        return _run_scene(SCENES[name], plan, kind, mode)


def _run_scene(scene: Scene, plan: Plan, kind: Kind | None, mode: Mode) -> bool:
    world = _begin(scene, mode)
    if kind is Kind.HANG:
        world.watched = WatchedStore(world.store, deadlines=SHORT)
    manager = None if scene.opens else world.open()
    world.store.follow(plan)
    failed: LogError | None = None
    try:
        manager = manager or world.open()
        scene.flow(world, manager)
    except LogError as error:
        failed = error
    met = world.store.met is not None
    assert failed is None or kind not in HARMLESS, f"a harmless fault ended the flow: {failed}"
    world.store.heal()
    if world.watched is not None:
        world.watched._deadlines = Deadlines()
    if manager is not None:
        _goes_on(world, manager)
        manager.abandon()
    world.disk.locks.clear()
    manager = world.open()
    _goes_on(world, manager)
    _check_end(world, manager)
    manager.close()
    return met


def _goes_on(world: World, manager: LogManager) -> None:
    """The same manager finishes its work after the fault and returns the right records."""
    world.create_topic(manager)
    world.settle(manager)
    assert not manager.problems, f"a passing fault left problems: {manager.problems}"
    world.append(manager, 2)
    world.settle(manager)
    assert not manager.problems
    _check_records(world, manager)


def _check_records(world: World, manager: LogManager) -> None:
    start, _ = manager.reader().offsets(NAME)
    found = world.true(manager.reader().records(NAME, start))
    for offset, record in world.retained().items():
        assert found.get(offset) == record, f"acknowledged offset {offset} is lost"


def _check_end(world: World, manager: LogManager) -> None:
    """Copy everything and read it from the bucket; no unlinked object outlives the grace period."""
    if manager.topics.get("t").properties[ENABLE] == "false":
        manager.topics.alter("t", {ENABLE: "true"}, now_ms=world.clock.now_ms)
    manager.partitions.roll("t", now_ms=world.clock.now_ms)
    world.settle(manager)
    for _ in range(2):
        world.clock.now_ms += 2 * HOUR
        world.settle(manager)
    assert not manager.problems
    bucket = RemoteLog(world.inner, keys=RING).reader()
    found = world.true(bucket.records(NAME, bucket.offsets(NAME)[0]))
    assert {offset: found.get(offset) for offset in world.retained()} == world.retained()
    (report,) = assert_sound(world.inner, keys=RING)
    assert all(entry.data_key.endswith(world.mode.suffix) for entry in report.manifest.segments)  # type: ignore[union-attr]
    assert report.manifest is not None
    assert not report.manifest.pending_deletes, "a deleted object is still listed as a pending delete"
    assert not report.manifest.pending_page_deletes
    assert not report.manifest.tier_disabled
    assert ObjectKind.UNKNOWN not in report.counts()
    end = manager.reader().offsets(NAME)[1]
    assert end == max(world.acked) + 1
