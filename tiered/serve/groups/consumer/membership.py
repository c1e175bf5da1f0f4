"""All groups of the consumer protocol of a node: heartbeats, durable changes, conversion from and to classic groups.

Order of effects of a heartbeat: its changes are in memory, then in the log, then the response. A crash in between
leaves a prefix of the changes in the log, and the client has no response: it sends the heartbeat again. The members of
a target assignment precede its epoch, so a prefix makes the next heartbeat compute it again.

A group has one append at work; later changes wait for it. If it fails, its changes and the later ones are taken back,
and their requests get the error. The log may have a prefix of the append. So the keys of a failed append are unsure:
the next append of the group begins with the values that memory has of them, a group that is removed ends with them.

| step of a failed append | log | memory | after a crash |
|---|---|---|---|
| 1. it fails | a prefix of its changes | before the changes | the prefix counts; no client has a response |
| 2. next append: the unsure keys | as memory, or a prefix of them | before its changes | step 1 or 3 |
| 3. its changes | as any append | after its changes | no key is unsure |

| group before | request | group after |
|---|---|---|
| classic, empty | ConsumerGroupHeartbeat that joins | consumer, its offsets unchanged |
| classic, with members | ConsumerGroupHeartbeat | the same: GROUP_ID_NOT_FOUND, as with the migration policy DISABLED |
| consumer, empty | JoinGroup | classic |
| consumer, with members | JoinGroup | the same: INCONSISTENT_GROUP_PROTOCOL |

Source: kafka `GroupMetadataManager.getOrMaybeCreateConsumerGroup`, `CoordinatorRuntime`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from local.errors import InvalidRequest, LogError
from local.names import TopicPartition, check_topic
from tiered.serve.groups.consumer.assignors import ASSIGNORS
from tiered.serve.groups.consumer.description import described
from tiered.serve.groups.consumer.fencing import Refused
from tiered.serve.groups.consumer.group import Beaten, ConsumerGroup
from tiered.serve.groups.consumer.records import (
    Change,
    ConsumerKey,
    ConsumerValue,
    encode_consumer_key,
    encode_consumer_value,
)
from tiered.serve.groups.consumer.regexes import Resolution
from tiered.serve.groups.consumer.targets import Topics
from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState, Moment
from tiered.serve.groups.members import Client, unknown
from tiered.serve.groups.offsets_log import LogRecord
from tiered.serve.groups.offsets_records import GroupKey, encode_key
from tiered.serve.groups.offsets_writer import RECORD_BYTES_MAX, OffsetsWriter, group_error, is_too_large
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tiered.serve.messages.groups import MemberIdentity, MemberResponse
from tiered.serve.read_pool import ReadPool

AnyGroup = Group | ConsumerGroup
UNSURE_BYTES_MAX = 16 << 20  # of the keys of failed appends; more members join after a repair
_KEY_BYTES = 300  # of the objects of a key, without its texts
_ID_REQUIRED_SINCE = 1  # version of ConsumerGroupHeartbeat
_NAMES_BYTES_MAX = RECORD_BYTES_MAX // 2  # of the topics of a member, in its record
_log = logging.getLogger(__name__)


class Host(Protocol):
    """What a group needs of the coordinator of all groups."""

    settings: GroupSettings
    now: Callable[[], Moment]
    table: dict[str, AnyGroup]
    pool: ReadPool

    async def prepare(self) -> Error: ...

    def partition_of(self, group_id: str) -> TopicPartition: ...

    def has_room(self, size_bytes: int) -> bool:
        """For members."""

    def room_error(self, group_id: str) -> Error:
        """Of a new group."""

    def settle(self, group: AnyGroup) -> object:
        """Note the size and the next deadline of a group."""

    def forget(self, group_id: str) -> None:
        """Remove a group."""


@dataclass(slots=True)
class _Append:
    """An append at work, and what waits for it."""

    changes: list[Change]
    waiters: list[Callable[[Error], None]]
    later: list[Change] = field(default_factory=list)
    later_waiters: list[Callable[[Error], None]] = field(default_factory=list)
    is_written: bool = True  # False: the log has none of its records


def new_member_id() -> str:
    """Source: kafka `Uuid.randomUuid`."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class ConsumerGroups:
    """Belongs to one event loop. `new_member_id` makes a unique member id."""

    def __init__(self, host: Host, writer: OffsetsWriter, new_member_id: Callable[[], str] = new_member_id) -> None:
        self._host, self._writer, self._new_member_id = host, writer, new_member_id
        self._appends: dict[str, _Append] = {}
        self._replaced: dict[str, Group] = {}  # empty classic groups whose conversion is not durable
        self._topics: Topics = {}  # the last known ones
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsure: dict[str, dict[ConsumerKey, None]] = {}  # keys of failed appends, by group
        self._unsure_bytes = 0

    def load(self, group_id: str, records: Mapping[ConsumerKey, ConsumerValue]) -> ConsumerGroup:
        host = self._host
        group = ConsumerGroup.loaded(group_id, records, host.settings, self._new_member_id, host.now(), host.has_room)
        self._note_unsure(group_id, [key for key, value in records.items() if group.value(key) != value])
        return group

    def close(self) -> None:
        """End the resolution of regular expressions."""
        for each in self._tasks:
            each.cancel()

    async def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        version: int,
        topics: Topics,
        may_match: Callable[[str], bool],
    ) -> ConsumerGroupHeartbeatResponse:
        """`may_match` is whether a regular expression of the client may match a topic."""
        self._topics = topics
        try:
            _check(request, version)
            if error := await self._host.prepare():
                raise Refused(error)
            group = self._group(request)
            was_short = group.reservation.is_short
            found = group.heartbeat(request, client, topics, self._host.now())
        except Refused as refused:
            return ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message)
        if group.reservation.is_short and not was_short:
            _log.warning("no room for all partitions of a group, new ones are not assigned: group=%r", group.group_id)
        self._adopt(group)
        self._begin_to_resolve(group, found, may_match)
        error = await self._durable(group)
        return ConsumerGroupHeartbeatResponse(error_code=error) if error else found.response

    async def leave(self, group: ConsumerGroup, members: Sequence[MemberIdentity]) -> tuple[MemberResponse, ...]:
        """LeaveGroup, by which an administrator removes members, static ones by their instance ids.

        Source: kafka `GroupMetadataManager.classicGroupLeaveToConsumerGroup`.
        """
        left: dict[str, None] = {}
        found = []
        for each in members:
            instance_id, error = each.group_instance_id, Error.UNKNOWN_MEMBER_ID
            owner = group.static.get(instance_id) if instance_id is not None else None
            owner = None if owner in left else owner
            member_id = each.member_id or owner or ""
            if instance_id is not None and owner not in (None, member_id):
                error = Error.FENCED_INSTANCE_ID
            elif member_id in group.members and member_id not in left and (instance_id is None or owner is not None):
                left[member_id], error = None, Error.NONE
            found.append(replace(unknown(each), error_code=error))
        if left:
            group.remove(left, self._topics)
            failure = await self._durable(group)
            found = [replace(each, error_code=each.error_code or failure) for each in found]
        return tuple(found)

    def described(self, group_id: str, names: Mapping[uuid.UUID, str]) -> DescribedConsumerGroup:
        """`names` of topics by id."""
        group = self._host.table.get(group_id)
        if isinstance(group, ConsumerGroup):
            return described(group, names)
        if not group_id:
            return DescribedConsumerGroup(group_id=group_id, error_code=Error.INVALID_GROUP_ID)
        text = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        return DescribedConsumerGroup(group_id=group_id, error_code=Error.GROUP_ID_NOT_FOUND, error_message=text)

    def advance(self, group: ConsumerGroup) -> None:
        """Act on the deadlines of a group."""
        group.advance(self._topics, self._host.now())
        self._submit(group, lambda error: None)

    def is_busy(self, group: ConsumerGroup) -> bool:
        """Whether changes of the group are not durable."""
        return group.group_id in self._appends

    def to_classic(self, group: ConsumerGroup, new: Group) -> Error:
        """`new` takes the place of an empty group."""
        if group.members:
            return Error.INCONSISTENT_GROUP_PROTOCOL
        if self.is_busy(group):
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        name, keys = group.group_id, list(group.record_keys())

        def done(offsets: Sequence[int], error: Error) -> None:
            self._note_unsure(name, keys) if error else self.repaired(name)

        self._writer.submit(self._host.partition_of(name).partition, self.tombstones(name), done)
        self._host.table[name] = new
        return Error.NONE

    def tombstones(self, group_id: str) -> list[LogRecord]:
        """Of all records of an empty group of either protocol, the unsure ones included."""
        group = self._host.table.get(group_id)
        keys = group.record_keys() if isinstance(group, ConsumerGroup) else [GroupKey(group_id)]
        return [*self.repairs(group_id), *(_record(Change(each, None, None)) for each in keys)]

    def repairs(self, group_id: str, changes: Sequence[Change] = ()) -> list[LogRecord]:
        """Records of the unsure keys, with the values before `changes`, the latest ones."""
        group = self._host.table.get(group_id)
        before = {each.key: each.before for each in reversed(changes)}
        records = []
        for key in self._unsure.get(group_id, ()):
            value = group.value(key) if isinstance(group, ConsumerGroup) else None
            value = before.get(key, value)
            records.append(_record(Change(key, value, None)))
        return records

    def repaired(self, group_id: str) -> None:
        """No key of the group is unsure."""
        self._unsure_bytes -= sum(map(_bytes_of, self._unsure.pop(group_id, ())))

    # Private

    def _group(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        """The group of a request, a new one for a request that joins. Raises Refused."""
        host, name, joins = self._host, request.group_id, request.member_epoch == JOINS
        group = host.table.get(name)
        if joins and self._unsure_bytes > UNSURE_BYTES_MAX:
            raise Refused(Error.COORDINATOR_NOT_AVAILABLE)
        if isinstance(group, ConsumerGroup):
            return group
        if not joins:
            what = "Group" if request.member_epoch < JOINS else "Consumer group"
            text = f"{what} {name} not found." if group is None else f"Group {name} is not a consumer group."
            raise Refused(Error.GROUP_ID_NOT_FOUND, text)
        if group is None and (error := host.room_error(name)):
            raise Refused(error)
        new = ConsumerGroup(name, host.settings, self._new_member_id, host.has_room)
        if group is not None:
            if group.state is not GroupState.EMPTY:
                text = f"Cannot upgrade classic group {name} to consumer group because online upgrade is disabled."
                raise Refused(Error.GROUP_ID_NOT_FOUND, text)
            new.replaces_classic()
        return new

    def _adopt(self, group: ConsumerGroup) -> None:
        """Put a new group into the table."""
        table, name = self._host.table, group.group_id
        before = table.get(name)
        if isinstance(before, Group):
            self._replaced[name] = before
            _log.info("an empty classic group becomes a consumer group: group=%r", name)
        table[name] = group

    async def _durable(self, group: ConsumerGroup) -> Error:
        waiter: asyncio.Future[Error] = asyncio.get_running_loop().create_future()
        self._submit(group, lambda error: None if waiter.done() else waiter.set_result(error))
        return await waiter

    def _submit(self, group: ConsumerGroup, done: Callable[[Error], None]) -> None:
        """`done` follows when all changes of the group are durable, or were taken back."""
        changes, append = group.take_changes(), self._appends.get(group.group_id)
        if append is not None:
            append.later += changes
            append.later_waiters.append(done)
            self._host.settle(group)
        elif changes or group.group_id in self._unsure:
            self._begin(group, changes, [done])
            self._host.settle(group)
        else:
            self._host.settle(group)
            done(Error.NONE)

    def _begin(self, group: ConsumerGroup, changes: list[Change], waiters: list[Callable[[Error], None]]) -> None:
        self._appends[group.group_id] = _Append(changes, waiters)
        try:
            records = [*self.repairs(group.group_id, changes), *map(_record, changes)]
        except LogError:  # a text of a client is too long for a record
            records = []
        if not records or is_too_large(records):
            self._appends[group.group_id].is_written = False
            self._end(group, (), Error.MESSAGE_TOO_LARGE)
            return
        self._writer.submit(self._host.partition_of(group.group_id).partition, records, partial(self._end, group))

    def _end(self, group: ConsumerGroup, offsets: Sequence[int], error: Error) -> None:
        append = self._appends.pop(group.group_id)
        replaced = self._replaced.pop(group.group_id, None)
        waiters = append.waiters
        if error:
            group.revert([*append.changes, *append.later, *group.take_changes()], self._host.now())
            group.reservation.size_bytes = 0  # the next target reserves again
            if append.is_written:
                self._note_unsure(group.group_id, [x.key for x in append.changes if isinstance(x.key, ConsumerKey)])
            waiters = [*waiters, *append.later_waiters]
            if replaced is not None:
                self._host.table[group.group_id] = replaced
                self._host.settle(replaced)
            elif not group.epoch:
                self._host.forget(group.group_id)
        else:
            self.repaired(group.group_id)
        if not error and append.later:
            self._begin(group, append.later, append.later_waiters)
        elif not error:
            waiters = [*waiters, *append.later_waiters]
        for each in waiters:
            each(group_error(error))
        self._host.settle(group)

    def _note_unsure(self, group_id: str, keys: Sequence[ConsumerKey]) -> None:
        if keys:
            unsure = self._unsure.setdefault(group_id, {})
            self._unsure_bytes += sum(_bytes_of(each) for each in set(keys) - unsure.keys())
            unsure.update(dict.fromkeys(keys))

    def _begin_to_resolve(self, group: ConsumerGroup, found: Beaten, may_match: Callable[[str], bool]) -> None:
        if not found.regexes:
            return
        group.is_resolving = True
        task = asyncio.get_running_loop().create_task(self._resolve(group, found.regexes, may_match))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, group: ConsumerGroup, regexes: Collection[str], may_match: Callable[[str], bool]) -> None:
        """Match all topics in a thread. The group knows the result before its members' next heartbeats."""
        topics = self._topics
        names = [each for each in topics if may_match(each)]
        resolution = Resolution(regexes, names)
        found = None
        try:
            while found is None:  # other groups have a turn after each step
                found = await self._host.pool.run("regexes", group.group_id, resolution.step)
        except Exception:  # noqa: BLE001 - a later heartbeat tries again
            _log.exception("cannot resolve the regular expressions of a group: group=%r", group.group_id)
            group.is_resolving = False
            return
        group.resolved(found, topics, self._host.now())
        if self._host.table.get(group.group_id) is group:
            self._submit(group, lambda error: None)


