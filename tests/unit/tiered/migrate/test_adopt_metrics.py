"""Metrics of an adoption: copy lag, bytes at risk, lost offsets and unclean elections."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from test_adopting import NAME, NOW, Broker, Side

from local import names
from local.errors import Conflict
from local.log import checkpoints
from local.storage import DiskStorage, join
from tiered.cli.bucket.external_buckets import _serving
from tiered.migrate.adopt import AdoptedPartition, AdoptMetrics
from tiered.observe.metrics import METRICS


def _samples(metrics: AdoptMetrics, now_ms: int = NOW) -> dict[str, float]:
    found = {}
    for line in metrics.text(now_ms).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_copy_lag_and_bytes_at_risk_are_metrics(tmp_path: Path) -> None:
    broker, metrics = Broker(tmp_path), AdoptMetrics()
    side = Side(broker)
    broker.send(300)
    broker.settle(0)
    metrics.note([side.tick()], NOW)
    waiting = _samples(metrics)
    assert waiting['tiered_remote_copy_lag_segments{topic="t"}'] > 0
    assert waiting['tiered_unreplicated_bytes{topic="t"}'] > waiting['tiered_remote_copy_lag_bytes{topic="t"}'] > 0
    modified_ms = min(
        DiskStorage().modified_ms(join(broker.root, NAME.directory, name))
        for name in DiskStorage().list(join(broker.root, NAME.directory))
        if name.endswith(".log")
    )
    lag = _samples(metrics, modified_ms + 5000)['tiered_remote_copy_lag_seconds{topic="t"}']
    assert lag == pytest.approx(5, abs=0.5)
    broker.settle()
    metrics.note([done := side.tick()], NOW)
    copied = _samples(metrics)
    assert copied['tiered_remote_copy_lag_bytes{topic="t"}'] == 0
    assert copied['tiered_remote_copy_lag_seconds{topic="t"}'] == 0
    assert copied['tiered_remote_copy_bytes_total{topic="t"}'] == done.copied_bytes > 0
    assert copied["tiered_rounds_total"] == 2
    assert metrics.is_well


def test_partition_with_a_problem_keeps_its_metrics_and_a_removed_one_has_none() -> None:
    metrics = AdoptMetrics()
    good = AdoptedPartition(partition=NAME, at_risk_bytes=7, lost=((3, 9),))
    metrics.note([good], NOW)
    unknown = {"lag_segments": None, "lag_bytes": None, "at_risk_bytes": None, "ahead": None}
    metrics.note(
        [
            AdoptedPartition(
                partition=NAME, problem=Conflict("the broker rewrote its log below the end of the bucket"), **unknown
            )
        ],
        NOW + 1,
    )
    found = _samples(metrics)
    assert not metrics.is_well
    assert found['tiered_unreplicated_bytes{topic="t"}'] == 7
    assert found['tiered_adopt_lost_offsets_total{topic="t"}'] == 6
    assert (found['tiered_partition_problems{class="Conflict"}'], found["tiered_halted"]) == (1, 1)
    metrics.note([], NOW + 2)
    assert not any("topic=" in name for name in _samples(metrics))


def test_every_sidecar_metric_is_present() -> None:
    metrics = AdoptMetrics()
    metrics.note([AdoptedPartition(partition=NAME)], NOW)
    names_there = {name.partition("{")[0] for name in _samples(metrics)}
    assert {each.name for each in METRICS if each.is_of_sidecar} <= names_there


def test_metrics_and_health_are_served_during_the_adoption() -> None:
    metrics = AdoptMetrics()
    metrics.note([AdoptedPartition(partition=NAME)], NOW)
    with _serving("127.0.0.1:0", metrics, ()) as address:
        assert address is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/metrics") as answer:
            assert b"tiered_unreplicated_bytes" in answer.read()
        with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/health") as answer:
            assert answer.read() == b"ok\n"


# --- an unclean leader election --------------------------------------------------------------------------------------


def _elected_uncleanly(broker: Broker, at: int, epoch: int) -> None:
    """As a broker that becomes a follower of a leader with a shorter log.
    Files, epochs and the high watermark are truncated to `at`."""
    broker.log.truncate_to(at, now_ms=NOW)
    broker.sent = broker.sent[:at]
    broker.settle(at)
    path = join(broker.root, NAME.directory, names.LEADER_EPOCHS)
    assert all(start <= at for _, start in checkpoints.read_epochs(DiskStorage(), path))
    broker.log.begin_epoch(epoch)


@pytest.mark.parametrize("at", [200, 390])
def test_unclean_election_is_a_conflict_and_the_copied_branch_stays_readable(tmp_path: Path, at: int) -> None:
    """At first the bucket is ahead of the broker.
    The epoch of the new leader then distinguishes the two branches."""
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.log.begin_epoch(3)
    broker.send(500)
    broker.settle()
    reached = side.tick().tiered_upto
    before = side.values()
    assert reached > at
    _elected_uncleanly(broker, at, 5)
    found = side.tick()
    assert (found.problem, found.copied, found.ahead) == (None, 0, reached - at)
    metrics = AdoptMetrics()
    metrics.note([found], NOW)
    assert _samples(metrics)['tiered_adopt_ahead_offsets{topic="t"}'] == reached - at
    for count in (10, 20, 600):  # first below the end of the bucket, then beyond it
        broker.send(count)
        broker.settle()
        found = side.tick()
        assert isinstance(found.problem, Conflict)
        facts = str(found.problem)
        assert "unclean leader election" in facts
        assert f"from_offset={at}" in facts
        assert f"bucket_next_offset={reached}" in facts
        assert side.values() == before, "the copied branch must stay readable and must not be mixed with the other one"


def test_unclean_election_that_truncates_no_copied_record_is_followed(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.log.begin_epoch(3)
    broker.send(500)
    broker.settle(300)
    reached = side.tick().tiered_upto
    assert 0 < reached <= 300
    _elected_uncleanly(broker, 310, 5)
    broker.send(400)
    broker.settle()
    found = side.tick()
    assert (found.problem, found.ahead) == (None, 0)
    assert found.tiered_upto > 500
    assert side.values() == [(at, record.value) for at, record in enumerate(broker.sent[: found.tiered_upto])]
    assert found.lost == ()


def test_settings_changed_at_the_broker_are_committed_to_the_manifest(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(100)
    broker.settle()
    side.tick()
    settings = {"retention.ms": "5"}
    side.adopter.properties = lambda topic: settings
    side.tick()
    (log,) = side.adopter._logs.values()
    assert log.refresh().properties == settings
    sequence = log.refresh().sequence
    side.tick()
    assert log.refresh().sequence == sequence, "the change must be committed once"
