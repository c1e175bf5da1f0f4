"""Cases for the simulation and their reference: weeks of a real manager with counted requests.

The tests run CASES, the campaign (``tests/bench/bench_simulation.py``) also runs MORE.
"""

from __future__ import annotations

from dataclasses import fields, replace

from simulated_run import DAY, HOUR, Run, run

from policies.cost.simulation import Counts, Reads, Schedule, Simulated, Workload, _Bucket, _Partition
from policies.rules import PartitionRules
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.config.config import Config, log_settings, resolve_rules
from tiered.cost.cost_history import manifest_costs

WEEKS = 4
RECORDS = 100  # records in a batch
BASE = {
    "segment.bytes": "500000",
    "retention.ms": "7d",
    "local.retention.ms": "1d",
    "remote.log.delete.grace.ms": "1d",
}
SMALL_PAGES = PageRule(manifest_bytes_max=2600, page_rows_max=16, page_rows_min=4, kept_entries_min=8)


CASES: dict[str, dict[str, object]] = {
    "as it comes, and all of it read every week": {"reads_every_ms": 7 * DAY},
    "compacted, nothing kept on the disk": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "1ms"},
        "keys": 20,
        "reads_every_ms": 10 * DAY,
    },
    "retention by size": {"settings": {"retention.bytes": "3MB", "local.retention.bytes": "1200000"}},
    "a copy lag by size": {
        "settings": {"remote.copy.lag.bytes": "1200000", "remote.copy.lag.ms": "-1", "local.retention.ms": "3d"},
    },
    "compressed in the bucket": {
        "settings": {"remote.compression": "zstd"},
        "is_random": False,
        "reads_every_ms": 10 * DAY,
    },
    "rows in pages": {"settings": {"retention.ms": "30d"}, "rule": SMALL_PAGES, "reads_every_ms": 10 * DAY},
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
    "compacted alone: nothing ever leaves, heads only grow": {"settings": {"cleanup.policy": "compact"}, "keys": 20},
    "a page of rows for half a dozen segments, read every five days": {
        "settings": {"retention.ms": "14d", "segment.bytes": "200000"},
        "rule": PageRule(manifest_bytes_max=2000, page_rows_max=6, page_rows_min=4, kept_entries_min=8),
        "reads_every_ms": 5 * DAY,
    },
    "compacted, retention by a size that the disk alone fills: the bucket is empty at times": {
        "settings": {"cleanup.policy": "compact,delete", "retention.bytes": "400kB", "local.retention.ms": "1ms"},
        "keys": 20,
    },
    "read by the manager every day: what left the disk, once": {"reads_every_ms": DAY, "is_managers": True},
    "compacted, nothing on the disk, read by the manager twice a day": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "1ms"},
        "keys": 20,
        "reads_every_ms": DAY // 2,
        "is_managers": True,
        "weeks": 2,
    },
}
MORE: dict[str, dict[str, object]] = {
    "compacted, two days kept on the disk": {
        "settings": {"cleanup.policy": "compact,delete", "local.retention.ms": "2d"},
        "keys": 20,
    },
    "a copy lag by time, rounds at other times": {
        "settings": {"remote.copy.lag.ms": "12h", "local.retention.ms": "2d"},
        "tick_ms": 5 * HOUR,
    },
    "segments that roll by age": {"settings": {"segment.ms": "5h"}},
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
    "read by the manager, in long segments, out of its cache": {
        "settings": {"segment.bytes": "19MB"},
        "value_bytes": 9900,
        "reads_every_ms": 2 * DAY,
        "is_managers": True,
        "weeks": 2,
    },
    "compacted alone, read every week": {
        "settings": {"cleanup.policy": "compact", "local.retention.ms": "1ms"},
        "keys": 20,
        "reads_every_ms": 7 * DAY,
    },
    "sixty pages of rows, read every three days": {
        "settings": {"retention.ms": "21d", "segment.bytes": "200000"},
        "rule": PageRule(manifest_bytes_max=6000, page_rows_max=4, page_rows_min=2, kept_entries_min=4),
        "reads_every_ms": 3 * DAY,
    },
}


def simulate_from_empty(
    workload: Workload, rules: PartitionRules, *, window_ms: int, rule: PageRule | None = None
) -> Simulated:
    """Simulate `window_ms` of a partition from its first batch on."""
    schedule = Schedule(workload, rules)
    return _Partition(schedule, _Bucket(schedule, rule or PageRule(), ())).run(window_ms)


def workload_of(
    done: Run, settings: dict[str, str], *, batch_ms: int, tick_ms: int, reads_ms: int | None, is_managers: bool = False
) -> Workload:
    """The workload of the run as `tiered.cost.cost_history` measures it."""
    entries, log = done.first_rows, log_settings(Config.load(None).topic_properties("t", settings))
    size = sum(entry.size_bytes for entry in entries)
    reads = None
    if reads_ms is not None:
        reads = Reads(every_ms=reads_ms, is_stream=True, begins=done.begins, is_managers=is_managers)
    workload = Workload(
        batch_bytes=round(done.batch_bytes),
        batch_ms=batch_ms,
        tick_ms=tick_ms,
        segment_bytes=log.segment_bytes,
        segment_ms=log.segment_ms,
        stored_share=sum(entry.stored_bytes for entry in entries) / size,
        index_base_bytes=0,
        index_share=sum(entry.indexes_bytes for entry in entries) / size,
        reads=reads,
        **manifest_costs(done.manifest),
    )
    if "compact" in settings.get("cleanup.policy", ""):
        came = sum(entry.next_offset - entry.base_offset for entry in entries) / RECORDS * done.batch_bytes
        workload = replace(workload, compacted_share=size / came)
    return workload


def both(case: dict[str, object], directory: str, store: object, monkeypatch):
    options = dict(case)
    weeks = options.pop("weeks", WEEKS)
    settings = {**BASE, **options.pop("settings", {})}
    rule = options.pop("rule", None)
    if rule is not None:
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    done = run(store, directory, settings, weeks=weeks, **{"records": RECORDS, **options})
    rules = resolve_rules(Config.load(None).topic_properties("t", settings))
    workload = workload_of(
        done,
        settings,
        batch_ms=options.get("batch_every_ms", HOUR),
        tick_ms=options.get("tick_ms", HOUR),
        reads_ms=options.get("reads_every_ms"),
        is_managers=options.get("is_managers", False),
    )
    told = simulate_from_empty(workload, rules, window_ms=weeks * 7 * DAY, rule=rule)
    return done, replace(told, counts=told.counts.times(options.get("partitions", 1)))


def far_off(done: Run, told: Simulated, within: float = 0.01) -> list[str]:
    """The verbs and bytes whose simulated value is wrong by more than `within`."""
    found = []
    for name in (each.name for each in fields(Counts)):
        real, said = getattr(done.counts, name), getattr(told.counts, name)
        if abs(said - real) > within * real:
            found.append(f"{name}: {real} were, {said:.1f} were foretold")
    if abs(told.stored_bytes - done.stored_bytes) > within * done.stored_bytes:
        found.append(f"stored: {done.stored_bytes:.0f} were, {told.stored_bytes:.0f} were foretold")
    return found
