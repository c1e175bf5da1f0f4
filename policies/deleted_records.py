"""Whether a broker's log start was moved by DeleteRecords, or by the retention of a leader.

A broker notes a log start that lies inside its first segment. Two causes exist:

| cause | on the leader | on a follower |
|---|---|---|
| DeleteRecords | anywhere | anywhere |
| retention at the leader | a segment's base: nothing is noted | the leader's segment base: often inside a segment |

DeleteRecords is mirrored to the bucket, retention is not: a bucket keeps what the retention of its broker deletes.
Where retention may be the cause the log start is not mirrored, since a log start never goes back.
Source: kafka `LogManager.checkpointLogStartOffsetsInDir`, `UnifiedLog.deleteOldSegments`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRetention:
    """The retention of a partition at its broker; None is no limit. `replicas` None: not known."""

    retention_ms: int | None
    retention_bytes: int | None
    replicas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartFacts:
    """A log start inside a segment. `newest_below_ms` is the newest batch below it in that segment, None for no known
    time; `bytes_from` are the bytes of all segments from that one on."""

    newest_below_ms: int | None
    bytes_from: int


def is_deletion(facts: LogStartFacts, retention: BrokerRetention, now_ms: int) -> bool:
    """Whether only DeleteRecords can have moved the log start."""
    if retention.replicas == 1:
        return True  # no leader elsewhere
    if retention.retention_ms is not None:
        newest = facts.newest_below_ms
        if newest is None or now_ms - newest > retention.retention_ms:
            return False
    return retention.retention_bytes is None or facts.bytes_from < retention.retention_bytes
