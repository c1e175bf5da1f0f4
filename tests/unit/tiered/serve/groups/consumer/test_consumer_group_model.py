"""Clients of one group that join, beat, stall, crash, leave and change while time passes, topics change, stores fail.

The node has room for more members and partitions, or has none. A group may pause between two assignments.

Invariants: a partition has one owner at most, in the coordinator and among the clients that live; the group epoch never
falls; no epoch is above that of the group; a load from the log gives the same group; members that beat get the target
assignment, and all partitions together.
"""

from __future__ import annotations

import pytest
from consumer_world import SESSION_MS, ConsumerWorld, Peer, topics
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tiered.serve.groups.consumer import reservation
from tiered.serve.groups.group_states import GroupState

AT = st.integers(0, 4)
NAMES = st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "missing"), ()])


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(a=4, b=3)
        self.peers = [self.peer(at) for at in range(5)]
        self.epoch = self.count = 0
        self.beaten = [0] * 5  # the time of each client's last heartbeat

    def peer(self, at: int, name: str = "") -> Peer:
        fields = {"instance_id": f"i{at}"} if at % 2 else {}
        if at == 4:
            fields["subscribed_topic_regex"] = "a|b"
        return Peer(self.world, name or f"m{at}", *(() if at == 4 else ("a", "b")), **fields)

    @rule(at=AT, is_lost=st.booleans(), is_slow=st.booleans(), fails=st.sampled_from([False, False, False, True]))
    def beat(self, at: int, is_lost: bool, is_slow: bool, fails: bool) -> None:
        self.peers[at].beat(is_lost=is_lost, is_slow=is_slow, fails=fails)
        self.beaten[at] = self.world.now_ms

    @rule(at=AT, names=NAMES)
    def subscribe(self, at: int, names: tuple[str, ...]) -> None:
        self.peers[at].names = names
        self.peers[at].beat()
        self.beaten[at] = self.world.now_ms

    @rule(at=AT, is_for_now=st.booleans())
    def leave(self, at: int, is_for_now: bool) -> None:
        self.peers[at].leave(-2 if is_for_now and at % 2 else -1)

    @rule(at=AT)
    def restart(self, at: int) -> None:
        """A client comes back with another member id; the former one is a zombie that owns nothing."""
        self.count += 1
        names = self.peers[at].names
        self.peers[at] = self.peer(at, f"m{at}-{self.count}")
        self.peers[at].names = names

    @rule(ms=st.sampled_from([1, 5_000, 20_000, SESSION_MS, 2 * SESSION_MS]))
    def wait(self, ms: int) -> None:
        """A client whose session may have ended stops, as Kafka's do at `max.poll.interval.ms`."""
        self.world.advance(ms)
        for at, peer in enumerate(self.peers):
            if self.world.now_ms - self.beaten[at] >= SESSION_MS:
                peer.epoch, peer.owned, peer.assigned = 0, set(), set()

    @rule(a=st.integers(4, 6), has_b=st.booleans())
    def change_topics(self, a: int, has_b: bool) -> None:
        a = max(a, len(self.world.topics["a"].partitions))
        self.world.topics = topics(a=a, b=3) if has_b else topics(a=a)

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        self.world.is_full = is_full

    @rule()
    def crash(self) -> None:
        self.world.group = self.world.loaded()
        self.beaten = [self.world.now_ms] * 5

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        group = self.world.group
        owned = [
            (topic, number)
            for name in group.members
            for assignment in (group.current(name).assigned, group.current(name).revoking)
            for topic, numbers in assignment.items()
            for number in numbers
        ]
        assert len(owned) == len(set(owned))
        assert set(owned) == set(group._owners)

    @invariant()
    def epochs_rise(self) -> None:
        group = self.world.group
        assert self.epoch <= group.epoch
        assert group.assignment_epoch <= group.epoch
        assert all(group.current(each).epoch <= group.epoch for each in group.members)
        self.epoch = group.epoch

    @invariant()
    def a_load_gives_the_same_group(self) -> None:
        assert self.world.facts(self.world.loaded()) == self.world.facts()

    def teardown(self) -> None:
        """All come to rest: the clients that beat own everything that they subscribe to."""
        self.world.is_full = False
        for peer in self.peers:
            peer.names = ("a", "b") if "subscribed_topic_regex" not in peer.fields else ()
        for _ in range(20):
            self.world.advance(11_000)
            for peer in self.peers:
                peer.beat()
        group = self.world.group
        assert group.state is GroupState.STABLE, group.state
        owned = [each for peer in self.peers for each in peer.owned]
        total = sum(len(each.partitions) for each in self.world.topics.values())
        assert len(owned) == len(set(owned)) == total
        sizes = [len(each.owned) for each in self.peers]
        assert max(sizes) - min(sizes) <= 1


ConsumerGroups.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerGroups = ConsumerGroups.TestCase


class PausingConsumerGroups(ConsumerGroups):
    """The group computes an assignment each five seconds at most."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(reservation, "WORK_PER_MS", 0.001)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


PausingConsumerGroups.TestCase.settings = ConsumerGroups.TestCase.settings
TestPausingConsumerGroups = PausingConsumerGroups.TestCase
