"""Compaction status: every compacted log, the cleaner's figures as Kafka counts them, and advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from local.cleaner.cleaner_history import CleaningRun
from local.errors import LogError
from local.names import TopicPartition
from policies.cleaner_advice import Advice, CleanerFacts, LogFacts, advise
from policies.compaction import LogToClean, log_to_clean
from policies.snapshot import PartitionSnapshot
from tiered.config.config import resolve_rules
from tiered.maintenance.cleaning import Uncleanable
from tiered.manager.manager import LogManager
from tiered.status.status_report import snapshots_at_hand

_OF_LOG = (
    *("clean_bytes", "cleanable_bytes", "uncleanable_bytes"),
    *("first_dirty_offset", "first_uncleanable_offset", "delay_ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaningStatus:
    """One compacted log. `state` is the cleaning state in this process; `uncleanable`: why it is skipped."""

    log: LogToClean
    state: str
    uncleanable: Uncleanable | None
    last_run: CleaningRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerMetrics:
    """Kafka's gauges of the same names (`LogCleaner`, `LogCleanerManager`), in whole numbers.

    Buffer, time and delay are the largest of all threads' last passes. `time_since_last_run_ms` None: no pass yet.
    """

    max_dirty_percent: int
    max_buffer_utilization_percent: int
    max_clean_time_secs: int
    max_compaction_delay_secs: int
    uncleanable_partitions_count: int
    uncleanable_bytes: int
    time_since_last_run_ms: int | None


def compaction_status(
    manager: LogManager, now_ms: int, topics: Iterable[str] | None = None, *, may_ask: bool = True
) -> dict[TopicPartition, LogCleaningStatus]:
    """Return the compacted logs of the topics (None: all), by name. `may_ask` as in `status_report`."""
    take = manager.snapshots if may_ask else partial(snapshots_at_hand, manager)
    snapshots = [each for each in take(now_ms, topics) if each.rules.cleanup_compact]
    states = {each.name: str(each.log.cleaning.now) for each in manager.partitions.all(topics)}
    last = {run.name: run for run in manager.cleaning.runs}
    uncleanable = manager.cleaning.uncleanable
    return {
        each.partition: LogCleaningStatus(
            log=log_to_clean(each),
            state=states.get(each.partition, "none"),
            uncleanable=uncleanable.get(each.partition),
            last_run=last.get(each.partition),
        )
        for each in snapshots
    }


def unread_logs(
    manager: LogManager, found: Mapping[TopicPartition, LogCleaningStatus], topics: Iterable[str] | None = None
) -> dict[TopicPartition, LogError]:
    problems, config = dict(manager.problems), manager.config
    wanted = None if topics is None else set(topics)
    return {
        name: problems[name]
        for each in manager.topics.all()
        if (wanted is None or each.name in wanted)
        and resolve_rules(config.topic_properties(each.name, each.properties)).cleanup_compact
        for name in each.partitions()
        if name in problems and name not in found
    }


def log_row(each: LogCleaningStatus, now_ms: int) -> dict[str, object]:
    log, run, uncleanable = each.log, each.last_run, each.uncleanable
    done = run if run is not None and run.error is None else None
    return {
        "topic": log.partition.topic,
        "partition": log.partition.partition,
        "state": state_word(each),
        "dirty_ratio": round(log.dirty_ratio, 4),
        **{field: getattr(log, field) for field in _OF_LOG},
        "last_run_ms": run.at_ms if run is not None else None,
        "ago_ms": max(0, now_ms - run.at_ms) if run is not None else None,
        "size_reduction": round(done.size_reduction, 4) if done is not None else None,
        "invalid_records": done.invalid_records if done is not None else None,
        "buffer_utilization": round(done.buffer_utilization, 4) if done is not None else None,
        "uncleanable_reason": uncleanable.reason if uncleanable is not None else None,
        "retry_ms": uncleanable.retry_ms if uncleanable is not None else None,
    }


def state_word(each: LogCleaningStatus) -> str:
    """Return the cleaning state as one word. Only the cleaner's process knows of a running pass."""
    if each.uncleanable is not None:
        return "uncleanable"
    if each.state != "none":
        return each.state
    return "due" if each.log.is_eligible else "clean" if not each.log.cleanable_bytes else "waiting"


def cleaner_metrics(manager: LogManager, now_ms: int, *, may_ask: bool = True) -> CleanerMetrics:
    found = compaction_status(manager, now_ms, may_ask=may_ask)
    runs = manager.cleaning.runs
    last_of_threads = list({run.thread: run for run in runs if run.error is None}.values())
    ratios = [each.log.dirty_ratio for each in found.values() if each.uncleanable is None]
    uncleanable = [each for each in found.values() if each.uncleanable is not None]
    return CleanerMetrics(
        max_dirty_percent=int(100 * max(ratios, default=0.0)),
        max_buffer_utilization_percent=int(100 * max((run.buffer_utilization for run in last_of_threads), default=0.0)),
        max_clean_time_secs=int(max((run.seconds for run in last_of_threads), default=0.0)),
        max_compaction_delay_secs=max((run.delay_ms for run in last_of_threads), default=0) // 1000,
        uncleanable_partitions_count=len(uncleanable),
        uncleanable_bytes=sum(each.log.cleanable_bytes for each in uncleanable),
        time_since_last_run_ms=max(0, now_ms - runs[-1].at_ms) if runs else None,
    )


def compaction_advice(manager: LogManager, now_ms: int, *, may_ask: bool = True) -> list[Advice]:
    settings = manager.cleaning.settings
    facts = CleanerFacts(
        threads=settings.threads,
        buffer_bytes=settings.buffer_bytes,
        load_factor=settings.load_factor,
        bytes_per_second=settings.bytes_per_second,
    )
    take = manager.snapshots if may_ask else partial(snapshots_at_hand, manager)
    logs = [_facts(each) for each in take(now_ms, None) if each.rules.cleanup_compact]
    return advise(facts, logs, manager.cleaning.runs)


def _facts(snapshot: PartitionSnapshot) -> LogFacts:
    log = log_to_clean(snapshot)
    active = snapshot.active
    newest = max((each.age_timestamp_ms for each in snapshot.segments if not each.is_empty), default=snapshot.now_ms)
    is_held = snapshot.stable_offset < snapshot.next_offset and log.cleanable_bytes == 0
    is_in_the_way = is_held and active is not None and snapshot.stable_offset < active.base_offset
    return LogFacts(
        log=log,
        rules=snapshot.rules,
        closed_bytes=sum(each.size_bytes for each in snapshot.closed),
        active_bytes=active.size_bytes if active is not None else 0,
        quiet_ms=max(0, snapshot.now_ms - newest),
        held_from=snapshot.stable_offset if is_in_the_way else None,
    )
