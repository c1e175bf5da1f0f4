"""All groups of one node: membership, committed offsets, expiry, and their storage.

A coordinator belongs to one event loop. `run` loads ``__consumer_offsets`` and then drives every deadline; before it
has loaded, requests get COORDINATOR_LOAD_IN_PROGRESS. Two nodes never coordinate one group.

Order of effects of a commit: durable in the log, then in memory, then the answer (`offsets_writer`).

| limit | value | then |
|---|---|---|
| groups | GROUPS_MAX | GROUP_MAX_SIZE_REACHED for a member, INVALID_COMMIT_OFFSET_SIZE for a commit |
| members of a group, and clients with a new member id | ``group.max.size`` | GROUP_MAX_SIZE_REACHED |
| protocols of a member | PROTOCOLS_MAX | INCONSISTENT_GROUP_PROTOCOL |
| bytes of members, of their expressions and assignments, of groups' names | MEMBER_BYTES_MAX | as for groups |
| offsets, committed and pending, and their bytes | OFFSETS_MAX, OFFSET_BYTES_MAX | INVALID_COMMIT_OFFSET_SIZE |

An offset has the id of its topic. An offset of another topic of the same name is absent for readers, also before its
tombstone is durable: a recreated topic has another id.

Source: kafka `GroupCoordinatorService`, `GroupMetadataManager`, `OffsetMetadataManager`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from local.errors import LogError, NotFound
from local.names import TopicPartition
from tiered.serve.groups.commits import Committer, NewOffset, is_of_another_topic, value_of
from tiered.serve.groups.committed import OFFSET_BYTES, Committed, CommittedOffsets, Transaction
from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.groups.consumer.membership import AnyGroup, ConsumerGroups
from tiered.serve.groups.deadlines import Deadlines
from tiered.serve.groups.expiry import expired, obsolete, of_topic
from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Answer, GroupState, Moment, Store
from tiered.serve.groups.loader import load, partition_of
from tiered.serve.groups.members import MEMBER_BYTES, PROTOCOLS_MAX, Client, size_of, unknown
from tiered.serve.groups.offsets_log import OFFSETS_TOPIC, LogRecord, OffsetsLog, Producer
from tiered.serve.groups.offsets_records import GroupKey, GroupValue, OffsetKey, encode_key, encode_value
from tiered.serve.groups.offsets_writer import OffsetsWriter, commit_error, group_error
from tiered.serve.groups.room import Room
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tiered.serve.read_pool import ReadPool
from tiered.serve.record_source import ServedTopic

OFFSETS_MAX, OFFSET_BYTES_MAX = 1_000_000, 512 << 20
THREADS = 4  # of appends
LOAD_RETRY_S = 5.0
_NAME_BYTES_MAX = 2**15 - 1
_EXPIRY = ""  # the deadline of the next check for expired offsets; no group has an empty id
_log = logging.getLogger(__name__)


def system_moment() -> Moment:
    return Moment(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


class GroupCoordinator:
    """`topics` gives all topics without a wait, None: unknown. `now` is the clock.

    `new_member_id` makes a unique member id from a prefix.
    """

    def __init__(
        self,
        log: OffsetsLog,
        settings: GroupSettings | None = None,
        *,
        topics: Callable[[], Mapping[str, ServedTopic] | None] = lambda: None,
        now: Callable[[], Moment] = system_moment,
        new_member_id: Callable[[str], str] = lambda prefix: f"{prefix}-{uuid.uuid4()}",
    ) -> None:
        self.settings = settings or GroupSettings()
        self._log, self._topics, self.now, self._new_member_id = log, topics, now, new_member_id
        self.pool = ReadPool(THREADS, partition_max=1)
        self._writer = OffsetsWriter(log, self._in_thread, lambda: now().wall_ms)
        self.table: dict[str, AnyGroup] = {}
        self.consumers = ConsumerGroups(self, self._writer)
        self._offsets = CommittedOffsets()
        self._partitions: int | None = None  # of the topic; None: it does not exist
        self._creating: asyncio.Future[int] | None = None
        self._is_loaded = False
        self._deadlines: Deadlines[str] = Deadlines()
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is loaded
        self._early: list[Callable[[], None]] = []  # ends of transactions and deletions of topics before
        self._early_lock = threading.Lock()
        self._room = Room()

    # The life of a coordinator

    async def run(self) -> None:
        """Load, then act on deadlines until it is cancelled."""
        self._wake = asyncio.Event()
        try:
            while not await self.load():
                await asyncio.sleep(LOAD_RETRY_S)
            while True:
                self._wake.clear()
                self.advance()
                due_ms = self._deadlines.next_ms()
                wait_s = None if due_ms is None else max(0, due_ms - self.now().ticks_ms) / 1000
                with suppress(TimeoutError):
                    # Not `wait_for`: it loses a cancellation at the moment of an event.
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            self.close()

    def close(self) -> None:
        """End the threads. Writes at work end by themselves; their clients have no answer."""
        self.consumers.close()
        self.pool.close()

    async def load(self) -> bool:
        """Whether the log was read. An error is logged: groups are not served before."""
        try:
            self._partitions, loaded = await asyncio.shield(self.pool.run("load", "load", partial(load, self._log)))
        except LogError as error:
            _log.error("cannot load the offsets of groups: error=%s", error)
            return False
        except Exception:  # noqa: BLE001 - the other requests are served
            _log.exception("cannot load the offsets of groups")
            return False
        now = self.now()
        self._offsets = loaded.offsets
        with self._early_lock:
            self._loop, early = asyncio.get_running_loop(), self._early
        for call in early:
            call()  # once more is no harm: no transaction begins before the end of the load
        for name, value in loaded.groups.items():
            self.table[name] = Group.stored(name, value, self.settings, self._new_member_id, now)
        for name, records in loaded.consumers.items():
            self.table[name] = self.consumers.load(name, records)
        for name in loaded.offsets.groups():
            self.table.setdefault(name, Group(name, self.settings, self._new_member_id))
        self._is_loaded = True
        for group in list(self.table.values()):
            self.settle(group)
        for name in loaded.offsets.groups():
            if self._obsolete(name):  # a crash came before the tombstones
                self._remove_soon(name, partial(self._obsolete, name), is_group_removed=False)
        self._deadlines.set(_EXPIRY, now.ticks_ms + self.settings.retention_check_interval_ms)
        _log.debug("loaded groups: groups=%d offsets=%d", len(self.table), self._offsets.count)
        return True

    def advance(self) -> None:
        """Act on every deadline that is due."""
        now = self.now()
        for name in self._deadlines.pop_due(now.ticks_ms):
            try:
                if name == _EXPIRY:
                    self._deadlines.set(_EXPIRY, now.ticks_ms + self.settings.retention_check_interval_ms)
                    self.expire()
                elif (group := self.table.get(name)) is not None:
                    if isinstance(group, ConsumerGroup):
                        self.consumers.advance(group)
                    else:
                        group.advance(now)
                        self.settle(group)
            except Exception:  # noqa: BLE001 - the deadlines of the other groups
                _log.exception("cannot act on a deadline of a group: group=%r", name)

    async def prepare(self) -> Error:
        """Create ``__consumer_offsets`` on first use."""
        if not self._is_loaded:
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        if self._partitions is not None:
            return Error.NONE
        create = partial(self._log.create, self.settings.offsets_partitions)
        try:
            self._partitions = await asyncio.shield(self.pool.run("create", "create", create))
        except LogError as error:
            _log.warning("cannot create the topic of group offsets: error=%s", error)
            return Error.COORDINATOR_NOT_AVAILABLE
        return Error.NONE

    def partition_of(self, group_id: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that has the group: final once `prepare` has succeeded."""
        count = self.settings.offsets_partitions if self._partitions is None else self._partitions
        return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, count))

    # Membership

    async def join(self, request: JoinGroupRequest, client: Client, version: int) -> JoinGroupResponse:
        settings = self.settings
        error = self._refusal(request.group_id)
        if not error and not (
            settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms
        ):
            error = Error.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > PROTOCOLS_MAX:
            error = error or Error.INCONSISTENT_GROUP_PROTOCOL
        error = error or await self.prepare()
        group = self.table.get(request.group_id)
        if not error and group is None:
            error = self.room_error(request.group_id) if not request.member_id else Error.UNKNOWN_MEMBER_ID
        texts = client.client_id, request.group_instance_id or "", request.group_instance_id or request.member_id
        size_bytes = MEMBER_BYTES + sum(map(len, texts)) + size_of(request.protocols)
        if not error and not self.has_room(size_bytes):
            error = Error.GROUP_MAX_SIZE_REACHED
        if error:
            return JoinGroupResponse(error_code=error, member_id=request.member_id)
        if isinstance(group, ConsumerGroup):
            new = Group(request.group_id, self.settings, self._new_member_id)
            if error := self.consumers.to_classic(group, new):
                return JoinGroupResponse(error_code=error, member_id=request.member_id)
            group = new
        group = group or self._create(request.group_id)
        waiter: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        group.join(request, client, version, waiter, self.now())
        self.settle(group)
        return await waiter

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        error = self._refusal(request.group_id) or self._loading()
        group = self.table.get(request.group_id)
        if not error and not self.has_room(sum(len(each.assignment) for each in request.assignments)):
            error = Error.GROUP_MAX_SIZE_REACHED
        if error or not isinstance(group, Group):
            return SyncGroupResponse(error_code=error or Error.UNKNOWN_MEMBER_ID)
        waiter: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        group.sync(request, waiter, self.now())
        self.settle(group)
        return await waiter

    def heartbeat(self, request: HeartbeatRequest) -> Error:
        error = self._refusal(request.group_id)
        if error or not self._is_loaded:
            return error  # while it loads, a member stays: its session begins anew
        group = self.table.get(request.group_id)
        if not isinstance(group, Group):
            return Error.UNKNOWN_MEMBER_ID
        found = group.heartbeat(request, self.now())
        self._arm(group)
        return found

    async def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """The leave of the last member is durable on return: no later start waits for a member that left."""
        error = self._refusal(request.group_id) or self._loading()
        group = self.table.get(request.group_id)
        if error or group is None:
            return LeaveGroupResponse(error_code=error, members=() if error else tuple(map(unknown, request.members)))
        if isinstance(group, ConsumerGroup):
            return LeaveGroupResponse(members=await self.consumers.leave(group, request.members))
        found = group.leave(request, self.now())
        failures = await asyncio.gather(*self.settle(group))
        return LeaveGroupResponse(error_code=next(filter(None, failures))) if any(failures) else found

    # Offsets

    async def commit(
        self, committer: Committer, offsets: Sequence[NewOffset], *, is_id_known: bool = False
    ) -> list[Error]:
        """The error of each offset. `is_id_known`: the client knows GROUP_ID_NOT_FOUND (OffsetCommit version 9)."""
        error = self._loading() or await self.prepare() or self._check(committer, is_id_known=is_id_known)
        if not error and isinstance(group := self.table[committer.group_id], Group):
            group.committed(committer.member_id, self.now())
            self._arm(group)
        return await self._append(committer.group_id, offsets, error, None)

    async def commit_transactional(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        offsets: Sequence[NewOffset],
        *,
        partition: TopicPartition,
    ) -> list[Error]:
        """Offsets in a transaction: durable and pending on return, committed by `transaction_ended`.

        `partition` of ``__consumer_offsets`` belongs to the transaction: only there its marker is written.
        """
        error = await self.prepare()
        if not error and partition != self.partition_of(committer.group_id):
            error = Error.COORDINATOR_NOT_AVAILABLE  # the topic was created again in between
        error = error or self._check(committer, is_transactional=True)
        producer = Producer(producer_id, producer_epoch)
        return await self._append(committer.group_id, offsets, error, producer)

    def transaction_ended(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """The marker of a producer is durable in this partition of ``__consumer_offsets``. From any thread."""
        self._call_soon(partial(self._end, Transaction(partition, producer_id), is_commit=is_commit))

    def topic_deleted(self, topic: str) -> None:
        """Begin to remove the offsets of a deleted topic. From any thread."""
        self._call_soon(partial(self._remove_topic, topic))

    def _call_soon(self, call: Callable[[], None]) -> None:
        with self._early_lock:
            if self._loop is None:
                self._early.append(call)  # the load may have read the partition before
                return
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(call)

    def _end(self, transaction: Transaction, *, is_commit: bool) -> None:
        self._offsets.end(transaction, is_commit=is_commit)

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Of a group; empty for an unknown one. From any thread."""
        found, topics = dict(self._offsets.of(group_id)), self._topics()
        other = {each for each, at in found.items() if is_of_another_topic(at.value, each.topic, topics)}
        return {each: at for each, at in found.items() if each not in other} if other else found

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition."""
        return self._offsets.is_pending(group_id, partition)

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Error | dict[TopicPartition, Error]:
        """The error of the group, or that of each partition."""
        error = Error.INVALID_GROUP_ID if not group_id else self._loading()
        group = self.table.get(group_id)
        if error or group is None:
            return error or Error.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
            return Error.NON_EMPTY_GROUP
        found = {
            each: Error.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(each.topic) else Error.NONE
            for each in partitions
        }
        wanted = [each for each, refused in found.items() if not refused]
        failure = await self._remove(group_id, lambda: wanted, is_group_removed=False)
        return commit_error(failure) if failure else found

    # Administration

    def groups(self) -> Mapping[str, AnyGroup]:
        return self.table

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> Error:
        """Whether a member may read the offsets of its group."""
        group = self.table.get(group_id)
        return group.check_fetch(member_id, member_epoch) if isinstance(group, ConsumerGroup) else Error.NONE

    def loading(self) -> Error:
        return self._loading()

    def described(self, group_id: str) -> DescribedGroup | None:
        group = self.table.get(group_id)
        return group.described() if isinstance(group, Group) else None

    async def delete_groups(self, names: Iterable[str]) -> list[Error]:
        return list(await asyncio.gather(*(self._delete(each) for each in names)))

    def expire(self) -> None:
        """Begin to remove expired offsets, and empty groups without offsets."""
        for name, group in list(self.table.items()):
            if group.is_idle or self._offsets.of(name):
                self._remove_soon(name, partial(self._expired, name), is_group_removed=True)

    def _remove_topic(self, topic: str) -> None:
        for name in list(self._offsets.groups()):
            wanted = partial(self._offsets_of_topic, name, topic)
            if wanted():
                self._remove_soon(name, wanted, is_group_removed=False)

    # Private

    def _loading(self) -> Error:
        return Error.NONE if self._is_loaded else Error.COORDINATOR_LOAD_IN_PROGRESS

    def _refusal(self, group_id: str) -> Error:
        return Error.NONE if group_id and len(group_id.encode()) <= _NAME_BYTES_MAX else Error.INVALID_GROUP_ID

    def room_error(self, group_id: str) -> Error:
        return Error.NONE if self._room.has_for_group(group_id) else Error.GROUP_MAX_SIZE_REACHED

    def _create(self, group_id: str) -> Group:
        group = self.table[group_id] = Group(group_id, self.settings, self._new_member_id)
        self._room.note(group_id, group.size_bytes)
        return group

    def has_room(self, size_bytes: int) -> bool:
        return self._room.has(size_bytes)

    def settle(self, group: AnyGroup) -> list[asyncio.Future[Error]]:
        """Act on the results of an event of the group; the outcome of each write that begins."""
        written: list[asyncio.Future[Error]] = []
        while isinstance(group, Group) and group.outputs:
            outputs, group.outputs = group.outputs, []
            for each in outputs:
                match each:
                    case Answer(waiter, response):
                        assert isinstance(waiter, asyncio.Future)
                        if not waiter.done():
                            waiter.set_result(response)
                    case Store(value, done):
                        written.append(self._store(group, value, done))
        if self.table.get(group.group_id) is not group:
            return written  # it became a group of the other protocol
        self._room.note(group.group_id, group.size_bytes)
        self._arm(group)
        return written

    def _arm(self, group: AnyGroup) -> None:
        """Note the next deadline of the group."""
        name, due_ms = group.group_id, group.next_deadline_ms
        earliest_ms = self._deadlines.next_ms()
        if due_ms is None or group.state is GroupState.DEAD:
            self._deadlines.cancel(name)
            return
        self._deadlines.set(name, due_ms)
        if self._wake is not None and (earliest_ms is None or due_ms < earliest_ms):
            self._wake.set()

    def _store(self, group: Group, value: GroupValue, done: Callable[[Error, Moment], None]) -> asyncio.Future[Error]:
        written: asyncio.Future[Error] = asyncio.get_running_loop().create_future()

        def stored(offsets: Sequence[int], error: Error) -> None:
            if not written.done():  # its request may be cancelled
                written.set_result(group_error(error))
            done(group_error(error), self.now())
            self.settle(group)

        try:
            record = encode_key(GroupKey(group.group_id)), encode_value(value)
        except LogError:  # a text of a client is too long for a record
            stored((), Error.MESSAGE_TOO_LARGE)
        else:
            self._writer.submit(self.partition_of(group.group_id).partition, [record], stored)
        return written

    def _check(self, committer: Committer, *, is_id_known: bool = False, is_transactional: bool = False) -> Error:
        """Whether the commit is accepted. A client without membership creates its group."""
        group = self.table.get(committer.group_id)
        if group is None:
            if committer.generation >= 0:
                return Error.GROUP_ID_NOT_FOUND if is_id_known else Error.ILLEGAL_GENERATION
            if self.room_error(committer.group_id) or len(committer.group_id.encode()) > _NAME_BYTES_MAX:
                return Error.INVALID_COMMIT_OFFSET_SIZE
            group = self._create(committer.group_id)
        sender = committer.generation, committer.member_id, committer.instance_id
        if isinstance(group, ConsumerGroup):
            return group.check_commit(*sender, is_transactional=is_transactional, knows_epochs=is_id_known)
        return group.check_commit(*sender, is_transactional=is_transactional)

    async def _append(
        self, group_id: str, offsets: Sequence[NewOffset], error: Error, producer: Producer | None
    ) -> list[Error]:
        """Append the valid ones of `offsets`; the error of each."""
        errors = [error or self._offset_error(each) for each in offsets]
        valid = [each for each, refused in zip(offsets, errors, strict=True) if not refused]
        size_bytes = sum(OFFSET_BYTES + len(each.metadata or "") for each in valid)
        is_full = self._offsets.count + len(valid) > OFFSETS_MAX
        if not error and (is_full or self._offsets.size_bytes + size_bytes > OFFSET_BYTES_MAX):
            return [refused or Error.INVALID_COMMIT_OFFSET_SIZE for refused in errors]
        if not valid:
            return errors
        now_ms, topics = self.now().wall_ms, self._topics() or {}
        values = [(each.partition, value_of(each, now_ms, topics.get(each.partition.topic))) for each in valid]
        records = [
            (encode_key(OffsetKey(group_id, where.topic, where.partition)), encode_value(value))
            for where, value in values
        ]
        number = self.partition_of(group_id).partition
        written: asyncio.Future[Error] = asyncio.get_running_loop().create_future()

        def done(log_offsets: Sequence[int], failure: Error) -> None:
            if not failure:
                self.table.get(group_id) or self._create(group_id)  # deleted while the commit was waiting
            for (where, value), at in zip(values, log_offsets, strict=False):
                if producer is None:
                    self._offsets.commit(group_id, where, value, at)
                else:
                    self._offsets.pend(Transaction(number, producer.producer_id), group_id, where, value, at)
            if not written.done():
                written.set_result(failure)

        self._writer.submit(number, records, done, producer=producer)
        failure = await written
        return [refused or commit_error(failure) for refused in errors]

    def _offset_error(self, offset: NewOffset) -> Error:
        size_bytes = len((offset.metadata or "").encode())
        is_long = size_bytes > min(self.settings.offset_metadata_max_bytes, _NAME_BYTES_MAX)
        return Error.OFFSET_METADATA_TOO_LARGE if is_long else Error.NONE

    async def _delete(self, group_id: str) -> Error:
        if not self._is_loaded:
            return Error.COORDINATOR_LOAD_IN_PROGRESS
        group = self.table.get(group_id)
        if group is None:
            return Error.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return Error.NON_EMPTY_GROUP
        failure = await self._remove(group_id, partial(self._all_offsets, group_id), is_group_removed=True)
        if failure:
            return group_error(failure)
        return Error.NONE if self.table.get(group_id) is not group else Error.NON_EMPTY_GROUP

    async def _remove(
        self, group_id: str, wanted: Callable[[], Collection[TopicPartition]], *, is_group_removed: bool
    ) -> Error:
        removed: asyncio.Future[Error] = asyncio.get_running_loop().create_future()
        self._remove_soon(
            group_id,
            wanted,
            is_group_removed=is_group_removed,
            done=lambda error: None if removed.done() else removed.set_result(error),
        )
        return await removed

    def _remove_soon(
        self,
        group_id: str,
        wanted: Callable[[], Collection[TopicPartition]],
        *,
        is_group_removed: bool,
        done: Callable[[Error], None] = lambda error: None,
    ) -> None:
        """Append tombstones of the `wanted` offsets; of the group too if it is idle then and has no other offsets.

        A crash in between leaves a group with fewer offsets, or none: the group's tombstone is the last record.
        """
        removed: list[TopicPartition] = []
        is_ending = False

        def build() -> list[LogRecord]:
            nonlocal is_ending
            removed.extend(wanted())
            group, rest = self.table.get(group_id), self._offsets.of(group_id).keys() - removed
            is_ending = is_group_removed and group is not None and group.state is GroupState.EMPTY and not rest
            is_ending = is_ending and not (set(self._offsets.pending_of(group_id)) - set(removed))
            if isinstance(group, ConsumerGroup):
                is_ending = is_ending and not self.consumers.is_busy(group)
            records: list[LogRecord] = [
                (encode_key(OffsetKey(group_id, each.topic, each.partition)), None) for each in removed
            ]
            return [*records, *self.consumers.tombstones(group_id)] if is_ending else records

        def finish(offsets: Sequence[int], error: Error) -> None:
            if not error:
                for each in removed:
                    self._offsets.remove(group_id, each)
                group = self.table.get(group_id)
                if is_ending:
                    self.consumers.repaired(group_id)
                if is_ending and group is not None and group.state is GroupState.EMPTY:
                    if isinstance(group, Group):
                        group.die()
                        self.settle(group)
                    self.forget(group_id)
            done(error)

        self._writer.submit_alone(self.partition_of(group_id).partition, build, finish)

    def forget(self, group_id: str) -> None:
        self.table.pop(group_id, None)
        self._room.forget(group_id)
        self._deadlines.cancel(group_id)

    def _all_offsets(self, group_id: str) -> set[TopicPartition]:
        group = self.table.get(group_id)
        if group is None or group.state is not GroupState.EMPTY:
            return set()  # a member joined while the deletion was waiting
        return {*self._offsets.of(group_id), *self._offsets.pending_of(group_id)}

    def _offsets_of_topic(self, group_id: str, topic: str) -> list[TopicPartition]:
        return of_topic(self._offsets, group_id, topic, self._topics() or {})

    def _obsolete(self, group_id: str) -> list[TopicPartition]:
        return obsolete(self._offsets, group_id, self._topics())

    def _expired(self, group_id: str) -> list[TopicPartition]:
        group, now_ms = self.table.get(group_id), self.now().wall_ms
        return expired(self._offsets, group, now_ms, self.settings.offsets_retention_ms)

    def _in_thread(self, partition: int, call: Callable[[], None]) -> asyncio.Future[None]:
        append = self.pool.run(partition, object(), call)
        append.add_done_callback(self._check_topic)
        return append

    def _check_topic(self, append: asyncio.Future[None]) -> None:
        if not append.cancelled() and isinstance(append.exception(), NotFound):
            self._partitions = None  # the next request creates the topic
