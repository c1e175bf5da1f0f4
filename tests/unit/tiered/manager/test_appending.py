"""Durable appends to several partitions: write all, then sync all in parallel, and report failures exactly."""

from __future__ import annotations

import threading

import pytest
from disk_model import ModelDisk, ModelFile

from local.errors import DiskFailed
from local.format.record import Record
from local.log import Durability, Log
from local.names import TopicPartition
from local.settings import LogSettings
from tiered.manager.manager import append_shares
from tiered.partition.partition_table import flush_all

PATIENCE_S = 60
NAMES = [TopicPartition("t", number) for number in range(3)]


def shares(disk: ModelDisk) -> dict[TopicPartition, tuple[Log, list[bytearray]]]:
    made = {}
    for name in NAMES:
        log = Log.open(disk, f"./{name.directory}", name, LogSettings(), now_ms=0)
        made[name] = (log, log.encode([Record(b"k", b"v", 1)] * 2, now_ms=0))
    return made


def test_all_shares_are_written_before_the_first_sync_and_synced_in_parallel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = shares(ModelDisk())
    together = threading.Barrier(len(NAMES))
    written: list[list[int]] = []
    real = ModelFile.sync

    def sync(self: ModelFile) -> None:
        if not self._path.endswith(".log"):
            return real(self)
        written.append([log.next_offset for log, _ in asked.values()])
        together.wait(PATIENCE_S)
        return real(self)

    monkeypatch.setattr(ModelFile, "sync", sync)
    results = append_shares(asked, 0, Durability.FLUSHED)
    assert written[-1] == [2, 2, 2]
    assert len(written) == 3
    assert [given.next_offset for given in results.values()] == [2, 2, 2]
    assert [log.recovery_point for log, _ in asked.values()] == [2, 2, 2]


def test_append_with_memory_durability_syncs_nothing() -> None:
    asked = shares(ModelDisk())
    append_shares(asked, 0, Durability.MEMORY)
    assert [log.recovery_point for log, _ in asked.values()] == [0, 0, 0]


@pytest.mark.parametrize("failing", range(3))
def test_failed_sync_is_reported_with_the_durable_shares(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = shares(ModelDisk())
    real = ModelFile.sync

    def sync(self: ModelFile) -> None:
        if f"t-{failing}/" in self._path and self._path.endswith(".log"):
            raise DiskFailed("cannot sync a file", path=self._path)
        real(self)

    monkeypatch.setattr(ModelFile, "sync", sync)
    kept = [name for name in NAMES if name != NAMES[failing]]
    with pytest.raises(DiskFailed) as told:
        append_shares(asked, 0, Durability.FLUSHED)
    assert told.value.facts["appended"] == ",".join(f"{name}:0-1" for name in kept)
    assert [asked[name][0].recovery_point for name in NAMES] == [0 if name not in kept else 2 for name in NAMES]
    assert [error is None for error in flush_all([log for log, _ in asked.values()])] == [n in kept for n in NAMES]


def test_failed_write_leaves_earlier_shares_durable_and_later_ones_unwritten() -> None:
    disk = ModelDisk()
    asked = shares(disk)
    log = asked[NAMES[1]][0]

    def refuse(*rest: object, **more: object) -> None:
        raise DiskFailed("cannot write to a file", path="x")

    log.append_encoded = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(DiskFailed, match=rf"cannot write.*appended={NAMES[0]}:0-1"):
        append_shares(asked, 0, Durability.FLUSHED)
    assert [each.recovery_point for each, _ in asked.values()] == [2, 0, 0]
    assert asked[NAMES[2]][0].next_offset == 0
