"""Peers: leaders by rendezvous hashing, probes, and what a death changes."""

from __future__ import annotations

import socket
import threading
from collections import Counter

import pytest
from kafka_socket import served

from local.names import TopicPartition
from tiered.serve.peers import FAILURES_MAX, Endpoint, Peers, answers

ONE, TWO, THREE = (Endpoint(host=f"replica-{number}", port=9092) for number in (1, 2, 3))
PARTITIONS = [TopicPartition(topic, number) for topic in ("orders", "clicks") for number in range(300)]


class Probes:
    """Answers of probes: all but `down` answer."""

    def __init__(self) -> None:
        self.down: set[Endpoint] = set()
        self.asked: list[Endpoint] = []

    def __call__(self, address: Endpoint) -> bool:
        self.asked.append(address)
        return address not in self.down


def ids(peers: Peers) -> list[int]:
    return [each.broker_id for each in peers.alive]


def test_all_replicas_name_the_same_leaders_and_ids_in_any_order_of_the_list() -> None:
    first = Peers(TWO, [ONE, TWO, THREE], Probes())
    second = Peers(THREE, [TWO, ONE], Probes())
    assert (first.own.broker_id, second.own.broker_id) == (1, 2)
    assert first.alive == second.alive
    assert [first.leader_of(each) for each in PARTITIONS] == [second.leader_of(each) for each in PARTITIONS]


def test_partitions_are_spread_evenly() -> None:
    peers = Peers(ONE, [TWO, THREE], Probes())
    counts = Counter(peers.leader_of(each).broker_id for each in PARTITIONS)
    assert min(counts.values()) > len(PARTITIONS) / 3 * 0.8, counts


def test_a_death_moves_the_partitions_of_the_dead_replica_only() -> None:
    probes = Probes()
    peers = Peers(ONE, [TWO, THREE], probes)
    before = {each: peers.leader_of(each) for each in PARTITIONS}
    probes.down = {THREE}
    for _ in range(FAILURES_MAX - 1):
        peers.check()
        assert ids(peers) == [0, 1, 2], "one failure is no death"
    peers.check()
    assert ids(peers) == [0, 1]
    for partition, leader in before.items():
        if leader.endpoint != THREE:
            assert peers.leader_of(partition) == leader, partition
    probes.down = set()
    peers.check()
    assert {each: peers.leader_of(each) for each in PARTITIONS} == before
    assert ONE not in probes.asked, "a replica must not probe itself"


def test_a_success_between_failures_keeps_a_replica_alive() -> None:
    probes = Probes()
    peers = Peers(ONE, [TWO], probes)
    for _ in range(3):
        probes.down = {TWO}
        for _ in range(FAILURES_MAX - 1):
            peers.check()
        probes.down = set()
        peers.check()
        assert ids(peers) == [0, 1]


def test_the_first_probe_decides_at_the_start_and_later_ones_are_sent_by_a_thread() -> None:
    probed = threading.Semaphore(0)

    def probe(address: Endpoint) -> bool:
        probed.release()
        return False

    peers = Peers(ONE, [TWO, THREE], probe, interval_s=0.001)
    peers.start()
    try:
        assert ids(peers) == [0]
        for _ in range(6):
            assert probed.acquire(timeout=60)
    finally:
        peers.close()


@pytest.mark.server
def test_a_probe_needs_a_kafka_endpoint_that_answers() -> None:
    with served() as server:
        address = Endpoint(host=server.address[0], port=server.address[1])
        assert answers(address)
    assert not answers(address)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(Endpoint(host="127.0.0.1", port=silent.getsockname()[1]), 0.01)
