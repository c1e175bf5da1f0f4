"""A node with a topic of six partitions, and consumers of any client that share it in a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import confluent_kafka

from local.format.record import Record
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node

PARTITIONS, COUNT, LIMIT_S = 6, 50, 60.0


def now_ms() -> int:
    return time.time_ns() // 10**6


@contextmanager
def node(home: Path, settings: Mapping[str, str]) -> Iterator[tuple[LogManager, str]]:
    """A node with the topic t, and its address."""
    config = Config.load(None, settings, {}, local_dir=str(home))
    with LogManager.open(config, now_ms=now_ms()) as manager:
        if not manager.topics.all():
            manager.topics.create("t", PARTITIONS, {}, now_ms=now_ms())
            fill(manager, 0)
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
            yield manager, "{}:{}".format(*server.address)


def fill(manager: LogManager, start: int) -> None:
    for partition in range(PARTITIONS):
        records = [Record(None, value(partition, start + at), now_ms()) for at in range(COUNT)]
        manager.append("t", records, partition, now_ms=now_ms())


def value(partition: int, at: int) -> bytes:
    return b"%d of %d" % (at, partition)


def expected(start: int = 0, end: int = COUNT) -> set[bytes]:
    return {value(partition, at) for partition in range(PARTITIONS) for at in range(start, end)}


class Polled(Protocol):
    """A consumer of the topic t, of any client."""

    def poll(self) -> list[bytes]: ...

    def assignment(self) -> set[int]: ...


def commit_consumed(consumer: confluent_kafka.Consumer) -> None:
    """Commit what a member by librdkafka has consumed: nothing, directly after a rebalance."""
    try:
        consumer.commit(asynchronous=False)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
            raise


def poll_until(consumers: Sequence[Polled], claim: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Poll all in turn until the claim holds of what they received."""
    found: list[bytes] = []
    due_s = time.monotonic() + LIMIT_S
    while not claim(found):
        assert time.monotonic() < due_s, ([each.assignment() for each in consumers], len(found))
        for each in consumers:
            found += each.poll()
    return found


def share_all(consumers: Sequence[Polled]) -> bool:
    """Whether each has partitions, and together they have all, each once."""
    shares = [each.assignment() for each in consumers]
    return all(shares) and sorted(at for share in shares for at in share) == list(range(PARTITIONS))
