"""A small model of a local log and a manifest in all their combinations: no verdict may lose a record.

Two nodes and committing jobs act on one partition. They append, copy, expire, delete records, crash with the loss of
an unsynced tail, restore an old copy of the disk, and take over. The model knows which node acknowledged which
record. `policies.tier_relation` gives the verdict; the facts are those in checkpoints and manifests. Not modelled:
two disks that took records in the same epoch. `test_manager_opening.py` tells them apart by the records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from run_profile import seeds

from local.log.leader_epochs import EpochRange, LeaderEpochs
from policies.tier_relation import (
    ALLOWED,
    Action,
    LocalTier,
    Relation,
    RemoteTier,
    TierVerdict,
    tier_relation,
)

ENDS = (0, 1, 2, 3, 4)


def ranges_of(records: dict[int, tuple[int, int]]) -> tuple[EpochRange, ...]:
    """Records by offset, each (epoch, identity), as epoch ranges."""
    found: list[EpochRange] = []
    for offset in sorted(records):
        epoch = records[offset][0]
        if found and found[-1].next_offset == offset and found[-1].epoch == epoch:
            found[-1] = found[-1]._replace(next_offset=offset + 1)
        else:
            found.append(EpochRange(epoch, offset, offset + 1))
    return tuple(found)


# --- every combination of a few offsets -------------------------------------------------------------------------------


def every_pair() -> list[tuple[LocalTier, RemoteTier]]:
    """Every combination of local range, local epochs, remote range, expired part, remote epochs, log start and
    writer."""
    found = []
    for start, end in product(ENDS, ENDS):
        for turn in (None, *range(start + 1, end)) if start < end else (None,):
            epochs = ((1, start),) if turn is None else ((1, start), (2, turn))
            local = LocalTier(
                log_start_offset=start,
                local_start_offset=start,
                next_offset=end,
                held=((start, end),) if start < end else (),
                epochs=LeaderEpochs(epochs if start < end else ()),
                lineage_from=start,
            )
            if start <= end:
                found += [(local, remote) for remote in every_manifest()]
    return found


def every_manifest() -> list[RemoteTier]:
    found = []
    for copied_upto, log_start, turn in product(ENDS, ENDS, (None, 1, 2, 3)):
        records = {at: (1 if turn is None or at < turn else 3, at) for at in range(copied_upto)}
        for is_other in (False, True):
            found.append(
                RemoteTier(
                    log_start_offset=log_start,
                    allocated_end_offset=max(copied_upto, log_start),
                    entries=ranges_of({at: each for at, each in records.items() if at >= log_start}),
                    expired=ranges_of({at: each for at, each in records.items() if at < log_start}),
                    is_other_writer=is_other,
                )
            )
    return found


def proven(local: LocalTier, remote: RemoteTier, offset: int) -> bool:
    return any(
        each.base_offset <= offset < each.next_offset and each.epoch == local.epochs.epoch_at(offset)
        for each in remote.history
    )


def test_the_verdict_on_every_combination_of_a_few_offsets_loses_no_record() -> None:
    seen = set()
    for local, remote in every_pair():
        verdict = tier_relation(local, remote)
        seen.add(verdict.relation)
        told = f"{local}\n{remote}\n{verdict}"
        held = [offset for start, end in local.held for offset in range(start, end)]
        unproven = [offset for offset in held if not proven(local, remote, offset)]
        if verdict.allows(Action.START_OVER):
            assert unproven == [], told
        if verdict.allows(Action.TAKE_ROLE) and remote.is_other_writer:
            assert unproven == [], told
        if verdict.allows(Action.TAKE_OVER) and remote.is_other_writer:
            assert all(offset >= remote.log_start_offset for offset in unproven), told
        if local.next_offset < remote.allocated_end_offset:
            assert verdict.allows(Action.START_OVER) or not verdict.allows(Action.TAKE_ROLE), told
        if not verdict.allows(Action.TAKE_ROLE):
            assert verdict.from_offset is not None, told
    assert seen == set(Relation) - {Relation.UNCOMMITTED, Relation.LOST}


def test_a_retained_record_without_a_remote_copy_is_not_proven() -> None:
    """Offsets [1, 3) left the remote tier and only offset 1 is below the log start: offset 2 has no copy."""
    local = LocalTier(
        log_start_offset=0,
        local_start_offset=0,
        next_offset=3,
        held=((0, 3),),
        epochs=LeaderEpochs(((1, 0),)),
        lineage_from=0,
    )
    remote = RemoteTier(
        log_start_offset=2, allocated_end_offset=4, entries=(EpochRange(1, 3, 4),), expired=(EpochRange(1, 0, 3),)
    )
    assert tier_relation(local, remote).only_here == ((2, 3),)


def test_a_log_with_dropped_records_is_lost_if_the_manifest_ends_below_local_start() -> None:
    for start, local_start, end, taken in product(ENDS, repeat=4):
        if not start < local_start <= end:
            continue
        local = LocalTier(
            log_start_offset=start,
            local_start_offset=local_start,
            next_offset=end,
            held=((local_start, end),) if local_start < end else (),
            epochs=LeaderEpochs(((1, start),)),
            lineage_from=start,
        )
        assert tier_relation(local, None).relation is Relation.LOST
        remote = RemoteTier(
            log_start_offset=0, allocated_end_offset=taken, entries=(EpochRange(1, 0, taken),) if taken else ()
        )
        assert (tier_relation(local, remote).relation is Relation.LOST) == (taken < local_start)


def test_no_relation_restarts_or_maintains_a_log_without_the_writer_role() -> None:
    assert set(ALLOWED) == set(Relation)
    for relation, actions in ALLOWED.items():
        if actions & {Action.START_OVER, Action.APPEND, Action.MAINTAIN}:
            assert Action.TAKE_ROLE in actions, relation
        assert (Action.TAKE_ROLE not in actions) or Action.TAKE_OVER in actions, relation


# --- histories -------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """The disk of a node: records by offset as (epoch, identity), their synced end, and the node's role."""

    mark: int
    records: dict[int, tuple[int, int]] = field(default_factory=dict)
    synced: int = 0
    end: int = 0
    log_start: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    epoch: int = 0
    is_writer: bool = False

    def copy(self) -> Disk:
        return replace(self, records=dict(self.records))

    def facts(self) -> LocalTier:
        first = min(self.records, default=self.end)
        return LocalTier(
            log_start_offset=self.log_start,
            local_start_offset=first,
            next_offset=self.end,
            held=((first, self.end),) if self.records else (),
            epochs=self.epochs,
            lineage_from=max(0, min(self.log_start, first, self.end - 1)),
        )


