"""kill -9 at any moment of `tiered run` and of an appending manager, over a real S3 API: no acknowledged record is
lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_profile import KILLS

from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.manager.manager import LogManager
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.server

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1ms", "retention.ms": "-1"}

WRITER = """
import sys, time
from local.log.log import Durability
from local.format.record import Record
from tiered.config.config import Config
from tiered.manager.manager import LogManager
config = Config.load(sys.argv[1], {}, {})
manager = LogManager.open(config, now_ms=time.time_ns() // 10**6)
while True:
    first = manager.reader().offsets(manager.topics.get("t").partitions()[0])[1]
    records = [Record(b"k%d" % (at % 11), b"v%d" % at, at) for at in range(first, first + 20)]
    for given in manager.append("t", records, 0, now_ms=1, durability=Durability.FLUSHED).values():
        print(given.base_offset, given.next_offset, flush=True)
    manager.tick(time.time_ns() // 10**6)
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        yield running


@pytest.fixture
def config_path(tmp_path: Path, endpoint: S3Endpoint, request: pytest.FixtureRequest) -> str:
    bucket = f"kill-{abs(hash(request.node.name)) % 10**9}"
    endpoint.create_bucket(bucket)
    options = "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in endpoint.options().items() if not isinstance(value, dict)
    )
    path = tmp_path / "tiered.toml"
    path.write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "s3://{bucket}/p"\n[remote.options]\n{options}\n'
        f'client_kwargs = {{ region_name = "us-east-1" }}\n'
        f'[defaults]\n"segment.bytes" = "2000"\n"append.batch.bytes" = "500"\n"index.interval.bytes" = "200"\n'
        f'"file.delete.delay.ms" = "0"\n"min.cleanable.dirty.ratio" = "0"\n'
    )
    return str(path)


def _now_ms() -> int:
    return time.time_ns() // 10**6


def _kill_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def _read(config_path: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    with LogManager.open(Config.load(config_path, {}, {}), now_ms=_now_ms()) as manager:
        start, end = manager.reader().offsets(NAME)
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        for record in manager.reader().records(NAME, start):
            assert record.offset not in found
            found[record.offset] = (record.key, record.value)
        assert max(found, default=-1) < end
        return found


def test_repeatedly_killed_run_neither_loses_nor_repeats_a_record(config_path: str) -> None:
    """`tiered run` cleans, uploads and drops closed segments, and is killed repeatedly."""
    config = Config.load(config_path, {}, {})
    rng = random.Random(11)
    sent: dict[str, list[Record]] = {"t": [], "c": []}
    with LogManager.open(config, now_ms=NOW) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("c", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
    command = [sys.executable, "-m", "tiered", "-C", str(Path(config_path).parent), "run", "--interval", "10ms"]
    for draw in range(KILLS):
        with LogManager.open(config, now_ms=NOW) as manager:
            for topic, all_sent in sent.items():
                first = len(all_sent)
                records = [Record(b"k%d" % (at % 11), b"v%d" % at, NOW + at) for at in range(first, first + 300)]
                manager.append(topic, records, 0, now_ms=NOW, durability=Durability.FLUSHED)
                all_sent += records
                manager.partitions.roll(topic, now_ms=NOW)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _kill_after(process, 0.4 + rng.random() * (0.5 + 0.1 * draw))
    found = _read(config_path)
    assert found == {at: record[:2] for at, record in enumerate(sent["t"])}
    done = subprocess.run([*command[:-2], "--once"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with open_remote(str(config.remote_url), config.remote_options) as bucket:
        remote = [(record.offset, record.value) for record in bucket.reader().records(NAME, 0)]
        assert remote == [(at, record.value) for at, record in enumerate(sent["t"])]
        compacted = TopicPartition("c", 0)
        newest = {record.key: record.value for record in bucket.reader().records(compacted, 0)}
        assert newest == {record.key: record.value for record in sent["c"]}


def test_killed_appending_manager_keeps_every_acknowledged_record(config_path: str) -> None:
    with LogManager.open(Config.load(config_path, {}, {}), now_ms=NOW) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    rng = random.Random(12)
    acked = 0
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", WRITER, config_path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        first = process.stdout.readline()
        _kill_after(process, rng.random() * 0.4)
        told = [line for line in (first + process.stdout.read()).splitlines(keepends=True) if line.endswith(b"\n")]
        process.stdout.close()
        for line in told:
            base_offset, next_offset = map(int, line.split())
            assert base_offset >= acked, "no offset may be assigned twice"
            acked = next_offset
        found = _read(config_path)
        for at in range(acked):
            assert found.get(at) == (b"k%d" % (at % 11), b"v%d" % at)
    assert acked > 100
