"""Several managers and readers race for one partition, one step at a time, as a seed has it; then what must hold.

Everything that happens is drawn from one seed: each actor runs its real code in a thread of its own, and stops before
every call to the store, after it, and at some effects of its disk; one baton says who goes on. So any of them is
paused at any step for as long as the seed wants, while the others take over, commit, expire, delete. Time is virtual. A
request may be refused, lose its answer, or arrive long after its sender was told that it failed. A machine may be
killed or lose its power between two lives of its manager, and comes back with what its disk remembers.

The bucket is watched at every effect, the truth being what its heads said, one after another:

* heads form one chain; an epoch has one writer; what is named is there, whole, when it is named and as long as it is.
* an offset, once committed, has that record for ever; the log start never goes back; nothing that a head names is
  deleted.
* a reader, with however old a head, gets these records and no others, or is told that they are gone.
* a disk lets go of a record only when the bucket holds it, or retention has passed it: every record that a machine
  acknowledged is on its disk, or committed, or below the log start.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bucket_truth import assert_sound
from disk_model import ModelDisk

from local import kernels
from local.errors import Conflict, Corrupt, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.log import Durability
from local.names import TopicPartition
from local.record import Record
from remote import keys
from remote.head import Head, decode_head
from remote.keys import parse_head_key, partition_prefix
from remote.memory_store import MemoryStore
from remote.metadata_index import MetadataIndex, Pages
from remote.store import Body, ObjectInfo, UploadSource
from tiered.config import Config
from tiered.manager import LogManager
from tiered.remote_view import RemoteLog

NOW = 1_800_000_000_000
HOUR = 3_600_000
NAME = TopicPartition("t", 0)
TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1h",
    "retention.ms": "8h",
    "remote.log.delete.grace.ms": "1h",
}
SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",
    "segment.bytes": "1024",
    "index.interval.bytes": "200",
    "append.batch.bytes": "300",
    "file.delete.delay.ms": "0",
}
STEPS = 260


class Killed(BaseException):
    """This process ended here."""


class Actor:
    """One process: a body that runs only while it holds the baton."""

    def __init__(self, race: Race, name: str, body: Callable[[Actor], None]) -> None:
        self.race, self.name = race, name
        self.rng = random.Random(f"{race.seed} {name}")
        self.is_dying = self.is_over = False
        self.failure: BaseException | None = None
        self.frozen_until = 0
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()

    def _run(self, body: Callable[[Actor], None]) -> None:
        self._go.acquire()
        try:
            body(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the race
            self.failure = error
        self.is_over = True
        self._back.release()

    def step(self, what: str) -> None:
        """Give the baton away; it comes back when the seed says so. Raises Killed when the process is to end here."""
        if self.is_dying:
            raise Killed
        self.race.events.append(f"{self.name} {what}")
        self._back.release()
        self._go.acquire()
        if self.is_dying:
            raise Killed

    def run_a_step(self) -> None:
        self._go.release()
        if not self._back.acquire(timeout=60):
            raise AssertionError(f"{self.name} hangs after {self.race.events[-1]}")
        if self.failure is not None:
            raise self.failure


class Race:
    """The bucket, the clock, the baton, and the truth."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = self.began_ms = NOW
        self.steps = 0
        self.events: list[str] = []
        self.actors: list[Actor] = []
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.inner = MemoryStore("memory://b", now_ms=lambda: self.now_ms)
        self.truth = Truth(self)
        self.trouble = self.rng.choice((0.0, 0.02, 0.1))

    def spawn(self, name: str, body: Callable[[Actor], None]) -> None:
        self.actors.append(Actor(self, name, body))

    def run(self) -> None:
        """Until every actor is done; those that never end by themselves look at `is_ending`."""
        current = None
        try:
            while alive := [each for each in self.actors if not each.is_over]:
                self.steps += 1
                self._deliver()
                if self.rng.random() < 0.03:
                    self.now_ms += self.rng.choice((1000, 60_000, HOUR, 2 * HOUR))
                ready = [each for each in alive if each.frozen_until <= self.steps] or alive
                if current not in ready or self.rng.random() < 0.35:
                    if current is not None and self.rng.random() < 0.2:
                        current.frozen_until = self.steps + self.rng.randrange(5, 80)
                    current = self.rng.choice(ready)
                assert current is not None
                current.run_a_step()
        finally:
            for each in self.actors:
                while not each.is_over:
                    each.is_dying = True
                    each._go.release()
                    each._back.acquire()
        self._deliver(everything=True)

    @property
    def is_ending(self) -> bool:
        return self.steps > STEPS

    def _deliver(self, *, everything: bool = False) -> None:
        due = [effect for when, effect in self.late if everything or when <= self.steps]
        self.late = [each for each in self.late if not everything and each[0] > self.steps]
        for effect in due:
            with suppress(LogError):
                effect()


