"""Appends of a command: records to the log of the node, and the wait for the bucket.

Records are encoded where the command runs, with the settings of the topic, so an invalid record is refused before any
of its share is appended. A running node gets them by Produce with acks=all: each batch that it acknowledged is durable.
A manager of the command's own makes all of them durable at the end.

| a running node that dies | the command |
|---|---|
| between two batches | counts the acknowledged batches, and ends with the error |
| with a batch on its way | the same; the records of that batch are in the log or not |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from local.errors import InvalidRequest, LogError
from local.format.record import Record, TimestampType
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage
from tiered.config.config import log_settings
from tiered.config.units import format_ms
from tiered.manager import remote_acks
from tiered.manager.manager import LogManager, Partitioner
from tiered.manager.remote_acks import check_remote_acks
from tiered.node.problems import store_problems
from tiered.node.topic_registry import Topic
from tiered.serve.commands.operation_jobs import Problem, Work, error_of, failure_of, problems_of
from tiered.serve.messages.operations import Failure
from tiered.serve.node.append_marks import MARKS_FILE, AppendMarks, Share, input_key

if TYPE_CHECKING:
    from tiered.serve.node.command_node import Node

_marking = threading.Lock()  # the lock of the directory keeps other processes away


class AppendTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The topic, what keeps its records from the bucket now, and the settings with which records are encoded."""

    topic: Topic
    problems: list[Problem]
    settings: LogSettings


class BucketAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`held` are the ends that the bucket holds; None: the wait was interrupted, or ended with `failure`.

    `is_marked`: the same input given again appends nothing twice.
    """

    held: list[tuple[TopicPartition, int]] | None = None
    failure: Failure | None = None
    is_marked: bool = False


def begin_append(
    manager: LogManager,
    work: Work,
    *,
    topic: str,
    partition: int | None,
    compression: str | None,
    is_remote: bool,
) -> AppendTarget:
    """Check before any input is read. With `is_remote` raises what keeps the records from the bucket."""
    found = manager.topics.get(topic)
    problems = store_problems({name: error for name, error in manager.problems.items() if name.topic == topic})
    if partition is not None:
        manager.partitions.find(TopicPartition(topic, partition))
    if is_remote:
        names = found.partitions() if partition is None else [TopicPartition(topic, partition)]
        check_remote_acks(manager, names, now_ms=work.now_ms())
    values = manager.config.topic_properties(topic, found.properties)
    settings = log_settings({**values, **({"compression.type": compression} if compression else {})})
    return AppendTarget(topic=found, problems=problems_of(problems), settings=settings)


def find_append(manager: LogManager, work: Work, *, key: str) -> list[Share] | None:
    """The records of an input that an earlier command appended but did not see in the bucket."""
    with _marking:
        return _marks(manager).find(key)


def await_bucket(
    manager: LogManager, work: Work, *, key: str | None, shares: list[Share], timeout_ms: int
) -> BucketAnswer:
    """Mark the input, wait until the bucket holds its records, and remove the mark. Order of effects as `append_marks`.

    A mark that cannot be written does not end the wait: the records are appended.
    """
    manager.flush()
    if key is not None:
        try:
            with _marking:
                _marks(manager).note(key, shares)
        except LogError as error:
            key = None
            work.say(f"running the command again would append the records twice: {' '.join(str(error).split())}")

    def waiting(partitions: Sequence[TopicPartition], error: LogError | None) -> None:
        names, cause = ", ".join(map(str, partitions)), " ".join(str(error).split())
        work.say(f"waiting for the bucket, {format_ms(timeout_ms)} at most: {names}: {cause}")

    answer = BucketAnswer(is_marked=key is not None)
    try:
        acked = remote_acks.wait_for_bucket(
            manager,
            {each.name: each.next_offset for each in shares},
            clock=work.now_ms,
            pause=work.pause,
            timeout_ms=timeout_ms,
            should_stop=work.should_stop,
            waiting=waiting,
        )
    except LogError as error:
        return msgspec.structs.replace(answer, failure=failure_of(error))
    if acked is None:
        return answer
    if key is not None:
        with _marking:
            _marks(manager).forget(key)
    return msgspec.structs.replace(answer, held=sorted(acked.held_upto.items()))


def _marks(manager: LogManager) -> AppendMarks:
    directory = os.path.dirname(manager.config.path or "")
    return AppendMarks(DiskStorage(), os.path.join(directory, MARKS_FILE))


class AppendedRecords:
    """For each partition: first offset, next offset and count of the records of one command."""

    def __init__(self, node: Node, target: AppendTarget, partition: int | None) -> None:
        self._node, self._target, self._partition = node, target, partition
        self._partitioner = Partitioner()
        self._rows: dict[TopicPartition, Share] = {}

    @property
    def count(self) -> int:
        return sum(each.records for each in self._rows.values())

    def append(self, records: list[Record]) -> None:
        """Append partition by partition. After a failure the earlier partitions' records count."""
        topic = self._target.topic
        if self._partition is not None:
            self._append_share(TopicPartition(topic.name, self._partition), records)
            return
        for number, share in sorted(self._partitioner.split(records, topic.partition_count).items()):
            self._append_share(TopicPartition(topic.name, number), share)

    def make_durable(self) -> LogError | None:
        """Make the records durable; return an error if a partition failed. A failed partition does not count."""
        failures = self._node.flush(list(self._rows))
        for name in failures:
            del self._rows[name]
        return next(iter(failures.values()), None)

    def shares(self) -> list[Share]:
        return [self._rows[name] for name in sorted(self._rows)]

    def take(self, shares: Sequence[Share]) -> None:
        self._rows |= {each.name: each for each in shares}

    def _append_share(self, name: TopicPartition, share: list[Record]) -> None:
        """Append a share. If a record is refused (and nothing appended), halve the share up to that record."""

        def note(base_offset: int, next_offset: int, count: int) -> None:
            known = self._rows.get(name)
            base, before = (base_offset, 0) if known is None else (known.base_offset, known.records)
            facts = {"base_offset": base, "next_offset": next_offset, "records": before + count}
            self._rows[name] = Share(topic=name.topic, partition=name.partition, **facts)

        try:
            self._node.append(name, share, self._target, note)
        except InvalidRequest:
            if len(share) == 1:
                raise
            middle = len(share) // 2
            self._append_share(name, share[:middle])
            self._append_share(name, share[middle:])


