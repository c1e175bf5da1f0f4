"""Partitions of members: what requests say, what responses show. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from tiered.serve.groups.consumer.records import Assignment, Current, MemberMetadata
from tiered.serve.groups.members import Client
from tiered.serve.messages.consumer_groups import Assignment as AssignmentMessage
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    DescribedAssignment,
    DescribedTopicPartitions,
    TopicPartitions,
)
from tiered.serve.record_source import ServedTopic

_HASH_BYTES = 8


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


def without_overlaps(targets: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Each partition belongs to the first member that has it."""
    taken: set[tuple[UUID, int]] = set()
    found: dict[str, Assignment] = {}
    for name, target in targets.items():
        free = {topic: frozenset(n for n in numbers if (topic, n) not in taken) for topic, numbers in target.items()}
        found[name] = {topic: numbers for topic, numbers in free.items() if numbers}
        taken.update((topic, number) for topic, numbers in free.items() for number in numbers)
    return found


def hash_of(topics: Sequence[ServedTopic]) -> int:
    """Of the metadata of topics; 0 for none."""
    text = "\n".join(f"{each.name} {each.topic_id} {len(each.partitions)}" for each in topics)
    digest = hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
    return (int.from_bytes(digest, "big", signed=True) or 1) if topics else 0


def updated_by(before: MemberMetadata, request: ConsumerGroupHeartbeatRequest, client: Client) -> MemberMetadata:
    """The member with the fields that the request has."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=before.topics if names is None else tuple(sorted(set(names))),
        regex=before.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
    )
