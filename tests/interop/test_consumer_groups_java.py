"""Kafka's console consumers share a group of the consumer protocol (KIP-848) of a node; its records are Kafka's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import consumer_group_calls as calls
import group_calls
import pytest
from kafka_artifacts import Kafka
from kafka_clients import wait_until
from test_groups_java import CONSUMER, COUNT, DUMP, GROUPS, PARTITIONS, java, now_ms

from local.format.record import Record
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node

# `kafka.java` runs the console consumers too.
pytestmark = pytest.mark.kafka
GROUP = "modern"
SETTINGS = {"group.consumer.heartbeat.interval.ms": "200ms", "group.consumer.session.timeout.ms": "6s"}


def fill(manager: LogManager, start: int) -> None:
    for partition in range(PARTITIONS):
        records = [Record(None, b"%d of %d" % (start + at, partition), now_ms()) for at in range(COUNT)]
        manager.append("t", records, partition, now_ms=now_ms())


def lines(start: int) -> set[str]:
    return {f"{start + at} of {partition}" for partition in range(PARTITIONS) for at in range(COUNT)}


@contextmanager
def console(kafka: Kafka, address: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["--bootstrap-server", address, "--topic", "t", "--group", GROUP, "--from-beginning"]
    settings = ["--consumer-property", "group.protocol=consumer", "--consumer-property", "group.remote.assignor=range"]
    command = kafka.command("-Xmx128m", CONSUMER)
    with out.open("wb") as file:
        process = subprocess.Popen([*command, *words, *settings], stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_console_consumers_share_a_group_although_one_is_killed(kafka: Kafka, tmp_path: Path) -> None:
    config = Config.load(None, SETTINGS, {}, local_dir=str(tmp_path / "node"))
    one, two = tmp_path / "one", tmp_path / "two"
    with LogManager.open(config, now_ms=now_ms()) as manager, ThreadPoolExecutor(4) as pool:
        manager.topics.create("t", PARTITIONS, {}, now_ms=now_ms())
        fill(manager, 0)
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as endpoint:
            address = "{}:{}".format(*endpoint.address)
            server = group_calls.Server(address, pool)

            def shares() -> list[int]:
                found = server.call(calls.DESCRIBE, 1, group_ids=[GROUP]).groups[0]
                assigned = [
                    [len(topic.partitions) for topic in each.assignment.topic_partitions] for each in found.members
                ]
                return sorted(sum(each) for each in assigned) if found.group_state == "Stable" else []

            with console(kafka, address, one) as first, console(kafka, address, two):
                wait_until(lambda: shares() == [1, 2], "both have partitions")
                wait_until(lambda: lines(0) <= set((one.read_text() + two.read_text()).split("\n")), "all was read")
                printed = java(
                    kafka, GROUPS, "--bootstrap-server", address, "--describe", "--group", GROUP, "--members"
                )
                assert sum(line.startswith(GROUP) for line in printed.splitlines()) == 2
                printed = java(kafka, GROUPS, "--bootstrap-server", address, "--describe", "--group", GROUP, "--state")
                assert "Stable" in printed
                assert "range" in printed
                first.kill()
                wait_until(lambda: shares() == [PARTITIONS], "the other one takes over")
                fill(manager, COUNT)
                wait_until(lambda: lines(COUNT) <= set(two.read_text().split("\n")), "it reads on")
            wait_until(lambda: shares() == [], "no member is left")
            listed = java(kafka, GROUPS, "--bootstrap-server", address, "--list", "--type", "consumer")
            assert GROUP in listed.split()
        check_dump(kafka, tmp_path / "node", manager)


def check_dump(kafka: Kafka, home: Path, manager: LogManager) -> None:
    """Kafka's decoder of ``__consumer_offsets`` reads every record from the files."""
    topic = manager.partitions.registry.find("__consumer_offsets")
    assert topic is not None
    (used,) = [each for each in topic.partitions() if manager.partitions.find(each).log.next_offset]
    files = ",".join(str(each) for each in sorted((home / f"{used.topic}-{used.partition}").glob("*.log")))
    printed = java(kafka, DUMP, "--offsets-decoder", "--files", files)
    found: dict[int, list[dict[str, object]]] = {}
    for line in printed.splitlines():
        if " payload: " in line:
            key = json.loads(line.partition(" key: ")[2].partition(" payload: ")[0])
            payload = line.partition(" payload: ")[2]
            found.setdefault(int(key["type"]), []).append({} if payload == "<DELETE>" else json.loads(payload)["data"])
    assert {3, 5, 6, 7, 8} <= found.keys()
    epochs = [int(str(each["epoch"])) for each in found[3]]
    assert epochs == sorted(epochs)
    members = [each for each in found[5] if each]
    assert {(str(each["subscribedTopicNames"]), each["serverAssignor"]) for each in members} == {("['t']", "range")}
    targets = [each["topicPartitions"] for each in found[7] if each]
    assert targets
    states = {each["state"] for each in found[8] if each}
    assert states <= {0, 1, 2}
