"""Partitions of members: what requests say, what responses show, their sizes. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from tiered.serve.groups.consumer.records import Assignment, Current
from tiered.serve.messages.consumer_groups import Assignment as AssignmentMessage
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    DescribedAssignment,
    DescribedTopicPartitions,
    TopicPartitions,
)

TOPIC_BYTES, PARTITION_BYTES = 150, 150  # of the objects of each, without their texts


def owned_of(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    found: dict[UUID, frozenset[int]] = {}
    for each in request.topic_partitions:
        if each.topic_id is not None and each.partitions:
            found[each.topic_id] = found.get(each.topic_id, frozenset()) | frozenset(each.partitions)
    return found


def is_subset(owned: Assignment, assigned: Assignment) -> bool:
    return all(numbers <= assigned.get(topic, frozenset()) for topic, numbers in owned.items())


def partitions_of(current: Current | None) -> Iterator[tuple[UUID, int]]:
    if current is not None:
        for assignment in (current.assigned, current.revoking):
            yield from ((topic, number) for topic, numbers in assignment.items() for number in numbers)


def size_of(assignment: Assignment) -> int:
    return sum(TOPIC_BYTES + PARTITION_BYTES * len(numbers) for numbers in assignment.values())


def message_of(assignment: Assignment) -> AssignmentMessage:
    return AssignmentMessage(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic, partitions=tuple(sorted(numbers))) for topic, numbers in assignment.items()
        )
    )


def described_of(assignment: Assignment, names: Mapping[UUID, str]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=tuple(
            DescribedTopicPartitions(topic_id=topic, topic_name=names[topic], partitions=tuple(sorted(numbers)))
            for topic, numbers in assignment.items()
            if topic in names
        )
    )
