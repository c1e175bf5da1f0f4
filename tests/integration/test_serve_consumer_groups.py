"""librdkafka consumes a node in groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, closing
from pathlib import Path

import confluent_kafka
import pytest
from polled_group import COUNT, LIMIT_S, PARTITIONS, commit_consumed, expected, fill, node, poll_until, share_all
from real_daemon import FOR_EVER, Daemon, Node

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
GROUP, KILLS = "readers", 3
SETTINGS = {"group.consumer.heartbeat.interval.ms": "100ms", "group.consumer.session.timeout.ms": "10s"}
ENVIRON = {f"TIERED_{name.upper().replace('.', '_')}": each for name, each in SETTINGS.items()}


def address_of(daemon: Daemon) -> str | None:
    found = re.search(r"serving Kafka clients at (\S+:\d+)", daemon.words)
    return found[1] if found else None


class Member:
    def __init__(self, address: str, topic: str = "t", **settings: object) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[bytes]:
        found = self.consumer.consume(100, 0.1)
        return [each.value() for each in found if not each.error()]

    def assignment(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def are_committed(members: list[Member]) -> bool:
    for each in members:
        commit_consumed(each.consumer)
    wanted = [confluent_kafka.TopicPartition("t", at) for at in range(PARTITIONS)]
    return {each.offset for each in members[0].consumer.committed(wanted, LIMIT_S)} == {2 * COUNT}


def test_members_share_a_group_and_take_over_from_one_that_leaves(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (manager, address), ExitStack() as stack:
        members = [stack.enter_context(closing(Member(address)))]
        received = poll_until(members, lambda seen: len(seen) >= PARTITIONS * COUNT)
        for _ in range(2):
            members.append(stack.enter_context(closing(Member(address))))
            received += poll_until(members, lambda seen: share_all(members))
        fill(manager, COUNT)
        fresh = expected(COUNT, 2 * COUNT)
        received += poll_until(members, lambda seen: fresh <= set(received) | set(seen))
        assert set(received) == expected(0, 2 * COUNT)
        poll_until(members, lambda seen: are_committed(members))
        members.pop(0).close()
        poll_until(members, lambda seen: share_all(members))
        assert are_committed(members)


def test_an_expression_of_a_member_matches_topics(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (_, address), closing(Member(address, "^t|none$")) as member:
        found = poll_until([member], lambda seen: len(seen) >= PARTITIONS * COUNT)
        assert set(found) == expected(0, COUNT)


def test_a_static_member_has_its_partitions_after_a_restart(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (_, address), closing(Member(address, **{"group.instance.id": "two"})) as two:
        shares = []
        for _ in range(2):
            with closing(Member(address, **{"group.instance.id": "one"})) as one:
                poll_until([one, two], lambda seen, one=one: share_all([one, two]))
                shares.append(one.assignment())
        assert shares[0] == shares[1]


def test_members_and_their_commits_survive_a_kill_of_the_node(tmp_path: Path) -> None:
    """A member commits after each record. It continues over every restart, and another one reads the last commit."""
    (tmp_path / "node").mkdir()
    home = Node(tmp_path / "node", None)
    home.fill("t", count=20)
    address, received = ":0", []
    partition = confluent_kafka.TopicPartition("t", 0)
    with ExitStack() as stack:
        for at in range(KILLS):
            with Daemon(home, (*FOR_EVER, "--kafka", address), environ=ENVIRON) as daemon:
                found = daemon.wait_for(lambda d=daemon: address_of(d), "it serves Kafka clients")
                address = found
                if not at:
                    member = stack.enter_context(closing(Member(address, **{"max.poll.interval.ms": 300_000})))
                due_s, goal = time.monotonic() + LIMIT_S, 5 * (at + 1)
                committed = 0
                while committed < goal:
                    assert time.monotonic() < due_s, (committed, received)
                    for message in member.consumer.consume(1, 0.1):
                        if not message.error():
                            received.append(message.value())
                            try:
                                member.consumer.commit(message, asynchronous=False)
                                committed = message.offset() + 1
                            except confluent_kafka.KafkaException:
                                pass  # it joins again
                daemon.process.kill()
        with Daemon(home, (*FOR_EVER, "--kafka", address), environ=ENVIRON) as daemon:
            daemon.wait_for(lambda d=daemon: address_of(d), "it serves Kafka clients")
            reader = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": GROUP})
            with closing(reader):
                (found,) = reader.committed([partition], LIMIT_S)
                assert found.offset >= committed
            member.close()
    assert set(received) >= {b"t %d" % each for each in range(5 * KILLS)}
