"""Clients of one group that join, sync, beat, leave, crash and restart while time passes and stores fail.

Invariants: each request has at most one answer; a group that is not empty has one leader among its members; every
member of a stable group has the assignment that the leader gave it for its generation; a commit of an earlier
generation is refused; a group always ends a rebalance by itself.
"""

from __future__ import annotations

from typing import Any

from group_world import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupWorld, protocols, subscription
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import MemberIdentity

CLIENTS = st.integers(0, 4)
MAX_SIZE = 4


class Peer:
    """One client: what it knows of its membership, and its requests without an answer."""

    def __init__(self, at: int) -> None:
        self.instance = f"i{at}" if at % 2 else None
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.members: list[str] = []
        self.joining: int | None = None
        self.syncing: int | None = None

    @property
    def named(self) -> dict[str, Any]:
        return {"group_instance_id": self.instance}


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=MAX_SIZE))
        self.peers = [Peer(at) for at in range(5)]
        self.given: dict[int, dict[str, bytes]] = {}  # generation: the leader's assignment
        self.refused: set[tuple[str, int]] = set()
        self.count = 0

    @rule(at=CLIENTS, version=st.sampled_from([3, 5, 8, 9]), topics=st.sampled_from(["a", "b"]))
    def join(self, at: int, version: int, topics: str) -> None:
        peer = self.peers[at]
        if peer.instance is not None:
            version = max(version, 5)
        given = protocols("range", "sticky", metadata=subscription(topics))
        peer.syncing = None
        peer.joining = self.world.join(peer.member_id, version, protocols=given, **peer.named)
        self.receive()

    @rule(at=CLIENTS)
    @precondition(lambda self: any(each.generation >= 0 for each in self.peers))
    def sync(self, at: int) -> None:
        peer = self.peers[at]
        if peer.generation < 0 or peer.joining is not None:
            return
        given = {}
        if peer.is_leader:
            self.count += 1
            given = {each: b"%d for %s" % (self.count, each.encode()) for each in peer.members}
            if self.world.group.generation == peer.generation and self.world.group.state is (
                GroupState.COMPLETING_REBALANCE
            ):
                self.given.setdefault(peer.generation, given)
        peer.syncing = self.world.sync(peer.member_id, given, generation=peer.generation, **peer.named)
        self.receive()

    @rule(at=CLIENTS)
    def beat(self, at: int) -> None:
        peer = self.peers[at]
        error = self.world.beat(peer.member_id, peer.generation, **peer.named)
        if error in (Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID):
            peer.member_id, peer.generation = "", -1
        self.receive()

    @rule(at=CLIENTS)
    def leave(self, at: int) -> None:
        peer = self.peers[at]
        self.world.leave(MemberIdentity(member_id=peer.member_id, group_instance_id=peer.instance))
        self.receive()
        peer.__init__(at)  # type: ignore[misc]

    @rule(at=CLIENTS)
    def crash(self, at: int) -> None:
        """It forgets everything; its requests stay at the coordinator."""
        self.peers[at].__init__(at)  # type: ignore[misc]

    @rule(ms=st.sampled_from([1, DELAY_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def wait(self, ms: int) -> None:
        self.world.advance(ms)
        self.receive()

    @rule(holds=st.booleans())
    def hold_stores(self, holds: bool) -> None:
        self.world.holds = holds
        if not holds:
            self.finish_stores(Error.NONE)

    @rule(error=st.sampled_from([Error.NONE, Error.NONE, Error.NOT_COORDINATOR]))
    def finish_stores(self, error: Error) -> None:
        self.world.store(error)
        self.receive()

    def receive(self) -> None:
        """Deliver the answers."""
        for peer in self.peers:
            if peer.joining in self.world.answers:
                found = self.world.join_answer(peer.joining)  # type: ignore[arg-type]
                peer.joining = None
                if found.error_code in (Error.NONE, Error.MEMBER_ID_REQUIRED):
                    peer.member_id = found.member_id
                elif found.error_code in (Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID):
                    peer.member_id, peer.generation = "", -1
                if not found.error_code:
                    peer.generation, peer.is_leader = found.generation_id, found.leader == found.member_id
                    peer.is_leader = peer.is_leader and not found.skip_assignment
                    peer.members = [each.member_id for each in found.members]
            if peer.syncing in self.world.answers:
                answer = self.world.sync_answer(peer.syncing)  # type: ignore[arg-type]
                peer.syncing = None
                if not answer.error_code and peer.member_id in self.given.get(peer.generation, {}):
                    assert answer.assignment == self.given[peer.generation][peer.member_id]

    @invariant()
    def a_group_has_one_leader(self) -> None:
        group = self.world.group
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert group.roster.leader in group.members
            assert group.protocol in group.roster.common_protocols()
            names = [{each.name for each in member.protocols} for member in group.members.values()]
            assert group.roster.common_protocols() == set.intersection(*names)
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert len(group.members) <= 2 * MAX_SIZE

    @invariant()
    def members_have_the_assignment_of_their_leader(self) -> None:
        group = self.world.group
        if group.state is GroupState.STABLE and group.generation in self.given:
            given = self.given[group.generation]
            for name, each in group.members.items():
                assert name not in given or each.assignment == given[name]

    @invariant()
    def earlier_generations_commit_nothing(self) -> None:
        group = self.world.group
        for peer in self.peers:
            if 0 <= peer.generation < group.generation:
                assert group.check_commit(peer.generation, peer.member_id, peer.instance)

    @invariant()
    def an_open_rebalance_has_a_deadline(self) -> None:
        group = self.world.group
        if group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            assert group.next_deadline_ms is not None

    def teardown(self) -> None:
        """Without requests every group becomes empty, and every request has its answer."""
        self.world.holds = False
        self.world.store()
        for _ in range(10):
            self.world.advance(10 * REBALANCE_MS)
        assert self.world.group.is_idle
        assert self.world.answers.keys() == set(range(next(self.world.waiters)))


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
