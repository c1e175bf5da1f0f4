"""A group of simulated clients: requests in, answers collected, a clock that the test moves."""

from __future__ import annotations

from itertools import count
from typing import Any

from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Answer, Moment, Store
from tiered.serve.groups.members import Client
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

CLIENT = Client(client_id="tester", host="/10.0.0.1")
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
WALL_MS = 1_700_000_000_000
SETTINGS = GroupSettings(initial_rebalance_delay_ms=DELAY_MS, max_size=5)


def subscription(*topics: str) -> bytes:
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def protocols(*names: str, metadata: bytes | None = None) -> tuple[JoinGroupRequestProtocol, ...]:
    data = subscription("orders") if metadata is None else metadata
    return tuple(JoinGroupRequestProtocol(name=each, metadata=data) for each in names)


def joining(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    given = {
        "group_id": "g",
        "member_id": member_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": protocols("range", "roundrobin"),
        **fields,
    }
    return JoinGroupRequest(**given)


def syncing(member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
    given = [SyncGroupRequestAssignment(member_id=name, assignment=each) for name, each in (assignments or {}).items()]
    return SyncGroupRequest(
        group_id="g", generation_id=generation, member_id=member_id, assignments=tuple(given), **fields
    )


class GroupWorld:
    """`answers` by waiter; waiters are numbers. Stores are done at once unless `holds` is set."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.ids = count(1)
        self.group = Group("g", settings, lambda prefix: f"{prefix}-{next(self.ids)}")
        self.settings = settings
        self.now_ms = 0
        self.answers: dict[int, JoinGroupResponse | SyncGroupResponse] = {}
        self.stores: list[Store] = []
        self.values: list[Store] = []  # all of them
        self.holds = False
        self.waiters = count()

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, WALL_MS + self.now_ms)

    def join(self, member_id: str = "", version: int = 9, **fields: Any) -> int:
        waiter = next(self.waiters)
        self.group.join(joining(member_id, **fields), CLIENT, version, waiter, self.now)
        self.settle()
        return waiter

    def joined(self, member_id: str = "", version: int = 9, **fields: Any) -> JoinGroupResponse:
        """The response to a join, which must be there at once."""
        return self.join_answer(self.join(member_id, version, **fields))

    def join_answer(self, waiter: int) -> JoinGroupResponse:
        found = self.answers[waiter]
        assert isinstance(found, JoinGroupResponse)
        return found

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        waiter = next(self.waiters)
        generation = fields.pop("generation", self.group.generation)
        self.group.sync(syncing(member_id, generation, assignments, **fields), waiter, self.now)
        self.settle()
        return waiter

    def sync_answer(self, waiter: int) -> SyncGroupResponse:
        found = self.answers[waiter]
        assert isinstance(found, SyncGroupResponse)
        return found

    def beat(self, member_id: str, generation: int | None = None, **fields: Any) -> Error:
        at = self.group.generation if generation is None else generation
        request = HeartbeatRequest(group_id="g", generation_id=at, member_id=member_id, **fields)
        found = self.group.heartbeat(request, self.now)
        self.settle()
        return found

    def leave(self, *members: str | MemberIdentity) -> LeaveGroupResponse:
        who = tuple(each if isinstance(each, MemberIdentity) else MemberIdentity(member_id=each) for each in members)
        found = self.group.leave(LeaveGroupRequest(group_id="g", members=who), self.now)
        self.settle()
        return found

    def advance(self, ms: int) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= end:
            self.now_ms = max(self.now_ms, due_ms)
            self.group.advance(self.now)
            self.settle()
        self.now_ms = end

    def settle(self) -> None:
        while self.group.outputs:
            outputs, self.group.outputs = self.group.outputs, []
            for each in outputs:
                match each:
                    case Answer(waiter, response):
                        assert isinstance(waiter, int)
                        assert waiter not in self.answers, f"request {waiter} has two answers"
                        self.answers[waiter] = response
                    case Store():
                        self.values.append(each)
                        self.stores.append(each)
            if not self.holds:
                self.store()

    def store(self, error: Error = Error.NONE) -> None:
        """Finish the stores in their order."""
        stores, self.stores = self.stores, []
        for each in stores:
            each.done(error, self.now)
        if self.group.outputs:
            self.settle()

    def member(self, **fields: Any) -> str:
        """A member id of a client that has to join with it (KIP-394)."""
        found = self.joined(**fields)
        assert found.error_code is Error.MEMBER_ID_REQUIRED
        return found.member_id

    def stable(self, count: int = 1, **fields: Any) -> list[str]:
        """A stable group of as many members; the first one leads."""
        ids = [self.member(**fields) for _ in range(count)]
        waiters = [self.join(each, **fields) for each in ids]
        while waiters[0] not in self.answers:
            self.advance(DELAY_MS)
        leader = self.join_answer(waiters[0]).leader
        others = [self.sync(each) for each in ids if each != leader]
        self.sync(leader, {each: b"of " + each.encode() for each in ids})
        assert all(not self.sync_answer(each).error_code for each in others)
        return [leader, *(each for each in ids if each != leader)]
