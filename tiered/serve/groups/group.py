"""One group of Kafka's classic protocol as a state machine. No I/O: events and a moment in, outputs and deadlines out.

    EMPTY -> PREPARING_REBALANCE -> COMPLETING_REBALANCE -> STABLE -> PREPARING_REBALANCE ...
    DEAD: the group was deleted.

| state | JoinGroup | SyncGroup | Heartbeat | leaves by |
|---|---|---|---|---|
| EMPTY | new members | UNKNOWN_MEMBER_ID | UNKNOWN_MEMBER_ID | the first member |
| PREPARING_REBALANCE | waits | REBALANCE_IN_PROGRESS | REBALANCE_IN_PROGRESS | all members joined, or the deadline |
| COMPLETING_REBALANCE | a change: rebalance | waits for the leader | alive | the leader's assignment is durable |
| STABLE | the leader or a change: rebalance | the assignment | alive | a member joins, leaves or is silent |

Every member waits at most once for a join and once for a sync. An event leaves its results in `outputs`:

| output | the coordinator |
|---|---|
| `Answer` | sends the response to the waiter of the request |
| `Store` | appends the group's record; calls `done` after it is durable, or with an error |

An assignment reaches members only after its record is durable, so a restart never lacks a generation that a member has.

Departure from Kafka: a second JoinGroup or SyncGroup of one member answers the first one with REBALANCE_IN_PROGRESS;
Kafka never answers it.

Source: kafka `GroupMetadataManager`, `ClassicGroup`, `ClassicGroupState`; KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tiered.serve.groups.deadlines import Deadlines
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import TRANSITIONS, Answer, GroupState, Moment, Output, Store
from tiered.serve.groups.members import CONSUMERS, Client, Member, joining, restored, subscribed_topics, unique
from tiered.serve.groups.offsets_records import GroupValue
from tiered.serve.groups.roster import Roster
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

ID_PREFIX_MAX = 64  # characters of a client id or an instance id in a member id
NEW_MEMBER_JOIN_MS = 300_000  # source: kafka `CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS`
_MEMBER_ID_SINCE = 4  # version of JoinGroup, KIP-394
_SKIP_ASSIGNMENT_SINCE = 9  # version of JoinGroup, KIP-814
_JOIN, _SYNC = "join", "sync"  # deadlines of the group; those of members have their id


class Group:
    """`new_member_id` makes the unique id of a member from a prefix."""

    def __init__(self, group_id: str, settings: GroupSettings, new_member_id: Callable[[str], str]) -> None:
        self.group_id, self._settings, self._new_member_id = group_id, settings, new_member_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.roster = Roster()
        self.state_ms: int | None = None  # wall clock of the last change of the state
        self.subscribed: set[str] | None = None
        self.outputs: list[Output] = []
        self._stored_generation: int | None = None  # whose assignment is being stored
        self._is_initial = False  # PREPARING_REBALANCE that followed EMPTY: a delay for more members
        self._has_new_member = False  # since the last extension of that delay
        self._initial_ms = 0, 0  # its length, and the time that is left after it
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()

    @classmethod
    def stored(
        cls, group_id: str, value: GroupValue, settings: GroupSettings, new_member_id: Callable[[str], str], now: Moment
    ) -> Group:
        """The group of a record: stable with its members, who have a session timeout from now on, or empty."""
        group = cls(group_id, settings, new_member_id)
        group.generation, group.state_ms = value.generation, value.state_ms
        group.protocol_type = value.protocol_type or None
        if value.members:
            group.state, group.protocol = GroupState.STABLE, value.protocol
        for each in value.members:
            member = restored(each, value.protocol)
            group.roster.add(member)
            group._expect_heartbeat(member, now)
        group.roster.leader = value.leader
        group._note_subscriptions()
        if len(group.members) > settings.max_size:
            group._prepare_rebalance(now)
        return group

    # What the coordinator reads

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    @property
    def size_bytes(self) -> int:
        return self.roster.size_bytes

    @property
    def members(self) -> Mapping[str, Member]:
        return self.roster.members

    @property
    def is_idle(self) -> bool:
        """Whether the group has neither members nor clients that will join."""
        return self.state is GroupState.EMPTY and not self.roster.pending_joins

    def is_subscribed(self, topic: str) -> bool:
        """Source: kafka `ClassicGroup.isSubscribedToTopic`."""
        return self.protocol_type == CONSUMERS if self.subscribed is None else topic in self.subscribed

    def described(self) -> DescribedGroup:
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(each.described(protocol) for each in self.members.values()),
        )

    def value(self) -> GroupValue:
        """The record of the group now."""
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_ms=self.state_ms,
            members=tuple(each.value(self.protocol) for each in self.members.values()),
        )

    def expiry_base_ms(self, commit_ms: int, topic: str) -> int | None:
        """The time from which the retention of an offset counts; None while the offset must not expire.

        Source: kafka `ClassicGroup.offsetExpirationCondition`.
        """
        if self.is_subscribed(topic):
            return None
        if self.protocol_type is None:
            return commit_ms
        if self.state is GroupState.EMPTY:
            return commit_ms if self.state_ms is None else self.state_ms
        is_known = self.protocol_type == CONSUMERS and self.subscribed is not None
        return commit_ms if is_known and self.state is GroupState.STABLE else None

    # Events

    def join(self, request: JoinGroupRequest, client: Client, version: int, waiter: object, now: Moment) -> None:
        """The answer is an output, at once or after the rebalance."""
        is_unknown = not request.member_id
        if not self._accepts(request.member_id):
            self._remove(request.member_id, Error.GROUP_MAX_SIZE_REACHED)
            self._refuse(waiter, Error.GROUP_MAX_SIZE_REACHED)
        elif self.state is GroupState.DEAD:
            self._refuse(waiter, Error.COORDINATOR_NOT_AVAILABLE, request.member_id)
        elif not self._supports(request):
            self._refuse(waiter, Error.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif is_unknown:
            self._join_unknown(request, client, version, waiter, now)
        elif request.member_id in self.roster.pending_joins and request.group_instance_id is None:
            self.roster.pending_joins.discard(request.member_id)
            self._add(request.member_id, request, client, waiter, now)
        elif error := self.roster.check(request.member_id, request.group_instance_id):
            self._refuse(waiter, error, request.member_id)
        else:
            self._join_again(self.members[request.member_id], request, waiter, now)

    def sync(self, request: SyncGroupRequest, waiter: object, now: Moment) -> None:
        """The answer is an output, at once or after the leader's assignment is durable."""
        error = self._check_sync(request)
        if error:
            self.outputs.append(Answer(waiter, SyncGroupResponse(error_code=error)))
            return
        member = self.members[request.member_id]
        self.roster.pending_syncs.discard(request.member_id)
        if not self.roster.pending_syncs:
            self._deadlines.cancel((_SYNC, ""))
        if self.state is GroupState.STABLE:
            self.outputs.append(Answer(waiter, self._assigned(member)))
            return
        self._answer_sync(member, SyncGroupResponse(error_code=Error.REBALANCE_IN_PROGRESS))
        member.sync = waiter
        if request.member_id == self.roster.leader and self._stored_generation != self.generation:
            self._stored_generation = self.generation
            assignments = {each.member_id: each.assignment for each in request.assignments}
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            self.outputs.append(Store(self.value(), self._when_assigned(self.generation, assignments)))

    def heartbeat(self, request: HeartbeatRequest, now: Moment) -> Error:
        if self.state is GroupState.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if error := self.roster.check(request.member_id, request.group_instance_id):
            return error
        if request.generation_id != self.generation:
            return Error.ILLEGAL_GENERATION
        self._expect_heartbeat(self.members[request.member_id], now)
        return Error.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Error.NONE

    def leave(self, request: LeaveGroupRequest, now: Moment) -> LeaveGroupResponse:
        if self.state is GroupState.DEAD:
            return LeaveGroupResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)
        count = len(self.members)
        results = tuple(self._leave(each) for each in request.members)
        if len(self.members) < count:
            self._members_left(now)
        return LeaveGroupResponse(members=results)

    def advance(self, now: Moment) -> None:
        """Act on every deadline that is due."""
        for kind, member_id in self._deadlines.pop_due(now.ticks_ms):
            if kind == _JOIN:
                self._end_join_phase(now)
            elif kind == _SYNC:
                self._end_sync_phase(now)
            else:
                self._session_ended(member_id, now)

    def die(self) -> None:
        """The group was deleted. It must be idle or empty."""
        self._transition(GroupState.DEAD, self.state_ms)
        self.roster.pending_joins.clear()

    def check_commit(
        self, generation: int, member_id: str, instance_id: str | None, *, is_transactional: bool = False
    ) -> Error:
        """Whether a member may commit offsets. Source: kafka `ClassicGroup.validateOffsetCommit`."""
        if self.state is GroupState.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return Error.NONE
        if generation >= 0 or member_id or instance_id is not None:
            if error := self.roster.check(member_id, instance_id):
                return error
            if generation != self.generation:
                return Error.ILLEGAL_GENERATION
        elif not is_transactional:
            return Error.UNKNOWN_MEMBER_ID
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return Error.REBALANCE_IN_PROGRESS
        return Error.NONE

    def committed(self, member_id: str, now: Moment) -> None:
        """A commit proves that its member is alive."""
        member = self.members.get(member_id)
        if member is not None and self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._expect_heartbeat(member, now)

    # Join

    def _accepts(self, member_id: str) -> bool:
        """Whether the group has room. Clients that have received a member id count too.

        Source: kafka `GroupMetadataManager.acceptJoiningMember`.
        """
        most = self._settings.max_size
        member = self.members.get(member_id)
        if not member_id and len(self.roster.pending_joins) >= most:
            return False
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                is_awaited = member is not None and member.join is not None
                return is_awaited or sum(each.join is not None for each in self.members.values()) < most
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(self.members) < most
            case _:
                return True

    def _supports(self, request: JoinGroupRequest) -> bool:
        if self.state is GroupState.EMPTY or not self.members:
            return bool(request.protocol_type and request.protocols)
        if request.protocol_type != self.protocol_type:
            return False
        common = self.roster.common_protocols()
        return any(each.name in common for each in request.protocols)

    def _join_unknown(
        self, request: JoinGroupRequest, client: Client, version: int, waiter: object, now: Moment
    ) -> None:
        instance_id = request.group_instance_id
        prefix = client.client_id if instance_id is None else instance_id
        member_id = self._new_member_id(prefix[:ID_PREFIX_MAX])
        if instance_id is not None and instance_id in self.roster.static:
            self._replace_static(self.roster.static[instance_id], member_id, request, client, version, waiter, now)
        elif instance_id is not None or version < _MEMBER_ID_SINCE:
            self._add(member_id, request, client, waiter, now)
        else:
            self.roster.pending_joins.add(member_id)
            self._deadlines.set(("member", member_id), now.ticks_ms + request.session_timeout_ms)
            self._refuse(waiter, Error.MEMBER_ID_REQUIRED, member_id)

    def _add(self, member_id: str, request: JoinGroupRequest, client: Client, waiter: object, now: Moment) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self._is_initial:
            self._has_new_member = True
        self.roster.add(joining(member_id, request, client, waiter))
        # A new member sends no heartbeats before it has its id, and its disconnection is not seen.
        self._deadlines.set(("member", member_id), now.ticks_ms + NEW_MEMBER_JOIN_MS)
        self._rebalance(now)

    def _join_again(self, member: Member, request: JoinGroupRequest, waiter: object, now: Moment) -> None:
        is_same = member.protocols == unique(request.protocols)
        is_leader = member.member_id == self.roster.leader
        match self.state:
            case GroupState.COMPLETING_REBALANCE if is_same:
                self.outputs.append(Answer(waiter, self._joined(member, has_members=is_leader)))
            case GroupState.STABLE if is_same and not is_leader:
                self.outputs.append(Answer(waiter, self._joined(member, has_members=False)))
            case GroupState.PREPARING_REBALANCE | GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self._update(member, request, waiter)
                self._rebalance(now)
            case _:
                self._refuse(waiter, Error.UNKNOWN_MEMBER_ID, request.member_id)

    def _update(self, member: Member, request: JoinGroupRequest, waiter: object) -> None:
        self._answer_join(member, JoinGroupResponse(error_code=Error.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self.roster.update(member, request, waiter)

    def _replace_static(
        self,
        old_id: str,
        new_id: str,
        request: JoinGroupRequest,
        client: Client,
        version: int,
        waiter: object,
        now: Moment,
    ) -> None:
        """A static member restarted: it has a new member id. See KIP-345."""
        old_leader = self.roster.leader
        before = self._rename_static(old_id, new_id, client)
        member = self.members[new_id]
        self._update(member, request, waiter)
        self._expect_heartbeat(member, now)
        match self.state:
            case GroupState.STABLE if self.roster.selected_protocol() == self.protocol:
                done = self._when_replaced(member, before, old_leader, version)
                self.outputs.append(Store(self.value(), done))
            case GroupState.PREPARING_REBALANCE:
                self._maybe_end_join_phase(now)
            case _:
                self._prepare_rebalance(now)

    def _rename_static(self, old_id: str, new_id: str, client: Client) -> Member:
        """Fence the requests of the old member id. Returns the old member."""
        old = self.roster.rename(old_id, new_id, client)
        fenced = Error.FENCED_INSTANCE_ID
        self._answer_join(old, JoinGroupResponse(error_code=fenced, member_id=old_id))
        self._answer_sync(old, SyncGroupResponse(error_code=fenced))
        self._deadlines.cancel(("member", old_id))
        return old

    def _when_replaced(
        self, member: Member, before: Member, old_leader: str | None, version: int
    ) -> Callable[[Error, Moment], None]:
        generation = self.generation

        def done(error: Error, now: Moment) -> None:
            is_current = self.members.get(member.member_id) is member and self.generation == generation
            if self.state is not GroupState.STABLE or not is_current:
                return  # a rebalance answers the join
            if error:
                self._answer_join(member, JoinGroupResponse(error_code=error))
                self._rename_static(member.member_id, before.member_id, before.client)
                back = self.members[before.member_id]
                self.roster.restore(back, before)
                self._expect_heartbeat(back, now)
                return
            # Before KIP-814 the leader of a stable group must not learn that it leads: it would assign again.
            is_leader = member.member_id == self.roster.leader
            may_skip = version >= _SKIP_ASSIGNMENT_SINCE
            response = self._joined(member, has_members=may_skip and is_leader)
            leader = response.leader if may_skip else old_leader or ""
            self._answer_join(member, replace(response, leader=leader, skip_assignment=may_skip and is_leader))

        return done

    # Rebalance

    def _rebalance(self, now: Moment) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_end_join_phase(now)
        else:
            self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: Moment) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(Error.REBALANCE_IN_PROGRESS, now)
        self._deadlines.cancel((_SYNC, ""))
        self._is_initial = self.state is GroupState.EMPTY
        self._transition(GroupState.PREPARING_REBALANCE, now.wall_ms)
        if self._is_initial:
            self._has_new_member = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_ms = delay_ms, max(self.roster.rebalance_timeout_ms - delay_ms, 0)
            self._deadlines.set((_JOIN, ""), now.ticks_ms + delay_ms)
        elif self.roster.have_all_joined:
            self._complete_join(now)
        else:
            self._deadlines.set((_JOIN, ""), now.ticks_ms + self.roster.rebalance_timeout_ms)

    def _maybe_end_join_phase(self, now: Moment) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self.roster.have_all_joined and not self._is_initial:
            self._complete_join(now)

    def _end_join_phase(self, now: Moment) -> None:
        """The deadline of PREPARING_REBALANCE. The delay of a new group is extended while members arrive."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        delay_ms, left_ms = self._initial_ms
        if self._is_initial and self._has_new_member and left_ms:
            self._has_new_member = False
            next_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
            self._initial_ms = next_ms, max(left_ms - delay_ms, 0)
            self._deadlines.set((_JOIN, ""), now.ticks_ms + next_ms)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Moment) -> None:
        self._deadlines.cancel((_JOIN, ""))
        late = [each for each in self.members.values() if each.join is None and each.instance_id is None]
        for each in late:
            self._remove(each.member_id, Error.UNKNOWN_MEMBER_ID)
        if self.members and not self.roster.elect_leader():
            # All are static members that have not joined again: wait until they join or their sessions end.
            self._deadlines.set((_JOIN, ""), now.ticks_ms + self.roster.rebalance_timeout_ms)
            return
        self.generation += 1
        self.roster.pending_syncs.clear()
        if not self.members:
            self.protocol = self.roster.leader = None
            self._transition(GroupState.EMPTY, now.wall_ms)
            self._note_subscriptions()
            self.outputs.append(Store(self.value(), _ignore))
            return
        self.protocol = self.roster.selected_protocol()
        self._transition(GroupState.COMPLETING_REBALANCE, now.wall_ms)
        self._note_subscriptions()
        for each in self.members.values():
            self._answer_join(each, self._joined(each, has_members=each.member_id == self.roster.leader))
            self._expect_heartbeat(each, now)
            each.is_new = False
            self.roster.pending_syncs.add(each.member_id)
        self._deadlines.set((_SYNC, ""), now.ticks_ms + self.roster.rebalance_timeout_ms)

    def _end_sync_phase(self, now: Moment) -> None:
        """The deadline of members to fetch their assignment."""
        is_open = self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if is_open and self.roster.pending_syncs:
            for member_id in list(self.roster.pending_syncs):
                self._remove(member_id, Error.UNKNOWN_MEMBER_ID)
            self._prepare_rebalance(now)

    # Sync

    def _check_sync(self, request: SyncGroupRequest) -> Error:
        if self.state is GroupState.DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if error := self.roster.check(request.member_id, request.group_instance_id):
            return error
        if request.generation_id != self.generation:
            return Error.ILLEGAL_GENERATION
        if _differ(request.protocol_type, self.protocol_type) or _differ(request.protocol_name, self.protocol):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.EMPTY:
            return Error.UNKNOWN_MEMBER_ID
        return Error.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else Error.NONE

    def _when_assigned(self, generation: int, assignments: Mapping[str, bytes]) -> Callable[[Error, Moment], None]:
        def done(error: Error, now: Moment) -> None:
            if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
                return  # the next generation answers
            if error:
                self._drop_assignments(error, now)
                self._rebalance(now)
                return
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            self._transition(GroupState.STABLE, now.wall_ms)
            for each in self.members.values():
                if each.sync is not None:
                    self._answer_sync(each, self._assigned(each))
                    self._expect_heartbeat(each, now)

        return done

    def _drop_assignments(self, error: Error, now: Moment) -> None:
        for each in self.members.values():
            each.assignment = b""
            if each.sync is not None:
                self._answer_sync(each, SyncGroupResponse(error_code=error))
                self._expect_heartbeat(each, now)

    # Members

    def _leave(self, who: MemberIdentity) -> MemberResponse:
        member_id, error = who.member_id, Error.NONE
        if not member_id and who.group_instance_id is not None:
            member_id = self.roster.static.get(who.group_instance_id, "")  # removed by an administrator
        if who.member_id in self.roster.pending_joins:
            self._remove(who.member_id, Error.UNKNOWN_MEMBER_ID)
        elif not member_id:
            error = Error.UNKNOWN_MEMBER_ID
        elif not (error := self.roster.check(member_id, who.group_instance_id)):
            self._remove(member_id, Error.UNKNOWN_MEMBER_ID)
        return MemberResponse(member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=error)

    def _members_left(self, now: Moment) -> None:
        match self.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                self._prepare_rebalance(now)
            case GroupState.PREPARING_REBALANCE:
                self._maybe_end_join_phase(now)
            case _:
                pass

    def _session_ended(self, member_id: str, now: Moment) -> None:
        member = self.members.get(member_id)
        if member_id in self.roster.pending_joins:
            self._remove(member_id, Error.UNKNOWN_MEMBER_ID)
        elif member is None or (not member.is_new and (member.join is not None or member.sync is not None)):
            return  # a member that waits for an answer is alive; its answer begins the next session
        else:
            self._remove(member_id, Error.UNKNOWN_MEMBER_ID)
            if self.state is not GroupState.PREPARING_REBALANCE:
                self._members_left(now)
        if self.state is GroupState.PREPARING_REBALANCE and self.roster.have_all_joined:
            self._complete_join(now)

    def _remove(self, member_id: str, error: Error) -> None:
        """Remove a member and answer its requests with `error`. Does nothing for an unknown id."""
        self._deadlines.cancel(("member", member_id))
        member = self.roster.remove(member_id)
        if member is not None:
            self._answer_join(member, JoinGroupResponse(error_code=error))
            self._answer_sync(member, SyncGroupResponse(error_code=error))

    def _expect_heartbeat(self, member: Member, now: Moment) -> None:
        self._deadlines.set(("member", member.member_id), now.ticks_ms + member.session_timeout_ms)

    def _transition(self, state: GroupState, wall_ms: int | None) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} does not become {state}"
        self.state, self.state_ms = state, wall_ms

    def _note_subscriptions(self) -> None:
        self.subscribed = subscribed_topics(self.members, self.protocol_type, self.protocol)

    # Answers

    def _joined(self, member: Member, *, has_members: bool) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.roster.leader or "",
            member_id=member.member_id,
            members=tuple(each.joined(self.protocol) for each in self.members.values()) if has_members else (),
        )

    def _assigned(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def _refuse(self, waiter: object, error: Error, member_id: str = "") -> None:
        self.outputs.append(Answer(waiter, JoinGroupResponse(error_code=error, member_id=member_id)))

    def _answer_join(self, member: Member, response: JoinGroupResponse) -> None:
        if member.join is not None:
            self.outputs.append(Answer(member.join, response))
            member.join = None

    def _answer_sync(self, member: Member, response: SyncGroupResponse) -> None:
        if member.sync is not None:
            self.outputs.append(Answer(member.sync, response))
            member.sync = None


def _differ(claimed: str | None, actual: str | None) -> bool:
    return claimed is not None and actual is not None and claimed != actual


def _ignore(error: Error, now: Moment) -> None:
    """The record of an empty group only saves a restart from sessions that have ended."""