class RemoteAppend:
    """Waits for the bucket for one command; repeated input is not appended again."""

    def __init__(self, node: Node, target: AppendTarget, partition: int | None, say: Callable[[str], None]) -> None:
        self._node, self._target, self._say = node, (target.topic.topic_id, partition), say
        self._key: str | None = None

    def appended_before(self, source: str, how: Mapping[str, object]) -> list[Share] | None:
        """Return the records of this input that an earlier command appended but did not see in the bucket."""
        if source == "-":
            return None
        facts = os.stat(source)
        state = (os.path.realpath(source), facts.st_size, facts.st_mtime_ns, facts.st_ino)
        self._key = input_key({"target": self._target, "source": state, **how})
        shares = self._node.run(find_append, key=self._key)
        if shares is not None:
            count = sum(each.records for each in shares)
            self._say(f"appended by an earlier command: records={count}; waiting for the bucket")
        return shares

    def wait(self, shares: Sequence[Share], timeout_ms: int) -> None:
        """Wait until the bucket holds the records, or for a stop. Raises the problem that prevents it."""
        if not shares:
            return
        answer = self._node.run(await_bucket, key=self._key, shares=list(shares), timeout_ms=timeout_ms)
        if answer.held is not None:
            ranges = ", ".join(f"{name} up to {upto:,}" for name, upto in answer.held)
            self._say(f"in the bucket: {ranges}")
            return
        again = "running the same command again waits and appends nothing twice"
        state = "all records are on the disk and not in the bucket yet; 'tiered run' copies them"
        self._say(f"{state}, {again if answer.is_marked else 'do not append it again'}")
        if answer.failure is not None:
            raise error_of(answer.failure)


def for_produce(settings: LogSettings) -> LogSettings:
    """The settings with which a client encodes: a producer never states the time of the log, as in Kafka."""
    if settings.timestamp_type is TimestampType.CREATE_TIME:
        return settings
    by_client = TimestampType.CREATE_TIME
    return replace(settings, timestamp_type=by_client, timestamp_before_max_ms=None, timestamp_after_max_ms=None)
