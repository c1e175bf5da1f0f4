"""Appends acknowledged by the bucket: wait until a committed manifest holds every record.

The records are copied at once, regardless of `segment.ms` and the copy lag, after all earlier records. So each call
costs a segment for every partition of the append. Order of effects:

1. The records are in the log.
2. They are durable on the disk.
3. The active segment is closed.
4. It is uploaded.
5. **The manifest is committed** (only now acknowledged).

A crash or an error before step 5 leaves the records in the log: the next maintenance of any manager, or another wait,
copies them. Failed uploads are objects that no manifest names, so no record is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from local.names import TopicPartition
from local.storage import Storage, replace_file
from policies.copy_lag import without_copy_lag
from policies.decisions import Code, Plan
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies, copy_deferrals

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager

PAUSE_S = 1.0  # between two attempts, each of which has its own waits
TIMEOUT_MS = 5 * 60_000
_ATTEMPT = "cannot wait for the remote tier"

Waiting = Callable[[Sequence[TopicPartition], LogError | None], None]  # open partitions, error of the last attempt
MARKS_FILE = "append-remote.json"
MARKS_MAX = 100  # the oldest marks above this number are removed: their inputs were not repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAcks:
    """Every record below a partition's `held_upto` is in the bucket. `tries` is 1 if no attempt failed."""

    held_upto: Mapping[TopicPartition, int]
    tries: int


def check_remote_acks(manager: LogManager, names: Iterable[TopicPartition], *, now_ms: int) -> None:
    """Check before any append that the bucket can acknowledge it. Raises InvalidRequest, and the store's errors."""
    wanted = set(names)
    for snapshot in _snapshots(manager, sorted(wanted), now_ms):
        facts = {"topic": snapshot.partition.topic}
        if not snapshot.is_copying_on:
            raise InvalidRequest(f"{_ATTEMPT}, the topic is not copied to it: see remote.storage.enable", **facts)
        if snapshot.rules.cleanup_compact:
            wrong = f"{_ATTEMPT}, a compacted topic is copied after it is cleaned: use acks local"
            raise InvalidRequest(wrong, **facts)
        if snapshot.paused is not None:
            raise InvalidRequest(f"{_ATTEMPT}, uploads are paused: run 'tiered resume' first", **facts)
    for name in sorted(wanted):
        held = manager.partitions.find(name)
        if (problem := manager.problems.get(name)) is not None:
            raise problem
        if not held.is_writer:
            raise Unavailable(f"{_ATTEMPT}, this process is not the writer of the partition yet", partition=name)


def wait_for_bucket(
    manager: LogManager,
    ends: Mapping[TopicPartition, int],
    *,
    clock: Callable[[], int],
    pause: Callable[[float], object],
    timeout_ms: int = TIMEOUT_MS,
    should_stop: Callable[[], bool] = lambda: False,
    waiting: Waiting = lambda names, error: None,
) -> RemoteAcks | None:
    """Wait until the bucket holds every record below each of `ends`; None at `should_stop`.

    `clock` gives ms. Raises Unavailable after `timeout_ms` (a running call ends first), or if an open transaction
    blocks the copy. Raises a partition's own problem.
    """
    begun_ms, tries = clock(), 0
    while not should_stop():
        unfinished = [name for name, end in sorted(ends.items()) if held_upto(manager, name) < end]
        if not unfinished:
            return RemoteAcks(held_upto={name: held_upto(manager, name) for name in ends}, tries=max(1, tries))
        tries += 1
        problem = _try_once(manager, unfinished, ends, clock(), should_stop)
        if problem is None:
            continue
        if not isinstance(problem, Unavailable):
            raise problem
        waited_ms = clock() - begun_ms
        if not 0 <= waited_ms < timeout_ms:  # a clock that was set back ends it too
            facts = {**problem.facts, "waiting": ",".join(map(str, unfinished)), "waited_ms": waited_ms}
            attempt = problem.attempt.removeprefix(f"{_ATTEMPT}, ")
            raise Unavailable(f"{_ATTEMPT}, {attempt}", **facts)
        waiting(unfinished, problem)
        pause(PAUSE_S)
    return None


