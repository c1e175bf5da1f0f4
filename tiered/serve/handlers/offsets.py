"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from local.errors import LogError
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.serve.handlers.service import Call, Service, epoch_error, error_of, served_partition
from tiered.serve.messages.base import Error
from tiered.serve.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tiered.serve.record_source import Bounds, ServedTopic

LATEST, EARLIEST = -1, -2
# The first version of ListOffsets that knows a code. Source: KIP-734, KIP-405, KIP-1005, KIP-1023.
_SINCE: Mapping[int, int] = {LATEST: 0, EARLIEST: 0, -3: 7, -4: 8, -5: 9, -6: 11}
_NEVER = 1 << 15


def isolation_of(level: int) -> Isolation:
    return Isolation.READ_COMMITTED if level == 1 else Isolation.READ_UNCOMMITTED


async def list_offsets(service: Service, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """A partition that the request names twice is an error, once. Source: kafka `ListOffsetsRequest`."""
    topics, failure = await _known(service)
    isolation = isolation_of(request.isolation_level)
    counts = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    found = []
    for topic in request.topics:
        once = [each for each in topic.partitions if counts[topic.name, each.partition_index] == 1]
        twice = {each.partition_index for each in topic.partitions if counts[topic.name, each.partition_index] > 1}
        wrong = [
            ListOffsetsPartitionResponse(partition_index=number, error_code=Error.INVALID_REQUEST) for number in twice
        ]
        searches = (_offset(service, topics, failure, topic.name, each, isolation, call.version) for each in once)
        partitions = (*await asyncio.gather(*searches), *wrong)
        found.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=tuple(found))


async def offset_for_leader_epoch(
    service: Service, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    topics, failure = await _known(service)
    found = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(
                await asyncio.gather(
                    *(_end_of_epoch(service, topics, failure, topic.topic, each) for each in topic.partitions)
                )
            ),
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=tuple(found))


def end_of_epoch(epochs: Sequence[tuple[int, int]], end: int, requested: int) -> tuple[int, int] | None:
    """(largest epoch up to `requested`, its end offset) in a log that ends at `end`; None if Kafka knows none.

    Source: kafka `LeaderEpochFileCache.endOffsetFor`.
    """
    if not epochs or requested < 0:
        return None
    if requested == epochs[-1][0]:
        return requested, end
    above = next((start for epoch, start in epochs if epoch > requested), None)
    if above is None:
        return None
    below: Iterable[int] = (epoch for epoch, _ in reversed(epochs) if epoch <= requested)
    return next(iter(below), requested), above


async def _known(service: Service) -> tuple[Mapping[str, ServedTopic], Error]:
    try:
        return await service.topics(), Error.UNKNOWN_TOPIC_OR_PARTITION
    except LogError as error:
        error_of(error, "all")
        return {}, Error.KAFKA_STORAGE_ERROR


async def _offset(
    service: Service,
    topics: Mapping[str, ServedTopic],
    failure: Error,
    topic: str,
    requested: ListOffsetsPartition,
    isolation: Isolation,
    version: int,
) -> ListOffsetsPartitionResponse:
    number, spec = requested.partition_index, requested.timestamp
    if spec < 0 and version < _SINCE.get(spec, _NEVER):
        return ListOffsetsPartitionResponse(partition_index=number, error_code=Error.UNSUPPORTED_VERSION)
    partition = served_partition(topics, topic, number)
    if partition is None:
        return ListOffsetsPartitionResponse(partition_index=number, error_code=failure)
    try:
        bounds = await _bounds(service, partition)
        error = epoch_error(requested.current_leader_epoch, bounds)
        if error is not Error.NONE:
            return ListOffsetsPartitionResponse(partition_index=number, error_code=error)
        find = partial(service.source.find_offset, partition, spec, isolation)
        found = await service.call(partition, ("find", partition, spec, isolation), find)
    except Exception as error:  # noqa: BLE001 - one partition must not fail the others
        return ListOffsetsPartitionResponse(partition_index=number, error_code=error_of(error, partition))
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=number)
    return ListOffsetsPartitionResponse(
        partition_index=number,
        timestamp=-1 if found.timestamp_ms is None else found.timestamp_ms,
        offset=found.offset,
        leader_epoch=-1 if found.leader_epoch is None else found.leader_epoch,
    )


async def _end_of_epoch(
    service: Service,
    topics: Mapping[str, ServedTopic],
    failure: Error,
    topic: str,
    requested: OffsetForLeaderPartition,
) -> EpochEndOffset:
    number = requested.partition
    partition = served_partition(topics, topic, number)
    if partition is None:
        return EpochEndOffset(partition=number, error_code=failure)
    try:
        bounds = await _bounds(service, partition)
        error = epoch_error(requested.current_leader_epoch, bounds)
        if error is not Error.NONE:
            return EpochEndOffset(partition=number, error_code=error)
        epochs = await service.call(partition, ("epochs", partition), partial(service.source.epochs, partition))
    except Exception as error:  # noqa: BLE001 - one partition must not fail the others
        return EpochEndOffset(partition=number, error_code=error_of(error, partition))
    found = end_of_epoch(epochs, bounds.high_watermark, requested.leader_epoch)
    if found is None:
        return EpochEndOffset(partition=number)
    return EpochEndOffset(partition=number, leader_epoch=found[0], end_offset=found[1])


async def _bounds(service: Service, partition: TopicPartition) -> Bounds:
    return await service.call(partition, ("bounds", partition), partial(service.source.bounds, partition))
