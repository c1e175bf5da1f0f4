"""What commands show of a group, by the answers of a coordinator to the requests of both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from local.errors import NotFound, Unavailable
from local.names import TopicPartition
from tiered.serve.commands.client import Client
from tiered.serve.groups.lag import Owner
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import MetadataResponse
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from tiered.serve.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from tiered.serve.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from tiered.serve.node import group_calls
from tiered.serve.node.group_calls import GroupFacts, describe_group, seen_groups

MODERN = DescribedConsumerGroup(group_id="g", group_state="Stable", members=(DescribedConsumer(member_id="one"),))
MISSING = DescribedConsumerGroup(group_id="g", error_code=Error.GROUP_ID_NOT_FOUND)


class Coordinator(Client):
    def __init__(self, modern: DescribedConsumerGroup, classic: DescribedGroup | None = None) -> None:
        self.is_old = False
        self.answers = {
            Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeResponse(groups=(modern,)),
            Api.DESCRIBE_GROUPS: DescribeGroupsResponse(groups=() if classic is None else (classic,)),
        }

    def serves(self, api: int) -> bool:
        return not (self.is_old and api == Api.CONSUMER_GROUP_DESCRIBE)

    def call(self, api: Any, request: object, *_: object, **__: object) -> Any:
        return self.answers[api]


def test_a_group_is_of_the_protocol_that_knows_it() -> None:
    assert describe_group(Coordinator(MODERN), "g") == GroupFacts("consumer", "Stable", 1)
    classic = DescribedGroup(group_id="g", group_state="Empty")
    assert describe_group(Coordinator(MISSING, classic), "g") == GroupFacts("classic", "Empty", 0)
    old = Coordinator(MODERN, classic)
    old.is_old = True
    assert describe_group(old, "g") == GroupFacts("classic", "Empty", 0)


def test_a_group_that_neither_knows_is_not_found() -> None:
    for state, error in (("Dead", Error.NONE), ("Dead", Error.GROUP_ID_NOT_FOUND)):
        with pytest.raises(NotFound):
            describe_group(Coordinator(MISSING, DescribedGroup(group_id="g", group_state=state, error_code=error)), "g")


class Sized(Client):
    """A coordinator whose responses hold ROOM bytes of offsets. Each group has the given size."""

    ROOM = 10

    def __init__(self, **sizes: int) -> None:
        self.sizes, self.error, self.times_s = sizes, Error.NONE, set[float]()

    def call(self, api: Any, request: object, *, timeout_s: float = 60.0) -> Any:
        self.times_s.add(timeout_s)
        if api == Api.OFFSET_FETCH:
            assert isinstance(request, OffsetFetchRequest)
            return OffsetFetchResponse(groups=tuple(self._offsets([each.group_id for each in request.groups])))
        listed = tuple(ListedGroup(group_id=each, group_state="Empty", group_type="classic") for each in self.sizes)
        return {
            Api.LIST_GROUPS: ListGroupsResponse(groups=listed, error_code=self.error),
            Api.METADATA: MetadataResponse(brokers=(), topics=()),
            Api.DESCRIBE_GROUPS: DescribeGroupsResponse(groups=tuple(DescribedGroup(group_id=g) for g in self.sizes)),
        }[api]

    def _offsets(self, names: list[str]) -> Iterator[OffsetFetchResponseGroup]:
        used = 0
        for name in names:
            used += self.sizes[name]
            if used > self.ROOM:
                yield OffsetFetchResponseGroup(group_id=name, error_code=Error.POLICY_VIOLATION)
                continue
            at = (OffsetFetchResponsePartition(partition_index=0, committed_offset=self.sizes[name]),)
            yield OffsetFetchResponseGroup(group_id=name, topics=(OffsetFetchResponseTopic(name="t", partitions=at),))


def test_a_group_that_no_response_can_hold_is_unknown_and_the_others_are_read() -> None:
    found = {each.group: each.committed for each in seen_groups(Sized(a=6, b=6, c=99, d=3, e=3), timeout_s=1)}
    t0 = TopicPartition("t", 0)
    assert found == {"a": {t0: 6}, "b": {t0: 6}, "c": None, "d": {t0: 3}, "e": {t0: 3}}


def assignment(**partitions: list[int]) -> bytes:
    """Source: kafka ``ConsumerProtocolAssignment.json``, version 3."""
    topics = b"".join(
        len(name).to_bytes(2)
        + name.encode()
        + len(numbers).to_bytes(4)
        + b"".join(each.to_bytes(4) for each in numbers)
        for name, numbers in partitions.items()
    )
    return (3).to_bytes(2) + len(partitions).to_bytes(4) + topics + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (assignment(t=[0, 2], u=[1]), {TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)}),
        (assignment(), set()),
        (b"", set()),
        (assignment(t=[0, 2])[:-9], set()),
        ((3).to_bytes(2) + b"\x7f\xff\xff\xff", set()),
        (b"connect", set()),
    ],
)
def test_a_member_owns_the_partitions_of_its_assignment_if_it_is_one_of_kafkas(
    found: bytes, expected: set[TopicPartition]
) -> None:
    member = DescribedGroupMember(member_id="m", client_id="app", client_host="/10.0.0.7", member_assignment=found)

    class One(Sized):
        def call(self, api: Any, request: object, *, timeout_s: float = 60.0) -> Any:
            if api == Api.DESCRIBE_GROUPS:
                return DescribeGroupsResponse(groups=(DescribedGroup(group_id="g", members=(member,)),))
            return super().call(api, request, timeout_s=timeout_s)

    (group,) = seen_groups(One(g=1), timeout_s=1)
    assert group.members == 1
    assert group.owners == dict.fromkeys(expected, Owner("m", "app", "/10.0.0.7"))


def test_status_does_not_wait_for_a_coordinator_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seconds: float) -> None:
        raise AssertionError("a wait")

    monkeypatch.setattr(group_calls.time, "sleep", fail)
    coordinator = Sized(a=1)
    coordinator.error = Error.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(Unavailable):
        seen_groups(coordinator, timeout_s=1)
    coordinator.error = Error.NONE
    seen_groups(coordinator, timeout_s=1)
    assert coordinator.times_s == {1}
