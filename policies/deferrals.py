"""What is not done yet, and why: the other answer of a policy, beside its decisions.

A deferral is about one closed or active segment (a cleaning is about a range of them). It names a stable code for
programs, a sentence for people, and the time from which it ends by itself where that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from local.segment.segment_info import SegmentInfo


class Action(StrEnum):
    """What is put off."""

    COPY = "copy"
    CLEAN = "clean"
    DROP = "drop"


class Code(StrEnum):
    """Why. A code is stable; the text beside it may change."""

    ACTIVE = "active"  # the segment is still appended to
    COPY_LAG = "copy_lag"  # remote.copy.lag.* has not passed
    PAUSED = "paused"  # uploads were paused
    COPY_DISABLED = "copy_disabled"  # remote.log.copy.disable
    GIVING_UP = "giving_up"  # the remote tier was switched off and is being deleted
    OPEN_TRANSACTION = "open_transaction"  # the last stable offset lies below the segment's end
    NOT_CLEANED = "not_cleaned"  # a compacted topic copies cleaned segments only
    CLEANING = "cleaning"  # the same plan cleans the log first
    COPYING = "copying"  # a copy is under way
    OVERLAP = "overlap"  # the remote tier ends inside the segment
    ORDER = "order"  # an earlier segment is put off, and copies keep the order of offsets
    REMOTE_UNKNOWN = "remote_unknown"  # the partition has a problem: its part of the remote tier is not known, or fails
    DIRTY_RATIO = "dirty_ratio"  # min.cleanable.dirty.ratio is not exceeded
    COMPACTION_LAG = "compaction_lag"  # min.compaction.lag.ms has not passed
    CLEANER_HELD = "cleaner_held"  # cleaning of this log is paused, or failed a short time ago
    NOT_COPIED = "not_copied"  # retention wants to drop the segment, and only the disk has its records
    REPLACEMENT = "replacement"  # the segment replaces remote entries once uploads go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """One thing that is put off. Offsets half open; `size_bytes` is of the segment, or of what waits to be cleaned.

    `until_ms` is when it ends by itself, None where no time can be told.
    """

    action: Action
    code: Code
    base_offset: int
    next_offset: int
    size_bytes: int
    why: str
    until_ms: int | None = None


def put_off(action: Action, segment: SegmentInfo, code: Code, why: str, until_ms: int | None = None) -> Deferral:
    """The deferral of one segment."""
    return Deferral(
        action=action,
        code=code,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        why=why,
        until_ms=until_ms,
    )
