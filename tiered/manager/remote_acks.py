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

from local.errors import InvalidRequest, LogError, Unavailable
from local.names import TopicPartition
from policies.copy_lag import without_copy_lag
from policies.decisions import Code, Decision, Plan
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies, copy_deferrals
from tiered.manager.manager import LogManager

PAUSE_S = 1.0  # between two attempts, each of which has its own waits
TIMEOUT_MS = 5 * 60_000
_ATTEMPT = "cannot wait for the remote tier"

Waiting = Callable[[Sequence[TopicPartition], LogError | None], None]  # open partitions, error of the last attempt


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
    due = {each.partition: _due(each) for each in _snapshots(manager, unfinished, now_ms)}
    plan = Plan(now_ms=now_ms, decisions={name: found for name, found in due.items() if found})
    manager.maintenance.apply(plan, should_stop=should_stop, decide=_due)
    problems = manager.problems
    for name in unfinished:
        if name in problems:
            return problems[name]
    blocked = [name for name in unfinished if held_upto(manager, name) == before[name]]
    if not blocked or should_stop():
        return None
    return _put_off(manager, blocked[0], now_ms)


def _due(snapshot: PartitionSnapshot) -> Sequence[Decision]:
    return copies(without_copy_lag(snapshot))


def _put_off(manager: LogManager, name: TopicPartition, now_ms: int) -> Unavailable:
    late = [one for each in _snapshots(manager, [name], now_ms) for one in copy_deferrals(without_copy_lag(each))]
    first = next((one for one in late if one.code is not Code.ACTIVE), None)
    if first is None:
        return Unavailable(f"{_ATTEMPT}, this attempt copied nothing", partition=name)
    facts = {"partition": name, "base_offset": first.base_offset, "reason": first.code.value}
    return Unavailable(f"{_ATTEMPT}, a segment must not be copied now: {first.why}", **facts, until_ms=first.until_ms)


def _snapshots(manager: LogManager, names: Sequence[TopicPartition], now_ms: int) -> list[PartitionSnapshot]:
    return [each for each in manager.snapshots(now_ms, {name.topic for name in names}) if each.partition in names]
