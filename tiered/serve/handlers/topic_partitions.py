"""DescribeTopicPartitions (KIP-966): the topics by name, with so many partitions that the client asked for.

Source: kafka `DescribeTopicPartitionsRequestHandler`, `KRaftMetadataCache.describeTopicResponse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from local.errors import LogError
from tiered.serve.handlers.cluster import TOPIC_OPERATIONS, described_topic, missing_topic
from tiered.serve.handlers.service import Call, Service, error_of
from tiered.serve.messages.base import Error
from tiered.serve.messages.cluster import MetadataResponsePartition, MetadataResponseTopic
from tiered.serve.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tiered.serve.record_source import ServedTopic

PARTITIONS_MAX = 2000  # kafka ``max.request.partition.size.limit``


async def describe_topic_partitions(
    service: Service, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    names = {each.name for each in request.topics}
    try:
        known = await service.topics()
    except LogError as error:
        code = error_of(error, "all")
        failed = [DescribeTopicPartitionsResponseTopic(name=name, error_code=code) for name in sorted(names)]
        return DescribeTopicPartitionsResponse(topics=tuple(failed))
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        return DescribeTopicPartitionsResponse(
            topics=tuple(
                DescribeTopicPartitionsResponseTopic(name=name, error_code=Error.INVALID_REQUEST)
                for name in sorted(names)
            )
        )
    wanted = sorted(names or known)
    if cursor is not None:
        wanted = [name for name in wanted if name >= cursor.topic_name]
    room = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    topics = list[DescribeTopicPartitionsResponseTopic]()
    for name in wanted:
        if room == 0:
            return DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        topic, next_index = _described(service, known, name, start, room)
        topics.append(topic)
        room -= len(topic.partitions)
        if next_index is not None:
            rest = Cursor(topic_name=name, partition_index=next_index)
            return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=rest)
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _described(
    service: Service, known: Mapping[str, ServedTopic], name: str, start: int, room: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """The topic with at most `room` partitions from number `start` on, and the number of the next one."""
    topic = known.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(name=name, error_code=missing_topic(name)), None
    numbers = [each for each in topic.partitions if each >= start]
    part = replace(topic, partitions=tuple(numbers[:room]))
    return _of(described_topic(service, part, TOPIC_OPERATIONS)), numbers[room] if len(numbers) > room else None


def _of(topic: MetadataResponseTopic) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partitions(topic.partitions)),
        topic_authorized_operations=topic.topic_authorized_operations,
    )


def _partitions(partitions: Iterable[MetadataResponsePartition]) -> Iterator[DescribeTopicPartitionsResponsePartition]:
    for each in partitions:
        yield DescribeTopicPartitionsResponsePartition(
            error_code=each.error_code,
            partition_index=each.partition_index,
            leader_id=each.leader_id,
            leader_epoch=each.leader_epoch,
            replica_nodes=each.replica_nodes,
            isr_nodes=each.isr_nodes,
            offline_replicas=each.offline_replicas,
        )