def held_upto(manager: LogManager, name: TopicPartition) -> int:
    """One past the last offset in the newest manifest seen. Raises Fenced if another writer committed it."""
    held = manager.partitions.find(name)
    manifest = held.manifest()
    held.check_not_fenced()  # after the read: another thread may see that manifest first
    return manifest.next_offset if manifest is not None else 0


def _try_once(
    manager: LogManager,
    unfinished: Sequence[TopicPartition],
    ends: Mapping[TopicPartition, int],
    now_ms: int,
    should_stop: Callable[[], bool],
) -> LogError | None:
    for each in _snapshots(manager, unfinished, now_ms):
        if each.active is not None and each.active.base_offset < ends[each.partition]:
            manager.partitions.find(each.partition).log.roll(now_ms=now_ms)
    before = {name: held_upto(manager, name) for name in unfinished}
    due = {each.partition: copies(without_copy_lag(each)) for each in _snapshots(manager, unfinished, now_ms)}
    plan = Plan(now_ms=now_ms, decisions={name: found for name, found in due.items() if found})
    manager.apply(plan, should_stop=should_stop)
    problems = manager.problems
    for name in unfinished:
        if name in problems:
            return problems[name]
    blocked = [name for name in unfinished if held_upto(manager, name) == before[name]]
    if not blocked or should_stop():
        return None
    return _put_off(manager, blocked[0], now_ms)


def _put_off(manager: LogManager, name: TopicPartition, now_ms: int) -> Unavailable:
    late = [one for each in _snapshots(manager, [name], now_ms) for one in copy_deferrals(without_copy_lag(each))]
    first = next((one for one in late if one.code is not Code.ACTIVE), None)
    if first is None:
        return Unavailable(f"{_ATTEMPT}, this attempt copied nothing", partition=name)
    facts = {"partition": name, "base_offset": first.base_offset, "reason": first.code.value}
    return Unavailable(f"{_ATTEMPT}, a segment must not be copied now: {first.why}", **facts, until_ms=first.until_ms)


def _snapshots(manager: LogManager, names: Sequence[TopicPartition], now_ms: int) -> list[PartitionSnapshot]:
    found = manager.snapshots(now_ms, {name.topic for name in names})
    return [each for each in found if each.partition in names]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one partition: records at offsets in ``[base_offset, next_offset)``."""

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    records: int

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class _File(msgspec.Struct, frozen=True):
    schema_version: int
    marks: dict[str, list[Share]]


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


def input_key(facts: Mapping[str, object]) -> str:
    """A key of one input; `facts` are its file, the file's state, its target and how it is read."""
    return blake2b(repr(sorted(facts.items())).encode(errors="surrogateescape"), digest_size=16).hexdigest()


class AppendMarks:
    """Marks of appends that the bucket has not acknowledged: a repeated command appends nothing twice.

    They are in the file at `path`, replaced whole. The directory's lock ensures that one process uses it.

    | step of an append | a crash after it leaves |
    |---|---|
    | 1. the records are durable on the disk | no mark: an interrupted append like any other |
    | 2. the mark is written | the mark: the same input given again waits for the bucket only |
    | 3. the bucket holds the records and the mark is removed | nothing |
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path

    def find(self, key: str) -> list[Share] | None:
        """The shares of this input that may not be in the bucket; None without a mark. Raises InvalidRequest."""
        return self._read().get(key)

    def note(self, key: str, shares: list[Share]) -> None:
        """Add a mark; durable on return."""
        marks = {**self._read(), key: shares}
        self._write(dict(list(marks.items())[-MARKS_MAX:]))

    def forget(self, key: str) -> None:
        marks = self._read()
        if marks.pop(key, None) is not None:
            self._write(marks)

    def _read(self) -> dict[str, list[Share]]:
        try:
            return dict(_FILE.decode(self._storage.read(self._path)).marks)
        except NotFound:
            return {}
        except msgspec.DecodeError as error:
            hint = "compare its contents with the log, then delete the file"
            wrong = f"cannot read the requests that wait for the bucket, the file is damaged: {hint}"
            raise InvalidRequest(wrong, path=self._path, cause=str(error)) from None

    def _write(self, marks: Mapping[str, list[Share]]) -> None:
        if marks:
            replace_file(self._storage, self._path, msgspec.json.encode(_File(1, dict(marks))))
        else:
            self._storage.unlink(self._path)
