"""The decisions that policies can make: frozen facts, each with a reason for people.

A decision names its subject: half-open offsets, the ulid of an entry, or the key of an object. `apply` skips a decision
that the current state no longer fits. A skipped decision is always safe for the decisions before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from local.names import TopicPartition
from policies.deferrals import Deferral


@dataclass(frozen=True, slots=True, kw_only=True)
class RollActive:
    """Close the active segment and begin a new one, so that later maintenance can clean, copy or drop it."""

    base_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLog:
    """Compact: map the keys of ``[first_dirty_offset, upto_offset)``, rewrite all segments below the end."""

    first_dirty_offset: int
    upto_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySegment:
    """Upload and commit one closed segment. A failed copy ends the copies of this partition in this plan.

    `is_indivisible`: all such copies of one plan (a compacted topic) share one commit.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str
    is_indivisible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRemote:
    """Upload a segment that was cleaned again, in place of the entries `ulids` that it tiles exactly."""

    base_offset: int
    next_offset: int
    ulids: tuple[str, ...]
    size_bytes: int
    remote_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCleanedOffset:
    """Record that unchanged entries are clean through `cleaned_through`; copies nothing."""

    base_offset: int
    next_offset: int
    ulids: tuple[str, ...]
    cleaned_through: int
    reason: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLocal:
    """Delete one local segment whose records are in the store or below the log start."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildView:
    """Extend a compacted view by ``[from_offset, upto_offset)``, with `accepts_loss` across lost records."""

    view: str
    from_offset: int
    upto_offset: int
    size_bytes: int
    reason: str
    accepts_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Raise the log start of both tiers: readers lose the records below. Later decisions delete the bytes."""

    offset: int
    reason: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableTier:
    """Raise the log start to `offset`, the start of the local log, and void the remote tier (KIP-950)."""

    offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRemote:
    """Remove an entry from the manifest and list its objects as pending deletes, for the grace period."""

    ulid: str
    base_offset: int
    next_offset: int
    size_bytes: int
    data_key: str
    indexes_key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePage:
    """Remove a whole page from the manifest, unread; its entries' objects stay for the grace period."""

    key: str
    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePending:
    """Delete one object that no entry has named for the grace period. The writer proves its epoch first."""

    key: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePage:
    """Delete the objects of a page's entries, then the page, a grace period after it left the manifest."""

    key: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectManifests:
    """Delete old manifests, up to and including this sequence; the newest and pinned ones stay."""

    upto_sequence: int
    reason: str
    size_bytes: int = 0


Decision = (
    RollActive
    | CleanLog
    | CopySegment
    | ReplaceRemote
    | AdvanceCleanedOffset
    | DropLocal
    | BuildView
    | AdvanceLogStart
    | DisableTier
    | ExpireRemote
    | ExpirePage
    | DeletePending
    | DeletePage
    | CollectManifests
)


def place_of(decision: Decision) -> str:
    """Return the half-open offsets of a decision, or its other object."""
    match decision:
        case RollActive():
            return f"[{decision.base_offset}, ...)"
        case CleanLog():
            return f"[{decision.first_dirty_offset}, {decision.upto_offset})"
        case BuildView():
            return f"{decision.view} [{decision.from_offset}, {decision.upto_offset})"
        case AdvanceLogStart() | DisableTier():
            return f"to {decision.offset}"
        case DeletePending() | DeletePage():
            return decision.key
        case CollectManifests():
            return f"manifests up to {decision.upto_sequence}"
        case _:
            return f"[{decision.base_offset}, {decision.next_offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Number of decisions of one kind, and the bytes they concern."""

    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of each partition, in an order every prefix of which is safe."""

    now_ms: int
    decisions: Mapping[TopicPartition, Sequence[Decision]] = field(default_factory=dict)
    deferrals: Mapping[TopicPartition, Sequence[Deferral]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(self.decisions.values())

    def totals(self) -> dict[str, Total]:
        """Return count and bytes by the decision's class name; absent kinds are left out."""
        totals: dict[str, Total] = {}
        for decision in chain.from_iterable(self.decisions.values()):
            kind = type(decision).__name__
            so_far = totals.get(kind, Total())
            totals[kind] = Total(count=so_far.count + 1, size_bytes=so_far.size_bytes + decision.size_bytes)
        return totals
