"""Commands as processes beside a real `tiered run`: appends from pipes, a killed node, both ends of its life."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from real_daemon import FOR_EVER, LIMIT_S, PLAIN_ENCODING, Daemon, Node, wait_for

from local.names import TopicPartition
from tiered.serve.commands.unix_socket import FILE

pytestmark = pytest.mark.server
T = TopicPartition("t", 0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", None)
    node.fill("t")
    return node


@contextmanager
def command(node: Node, *words: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(
        [sys.executable, *PLAIN_ENCODING, "-C", str(node.home), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def values(node: Node) -> list[str]:
    with node.manager() as manager:
        return [bytes(each.value or b"").decode() for each in manager.reader().records(T, 0)]


def logged_bytes(node: Node) -> int:
    return sum(each.stat().st_size for each in node.files("t"))


def test_two_pipes_append_beside_a_node_and_none_of_their_records_is_lost_or_twice(node: Node) -> None:
    lines = {name: [f"{name} {at}" for at in range(500)] for name in "ab"}
    with Daemon(node), command(node, "append", "t", "-o", "json") as a, command(node, "append", "t", "-o", "json") as b:
        for process, name in ((a, "a"), (b, "b")):
            assert process.stdin is not None
            process.stdin.write("".join(f"{each}\n" for each in lines[name]))
            process.stdin.flush()
        for process in (a, b):
            out, said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said
            assert json.loads(out)["appended"][0]["records"] == 500
    found = values(node)
    for name in "ab":
        assert [each for each in found if each.startswith(f"{name} ")] == lines[name]
    assert len(found) == len(node.sent["t"]) + 1000


def test_a_node_that_is_killed_ends_an_append_with_the_count_of_durable_records(node: Node) -> None:
    before = logged_bytes(node)
    with Daemon(node) as daemon, command(node, "append", "t") as process:
        assert process.stdin is not None
        process.stdin.write("".join(f"line {at}\n" for at in range(100)))
        process.stdin.flush()
        wait_for(lambda: True if logged_bytes(node) > before else None, "the first lines in the log")
        daemon.process.kill()
        daemon.process.wait(LIMIT_S)
        try:
            _, said = process.communicate("".join(f"more {at}\n" for at in range(100)), timeout=LIMIT_S)
        except BrokenPipeError:
            _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 6, said
    assert (node.home / "data" / FILE).is_socket(), "a killed node leaves its socket"
    counted = re.search(r"appended before the error: records=(\d+)", said)
    assert counted is not None, said
    found = [each for each in values(node) if each.startswith(("line", "more"))]
    assert len(found) >= int(counted[1])
    assert found == [f"line {at}" for at in range(100)][: len(found)], "no record twice, none out of order"
    with command(node, "append", "t") as process:
        _, said = process.communicate("alone\n", timeout=LIMIT_S)
        assert process.returncode == 0, said
    assert values(node)[-1] == "alone"


def test_verify_knows_every_file_of_a_killed_node(node: Node) -> None:
    with Daemon(node, (*FOR_EVER, "--kafka", ":0")) as daemon:
        address = daemon.wait_for(lambda: re.search(r"serving Kafka clients at (\S+)", daemon.words), "an address")[1]
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "one"})
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        producer.produce("t", b"value", partition=0)
        producer.commit_transaction(LIMIT_S)
        with command(node, "pause") as process:
            assert process.wait(LIMIT_S) == 0
        daemon.process.kill()
    assert {FILE, "producer-ids.json"} <= {each.name for each in (node.home / "data").iterdir()}
    with command(node, "verify", "-o", "json") as process:
        found = json.loads(process.communicate(timeout=LIMIT_S)[0])["findings"]
    assert [each for each in found if each["severity"] != "info"] == []


def test_commands_change_the_topics_of_a_real_node_until_it_ends(node: Node) -> None:
    with Daemon(node, (*FOR_EVER, "--kafka", ":0")) as daemon:
        for words in (
            "topic create new -p 2",
            "topic alter new -X retention.ms=1d",
            "delete-records t/0 --before 7 --yes",
        ):
            with command(node, *words.split()) as process:
                _, said = process.communicate(timeout=LIMIT_S)
                assert process.returncode == 0, said
        assert "topics=" in daemon.words
        assert daemon.end(signal.SIGTERM) == 0
        assert "Traceback" not in daemon.words
    assert not (node.home / "data" / FILE).exists()
    with node.manager() as manager:
        assert manager.topics.get("new").properties == {"retention.ms": "1d"}
        assert manager.reader().offsets(T)[0] == 7


def test_two_commands_share_a_group_and_leave_it_at_a_signal(node: Node) -> None:
    quick = {"TIERED_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "100ms"}

    def done(*words: str) -> str:
        with command(node, *words) as process:
            out, said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, said
        return out

    def described() -> dict[str, Any]:
        with command(node, "group", "describe", "g", "-o", "json") as process:
            out, _ = process.communicate(timeout=LIMIT_S)
        found: dict[str, Any] = json.loads(out) if out else {"state": None, "members": 0}  # before the first joins
        return found

    def produce(producer: confluent_kafka.Producer, name: str, *, is_committed: bool) -> set[str]:
        values = {f"{name} {at}" for at in range(100)}
        producer.begin_transaction()
        for at, value in enumerate(sorted(values)):
            producer.produce("shared", value, partition=at % 4)
        producer.flush(LIMIT_S)
        producer.commit_transaction(LIMIT_S) if is_committed else producer.abort_transaction(LIMIT_S)
        return values

    reading = ["consume", "shared", "--group", "g", "--follow", "--isolation", "read_committed", "--from", "start"]
    with Daemon(node, (*FOR_EVER, "--kafka", ":0"), environ=quick) as daemon:
        address = daemon.wait_for(lambda: re.search(r"serving Kafka clients at (\S+)", daemon.words), "an address")[1]
        done("topic", "create", "shared", "-p", "4")
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "one"})
        producer.init_transactions(LIMIT_S)
        expected = produce(producer, "first", is_committed=True)
        with command(node, *reading) as a, command(node, *reading) as b:
            wait_for(
                lambda: True if (described()["state"], described()["members"]) == ("Stable", 2) else None,
                "both have their share",
            )
            produce(producer, "aborted", is_committed=False)
            expected |= produce(producer, "second", is_committed=True)
            wait_for(
                lambda: True if [each["lag"] for each in described()["offsets"]] == [0] * 4 else None, "all committed"
            )
            a.send_signal(signal.SIGTERM)
            b.send_signal(signal.SIGINT)
            shares = [process.communicate(timeout=LIMIT_S)[0].splitlines() for process in (a, b)]
            assert (a.returncode, b.returncode) == (143, 130)
        assert described()["members"] == 0
        assert sorted([*shares[0], *shares[1]]) == sorted(expected), "each record once, none of an aborted transaction"
        assert all(any(each.startswith("second") for each in share) for share in shares)
        third = produce(producer, "third", is_committed=True)
        assert set(done("consume", "shared", "--group", "g", "--isolation", "read_committed").splitlines()) == third
