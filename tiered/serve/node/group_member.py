"""A member of a consumer group: reads its share of the partitions through a node, and commits what was printed.

The group has the consumer protocol (KIP-848): the node assigns the partitions. One connection carries heartbeats,
reads and commits.

| order of effects | a crash after this step |
|---|---|
| 1. records are printed and flushed | the next member prints them again |
| 2. their offsets are committed | no record is printed again |
| 3. a heartbeat gives partitions up | another member continues at the committed offsets |

A member that the node removed, because it was silent for the session timeout, joins again and reads again from the
committed offsets. A partition without a committed offset begins where `start` says, and this offset is committed too:
the next member continues there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import BinaryIO
from uuid import UUID, uuid4

import numpy as np

from local import kernels
from local.errors import Conflict, InvalidRequest, LogError, Unavailable
from local.format.batch_header import CONTROL
from local.format.columns import BatchTable, Columns
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition, check_topic
from local.records.isolation import Isolation, without_aborted
from tiered.read.reader import decoded, within
from tiered.serve.commands.client import NoResponse
from tiered.serve.file_range import FileRange
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
    JOINS,
    LEAVES,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tiered.serve.messages.fetch import AbortedTransaction as FetchedTransaction
from tiered.serve.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tiered.serve.node import group_calls
from tiered.serve.node.command_node import Node, Stop
from tiered.serve.node.following import parts_of
from tiered.serve.node.operations import find_batch

FETCH_BYTES, PARTITION_BYTES = 16 << 20, 1 << 20
WAIT_MS = 500  # of a read without records; then a signal, and the next heartbeat, have their turn
PAUSE_S = 0.2
COMMIT_S = 1.0  # between two commits of a member that has printed all it got
REBALANCE_MS = 60_000  # in which a member gives up partitions; a blocked output lets it miss the time
_REMOVED = (Error.UNKNOWN_MEMBER_ID, Error.FENCED_MEMBER_EPOCH, Error.GROUP_ID_NOT_FOUND)
_CLASSIC = (
    "cannot join the group, its members use the classic protocol: stop them, or set group.protocol=consumer in them"
)
Shown = Callable[[TopicPartition, Columns], bytes]  # records as they are printed


@dataclass(frozen=True, slots=True)
class Wish:
    """What to read. Raises InvalidRequest for a partition instead of a topic.

    `start`: a time in ms or a code of ListOffsets, for partitions without a committed offset. `count` None: no limit.
    Without `follows` a partition ends at the log end offset that it has when the member gets it.
    """

    group: str
    topics: Sequence[str]
    _: KW_ONLY
    start: int
    isolation: Isolation
    count: int | None
    follows: bool

    def __post_init__(self) -> None:
        for each in self.topics:
            if "/" in each:
                wrong = (
                    "cannot read a partition in a group, which shares the partitions of whole topics: name the topic"
                )
                raise InvalidRequest(wrong, text=repr(each), group=self.group)
            check_topic(each)


def consume_group(node: Node, wish: Wish, shown: Shown, out: BinaryIO, stop: Stop, warn: Callable[[str], None]) -> None:
    """Print records as a member of the group, until all are printed, `stop` is set, or `count` is reached.

    The member leaves the group at the end, also after an error. Raises Unavailable for `follows` without a running
    node, NotFound for an unknown topic, Conflict for a group whose members use the classic protocol and for printed
    records whose commit was refused.
    """
    if wish.follows and node.manager is not None:
        wrong = "cannot follow in a group, no node runs in this directory: start 'tiered run', or remove --follow"
        raise Unavailable(wrong, group=wish.group)
    for topic in wish.topics:
        group_calls.partitions_of(node.client, topic)
    member = GroupMember(node, wish, stop, warn)
    try:
        member.print_all(shown, out)
    except NoResponse:
        wrong = "the running node ended: records printed after the last commit are printed again by the next command"
        raise Unavailable(wrong, group=wish.group) from None
    finally:
        member.leave()


class GroupMember:
    """Not thread safe. `clock` is monotonic, in s."""

    def __init__(
        self,
        node: Node,
        wish: Wish,
        stop: Stop,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._wish, self._stop, self._warn, self._clock = node, wish, stop, warn, clock
        self._member_id, self._epoch = str(uuid4()), JOINS
        self._positions: dict[TopicPartition, int] = {}  # of the partitions that it has: the next offset to print
        self._committed: dict[TopicPartition, int] = {}
        self._refused: dict[TopicPartition, int] = {}  # positions whose records were printed and could not be committed
        self._ends: dict[TopicPartition, int] = {}  # without `follows`
        self._ids: dict[str, UUID] = {}
        self._beat_due_s = self._commit_due_s = 0.0
        self._count = self._run_end = 0

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self._positions.keys()

    def print_all(self, shown: Shown, out: BinaryIO) -> None:
        while not self._stop.is_set and self.turn(shown, out):
            pass
        self._commit()
        if self._refused:
            wrong = "the group removed this member before its last commit: the next command prints records again"
            raise Conflict(wrong, group=self._wish.group, partitions=len(self._refused))

    def turn(self, shown: Shown, out: BinaryIO) -> bool:
        """Send a heartbeat if it is due, and read once. Whether there may be more records."""
        if self._clock() >= self._beat_due_s:
            self._beat()
        if self._count == self._wish.count:
            return False
        due = [name for name, at in self._positions.items() if at < self._ends.get(name, at + 1)]
        if due:
            unread = {}
            for name, data in self._fetched(due):
                if not self._print(name, data, lambda name, columns: out.write(shown(name, columns))):
                    unread[name] = data.error_code != Error.NONE
            out.flush()
            if len(unread) == len(due):  # otherwise a later response has them: this one may be full
                self._look_at(unread)
            if self._clock() >= self._commit_due_s:
                self._commit()
            return True
        if not self._wish.follows and self._has_its_share():
            return False
        self._stop.wait(PAUSE_S)
        self._beat_due_s = 0.0  # another member may have given up a partition
        return True

    def leave(self) -> None:
        """Leave the group; the node removes the member after the session timeout if it gets no request."""
        with suppress(LogError):
            self._heartbeat(LEAVES)

    # Membership

    def _beat(self) -> None:
        """Send a heartbeat, the first one joins. Take over and give up partitions as it says."""

        def ask() -> tuple[int, ConsumerGroupHeartbeatResponse]:
            found = self._heartbeat(self._epoch)
            if found.error_code in _REMOVED and self._epoch != JOINS:
                self._forget()
                found = self._heartbeat(JOINS)
            if found.error_code == Error.GROUP_ID_NOT_FOUND:
                raise Conflict(_CLASSIC, group=self._wish.group)
            return found.error_code, found

        response = group_calls.answered(ask, "cannot join the group", group=self._wish.group)
        self._epoch = response.member_epoch
        self._beat_due_s = self._clock() + response.heartbeat_interval_ms / 1000
        names = {topic_id: name for name, topic_id in self._ids.items()}
        assigned = {
            TopicPartition(names[topic.topic_id], number)
            for topic in (response.assignment.topic_partitions if response.assignment is not None else ())
            if topic.topic_id in names
            for number in topic.partitions
        }
        if response.assignment is None or assigned == self._positions.keys():
            return
        lost = self._positions.keys() - assigned
        if lost:
            self._commit()
        if self._epoch == JOINS:
            return  # the node removed this member
        self._drop(lost)
        self._begin(sorted(assigned - self._positions.keys()))
        self._beat_due_s = 0.0  # the node gives lost partitions to others after the next one

    def _heartbeat(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        """With all fields: the response has the assignment."""
        ids = group_calls.topic_ids(self._node.client, self._wish.topics)
        self._drop([name for name in self._positions if ids.get(name.topic) != self._ids.get(name.topic)])
        self._ids = ids
        owned = tuple(
            TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic, topic_id in self._ids.items()
            if (numbers := tuple(each.partition for each in self._positions if each.topic == topic))
        )
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._wish.group,
            member_id=self._member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=tuple(self._wish.topics),
            topic_partitions=owned,
        )
        found: ConsumerGroupHeartbeatResponse = self._node.client.call(Api.CONSUMER_GROUP_HEARTBEAT, request)
        return found

    def _drop(self, names: Collection[TopicPartition]) -> None:
        """Also partitions of a deleted topic: one of the same name has other records."""
        for name in names:
            for each in (self._positions, self._committed, self._ends):
                each.pop(name, None)

    def _forget(self) -> None:
        """The node removed this member: its partitions may have others."""
        self._warn(f"the group {self._wish.group} removed this member, it joins again: records may be printed twice")
        self._epoch, self._beat_due_s = JOINS, 0.0
        self._refused |= {name: at for name, at in self._positions.items() if self._committed.get(name) != at}
        self._drop(list(self._positions))

    def _has_its_share(self) -> bool:
        """Whether the member has every partition of the newest assignment. A large group computes it after a pause."""
        request = ConsumerGroupDescribeRequest(group_ids=(self._wish.group,))
        response: ConsumerGroupDescribeResponse = self._node.client.call(Api.CONSUMER_GROUP_DESCRIBE, request)
        (group,) = response.groups
        members = {each.member_id: each.target_assignment for each in group.members}
        if self._member_id not in members or group.assignment_epoch != group.group_epoch:
            return False
        share = {
            TopicPartition(topic.topic_name, number)
            for topic in members[self._member_id].topic_partitions
            for number in topic.partitions
        }
        return share == self._positions.keys()

    # Offsets

    def _begin(self, names: Sequence[TopicPartition]) -> None:
        """Take over partitions at their committed offsets."""
        committed = group_calls.committed_offsets(self._node.client, self._wish.group)
        found = {name: committed[name] for name in names if name in committed}
        self._committed |= found
        self._positions |= found | self._find([name for name in names if name not in found], self._wish.start)
        if not self._wish.follows:
            self._ends |= self._find(names, group_calls.LATEST)
        self._commit()  # a later member begins here too, also if this one prints nothing

    def _find(self, names: Collection[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        isolation = self._wish.isolation
        return group_calls.find_offsets(self._node.client, dict.fromkeys(names, spec), isolation=isolation)

    def _commit(self) -> None:
        """Commit the positions. Everything before them was flushed."""
        changed = {name: at for name, at in self._positions.items() if self._committed.get(name) != at}
        self._commit_due_s = self._clock() + COMMIT_S
        if not changed:
            return
        member = group_calls.Member(self._member_id, self._epoch)
        try:
            group_calls.commit_offsets(self._node.client, self._wish.group, changed, member, self._ids)
        except Conflict:
            self._forget()
        else:
            self._committed |= changed
            self._refused = {name: at for name, at in self._refused.items() if at > self._committed.get(name, 0)}

    # Records

    def _fetched(self, names: Sequence[TopicPartition]) -> Iterator[tuple[TopicPartition, PartitionData]]:
        """The responses for partitions. The partitions with records are the last ones of the next request."""
        by_topic: dict[str, list[FetchPartition]] = {}
        for name in names:
            wanted = FetchPartition(
                partition=name.partition, fetch_offset=self._positions[name], partition_max_bytes=PARTITION_BYTES
            )
            by_topic.setdefault(name.topic, []).append(wanted)
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=group_calls.level_of(self._wish.isolation),
            topics=tuple(
                FetchTopic(topic=topic, topic_id=self._ids.get(topic), partitions=tuple(each))
                for topic, each in by_topic.items()
            ),
        )
        response: FetchResponse = self._node.client.call(Api.FETCH, request)
        if response.error_code != Error.NONE:
            raise group_calls.error_of(response.error_code, "cannot read records", group=self._wish.group)
        known: dict[UUID | None, str] = {topic_id: topic for topic, topic_id in self._ids.items()}
        for topic in response.responses:
            for data in topic.partitions:
                yield TopicPartition(topic.topic or known[topic.topic_id], data.partition_index), data

    def _print(
        self, name: TopicPartition, data: PartitionData, print_records: Callable[[TopicPartition, Columns], object]
    ) -> bool:
        """Whether the response has records of the partition, or a new position."""
        if data.error_code == Error.OFFSET_OUT_OF_RANGE:
            self._reset(name)
        elif data.error_code in (Error.UNKNOWN_TOPIC_ID, Error.UNKNOWN_TOPIC_OR_PARTITION):
            raise group_calls.error_of(data.error_code, "cannot read records", partition=name)
        elif data.error_code != Error.NONE or not any(map(len, data.records)):
            return False
        else:
            self._positions[name] = self._positions.pop(name)
            for part in self._parts(name, data):
                if self._stop.is_set or self._count == self._wish.count:
                    return True
                taken = part if self._wish.count is None else part.select(slice(self._wish.count - self._count))
                print_records(name, taken)
                self._count, self._positions[name] = self._count + len(taken), int(taken.offsets[-1]) + 1
                if len(taken) < len(part):
                    return True
            run_end = self._run_end
            self._positions[name] = min(run_end, self._ends.get(name, run_end))
        return True

    def _parts(self, name: TopicPartition, data: PartitionData) -> Iterator[Columns]:
        """The records from the position on; then `_run_end` is the offset after the last batch."""
        run = memoryview(b"".join(each for each in data.records if not isinstance(each, FileRange)))
        fetched = data.aborted_transactions
        aborted = aborted_in(kernels.scan_batches(run, verify=False), fetched) if fetched else ()
        for columns in decoded(run, name):
            self._run_end = columns.next_offset
            found = within(columns, self._positions[name], self._ends.get(name))
            yield from parts_of(without_aborted(found, aborted))

    def _reset(self, name: TopicPartition) -> None:
        """The records at the position expired: continue as without a committed offset, as Kafka's consumers do."""
        (at,) = self._find([name], self._wish.start).values()
        self._warn(f"{name}: offset {self._positions[name]} is not in the log, continuing at {at}")
        self._positions[name] = at

    def _look_at(self, unread: Mapping[TopicPartition, bool]) -> None:
        """After a response without records: raise the node's error; a partition without more batches is at its end.

        `unread` says whether the read of a partition failed. Wait once if there are records all the same.
        """
        for name, has_failed in unread.items():
            end = self._ends.get(name)
            if end is None and not has_failed:
                continue
            if self._clock() >= self._beat_due_s:
                return
            found = self._node.run(
                find_batch, partition=name, offset=self._positions[name], end=end, isolation=self._wish.isolation
            )
            if found:
                self._stop.wait(PAUSE_S)  # the read was late, or its segment was just replaced
                return
            if end is not None:
                self._positions[name] = end  # compaction removed the last records


def aborted_in(table: BatchTable, fetched: Sequence[FetchedTransaction]) -> list[AbortedTransaction]:
    """The aborted transactions of a response with these batches, each up to its marker, or to the end of the batches.

    The first marker of the producer after `first_offset` is that of the transaction. Source: kafka `CompletedFetch`.
    """
    is_marker = (table.attributes & CONTROL) != 0
    found = []
    for each in fetched:
        markers = table.base_offsets[is_marker & (table.producer_ids == each.producer_id)]
        markers = markers[markers >= each.first_offset]
        last = int(markers[0]) if len(markers) else np.iinfo(np.int64).max
        found.append(AbortedTransaction(each.producer_id, each.first_offset, last, -1))
    return found
