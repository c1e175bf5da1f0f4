"""Deferrals: the actions that a policy does not take yet, with a stable code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from local.facts import SegmentInfo


class Action(StrEnum):
    """The action that is put off."""

    COPY = "copy"
    CLEAN = "clean"
    DROP = "drop"


class Code(StrEnum):
    """The reason for a deferral. A code is stable; its text may change."""

    ACTIVE = "active"  # the segment still receives appends
    COPY_LAG = "copy_lag"  # the segment is not due for its copy yet (`policies.copy_lag`)
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
