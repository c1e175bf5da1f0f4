"""How a local log and a manifest relate, and the actions that each relation allows. Pure.

The states, the table of allowed actions and all cases of a remote log start are in docs/explanation/diverged-logs.md.
Two safety rules decide every doubt:

1. A local record is *proven* if the bucket holds its offset in the same leader epoch as the local log. An expired
   record of that epoch is a proof too. A log start alone proves nothing: it may have risen over records of another
   writer.
2. A log that holds an unproven record never starts over, and never takes the writer role from another writer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from local.log.leader_epochs import EpochRange, LeaderEpochs
from policies.snapshot import Coverage


class Relation(Enum):
    """The relations, in the order of their tests: the first that holds is the verdict."""

    LOST = "lost"
    UNCOMMITTED = "uncommitted"
    DIVERGED = "diverged"
    EMPTY = "empty"
    UNPROVEN = "unproven"
    FENCED = "fenced"
    BEHIND = "behind"
    AGREES = "agrees"


class Action(Enum):
    SERVE = "serve reads from both tiers"
    APPEND = "append"
    MAINTAIN = "copy, clean, drop, expire"
    START_OVER = "restart the local log at the end of the manifest"
    TAKE_ROLE = "take the writer role"
    TAKE_OVER = "take the writer role when an operator requests it"


_WRITES = frozenset({Action.SERVE, Action.APPEND, Action.MAINTAIN, Action.TAKE_ROLE, Action.TAKE_OVER})

ALLOWED: dict[Relation, frozenset[Action]] = {
    Relation.LOST: frozenset(),
    Relation.UNCOMMITTED: _WRITES,
    Relation.DIVERGED: frozenset(),
    Relation.EMPTY: _WRITES | {Action.START_OVER},
    Relation.UNPROVEN: frozenset(),
    Relation.FENCED: frozenset({Action.TAKE_OVER}),
    Relation.BEHIND: _WRITES | {Action.START_OVER},
    Relation.AGREES: _WRITES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTier:
    """The local log. `held`: ranges of segments with records. `epochs` are known from `lineage_from` on."""

    log_start_offset: int
    local_start_offset: int
    next_offset: int
    held: tuple[tuple[int, int], ...]
    epochs: LeaderEpochs
    lineage_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTier:
    """The manifest."""

    log_start_offset: int
    allocated_end_offset: int  # no log may assign an offset below it again
    entries: tuple[EpochRange, ...] = ()  # ranges that the bucket holds, as the next ascending and disjoint
    expired: tuple[EpochRange, ...] = ()  # ranges that the bucket held
    counts: bool = True  # False if the tier was disabled, so that its entries count for nothing
    is_other_writer: bool = False  # another node has a log of this partition and was the last writer

    @property
    def history(self) -> tuple[EpochRange, ...]:
        return tuple(sorted((*self.expired, *self.entries), key=lambda each: each.base_offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierVerdict:
    """The relation. `from_offset`: first difference or gap. `only_here`: local ranges without proven copy."""

    relation: Relation
    from_offset: int | None = None
    only_here: tuple[tuple[int, int], ...] = ()

    def allows(self, action: Action) -> bool:
        return action in ALLOWED[self.relation]


def tier_relation(local: LocalTier, remote: RemoteTier | None) -> TierVerdict:
    """Return the verdict. `remote` None: no manifest was ever committed."""
    has_dropped = local.log_start_offset < local.local_start_offset
    if has_dropped and (remote is None or remote.allocated_end_offset < local.local_start_offset):
        from_offset = max(local.log_start_offset, 0 if remote is None else remote.allocated_end_offset)
        return TierVerdict(relation=Relation.LOST, from_offset=from_offset)
    if remote is None:
        return TierVerdict(relation=Relation.UNCOMMITTED)
    history = remote.history
    contradicted = first_contradiction(local, history)
    if contradicted is not None:
        only_here = _only_here(local, Coverage.of([]), from_offset=contradicted)
        return TierVerdict(relation=Relation.DIVERGED, from_offset=contradicted, only_here=only_here)
    if not local.held:
        return TierVerdict(relation=Relation.EMPTY)
    # Proofs are the ranges in the bucket, and the expired ranges below the log start: above it they would be gaps.
    start, counting = remote.log_start_offset, remote.entries if remote.counts else ()
    proofs = [(each.base_offset, each.next_offset) for each in counting]
    proofs += [(each.base_offset, min(each.next_offset, start)) for each in remote.expired if each.base_offset < start]
    only_here = _only_here(local, Coverage.of(proofs))
    is_behind = local.next_offset < remote.allocated_end_offset
    if only_here and (is_behind or (remote.is_other_writer and only_here[0][0] < remote.log_start_offset)):
        return TierVerdict(relation=Relation.UNPROVEN, from_offset=only_here[0][0], only_here=only_here)
    if only_here and remote.is_other_writer:
        return TierVerdict(relation=Relation.FENCED, from_offset=only_here[0][0], only_here=only_here)
    if not is_behind:
        return TierVerdict(relation=Relation.AGREES)
    only_here = _not_comparable(local, remote)
    if only_here:
        return TierVerdict(relation=Relation.UNPROVEN, from_offset=only_here[0][0], only_here=only_here)
    return TierVerdict(relation=Relation.BEHIND)


def first_contradiction(local: LocalTier, history: Sequence[EpochRange]) -> int | None:
    """Return the first offset whose leader epoch differs between local log and bucket; None without one."""
    starts = [start for _, start in local.epochs.entries]
    for epoch, base_offset, next_offset in history:
        at, end = max(base_offset, local.lineage_from), min(next_offset, local.next_offset)
        while at < end:
            number = bisect_right(starts, at)
            if epoch != (local.epochs.entries[number - 1][0] if number else None):
                return at
            at = starts[number] if number < len(starts) else end
    return None


def _only_here(local: LocalTier, proof: Coverage, *, from_offset: int = 0) -> tuple[tuple[int, int], ...]:
    least = max(local.log_start_offset, from_offset)
    ranges = [(max(base, least), end) for base, end in local.held if end > least]
    return tuple(gap for base, end in ranges for gap in proof.missing(base, end))


def _not_comparable(local: LocalTier, remote: RemoteTier) -> tuple[tuple[int, int], ...]:
    """Return the local range that an old copy of the disk may have appended after the copy was made.

    Its leader epoch is the bucket's epoch, so epochs alone cannot show a difference. If an entry holds the last offset,
    `tiered.partition.reconciliation` compares the records, and the result is empty. If the entry expired, the log is
    known to be whole only if it ends where the range of its leader epoch ends.
    """
    last = local.next_offset - 1
    for _, base_offset, next_offset in remote.expired:
        if base_offset <= last < next_offset and local.next_offset < next_offset:
            return ((max(base_offset, local.held[0][0]), local.next_offset),)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRetention:
    """The retention of a partition at its broker; None: no limit, or an unknown number of replicas."""

    retention_ms: int | None
    retention_bytes: int | None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartFacts:
    """A log start in a segment S: time of the newest batch of S below it, the log's bytes from S on."""

    newest_below_ms: int | None
    bytes_from: int


def is_deletion(facts: LogStartFacts, retention: BrokerRetention, now_ms: int) -> bool:
    """Whether only DeleteRecords can have moved the log start."""
    if retention.replicas == 1:
        return True  # no other broker leads
    if retention.retention_ms is not None:
        newest = facts.newest_below_ms
        if newest is None or now_ms - newest > retention.retention_ms:
            return False
    return retention.retention_bytes is None or facts.bytes_from < retention.retention_bytes
