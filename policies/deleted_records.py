"""Whether DeleteRecords or the retention of a leader moved a broker's log start.

A broker checkpoints a log start that is inside its first segment. Two causes exist:

| cause | on the leader | on a follower |
|---|---|---|
| DeleteRecords | anywhere | anywhere |
| retention at the leader | a segment's base: no checkpoint | the leader's segment base: often inside a segment |

DeleteRecords is mirrored to the bucket. Retention is not: the bucket keeps records that the broker's retention deletes.
If retention may be the cause, the log start is not mirrored, because a log start never decreases.

Source: kafka `LogManager.checkpointLogStartOffsetsInDir`, `UnifiedLog.deleteOldSegments`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRetention:
    """The retention of a partition at its broker; None means no limit.

    `replicas` is None if the number is not known.
    """

    retention_ms: int | None
    retention_bytes: int | None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartFacts:
    """A log start inside a segment.

    `newest_below_ms` is the time of the newest batch below it in that segment, None if unknown. `bytes_from` is the
    size of that segment and all later ones.
    """

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
