"""Content of each log directory, as ``kafka-log-dirs`` reports it, read while another process writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from local.errors import DiskFailed, InvalidRequest, LogError, NotFound
from local.facts import LogDirFacts
from local.logdirs.log_dirs import LogDirectories
from local.logdirs.log_moves import view_files
from local.names import FUTURE_DIRECTORY, TopicPartition, parse_marked_directory, parse_partition_directory
from local.storage import DiskStorage, Storage, join
from tiered.config.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One partition's directory and all its files. `is_deleted`: renamed, to be deleted automatically."""

    partition: TopicPartition
    size_bytes: int
    is_future: bool = False
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirStatus:
    """One log directory. `error` is why it cannot be used; then there are no replicas."""

    facts: LogDirFacts
    replicas: tuple[ReplicaStatus, ...] = ()
    error: LogError | None = None

    @property
    def state(self) -> str:
        return "offline" if self.error else "cordoned" if self.facts.is_cordoned else "online"

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.replicas)


def describe_log_dirs(
    config: Config, topics: Collection[str] = (), *, storage: Storage | None = None
) -> list[LogDirStatus]:
    """Return every configured directory, in order, with the partitions of `topics` (empty: all).

    Takes no lock. Raises the errors of `LogDirectories`, such as InvalidRequest for directories of different nodes.
    """
    disk = storage or DiskStorage()
    dirs = LogDirectories(disk, config.data_dirs, read_only=True, cordoned=config.cordoned_dirs)
    try:
        return [_describe(disk, facts, dirs.offline.get(facts.path), topics) for facts in dirs.facts()]
    finally:
        dirs.abandon()


def plan_move(
    config: Config, partition: TopicPartition, target: str
) -> tuple[ReplicaStatus, LogDirStatus, LogDirStatus]:
    """The replica that `Maintenance.move` would move, its directory, the target. Raises why it cannot move."""
    dirs = describe_log_dirs(config, [partition.topic])
    found = next(
        ((each, one) for each in dirs for one in each.replicas if one.partition == partition and not one.is_future),
        None,
    )
    if found is None or found[1].is_deleted:
        raise NotFound("cannot move the partition, no log directory has it", partition=partition)
    source, replica = found
    goal = next((each for each in dirs if each.facts.path == target), None)
    if goal is None or goal is source:
        there = "the partition is already in this log directory"
        wrong = "the log directory is not configured" if goal is None else there
        known = ",".join(each.facts.path for each in dirs)
        raise InvalidRequest(f"cannot move the partition, {wrong}", partition=partition, to=target, known=known)
    if goal.error is not None:
        raise goal.error
    free = goal.facts.free_bytes
    if free is not None and free < replica.size_bytes:
        wrong = "cannot move the partition, the target directory has too little free space"
        raise DiskFailed(wrong, to=target, size_bytes=replica.size_bytes, free_bytes=free)
    return replica, source, goal


def _describe(storage: Storage, facts: LogDirFacts, error: LogError | None, topics: Collection[str]) -> LogDirStatus:
    if error is not None:
        return LogDirStatus(facts=facts, error=error)
    try:
        found = [each for each in _replicas(storage, facts.path) if not topics or each.partition.topic in topics]
    except NotFound:
        found = []  # the directory does not exist yet
    except LogError as failed:
        return LogDirStatus(facts=facts, error=failed)
    return LogDirStatus(facts=facts, replicas=tuple(sorted(found, key=lambda each: (each.partition, each.is_future))))


def _replicas(storage: Storage, root: str) -> Iterator[ReplicaStatus]:
    for name in storage.list(root):
        marked = parse_marked_directory(name)
        partition = marked[0] if marked else parse_partition_directory(name)
        if partition is None or not storage.is_directory(join(root, name)):
            continue
        with suppress(NotFound):  # it was moved or deleted in the meantime
            directory = join(root, name)
            files = (*storage.list_files(directory).values(), *view_files(storage, directory).values())
            yield ReplicaStatus(
                partition=partition,
                size_bytes=sum(facts.size_bytes for facts in files),
                is_future=bool(marked) and name.endswith(FUTURE_DIRECTORY),
                is_deleted=bool(marked) and not name.endswith(FUTURE_DIRECTORY),
            )
