"""Machines in a race: a disk with a sequence of managers that append, copy, compact and delete."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

from disk_model import ModelDisk, PowerCut
from race_scenes import SceneOfRace
from race_stage import NOW, Actor, GatedStore, Life, ProcessDied, Race
from race_truth import Truth, plain, records_in
from tier_transitions import reachable

from local.errors import Conflict, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from remote.manifest.writer_roles import WriterState
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.jobs.view_jobs import build_views, drop_views, plan_views
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import Topic
from tiered.partition.partition import Partition
from tiered.partition.tier_state import STOPPED, TierAction, TierState

SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",
    "segment.bytes": "1024",
    "index.interval.bytes": "200",
    "append.batch.bytes": "300",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}
DELETES_AFTER = 0.7  # share of the steps, in scenes that delete a topic


def config() -> Config:
    loaded = Config.load(None, SETTINGS, {}, local_dir="data")
    return replace(loaded, data_dir="./data", remote_url="memory://b")


@dataclass
class Machine:
    """A disk with a sequence of managers, and the records that they acknowledged, by offset.

    A replaced disk starts without acknowledged records.
    """

    name: str
    disk: ModelDisk
    scene: SceneOfRace
    truth: Truth
    acked: dict[int, Record] = field(default_factory=dict)
    sent: dict[int, set[Record]] = field(default_factory=dict)
    seen: dict[bytes, int] = field(default_factory=dict)  # the newest offset of each key that this disk ever held
    count: int = 0
    is_paused: bool | None = False  # None: the process died during the change
    manager: LogManager | None = None  # of the present process, once it is open
    states: dict[Partition, TierState] = field(default_factory=dict)

    @property
    def partition(self) -> TopicPartition:
        return self.truth.name

    def holds(self) -> dict[int, Record]:
        """Every record in the segment files, by offset, with segments that are being put in place."""
        found: dict[int, Record] = {}
        for path, inode in sorted(self.disk.names.items(), reverse=True):
            if f"/{self.truth.name.directory}/" in path and path.endswith((".log", ".log.swap")):
                found |= records_in(bytes(inode.live))
        return found

    def check(self) -> None:
        truth = self.truth
        held, start = self.holds(), truth.log_start
        newest: dict[bytes, int] = {}
        for offset, record in held.items():  # also records of a killed append: they may have replaced others
            self.seen[record.key or b""] = max(offset, self.seen.get(record.key or b"", offset))
        for offset, record in (*truth.committed.items(), *self.acked.items()):
            newest[record.key or b""] = max(offset, newest.get(record.key or b"", offset))
        newest |= {key: max(offset, newest.get(key, offset)) for key, offset in self.seen.items()}
        for offset, record in self.acked.items():
            if held.get(offset) == record or truth.committed.get(offset) == record or offset < start:
                continue
            last = newest[record.key or b""]
            is_superseded = offset < last or self._may_be_gone(offset, record, held)
            is_kept = self.scene.is_compacted and is_superseded
            assert is_kept, f"{self.name} deleted offset {offset}, and no other tier holds it"

    def may_upload(self) -> bool:
        """Whether the state of the partition allows an upload."""
        held = self.manager.partitions.all() if self.manager is not None else []
        return all(each.allows(TierAction.UPLOAD) for each in held if each.name == self.partition)

    def check_states(self) -> None:
        """Check the state of each partition: reached by the table, with the facts that it promises.

        `TierMachine` asserts each single transition.
        """
        for held in self.manager.partitions.all() if self.manager is not None else ():
            before, after = self.states.get(held, after_open(held)), held.tier_state
            assert after in reachable({before}), f"{self.name} moved from {before.name} to {after.name}"
            assert (held.tier.error is not None) is (held.tier.state in STOPPED), "a state contradicts its error"
            if held.is_writer:
                assert held.metadata is not None
                assert held.metadata.state is WriterState.WRITER, f"{after.name} without the writer role"
                assert held.log.notes.fenced_by is None, f"{after.name} with a note of another writer on the disk"
            self.states[held] = after

    def lose_power(self, rng: random.Random) -> None:
        """Crash the disk.

        1. An older record that a tombstone had replaced is no longer expected, even after the tombstone was removed.
        2. A newer record that the disk held and loses now was no reason to remove an older one.
        """
        before = self.holds()
        for offset, record in list(self.acked.items()):
            last = self.seen.get(record.key or b"", offset)
            if offset not in before and offset < last and last not in before:
                del self.acked[offset]
        self.disk, self.seen = self.disk.crash(rng), {}

    def _may_be_gone(self, offset: int, record: Record, held: dict[int, Record]) -> bool:
        """Whether the record is a tombstone and this disk holds no older record of its key."""
        return record.value is None and not any(at < offset and each.key == record.key for at, each in held.items())


def after_open(held: Partition) -> TierState:
    return TierState.UNREACHED if held.is_tiered else TierState.LOCAL_ONLY


def new_machines(race: Race, count: int) -> tuple[list[Machine], Topic]:
    """`count` disks that know the race's topic and hold no log of it."""
    first = ModelDisk()
    with LogManager.open(config(), now_ms=NOW, storage=first, store=MemoryStore("memory://b")) as manager:
        topic = manager.topics.create("t", 1, race.scene.topic, now_ms=NOW)
    names = ("last", *"abc"[:count])
    return [Machine(name, fresh_disk(first), race.scene, race.truth) for name in names], topic


