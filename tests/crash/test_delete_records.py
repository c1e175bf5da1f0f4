"""DeleteRecords stopped at every call: all or nothing, and no record above the offset is lost."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from run_profile import CALL_STRIDE

from local.errors import LogError
from local.format.record import Record
from local.names import TopicPartition
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.maintenance import apply
from tiered.manager.manager import LogManager

NOW = 1_800_000_000_000
DISK, BUCKET = TopicPartition("disk", 0), TopicPartition("bucket", 0)
COUNT, TO = 90, 47
SETTINGS = {"segment.bytes": "1100", "index.interval.bytes": "200", "append.batch.bytes": "300"}


def open_manager(disk: ModelDisk, store: object) -> LogManager:
    config = replace(Config.load(None, SETTINGS, {}, local_dir="data"), data_dir="./data", remote_url="memory://b")
    return LogManager.open(config, now_ms=NOW, storage=disk, store=store)  # type: ignore[arg-type]


def fill(disk: ModelDisk, store: object) -> None:
    with open_manager(disk, store) as manager:
        manager.topics.create("disk", 1, {"retention.ms": "-1", "remote.storage.enable": "false"}, now_ms=NOW)
        tiered = {"retention.ms": "-1", "remote.storage.enable": "true", "local.retention.ms": "1ms"}
        manager.topics.create("bucket", 1, tiered, now_ms=NOW)
        for name in (DISK, BUCKET):
            for at in range(0, COUNT, 10):
                records = [Record(b"k%d" % n, b"value %d" % n, NOW - 1000 + n) for n in range(at, at + 10)]
                manager.append(name.topic, records, 0, now_ms=NOW)
        while manager.tick(NOW):
            pass


class Deletion:
    """The DeleteRecords calls that were sent and answered."""

    def __init__(self) -> None:
        self.asked: set[TopicPartition] = set()
        self.answered: set[TopicPartition] = set()

    def play(self, disk: ModelDisk, store: object) -> None:
        manager = open_manager(disk, store)
        for name in (DISK, BUCKET):
            self.asked.add(name)
            manager.maintenance.delete_records({name: TO}, now_ms=NOW)
            self.answered.add(name)
            assert manager.reader().offsets(name)[0] == TO
        for _ in range(3):
            manager.tick(NOW)
        manager.close()

    def check(self, disk: ModelDisk, store: object) -> None:
        """Open twice; the second time after a deletion and an append, so that nothing stays half done."""
        for _ in range(2):
            with open_manager(disk, store) as manager:
                for name in (DISK, BUCKET):
                    start, end = manager.reader().offsets(name)
                    assert start in (0, TO), "the log start offset was not requested"
                    assert start == TO or name not in self.answered, "deleted records came back"
                    assert start == 0 or name in self.asked, "records are missing that no call deleted"
                    found = [(record.offset, record.value) for record in manager.reader().records(name, start)]
                    assert found[: COUNT - start] == [(at, b"value %d" % at) for at in range(start, COUNT)]
                    manager.maintenance.delete_records({name: TO}, now_ms=NOW)
                    self.asked.add(name)
                    self.answered.add(name)
                    manager.append(name.topic, [Record(b"k", b"more", NOW)], 0, now_ms=NOW)
                    assert manager.reader().offsets(name)[1] == end + 1
                for _ in range(3):
                    manager.tick(NOW)
                assert manager.problems == {}


def filled() -> tuple[ModelDisk, MemoryStore]:
    disk, store = ModelDisk(), MemoryStore("memory://b")
    fill(disk, store)
    disk.effects = 0
    return disk, store


def rehearse() -> tuple[int, int]:
    """The numbers of disk effects and of store calls of the deletion."""
    disk, inner = filled()
    store = FaultStore(inner)
    Deletion().play(disk, store)
    return disk.effects, len(store.calls)


EFFECTS, CALLS = rehearse()


def cut_everywhere(step: int = 1) -> None:
    for before in (True, False):
        for at in range(1, EFFECTS + 1, step):
            disk, store = filled()
            disk.cut_at, disk.cut_before = at, before
            deletion = Deletion()
            with suppress(PowerCut, LogError):
                deletion.play(disk, store)
            deletion.check(disk.crash(random.Random(at)), store)


@pytest.mark.timeout(600)
def test_delete_records_with_a_power_cut_at_any_effect_is_all_or_nothing() -> None:
    assert EFFECTS > 30
    cut_everywhere(CALL_STRIDE)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_delete_records_with_a_store_fault_at_any_call_is_all_or_nothing(fault: Fault) -> None:
    assert CALLS > 3
    for at in range(CALLS):
        disk, inner = filled()
        store = FaultStore(inner, at, fault)
        deletion = Deletion()
        with suppress(LogError, Killed):
            deletion.play(disk, store)
        store.deliver(1 << 60)
        disk.locks.clear()
        deletion.check(disk, inner)


def test_raising_the_start_for_readers_before_the_checkpoint_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_first(partition: object, directory: object, offset: int, *, now_ms: int) -> bool:
        partition.log.raise_log_start(offset)  # type: ignore[attr-defined]
        return True

    monkeypatch.setattr("tiered.maintenance.delete_records.advance_log_start", told_first)
    with pytest.raises(AssertionError, match=r"came back|not requested"):
        cut_everywhere(3)


def test_a_log_start_offset_missing_in_the_manifest_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = apply.advance_log_start

    def without_commit(partition: object, directory: object, offset: int, *, now_ms: int) -> bool:
        metadata, partition.metadata = partition.metadata, None  # type: ignore[attr-defined]
        try:
            return real(partition, directory, offset, now_ms=now_ms)  # type: ignore[arg-type]
        finally:
            partition.metadata = metadata  # type: ignore[attr-defined]

    monkeypatch.setattr("tiered.maintenance.delete_records.commit_log_start", lambda partition, offset, now_ms: False)
    monkeypatch.setattr("tiered.maintenance.delete_records.advance_log_start", without_commit)
    with pytest.raises(AssertionError):
        cut_everywhere(3)
