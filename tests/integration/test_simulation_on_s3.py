"""Weeks of a real manager against an S3 server: the requests equal those of the simulation."""

from __future__ import annotations

from dataclasses import fields

import pytest
from simulated_cases import BASE, far_off, simulate_from_empty, workload_of
from simulated_run import DAY, HOUR, run
from test_simulation import (  # noqa: F401 - fixtures
    nothing_waits_for_the_disk,
    the_store_is_asked_once_what_it_guarantees,
)

from policies.cost.simulation import Counts
from remote.store.open_store import open_store
from tiered.config.config import Config, resolve_rules
from tiered.demo.s3_endpoint import S3Endpoint

WEEKS = 3


@pytest.mark.deep("three weeks of a manager on a server")
@pytest.mark.server
def test_simulation_of_three_weeks_on_a_server_is_accurate_to_one_percent(tmp_path) -> None:
    settings = {**BASE, "segment.bytes": "200000", "retention.ms": "4d"}
    with S3Endpoint() as endpoint:
        endpoint.create_bucket("bill")
        store = open_store("s3://bill/logs", endpoint.options())
        done = run(store, str(tmp_path), settings, weeks=WEEKS, reads_every_ms=3 * DAY)
        store.close()
    rules = resolve_rules(Config.load(None).topic_properties("t", settings))
    workload = workload_of(done, settings, batch_ms=HOUR, tick_ms=HOUR, reads_ms=3 * DAY)
    told = simulate_from_empty(workload, rules, window_ms=WEEKS * 7 * DAY)
    assert far_off(done, told) == []
    assert all(getattr(done.counts, each.name) > 0 for each in fields(Counts) if each.name != "posts")
