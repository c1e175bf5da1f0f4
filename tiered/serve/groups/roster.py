"""The members of one group: who leads, who joined, which protocol all support. No I/O and no time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tiered.serve.groups.members import MEMBER_BYTES, Client, Member
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import JoinGroupRequest


class Roster:
    """`pending_joins` have received a member id and have not joined with it (KIP-394).

    Members are changed by the methods here alone, which count the members of each protocol.

    `pending_syncs` have not fetched the assignment of the generation. `static` maps instance ids to member ids.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.leader: str | None = None
        self.static: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: set[str] = set()
        self._supporters: Counter[str] = Counter()  # members by the name of a protocol

    def add(self, member: Member) -> None:
        self._count(member, 1)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """The removed member; None if the id had none."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def update(self, member: Member, request: JoinGroupRequest, waiter: object) -> None:
        """A member joins again."""
        self._count(member, -1)
        member.update(request, waiter)
        self._count(member, 1)

    def restore(self, member: Member, before: Member) -> None:
        self._count(member, -1)
        member.restore(before)
        self._count(member, 1)

    def _count(self, member: Member, change: int) -> None:
        for each in {each.name for each in member.protocols}:
            self._supporters[each] += change
            if not self._supporters[each]:
                del self._supporters[each]

    def rename(self, old_id: str, new_id: str, client: Client) -> Member:
        """Give a static member a new id and client. Returns the old member, which has the waiters."""
        old = self.members.pop(old_id)
        assert old.instance_id is not None, "only static members are replaced"
        self.members[new_id] = replace(old, member_id=new_id, client=client, is_new=False, join=None, sync=None)
        self.static[old.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_syncs:
            self.pending_syncs.discard(old_id)
            self.pending_syncs.add(new_id)
        return old

    def check(self, member_id: str, instance_id: str | None) -> Error:
        """Source: kafka `ClassicGroup.validateMember`."""
        if instance_id is not None:
            existing = self.static.get(instance_id)
            if existing is None:
                return Error.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def elect_leader(self) -> bool:
        """Whether the group has a leader that joined. A leader that did not is replaced."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is None:
            joined = next((each for each in self.members.values() if each.join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    @property
    def have_all_joined(self) -> bool:
        return not self.pending_joins and all(each.join is not None for each in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest one of the members, at least 1."""
        return max([1, *(each.rebalance_timeout_ms for each in self.members.values())])

    @property
    def size_bytes(self) -> int:
        """Of members and of ids that were given to clients."""
        return sum(each.size_bytes for each in self.members.values()) + MEMBER_BYTES * len(self.pending_joins)

    def common_protocols(self) -> set[str]:
        """The protocols that every member supports."""
        first = next(iter(self.members.values()), None)
        names = [each.name for each in first.protocols] if first is not None else []
        return {name for name in names if self._supporters[name] == len(self.members)}

    def selected_protocol(self) -> str:
        """The protocol with the most votes among those that all support; of equal ones that of the earliest member.

        Source: kafka `ClassicGroup.selectProtocol`.
        """
        candidates = self.common_protocols()
        votes = Counter(each.vote(candidates) for each in self.members.values())
        return votes.most_common(1)[0][0]