class Truth:
    """What the heads have said so far, checked at every effect on the bucket."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.heads: list[Head] = []
        self.committed: dict[int, Record] = {}
        self.writers: dict[int, str] = {}
        self.prefix = ""

    @property
    def log_start(self) -> int:
        return self.heads[-1].log_start_offset if self.heads else 0

    def rows(self) -> list[Any]:
        if not self.heads:
            return []
        index = MetadataIndex(self.heads[-1], Pages(self.race.inner, self.prefix).rows)
        return list(index.rows_with_dead(0, 1 << 62))

    def after_put(self, key: str, was_there: bool) -> None:
        sequence = parse_head_key(key.removeprefix(self.prefix))
        if sequence is None:
            assert not was_there, f"an object was written over: {key}"
            return
        assert not was_there, "a head was written over"
        head = decode_head(self.race.inner.get(key))
        last = self.heads[-1] if self.heads else None
        assert sequence == (last.sequence + 1 if last else 1), "a head that does not follow the last one"
        if last is not None:
            assert head.parent_id == last.commit_id
            assert head.epoch in (last.epoch, last.epoch + 1)
            assert head.log_start_offset >= last.log_start_offset, "the log start went back"
        assert self.writers.setdefault(head.epoch, head.writer_id) == head.writer_id, "two writers in one epoch"
        known = {row.ulid for row in self.rows()}
        self.heads.append(head)
        for row in self.rows():
            if row.ulid not in known:
                self._commit(row)

    def _commit(self, row: Any) -> None:
        body = self.race.inner.get(self.prefix + row.data_key)
        assert len(body) == row.stored_bytes, "a row names half an object"
        assert self.race.inner.head(self.prefix + row.indexes_key).size_bytes == row.indexes_bytes
        for record in kernels.decode_columns(body).records():
            plain = Record(record.key, record.value, record.timestamp_ms)
            assert row.base_offset <= record.offset < row.next_offset
            assert self.committed.setdefault(record.offset, plain) == plain, f"two records at offset {record.offset}"

    def before_delete(self, wanted: Iterable[str]) -> None:
        named = {self.prefix + key for row in self.rows() for key in (row.data_key, row.indexes_key)}
        for key in wanted:
            assert key not in named, f"an object that the newest head names was deleted: {key}"

    def check_read(self, records: Iterable[Any], start: int, end: int, log_start: int) -> None:
        """`records` are what a reader of the bucket got for ``[start, end)``."""
        found = {record.offset: Record(record.key, record.value, record.timestamp_ms) for record in records}
        wanted = {at: record for at, record in self.committed.items() if start <= at < end and at >= log_start}
        wrong = [at for at in found if self.committed.get(at) != found[at]]
        assert not wrong, f"other records than were committed at {wrong[:3]}"
        missing = [at for at in wanted if at not in found]
        assert not missing, f"committed records are missing at {missing[:3]}"


class GatedStore:
    """One process's way to the bucket: a step before and after each call, and the trouble that the seed wants."""

    def __init__(self, actor: Actor, *, is_reader: bool = False) -> None:
        self.actor, self.race = actor, actor.race
        self.is_reader = is_reader

    @property
    def url(self) -> str:
        return self.race.inner.url

    def close(self) -> None:
        pass

    def _do(self, what: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        self.actor.step(what)
        rng, race = self.actor.rng, self.race
        fate = rng.random() / race.trouble if race.trouble else 9.0
        trouble = Unavailable("lost on the way", what=what)
        if fate < 0.3:
            raise trouble
        if writes and fate < 0.6:
            effect()
            raise trouble
        if writes and fate < 1.0:
            race.late.append((race.steps + rng.randrange(1, 120), effect))
            raise trouble
        found = effect()
        if rng.random() < 0.5:
            self.actor.step(f"{what} done")
        return found

    def _put(self, key: str, body: bytes, *, if_absent: bool) -> None:
        inner = self.race.inner
        was_there = key in inner._objects
        if if_absent:
            inner.put_if_absent(key, body)
        elif was_there and inner.get(key) == body:
            return  # a request that arrived twice
        else:
            inner.put(key, body)
        self.race.truth.after_put(key, was_there)

    def put(self, key: str, body: Body) -> None:
        self._do(f"put {_short(key)}", partial(self._put, key, bytes(body), if_absent=False), writes=True)

    def put_if_absent(self, key: str, body: Body) -> None:
        self._do(f"create {_short(key)}", partial(self._put, key, bytes(body), if_absent=True), writes=True)

    def upload(self, key: str, source: UploadSource) -> None:
        scratch = MemoryStore()
        scratch.upload("x", source)
        self._do(f"upload {_short(key)}", partial(self._put, key, scratch.get("x"), if_absent=False), writes=True)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)

        def effect() -> None:
            self.race.truth.before_delete(wanted)
            self.race.inner.delete(wanted)

        self._do(f"delete {len(wanted)}", effect, writes=True)

    def get(self, key: str) -> bytes:
        found: bytes = self._do(f"get {_short(key)}", lambda: self.race.inner.get(key))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = self._do(f"get {_short(key)}", lambda: self.race.inner.get_range(key, start, length))
        return found

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        found: Sequence[Body] = self._do(f"get {_short(key)}", lambda: self.race.inner.get_ranges(key, ranges))
        return found

    def head(self, key: str) -> ObjectInfo:
        found: ObjectInfo = self._do(f"head {_short(key)}", lambda: self.race.inner.head(key))
        return found

    def list_prefixes(self, prefix: str) -> list[str]:
        found: list[str] = self._do("list prefixes", lambda: self.race.inner.list_prefixes(prefix))
        return found

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = self._do("list", lambda: list(self.race.inner.list(prefix, start_after=start_after)))
        return iter(found)


