"""Deleting the oldest records of a partition by raising its log start: Kafka's DeleteRecords.

Nothing is removed here. Records below the new start are gone for readers at once; segments and objects that lie wholly
below it go with the next rounds, as after retention. Order of effects: the log is durable up to the start → the head
commits the start (tiered partitions) → the log-start checkpoint is durable → readers are told. A crash after any step
leaves the old start or the new one, and a tiered partition takes up the head's at the next open.
Source: kafka `UnifiedLog.maybeIncrementLogStartOffset`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from local.errors import InvalidRequest, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from tiered.maintenance.apply import advance_log_start, commit_log_start
from tiered.partition.partition import Partition

HIGH_WATERMARK = -1  # Kafka's word for all there is
NOBODY: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """`low_watermark` is the log start now, `before` what it was. Both in offsets."""

    before: int
    low_watermark: int


def plan_deletion(held: Partition, offset: int) -> DeletedRecords:
    """The log start that deleting up to `offset` means. Changes nothing.

    Raises OffsetOutOfRange above the log end or below -1, InvalidRequest for a topic that only compacts (there a
    tombstone deletes).
    """
    if not held.rules.cleanup_delete:
        raise InvalidRequest("deleting records of a topic whose cleanup.policy does not delete", partition=held.name)
    before, end = log_start(held), held.source().next_offset()
    if not HIGH_WATERMARK <= offset <= end:
        facts = {"offset": offset, "first_offset": before, "next_offset": end}
        raise OffsetOutOfRange("deleting records, offset out of range", partition=held.name, **facts)
    return DeletedRecords(before=before, low_watermark=max(before, end if offset == HIGH_WATERMARK else offset))


def log_start(held: Partition) -> int:
    """The head's where there is one: it is committed before the disk hears of it."""
    head = held.head()
    return head.log_start_offset if head is not None else held.log.log_start_offset


def delete_records(
    partitions: Mapping[Partition, int],
    directory_of: Callable[[TopicPartition], LogDirectory],
    *,
    now_ms: int,
    rounds: AbstractContextManager[object] = NOBODY,
) -> dict[TopicPartition, DeletedRecords]:
    """Raise the log start of each partition to its offset; everything is checked before anything is done.

    The store is waited for first, without a lock; `rounds` is held for the rest, for they write the checkpoints, too.
    Raises as `plan_deletion`, and what keeps this manager from writing to a partition; what the disk or the store
    refuses on the way, with what was deleted until then in its facts.
    """
    for held in partitions:
        _check_ours(held)
    planned = {held: plan_deletion(held, offset) for held, offset in partitions.items()}
    done: dict[TopicPartition, DeletedRecords] = {}
    for held, each in planned.items():
        try:
            if each.low_watermark > held.log.recovery_point:
                held.log.flush()  # a log that loses its tail afterwards would end below the remote log start
            commit_log_start(held, each.low_watermark, now_ms=now_ms)
            with rounds, held.lock:
                _check_there(held)
                advance_log_start(held, directory_of(held.name), each.low_watermark, now_ms=now_ms)
        except LogError as error:
            told = ",".join(f"{name}:{was.low_watermark}" for name, was in done.items()) or None
            raise error.restated(error.attempt, **{**error.facts, "deleted": told}) from error
        done[held.name] = each
    return done


def _check_there(held: Partition) -> None:
    """Inside the lock: while the store was waited for another writer may have come, or the topic have gone."""
    if held.is_deleted:
        raise NotFound("deleting records, the topic was deleted meanwhile", partition=held.name)
    held.check_not_fenced()


def _check_ours(held: Partition) -> None:
    if held.stopped is not None:
        raise held.stopped
    held.check_not_fenced()
    if held.is_tiered and not held.is_owned:
        raise Unavailable("deleting records, the partition's head in the bucket is not ours yet", partition=held.name)
