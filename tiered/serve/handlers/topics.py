"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions (KIP-966).

Every topic of a request succeeds or fails on its own.

Order of the checks of a topic: duplicate name, valid name, existence, manual assignment, number of partitions,
replication factor, settings. Source: kafka `ReplicationControlManager`, `ControllerApis`,
`DescribeTopicPartitionsRequestHandler`, `KRaftMetadataCache.describeTopicResponse`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from local.errors import LogError
from tiered.serve.admin import Admin, CreatedTopic, NewTopic, Refused
from tiered.serve.handlers.changes import admin_of, failure_of, name_failure, run_changes
from tiered.serve.handlers.cluster import described_topic, missing_topic, topic_operations
from tiered.serve.handlers.service import Call, Service, error_of
from tiered.serve.messages.base import Error
from tiered.serve.messages.cluster import MetadataResponsePartition, MetadataResponseTopic
from tiered.serve.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    Cursor,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tiered.serve.record_source import INTERNAL_TOPICS, ServedTopic

PARTITIONS_PER_REQUEST_MAX = 10_000  # kafka `ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`
PARTITIONS_MAX = 2000  # of a description: kafka ``max.request.partition.size.limit``
METADATA_LOG = "__cluster_metadata"
_TOO_MANY = "Excessively large number of partitions per request."
_DUPLICATE = "Duplicate topic name."
_DEFAULT = -1


