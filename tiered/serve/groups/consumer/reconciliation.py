"""A member's way from what it has to its target assignment. No I/O.

| state | what the member does | then |
|---|---|---|
| STABLE | has its assignment of its epoch | a newer target: the next assignment |
| UNREVOKED_PARTITIONS | revokes partitions, in its old epoch | it reports none of them: the next assignment |
| UNRELEASED_PARTITIONS | has the target's epoch, waits for partitions of others | the next assignment |

The next assignment of a member, first case that holds:

| case | assigned | epoch | state |
|---|---|---|---|
| it owns partitions outside the target | without them | as before | UNREVOKED_PARTITIONS |
| partitions of the target have no owner | with them | the target's | STABLE; UNRELEASED_PARTITIONS if some are owned |
| partitions of the target have another owner | as it is | the target's | UNRELEASED_PARTITIONS |
| otherwise | as it is | the target's | STABLE |

Only a partition without an owner is assigned, and a member owns what it was assigned until it has revoked it. So two
members never own one partition.

Source: kafka `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from tiered.serve.groups.consumer.records import Assignment, Current, MemberState


def reconciled(
    current: Current,
    target_epoch: int,
    target: Assignment,
    is_owned: Callable[[UUID, int], bool],
    owned: Assignment | None,
) -> Current:
    """What the member has next; `current` itself if nothing changes.

    `is_owned` is whether a member has the partition. `owned` is what the member says it owns; None: it says nothing.
    """
    match current.state:
        case MemberState.STABLE:
            if current.epoch == target_epoch:
                return current
            return _next(current, current.epoch, target_epoch, target, is_owned, owned)
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns(owned, current.revoking):
                return current
            return _next(current, current.epoch + 1, target_epoch, target, is_owned, owned)
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(current, current.epoch, target_epoch, target, is_owned, owned)


def _next(
    current: Current,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    is_owned: Callable[[UUID, int], bool],
    owned: Assignment | None,
) -> Current:
    assigned: dict[UUID, frozenset[int]] = {}
    revoking: dict[UUID, frozenset[int]] = {}
    adding: dict[UUID, frozenset[int]] = {}
    is_waiting = False
    for topic in target.keys() | current.assigned.keys():
        wanted, having = target.get(topic, frozenset()), current.assigned.get(topic, frozenset())
        missing = wanted - having
        free = frozenset(each for each in missing if not is_owned(topic, each))
        is_waiting = is_waiting or len(free) < len(missing)
        for found, numbers in ((assigned, having & wanted), (revoking, having - wanted), (adding, free)):
            if numbers:
                found[topic] = numbers
    if revoking and _owns(owned, revoking):
        return _moved(current, epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic, numbers in adding.items():
        assigned[topic] = assigned.get(topic, frozenset()) | numbers
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _moved(current, target_epoch, state, assigned, {})


def _moved(current: Current, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment) -> Current:
    return replace(
        current, epoch=epoch, previous_epoch=current.epoch, state=state, assigned=assigned, revoking=revoking
    )


def _owns(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether the member may own one of the partitions."""
    return owned is None or any(owned.get(topic, frozenset()) & numbers for topic, numbers in partitions.items())