def _bytes_of(key: ConsumerKey) -> int:
    return _KEY_BYTES + len(key.group) + len(key.name)


def _record(change: Change) -> LogRecord:
    key = encode_key(change.key) if isinstance(change.key, GroupKey) else encode_consumer_key(change.key)
    return key, None if change.value is None else encode_consumer_value(change.value)


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Source: kafka `GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid`."""
    epoch, names = request.member_epoch, request.subscribed_topic_names or ()
    needs_id = version >= _ID_REQUIRED_SINCE or epoch > 0 or epoch == LEAVES
    checks = (
        (needs_id and not request.member_id.strip(), "MemberId can't be empty."),
        (not request.group_id.strip(), "GroupId can't be empty."),
        (_is_blank(request.instance_id), "InstanceId can't be empty."),
        (_is_blank(request.rack_id), "RackId can't be empty."),
        (
            epoch == JOINS and request.rebalance_timeout_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (epoch == JOINS and request.topic_partitions != (), "TopicPartitions must be empty when (re-)joining."),
        (
            epoch == JOINS and request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (epoch == LEAVES_FOR_NOW and request.instance_id is None, "InstanceId can't be null."),
        (epoch < LEAVES_FOR_NOW, "MemberEpoch is invalid."),
        (not all(map(_is_topic, names)), "SubscribedTopicNames has an invalid name."),
        (sum(len(each) + 2 for each in names) > _NAMES_BYTES_MAX, "SubscribedTopicNames is too long."),
    )
    for fails, text in checks:
        if fails:
            raise Refused(Error.INVALID_REQUEST, text)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        text = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {known}."
        raise Refused(Error.UNSUPPORTED_ASSIGNOR, text)


def _is_topic(name: str) -> bool:
    try:
        return bool(check_topic(name))
    except InvalidRequest:
        return False


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()