def _short(key: str) -> str:
    """A key without what differs from run to run."""
    tail = key.split("/", 2)[-1]
    return tail if "/head/" in tail else tail[:65].rsplit("-", 1)[0] if tail.startswith("data/") else tail[:12]


@dataclass
class Machine:
    """A disk, over any number of managers, and what it acknowledged: (offset, record) until its disk was replaced."""

    name: str
    disk: ModelDisk
    acked: dict[int, Record] = field(default_factory=dict)
    count: int = 0

    def holds(self) -> dict[int, Record]:
        """Every record in the segment files, by offset."""
        found: dict[int, Record] = {}
        for path, inode in self.disk.names.items():
            if "/t-0/" in path and path.endswith(".log"):
                for record in kernels.decode_columns(bytes(inode.live)).records():
                    found[record.offset] = Record(record.key, record.value, record.timestamp_ms)
        return found

    def check(self, truth: Truth, *, start: int | None = None) -> None:
        held = self.holds()
        start = truth.log_start if start is None else start
        for offset, record in self.acked.items():
            kept = held.get(offset) == record or truth.committed.get(offset) == record or offset < start
            assert kept, f"{self.name} let go of offset {offset}, which nobody else holds"


def manage(machine: Machine, actor: Actor) -> None:
    """A process that opens the partition again and again, writes, tiers, expires, and dies as the seed has it."""
    race, rng = actor.race, actor.rng
    while not race.is_ending:
        machine.disk.watch = lambda: actor.step("disk") if rng.random() < 0.05 else None
        manager = None
        try:
            manager = _open(machine, actor)
            _work(machine, actor, manager)
        except LogError as error:
            race.events.append(f"{machine.name} {type(error).__name__}")
        machine.disk.watch = None
        if manager is not None:
            manager.abandon()
        machine.disk.locks.clear()
        machine.check(race.truth)
        actor.step("between two lives")
        fate = rng.random()
        if fate < 0.2:
            machine.disk = machine.disk.crash(random.Random(rng.random()))
        elif fate < 0.4 or manager is None or NAME in manager.problems:
            _replace_disk(machine)


