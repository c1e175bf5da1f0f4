"""A whole manager's life with a fault at every store call and disk call; then a restart.

The story: two topics (one compacted) are written, copied, dropped from the disk, expired, and deleted after the grace
period. A fault hits one call. `check` then checks I1 to I5 and I7 to I9 as far as they are visible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from run_profile import each_call

from local.cleaner.record_retention import RecordFilter
from local.errors import LogError
from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from policies import plan as policy_plan
from policies.decisions import AdvanceLogStart, DropLocal, ExpireRemote, Plan
from policies.snapshot import PartitionSnapshot
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.maintenance import apply, upload_and_commit
from tiered.manager.manager import LogManager
from tiered.partition import partition_opening
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
DAY = 86_400_000
PLAIN, COMPACTED = TopicPartition("plain", 0), TopicPartition("compacted", 0)
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1ms", "remote.log.delete.grace.ms": "1h"}
SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",  # the same calls in the same order every time
    "segment.bytes": "1100",
    "index.interval.bytes": "200",
    "append.batch.bytes": "300",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}


class Story:
    """The promises so far: acknowledged records by partition and offset."""

    def __init__(self) -> None:
        self.acked: dict[TopicPartition, dict[int, Record]] = {PLAIN: {}, COMPACTED: {}}
        self.sent: dict[TopicPartition, dict[int, set[Record]]] = {PLAIN: {}, COMPACTED: {}}
        self.clock = NOW

    def append(self, manager: LogManager, name: TopicPartition, count: int) -> None:
        first = manager.reader().offsets(name)[1]
        records = [
            Record(b"k%d" % (at % 5), b"%s %d %d" % (name.topic.encode(), at, self.clock), self.clock)
            for at in range(first, first + count)
        ]
        for at, record in enumerate(records, start=first):
            self.sent[name].setdefault(at, set()).add(record)
        result = manager.append(name.topic, records, 0, now_ms=self.clock, durability=Durability.FLUSHED)
        assert result[name][:2] == (first, first + count), "an offset was given twice"
        self.acked[name].update(enumerate(records, start=first))

    def settle(self, manager: LogManager) -> None:
        for _ in range(12):
            if not manager.tick(self.clock):
                return


def open_manager(disk: ModelDisk, store: object, now_ms: int) -> LogManager:
    loaded = Config.load(None, SETTINGS, {}, local_dir="data")
    config = replace(loaded, data_dir="./data", remote_url="memory://b")
    return LogManager.open(config, now_ms=now_ms, storage=disk, store=store)  # type: ignore[arg-type]


def play(disk: ModelDisk, store: object, story: Story) -> None:
    manager = open_manager(disk, store, story.clock)
    if not manager.topics.all():
        manager.topics.create("plain", 1, {**TIERED, "retention.ms": "2d"}, now_ms=story.clock)
        compact = {**TIERED, "cleanup.policy": "compact", "retention.ms": "-1", "remote.compression": "zstd"}
        manager.topics.create("compacted", 1, compact, now_ms=story.clock)
    for _ in range(2):
        story.append(manager, PLAIN, 50)
        story.append(manager, COMPACTED, 40)
        manager.partitions.roll("compacted", now_ms=story.clock)
        story.clock += DAY
        story.settle(manager)
    story.clock += 2 * DAY - 1000
    story.settle(manager)
    story.append(manager, PLAIN, 5)
    story.clock += 3_600_000
    story.settle(manager)
    manager.close()


def check(disk: ModelDisk, store: MemoryStore, story: Story) -> None:
    """Restart and compare; then append, restart and compare again."""
    for _ in range(2):
        manager = open_manager(disk, store, story.clock)
        names = [name for topic in manager.topics.all() for name in topic.partitions()]
        for name in names:
            _check_partition(manager, store, story, name)
        if names == [COMPACTED, PLAIN]:
            story.append(manager, PLAIN, 3)
            story.append(manager, COMPACTED, 3)
            story.settle(manager)
            assert manager.problems == {}
            for name in names:
                _check_partition(manager, store, story, name)
        else:
            assert not any(story.acked.values())
        manager.close()


def _check_partition(manager: LogManager, store: MemoryStore, story: Story, name: TopicPartition) -> None:
    start, end = manager.reader().offsets(name)
    found = list(manager.reader().records(name, start))
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "an offset was read twice or out of order"
    for record in found:
        sent = story.sent[name][record.offset]
        assert Record(record.key, record.value, record.timestamp_ms) in sent, "a record was read that no producer sent"
    kept = {record.offset: (record.key, record.value) for record in found}
    if name == PLAIN:
        for offset, record in story.acked[name].items():
            if record.timestamp_ms > story.clock - 2 * DAY:
                assert kept.get(offset) == record[:2], f"acknowledged offset {offset} is lost"
    else:
        last = {record.key: offset for offset, record in sorted(story.acked[name].items())}
        newest = {key: offset for offset, (key, _) in sorted(kept.items())}
        for key, offset in last.items():
            assert newest.get(key, -1) >= offset, f"the newest record of {key!r} is lost"
    assert max(story.acked[name], default=-1) < end
    _check_bucket(store, name)


def _check_bucket(store: MemoryStore, name: TopicPartition) -> None:
    """Entries tile without overlap, and all of them are readable from the bucket alone."""
    assert_sound(store)
    bucket = RemoteLog(store)
    if name.topic not in bucket.topics():
        return
    manifest = bucket.manifest(name)
    reached = 0
    for entry in manifest.segments:
        assert entry.base_offset >= reached
        reached = entry.next_offset
    start, end = bucket.reader().offsets(name)
    count = sum(1 for _ in bucket.reader().records(name, start)) if start < end else 0
    live = [entry for entry in manifest.segments if entry.next_offset > manifest.log_start_offset]
    assert count <= sum(entry.record_count for entry in live)
    if name == PLAIN and all(entry.base_offset >= manifest.log_start_offset for entry in live):
        assert count == sum(entry.record_count for entry in live)


def run_with_store_fault(at: int, fault: Fault) -> None:
    disk, inner, story = ModelDisk(), MemoryStore("memory://b"), Story()
    store = FaultStore(inner, at, fault)
    with suppress(LogError, Killed):
        play(disk, store, story)
    store.deliver(1 << 60)
    disk.locks.clear()
    check(disk, inner, story)


def run_with_power_cut(at: int, *, before: bool, seed: int) -> None:
    disk, store, story = ModelDisk(), MemoryStore("memory://b"), Story()
    disk.cut_at, disk.cut_before = at, before
    with suppress(PowerCut, LogError):
        play(disk, store, story)
    check(disk.crash(random.Random(f"{at} {before} {seed}")), store, story)


def rehearse() -> tuple[int, int]:
    """The numbers of store calls and of disk effects of the story."""
    disk, store, story = ModelDisk(), FaultStore(MemoryStore("memory://b")), Story()
    play(disk, store, story)
    return len(store.calls), disk.effects


CALLS, EFFECTS = rehearse()


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_manager_with_a_store_fault_at_any_call_loses_or_duplicates_no_record(fault: Fault) -> None:
    assert CALLS > 50
    for at in each_call(range(CALLS), fault):
        run_with_store_fault(at, fault)


@pytest.mark.parametrize("before", [True, False], ids=["before the effect", "after it"])
def test_manager_with_a_power_cut_at_any_effect_loses_or_duplicates_no_record(before: bool) -> None:
    assert EFFECTS > 100
    for at in each_call(range(1, EFFECTS + 1, 2), before):
        run_with_power_cut(at, before=before, seed=1)


def _local_copies_dropped_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    real = policy_plan.plan

    def drops_first(snapshots: object, now_ms: int) -> Plan:
        found = real(snapshots, now_ms).decisions  # type: ignore[arg-type]
        order = {name: sorted(run, key=lambda each: not isinstance(each, DropLocal)) for name, run in found.items()}
        return Plan(now_ms=now_ms, decisions=order)

    patch.setattr(policy_plan, "plan", drops_first)
    patch.setattr(PartitionSnapshot, "has_safe_copy", lambda self, segment: True)
    patch.setattr(apply, "violations", lambda snapshot, decisions: [])


def _row_committed_without_its_upload(patch: pytest.MonkeyPatch) -> None:
    real = upload_and_commit.copy_segment

    def copy_segment(store: object, *rest: object, **more: object) -> object:
        return real(MemoryStore("memory://nowhere"), *rest, **more)  # type: ignore[arg-type]

    patch.setattr(upload_and_commit, "copy_segment", copy_segment)


def _expired_objects_deleted_before_their_rows_are_taken_out(patch: pytest.MonkeyPatch) -> None:
    def expire(state: apply.Application, run: Sequence[ExpireRemote]) -> list[ExpireRemote]:
        assert state.partition.metadata is not None
        for decision in run:
            state.partition.metadata.store.delete([state.partition.prefix + decision.data_key])
            change = apply.expire_segments([decision.ulid], now_ms=state.now_ms)
            state.partition.metadata.commit(change, state.now_ms)
        return list(run)

    effects = {
        ExpireRemote: apply._in_one_step(expire),
        AdvanceLogStart: apply._one_by_one(lambda state, decision: False),
    }
    for kind, effect in effects.items():
        patch.setitem(apply._EFFECTS, kind, (apply.TierAction.EXPIRE, effect))


def _cleaner_drops_the_newest(patch: pytest.MonkeyPatch) -> None:
    real = RecordFilter._batches

    def batches(self: RecordFilter, found: Any, data: Any, table: Any, keep: Any, tombstones: Any) -> None:
        real(self, found, data, table, np.roll(keep, 1), tombstones)

    patch.setattr(RecordFilter, "_batches", batches)


def _local_log_starts_at_zero_again(patch: pytest.MonkeyPatch) -> None:
    """The end of the bucket is ignored: a machine that lost its disk would give offsets twice."""
    patch.setattr(partition_opening, "reconcile", lambda log, manifest, now_ms, producers: None)


def kill_at_every_call() -> None:
    for fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
        for at in range(CALLS):
            run_with_store_fault(at, fault)


@pytest.mark.deep("planted bugs of a manager")
@pytest.mark.parametrize(
    "plant",
    [
        _local_copies_dropped_before_the_commit,
        _row_committed_without_its_upload,
        _expired_objects_deleted_before_their_rows_are_taken_out,
        _cleaner_drops_the_newest,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError)):
        kill_at_every_call()


def test_manager_with_a_lost_disk_continues_at_the_end_of_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_disk() -> list[int]:
        disk, store, story = ModelDisk(), MemoryStore("memory://b"), Story()
        play(disk, store, story)
        fresh = ModelDisk()
        fresh.make_directory("./data")
        fresh.create("./data/topics.json").append(disk.read("./data/topics.json"))
        manager = open_manager(fresh, store, story.clock)
        ends = [manager.reader().offsets(name)[1] for name in (PLAIN, COMPACTED)]
        manager.append("compacted", [Record(b"k", b"v", story.clock)], 0, now_ms=story.clock)
        return [*ends, manager.reader().offsets(COMPACTED)[1]]

    assert lose_the_disk() == [105, 80, 81]
    _local_log_starts_at_zero_again(monkeypatch)
    assert lose_the_disk() != [105, 80, 81]
