"""Placement: the log directory of a new partition, and the replicas of a new topic. Pure.

The directory has the fewest partitions, as in Kafka's `LogManager.nextLogDirs`, then the most free bytes; a nearly full
one is skipped. The replicas are those of Kafka's `AdminUtils.assignReplicasToBrokers`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

from local.errors import DiskFailed, InvalidRequest
from local.facts import LogDirFacts

BROKERS_MAX = 10_000
REPLICAS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker of the fleet. Either all brokers have a rack, or none (Kafka's enforced mode)."""

    broker_id: int
    rack: str | None = None


def choose_log_dir(dirs: Sequence[LogDirFacts], *, free_bytes_min: int = 0, free_share_min: float = 0.0) -> LogDirFacts:
    """Return a directory with at least these free bytes and share (0..1). Raises DiskFailed with reasons."""
    reasons = {each.path: _reason_against(each, free_bytes_min, free_share_min) for each in dirs}
    fit = [each for each in dirs if reasons[each.path] is None]
    if not fit:
        listed = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        raise DiskFailed("no log directory can take a new partition", directories=listed or "none")
    return min(fit, key=lambda each: (each.partition_count, -(each.free_bytes or 0)))


def assign_replicas(
    brokers: Sequence[Broker], *, partitions: int, replication_factor: int, start_index: int, shift: int
) -> dict[int, tuple[int, ...]]:
    """Return broker ids per partition, the preferred leader first.

    `start_index` and `shift` are any non-negative numbers; Kafka draws both below the number of brokers. Raises
    InvalidRequest for a fleet or numbers that Kafka would reject.
    """
    _check_numbers(partitions, replication_factor, start_index, shift)
    _check_fleet(brokers, replication_factor)
    order = alternate_racks(brokers)
    return {
        # The shift grows by one with each full round of leaders.
        partition: _replicas(
            order, (partition + start_index) % len(order), shift + partition // len(order), replication_factor
        )
        for partition in range(partitions)
    }


def alternate_racks(brokers: Sequence[Broker]) -> list[Broker]:
    """Return one broker of each rack in turn: racks by name, brokers by id. Without racks, by id (Kafka)."""
    by_rack: dict[str, list[Broker]] = defaultdict(list)
    for broker in sorted(brokers, key=lambda each: each.broker_id):
        by_rack[broker.rack or ""].append(broker)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for turn in turns for broker in turn if broker is not None]


def _reason_against(each: LogDirFacts, free_bytes_min: int, free_share_min: float) -> str | None:
    if each.is_offline:
        return "offline"
    if each.is_cordoned:
        return "cordoned"
    if each.free_bytes is None:
        return None
    if each.free_bytes < free_bytes_min:
        return f"{each.free_bytes} bytes free, fewer than {free_bytes_min}"
    if each.total_bytes and each.free_bytes < free_share_min * each.total_bytes:
        return f"{each.free_bytes / each.total_bytes:.1%} free, less than {free_share_min:.1%}"
    return None


def _replicas(order: Sequence[Broker], leader: int, shift: int, replication_factor: int) -> tuple[int, ...]:
    """Return the leader and its followers. Kafka multiplies the shift by the number of racks."""
    rack_count = len({broker.rack for broker in order})
    replicas, racks = [order[leader].broker_id], {order[leader].rack}
    steps = count()
    while len(replicas) < replication_factor:
        distance = 1 + (shift * rack_count + next(steps)) % (len(order) - 1)
        broker = order[(leader + distance) % len(order)]
        if broker.broker_id not in replicas and (broker.rack not in racks or len(racks) == rack_count):
            replicas.append(broker.broker_id)
            racks.add(broker.rack)
    return tuple(replicas)


def _check_numbers(partitions: int, replication_factor: int, start_index: int, shift: int) -> None:
    if partitions < 1:
        raise InvalidRequest("cannot assign replicas, there must be at least one partition", partitions=partitions)
    if replication_factor < 1:
        wrong = "cannot assign replicas, there must be at least one replica"
        raise InvalidRequest(wrong, replication_factor=replication_factor)
    if min(start_index, shift) < 0:
        raise InvalidRequest("cannot assign replicas, a number is negative", start=start_index, shift=shift)
    if (replicas := partitions * replication_factor) > REPLICAS_MAX:
        raise InvalidRequest("cannot assign replicas, there are too many", replicas=replicas, at_most=REPLICAS_MAX)


def _check_fleet(brokers: Sequence[Broker], replication_factor: int) -> None:
    ids = {broker.broker_id for broker in brokers}
    if len(ids) < len(brokers) or any(each < 0 for each in ids):
        raise InvalidRequest("invalid brokers, an id is repeated or negative", brokers=len(brokers))
    if len(ids) > BROKERS_MAX:
        raise InvalidRequest("invalid brokers, there are too many", brokers=len(ids), at_most=BROKERS_MAX)
    if replication_factor > len(ids):
        facts = {"brokers": len(ids), "replication_factor": replication_factor}
        raise InvalidRequest("cannot assign replicas, there are fewer brokers than replicas", **facts)
    racks = [broker.rack for broker in brokers]
    if None in racks and any(racks):
        without = [broker.broker_id for broker in brokers if broker.rack is None]
        raise InvalidRequest("cannot assign replicas by rack, some brokers have no rack", without=without[:10])