def _open(machine: Machine, actor: Actor) -> LogManager:
    loaded = Config.load(None, SETTINGS, {}, local_dir="data")
    config = replace(loaded, data_dir="./data", remote_url="memory://b")
    race = actor.race
    return LogManager.open(config, now_ms=race.now_ms, storage=machine.disk, store=GatedStore(actor))  # type: ignore[arg-type]


def _replace_disk(machine: Machine) -> None:
    """An operator's decision: what only this disk held is given up."""
    machine.disk, machine.acked = _fresh_disk(machine.disk), {}


def _fresh_disk(like: ModelDisk) -> ModelDisk:
    """Another machine's disk, which knows the topics and holds no log."""
    fresh = ModelDisk()
    fresh.make_directory("./data")
    file = fresh.create("./data/topics.json")
    file.append(like.read("./data/topics.json"))
    file.sync()
    fresh.sync_directory("./data")
    return fresh


def _work(machine: Machine, actor: Actor, manager: LogManager) -> None:
    race, rng = actor.race, actor.rng
    for _ in range(rng.randrange(3, 14)):
        if race.is_ending:
            return
        if any(isinstance(error, Conflict) for error in manager.problems.values()):
            return
        match rng.choice(("append", "append", "tick", "tick", "tick", "roll", "read", "delete")):
            case "append":
                _append(machine, race, manager, rng.randrange(4, 16))
            case "tick":
                manager.tick(race.now_ms)
            case "roll":
                manager.roll("t", now_ms=race.now_ms)
            case "read":
                with suppress(Unavailable, OffsetOutOfRange):
                    _check_own_reads(machine, race, manager)
            case "delete":
                _delete_records(race, rng, manager)
        machine.check(race.truth)
        actor.step("between two calls")


def _append(machine: Machine, race: Race, manager: LogManager, count: int) -> None:
    first = manager.partitions()[0].log.next_offset
    machine.count += 1
    value = b"%s %d " % (machine.name.encode(), machine.count)
    records = [Record(b"k", value + b"%d" % at + b"." * 40, race.now_ms) for at in range(first, first + count)]
    result = manager.append("t", records, 0, now_ms=race.now_ms, durability=Durability.FLUSHED)
    first = result[NAME].base_offset
    assert not set(range(first, first + count)) & set(machine.acked), "an offset was given twice"
    machine.acked |= dict(enumerate(records, start=first))


def _check_own_reads(machine: Machine, race: Race, manager: LogManager) -> None:
    """What this manager shows: its own acknowledged records, else committed ones."""
    start, _ = manager.reader().offsets(NAME)
    for record in manager.reader().records(NAME, start):
        plain = Record(record.key, record.value, record.timestamp_ms)
        known = (machine.acked.get(record.offset), race.truth.committed.get(record.offset))
        assert plain in known, f"{machine.name} shows a record at {record.offset} that nobody acknowledged"


def _delete_records(race: Race, rng: random.Random, manager: LogManager) -> None:
    if rng.random() < 0.3:
        start, end = manager.reader().offsets(NAME)
        if end > start:
            manager.delete_records({NAME: rng.randrange(start, end)}, now_ms=race.now_ms)


