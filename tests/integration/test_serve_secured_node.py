"""``tiered run --kafka --security``: a client writes and reads in a group what its rules allow, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka_security import PASSWORDS, SASL, TLS, Place
from real_daemon import FOR_EVER, Daemon, Node

pytestmark = pytest.mark.server
COUNT, LIMIT_S, POLLS_MAX = 100, 30.0, 20_000
ACL = """
[[acl]]
principal = "User:alice"
operations = ["Read", "Write"]
topic = "t"
[[acl]]
principal = "User:alice"
operations = "Read"
group = "readers"
"""


def test_a_client_does_what_its_rules_allow(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "secured")
    place.write(SASL, TLS, ACL)
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", None)
    node.fill("t")
    with Daemon(node, (*FOR_EVER, "--kafka", ":0", "--security", str(place.file))) as daemon:
        settings = {
            "bootstrap.servers": f"localhost:{_port(daemon)}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(place.authority.file),
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            "broker.address.family": "v4",
        }
        results: list[object] = []
        producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
        for at in range(COUNT):
            producer.produce("t", b"new %d" % at, on_delivery=lambda error, _: results.append(error))
        assert producer.flush(LIMIT_S) == 0
        assert results == [None] * COUNT
        expected = [each.value for each in node.sent["t"]] + [b"new %d" % at for at in range(COUNT)]
        with_group = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        found, error = _consumed({**settings, **with_group, "group.id": "readers"}, len(expected))
        assert (found, error) == (expected, None)
        _, error = _consumed({**settings, **with_group, "group.id": "others"}, 1)
        assert error == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
        transactional = confluent_kafka.Producer({**settings, "transactional.id": "x"})
        with pytest.raises(confluent_kafka.KafkaException, match="Transactional Id authorization failed"):
            transactional.init_transactions(LIMIT_S)
        assert daemon.end() == 0


def _port(daemon: Daemon) -> str:
    def said() -> str | None:
        found = re.search(r"serving Kafka clients at \S+:(\d+)", daemon.words)
        return found[1] if found else None

    return daemon.wait_for(said, "it serves Kafka clients")


def _consumed(settings: dict[str, Any], count: int) -> tuple[list[bytes | None], int | None]:
    """Values up to `count`, and the code of the first error."""
    consumer = confluent_kafka.Consumer(settings)
    values: list[bytes | None] = []
    try:
        consumer.subscribe(["t"])
        poll: Callable[[float], Any] = consumer.poll
        for _ in range(POLLS_MAX):
            message = poll(0.01)
            if message is not None and message.error() is not None:
                return values, message.error().code()
            values += [] if message is None else [message.value()]
            if len(values) == count:
                break
        return values, None
    finally:
        consumer.close()
