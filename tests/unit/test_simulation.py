"""The simulation foretells, verb by verb, what weeks of a real manager send and hold: within one in a hundred."""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest
from simulated_run import DAY, HOUR, Run, run

from policies.rules import PartitionRules
from policies.simulation import Counts, Reads, Simulated, Workload, simulate
from remote import metadata_log
from remote.memory_store import MemoryStore
from remote.spilling import SpillRule
from tiered.config import Config, log_settings, resolve_rules
from tiered.cost_history import head_costs
from tiered.store_check import StoreCheck

WEEKS = 4
RECORDS = 100  # of a batch
BASE = {
    "segment.bytes": "500000",
    "retention.ms": "7d",
    "local.retention.ms": "1d",
    "remote.log.delete.grace.ms": "1d",
}
SMALL_PAGES = SpillRule(head_bytes_max=2600, page_rows_max=16, page_rows_min=4, kept_rows_min=8)


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch):
    """Weeks of syncs; what a crash leaves is other tests' matter."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


@pytest.fixture(autouse=True)
def the_store_is_asked_once_what_it_guarantees(monkeypatch):
    """Once a week and node it is asked again, which is of no partition: the simulation leaves that out."""
    monkeypatch.setattr(StoreCheck, "renew", lambda self, store, now_ms: None)


CASES: dict[str, dict[str, object]] = {
    "as it comes, and all of it read every week": {"reads_every_ms": 7 * DAY},
    "compacted, nothing kept on the disk": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "1ms"},
        "keys": 20,
        "reads_every_ms": 10 * DAY,
    },
    "compacted, two days kept on the disk": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "2d"},
        "keys": 20,
    },
    "retention by size": {"settings": {"retention.bytes": "3MB", "local.retention.bytes": "1200000"}},
    "a copy lag by time, rounds at other times": {
        "settings": {"remote.copy.lag.ms": "12h", "local.retention.ms": "2d"},
        "tick_ms": 5 * HOUR,
    },
    "a copy lag by size": {
        "settings": {"remote.copy.lag.bytes": "1200000", "remote.copy.lag.ms": "-1", "local.retention.ms": "3d"},
    },
    "compressed in the bucket": {
        "settings": {"remote.compression": "zstd"},
        "is_random": False,
        "reads_every_ms": 10 * DAY,
    },
    "rows in pages": {"settings": {"retention.ms": "30d"}, "rule": SMALL_PAGES, "reads_every_ms": 10 * DAY},
    "segments that roll by age": {"settings": {"segment.ms": "5h"}},
    "uploads in parts": {
        "settings": {"segment.bytes": "19MB"},
        "value_bytes": 9900,
        "weeks": 2,
    },
    "long segments, all of it read every four days": {
        "settings": {"segment.bytes": "19MB"},
        "value_bytes": 9900,
        "reads_every_ms": 4 * DAY,
        "weeks": 2,
    },
    "a batch a day, hours kept on the disk: each is a segment": {
        "batch_every_ms": DAY,
        "settings": {"local.retention.ms": "6h", "segment.ms": "3d"},
        "weeks": 6,
    },
    "compacted, idle for longer than the disk keeps it": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "1ms", "segment.ms": "1d"},
        "keys": 20,
        "batch_every_ms": 5 * HOUR,
        "seed": 3,
    },
    "three partitions, one part of an upload and a little more": {
        "settings": {"segment.bytes": str(9 << 20)},
        "value_bytes": 9900,
        "partitions": 3,
        "reads_every_ms": 3 * DAY,
        "weeks": 1,
    },
    "compacted alone: nothing ever leaves, heads only grow": {"settings": {"cleanup.policy": "compact"}, "keys": 20},
    "a page of rows for half a dozen segments, read every five days": {
        "settings": {"retention.ms": "14d", "segment.bytes": "200000"},
        "rule": SpillRule(head_bytes_max=2000, page_rows_max=6, page_rows_min=4, kept_rows_min=8),
        "reads_every_ms": 5 * DAY,
    },
    "compacted, retention by a size that the disk alone fills: the bucket is empty at times": {
        "settings": {"cleanup.policy": "compact,delete", "retention.bytes": "400kB", "local.retention.ms": "1ms"},
        "keys": 20,
    },
    "compacted, retention by size": {
        "settings": {
            "cleanup.policy": "compact,delete",
            "retention.bytes": "550kB",
            "local.retention.ms": "1ms",
        },
        "keys": 20,
        "weeks": 3,
    },
    "many segments a day": {"settings": {"segment.bytes": "200000"}, "batch_every_ms": HOUR // 2, "tick_ms": HOUR // 2},
}


def workload_of(done: Run, settings: dict[str, str], *, batch_ms: int, tick_ms: int, reads_ms: int | None) -> Workload:
    """What the history of the run says, as `tiered.cost_history` measures it."""
    rows, log = done.first_rows, log_settings(Config.load(None).topic_properties("t", settings))
    size = sum(row.size_bytes for row in rows)
    workload = Workload(
        batch_bytes=round(done.batch_bytes),
        batch_ms=batch_ms,
        tick_ms=tick_ms,
        segment_bytes=log.segment_bytes,
        segment_ms=log.segment_ms,
        stored_share=sum(row.stored_bytes for row in rows) / size,
        index_base_bytes=0,
        index_share=sum(row.indexes_bytes for row in rows) / size,
        reads=Reads(every_ms=reads_ms, is_stream=True, begins=done.begins) if reads_ms is not None else None,
        **head_costs(done.head),
    )
    if "compact" in settings.get("cleanup.policy", ""):
        came = sum(row.next_offset - row.base_offset for row in rows) / RECORDS * done.batch_bytes
        workload = replace(workload, compacted_share=size / came)
    return workload


def both(case: dict[str, object], directory: str, store: object, monkeypatch):
    options = dict(case)
    weeks = options.pop("weeks", WEEKS)
    settings = {**BASE, **options.pop("settings", {})}
    rule = options.pop("rule", None)
    if rule is not None:
        monkeypatch.setattr(metadata_log, "SPILL_RULE", rule)
    done = run(store, directory, settings, weeks=weeks, **{"records": RECORDS, **options})
    rules = resolve_rules(Config.load(None).topic_properties("t", settings))
    workload = workload_of(
        done,
        settings,
        batch_ms=options.get("batch_every_ms", HOUR),
        tick_ms=options.get("tick_ms", HOUR),
        reads_ms=options.get("reads_every_ms"),
    )
    told = simulate(workload, rules, window_ms=weeks * 7 * DAY, is_from_empty=True, rule=rule)
    return done, replace(told, counts=told.counts.times(options.get("partitions", 1)))


def far_off(done: Run, told: Simulated, within: float = 0.01) -> list[str]:
    """The verbs and bytes that were foretold badly."""
    found = []
    for name in (each.name for each in fields(Counts)):
        real, said = getattr(done.counts, name), getattr(told.counts, name)
        if abs(said - real) > within * real:
            found.append(f"{name}: {real} were, {said:.1f} were foretold")
    if abs(told.stored_bytes - done.stored_bytes) > within * done.stored_bytes:
        found.append(f"stored: {done.stored_bytes:.0f} were, {told.stored_bytes:.0f} were foretold")
    return found


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
