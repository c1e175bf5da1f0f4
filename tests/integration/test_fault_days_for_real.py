"""The days of `tests/crash/test_fault_days.py` once with a real daemon, over HTTP: it goes on, says so, recovers alone.

A server stands between the daemon and an S3 endpoint and answers as S3 does when something is wrong. Each topic is one
day: its closed segments wait until the configuration, which the daemon reads again by itself, lets them be copied.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from between_server import BetweenServer, Request

from local.log import Durability
from local.names import TopicPartition
from local.record import Record
from tiered.config import Config
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.manager import LogManager
from tiered.remote_view import open_remote

pytestmark = pytest.mark.server

NOW = 1_700_000_000_000
LIMIT_S = 120.0
COUNT = 200
# The daemon, but that it is less patient: two tries for a call, and a client may be made anew at once.
DAEMON = """
import functools, sys
from remote import fsspec_store, s3_store
from remote.retrying_store import RetryPolicy
from tiered.cli.main import run
s3_store.CLIENT_AGE_MIN_S = 0.0
fsspec_store.RetryPolicy = functools.partial(RetryPolicy, attempts_max=2, wait_first_s=0.05, wait_max_s=0.1)
run(["-C", sys.argv[1], "run", "--interval", "100ms", "--metrics", ":0"])
"""


class Node:
    """A directory, its bucket, what stands before that, and the daemon."""

    def __init__(self, home: Path, server: BetweenServer) -> None:
        self.home, self.url = home, server.url
        self.copied: list[str] = []
        self.credentials = home / "credentials"
        self.sent: dict[str, list[Record]] = {}
        self.write_credentials("OLD")
        self.configure()

    def write_credentials(self, name: str) -> None:
        self.credentials.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")

    def configure(self, *copied: str) -> None:
        """Let the segments of these topics be copied, too."""
        self.copied += copied
        lines = [
            '[local]\ndir = "data"\n[remote]\nurl = "s3://fault-days/p"\n[remote.options]',
            f"endpoint_url = {json.dumps(self.url)}",
            'client_kwargs = { region_name = "us-east-1" }\nconfig_kwargs = { proxies = {} }',
            '[defaults]\n"segment.bytes" = "2000"\n"append.batch.bytes" = "500"\n"remote.log.copy.disable" = "true"',
            *(f'[topics."{topic}"]\n"remote.log.copy.disable" = "false"' for topic in self.copied),
        ]
        aside = self.home / "tiered.toml.new"
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(self.home / "tiered.toml")

    def manager(self) -> LogManager:
        return LogManager.open(Config.load(str(self.home / "tiered.toml"), {}, {}), now_ms=NOW)

    def fill(self, *topics: str) -> None:
        with self.manager() as manager:
            for topic in topics:
                manager.create_topic(topic, 1, {"remote.storage.enable": "true", "retention.ms": "-1"}, now_ms=NOW)
                self.sent[topic] = [Record(b"k", b"%s %d" % (topic.encode(), at), NOW) for at in range(COUNT)]
                manager.append(topic, self.sent[topic], 0, now_ms=NOW, durability=Durability.FLUSHED)
                manager.roll(topic, now_ms=NOW)

    def file(self, topic: str) -> Path:
        return sorted((self.home / "data" / f"{topic}-0").glob("*.log"))[1]


class Daemon:
    def __init__(self, node: Node) -> None:
        self.words = node.home / "words"
        with self.words.open("wb") as words:
            self.process = subprocess.Popen([sys.executable, "-c", DAEMON, str(node.home)], stderr=words)
        self.url = wait_for(lambda: self._url(), "the daemon serves")

    def _url(self) -> str | None:
        found = [line for line in self.words.read_text().splitlines() if line.startswith("metrics at ")]
        return found[0].split()[2].rstrip(",").removesuffix("metrics") if found else None

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


def wait_for(look: Callable[[], str | None], what: str) -> str:
    begun = time.monotonic()
    while time.monotonic() - begun < LIMIT_S:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


@pytest.fixture
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        running.create_bucket("fault-days")
        yield running


def test_a_daemon_meets_one_trouble_after_the_other_and_recovers_from_each_by_itself(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    refusal: tuple[int, str] | None = None
    good = "OLD"

    def answer(request: Request) -> tuple[int, str] | None:
        if refusal is not None:
            return refusal
        is_known = f"Credential={good}/" in request.headers.get("authorization", "")
        return None if is_known else (403, "InvalidAccessKeyId")

    with BetweenServer(endpoint.url, answer) as server:
        node = Node(tmp_path, server)
        node.fill("well", "reach", "gone", "keys", "rot")
        daemon = Daemon(node)
        try:
            assert daemon.ask("health") == (200, "ok\n")

            def day(topic: str, cause: str, *, others: int = 0) -> None:
                """A topic's segments are to go up, and its trouble, nobody else's, is told."""
                node.configure(topic)

                def told() -> str | None:
                    code, text = daemon.ask("health")
                    return text if code == 503 and f"{topic}/0: " in text and cause in text else None

                text = wait_for(told, f"{topic} in trouble")
                assert text.count("\n") == 1 + others, text
                assert 'tiered_partition_problems{class="' in daemon.ask("metrics")[1]

            def is_up(topic: str) -> None:
                def told() -> str | None:
                    lines = daemon.ask("metrics")[1].splitlines()
                    return "" if f'tiered_remote_copy_lag_segments{{topic="{topic}"}} 0' in lines else None

                wait_for(told, f"{topic} in the bucket")
                wait_for(lambda: "" if daemon.ask("health")[0] == 200 else None, "all is well")

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
            node.write_credentials("NEW")
            is_up("keys")

            damaged = bytearray(node.file("rot").read_bytes())
            damaged[150] ^= 1
            node.file("rot").write_bytes(damaged)
            day("rot", "crc")
            node.configure("well")
            damaged[150] ^= 1
            wait_for(
                lambda: "" if 'tiered_remote_copy_lag_segments{topic="well"} 0' in daemon.ask("metrics")[1] else None,
                "the others go on",
            )
            node.file("rot").write_bytes(damaged)
            is_up("rot")
            words = daemon.words.read_text()
            assert 4 <= words.count("partition in trouble") <= 8, words
            assert daemon.end() in (0, 143)
        finally:
            daemon.process.kill()
            daemon.process.wait()
        with node.manager() as manager:
            for topic, records in node.sent.items():
                found = [record.value for record in manager.reader().records(TopicPartition(topic, 0), 0)]
                assert found == [record.value for record in records]
        with open_remote("s3://fault-days/p", endpoint.options()) as bucket:
            for topic, records in node.sent.items():
                found = [record.value for record in bucket.reader().records(TopicPartition(topic, 0), 0)]
                assert found == [record.value for record in records]