def fresh_disk(like: ModelDisk) -> ModelDisk:
    """The disk of another machine, which knows the topics and holds no log."""
    fresh = ModelDisk()
    fresh.make_directory("./data")
    file = fresh.create("./data/topics.json")
    file.append(like.read("./data/topics.json"))
    file.sync()
    fresh.sync_directory("./data")
    return fresh


def manage(machine: Machine, actor: Actor) -> None:
    """A process that opens the partition repeatedly, works, and ends or is killed as the seed decides."""
    race, rng = actor.race, actor.rng
    while not race.is_ending:
        life = Life(actor, machine.disk, lambda: machine.is_paused is True, machine.may_upload)
        machine.disk.watch = life.at_disk
        manager, machine.manager, machine.states = None, None, {}
        try:
            manager = machine.manager = open_manager(machine, life)
            machine.check_states()
            _work(machine, actor, manager)
        except LogError as error:
            race.events.append(f"{machine.name} {type(error).__name__}")
        except (ProcessDied, PowerCut):
            assert life.is_dead, "a power cut happened outside the plan of the race"
        machine.disk.watch = None
        if manager is not None:
            with suppress(ProcessDied, PowerCut):
                manager.abandon()
        machine.disk.is_gone = False
        machine.disk.locks.clear()
        machine.check()
        actor.frozen_until = race.steps + rng.randrange(race.scene.rest_max)
        actor.step("between two lives")
        fate = rng.random()
        if fate < 0.2:
            machine.lose_power(random.Random(rng.random()))
        elif fate < 0.4 or manager is None or machine.partition in manager.problems:
            _replace_disk(machine, is_killed=life.is_dead and fate >= 0.4)


def open_manager(machine: Machine, life: Life) -> LogManager:
    store = GatedStore(life)
    return LogManager.open(config(), now_ms=life.actor.race.now_ms, storage=machine.disk, store=store)  # type: ignore[arg-type]


def _replace_disk(machine: Machine, *, is_killed: bool) -> None:
    """Replace the disk by an operator's decision, which never follows a kill.

    Records that only this disk held are lost.
    """
    if not is_killed:
        machine.disk, machine.acked, machine.sent, machine.seen = fresh_disk(machine.disk), {}, {}, {}
        machine.is_paused = False


def _work(machine: Machine, actor: Actor, manager: LogManager) -> None:
    race, rng = actor.race, actor.rng
    for _ in range(rng.randrange(3, race.scene.deeds_max)):
        if race.is_ending:
            return
        if any(isinstance(error, Conflict) for error in manager.problems.values()):
            return
        _do_one(machine, actor, manager, rng.choice(_deeds(machine, race, manager)))
        machine.check()
        machine.check_states()
        for held in manager.partitions.all():
            machine.truth.check_head(held.manifest())
        actor.step("between two calls")


