"""The state machine of one group of the consumer protocol (KIP-848). No I/O and no clock.

| state | of the group |
|---|---|
| Empty | no members |
| Assigning | the target assignment is older than the group epoch: a later heartbeat computes it |
| Reconciling | a member is not STABLE in the epoch of the target assignment |
| Stable | otherwise |

| event | effect |
|---|---|
| heartbeat, epoch 0 | a new member, or the successor of a static member that left for now; group epoch + 1 |
| heartbeat, its epoch | its session begins anew; group epoch + 1 for another subscription or other topics |
| heartbeat, the epoch before, owning no others | the same: the last response was lost |
| heartbeat, another epoch | FENCED_MEMBER_EPOCH |
| heartbeat of a static member, epoch -2 | it left for now: its partitions wait for a successor until its session ends |
| heartbeat, epoch -1; end of sessions or of rebalance timeouts | the members are removed; group epoch + 1 for all |
| regular expressions resolved | group epoch + 1 if they match other topics |

A heartbeat computes a new target assignment if the group epoch is newer and the pause after the last one has ended
(`reservation`). Then it takes the member one step towards it (`reconciliation`). Every change of the state is the
record of one key: `replay` is the only function that changes it, so a load from the log gives the same state.
`changes` collects the records, with the value before each, to take back what could not be stored.

| invariant |
|---|
| a partition has at most one owner |
| the group epoch rises; target epoch <= group epoch; a member's epoch <= target epoch |
| members that heartbeat and revoke become STABLE in the target epoch, with the target assignment |

Source: kafka `GroupMetadataManager.consumerGroupHeartbeat`, `ConsumerGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from tiered.serve.groups.consumer.assignments import (
    hash_of,
    message_of,
    owned_of,
    partitions_of,
    updated_by,
    without_overlaps,
)
from tiered.serve.groups.consumer.fencing import Refused, check_epoch, check_identity, check_left, check_room
from tiered.serve.groups.consumer.reconciliation import reconciled
from tiered.serve.groups.consumer.records import (
    NO_PARTITIONS,
    Assignment,
    Change,
    ConsumerKey,
    ConsumerValue,
    Current,
    GroupEpoch,
    Kind,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    Target,
    TargetEpoch,
    epoch_first,
)
from tiered.serve.groups.consumer.regexes import regex_error
from tiered.serve.groups.consumer.reservation import HasRoom, Reservation
from tiered.serve.groups.consumer.sizes import assigned_bytes, member_bytes, regex_bytes
from tiered.serve.groups.consumer.targets import Topics, computed_targets, counts_of, preferred_assignor
from tiered.serve.groups.deadlines import Deadlines
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState, Moment
from tiered.serve.groups.members import CONSUMERS, Client
from tiered.serve.groups.offsets_records import GroupKey
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

REGEXES_MAX = 100  # different ones of a group
_REFRESH_PAUSE_MS = 10_000  # between two resolutions of regular expressions
_SESSION, _REBALANCE = "session", "rebalance"


@dataclass(frozen=True, slots=True)
class Beaten:
    """`regexes` are to be resolved."""

    response: ConsumerGroupHeartbeatResponse
    regexes: frozenset[str] = frozenset()


class ConsumerGroup:
    """`new_member_id` makes a unique member id. `has_room` is whether the node has room for more bytes of members."""

    protocol_type = CONSUMERS

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        new_member_id: Callable[[], str],
        has_room: HasRoom = lambda size_bytes: True,
    ) -> None:
        self.group_id, self._settings, self._new_member_id = group_id, settings, new_member_id
        self.epoch = self.assignment_epoch = self.metadata_hash = 0
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static: dict[str, str] = {}  # member ids by instance id
        self.changes: list[Change] = []
        self.is_resolving = False
        self.reservation = Reservation(has_room)
        self._metadata_bytes = self._assigned_bytes = 0
        self._known: tuple[Topics, int, Mapping[UUID, int]] | None = None  # metadata hash, partitions of the topics
        self._subscribed_topics: frozenset[str] | None = None  # None: not computed
        self._currents: dict[str, Current] = {}
        self._owners: Counter[tuple[UUID, int]] = Counter()  # how many members have a partition
        self._topic_subscribers: Counter[str] = Counter()
        self._regex_subscribers: Counter[str] = Counter()
        self._resolved_topics: Topics | None = None  # those that the regular expressions were resolved with
        self._resolved_ms = 0  # wall clock, of the last resolution
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()

    @classmethod
    def loaded(
        cls,
        group_id: str,
        records: Mapping[ConsumerKey, ConsumerValue],
        settings: GroupSettings,
        new_member_id: Callable[[], str],
        now: Moment,
        has_room: HasRoom = lambda size_bytes: True,
    ) -> ConsumerGroup:
        """The group of its records. All members have a session timeout from now on.

        A crash after a failed append may leave the assignment of a member that is absent, which is ignored, or two
        owners of a partition: the next heartbeat assigns anew, and one of them revokes it.
        """
        group = cls(group_id, settings, new_member_id, has_room)
        members = {each.name for each in records if each.kind is Kind.MEMBER}
        for key, value in records.items():
            if key.kind not in (Kind.CURRENT, Kind.TARGET) or key.name in members:
                group.replay(key, value)
        for name in group.members:
            group._expect(name, now)
        if any(each > 1 for each in group._owners.values()):
            group._known, group.metadata_hash = None, 0
        for name, target in without_overlaps(group.targets).items():
            group.replay(ConsumerKey(Kind.TARGET, group_id, name), Target(target))
        return group

    # What the coordinator reads

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.STABLE if all(map(self._is_reconciled, self.members)) else GroupState.RECONCILING

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    @property
    def size_bytes(self) -> int:
        """Of the members, and of the partitions that are assigned or reserved for them."""
        reserved_bytes = self.reservation.size_bytes if self.members else 0
        return self._metadata_bytes + max(self._assigned_bytes, reserved_bytes)

    @property
    def described_bytes(self) -> int:
        """Of a description, at most, names of topics aside."""
        return self._metadata_bytes + self._assigned_bytes // 3

    @property
    def is_idle(self) -> bool:
        return not self.members

    def current(self, member_id: str) -> Current:
        return self._currents.get(member_id) or Current()

    def is_subscribed(self, topic: str) -> bool:
        return topic in self._subscribed()

    def expiry_base_ms(self, commit_ms: int, topic: str) -> int | None:
        """As that of a classic group. Source: kafka `ConsumerGroup.offsetExpirationCondition`."""
        return None if self.is_subscribed(topic) else commit_ms

    def record_keys(self) -> Iterator[ConsumerKey]:
        """Of all records of the group, in an order in which tombstones leave a group that loads."""
        named = ((Kind.CURRENT, self._currents), (Kind.TARGET, self.targets), (Kind.MEMBER, self.members))
        for kind, found in (*named, (Kind.REGEX, self.regexes)):
            yield from (ConsumerKey(kind, self.group_id, each) for each in found)
        yield ConsumerKey(Kind.TARGET_EPOCH, self.group_id)
        yield ConsumerKey(Kind.GROUP, self.group_id)

    def check_commit(
        self, epoch: int, member_id: str, instance_id: str | None, *, is_transactional: bool, knows_epochs: bool
    ) -> Error:
        """Whether a member may commit offsets. Source: kafka `ConsumerGroup.validateOffsetCommit`."""
        if epoch < 0 and not self.members:
            return Error.NONE
        if is_transactional and epoch == LEAVES and not member_id and instance_id is None:
            return Error.NONE
        if member_id not in self.members:
            return Error.UNKNOWN_MEMBER_ID
        if not is_transactional and not knows_epochs:
            return Error.UNSUPPORTED_VERSION
        if epoch == self.current(member_id).epoch:
            return Error.NONE
        return Error.ILLEGAL_GENERATION if is_transactional else Error.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> Error:
        """Whether a member may read offsets. Source: kafka `ConsumerGroup.validateOffsetFetch`."""
        if member_id is None and epoch < 0:
            return Error.NONE
        if member_id is None or member_id not in self.members:
            return Error.UNKNOWN_MEMBER_ID
        return Error.NONE if epoch == self.current(member_id).epoch else Error.STALE_MEMBER_EPOCH

    def assignor(self) -> str:
        return preferred_assignor(self.members.values())

    # Events

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client, topics: Topics, now: Moment) -> Beaten:
        """Raises Refused, which changes nothing."""
        if request.member_epoch in (LEAVES, LEAVES_FOR_NOW):
            return self._leave(request, topics)
        member_id, owned = request.member_id or self._new_member_id(), owned_of(request)
        if request.member_id not in self.members:
            check_room(len(self.members), self._settings.consumer_max_size)
        former = self._check_member(request, member_id, owned)
        before = self.members.get(former or member_id, MemberMetadata())
        updated = updated_by(before, request, client)
        self._check_regex(before, updated)
        mark, size_bytes = len(self.changes), self._metadata_bytes
        if former is not None:
            self._replace(former, member_id)
        is_bumped = self._subscribe(member_id, updated)
        is_other = (updated.topics, updated.regex) != (before.topics, before.regex)
        if not self._reserve(topics, self._metadata_bytes - size_bytes, is_other=is_other):
            changes, self.changes[mark:] = self.changes[mark:], []
            self.revert(changes, now)
            raise Refused(Error.GROUP_MAX_SIZE_REACHED, "The node has no room for more members and partitions.")
        regexes = self._regexes_to_resolve(topics, now)
        if is_bumped or self._facts(topics)[0] != self.metadata_hash:
            self._bump(topics)
        self._assign_if_due(topics, now)
        current = self.current(member_id)
        following = reconciled(
            current, self.assignment_epoch, self.targets.get(member_id, NO_PARTITIONS), self._is_owned, owned
        )
        if following != current:
            self._put(Kind.CURRENT, member_id, following)
            if following.state is MemberState.UNREVOKED_PARTITIONS:
                self._expect_revocation(member_id, now)
            else:
                self._deadlines.cancel((_REBALANCE, member_id))
        self._expect_heartbeat(member_id, now)
        has_all = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        shows = request.member_epoch == JOINS or has_all or following.assigned != current.assigned
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=following.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=message_of(following.assigned) if shows else None,
        )
        return Beaten(response, regexes)

    def remove(self, members: Collection[str], topics: Topics) -> None:
        """Remove members; their partitions have no owner. One epoch for all, so one assignment."""
        for member_id in members:
            regex = self.members[member_id].regex
            for kind in (Kind.CURRENT, Kind.TARGET, Kind.MEMBER):
                self._put(kind, member_id, None)
            self._end_regex(regex)
        self._bump(topics)

    def resolved(self, found: Mapping[str, tuple[str, ...]], topics: Topics, now: Moment) -> None:
        """The topics of regular expressions. Source: kafka `GroupMetadataManager.handleRegularExpressionsResult`."""
        self.is_resolving, self._resolved_topics = False, topics
        self._resolved_ms = now.wall_ms
        size_bytes, is_changed = self._metadata_bytes, False
        for regex, names in found.items():
            known = self.regexes.get(regex)
            if not self._regex_subscribers[regex]:
                continue
            grown = regex_bytes(regex, names) - self._bytes_of(ConsumerKey(Kind.REGEX, self.group_id, regex))
            self.reservation.unfit.pop(regex, None)
            if grown > 0 and not self.reservation.has_room(self._metadata_bytes - size_bytes + grown):
                self.reservation.unfit[regex] = grown
                if known is None:
                    continue
                names = known.topics
            is_changed = is_changed or known is None or names != known.topics
            self._put(Kind.REGEX, regex, ResolvedRegex(names, resolved_ms=now.wall_ms))
        if is_changed:
            self._bump(topics)

    def advance(self, topics: Topics, now: Moment) -> None:
        """Remove members whose deadline has come."""
        late = dict.fromkeys(
            member_id
            for kind, member_id in self._deadlines.pop_due(now.ticks_ms)
            if member_id in self.members
            and (kind == _SESSION or self.current(member_id).state is MemberState.UNREVOKED_PARTITIONS)
        )
        if late:
            self.remove(late, topics)

    def replaces_classic(self) -> None:
        """The group was an empty classic one."""
        self.changes.append(Change(GroupKey(self.group_id), None, None))

    def take_changes(self) -> list[Change]:
        changes, self.changes = epoch_first(self.changes), []
        return changes

    def revert(self, changes: list[Change], now: Moment) -> None:
        """Take back the latest changes, which could not be stored. Members that lost a deadline get a new one."""
        for key, _, before in reversed(changes):
            if isinstance(key, ConsumerKey):
                self.replay(key, before)
        for name in self.members:
            self._expect(name, now)

    def replay(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        """The effect of a record; None for a tombstone."""
        name, size_bytes = key.name, self._bytes_of(key)
        if key.kind is Kind.REGEX:
            self._known = self._subscribed_topics = None
        match key.kind, value:
            case Kind.GROUP, GroupEpoch(epoch, metadata_hash):
                self.epoch, self.metadata_hash = epoch, metadata_hash
            case Kind.GROUP, _:
                self.epoch = self.metadata_hash = 0
            case Kind.TARGET_EPOCH, _:
                self.assignment_epoch = value.epoch if isinstance(value, TargetEpoch) else 0
                self.reservation.is_short = None
            case Kind.MEMBER, _:
                self._replay_member(name, value if isinstance(value, MemberMetadata) else None)
            case Kind.TARGET, Target(partitions):
                self.targets[name] = partitions
            case Kind.TARGET, _:
                self.targets.pop(name, None)
            case Kind.CURRENT, _:
                self._replay_current(name, value if isinstance(value, Current) else None)
            case Kind.REGEX, ResolvedRegex():
                self.regexes[name] = value
            case Kind.REGEX, _:
                self.regexes.pop(name, None)
        if key.kind in (Kind.TARGET, Kind.CURRENT):
            self._assigned_bytes += self._bytes_of(key) - size_bytes
        else:
            self._metadata_bytes += self._bytes_of(key) - size_bytes

    # Private

    def _replay_member(self, name: str, value: MemberMetadata | None) -> None:
        old = self.members.pop(name, None)
        if old is not None:
            self._count(old, -1)
            if old.instance_id is not None and self.static.get(old.instance_id) == name:
                del self.static[old.instance_id]
        if value is not None:
            self.members[name] = value
            self._count(value, 1)
            if value.instance_id is not None:
                self.static[value.instance_id] = name
            return
        for kind in (_SESSION, _REBALANCE):
            self._deadlines.cancel((kind, name))
        if not self.members:
            self.reservation.size_bytes = 0

    def _count(self, member: MemberMetadata, change: int) -> None:
        for counter, names in ((self._topic_subscribers, member.topics), (self._regex_subscribers, [member.regex])):
            for each in names:
                if each:
                    counter[each] += change
                    if counter[each] == max(0, change):  # the first or the last subscriber
                        self._known = self._subscribed_topics = None
                    if not counter[each]:
                        del counter[each]

    def _replay_current(self, name: str, value: Current | None) -> None:
        old = self._currents.pop(name, None)
        for where in partitions_of(old):
            self._owners[where] -= 1
            if not self._owners[where]:
                del self._owners[where]
        if value is not None:
            self._currents[name] = value
            self._owners.update(partitions_of(value))

    def value(self, key: ConsumerKey) -> ConsumerValue | None:
        """Of a record now; None for a tombstone."""
        match key.kind:
            case Kind.GROUP:
                return GroupEpoch(self.epoch, self.metadata_hash) if self.epoch else None
            case Kind.TARGET_EPOCH:
                return TargetEpoch(self.assignment_epoch) if self.assignment_epoch else None
            case Kind.MEMBER:
                return self.members.get(key.name)
            case Kind.TARGET:
                return Target(self.targets[key.name]) if key.name in self.targets else None
            case Kind.CURRENT:
                return self._currents.get(key.name)
            case Kind.REGEX:
                return self.regexes.get(key.name)
            case Kind.PARTITION_METADATA:
                return None

    def _bytes_of(self, key: ConsumerKey) -> int:
        """Target and assignment of a member count together."""
        name = key.name
        match key.kind:
            case Kind.MEMBER:
                return member_bytes(name, self.members.get(name))
            case Kind.TARGET | Kind.CURRENT:
                return assigned_bytes(self.targets.get(name), self._currents.get(name))
            case Kind.REGEX:
                return regex_bytes(name, self.regexes[name].topics if name in self.regexes else None)
            case _:
                return 0

    def _put(self, kind: Kind, name: str, value: ConsumerValue | None) -> None:
        key = ConsumerKey(kind, self.group_id, name)
        self.changes.append(Change(key, value, self.value(key)))
        self.replay(key, value)

    def _is_owned(self, topic: UUID, number: int) -> bool:
        return (topic, number) in self._owners

    def _is_reconciled(self, member_id: str) -> bool:
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def _expect(self, member_id: str, now: Moment) -> None:
        """Set the deadlines that the member lacks."""
        if (_SESSION, member_id) not in self._deadlines:
            self._expect_heartbeat(member_id, now)
        is_revoking = self.current(member_id).state is MemberState.UNREVOKED_PARTITIONS
        if is_revoking and (_REBALANCE, member_id) not in self._deadlines:
            self._expect_revocation(member_id, now)

    def _expect_heartbeat(self, member_id: str, now: Moment) -> None:
        self._deadlines.set((_SESSION, member_id), now.ticks_ms + self._settings.consumer_session_timeout_ms)

    def _expect_revocation(self, member_id: str, now: Moment) -> None:
        timeout_ms = max(0, self.members[member_id].rebalance_timeout_ms)
        self._deadlines.set((_REBALANCE, member_id), now.ticks_ms + timeout_ms)

    def _check_member(
        self, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Assignment | None
    ) -> str | None:
        """The static member that the new one succeeds. Raises Refused."""
        instance_id = request.instance_id
        existing = self.static.get(instance_id) if instance_id is not None else None
        if request.member_epoch == JOINS and instance_id is not None:
            if existing is not None:
                check_left(self.current(existing), existing, member_id, instance_id)
            return existing
        is_known = member_id in self.members or request.member_epoch == JOINS
        check_identity(member_id, instance_id, existing, self.group_id, is_known=is_known)
        check_epoch(self.current(member_id), request.member_epoch, owned)
        return None

    def _check_regex(self, before: MemberMetadata, updated: MemberMetadata) -> None:
        regex = updated.regex
        needed_bytes = self.reservation.unfit.get(regex or "", 0)
        if regex not in self.regexes and needed_bytes and not self.reservation.has_room(needed_bytes):
            text = f"The node has no room for the topics that SubscribedTopicRegex `{regex}` matches."
            raise Refused(Error.GROUP_MAX_SIZE_REACHED, text)
        if not regex or regex == before.regex or self._regex_subscribers[regex]:
            return
        if (reason := regex_error(regex)) is not None:
            text = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."
            raise Refused(Error.INVALID_REGULAR_EXPRESSION, text)
        if len(self._regex_subscribers) >= REGEXES_MAX:
            raise Refused(Error.GROUP_MAX_SIZE_REACHED, f"The group has {REGEXES_MAX} regular expressions already.")

    def _replace(self, former: str, member_id: str) -> None:
        """A static member comes back with another member id."""
        member, target, current = self.members[former], self.targets.get(former), self.current(former)
        for kind in (Kind.CURRENT, Kind.TARGET, Kind.MEMBER):
            self._put(kind, former, None)
        self._put(Kind.MEMBER, member_id, member)
        self._put(Kind.TARGET, member_id, Target(target or NO_PARTITIONS))
        self._put(Kind.CURRENT, member_id, replace(current, epoch=0, previous_epoch=0))

    def _subscribe(self, member_id: str, updated: MemberMetadata) -> bool:
        """Store a member's changes. Whether the group needs a new assignment."""
        before = self.members.get(member_id)
        is_bumped = self.epoch == 0
        if updated == before:
            return is_bumped
        old_topics, old_regex = (before.topics, before.regex) if before is not None else ((), "")
        is_known = bool(updated.regex) and self._regex_subscribers[updated.regex or ""] > 0
        self._put(Kind.MEMBER, member_id, updated)
        if updated.regex != old_regex:
            self._end_regex(old_regex)
            is_resolved = not updated.regex or (is_known and updated.regex in self.regexes)
            is_bumped = is_bumped or (is_resolved and bool(old_regex or updated.regex))
        return is_bumped or updated.topics != old_topics

    def _regexes_to_resolve(self, topics: Topics, now: Moment) -> frozenset[str]:
        """Source: kafka `GroupMetadataManager.maybeUpdateRegularExpressions`."""
        if not self._regex_subscribers or self.is_resolving:
            return frozenset()
        last_ms = max((each.resolved_ms for each in self.regexes.values()), default=None)
        if self.reservation.unfit:
            last_ms = max(last_ms or 0, self._resolved_ms)
        age_ms = None if last_ms is None else now.wall_ms - last_ms
        if age_ms is not None and 0 <= age_ms < _REFRESH_PAUSE_MS:
            return frozenset()
        is_due = age_ms is None or not 0 <= age_ms < self._settings.consumer_regex_refresh_interval_ms
        is_unresolved = self._regex_subscribers.keys() != self.regexes.keys()
        has_other_topics = self._resolved_topics is None or self._resolved_topics.keys() != topics.keys()
        return frozenset(self._regex_subscribers) if is_due or is_unresolved or has_other_topics else frozenset()

    def _end_regex(self, regex: str | None) -> None:
        """Remove a regular expression without subscribers."""
        if regex and not self._regex_subscribers[regex]:
            self._put(Kind.REGEX, regex, None)
            self.reservation.unfit.pop(regex, None)

    def _leave(self, request: ConsumerGroupHeartbeatRequest, topics: Topics) -> Beaten:
        member_id, instance_id = request.member_id, request.instance_id
        existing = self.static.get(instance_id) if instance_id is not None else None
        check_identity(member_id, instance_id, existing, self.group_id, is_known=member_id in self.members)
        if instance_id is not None and request.member_epoch == LEAVES_FOR_NOW:
            left = replace(self.current(member_id), epoch=LEAVES_FOR_NOW, revoking=NO_PARTITIONS)
            self._put(Kind.CURRENT, member_id, left)
            self._deadlines.cancel((_REBALANCE, member_id))  # it has nothing to revoke: its session decides
        else:
            self.remove([member_id], topics)
        return Beaten(ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch))

    def _bump(self, topics: Topics) -> None:
        self._put(Kind.GROUP, "", GroupEpoch(self.epoch + 1, self._facts(topics)[0]))

    def _subscribed(self) -> frozenset[str]:
        """The topics of all members."""
        if self._subscribed_topics is None:
            resolved = (each.topics for each in self.regexes.values())
            self._subscribed_topics = frozenset(self._topic_subscribers).union(*resolved)
        return self._subscribed_topics

    def _facts(self, topics: Topics) -> tuple[int, Mapping[UUID, int]]:
        """A hash of the subscribed topics that exist, and the partitions of each.

        The hash is not Kafka's: a broker that loads it assigns once more.
        """
        if self._known is None or self._known[0] is not topics:
            subscribed = self._subscribed()
            found = hash_of([topics[name] for name in sorted(subscribed & topics.keys())])
            self._known = topics, found, counts_of(subscribed, topics)
        return self._known[1:]

    def _reserve(self, topics: Topics, grown: int, *, is_other: bool) -> bool:
        """Whether the node has room for `grown` bytes of a member and, for `is_other` subscription, its partitions."""
        if not is_other:
            return grown <= 0 or self.reservation.has_room(grown)
        counts = self._facts(topics)[1]
        return self.reservation.has_room_for(counts, len(self.members), self._assigned_bytes, max(0, grown))

    def _assign_if_due(self, topics: Topics, now: Moment) -> None:
        """Compute the target assignment of the group epoch unless the group pauses."""
        reservation, members = self.reservation, len(self.members)
        if not reservation.is_due(now.ticks_ms):
            return
        is_newer, counts = self.epoch > self.assignment_epoch, self._facts(topics)[1]
        if not reservation.lacks(counts, self.targets.values()) and not is_newer:
            return
        has_room = reservation.has_room_for(counts, members, self._assigned_bytes)
        if not is_newer and not has_room:
            return
        if not is_newer:
            self._bump(topics)
        admitted = counts if has_room else reservation.admitted(counts)
        found = computed_targets(self.members, self.regexes, self.targets, topics, admitted)
        for name, partitions in found.items():
            if self.targets.get(name) != partitions:
                self._put(Kind.TARGET, name, Target(partitions))
        self._put(Kind.TARGET_EPOCH, "", TargetEpoch(self.epoch))
        reservation.assigned(admitted, members, now.ticks_ms, is_short=not has_room)
