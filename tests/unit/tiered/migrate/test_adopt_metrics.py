"""A sidecar's figures: lag and bytes at risk under a manager's names, what a broker lost, an unclean election."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from test_adopting import NAME, NOW, Broker, Side

from local import names
from local.errors import Conflict
from local.log import checkpoints
from local.storage import DiskStorage, join
from tiered.cli.bucket.adopt import _serving
from tiered.migrate.adopt_metrics import AdoptedPartition, AdoptMetrics
from tiered.observe.metric_table import BY_NAME


def _samples(metrics: AdoptMetrics, now_ms: int = NOW) -> dict[str, float]:
    found = {}
    for line in metrics.text(now_ms).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_lag_and_what_only_the_broker_has_are_metrics(tmp_path: Path) -> None:
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


def test_a_partition_in_trouble_keeps_its_figures_and_one_that_left_has_none() -> None:
    metrics = AdoptMetrics()
    good = AdoptedPartition(partition=NAME, at_risk_bytes=7, lost=((3, 9),))
    metrics.note([good], NOW)
    unknown = {"lag_segments": None, "lag_bytes": None, "at_risk_bytes": None, "ahead": None}
    metrics.note([AdoptedPartition(partition=NAME, problem=Conflict("written anew"), **unknown)], NOW + 1)
    found = _samples(metrics)
    assert not metrics.is_well
    assert found['tiered_unreplicated_bytes{topic="t"}'] == 7
    assert found['tiered_adopt_lost_offsets_total{topic="t"}'] == 6
    assert (found['tiered_partition_problems{class="Conflict"}'], found["tiered_halted"]) == (1, 1)
    metrics.note([], NOW + 2)
    assert not any("topic=" in name for name in _samples(metrics))


def test_every_metric_of_a_sidecar_is_there() -> None:
    metrics = AdoptMetrics()
    metrics.note([AdoptedPartition(partition=NAME)], NOW)
    names_there = {name.partition("{")[0] for name in _samples(metrics)}
    assert {each.name for each in BY_NAME.values() if each.is_of_sidecar} <= names_there


def test_metrics_and_health_are_served_while_it_is_at_work() -> None:
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
    """As a broker does that becomes a follower of a leader with a shorter log: files and epochs are cut at `at`, the
    high watermark with them."""
    broker.log.truncate_to(at, now_ms=NOW)
    broker.sent = broker.sent[:at]
    broker.settle(at)
    path = join(broker.root, NAME.directory, names.LEADER_EPOCHS)
    assert all(start <= at for _, start in checkpoints.read_epochs(DiskStorage(), path))
    broker.log.begin_epoch(epoch)


@pytest.mark.parametrize("at", [200, 390])
def test_after_an_unclean_election_nothing_is_mixed_and_the_lost_branch_stays(tmp_path: Path, at: int) -> None:
    """At once the bucket is ahead; when the new leader has written past its end, its epoch tells the branches apart."""
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
    for count in (10, 20, 600):  # still below the bucket's end, then past it
        broker.send(count)
        broker.settle()
        found = side.tick()
        assert isinstance(found.problem, Conflict)
        facts = str(found.problem)
        assert "unclean leader election" in facts
        assert f"from_offset={at}" in facts
        assert f"bucket_next_offset={reached}" in facts
        assert side.values() == before, "what was lost to the broker is still read, and nothing of the other branch"


def test_an_election_that_took_nothing_from_the_bucket_is_followed(tmp_path: Path) -> None:
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


def test_settings_that_the_broker_is_given_later_come_to_the_head(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(100)
    broker.settle()
    side.tick()
    settings = {"retention.ms": "5"}
    side.adopter._properties = lambda topic: settings
    side.tick()
    (log,) = side.adopter._logs.values()
    assert log.refresh().properties == settings
    sequence = log.refresh().sequence
    side.tick()
    assert log.refresh().sequence == sequence, "told once"
