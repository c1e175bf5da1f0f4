"""DeleteRecords at a live broker is mirrored to the bucket, retention is not. Later records are kept.
The tests write the broker's log start offset, epoch checkpoint and files as Kafka does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_adopt_metrics import _samples
from test_adopting import NAME, NOW, Broker, Side

from local import names
from local.errors import Corrupt, NotFound, OffsetOutOfRange, Unavailable
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.storage import join
from policies.tier_relation import BrokerRetention, LogStartFacts, is_deletion
from tiered.cli.main import invoke
from tiered.migrate import adopt
from tiered.migrate.adopt import AdoptedPartition, AdoptMetrics
from tiered.read.bucket_reader import RemoteLog

HOUR = 3_600_000
PLAIN = ("-X", "cleanup.policy=delete")
WEEK = 7 * 24 * HOUR


def _directory(broker: Broker) -> str:
    return join(broker.root, NAME.directory)


def _epochs(broker: Broker) -> LeaderEpochs:
    path = join(_directory(broker), names.LEADER_EPOCHS)
    return LeaderEpochs(tuple(checkpoints.read_epochs(broker.disk, path)))


def _delete_records(broker: Broker, before: int, *, deletes_files: bool = True) -> None:
    """As a broker does it:
    1. Write the checkpoint of log start offsets.
    2. Truncate the leader epoch cache from its start.
    3. Delete the segments entirely below the offset."""
    checkpoints.write_offsets(broker.disk, join(broker.root, names.LOG_START_OFFSETS), {NAME: before})
    epochs = _epochs(broker).truncate_from_start(before)
    checkpoints.write_epochs(broker.disk, join(_directory(broker), names.LEADER_EPOCHS), epochs.entries)
    for info in broker.log.segments():
        if deletes_files and info.next_offset <= before and not info.is_active:
            for suffix in (".log", ".index", ".timeindex"):
                broker.disk.unlink(join(_directory(broker), names.segment_file(info.base_offset, suffix)))


def _log_start(side: Side) -> int:
    return RemoteLog(side.store).manifest(NAME).log_start_offset


def _broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path)
    broker.log.begin_epoch(3)
    broker.send(150)
    broker.log.begin_epoch(5)
    broker.send(350)
    broker.settle()
    return broker


@pytest.mark.parametrize("deletes_files", [True, False])
@pytest.mark.parametrize("at", [75, 149, 150, 151, 233])
@pytest.mark.parametrize("was_adopted", [False, True])
def test_records_after_a_deletion_reach_the_bucket(
    tmp_path: Path, at: int, was_adopted: bool, deletes_files: bool
) -> None:
    """The log start offset is inside a segment that is not copied, and the epoch checkpoint begins there."""
    broker = _broker(tmp_path)
    side = Side(broker)
    if was_adopted:
        broker.settle(100)
        assert 0 < (side.tick().tiered_upto or 0) <= 100
        broker.settle()
    _delete_records(broker, at, deletes_files=deletes_files)
    for _ in range(2):
        found = side.tick()
        assert found.problem is None
        assert found.lost == ()
    assert _log_start(side) == at
    assert found.lag_bytes == 0
    assert side.values() == [(n, each.value) for n, each in enumerate(broker.sent)][at : found.tiered_upto]
    assert (found.tiered_upto or 0) > 400
    with pytest.raises(OffsetOutOfRange):
        next(iter(RemoteLog(side.store).reader().records(NAME, at - 1)))
    for entry in RemoteLog(side.store).manifest(NAME).segments:
        told = LeaderEpochs(entry.epochs)
        assert all(told.epoch_at(n) == (3 if n < 150 else 5) for n in range(entry.base_offset, entry.next_offset))


def test_repeated_deletions_are_mirrored_without_loss_of_later_records(tmp_path: Path) -> None:
    broker = _broker(tmp_path)
    side = Side(broker)
    for at in (33, 120, 121, 260, 311, 460):
        _delete_records(broker, at)
        broker.send(40)
        broker.settle()
        found = side.tick()
        assert (found.problem, found.lost, _log_start(side)) == (None, (), at)
        assert side.values() == [(n, each.value) for n, each in enumerate(broker.sent)][at : found.tiered_upto]


def test_deletion_is_mirrored_before_any_segment_is_closed(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.log.begin_epoch(1)
    broker.send(20)
    broker.settle()
    _delete_records(broker, 11)
    assert side.tick().problem is None
    assert _log_start(side) == 11


# --- retention is not mirrored ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "retention", "expected"),
    [
        ({}, {}, True),
        ({"newest_below_ms": NOW - 2 * HOUR}, {"retention_ms": HOUR}, False),
        ({"newest_below_ms": NOW - 2 * HOUR}, {"retention_ms": HOUR, "replicas": 3}, False),
        ({"newest_below_ms": NOW - 2 * HOUR}, {"retention_ms": HOUR, "replicas": 1}, True),
        ({"newest_below_ms": NOW - HOUR}, {"retention_ms": HOUR}, True),
        ({"newest_below_ms": None}, {"retention_ms": HOUR}, False),
        ({"newest_below_ms": None}, {}, True),
        ({"bytes_from": 1000}, {"retention_bytes": 1000}, False),
        ({"bytes_from": 999}, {"retention_bytes": 1000}, True),
        ({"bytes_from": 1000}, {"retention_bytes": 1000, "replicas": 1}, True),
    ],
)
def test_raised_log_start_offset_is_a_deletion_only_if_retention_cannot_explain_it(
    facts: dict, retention: dict, expected: bool
) -> None:
    of_log = replace(LogStartFacts(newest_below_ms=NOW, bytes_from=10_000), **facts)
    of_broker = replace(BrokerRetention(retention_ms=None, retention_bytes=None), **retention)
    assert is_deletion(of_log, of_broker, NOW) is expected


def test_retention_of_the_leader_seen_by_a_follower_does_not_change_the_bucket(tmp_path: Path) -> None:
    """The segments of leader and follower have different ends.
    So the leader's retention puts the follower's log start offset inside a segment."""
    broker = _broker(tmp_path)
    side = Side(broker)
    side.tick()
    before = side.values()
    _delete_records(broker, 233)
    (found,) = side.adopter.tick(NOW + WEEK + HOUR)
    assert (found.problem, _log_start(side)) == (None, 0)
    assert side.values() == before


def test_log_start_offset_of_a_deleted_topic_of_the_same_name_is_not_mirrored(tmp_path: Path) -> None:
    """A broker removes the old checkpoint entry within a minute.
    The leader epochs of the new topic contradict it until then."""
    broker = _broker(tmp_path)
    side = Side(broker)
    checkpoints.write_offsets(broker.disk, join(broker.root, names.LOG_START_OFFSETS), {NAME: 233})
    assert side.tick().problem is None
    assert _log_start(side) == 0


@pytest.mark.parametrize("start", [0, 501, 10_000])
def test_log_start_offset_outside_all_segments_is_not_mirrored(tmp_path: Path, start: int) -> None:
    broker = _broker(tmp_path)
    side = Side(broker)
    checkpoints.write_offsets(broker.disk, join(broker.root, names.LOG_START_OFFSETS), {NAME: start})
    checkpoints.write_epochs(broker.disk, join(_directory(broker), names.LEADER_EPOCHS), [])
    assert side.tick().problem is None
    assert _log_start(side) == 0


# --- a partition with a problem --------------------------------------------------------------------------------------


def _with_damage(broker: Broker, at: int) -> None:
    """A batch with another epoch than the broker's checkpoint, which stops the adoption of the partition."""
    base = broker.log.segments()[at].base_offset
    path = join(_directory(broker), names.segment_file(base, ".log"))
    body = bytearray(broker.disk.read(path))
    body[40] ^= 1
    Path(path).write_bytes(bytes(body))


