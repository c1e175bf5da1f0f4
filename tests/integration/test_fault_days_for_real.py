"""The faults of `tests/crash/test_fault_days.py` with a real daemon over HTTP: it continues, reports and recovers.

A proxy between the daemon and an S3 endpoint answers like S3 under each fault. Each topic is one fault: its closed
segments wait until the configuration allows their copy. The daemon reloads the configuration by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from between_server import BetweenServer, Request
from real_daemon import Daemon, Node

from local.names import TopicPartition
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.server


def write_credentials(home: Path, name: str) -> None:
    (home / "credentials").write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")


@pytest.fixture
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        running.create_bucket("fault-days")
        yield running


@pytest.mark.deep("a daemon through every fault")
def test_daemon_recovers_by_itself_from_one_fault_after_another(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_credentials(home, "OLD")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    refusal: tuple[int, str] | None = None
    good = "OLD"

    def answer(request: Request) -> tuple[int, str] | None:
        if refusal is not None:
            return refusal
        is_known = f"Credential={good}/" in request.headers.get("authorization", "")
        return None if is_known else (403, "InvalidAccessKeyId")

    with BetweenServer(endpoint.url, answer) as server:
        node = Node(home, server.url)
        node.options = {}
        node.configure()
        node.fill("well", "reach", "gone", "keys", "rot")
        with Daemon(node) as daemon:
            assert daemon.ask("health") == (200, "ok\n")

            def day(topic: str, cause: str) -> None:
                """Allow the upload of a topic, and wait until the problem of this topic alone is reported."""
                node.configure(topic)
                text = daemon.wait_for_trouble(f"{topic}/0: ", cause)
                assert text.count("\n") == 1, text
                assert 'tiered_partition_problems{class="' in daemon.ask("metrics")[1]

            def is_up(topic: str) -> None:
                daemon.wait_until_copied(topic)
                daemon.wait_until_well()

            refusal = (503, "SlowDown")
            day("reach", "SlowDown")
            refusal = None
            is_up("reach")

            refusal = (404, "NoSuchBucket")
            day("gone", "NoSuchBucket")
            refusal = None
            is_up("gone")

            good = "NEW"
            day("keys", "InvalidAccessKeyId")
            write_credentials(home, "NEW")
            is_up("keys")

            damaged = bytearray(node.file("rot").read_bytes())
            damaged[150] ^= 1
            node.file("rot").write_bytes(damaged)
            day("rot", "crc")
            node.configure("well")
            daemon.wait_until_copied("well")  # other topics continue
            damaged[150] ^= 1
            node.file("rot").write_bytes(damaged)
            is_up("rot")
            assert 4 <= daemon.words.count("a partition has a problem") <= 8, daemon.words
            assert daemon.end() == 0
        with node.manager() as manager:
            node.check_read(manager)
        with open_remote("s3://fault-days/p", endpoint.options()) as bucket:
            for topic, records in node.sent.items():
                found = [record.value for record in bucket.reader().records(TopicPartition(topic, 0), 0)]
                assert found == [record.value for record in records]
