"""The members of a group, and what they support. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from local.errors import Corrupt
from tiered.serve.groups.coordinator_records import FieldReader
from tiered.serve.groups.offsets_records import MemberValue
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import (
    DescribedGroupMember,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
    MemberIdentity,
    MemberResponse,
)

CONSUMERS = "consumer"  # the protocol type of consumers
PROTOCOLS_MAX = 100  # of a member
MEMBER_BYTES, PROTOCOL_BYTES = 1000, 200  # of the objects of a member and of a protocol, without their texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The client of a request, as `DescribeGroups` shows it."""

    client_id: str
    host: str


@dataclass(slots=True, kw_only=True)
class Member:
    """`join` and `sync` are the waiters of a JoinGroup and a SyncGroup without an answer.

    `is_new`: the member has not received its member id.
    """

    member_id: str
    instance_id: str | None = None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupRequestProtocol, ...]
    protocols_bytes: int  # `size_of` the protocols
    assignment: bytes = b""
    is_new: bool = False
    join: object | None = None
    sync: object | None = None

    @property
    def size_bytes(self) -> int:
        texts = len(self.member_id) + len(self.instance_id or "") + len(self.client.client_id)
        return MEMBER_BYTES + texts + self.protocols_bytes + len(self.assignment)

    def update(self, request: JoinGroupRequest, waiter: object) -> None:
        self.protocols, self.join = unique(request.protocols), waiter
        self.protocols_bytes = size_of(self.protocols)
        self.session_timeout_ms, self.rebalance_timeout_ms = _timeouts_ms(request)

    def restore(self, before: Member) -> None:
        """Take back an update."""
        self.protocols, self.protocols_bytes = before.protocols, before.protocols_bytes
        self.session_timeout_ms, self.rebalance_timeout_ms = before.session_timeout_ms, before.rebalance_timeout_ms

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """The first protocol of the member's list that all members support."""
        return next(each.name for each in self.protocols if each.name in candidates)

    def value(self, protocol: str | None) -> MemberValue:
        return MemberValue(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    def joined(self, protocol: str | None) -> JoinGroupResponseMember:
        return JoinGroupResponseMember(
            member_id=self.member_id, group_instance_id=self.instance_id, metadata=self.metadata(protocol)
        )

    def described(self, protocol: str | None) -> DescribedGroupMember:
        """`protocol` None: without metadata."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            member_metadata=self.metadata(protocol),
            member_assignment=self.assignment,
        )


def joining(member_id: str, request: JoinGroupRequest, client: Client, waiter: object) -> Member:
    """A new member that waits for the answer to its first join."""
    session_timeout_ms, rebalance_timeout_ms = _timeouts_ms(request)
    protocols = unique(request.protocols)
    return Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client=client,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=protocols,
        protocols_bytes=size_of(protocols),
        is_new=True,
        join=waiter,
    )


def restored(value: MemberValue, protocol: str | None) -> Member:
    """A member of a stored group. Only the metadata of the group's protocol is stored."""
    protocols = (JoinGroupRequestProtocol(name=protocol or "", metadata=value.subscription),)
    return Member(
        member_id=value.member_id,
        instance_id=value.instance_id,
        client=Client(client_id=value.client_id, host=value.client_host),
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        protocols=protocols,
        protocols_bytes=size_of(protocols),
        assignment=value.assignment,
    )


def unique(protocols: Iterable[JoinGroupRequestProtocol]) -> tuple[JoinGroupRequestProtocol, ...]:
    """The protocols, the first one of each name."""
    found: dict[str, JoinGroupRequestProtocol] = {}
    for each in protocols:
        found.setdefault(each.name, each)
    return tuple(found.values())


def unknown(who: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=Error.UNKNOWN_MEMBER_ID
    )


def size_of(protocols: Iterable[JoinGroupRequestProtocol]) -> int:
    return sum(PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols)


def _timeouts_ms(request: JoinGroupRequest) -> tuple[int, int]:
    """Of a session and of a rebalance."""
    session_timeout_ms, rebalance_timeout_ms = request.session_timeout_ms, request.rebalance_timeout_ms
    return session_timeout_ms, session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms


def subscribed_topics(
    members: Mapping[str, Member], protocol_type: str | None, protocol: str | None
) -> set[str] | None:
    """The topics of all members; None if they are unknown. Source: kafka `ClassicGroup.computeSubscribedTopics`."""
    if protocol_type is None:
        return None
    if not members:
        return set()
    if protocol_type != CONSUMERS or protocol is None:
        return None
    found: set[str] = set()
    for each in members.values():
        topics = _topics(each.metadata(protocol))
        if topics is None:
            return None
        found.update(topics)
    return found


def _topics(metadata: bytes) -> list[str] | None:
    """The topics of a ``ConsumerProtocolSubscription``, which begins alike in all versions; None for other bytes."""
    body = FieldReader(metadata, "cannot read the subscription of a consumer", errors="strict")
    try:
        if body.number(2) < 0:
            return None
        return [str(each) for each in body.items(body.text) or ()]
    except Corrupt:
        return None