def test_bytes_at_risk_of_a_stopped_partition_are_in_status_metrics_and_output(tmp_path: Path, capfd) -> None:
    broker = _broker(tmp_path)
    side, metrics = Side(broker), AdoptMetrics()
    _with_damage(broker, 2)
    found = side.tick()
    segments = broker.log.segments()
    assert isinstance(found.problem, Corrupt)
    assert (found.copied, found.tiered_upto) == (2, segments[2].base_offset)
    assert found.lag_segments == len(segments) - 3
    assert found.lag_bytes == sum(each.size_bytes for each in segments[2:-1])
    assert found.at_risk_bytes == sum(each.size_bytes for each in segments[2:])
    assert found.lag_since_ms is not None
    metrics.note([found], found.lag_since_ms)
    told = _samples(metrics, found.lag_since_ms + HOUR)
    assert told['tiered_unreplicated_bytes{topic="t"}'] == found.at_risk_bytes
    assert told['tiered_remote_copy_lag_segments{topic="t"}'] == found.lag_segments
    assert told['tiered_remote_copy_lag_seconds{topic="t"}'] == pytest.approx(3600)
    assert told['tiered_partition_problems{class="Corrupt"}'] == 1
    assert not metrics.is_well
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    words = [
        "adopt",
        broker.root,
        "--once",
        "--remote",
        bucket.as_uri(),
        "--work",
        str(tmp_path / "w"),
        "-o",
        "json",
        *PLAIN,
    ]
    assert invoke(words) == 1
    out, err = capfd.readouterr()
    (entry,) = json.loads(out)["partitions"]
    assert (entry["at_risk_bytes"], entry["lag_segments"]) == (found.at_risk_bytes, found.lag_segments)
    assert "0 B only on this disk" not in err


@pytest.mark.parametrize("problem", [Unavailable("down"), Corrupt("bad"), NotFound("gone")])
def test_unknown_figures_are_none_and_never_zero(problem, tmp_path: Path, monkeypatch, capfd) -> None:
    """The store does not answer the first maintenance, so the end of the bucket is unknown."""
    broker = _broker(tmp_path)
    side, metrics = Side(broker), AdoptMetrics()
    good = AdoptedPartition(partition=NAME, at_risk_bytes=77, lag_bytes=66, lag_segments=5)
    metrics.note([good], NOW)

    def refuse(*given, **named):
        raise problem

    monkeypatch.setattr(adopt.MetadataLog, "load", refuse)
    monkeypatch.setattr(adopt.MetadataLog, "become_writer", refuse)
    found = side.tick()
    assert found.problem is problem
    assert (found.tiered_upto, found.lag_segments, found.lag_bytes, found.at_risk_bytes) == (None, None, None, None)
    metrics.note([found], NOW)
    assert _samples(metrics)['tiered_unreplicated_bytes{topic="t"}'] == 77
    (looked,) = side.adopter.look()
    assert looked.at_risk_bytes is None
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for form in ("json", "table"):
        words = [
            "adopt",
            broker.root,
            "--once",
            "--remote",
            bucket.as_uri(),
            "--work",
            str(tmp_path / "w"),
            "-o",
            form,
            *PLAIN,
        ]
        assert invoke(words) == 1
        out, err = capfd.readouterr()
        assert "unknown amount of 1 partition" in err
        if form == "json":
            (entry,) = json.loads(out)["partitions"]
            assert (entry["at_risk_bytes"], entry["lag_bytes"], entry["tiered_upto"]) == (None, None, None)
