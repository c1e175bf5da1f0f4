"""Simulated clients of a group of the consumer protocol, a clock that the test moves, and what is stored."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any
from uuid import UUID

from tiered.serve.groups.consumer.fencing import Refused
from tiered.serve.groups.consumer.group import Beaten, ConsumerGroup
from tiered.serve.groups.consumer.records import ConsumerKey, ConsumerValue
from tiered.serve.groups.consumer.regexes import Resolution
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Moment
from tiered.serve.groups.members import Client
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from tiered.serve.record_source import ServedTopic

CLIENT = Client(client_id="tester", host="/10.0.0.1")
SESSION_MS, REBALANCE_MS, WALL_MS = 45_000, 60_000, 1_700_000_000_000
SETTINGS = GroupSettings(consumer_max_size=5)
Owned = set[tuple[UUID, int]]


def topics(**counts: int) -> dict[str, ServedTopic]:
    """The id of a topic follows from its name."""
    return {
        name: ServedTopic(name=name, topic_id=id_of(name), partitions=tuple(range(number)))
        for name, number in counts.items()
    }


def id_of(name: str) -> UUID:
    return UUID(bytes=name.encode()[:16].ljust(16, b"\0"))


def partitions_of(owned: Owned) -> tuple[TopicPartitions, ...]:
    found: dict[UUID, list[int]] = {}
    for topic, number in sorted(owned):
        found.setdefault(topic, []).append(number)
    return tuple(TopicPartitions(topic_id=topic, partitions=tuple(each)) for topic, each in found.items())


def joining(member_id: str, *names: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    given = {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": names,
        "topic_partitions": (),
        **fields,
    }
    return ConsumerGroupHeartbeatRequest(**given)


class ConsumerWorld:
    """`stored` are the records of the group, as a load finds them."""

    def __init__(self, settings: GroupSettings = SETTINGS, **counts: int) -> None:
        self.topics = topics(**(counts or {"six": 6}))
        self.ids = count(1)
        self.settings = settings
        self.is_full = False
        self.group = ConsumerGroup("g", settings, lambda: f"new-{next(self.ids)}", self.has_room)
        self.stored: dict[ConsumerKey, ConsumerValue] = {}
        self.now_ms = 0

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, WALL_MS + self.now_ms)

    def has_room(self, size_bytes: int) -> bool:
        return not self.is_full

    def request(self, request: ConsumerGroupHeartbeatRequest, *, fails: bool = False) -> Beaten:
        """Raises Refused. With `fails` the changes are not stored and taken back."""
        found = self.group.heartbeat(request, CLIENT, self.topics, self.now)
        self.store(fails=fails)
        return found

    def error(self, request: ConsumerGroupHeartbeatRequest) -> Error:
        """The error of a refused request, which changes nothing."""
        before = self.facts()
        try:
            self.request(request)
        except Refused as refused:
            assert self.facts() == before
            assert not self.group.changes
            return refused.code
        return Error.NONE

    def store(self, *, fails: bool = False) -> None:
        changes = self.group.take_changes()
        if fails:
            self.group.revert(changes, self.now)
            return
        for key, value, _ in changes:
            assert isinstance(key, ConsumerKey)
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def advance(self, ms: int) -> None:
        end = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= end:
            self.now_ms = max(self.now_ms, due_ms)
            self.group.advance(self.topics, self.now)
            self.store()
        self.now_ms = end

    def resolve(self, found: Beaten) -> None:
        """What the coordinator does with the regular expressions of a heartbeat."""
        if found.regexes:
            self.group.resolved(_resolve(found.regexes, self.topics), self.topics, self.now)
            self.store()

    def loaded(self) -> ConsumerGroup:
        return ConsumerGroup.loaded("g", self.stored, self.settings, str, self.now, self.has_room)

    def facts(self, group: ConsumerGroup | None = None) -> tuple[object, ...]:
        """The state of a group, for comparisons."""
        group = group or self.group
        currents = {each: group.current(each) for each in group.members}
        return (
            group.state,
            group.epoch,
            group.assignment_epoch,
            dict(group.members),
            dict(group.targets),
            dict(group.regexes),
            dict(group.static),
            currents,
            dict(group._owners),
            (group._metadata_bytes, group._assigned_bytes),
        )


class Peer:
    """One client: what it knows and owns. It revokes before it reports, and acquires what a response assigns."""

    def __init__(self, world: ConsumerWorld, member_id: str, *names: str, **fields: Any) -> None:
        self.world, self.member_id, self.names, self.fields = world, member_id, names, fields
        self.epoch = 0
        self.owned: Owned = set()
        self.assigned: Owned = set()

    def beat(self, *, is_lost: bool = False, is_slow: bool = False, fails: bool = False) -> Error:
        """`is_slow`: it continues to own what it must revoke. `is_lost`: it has no response."""
        named = {"instance_id": self.fields["instance_id"]} if "instance_id" in self.fields else {}
        if not self.epoch:
            self.owned.clear()
            request = joining(self.member_id, *self.names, **self.fields)
        else:
            if not is_slow:
                self.owned &= self.assigned
            request = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=REBALANCE_MS,
                topic_partitions=partitions_of(self.owned),
                subscribed_topic_names=self.names,
                **named,
            )
        try:
            found = self.world.request(request, fails=fails)
        except Refused as refused:
            if refused.code in (Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID, Error.GROUP_MAX_SIZE_REACHED):
                self.epoch, self.owned, self.assigned = 0, set(), set()
            return refused.code
        if is_lost or fails:
            return Error.NONE
        self.world.resolve(found)
        response = found.response
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = {
                (each.topic_id, number)
                for each in response.assignment.topic_partitions
                if each.topic_id is not None
                for number in each.partitions
            }
        self.owned |= self.assigned
        return Error.NONE

    def leave(self, epoch: int = -1) -> Error:
        named = {"instance_id": self.fields["instance_id"]} if "instance_id" in self.fields else {}
        error = self.world.error(
            ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.member_id, member_epoch=epoch, **named)
        )
        self.epoch, self.owned, self.assigned = 0, set(), set()
        return error


def _resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    resolution = Resolution(patterns, names)
    while (found := resolution.step()) is None:
        pass
    return found