def _deeds(machine: Machine, race: Race, manager: LogManager) -> list[str]:
    if not manager.topics.all():
        return ["tick"]
    deeds = ["append", "append", "tick", "tick", "tick", "roll", "read"]
    if race.scene.topic.get("cleanup.policy") != "compact":
        deeds.append("delete")
    if race.scene.has_views:
        deeds += ["build", "build", "drop"]
    if race.scene.pauses:
        deeds += ["pause", "resume"]
    if machine.truth.source is not None:
        return deeds  # the fork is deleted in the final phase, when all that it needs is known
    if race.scene.deletes_topic and race.steps > DELETES_AFTER * race.scene.steps:
        deeds.append("delete topic")
    return deeds


def _do_one(machine: Machine, actor: Actor, manager: LogManager, deed: str) -> None:
    race, rng = actor.race, actor.rng
    match deed:
        case "append":
            append(machine, race, manager, rng, rng.randrange(4, 16))
        case "tick":
            manager.tick(race.now_ms)
        case "roll":
            manager.partitions.roll(machine.partition.topic, now_ms=race.now_ms)
        case "read":
            with suppress(Unavailable, OffsetOutOfRange):
                _check_own_reads(machine, race, manager)
        case "delete":
            _delete_records(machine, race, rng, manager)
        case "build":
            topic = machine.partition.topic
            build_views(manager, plan_views(manager, topic, accepts_loss=rng.random() < 0.5, now_ms=race.now_ms))
        case "drop":
            if rng.random() < 0.2:
                with suppress(NotFound):
                    drop_views(manager, machine.partition.topic, now_ms=race.now_ms)
        case "pause" | "resume":
            _pause(machine, race, manager, deed)
        case "delete topic":
            machine.acked = {}  # `sent` stays: when a process dies before its registry is written, the topic remains
            manager.topics.delete(machine.partition.topic, now_ms=race.now_ms)


def append(machine: Machine, race: Race, manager: LogManager, rng: random.Random, count: int) -> None:
    first = manager.partitions.find(machine.partition).log.next_offset
    machine.count += 1
    records = [_record(machine, race, rng, at) for at in range(first, first + count)]
    for at, record in enumerate(records, start=first):
        machine.sent.setdefault(at, set()).add(record)
    result = manager.append(machine.partition.topic, records, 0, now_ms=race.now_ms, durability=Durability.FLUSHED)
    first = result[machine.partition].base_offset
    assert not set(range(first, first + count)) & set(machine.acked), "an offset was given twice"
    machine.acked |= dict(enumerate(records, start=first))


def _record(machine: Machine, race: Race, rng: random.Random, at: int) -> Record:
    value = b"%s %d %d" % (machine.name.encode(), machine.count, at) + b"." * 40
    is_tombstone = rng.random() < 0.15
    return Record(b"k%d" % rng.randrange(race.scene.keys), None if is_tombstone else value, race.now_ms)


def _check_own_reads(machine: Machine, race: Race, manager: LogManager) -> None:
    """Check that this manager shows only records that were sent to it or committed."""
    start, _ = manager.reader().offsets(machine.partition)
    for record in manager.reader().records(machine.partition, start):
        is_known = plain(record) in machine.sent.get(record.offset, ())
        is_known = is_known or plain(record) == machine.truth.committed.get(record.offset)
        assert is_known, f"{machine.name} shows a record at {record.offset} that no producer sent"


def _delete_records(machine: Machine, race: Race, rng: random.Random, manager: LogManager) -> None:
    if rng.random() < 0.3:
        start, end = manager.reader().offsets(machine.partition)
        if end > start:
            manager.maintenance.delete_records({machine.partition: rng.randrange(start, end)}, now_ms=race.now_ms)


def _pause(machine: Machine, race: Race, manager: LogManager, deed: str) -> None:
    """Pause or resume uploads. After a pause returned, no segment is copied.

    A killed process leaves either state.
    """
    machine.is_paused = None
    if deed == "pause":
        manager.pauses.pause(now_ms=race.now_ms)
    else:
        manager.pauses.resume()
    machine.is_paused = deed == "pause"
