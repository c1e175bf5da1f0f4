"""Consumer groups for commands: the requests of Kafka's admin clients to the coordinator of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from local.errors import Conflict, InvalidRequest, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.serve.commands.client import Client
from tiered.serve.groups.coordinator_records import FieldReader
from tiered.serve.groups.lag import Owner, PartitionLag, SeenGroup
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
)
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tiered.serve.messages.groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tiered.serve.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LOAD_S, PAUSE_S = 60.0, 0.1
AT_ONCE = 100  # groups of a request
LATEST = -1
_CONSUMER = -1  # the replica id of a client
_LOADING = (Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE)
_KINDS: Mapping[int, type[LogError]] = {
    Error.GROUP_ID_NOT_FOUND: NotFound,
    Error.UNKNOWN_TOPIC_OR_PARTITION: NotFound,
    Error.UNKNOWN_MEMBER_ID: Conflict,
    Error.FENCED_MEMBER_EPOCH: Conflict,
    Error.STALE_MEMBER_EPOCH: Conflict,
    Error.NON_EMPTY_GROUP: Conflict,
    Error.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    Error.INVALID_GROUP_ID: InvalidRequest,
    Error.COORDINATOR_LOAD_IN_PROGRESS: Unavailable,
    Error.COORDINATOR_NOT_AVAILABLE: Unavailable,
}
T = TypeVar("T")


class GroupFacts(NamedTuple):
    """`type` is the protocol of a group, `state` Kafka's name."""

    type: str
    state: str
    members: int


class Member(NamedTuple):
    """A member of a group of the consumer protocol."""

    member_id: str
    epoch: int


NO_MEMBER = Member("", -1)  # of a group without members


def list_groups(client: Client) -> Sequence[ListedGroup]:
    def ask() -> tuple[int, Sequence[ListedGroup]]:
        response: ListGroupsResponse = client.call(Api.LIST_GROUPS, ListGroupsRequest())
        return response.error_code, response.groups

    return answered(ask, "cannot list the groups")


def describe_group(client: Client, group: str) -> GroupFacts:
    """Raises NotFound for an unknown group."""

    def ask() -> tuple[int, GroupFacts]:
        if not client.serves(Api.CONSUMER_GROUP_DESCRIBE):  # a node of an older version
            return ask_classic()
        request = ConsumerGroupDescribeRequest(group_ids=(group,))
        response: ConsumerGroupDescribeResponse = client.call(Api.CONSUMER_GROUP_DESCRIBE, request)
        (found,) = response.groups
        if found.error_code == Error.GROUP_ID_NOT_FOUND:
            return ask_classic()
        return found.error_code, GroupFacts("consumer", found.group_state, len(found.members))

    def ask_classic() -> tuple[int, GroupFacts]:
        response: DescribeGroupsResponse = client.call(Api.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=(group,)))
        (found,) = response.groups
        return found.error_code, GroupFacts("classic", found.group_state, len(found.members))

    facts = answered(ask, "cannot describe the group", group=group)
    if facts.state == "Dead":
        raise NotFound("the group does not exist", group=group)
    return facts


def group_offsets(client: Client, group: str) -> list[PartitionLag]:
    """Every committed offset of the group, by partition."""
    committed = committed_offsets(client, group)
    ends = find_offsets(client, dict.fromkeys(committed, LATEST), may_lack=True)
    return [
        PartitionLag(partition=name, committed=offset, end=ends.get(name)) for name, offset in sorted(committed.items())
    ]


def committed_offsets(client: Client, group: str) -> dict[TopicPartition, int]:

    def ask() -> tuple[int, OffsetFetchResponseGroup]:
        (found,) = _fetched(client.call, [group])
        return found.error_code, found

    response = answered(ask, "cannot read the offsets of a group", group=group)
    return _offsets_of(response, _topic_names(client.call))


