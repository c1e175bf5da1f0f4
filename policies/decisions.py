"""The decisions that policies can make, and the actions that they put off: frozen facts, each with a reason for people.

A decision names its subject: half-open offsets, the ulid of an entry, or the key of an object. `apply` skips a decision
that the current state no longer fits. A skipped decision is always safe for the decisions before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from local.facts import SegmentInfo
from local.names import TopicPartition

if TYPE_CHECKING:
    from remote.manifest.manifest import PageEntry
    from remote.segment_entry import SegmentEntry


class Action(StrEnum):
    COPY = "copy"
    CLEAN = "clean"
    DROP = "drop"


class Code(StrEnum):
    """The reason for a deferral. A code is stable; its text may change."""

    ACTIVE = "active"  # the segment still receives appends
    COPY_LAG = "copy_lag"  # the segment is not due for its copy yet (`policies.tiering`)
    PAUSED = "paused"  # uploads were paused
    COPY_DISABLED = "copy_disabled"  # remote.log.copy.disable
    GIVING_UP = "giving_up"  # the remote tier was switched off and is being deleted
    OPEN_TRANSACTION = "open_transaction"  # the last stable offset is below the segment's end
    NOT_CLEANED = "not_cleaned"  # a compacted topic copies cleaned segments only
    CLEANING = "cleaning"  # the same plan cleans the log first
    COPYING = "copying"  # a copy is under way
    OVERLAP = "overlap"  # the remote tier ends inside the segment
    ORDER = "order"  # an earlier segment is put off, and copies keep the order of offsets
    REMOTE_UNKNOWN = "remote_unknown"  # the partition has a problem: its remote tier is unknown, or fails
    DIRTY_RATIO = "dirty_ratio"  # min.cleanable.dirty.ratio is not exceeded
    COMPACTION_LAG = "compaction_lag"  # min.compaction.lag.ms has not passed
    CLEANER_HELD = "cleaner_held"  # cleaning of this log is paused, or failed a short time ago
    NOT_COPIED = "not_copied"  # local retention would drop the segment, but the remote tier lacks some of its records
    REPLACEMENT = "replacement"  # the segment will replace remote entries when uploads resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """One action on a segment or range that is put off, until `until_ms` (None: unknown)."""

    action: Action
    code: Code
    base_offset: int
    next_offset: int
    size_bytes: int
    why: str
    until_ms: int | None = None


def put_off(action: Action, segment: SegmentInfo, code: Code, why: str, until_ms: int | None = None) -> Deferral:
    return Deferral(
        action=action,
        code=code,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        why=why,
        until_ms=until_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """`size_bytes` are the bytes that the decision concerns."""

    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRange(_Decision):
    """A decision about one segment, entry or page, or about the entries that a segment tiles."""

    base_offset: int
    next_offset: int

    @classmethod
    def of(cls, part: SegmentInfo | SegmentEntry | PageEntry, reason: str, **fields: object) -> Self:
        """Take offsets and size from `part`, the class's own fields from `fields`."""
        values: dict[str, Any] = {"size_bytes": part.size_bytes, **fields}
        return cls(base_offset=part.base_offset, next_offset=part.next_offset, reason=reason, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollActive(_Decision):
    """Close the active segment and begin a new one, so that later maintenance can clean, copy or drop it."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLog(_Decision):
    """Map the keys of ``[first_dirty_offset, upto_offset)``, rewrite all segments below `upto_offset`."""

    first_dirty_offset: int
    upto_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySegment(_OfRange):
    """Upload and commit one closed segment. A failed copy ends the copies of this partition in this plan.

    `is_indivisible`: all such copies of one plan (a compacted topic) share one commit.
    """

    is_indivisible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRemote(_OfRange):
    """Upload a segment that was cleaned again, in place of the entries `ulids` that it tiles exactly."""

    ulids: tuple[str, ...]
    remote_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCleanedOffset(_OfRange):
    """Record that unchanged entries are clean through `cleaned_through`; copies nothing."""

    ulids: tuple[str, ...]
    cleaned_through: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLocal(_OfRange):
    """Delete one local segment whose records are in the store or below the log start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildView(_Decision):
    """Extend a compacted view by ``[from_offset, upto_offset)``, with `accepts_loss` across lost records."""

    view: str
    from_offset: int
    upto_offset: int
    accepts_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart(_Decision):
    """Raise the log start of both tiers: readers lose the records below. Later decisions delete the bytes."""

    offset: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisableTier(_Decision):
    """Raise the log start to `offset`, the start of the local log, and void the remote tier (KIP-950)."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRemote(_OfRange):
    """Remove an entry from the manifest and list its objects as pending deletes, for the grace period."""

    ulid: str
    data_key: str
    indexes_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePage(_OfRange):
    """Remove a whole page from the manifest, unread; its entries' objects stay for the grace period."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePending(_Decision):
    """Delete one object that no entry has named for the grace period. The writer proves its epoch first."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePage(_Decision):
    """Delete the objects of a page's entries, then the page, a grace period after it left the manifest."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectManifests(_Decision):
    """Delete old manifests, up to and including this sequence; the newest and pinned ones stay."""

    upto_sequence: int
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
