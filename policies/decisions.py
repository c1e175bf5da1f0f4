"""What the policies can decide: frozen facts, each with the reason a person would want to read.

A decision names what it was taken for (half-open offsets, a row's ulid, an object's key), so that whoever applies it
can see that the world moved and leave it undone; leaving any decision undone is always safe for those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from local.names import TopicPartition
from policies.deferrals import Deferral


@dataclass(frozen=True, slots=True, kw_only=True)
class RollActive:
    """Close the active segment and begin a new one, so that it can be cleaned, copied or dropped in a later round."""

    base_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanLog:
    """Compact the local log: map the keys of ``[first_dirty_offset, upto_offset)``, rewrite all local segments below.

    `size_bytes` is the dirty part.
    """

    first_dirty_offset: int
    upto_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySegment:
    """Upload and commit one closed segment. A copy that fails ends the partition's copies of this plan.

    Neighbours share commits (`policies.tiering.completes_commit`). Copies with `is_indivisible` are those of a
    compacted topic: all of them that a plan holds share one commit, however many they are (`policies.tiering`).
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str
    is_indivisible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceRemote:
    """Upload a local segment that was cleaned again, and put its row in the place of the rows it tiles exactly.

    `ulids` are those rows, in the order of their offsets; `size_bytes` goes up, `remote_bytes` leave the index.
    """

    base_offset: int
    next_offset: int
    ulids: tuple[str, ...]
    size_bytes: int
    remote_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseCleaned:
    """Note that rows which a later cleaning left as they were are clean through `cleaned_through`; no byte moves."""

    base_offset: int
    next_offset: int
    ulids: tuple[str, ...]
    cleaned_through: int
    reason: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLocal:
    """Delete one local segment: its records are committed in the store, or lie below the log start."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildView:
    """Bring a compacted view up to what the bucket holds: at the time of the plan ``[from_offset, upto_offset)`` more.

    `size_bytes` is that backlog. With `accepts_loss` it goes on behind what the log no longer holds.
    """

    view: str
    from_offset: int
    upto_offset: int
    size_bytes: int
    reason: str
    accepts_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Raise the log start of both tiers. Records below are gone for readers from here on; bytes follow later."""

    offset: int
    reason: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpRemote:
    """Let the log begin at `offset`, where the disk does, and let nothing in the bucket count any more (KIP-950)."""

    offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRemote:
    """Take a row out of the index and note its objects as unlinked; their bytes stay for the grace time."""

    ulid: str
    base_offset: int
    next_offset: int
    size_bytes: int
    data_key: str
    indexes_key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePage:
    """Take a whole page of rows out of the index, unread; the objects of all its rows stay for the grace time."""

    key: str
    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUnlinked:
    """Delete one object that no row has named for the grace time; the writer proves its epoch first."""

    key: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePage:
    """Delete the objects of all rows of a page that left the index a grace time ago, then the page."""

    key: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectHeads:
    """Delete old heads of the index, those up to this sequence; the newest ones and pinned ones stay."""

    upto_sequence: int
    reason: str
    size_bytes: int = 0


Decision = (
    RollActive
    | CleanLog
    | CopySegment
    | ReplaceRemote
    | RaiseCleaned
    | DropLocal
    | BuildView
    | AdvanceLogStart
    | GiveUpRemote
    | ExpireRemote
    | ExpirePage
    | DeleteUnlinked
    | DeletePage
    | CollectHeads
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """How many decisions of one kind and how many bytes they concern."""

    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, by partition, each in an order every prefix of which is safe. Partitions don't depend on another.

    `deferrals` are what is put off, and why. They change nothing: a plan with deferrals alone is empty.
    """

    now_ms: int
    decisions: Mapping[TopicPartition, Sequence[Decision]] = field(default_factory=dict)
    deferrals: Mapping[TopicPartition, Sequence[Deferral]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(self.decisions.values())

    def totals(self) -> dict[str, Total]:
        """Count and bytes by the decision's class name; kinds that don't occur are absent."""
        totals: dict[str, Total] = {}
        for decision in (one for decided in self.decisions.values() for one in decided):
            kind = type(decision).__name__
            so_far = totals.get(kind, Total())
            totals[kind] = Total(count=so_far.count + 1, size_bytes=so_far.size_bytes + decision.size_bytes)
        return totals