def seen_groups(client: Client, *, timeout_s: float) -> list[SeenGroup]:
    """Every group with its committed offsets. No request takes longer than `timeout_s`.

    The offsets of a group are unknown if one response cannot hold them. Raises Unavailable while the coordinator loads.
    """
    call = partial(client.call, timeout_s=timeout_s)
    response: ListGroupsResponse = call(Api.LIST_GROUPS, ListGroupsRequest())
    if response.error_code != Error.NONE:
        raise error_of(response.error_code, "cannot list the groups")
    listed = {each.group_id: each for each in response.groups}
    topic_names = _topic_names(call)
    found = []
    for at in range(0, len(listed), AT_ONCE):
        names = list(listed)[at : at + AT_ONCE]
        new = {each for each in names if listed[each].group_type == "consumer"}
        request = DescribeGroupsRequest(groups=tuple(each for each in names if each not in new))
        classic: DescribeGroupsResponse = call(Api.DESCRIBE_GROUPS, request)
        described = [(each.group_id, each.error_code, _classic_owners(each.members)) for each in classic.groups]
        counts = {each.group_id: len(each.members) for each in classic.groups}
        if new:
            consumers: ConsumerGroupDescribeResponse = call(
                Api.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=tuple(sorted(new)))
            )
            described += [(each.group_id, each.error_code, _owners(each.members)) for each in consumers.groups]
            counts |= {each.group_id: len(each.members) for each in consumers.groups}
        owners = {group: found for group, error, found in described if error == Error.NONE}
        found += [
            SeenGroup(
                group=name,
                state=listed[name].group_state,
                members=counts[name] if name in owners else None,
                committed=committed,
                owners=owners.get(name, {}),
            )
            for name, committed in _committed(call, names, topic_names).items()
        ]
    return found


def _owners(members: Sequence[DescribedConsumer]) -> dict[TopicPartition, Owner]:
    return {
        TopicPartition(topic.topic_name, number): Owner(each.member_id, each.client_id, each.client_host)
        for each in members
        for topic in each.assignment.topic_partitions
        for number in topic.partitions
    }


def _classic_owners(members: Sequence[DescribedGroupMember]) -> dict[TopicPartition, Owner]:
    """Clients may have any assignment: one that is none of Kafka's consumers gives no owners."""
    found: dict[TopicPartition, Owner] = {}
    for each in members:
        owner = Owner(each.member_id, each.client_id, each.client_host)
        with suppress(LogError):
            found |= dict.fromkeys(assigned_partitions(each.member_assignment), owner)
    return found


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Source: kafka ``ConsumerProtocolAssignment.json``. Raises Corrupt, and InvalidRequest for an invalid name."""
    if not assignment:
        return []
    body = FieldReader(assignment, "cannot read the assignment of a member")
    body.number(2)
    found = []
    for _ in range(body.number(4)):
        topic = body.text()
        found += [TopicPartition(topic, body.number(4)) for _ in range(body.number(4))]
    return found


def _committed(
    call: Callable[..., Any], names: Sequence[str], topic_names: Mapping[UUID | None, str]
) -> dict[str, dict[TopicPartition, int] | None]:
    """The committed offsets of each group. None: one response cannot hold them, or an error of this group alone."""
    found: dict[str, dict[TopicPartition, int] | None] = {}
    while wanted := [each for each in names if each not in found]:
        before = len(found)
        for each in _fetched(call, wanted):
            if each.error_code in _LOADING:
                raise error_of(each.error_code, "cannot read the offsets of a group", group=each.group_id)
            if each.error_code == Error.NONE:
                found[each.group_id] = _offsets_of(each, topic_names)
            elif each.error_code != Error.POLICY_VIOLATION:
                found[each.group_id] = None
        if len(found) == before:  # the response is full without a group: the first one is too large by itself
            found[wanted[0]] = None
    return found


def _fetched(call: Callable[..., Any], names: Sequence[str]) -> Sequence[OffsetFetchResponseGroup]:
    groups = tuple(OffsetFetchRequestGroup(group_id=each) for each in names)
    response: OffsetFetchResponse = call(Api.OFFSET_FETCH, OffsetFetchRequest(group_id="", groups=groups))
    return response.groups


def _topic_names(call: Callable[..., Any]) -> dict[UUID | None, str]:
    response: MetadataResponse = call(Api.METADATA, MetadataRequest(topics=None))
    return {each.topic_id: each.name or "" for each in response.topics}


def _offsets_of(group: OffsetFetchResponseGroup, topic_names: Mapping[UUID | None, str]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name or topic_names[topic.topic_id], each.partition_index): each.committed_offset
        for topic in group.topics
        if topic.name or topic.topic_id in topic_names
        for each in topic.partitions
        if each.committed_offset >= 0
    }


def partitions_of(client: Client, topic: str) -> list[TopicPartition]:
    """Raises NotFound for an unknown topic."""
    (found,) = _metadata(client, [topic]).topics
    if found.error_code != Error.NONE:
        raise error_of(found.error_code, "topic not found", topic=topic)
    return [TopicPartition(topic, each.partition_index) for each in found.partitions]


def topic_ids(client: Client, topics: Sequence[str]) -> dict[str, UUID]:
    """By name, without unknown topics."""
    found = _metadata(client, topics).topics
    return {
        each.name: each.topic_id for each in found if each.name and each.topic_id is not None and not each.error_code
    }


def level_of(isolation: Isolation) -> int:
    return int(isolation is Isolation.READ_COMMITTED)


def find_offsets(
    client: Client,
    specs: Mapping[TopicPartition, int],
    *,
    may_lack: bool = False,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The offset of a time in ms or a code of ListOffsets; with `may_lack` without unknown partitions.

    A time after the newest record means the end, which is the last stable offset under READ_COMMITTED.
    """
    topics = tuple(
        ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                ListOffsetsPartition(partition_index=name.partition, timestamp=spec)
                for name, spec in specs.items()
                if name.topic == topic
            ),
        )
        for topic in sorted({name.topic for name in specs})
    )
    if not topics:
        return {}
    response: ListOffsetsResponse = client.call(
        Api.LIST_OFFSETS,
        ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=level_of(isolation), topics=topics),
    )
    found, after = {}, {}
    for topic in response.topics:
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            if each.error_code == Error.NONE and each.offset >= 0:
                found[name] = each.offset
            elif each.error_code == Error.NONE and specs[name] >= 0:
                after[name] = LATEST
            elif not may_lack:
                raise error_of(each.error_code, "cannot find an offset", partition=name)
    return found | (find_offsets(client, after, isolation=isolation) if after else {})


