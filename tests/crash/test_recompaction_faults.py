"""The replacement of segments in the bucket with a fault at every store call and disk effect.

The story writes a few keys, copies them, and writes them again so that the copied segments shrink. It continues for a
day: entries are replaced and vouched for, old objects are deleted, tombstones get a delete horizon and are removed. A
fault hits one call from the second cleaner pass on. Afterwards, and again after a restart that finishes the work:

* Both tiers together give every key its newest acknowledged value. No key returns. Offsets ascend.
* The bucket alone gives every key its newest value below the bucket's end.
* Every object that a manifest names exists. Every unnamed object is of an older epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from run_profile import each_call

from local.errors import LogError
from local.format.record import Record, StoredRecord
from local.log import Durability
from local.names import TopicPartition
from remote.keys import parse_data_key
from remote.manifest.manifest import Manifest
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.maintenance import upload_and_commit
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
HOUR = 3_600_000
NAME = TopicPartition("t", 0)
SETTINGS = {
    "num.recovery.threads.per.data.dir": "1",  # the same calls in the same order every time
    "segment.bytes": "1500",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0",
}
TOPIC = {
    "remote.storage.enable": "true",
    "cleanup.policy": "compact",
    "local.retention.ms": "-1",
    "retention.ms": "-1",
    "delete.retention.ms": "1h",
    "remote.log.delete.grace.ms": "1h",
    "remote.recompaction.min.reduction.ratio": "0",
    "remote.recompaction.min.saved.bytes": "0",
}


class Story:
    """The sent and the acknowledged records, by offset."""

    def __init__(self) -> None:
        self.sent: dict[int, set[Record]] = {}
        self.acked: dict[int, Record] = {}
        self.clock = NOW

    def put(self, manager: LogManager, keys: Iterable[str], value: str | None) -> None:
        """Append a batch for each key, then close the segment."""
        for key in keys:
            data = None if value is None else (value * 60 + str(self.clock)).encode()
            record = Record(key.encode(), data, self.clock)
            at = manager.reader().offsets(NAME)[1]
            self.sent.setdefault(at, set()).add(record)
            manager.append("t", [record], 0, now_ms=self.clock, durability=Durability.FLUSHED)
            self.acked[at] = record
        manager.partitions.roll("t", now_ms=self.clock)

    def settle(self, manager: LogManager) -> None:
        for _ in range(12):
            if not manager.tick(self.clock):
                return


def open_manager(disk: ModelDisk, store: object, now_ms: int) -> LogManager:
    config = replace(Config.load(None, SETTINGS, {}, local_dir="data"), data_dir="./data", remote_url="memory://b")
    return LogManager.open(config, now_ms=now_ms, storage=disk, store=store)  # type: ignore[arg-type]


def play(disk: ModelDisk, store: object, story: Story, *, begun: Callable[[], None] = lambda: None) -> None:
    manager = open_manager(disk, store, story.clock)
    manager.topics.create("t", 1, TOPIC, now_ms=story.clock)
    story.put(manager, "abcdef", "1")
    story.put(manager, "ghij", "1")
    story.settle(manager)
    story.put(manager, "abcgh", "2")
    story.put(manager, "d", None)
    begun()
    for _ in range(3):
        story.settle(manager)
        story.clock += 2 * HOUR
        story.put(manager, "x", "3")
    manager.close()


def check(disk: ModelDisk, store: MemoryStore, story: Story) -> None:
    """Check the reads now, after a restart that finishes the work, and after more appends."""
    check_bucket_alone(store, story)
    for _ in range(2):
        manager = open_manager(disk, store, story.clock)
        if not manager.topics.all():
            return
        start, end = manager.reader().offsets(NAME)
        records = list(manager.reader().records(NAME, start)) if start < end else []
        check_table(records, story, below=None)
        story.settle(manager)
        story.clock += 2 * HOUR
        story.put(manager, "y", "4")
        story.settle(manager)
        assert manager.problems == {}
        manifest = manager.partitions.all()[0].manifest()
        assert manifest is not None
        check_objects(store, manager.partitions.all()[0].prefix, manifest)
        check_bucket_alone(store, story)
        manager.close()


def check_bucket_alone(store: MemoryStore, story: Story) -> None:
    assert_sound(store)
    bucket = RemoteLog(store)
    if "t" not in bucket.topics():
        return
    start, end = bucket.reader().offsets(NAME)
    records = list(bucket.reader().records(NAME, start)) if start < end else []
    check_table(records, story, below=end)


def check_table(records: list[StoredRecord], story: Story, *, below: int | None) -> None:
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "an offset was read twice or out of order"
    found: dict[bytes | None, StoredRecord] = {}
    for record in records:
        assert Record(record.key, record.value, record.timestamp_ms) in story.sent[record.offset], (
            "a record was read that no producer sent"
        )
        found[record.key] = record
    wanted: dict[bytes | None, tuple[int, bytes | None]] = {}
    for offset, record in sorted(story.acked.items()):
        if below is None or offset < below:
            wanted[record.key] = offset, record.value
    for key, (offset, value) in wanted.items():
        newest = found.get(key)
        if newest is None:
            assert value is None, f"the newest value of {key!r}, at {offset}, is lost"
        else:
            assert newest.offset >= offset, f"{key!r} has returned with the value of {newest.offset}"


def check_objects(store: MemoryStore, prefix: str, manifest: Manifest) -> None:
    there = {each.key.removeprefix(prefix) for each in store.list(prefix)}
    named = {key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
    named |= {each.key for each in manifest.pending_deletes}
    parsed = {key: parse_data_key(key) for key in there - named}
    leaked = [key for key, name in parsed.items() if name is not None and name.epoch == manifest.epoch]
    assert leaked == [], "objects of this epoch are not named"
    assert {key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)} <= there


def run_with_store_fault(at: int, fault: Fault) -> None:
    disk, inner, story = ModelDisk(), MemoryStore("memory://b"), Story()
    store = FaultStore(inner, at, fault)
    with suppress(LogError, Killed):
        play(disk, store, story)
    store.deliver(1 << 60)
    disk.locks.clear()
    check(disk, inner, story)


def run_with_power_cut(at: int, *, before: bool) -> None:
    disk, store, story = ModelDisk(), MemoryStore("memory://b"), Story()
    disk.cut_at, disk.cut_before = at, before
    with suppress(PowerCut, LogError):
        play(disk, store, story)
    check(disk.crash(random.Random(f"{at} {before}")), store, story)


def rehearse() -> tuple[range, range]:
    """The store calls and disk effects of the part with faults."""
    disk, store, story = ModelDisk(), FaultStore(MemoryStore("memory://b")), Story()
    first: list[tuple[int, int]] = []
    play(disk, store, story, begun=lambda: first.append((len(store.calls), disk.effects)))
    (calls, effects) = first[0]
    return range(calls, len(store.calls)), range(effects + 1, disk.effects + 1)


CALLS, EFFECTS = rehearse()


def test_recompaction_replaces_entries_and_removes_tombstones() -> None:
    disk, store, story = ModelDisk(), MemoryStore("memory://b"), Story()
    play(disk, store, story)
    manifest = RemoteLog(store).manifest(NAME)
    assert manifest.segments[0].next_offset > 10, "several segments were not merged into one"
    assert all((entry.cleaned_through or 0) > 10 for entry in manifest.segments)
    assert not any(record.value is None for record in RemoteLog(store).reader().records(NAME, 0))
    assert len(CALLS) > 20
    assert len(EFFECTS) > 40


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_a_replacement_with_any_store_fault_loses_no_value_and_leaks_no_object(fault: Fault) -> None:
    for at in each_call(CALLS, fault):
        run_with_store_fault(at, fault)


@pytest.mark.parametrize("before", [True, False], ids=["before the effect", "after it"])
def test_a_replacement_with_any_power_cut_loses_or_revives_no_value(before: bool) -> None:
    for at in each_call(EFFECTS[::5], before):
        run_with_power_cut(at, before=before)


def _each_copy_has_its_own_commit(patch: pytest.MonkeyPatch) -> None:
    real = upload_and_commit.add_segments
    entries_of = upload_and_commit._CommitContext.commit

    def one_by_one(ways: upload_and_commit._CommitContext, change: object, infos: object) -> None:
        del change
        for upload in ways.partition.uploads.items().values():
            entries_of(ways, real([upload.entry]), [])
        ways.partition.uploads._of.clear()

    patch.setattr(upload_and_commit._CommitContext, "commit", one_by_one)


def _old_objects_go_before_their_rows(patch: pytest.MonkeyPatch) -> None:
    real = upload_and_commit.replace_segments

    def replace_segments(entry: object, ulids: object) -> object:
        change = real(entry, ulids)  # type: ignore[arg-type]

        def gone(manifest: Manifest) -> Manifest:
            for each in manifest.segments:
                if each.ulid in ulids:  # type: ignore[operator]
                    LOSSES.append(each.data_key)
            return change(manifest)

        return gone

    patch.setattr(upload_and_commit, "replace_segments", replace_segments)
    commit = upload_and_commit._CommitContext.commit

    def delete_then_commit(
        ways: upload_and_commit._CommitContext, change: Callable[[Manifest], Manifest], infos: object
    ) -> None:
        LOSSES.clear()
        change(ways.manifest)
        ways.metadata.store.delete([ways.partition.prefix + key for key in LOSSES])
        commit(ways, change, infos)  # type: ignore[arg-type]

    patch.setattr(upload_and_commit._CommitContext, "commit", delete_then_commit)


LOSSES: list[str] = []


def kill_at_every_call() -> None:
    for at in CALLS:
        run_with_store_fault(at, Fault.KILL_BEFORE)


@pytest.mark.deep("planted bugs of recompaction")
@pytest.mark.parametrize(
    "plant",
    [_each_copy_has_its_own_commit, _old_objects_go_before_their_rows],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        kill_at_every_call()