class History:
    """The model of this module. `rule` is the verdict under test."""

    def __init__(self, seed: int, rule=tier_relation) -> None:
        self.draw, self.rule = random.Random(seed), rule
        self.disks = [Disk(0), Disk(1)]
        self.backup = self.disks[0].copy()
        self.entries: dict[int, tuple[int, int]] = {}
        self.expired: dict[int, tuple[int, int]] = {}
        self.start = self.epoch = self.identity = self.expired_end_offset = 0
        self.appender: int | None = None
        self.ever_copied: set[int] = set()
        self.expired_by_owner: set[int] = set()
        self.is_committed = False
        self.story: list[str] = []

    @property
    def allocated_end_offset(self) -> int:
        return max(self.start, self.expired_end_offset, max(self.entries, default=-1) + 1)

    def facts(self, disk: Disk) -> RemoteTier | None:
        if not self.is_committed:
            return None
        latest = disk.epochs.latest
        is_other = self.appender not in (None, disk.mark) and (latest is None or latest < self.epoch)
        return RemoteTier(
            log_start_offset=self.start,
            allocated_end_offset=self.allocated_end_offset,
            entries=ranges_of(self.entries),
            expired=ranges_of(self.expired),
            is_other_writer=is_other,
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            disk = self.draw.choice(self.disks)
            step = self.draw.choice((self.open, self.append, self.append, self.copy, self.expire, self.crash, self.job))
            self.story.append(f"{step.__name__} {disk.mark}")
            step(disk)
            if self.draw.random() < 0.05:
                self.backup = self.disks[0].copy()

    def open(self, disk: Disk) -> None:
        verdict = self.rule(disk.facts(), self.facts(disk))
        if not verdict.allows(Action.TAKE_ROLE):
            return
        for each in self.disks:
            each.is_writer = False
        self.epoch += 1
        self.is_committed = disk.is_writer = True
        self.appender, disk.epoch = disk.mark, self.epoch
        if disk.end < self.allocated_end_offset:
            self.judge_loss(disk, disk.records)
            history = {**self.expired, **self.entries}
            disk.records, disk.end, disk.synced = {}, self.allocated_end_offset, self.allocated_end_offset
            disk.epochs = LeaderEpochs()
            for offset, (epoch, _) in sorted(history.items()):
                if disk.epochs.latest is None or epoch > disk.epochs.latest:
                    disk.epochs = disk.epochs.assign(epoch, offset)
        if self.start > disk.log_start:
            lost = {at: each for at, each in disk.records.items() if at < self.start}
            self.judge_loss(disk, lost)
            self.raise_start(disk)

    def judge_loss(self, disk: Disk, lost: dict[int, tuple[int, int]]) -> None:
        for offset, (epoch, identity) in lost.items():
            if identity not in self.ever_copied and identity not in self.expired_by_owner:
                story = "\n".join(self.story[-30:])
                raise AssertionError(f"node {disk.mark} drops the only copy of {offset} (epoch {epoch})\n{story}")

    def append(self, disk: Disk) -> None:
        if not disk.is_writer:
            return
        for _ in range(self.draw.randint(1, 3)):
            self.identity += 1
            disk.epochs = disk.epochs.assign(disk.epoch, disk.end)
            disk.records[disk.end] = (disk.epoch, self.identity)
            disk.end += 1
        if self.draw.random() < 0.5:
            disk.synced = disk.end

    def copy(self, disk: Disk) -> None:
        if not disk.is_writer or disk.end <= self.allocated_end_offset or not disk.records:
            return
        upto = self.draw.randint(self.allocated_end_offset + 1, disk.end)
        disk.synced = max(disk.synced, upto)
        for offset in range(max(self.allocated_end_offset, min(disk.records)), upto):
            self.entries[offset] = disk.records[offset]
            self.ever_copied.add(disk.records[offset][1])

    def expire(self, disk: Disk) -> None:
        if not disk.is_writer or disk.end <= self.start:
            return
        upto = self.draw.randint(self.start + 1, disk.end)
        # `tiered.maintenance.delete_records`: durable before the manifest is committed
        disk.synced = max(disk.synced, upto)
        self.expired_end_offset = max(self.expired_end_offset, max(self.entries, default=-1) + 1)
        self.expired_by_owner |= {each[1] for at, each in disk.records.items() if at < upto}
        self.expired |= {at: each for at, each in self.entries.items() if at < upto}
        self.entries = {at: each for at, each in self.entries.items() if at >= upto}
        self.start = upto
        if self.draw.random() < 0.7:  # otherwise a crash happens before the checkpoint
            self.raise_start(disk)
        else:
            disk.is_writer = False

    def raise_start(self, disk: Disk) -> None:
        disk.log_start = self.start
        disk.records = {at: each for at, each in disk.records.items() if at >= self.start}
        disk.epochs = disk.epochs.truncate_from_start(max(0, min(self.start, disk.end - 1)))

    def crash(self, disk: Disk) -> None:
        disk.is_writer = False
        if self.draw.random() < 0.3:
            disk.records = {at: each for at, each in disk.records.items() if at < disk.synced}
            disk.end = max(disk.synced, disk.log_start)
            disk.epochs = disk.epochs.truncate_from_end(disk.end)
        if disk.mark == 0 and self.draw.random() < 0.1:
            # loses the records that were acknowledged since the backup
            self.disks[0] = replace(self.backup.copy(), is_writer=False)

    def job(self, disk: Disk) -> None:
        """A job takes over the epoch and has no log: the appending node stays the same."""
        if self.is_committed and self.draw.random() < 0.3:
            self.epoch += 1
            for each in self.disks:
                each.is_writer = False


@pytest.mark.parametrize("seed", seeds(40))
def test_no_history_of_two_nodes_deletes_the_only_copy_of_a_record(seed: int) -> None:
    for number in range(25):
        History(seed * 1000 + number).run(60)


def _by_log_start_alone(local: LocalTier, remote: RemoteTier | None) -> TierVerdict:
    """An unsafe rule: records below the remote log start count as expired, no matter which node raised it."""
    if remote is None:
        return tier_relation(local, remote)
    start = remote.log_start_offset
    trusting = replace(remote, expired=(), is_other_writer=False)
    held = tuple((max(base, start), end) for base, end in local.held if end > start)
    verdict = tier_relation(replace(local, held=held, lineage_from=max(start, local.lineage_from)), trusting)
    return TierVerdict(relation=Relation.BEHIND) if verdict.relation is Relation.EMPTY else verdict


def _by_epochs_of_entries_alone(local: LocalTier, remote: RemoteTier | None) -> TierVerdict:
    return tier_relation(local, remote if remote is None else replace(remote, is_other_writer=False))


@pytest.mark.parametrize("rule", [_by_log_start_alone, _by_epochs_of_entries_alone])
def test_the_histories_detect_the_record_loss_of_unsafe_rules(rule) -> None:
    def run_all() -> None:
        for seed in range(1000):
            History(seed, rule).run(60)

    with pytest.raises(AssertionError, match="drops the only copy"):
        run_all()
