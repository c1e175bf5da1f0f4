"""The whole life of a topic on real servers, by command line: append, roll, copy, drop, read, expire."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_truth import assert_sound
from local_servers import RunningServer

from remote.store.open_store import open_store

pytestmark = pytest.mark.server
_numbers = itertools.count()
SEGMENT_BYTES, RECORDS = 4000, 600


class Place:
    """An empty root on a server, and a node directory that uses it."""

    def __init__(self, server: RunningServer, home: Path) -> None:
        self.home, self.options = home, server.options()
        bucket = f"life-{next(_numbers)}"
        if server.kind.is_s3:
            server.create_bucket(bucket)
            self.url = f"s3://{bucket}/logs"
        else:
            from hdfs_native import Client

            Client(server.url).mkdirs(f"/{bucket}/logs", create_parent=True)
            self.url = f"{server.url}/{bucket}/logs"
        self.configure({})

    def configure(self, defaults: dict[str, str]) -> None:
        told = {name: value for name, value in self.options.items() if not isinstance(value, dict)}
        options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
        if told:
            options += 'client_kwargs = { region_name = "us-east-1" }\n'
        settings = {
            "remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "append.batch.bytes": "500",
            "index.interval.bytes": "200", "local.retention.ms": "1ms", "retention.ms": "-1",
            "file.delete.delay.ms": "0", "remote.log.delete.grace.ms": "0", **defaults,
        }  # fmt: skip
        rows = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items())
        (self.home / "tiered.toml").write_text(
            f'[local]\ndir = "data"\n[remote]\nurl = "{self.url}"\n[remote.options]\n{options}[defaults]\n{rows}'
        )

    def tiered(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tiered", "-C", str(self.home), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def values(self, *arguments: str) -> list[str]:
        told = self.tiered("consume", "orders/0", "-o", "jsonl", *arguments)
        return [json.loads(line)["value"] for line in told.splitlines()]

    def objects(self) -> dict[str, int]:
        store = open_store(self.url, self.options)
        found = {info.key: info.size_bytes for info in store.list("")}
        store.close()
        return found

    def local_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.home / "data" / "orders-0").glob("*.log"))


@pytest.fixture(
    params=[
        pytest.param("versitygw", marks=pytest.mark.versitygw),
        pytest.param(
            "localstack", marks=[pytest.mark.localstack, pytest.mark.deep("the life of a topic on LocalStack")]
        ),
        pytest.param("hdfs", marks=[pytest.mark.hdfs, pytest.mark.deep("the life of a topic on Hadoop")]),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place on each server. At the end every object of its bucket is decoded."""
    place = Place(request.getfixturevalue(f"{request.param}_server"), tmp_path)
    yield place
    store = open_store(place.url, place.options)
    (report,) = assert_sound(store)
    assert report.manifest is not None
    store.close()


def test_whole_life_of_a_topic_on_a_real_store(place: Place) -> None:
    values = [f"order {at:05d}" for at in range(RECORDS)]
    (place.home / "lines").write_text("".join(f"{value}\n" for value in values))
    place.tiered("topic", "create", "orders")
    place.tiered("append", "orders", str(place.home / "lines"))
    appended = place.local_bytes()
    place.tiered("run", "--once")

    data = {key: size for key, size in place.objects().items() if "/data/" in key and key.endswith(".log")}
    assert len(data) >= 3, "segments must be rolled and copied"
    assert place.local_bytes() <= appended - sum(data.values()) + SEGMENT_BYTES, (
        "copied segments must be dropped from the disk"
    )
    assert place.values() == values, "reads must span both tiers"
    assert place.values("--from", "250", "-n", "3") == values[250:253]

    place.configure({"retention.bytes": str(2 * SEGMENT_BYTES)})
    for _ in range(3):  # unlink, wait for the grace period, delete
        place.tiered("run", "--once")
    left = {key for key in place.objects() if "/data/" in key and key.endswith(".log")}
    assert 0 < len(left) < len(data), "retention must delete the oldest objects"
    kept = place.values()
    assert 0 < len(kept) < RECORDS
    assert kept == values[-len(kept) :], "the newest records must stay, complete and in order"

    # A read from the bucket only.
    told = place.tiered("consume", "orders/0", "--remote", place.url, *_given(place.options), "-o", "jsonl")
    remote = [json.loads(line)["value"] for line in told.splitlines()]
    assert remote == kept[: len(remote)]
    assert remote


def _given(options: dict[str, object]) -> list[str]:
    return [f"--option={name}={value}" for name, value in options.items() if not isinstance(value, dict)]
