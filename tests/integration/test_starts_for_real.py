"""The real daemon started while its bucket is unreachable, missing, or refuses its credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from between_server import BetweenServer, Request
from real_daemon import COUNT, IMPATIENT, NOW, PLAIN_ENCODING, Daemon, Node, appending

from local.format.record import Record
from tiered.demo.s3_endpoint import S3Endpoint

pytestmark = pytest.mark.server


@pytest.fixture
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        running.create_bucket("fault-days")
        yield running


@pytest.mark.deep("processes with unusable buckets")
def test_start_without_a_usable_bucket_recovers_or_exits_by_cause(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch
) -> None:
    """One daemon for three states of the bucket:

    1. Unreachable: the daemon serves, and acquires its partitions once the bucket answers.
    2. Missing or refused: the daemon reports it and exits, and a supervisor restarts it.
    3. Renewed credentials of a profile are read by the running daemon.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    keys = tmp_path / "keys"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "night")

    def renew(name: str) -> None:
        keys.write_text(f"[night]\naws_access_key_id = {name}\naws_secret_access_key = s\n")

    refusal: tuple[int, str] | None = None
    good = "OLD"

    def answer(request: Request) -> tuple[int, str] | None:
        if refusal is not None:
            return refusal
        is_known = f"Credential={good}/" in request.headers.get("authorization", "")
        return None if is_known else (403, "ExpiredToken")

    home = tmp_path / "home"
    home.mkdir()
    with BetweenServer(endpoint.url, answer) as server:
        renew("OLD")
        node = Node(home, server.url)
        node.options = {}
        node.configure("orders")
        node.fill("orders")
        with node.manager() as manager:
            manager.topics.create("here", 1, {}, now_ms=0)

        refusal = (503, "SlowDown")
        with Daemon(node, program=("-c", appending(IMPATIENT))) as daemon:
            daemon.wait_for_trouble("orders/0: ", "SlowDown")
            assert daemon.append("here", 0, 10), "a topic without a remote tier must accept appends"
            refusal = None
            daemon.wait_until_copied("orders")
            daemon.wait_until_well()
            # the credentials expire, and records are appended
            good = "NEW"
            assert daemon.append("orders", COUNT, COUNT)
            node.sent["orders"] += [Record(b"k", b"orders %d" % at, NOW) for at in range(COUNT, 2 * COUNT)]
            daemon.wait_for_trouble("orders/0: ", "ExpiredToken")
            lines = daemon.words.count("they are read again")
            renew("NEW")
            daemon.wait_until_well()
            daemon.wait_until_copied("orders")
            assert lines == 1
            assert daemon.end() == 0

        for code, told in ((404, "NoSuchBucket"), (403, "ExpiredToken")):
            refusal = (code, told)
            with Daemon(node, program=PLAIN_ENCODING, is_served=False) as daemon:
                assert daemon.process.wait(60) == 1
                assert [line for line in daemon.words.splitlines() if line.startswith("error: ") and told in line]
                assert "Traceback" not in daemon.words
        refusal = None
        with node.manager() as manager:
            node.check_read(manager)
