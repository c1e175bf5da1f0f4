"""The simulation foretells, verb by verb, what weeks of a real manager send and hold: within one in a hundred."""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest
from simulated_cases import CASES, both, far_off
from simulated_run import DAY, HOUR, Run

from policies.cost.simulation import Counts, Reads, Workload, simulate
from policies.rules import PartitionRules
from remote.store.memory_store import MemoryStore
from tiered.stores.store_check import StoreCheck


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch):
    """Weeks of syncs; what a crash leaves is other tests' matter."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture(autouse=True)
def the_store_is_asked_once_what_it_guarantees(monkeypatch):
    """Once a week and node it is asked again, which is of no partition: the simulation leaves that out."""
    monkeypatch.setattr(StoreCheck, "renew", lambda self, store, now_ms: None)


@pytest.mark.parametrize("name", CASES)
def test_weeks_of_a_real_manager_are_foretold_within_one_in_a_hundred(name, tmp_path, monkeypatch):
    done, told = both(CASES[name], str(tmp_path), MemoryStore("memory://b"), monkeypatch)
    assert far_off(done, told) == []
    assert done.counts.puts > 100


def test_a_wrong_model_is_seen():
    """What the comparison is worth: a hundredth and a half more of any verb, and it says so."""
    counts = {each.name: 1000 for each in fields(Counts)}
    workload = Workload(batch_bytes=1000, batch_ms=HOUR)
    told = simulate(workload, PartitionRules(), window_ms=DAY)
    done = Run(
        counts=Counts(**counts), head=None, first_rows=(), stored_bytes=0, local_bytes=0, batch_bytes=0, begins=0
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
def test_a_month_of_the_steady_state_is_the_third_month_from_empty(rules):
    months = [simulate(STEADY, rules, window_ms=each * 30 * DAY, is_from_empty=True) for each in (3, 4)]
    grown, month = months[1].counts.minus(months[0].counts), simulate(STEADY, rules, window_ms=30 * DAY)
    for name in ("puts", "gets", "heads", "lists", "data_puts", "data_bytes_in", "data_bytes_out", "bytes_in"):
        assert getattr(month.counts, name) == pytest.approx(getattr(grown, name), rel=0.03, abs=3), name
    held = months[1].stored_bytes * 4 - months[0].stored_bytes * 3
    assert month.stored_bytes == pytest.approx(held, rel=0.02)


def test_a_manager_that_has_run_for_long_has_read_what_it_reads_again():
    reads = Reads(every_ms=DAY, is_stream=True, begins=2, is_managers=True)
    rules = PartitionRules(retention_ms=10 * DAY, local_retention_ms=DAY)
    month = simulate(replace(STEADY, reads=reads), rules, window_ms=30 * DAY)
    # The window begins with a read, so it ends a day short of another.
    assert month.counts.data_bytes_out == pytest.approx(29 * 24 * 60_000, rel=0.01)


def test_a_partition_with_millions_of_segments_is_simulated_at_once():
    workload = Workload(batch_bytes=1 << 20, batch_ms=10, segment_bytes=1 << 30)
    told = simulate(workload, PartitionRules(retention_ms=365 * DAY), window_ms=DAY)
    assert told.objects == pytest.approx(365 * 8_640_000 / 1023, rel=0.01)
    assert told.counts.data_puts == pytest.approx(8_640_000 / 1023 * 130, rel=0.01)


def test_nothing_kept_nowhere_for_ever_and_nothing_read_cost_what_they_must():
    frozen = PartitionRules(copy_disabled=True)
    told = simulate(STEADY, frozen, window_ms=30 * DAY)
    assert (told.stored_bytes, told.counts.puts, told.counts.data_bytes_out) == (0, 0, 0)
    endless = simulate(STEADY, PartitionRules(retention_ms=None, local_retention_ms=DAY), window_ms=30 * DAY)
    assert endless.counts.deletes <= 3
    assert endless.stored_bytes == pytest.approx(380 * 24 * 60_000, rel=0.05)


def test_what_is_deleted_before_a_minimum_duration_is_told_in_byte_days():
    rules = PartitionRules(retention_ms=10 * DAY, delete_grace_ms=DAY, local_retention_ms=DAY)
    told = simulate(STEADY, rules, window_ms=30 * DAY, min_days=(0, 11, 30, 90))
    per_day = 24 * 60_000
    assert told.short_byte_days[0] == 0
    assert told.short_byte_days[11] < 30 * per_day * 0.1
    assert told.short_byte_days[30] == pytest.approx(30 * per_day * 19, rel=0.05)
    assert told.short_byte_days[90] == pytest.approx(30 * per_day * 79, rel=0.05)
