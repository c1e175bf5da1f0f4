"""Kafka's tiering cases 10 to 18 as rules: lineage, overlaps, unfinished copies and running copies.
Kafka allows contradicting and overlapping segments in the remote tier, and decides at every read which of them count.
Here neither kind can enter a manifest:
1. A node whose history contradicts the bucket is refused before it writes. There is one manifest per sequence number
   and one epoch per writer.
2. A manifest refuses overlapping entries.
A case about a choice among such segments therefore proves that they are detected at the same offsets and that nothing
is lost.
Leader epochs are those of Kafka's cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from disk_model import ModelDisk
from log_world import open_log, read_all
from manager_world import NAME, NOW, TIERED, World, send, settle, values
from policy_samples import KEEP, LOCAL, local, planned, snapshot
from policy_samples import entry as policy_row
from remote_samples import entry, manifest

from local.errors import Conflict, InvalidRequest, LogError
from local.format.record import Record
from local.log import Log
from policies.decisions import AdvanceLogStart, CopySegment, ExpireRemote
from policies.retention import expirations, log_bytes
from policies.rules import PartitionRules
from policies.tier_relation import first_contradiction
from remote.manifest.manifest import Manifest, contradiction
from remote.manifest.manifest_changes import add_segments, replace_segments
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry, SegmentState
from remote.store.memory_store import MemoryStore
from tiered.partition.partition_status import partition_status
from tiered.partition.reconciliation import check_agreement, local_tier, remote_tier

FINISHED = SegmentState.COPY_FINISHED


def log_of(epochs: dict[int, int], end: int) -> Log:
    """A local log with one record per offset. `epochs` maps each leader epoch to its start offset."""
    log = open_log(ModelDisk())
    starts = {start: epoch for epoch, start in epochs.items()}
    for offset in range(end):
        if offset in starts:
            log.begin_epoch(starts[offset])
        log.append([Record(b"k", b"%d" % offset, NOW)], now_ms=NOW)
    return log


def tier_of(first: int, last: int, epochs: dict[int, int], **more: object) -> Manifest:
    """A manifest with one entry, from `first` to `last` inclusive, as Kafka writes it."""
    pairs = tuple((epoch, start) for epoch, start in epochs.items())
    return manifest(entry("S", first, last + 1, epochs=pairs), **more)


def first_foreign_offset(log: Log, tier: Manifest) -> int | None:
    return first_contradiction(local_tier(log), remote_tier(log, tier, None).history)


# --- 10 to 12: lineage ----------------------------------------------------------------------------------------------


def test_case_10_histories_that_part_at_150_are_refused_and_the_log_is_kept() -> None:
    log = log_of({0: 0, 1: 150, 2: 300}, 310)
    tier = tier_of(0, 200, {0: 0})
    assert first_foreign_offset(log, tier) == 150, "the common history ends at offset 149, in epoch 0"
    before = [record.value for record in read_all(log)]
    with pytest.raises(Conflict, match="another writer committed other records"):
        check_agreement(log, tier)
    assert [record.value for record in read_all(log)] == before
    assert first_foreign_offset(log, tier_of(0, 149, {0: 0})) is None
    check_agreement(log, tier_of(0, 149, {0: 0}))


def test_case_10_old_writer_cannot_commit_after_a_takeover() -> None:
    """The next commit of the old writer finds that its sequence number exists."""
    world = World()
    old = world.open()
    old.topics.create("t", 1, TIERED, now_ms=NOW)
    send(old, 200)
    settle(old)
    with world.open(disk=world.other_disk()) as new:
        send(new, 100, start=5000)
        settle(new)
        committed = values(new.reader())
        send(old, 200, start=200)
        old.tick(NOW)
        assert isinstance(old.problems[NAME], Conflict)
        assert values(new.reader()) == committed
    old.abandon()


LEADER = {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}


@pytest.fixture(scope="module")
def leader() -> Log:
    return log_of(LEADER, 90)


@pytest.mark.parametrize(
    ("first", "last", "epochs", "parts_at"),
    [
        (15, 35, {1: 15, 2: 20, 3: 30}, None),
        (15, 19, {1: 15}, None),
        (55, 85, {5: 55, 6: 60, 7: 70}, 60),  # this log has no epoch 6
        (15, 45, {1: 15, 2: 20, 4: 40}, 30),  # the manifest has no epoch 3
        (15, 35, {1: 15, 2: 20}, 30),  # beyond the start of the next epoch of this log
    ],
    ids=["three epochs", "one epoch", "6 unknown", "3 missing", "past the next epoch's start"],
)
def test_case_11_segment_is_in_the_lineage_if_every_offset_has_the_same_epoch(
    leader: Log, first: int, last: int, epochs: dict[int, int], parts_at: int | None
) -> None:
    tier = tier_of(first, last, epochs)
    assert first_foreign_offset(leader, tier) == parts_at
    if parts_at is None:
        check_agreement(leader, tier)
    else:
        with pytest.raises(Conflict):
            check_agreement(leader, tier)


def test_case_11_segment_that_ends_above_the_log_end_offset_is_refused(leader: Log) -> None:
    with pytest.raises(Conflict, match="its log ends before the bucket"):
        check_agreement(leader, tier_of(85, 95, {7: 85}))
    check_agreement(leader, tier_of(85, 89, {7: 85}))


@pytest.mark.parametrize(
    ("first", "last", "epochs", "parts_at"),
    [
        (14, 150, {5: 14, 7: 15, 9: 100}, None),
        (2, 70, {2: 2, 3: 4}, 51),  # epochs that this log does not have any more, at offsets that it retains
        (15, 150, {7: 15, 9: 101}, 100),
        (99, 150, {9: 99}, 99),
    ],
    ids=["valid", "forgotten epochs", "9 begins later", "9 begins earlier"],
)
def test_case_12_only_retained_epochs_are_compared_after_trimming(
    first: int, last: int, epochs: dict[int, int], parts_at: int | None
) -> None:
    log = log_of({2: 0, 3: 5, 5: 10, 7: 15, 9: 100}, 151)
    log.roll(now_ms=NOW)
    log.raise_log_start(51)
    log.drop_before(51, now_ms=NOW, delay_ms=0, raises_log_start=False)
    first_kept = log.segments()[0].base_offset
    assert log.epochs.entries == ((7, first_kept), (9, 100))
    log.restart_at(151, log.epochs.truncate_from_start(51), now_ms=NOW)  # drops the other local segments too
    assert log.epochs.entries == ((7, 51), (9, 100))
    assert first_foreign_offset(log, tier_of(first, last, epochs, log_start_offset=51)) == parts_at


def test_case_12_local_segments_are_compared_and_dropped_ones_are_not() -> None:
    """Local segments below the log start offset count too: other records there mean another history."""
    log = log_of({7: 0, 9: 100}, 151)
    log.roll(now_ms=NOW)
    log.raise_log_start(51)
    tier = tier_of(2, 7, {2: 2, 3: 4}, log_start_offset=51)
    assert first_foreign_offset(log, tier) == 2
    log.drop_before(51, now_ms=NOW, delay_ms=0, raises_log_start=False)
    assert log.segments()[0].base_offset > 7
    assert first_foreign_offset(log, tier) is None


# --- 13 to 15: retention --------------------------------------------------------------------------------------------


def test_case_13_expired_overlapping_entries_both_expire_and_the_log_starts_at_105() -> None:
    rules = PartitionRules(retention_ms=50, local_retention_ms=None)
    entries = policy_row(0, 100, ulid="S0"), policy_row(0, 105, ulid="S1")
    taken = snapshot(local(105, 110, age=0, active=True), remote=entries, rules=rules)
    decided = planned(taken)
    assert [each.ulid for each in decided if isinstance(each, ExpireRemote)] == ["S0", "S1"]
    assert [each.offset for each in decided if isinstance(each, AdvanceLogStart)] == [105]


def test_case_13_manifest_refuses_overlapping_entries() -> None:
    first, second = entry("S0", 0, 100), entry("S1", 0, 105)
    with pytest.raises(InvalidRequest, match="its offsets are already covered"):
        add_segments([second])(manifest(first))
    assert contradiction(manifest(first, second)) is not None


def finished(count: int, first: int = 0) -> tuple[SegmentEntry, ...]:
    return tuple(policy_row(at, at + 1) for at in range(first, first + count))


def test_case_14_size_retention_counts_only_finished_segments() -> None:
    limit = PartitionRules(retention_ms=None, retention_bytes=1000, local_retention_ms=None)
    others = [state for state in SegmentState if state is not FINISHED]
    stuck = tuple(policy_row(0, 1, state=state, ulid=state.name) for state in others)
    active = local(20, 21, size=0, active=True)
    taken = snapshot(active, remote=(*stuck, *finished(11)), rules=limit)
    assert log_bytes(taken) == 1100
    assert [each.base_offset for each in expirations(taken)] == [0]
    taken = snapshot(active, remote=(*stuck, *finished(12)), rules=limit)
    assert [each.base_offset for each in expirations(taken)] == [0, 1]
    assert all(each.ulid not in {each.name for each in others} for each in expirations(taken))


def test_case_14_unfinished_copy_in_the_bucket_is_not_counted_by_size_retention() -> None:
    world = World()
    limited = {**TIERED, "remote.log.delete.grace.ms": "0"}
    with world.open() as manager:
        manager.topics.create("t", 1, limited, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held = manager.partitions.all()[0]
        entries = held.manifest().segments  # type: ignore[union-attr]
        kept = sum(each.size_bytes for each in entries[1:])
        stray = entries[-1].data_key.replace(entries[-1].ulid, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        world.store.put(held.prefix + stray, b"x" * 50_000)  # its upload has ended without a commit
        local_bytes = sum(each.size_bytes for each in held.log.segments() if each.next_offset > entries[-1].next_offset)
        manager.topics.alter("t", {"retention.bytes": str(kept + local_bytes)}, now_ms=NOW)
        settle(manager)
        assert held.manifest().segments == entries[1:]  # type: ignore[union-attr]
        assert world.store.get(held.prefix + stray)


def test_case_15_segment_that_is_copied_and_all_after_it_do_not_expire() -> None:
    rules = PartitionRules(retention_ms=50, local_retention_ms=50)
    closed = tuple(local(at, at + 1) for at in range(4))
    for copying, gone in ((2, [0, 1]), (0, []), (3, [0, 1, 2])):
        taken = snapshot(
            *closed, local(4, 5, age=0, active=True), remote=finished(4), rules=rules, copying=frozenset({copying})
        )
        decided = planned(taken)
        assert [each.base_offset for each in decided if isinstance(each, ExpireRemote)] == gone
        assert not [each for each in decided if isinstance(each, CopySegment)]


# --- 16: a failed copy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["upload", "put"], ids=["the data", "the indexes"])
def test_case_16_objects_of_a_failed_copy_are_deleted_in_the_same_attempt(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Kafka's other half, the limit of custom metadata, does not apply: an entry has no custom metadata."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        names: list[str] = []
        real = getattr(MemoryStore, verb)

        def fails(self: MemoryStore, key: str, body: object, *rest: object) -> object:
            if "/data/" not in key:
                return real(self, key, body, *rest)
            names.append(key)
            real(self, key, body, *rest)
            raise InvalidRequest("refused", key=key)

        with monkeypatch.context() as broken:
            broken.setattr(MemoryStore, verb, fails)
            manager.tick(NOW)
        assert isinstance(manager.problems[NAME], LogError)
        assert names
        assert not [info for info in world.store.list("") if "/data/" in info.key], (
            "the objects must be deleted in the same attempt"
        )
        settle(manager)
        again = {info.key for info in world.store.list("") if "/data/" in info.key}
        assert again
        assert not again & set(names), "the next attempt must use another id"


# --- 17 and 18: replaced segments, late copies ----------------------------------------------------------------------


def lookup(tier: Manifest, offset: int) -> str | None:
    found = MetadataIndex(tier, lambda page: ()).find_by_offset(offset)
    return found.ulid if found is not None else None


def test_case_17_replaced_segment_is_found_and_the_old_one_is_a_pending_delete() -> None:
    tier = manifest(entry("S0", 0, 101), entry("S2", 101, 201))
    with pytest.raises(InvalidRequest, match="its offsets are already covered"):
        add_segments([entry("S1", 0, 201)])(tier)  # an overlapping entry cannot be added
    after = replace_segments(entry("S1", 0, 201), ["S0", "S2"])(tier)  # it can only replace the old entries
    assert [lookup(after, offset) for offset in (0, 50, 150)] == ["S1", "S1", "S1"]
    assert {each.key for each in after.pending_deletes} >= {"data/S0.log", "data/S2.log"}


def test_case_17_lookup_of_partly_overlapping_offsets_finds_the_replacement() -> None:
    tier = manifest(entry("old", 10, 91))
    for other in (entry("S1", 5, 101), entry("S2", 50, 101)):
        with pytest.raises(InvalidRequest, match="its offsets are already covered"):
            add_segments([other])(tier)
    tier = replace_segments(entry("new", 10, 91), ["old"])(tier)
    tier = add_segments([entry("S1", 91, 101), entry("S2", 101, 201)])(tier)
    assert [lookup(tier, offset) for offset in (50, 95, 101)] == ["new", "S1", "S2"]


# --- copy lag -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "start", "segments"),
    [(KEEP, 0, 2), (KEEP, 2, 1), (replace(KEEP, copy_disabled=True), 0, 0)],
    ids=["all that is closed", "not what the log start passed", "none while copying is off"],
)
def test_copy_lag_counts_segments_to_copy_and_is_zero_when_copying_is_off(
    rules: PartitionRules, start: int, segments: int
) -> None:
    """KIP-950: lag metrics are zero when copying is off."""
    told = partition_status(snapshot(*LOCAL, rules=rules, start=start))
    assert (told.lag_segments, told.lag_bytes) == (segments, 100 * segments)
    assert told.at_risk_bytes == 300 - (100 if start else 0), "expired records are not at risk"