async def create_topics(service: Service, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    admin, known = admin_of(service), await service.topics()
    counts = Counter(each.name for each in request.topics)
    wanted = {each.name: each for each in request.topics}
    is_too_large = _requested_partitions(request.topics, admin) > PARTITIONS_PER_REQUEST_MAX
    checked: dict[str, NewTopic] = {}
    found: dict[str, CreatableTopicResult] = {}
    for name, topic in wanted.items():
        try:
            if is_too_large:
                raise Refused(Error.POLICY_VIOLATION, _TOO_MANY)
            if counts[name] > 1:
                raise Refused(Error.INVALID_REQUEST, _DUPLICATE)
            checked[name] = _checked(topic, known, service.broker_id)
        except Refused as refused:
            found[name] = _not_created(name, refused)
    create = partial(_create, admin, list(checked.values()), is_dry=request.validate_only)
    for created in await run_changes(service, [create] if checked else [], request.timeout_ms):
        if isinstance(created, Exception):
            found |= {name: _not_created(name, created) for name in checked}
        else:
            found |= dict(zip(checked, created, strict=True))
    return CreateTopicsResponse(topics=tuple(found[name] for name in wanted))


async def delete_topics(service: Service, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    wanted = (*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names))
    known, admin = await service.topics(), admin_of(service)
    names = Counter(_name_of(each, service.names_by_id) for each in wanted)
    found: dict[DeleteTopicState, DeletableTopicResult] = {}
    checked: dict[DeleteTopicState, tuple[str, UUID | None]] = {}
    for each in dict.fromkeys(wanted):
        try:
            name = _to_delete(each, known, service.names_by_id, names)
        except Refused as refused:
            found[each] = _not_deleted(each, refused)
        else:
            checked[each] = name, each.topic_id
    calls = [partial(admin.delete_topic, *each) for each in checked.values()]
    for each, deleted in zip(checked, await run_changes(service, calls, request.timeout_ms), strict=True):
        if isinstance(deleted, Exception):
            found[each] = _not_deleted(each, deleted)
        else:
            found[each] = DeletableTopicResult(name=checked[each][0], topic_id=deleted)
    return DeleteTopicsResponse(responses=tuple(found[each] for each in dict.fromkeys(wanted)))


async def create_partitions(service: Service, request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    known, admin = await service.topics(), admin_of(service)
    counts = Counter(each.name for each in request.topics)
    found: dict[str, CreatePartitionsTopicResult] = {}
    checked: list[CreatePartitionsTopic] = []
    added = sum(max(0, each.count - len(known[each.name].partitions)) for each in request.topics if each.name in known)
    for each in request.topics:
        try:
            if counts[each.name] > 1:
                raise Refused(Error.INVALID_REQUEST, _DUPLICATE)
            _check_more_partitions(each, known, service.broker_id)
            if added > PARTITIONS_PER_REQUEST_MAX:
                raise Refused(Error.POLICY_VIOLATION, _TOO_MANY)
            checked.append(each)
        except Refused as refused:
            error, message = failure_of(refused, each.name)
            found[each.name] = CreatePartitionsTopicResult(name=each.name, error_code=error, error_message=message)
    is_dry = request.validate_only
    calls = [partial(admin.add_partitions, each.name, each.count, validate_only=is_dry) for each in checked]
    for each, outcome in zip(checked, await run_changes(service, calls, request.timeout_ms), strict=True):
        error, message = failure_of(outcome, each.name) if isinstance(outcome, Exception) else (Error.NONE, None)
        found[each.name] = CreatePartitionsTopicResult(name=each.name, error_code=error, error_message=message)
    return CreatePartitionsResponse(results=tuple(found[name] for name in counts))


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


def _create(admin: Admin, topics: Sequence[NewTopic], *, is_dry: bool) -> list[CreatableTopicResult]:
    found = zip(topics, admin.create_topics(topics, validate_only=is_dry), strict=True)
    return [
        _not_created(new.name, each) if isinstance(each, Exception) else _created(new.name, each) for new, each in found
    ]


def _requested_partitions(topics: Sequence[CreatableTopic], admin: Admin) -> int:
    def count(topic: CreatableTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return admin.default_partitions if topic.num_partitions == _DEFAULT else max(0, topic.num_partitions)

    return sum(map(count, topics))


def _checked(topic: CreatableTopic, known: Mapping[str, ServedTopic], broker_id: int) -> NewTopic:
    if (failure := name_failure(topic.name)) is not None:
        raise Refused(*failure)
    if topic.name == METADATA_LOG:
        raise Refused(Error.INVALID_REQUEST, f"Creation of internal topic {METADATA_LOG} is prohibited.")
    if topic.name in known:
        raise Refused(Error.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    count: int | None = None if topic.num_partitions == _DEFAULT else topic.num_partitions
    if topic.assignments:
        count = _assigned(topic, broker_id)
    elif count is not None and count < 1:
        raise Refused(Error.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    elif topic.replication_factor < 1 and topic.replication_factor != _DEFAULT:
        wrong = "Replication factor must be larger than 0, or -1 to use the default value."
        raise Refused(Error.INVALID_REPLICATION_FACTOR, wrong)
    elif topic.replication_factor > 1:
        raise Refused(
            Error.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {topic.replication_factor} time(s): The target replication factor of "
            f"{topic.replication_factor} cannot be reached because only 1 broker(s) are registered.",
        )
    settings: dict[str, str] = {}
    for each in topic.configs:
        if each.value is None:
            raise Refused(Error.INVALID_CONFIG, f"Null value not supported for topic configs: {each.name}")
        settings[each.name] = each.value
    return NewTopic(name=topic.name, partitions=count, settings=settings)


def _assigned(topic: CreatableTopic, broker_id: int) -> int:
    """The number of partitions of a manual assignment."""
    for field, value in (("numPartitions", topic.num_partitions), ("replication factor", topic.replication_factor)):
        if value != _DEFAULT:
            wrong = f"A manual partition assignment was specified, but {field} was not set to -1."
            raise Refused(Error.INVALID_REQUEST, wrong)
    numbers = set[int]()
    for each in topic.assignments:
        if each.partition_index in numbers:
            wrong = f"Found multiple manual partition assignments for partition {each.partition_index}"
            raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, wrong)
        numbers.add(each.partition_index)
        check_replicas(each.broker_ids, broker_id)
    if numbers != set(range(len(numbers))):
        wrong = "partitions should be a consecutive 0-based integer sequence"
        raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, wrong)
    return len(numbers)


def check_replicas(brokers: Sequence[int], broker_id: int) -> None:
    wrong = None
    if not brokers:
        wrong = "The manual partition assignment includes an empty replica list."
    elif (unknown := next((each for each in brokers if each != broker_id), None)) is not None:
        wrong = f"The manual partition assignment includes broker {unknown}, but no such broker is registered."
    elif len(brokers) > 1:
        wrong = f"The manual partition assignment includes the broker {broker_id} more than once."
    if wrong is not None:
        raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, wrong)


def _check_more_partitions(topic: CreatePartitionsTopic, known: Mapping[str, ServedTopic], broker_id: int) -> None:
    if topic.name not in known:
        raise Refused(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' does not exist.")
    count = len(known[topic.name].partitions)
    if topic.count == count:
        raise Refused(Error.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if topic.count < count:
        wrong = f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be an increase."
        raise Refused(Error.INVALID_PARTITIONS, wrong)
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - count:
        wrong = (
            f"Attempted to add {topic.count - count} additional partition(s), but only {len(topic.assignments)} "
            "assignment(s) were specified."
        )
        raise Refused(Error.INVALID_REPLICA_ASSIGNMENT, wrong)
    for each in topic.assignments:
        check_replicas(each.broker_ids, broker_id)


def _name_of(topic: DeleteTopicState, names_by_id: Mapping[UUID, str]) -> str | None:
    return names_by_id.get(topic.topic_id) if topic.name is None and topic.topic_id is not None else topic.name


def _to_delete(
    topic: DeleteTopicState, known: Collection[str], names_by_id: Mapping[UUID, str], names: Mapping[str | None, int]
) -> str:
    name = _name_of(topic, names_by_id)
    if topic.name is not None and topic.topic_id is not None:
        raise Refused(Error.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if topic.name is None and topic.topic_id is None:
        raise Refused(Error.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is None or (topic.name is None and name not in known):
        raise Refused(Error.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if names[name] > 1:
        raise Refused(Error.INVALID_REQUEST, _DUPLICATE if topic.name is not None else "Duplicate topic id.")
    if name not in known:
        raise Refused(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
    if name in INTERNAL_TOPICS:
        raise Refused(Error.POLICY_VIOLATION, f"Topic '{name}' holds the state of groups or transactions.")
    return name


def _created(name: str, topic: CreatedTopic) -> CreatableTopicResult:
    configs = [
        CreatableTopicConfigs(name=each.name, value=each.value, read_only=each.is_read_only, config_source=each.source)
        for each in topic.settings
    ]
    return CreatableTopicResult(
        name=name,
        topic_id=topic.topic_id,
        num_partitions=topic.partition_count,
        replication_factor=1,
        configs=tuple(configs),
    )


def _not_created(name: str, why: Exception) -> CreatableTopicResult:
    error, message = failure_of(why, name)
    return CreatableTopicResult(name=name, error_code=error, error_message=message)


def _not_deleted(topic: DeleteTopicState, why: Exception) -> DeletableTopicResult:
    error, message = failure_of(why, topic.name or topic.topic_id)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error, error_message=message)


def _described(
    service: Service, known: Mapping[str, ServedTopic], name: str, start: int, room: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """The topic with at most `room` partitions from number `start` on, and the number of the next one."""
    topic, operations = known.get(name), topic_operations(service)
    if topic is None:
        error = missing_topic(name)
        missing = DescribeTopicPartitionsResponseTopic(
            name=name, error_code=error, topic_authorized_operations=operations
        )
        return missing, None
    numbers = [each for each in topic.partitions if each >= start]
    part = replace(topic, partitions=tuple(numbers[:room]))
    return _response(described_topic(service, part, operations)), numbers[room] if len(numbers) > room else None


def _response(topic: MetadataResponseTopic) -> DescribeTopicPartitionsResponseTopic:
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
