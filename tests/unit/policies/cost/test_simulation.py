"""The simulation predicts every kind of request and the bytes of weeks of a real manager within one percent."""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest
from run_profile import one_of_each
from simulated_cases import CASES, both, far_off, simulate_from_empty
from simulated_run import DAY, HOUR, Run

from policies.cost.simulation import (
    Counts,
    Reads,
    Schedule,
    Workload,
    _Bucket,
    _Partition,
    simulate,
)
from policies.rules import PartitionRules
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.stores.configured_store import StoreCheck


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch):
    """Skip fsync, which weeks of work would call very often. Other tests cover crashes."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture(autouse=True)
def the_store_is_asked_once_what_it_guarantees(monkeypatch):
    """Skip the weekly check of the store's guarantees. It belongs to no partition, so the simulation does not contain
    it."""
    monkeypatch.setattr(StoreCheck, "renew", lambda self, store, now_ms: None)


@pytest.mark.parametrize("name", one_of_each(5, CASES))
def test_the_simulation_predicts_weeks_of_a_real_manager_within_one_percent(name, tmp_path, monkeypatch):
    done, told = both(CASES[name], str(tmp_path), MemoryStore("memory://b"), monkeypatch)
    assert far_off(done, told) == []
    assert done.counts.puts > 100


def test_the_comparison_detects_a_prediction_that_is_off():
    """1.5 percent more requests of any kind must be reported."""
    counts = {each.name: 1000 for each in fields(Counts)}
    workload = Workload(batch_bytes=1000, batch_ms=HOUR)
    told = simulate(workload, PartitionRules(), window_ms=DAY)
    done = Run(
        counts=Counts(**counts), manifest=None, first_rows=(), stored_bytes=0, local_bytes=0, batch_bytes=0, begins=0
    )
    for name in counts:
        wrong = replace(told, counts=Counts(**{**counts, name: 1015}), stored_bytes=0)
        assert [each.partition(":")[0] for each in far_off(done, wrong)] == [name]


STEADY = Workload(
    batch_bytes=60_000, batch_ms=HOUR, segment_bytes=500_000, tick_ms=HOUR, reads=Reads(every_ms=5 * HOUR)
)


@pytest.mark.parametrize(
    "rules",
    [
        PartitionRules(),
        PartitionRules(retention_ms=2 * DAY, local_retention_ms=HOUR),
        PartitionRules(retention_ms=None, retention_bytes=5_000_000, local_retention_bytes=1_000_000),
        PartitionRules(copy_lag_ms=DAY, local_retention_ms=2 * DAY),
    ],
)
def test_a_month_of_the_steady_state_equals_a_late_month_of_a_simulation_from_empty(rules):
    months = [simulate_from_empty(STEADY, rules, window_ms=each * 30 * DAY) for each in (3, 4)]
    grown, month = months[1].counts + months[0].counts.times(-1), simulate(STEADY, rules, window_ms=30 * DAY)
    for name in ("puts", "gets", "heads", "lists", "data_puts", "data_bytes_in", "data_bytes_out", "bytes_in"):
        assert getattr(month.counts, name) == pytest.approx(getattr(grown, name), rel=0.03, abs=3), name
    held = months[1].stored_bytes * 4 - months[0].stored_bytes * 3
    assert month.stored_bytes == pytest.approx(held, rel=0.02)


def test_a_simulated_manager_in_the_steady_state_reads_data_once():
    reads = Reads(every_ms=DAY, is_stream=True, begins=2, is_managers=True)
    rules = PartitionRules(retention_ms=10 * DAY, local_retention_ms=DAY)
    month = simulate(replace(STEADY, reads=reads), rules, window_ms=30 * DAY)
    # The window begins with a read, so one day is missing at its end.
    assert month.counts.data_bytes_out == pytest.approx(29 * 24 * 60_000, rel=0.01)


def test_a_simulation_of_millions_of_segments_takes_constant_time():
    workload = Workload(batch_bytes=1 << 20, batch_ms=10, segment_bytes=1 << 30)
    told = simulate(workload, PartitionRules(retention_ms=365 * DAY), window_ms=DAY)
    assert told.objects == pytest.approx(365 * 8_640_000 / 1023, rel=0.01)
    assert told.counts.data_puts == pytest.approx(8_640_000 / 1023 * 24, rel=0.01)


def test_disabled_copies_cost_nothing_and_endless_retention_deletes_nothing():
    frozen = PartitionRules(copy_disabled=True)
    told = simulate(STEADY, frozen, window_ms=30 * DAY)
    assert (told.stored_bytes, told.counts.puts, told.counts.data_bytes_out) == (0, 0, 0)
    endless = simulate(STEADY, PartitionRules(retention_ms=None, local_retention_ms=DAY), window_ms=30 * DAY)
    assert endless.counts.deletes <= 3
    assert endless.stored_bytes == pytest.approx(380 * 24 * 60_000, rel=0.05)


def test_the_clock_of_a_simulation_does_not_go_back_for_overdue_work():
    """The filled state may hold segments that a cleaner pass expires earlier than the average."""
    rules = PartitionRules(
        cleanup_compact=True, retention_ms=3 * DAY, retention_bytes=10 << 20, local_retention_ms=HOUR, copy_lag_ms=None
    )
    rules = replace(rules, local_retention_bytes=1 << 20, copy_lag_bytes=1 << 20)
    workload = Workload(batch_bytes=500, batch_ms=700, segment_bytes=64 << 20, segment_ms=6 * HOUR, compacted_share=0.2)
    schedule = Schedule(workload, rules)
    partition = _Partition(schedule, _Bucket(schedule, PageRule(), ()))
    partition.fill()
    assert schedule.expires(partition._expired, partition._cleaned) < partition._now_ms
    assert partition._next_pass() == partition._now_ms


def test_a_stream_that_finds_no_segment_reads_nothing():
    reads = Reads(every_ms=DAY, is_stream=True, begins=2, oldest_ms=1)
    found = simulate(replace(STEADY, reads=reads), PartitionRules(copy_lag_ms=DAY), window_ms=10 * DAY)
    assert found.counts.data_bytes_out == 0


def test_bytes_deleted_before_a_minimum_duration_are_reported_in_byte_days():
    rules = PartitionRules(retention_ms=10 * DAY, delete_grace_ms=DAY, local_retention_ms=DAY)
    told = simulate(STEADY, rules, window_ms=30 * DAY, min_days=(0, 11, 30, 90))
    per_day = 24 * 60_000
    assert told.short_byte_days[0] == 0
    assert told.short_byte_days[11] < 30 * per_day * 0.1
    assert told.short_byte_days[30] == pytest.approx(30 * per_day * 19, rel=0.05)
    assert told.short_byte_days[90] == pytest.approx(30 * per_day * 79, rel=0.05)
