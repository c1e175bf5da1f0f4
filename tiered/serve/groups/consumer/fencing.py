"""Which requests of members are refused: unknown members, fenced ones, members of a full group. No I/O.

| check | refusal |
|---|---|
| the group is full | GROUP_MAX_SIZE_REACHED |
| a static member joins, and the member with its instance id has not left | UNRELEASED_INSTANCE_ID |
| the instance id belongs to another member | FENCED_INSTANCE_ID |
| the member or its instance id is unknown | UNKNOWN_MEMBER_ID |
| the member has another epoch, unless its last response was lost | FENCED_MEMBER_EPOCH |

Source: kafka `GroupMetadataManager`.
"""

from __future__ import annotations

from tiered.serve.groups.consumer.assignments import is_subset
from tiered.serve.groups.consumer.records import Assignment, Current
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import LEAVES_FOR_NOW


class Refused(Exception):
    """A request without effect."""

    def __init__(self, code: Error, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


def check_room(members: int, most: int) -> None:
    if members >= most:
        text = f"The consumer group has reached its maximum capacity of {most} members."
        raise Refused(Error.GROUP_MAX_SIZE_REACHED, text)


def check_left(current: Current, existing: str, member_id: str, instance_id: str) -> None:
    """Of the member that has the instance id of a new one."""
    if current.epoch != LEAVES_FOR_NOW:
        text = (
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {existing} member."
        )
        raise Refused(Error.UNRELEASED_INSTANCE_ID, text)


def check_identity(
    member_id: str, instance_id: str | None, existing: str | None, group_id: str, *, is_known: bool
) -> None:
    """`existing` has the instance id. `is_known`: a member without an instance id is one of the group, or joins."""
    if instance_id is None and not is_known:
        raise Refused(Error.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")
    if instance_id is not None and existing is None:
        raise Refused(Error.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if instance_id is not None and existing != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {existing}."
        raise Refused(Error.FENCED_INSTANCE_ID, text)


def check_epoch(current: Current, epoch: int, owned: Assignment | None) -> None:
    """Source: kafka `GroupMetadataManager.throwIfConsumerGroupMemberEpochIsInvalid`."""
    is_retry = epoch == current.previous_epoch and owned is not None and is_subset(owned, current.assigned)
    if epoch > current.epoch or (epoch < current.epoch and not is_retry):
        kind = "greater" if epoch > current.epoch else "smaller"
        text = (
            f"The consumer group member has a {kind} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
        )
        raise Refused(Error.FENCED_MEMBER_EPOCH, text)
