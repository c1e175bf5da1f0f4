"""What the members of a consumer group take of the memory of a node, in bytes. No I/O.

| part of a group | bytes |
|---|---|
| a member | its objects, its texts and the names of its topics |
| a regular expression | the expression and the names that it matches |
| a target assignment | its topics and partitions |
| an assignment | twice those of the target or of the member's partitions, whichever is more |

An assignment follows its target heartbeat by heartbeat, so its bytes count from the target on. The bytes of objects
are rounded up: a set of few numbers has 216 bytes, an entry of a table about 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from tiered.serve.groups.consumer.records import NO_PARTITIONS, Assignment, Current, MemberMetadata

MEMBER_BYTES = 2000  # of the objects of a member, without its texts
TOPIC_BYTES, PARTITION_BYTES = 150, 150  # of the objects of each, without their texts


def member_bytes(member_id: str, member: MemberMetadata | None) -> int:
    if member is None:
        return 0
    texts = (member_id, member.instance_id, member.rack_id, member.client_id, member.regex, *member.topics)
    return MEMBER_BYTES + sum(TOPIC_BYTES + len(each or "") for each in texts)


def regex_bytes(regex: str, topics: Iterable[str] | None) -> int:
    """`topics` are the names that it matches; None: not resolved."""
    return 0 if topics is None else len(regex) + sum(TOPIC_BYTES + len(each) for each in topics)


def assigned_bytes(target: Assignment | None, current: Current | None) -> int:
    """Of one member."""
    wanted = _size_of(target or NO_PARTITIONS)
    having = 0 if current is None else _size_of(current.assigned) + _size_of(current.revoking)
    return wanted + 2 * max(wanted, having)


def assigned_bytes_max(counts: Mapping[UUID, int], members: int) -> int:
    """Of all members, if all partitions are assigned. `counts` are the partitions of each topic."""
    return 3 * sum(TOPIC_BYTES * min(each, members) + PARTITION_BYTES * each for each in counts.values())


def _size_of(assignment: Assignment) -> int:
    return sum(TOPIC_BYTES + PARTITION_BYTES * len(numbers) for numbers in assignment.values())
