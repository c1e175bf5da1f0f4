"""Many idle partitions in one daemon: maintenance, scrapes and read-only opens send no store request."""

from __future__ import annotations

from manager_world import NOW, TIERED, World, send

from local.format.record import Record
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations, open_observed
from tiered.service.worker import Worker
from tiered.status.status_report import status_report

PARTITIONS = 60


def test_idle_partitions_cost_no_request() -> None:
    world, seen = World(), Observations()
    with open_observed(world.config, seen, now_ms=NOW, storage=world.disk, store=world.store) as manager:
        manager.topics.create("many", PARTITIONS, {**TIERED, "local.retention.ms": "1h"}, now_ms=NOW)
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        for partition in range(PARTITIONS):
            manager.append("many", _records(), partition, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000, observations=seen)
        while worker.round(NOW):
            pass
        before = manager.store.counts()
        assert before is not None
        assert before.puts > PARTITIONS
        metrics = Metrics(manager, seen, worker, by_partition=True)
        for at in range(0, 20 * 30_000, 30_000):
            assert not worker.round(NOW + at)
            metrics.text(NOW + at)
        status_report(manager, NOW, storage=world.disk)
        assert manager.store.counts() == before, "maintenance of idle partitions must send no request"
        assert manager.problems == {}


def _records() -> list[Record]:
    return [Record(b"k%d" % at, b"v" * 100, NOW + at) for at in range(60)]
