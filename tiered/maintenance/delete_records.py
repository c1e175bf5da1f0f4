"""Delete the oldest records of a partition by raising its log start: Kafka's DeleteRecords.

Readers lose the records at once. Later maintenance deletes segments and objects below the log start. Order of effects:

1. The log is durable up to the start.
2. The manifest commits the start (tiered partitions).
3. The log-start checkpoint is durable.
4. Readers get the new start.

A crash after any step leaves the old start or the new one. A tiered partition adopts the manifest's at the next open.
Source: kafka `UnifiedLog.maybeIncrementLogStartOffset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from local.errors import InvalidRequest, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from tiered.maintenance.apply import advance_log_start, commit_log_start
from tiered.partition.partition import Partition
from tiered.partition.tier_state import TierAction

HIGH_WATERMARK = -1  # in Kafka: up to the high watermark, all records


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """`low_watermark` is the log start offset now, `before` the previous one."""

    before: int
    low_watermark: int


def plan_deletion(held: Partition, offset: int) -> DeletedRecords:
    """The log start that a deletion up to `offset` would set. Raises OffsetOutOfRange, InvalidRequest."""
    if not held.rules.cleanup_delete:
        wrong = "cannot delete records, cleanup.policy of the topic does not include delete"
        raise InvalidRequest(wrong, partition=held.name)
    before, end = log_start(held), held.source().next_offset()
    if not HIGH_WATERMARK <= offset <= end:
        facts = {"offset": offset, "first_offset": before, "next_offset": end}
        raise OffsetOutOfRange("cannot delete records, the offset is out of range", partition=held.name, **facts)
    return DeletedRecords(before=before, low_watermark=max(before, end if offset == HIGH_WATERMARK else offset))


def log_start(held: Partition) -> int:
    """The manifest's log start offset if there is one: it is committed before the disk records it."""
    manifest = held.manifest()
    return manifest.log_start_offset if manifest is not None else held.log.log_start_offset


def delete_records(
    partitions: Mapping[Partition, int],
    directories: LogDirectories,
    *,
    now_ms: int,
    maintenance_lock: AbstractContextManager[object],
) -> dict[TopicPartition, DeletedRecords]:
    """Raise the log start of each partition to its offset, after all checks. Returns the old and new log starts.

    Waits for the store without a lock; `maintenance_lock` is held for the rest. Raises as `plan_deletion`, and if this
    manager may not write to a partition. The facts of an error of the disk or the store name the deletions so far.
    """
    for held in partitions:
        _check_there(held)
        held.check_not_stopped()
        if not held.allows(TierAction.EXPIRE):
            wrong = "cannot delete records, this process does not own the manifest of the partition yet"
            raise Unavailable(wrong, partition=held.name)
    planned = {held: plan_deletion(held, offset) for held, offset in partitions.items()}
    done: dict[TopicPartition, DeletedRecords] = {}
    for held, each in planned.items():
        try:
            if each.low_watermark > held.log.recovery_point:
                held.log.flush()  # a log that loses its tail afterwards would end below the remote log start
            commit_log_start(held, each.low_watermark, now_ms=now_ms)
            with maintenance_lock, held.lock:
                _check_there(held)
                advance_log_start(held, directories.of(held.name), each.low_watermark, now_ms=now_ms)
        except LogError as error:
            deleted = ",".join(f"{name}:{was.low_watermark}" for name, was in done.items()) or None
            raise error.restated(error.attempt, **{**error.facts, "deleted": deleted}) from error
        done[held.name] = each
    return done


def _check_there(held: Partition) -> None:
    """Check under the lock for a takeover or a topic deletion during the wait for the store."""
    if held.is_deleted:
        raise NotFound("cannot delete records, the topic was deleted", partition=held.name)
    held.check_not_fenced()
