"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from local.errors import LogError
from local.names import TopicPartition
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.committed import Committed
from tiered.serve.handlers.service import RESPONSE_BYTES_MAX, Call, Service, error_of, served_partition
from tiered.serve.messages.base import Error
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from tiered.serve.record_source import ServedTopic

_GROUPS_SINCE, _TOP_ERROR_SINCE = 8, 2  # versions of OffsetFetch
_ID_KNOWN_SINCE = 9  # version of OffsetCommit that knows GROUP_ID_NOT_FOUND
_MEMBERS_SINCE = 9  # version of OffsetFetch
_IDS_SINCE = 10  # version of OffsetCommit and OffsetFetch
_PARTITION_BYTES = 32  # of a response without metadata


async def offset_commit(service: Service, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    topics, failure = await _known(service)
    errors: list[list[Error]] = []
    offsets: list[NewOffset] = []
    for topic in request.topics:
        name = _name(service, topic.name, topic.topic_id, call.version)
        errors.append(found := [])
        for each in topic.partitions:
            partition = served_partition(topics, name, each.partition_index)
            found.append(failure or (Error.NONE if partition is not None else _missing(name)))
            if partition is not None:
                offsets.append(
                    NewOffset(
                        partition=partition,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.committed_metadata,
                        topic_id=topic.topic_id,
                        expire_after_ms=request.retention_time_ms if request.retention_time_ms >= 0 else None,
                    )
                )
    results = iter(await _commit(service, request, offsets, call.version) if offsets else ())
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=_results(topic, found, results)
            )
            for topic, found in zip(request.topics, errors, strict=True)
        )
    )


async def offset_fetch(service: Service, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    if call.version >= _IDS_SINCE:
        await service.topics()
    groups = request.groups
    if call.version < _GROUPS_SINCE:
        topics = (
            None
            if request.topics is None
            else tuple(
                OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
                for each in request.topics
            )
        )
        groups = (OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),)
    found: list[OffsetFetchResponseGroup] = []
    size_bytes = 0
    for each in dict.fromkeys(groups):
        if size_bytes <= RESPONSE_BYTES_MAX:
            fetched = _fetched(service, each, call.version, require_stable=request.require_stable)
            size_bytes += sum(map(_size_of, fetched.topics))
        if size_bytes > RESPONSE_BYTES_MAX:
            fetched = OffsetFetchResponseGroup(group_id=each.group_id, error_code=Error.POLICY_VIOLATION)
        found.append(fetched)
    if call.version >= _GROUPS_SINCE:
        return OffsetFetchResponse(groups=tuple(found))
    (one,) = found
    if one.error_code and call.version < _TOP_ERROR_SINCE:
        (group,) = groups
        return OffsetFetchResponse(topics=tuple(_failed(each, one.error_code) for each in group.topics or ()))
    return OffsetFetchResponse(topics=one.topics, error_code=one.error_code)


async def offset_delete(service: Service, request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
    topics, failure = await _known(service)
    wanted = [
        [
            (each.partition_index, served_partition(topics, topic.name, each.partition_index))
            for each in topic.partitions
        ]
        for topic in request.topics
    ]
    served = [partition for of_topic in wanted for _, partition in of_topic if partition is not None]
    deleted = await service.coordinator.delete_offsets(request.group_id, served)
    if isinstance(deleted, Error):
        return OffsetDeleteResponse(error_code=deleted)
    missing = failure or Error.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=number, error_code=missing if partition is None else deleted[partition]
                    )
                    for number, partition in of_topic
                ),
            )
            for topic, of_topic in zip(request.topics, wanted, strict=True)
        )
    )


async def _commit(
    service: Service, request: OffsetCommitRequest, offsets: Sequence[NewOffset], version: int
) -> list[Error]:
    committer = Committer(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    return await service.coordinator.commit(committer, offsets, is_id_known=version >= _ID_KNOWN_SINCE)


def _results(
    topic: OffsetCommitRequestTopic, errors: Iterable[Error], results: Iterator[Error]
) -> tuple[OffsetCommitResponsePartition, ...]:
    """The partitions with their own error, or the next result of the coordinator."""
    return tuple(
        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error or next(results))
        for each, error in zip(topic.partitions, errors, strict=True)
    )


def _fetched(
    service: Service, group: OffsetFetchRequestGroup, version: int, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    groups = service.coordinator
    if error := groups.loading():
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    if version >= _MEMBERS_SINCE and (error := groups.check_fetch(group.group_id, group.member_id, group.member_epoch)):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    committed = groups.offsets_of(group.group_id)
    wanted = _all_topics(service, committed, version) if group.topics is None else group.topics
    topics = []
    for topic in wanted:
        name = _name(service, topic.name, topic.topic_id, version)
        if name is None:
            topics.append(_failed(topic, Error.UNKNOWN_TOPIC_ID))
            continue
        partitions = []
        for number in topic.partition_indexes:
            where = TopicPartition(name, number)
            is_unstable = require_stable and groups.is_unstable(group.group_id, where)
            partitions.append(_offset(number, committed.get(where), is_unstable=is_unstable))
        topics.append(OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)))
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(topics))


def _size_of(topic: OffsetFetchResponseTopic) -> int:
    return len(topic.name or "") + sum(_PARTITION_BYTES + len(each.metadata or "") for each in topic.partitions)


def _offset(number: int, found: Committed | None, *, is_unstable: bool) -> OffsetFetchResponsePartition:
    if is_unstable:
        return OffsetFetchResponsePartition(partition_index=number, error_code=Error.UNSTABLE_OFFSET_COMMIT)
    if found is None:
        return OffsetFetchResponsePartition(partition_index=number)
    return OffsetFetchResponsePartition(
        partition_index=number,
        committed_offset=found.value.offset,
        committed_leader_epoch=found.value.leader_epoch,
        metadata=found.value.metadata,
    )


def _all_topics(
    service: Service, committed: Mapping[TopicPartition, Committed], version: int
) -> Iterator[OffsetFetchRequestTopics]:
    """The topics with committed offsets; those without an id are left out where ids name topics."""
    numbers: dict[str, list[int]] = {}
    for where in committed:
        numbers.setdefault(where.topic, []).append(where.partition)
    known = service.known_topics or {}
    for name, partitions in numbers.items():
        topic = known.get(name)
        topic_id = topic.topic_id if topic is not None else None
        if version < _IDS_SINCE or topic_id is not None:
            yield OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=tuple(sorted(partitions)))


def _failed(topic: OffsetFetchRequestTopics, error: Error) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(partition_index=each, error_code=error) for each in topic.partition_indexes
    ]
    return OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions))


async def _known(service: Service) -> tuple[Mapping[str, ServedTopic], Error]:
    try:
        return await service.topics(), Error.NONE
    except LogError as error:
        error_of(error, "all")
        return {}, Error.COORDINATOR_NOT_AVAILABLE


def _name(service: Service, name: str | None, topic_id: UUID | None, version: int) -> str | None:
    if version < _IDS_SINCE:
        return name
    return service.names_by_id.get(topic_id) if topic_id is not None else None


def _missing(name: str | None) -> Error:
    return Error.UNKNOWN_TOPIC_ID if name is None else Error.UNKNOWN_TOPIC_OR_PARTITION
