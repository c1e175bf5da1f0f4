"""External compacted topics, from which a cleaner removed whole segments: adopted, imported and scrubbed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from test_adopting import NAME, NOW, Broker, Side

from local.cleaner.cleaner import clean
from local.format.record import Record
from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.read.bucket_reader import RemoteLog


def _bursts(broker: Broker, bursts: int) -> None:
    """Append bursts that each overwrite all keys, so that only the newest segments have live records."""
    for _ in range(bursts):
        broker.send(150, keys=3)


def _unique(broker: Broker, count: int) -> None:
    """Append records with unique keys, which no cleaner removes."""
    start = broker.log.next_offset
    records = [Record(b"key %d" % at, b"value %d" % at, NOW + at) for at in range(start, start + count)]
    for at in range(0, count, 10):
        broker.log.append(records[at : at + 10], now_ms=NOW)


def test_entries_of_an_adopted_compacted_topic_are_contiguous(tmp_path: Path) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    side.adopter.properties = lambda topic: {"cleanup.policy": "compact", "segment.bytes": "2000"}
    for _ in range(4):
        _unique(broker, 200)
        _bursts(broker, 3)
        broker.settle()
        found = side.tick()
        assert found.problem is None
    manifest = RemoteLog(side.store).manifest(NAME)
    assert manifest.segments[-1].next_offset == found.tiered_upto
    assert all(one.next_offset == two.base_offset for one, two in pairwise(manifest.segments))


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_scrub_of_a_healthy_adopted_compacted_topic_exits_0(deep: list[str], tmp_path: Path, capfd) -> None:
    broker, bucket = Broker(tmp_path, is_compacted=True), tmp_path / "bucket"
    bucket.mkdir()
    words = [
        "adopt", broker.root, "--once", "--remote", bucket.as_uri(), "--work", str(tmp_path / "w"),
        "-X", "cleanup.policy=compact", "-X", "segment.bytes=2000",
    ]  # fmt: skip
    for _ in range(4):
        _unique(broker, 200)
        _bursts(broker, 3)
        broker.settle()
        assert invoke(words) == 0
    capfd.readouterr()
    assert invoke(["-C", str(tmp_path), "scrub", *deep, "--remote", bucket.as_uri(), "-o", "json"]) == 0
    assert not [each for each in json.loads(capfd.readouterr().out)["findings"] if each["severity"] != "info"]


def _cleaned_logs(tmp_path: Path) -> tuple[Path, list[tuple[int, bytes | None]]]:
    """Copy the closed segments of a directory after the cleaner of a broker removed one segment file."""
    broker = Broker(tmp_path)
    for _ in range(3):
        _unique(broker, 200)
        _bursts(broker, 4)
    broker.log.roll(now_ms=NOW)
    clean(broker.log, clean_from=0, now_ms=NOW)
    broker.log.remove_deleted(NOW + 10**9)
    theirs = tmp_path / "theirs" / NAME.directory
    theirs.mkdir(parents=True)
    left = [info for info in broker.log.segments() if not info.is_active and not info.is_empty]
    for info in left:
        for suffix in (".log", ".index", ".timeindex"):
            name = f"{info.base_offset:020d}{suffix}"
            (theirs / name).write_bytes(broker.disk.read(f"{broker.root}/{NAME.directory}/{name}"))
    end = left[-1].next_offset
    return theirs.parent, [(each.offset, each.value) for each in broker.log.records(0) if each.offset < end]


def test_scrub_of_a_healthy_imported_compacted_topic_exits_0(tmp_path: Path, capfd) -> None:
    theirs, expected = _cleaned_logs(tmp_path)
    bucket = tmp_path / "ours"
    bucket.mkdir()
    assert invoke(["import", theirs.as_uri(), "--layout", "logs", "--yes", "--remote", bucket.as_uri()]) == 0
    store = open_store(bucket.as_uri())
    log = MetadataLog(store, list_partitions(store)[0].prefix)
    entries = list(log.index(log.refresh()).entries())
    assert len(entries) > 1
    assert all(one.next_offset == two.base_offset for one, two in pairwise(entries))
    reader = RemoteLog(store).reader()
    name = TopicPartition("t", 0)
    assert [(each.offset, each.value) for each in reader.records(name, 0)] == expected
    capfd.readouterr()
    assert invoke(["-C", str(tmp_path), "scrub", "--deep", "--remote", bucket.as_uri()]) == 0, capfd.readouterr().out


def test_gap_in_a_topic_that_was_never_cleaned_is_a_warning(tmp_path: Path, capfd) -> None:
    broker = Broker(tmp_path)
    broker.send(400)
    broker.log.roll(now_ms=NOW)
    theirs, bucket = tmp_path / "theirs" / NAME.directory, tmp_path / "ours"
    theirs.mkdir(parents=True)
    bucket.mkdir()
    for at, info in enumerate(broker.log.segments()[:-1]):
        if at != 2:
            name = f"{info.base_offset:020d}.log"
            (theirs / name).write_bytes(broker.disk.read(f"{broker.root}/{NAME.directory}/{name}"))
    words = ["import", theirs.parent.as_uri(), "--layout", "logs", "--yes", "--remote", bucket.as_uri()]
    assert invoke(words) == 0
    assert "the source lacks" in capfd.readouterr().err
    assert invoke(["-C", str(tmp_path), "scrub", "--remote", bucket.as_uri()]) == 3