def find_targets(client: Client, targets: Sequence[tuple[str, int | None]], spec: int) -> dict[TopicPartition, int]:
    """As `find_offsets`, for partitions, and for topics (None) with all their partitions. Raises NotFound."""
    wanted = [each for topic, at in targets for each in partitions_of(client, topic) if at in (None, each.partition)]
    return find_offsets(client, dict.fromkeys(wanted, spec))


def commit_offsets(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, int],
    member: Member = NO_MEMBER,
    ids: Mapping[str, UUID] | None = None,
) -> None:
    """Commit for a member, or a group without members, durable on return. `ids` of the topics; None: those of now.

    Raises Conflict for a group with other members, and for a member that is not of this group any more.
    """
    ids = topic_ids(client, sorted({name.topic for name in offsets})) if ids is None else ids
    topics = tuple(
        OffsetCommitRequestTopic(
            name=topic,
            topic_id=ids.get(topic),
            partitions=tuple(
                OffsetCommitRequestPartition(partition_index=name.partition, committed_offset=offset)
                for name, offset in offsets.items()
                if name.topic == topic
            ),
        )
        for topic in sorted({name.topic for name in offsets})
    )

    def ask() -> tuple[int, None]:
        request = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=member.epoch, member_id=member.member_id, topics=topics
        )
        response: OffsetCommitResponse = client.call(Api.OFFSET_COMMIT, request)
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        return next((code for code in codes if code != Error.NONE), Error.NONE), None

    answered(ask, "cannot change the offsets, the group may have other members: stop its consumers", group=group)


def _metadata(client: Client, topics: Sequence[str]) -> MetadataResponse:
    request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=each) for each in topics))
    response: MetadataResponse = client.call(Api.METADATA, request)
    return response


def answered(ask: Callable[[], tuple[int, T]], attempt: str, **facts: object) -> T:
    """Ask until the coordinator has loaded, LOAD_S at most. Raises the error of its answer."""
    until_s = time.monotonic() + LOAD_S
    while True:
        code, found = ask()
        if code == Error.NONE:
            return found
        if code not in _LOADING or time.monotonic() >= until_s:
            raise error_of(code, attempt, **facts)
        time.sleep(PAUSE_S)


def error_of(code: int, attempt: str, **facts: object) -> LogError:
    name = code.name.lower() if isinstance(code, Error) else code
    return _KINDS.get(code, LogError)(attempt, **facts, error=name)