def read(actor: Actor) -> None:
    """A process with nothing but the bucket's address, and a head that may be old."""
    race, rng = actor.race, actor.rng
    view: RemoteLog | None = None
    while not race.is_ending:
        actor.step("before a read")
        try:
            if view is None or rng.random() < 0.2:
                view = RemoteLog(GatedStore(actor, is_reader=True))
            if rng.random() < 0.3:
                view.refresh()
            start, end = view.reader().offsets(NAME)
            if start < end:
                at = rng.randrange(start, end)
                found = list(view.reader().records(NAME, at, end))
                race.truth.check_read(found, at, end, race.truth.log_start)
        except (Unavailable, OffsetOutOfRange):
            continue
        except NotFound:
            view = None  # nothing there yet


def race_once(seed: int, *, managers: int | None = None) -> Race:
    """One race to its end, and the peace after it. Raises AssertionError, naming the seed's last steps."""
    race = Race(seed)
    with _drawn_ids(race):
        machines = _machines(race, managers or (2 if seed % 2 else 3))
        for machine in machines:
            race.spawn(machine.name, partial(manage, machine))
        race.spawn("reader", read)
        try:
            race.run()
            _peace(race, machines)
        except (AssertionError, Corrupt) as error:
            told = "\n".join(race.events[-25:])
            raise AssertionError(f"seed {seed}: {error}\n{told}") from error
    return race


def _machines(race: Race, count: int) -> list[Machine]:
    first = ModelDisk()
    loaded = Config.load(None, SETTINGS, {}, local_dir="data")
    config = replace(loaded, data_dir="./data", remote_url="memory://b")
    setting = MemoryStore("memory://b")
    with LogManager.open(config, now_ms=NOW, storage=first, store=setting) as manager:
        topic = manager.create_topic("t", 1, TOPIC, now_ms=NOW)
    race.truth.prefix = partition_prefix("t", topic.topic_id, 0)
    return [Machine(name, _fresh_disk(first)) for name in "abc"[:count]]


def _peace(race: Race, machines: Sequence[Machine]) -> None:
    """Nobody fails any more. One machine takes over and finishes; then all that was promised is looked for."""
    truth = race.truth
    for machine in machines:
        machine.disk.locks.clear()
        machine.check(truth)
    last = Machine("last", _fresh_disk(machines[0].disk))
    calm = Race(race.seed)
    calm.inner, calm.truth, calm.now_ms, calm.trouble = race.inner, truth, race.now_ms, 0.0
    truth.race = calm
    calm.spawn("last", lambda actor: _finish(last, actor))
    calm.run()
    assert_sound(race.inner)
    for machine in machines:
        machine.check(truth)


def _finish(machine: Machine, actor: Actor) -> None:
    race = actor.race
    manager = _open(machine, actor)
    _append(machine, race, manager, 20)
    manager.roll("t", now_ms=race.now_ms)
    for _ in range(8):
        while manager.tick(race.now_ms):
            pass
        assert not manager.problems, f"no peace: {manager.problems}"
        machine.check(race.truth)
        _check_bucket(race)
        if not race.truth.heads[-1].unlinked:
            break
        race.now_ms += 2 * HOUR
    assert not race.truth.heads[-1].unlinked, "objects wait for their deletion for ever"
    manager.close()


def _check_bucket(race: Race) -> None:
    """By a reader who comes fresh: everything committed above the log start, and nothing else."""
    bucket = RemoteLog(race.inner).reader()
    start, end = bucket.offsets(NAME)
    race.truth.check_read(bucket.records(NAME, start) if start < end else (), start, end, race.truth.log_start)


@contextmanager
def _drawn_ids(race: Race) -> Iterator[None]:
    """Names of objects and commits come from the seed, so that a seed's story is the same every time."""
    rng = random.Random(f"{race.seed} ids")
    real = keys.secrets.randbits
    keys.secrets.randbits = rng.getrandbits
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        keys.secrets.randbits = real
        logging.disable(level)
