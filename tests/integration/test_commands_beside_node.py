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
