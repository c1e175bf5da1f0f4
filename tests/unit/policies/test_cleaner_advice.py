"""Cleaner advice: each rule with cases where it gives advice and cases where it gives none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.cleaner.cleaner_history import CleaningRun
from local.names import TopicPartition
from policies.cleaner_advice import CleanerFacts, LogFacts, advise
from policies.compaction import LogToClean
from policies.rules import DAY_MS, PartitionRules

MB = 1 << 20
CLEANER = CleanerFacts(threads=1, buffer_bytes=128 * MB, load_factor=0.9, bytes_per_second=None)
RULES = PartitionRules(cleanup_delete=False, cleanup_compact=True)
RUN = CleaningRun(
    topic="t",
    partition=0,
    at_ms=0,
    indexed_bytes=100 * MB,
    bytes_read=200 * MB,
    bytes_written=100 * MB,
    bytes_before=200 * MB,
    bytes_after=100 * MB,
    distinct_keys=1000,
    index_seconds=2.0,
    clean_seconds=8.0,
    buffer_utilization=0.2,
)
LOG = LogFacts(
    log=LogToClean(
        partition=TopicPartition("t", 0),
        first_dirty_offset=0,
        first_uncleanable_offset=10,
        clean_bytes=100,
        cleanable_bytes=10,
        uncleanable_bytes=10,
        min_dirty_ratio=0.5,
        delay_ms=0,
    ),
    rules=RULES,
    closed_bytes=110,
    active_bytes=10,
    quiet_ms=0,
)


def every(seconds: float, count: int = 7, run: CleaningRun = RUN) -> list[CleaningRun]:
    return [replace(run, at_ms=round(at * seconds * 1000)) for at in range(count)]


def rules(*runs: CleaningRun, log: LogFacts = LOG, cleaner: CleanerFacts = CLEANER) -> list[str]:
    return [advice.rule for advice in advise(cleaner, [log], runs)]


def test_a_cleaner_that_keeps_up_gets_no_advice() -> None:
    assert rules() == []
    assert rules(*every(60)) == []


CUT = replace(RUN, is_cut=True, buffer_utilization=0.9, buffer_bytes=128 * MB)
LAST = replace(RUN, buffer_utilization=0.3, buffer_bytes=128 * MB)


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([replace(LAST, buffer_utilization=0.9)], []),  # at the load factor, but the whole dirty part was cleaned
        ([CUT, CUT, CUT, LAST], ["full-buffer"]),  # four passes for one dirty part; the last one completed it
        ([CUT, LAST, LAST, LAST], ["full-buffer"]),  # only the earlier part took two passes
        ([CUT], ["full-buffer"]),
        # the buffer was enlarged since
        ([replace(CUT, buffer_bytes=64 * MB), replace(LAST, buffer_bytes=64 * MB), LAST], []),
        ([replace(CUT, buffer_bytes=0), LAST], ["full-buffer"]),
    ],
)
def test_a_dirty_part_that_took_several_passes_gets_advice_for_a_larger_buffer(
    passes: list[CleaningRun], expected: list[str]
) -> None:
    assert rules(*(replace(each, at_ms=at * 60_000) for at, each in enumerate(passes))) == expected


def test_advice_names_the_setting_the_passes_and_the_new_value() -> None:
    passes = [CUT, CUT, CUT, LAST, CUT, LAST]
    (advice,) = advise(replace(CLEANER, threads=2), [LOG], passes)
    assert advice.setting == "log.cleaner.dedupe.buffer.size"
    assert "t/0 4, because 4000 keys did not fit" in advice.text
    assert f"at least {4 * 2 * 128 * MB}" in advice.text


def test_a_topic_that_is_no_longer_compacted_gets_no_advice() -> None:
    runs = [replace(each, topic="gone") for each in (CUT, CUT, LAST, *every(10.5))]
    assert rules(*runs) == []


@pytest.mark.parametrize(
    ("interval", "limit", "expected"),
    [
        (10.5, None, ["too-few-threads"]),
        (10.5, 30 * MB, ["throttled"]),
        (10.5, 100 * MB, ["too-few-threads"]),
        (20, 30 * MB, []),
    ],
)
def test_passes_without_a_pause_get_advice_for_threads_or_a_higher_limit(
    interval: float, limit: int | None, expected: list[str]
) -> None:
    assert rules(*every(interval), cleaner=replace(CLEANER, bytes_per_second=limit)) == expected


def test_a_short_backlog_gets_no_advice() -> None:
    assert rules(*every(10, count=2)) == []
    assert rules(*every(10, count=5)) == []
    # One pass over each of many logs, of any duration.
    logs = [replace(LOG, log=replace(LOG.log, partition=TopicPartition("t", number))) for number in range(8)]
    passes = [replace(RUN, partition=number, clean_seconds=100.0) for number in range(8)]
    assert advise(CLEANER, logs, passes) == []


def test_a_clock_that_moved_backwards_gives_no_advice() -> None:
    assert rules(*reversed(every(10))) == []


def test_a_log_that_keeps_one_of_several_threads_busy_gets_advice() -> None:
    assert rules(*every(10.5), cleaner=replace(CLEANER, threads=4)) == ["log-outruns-its-thread"]


@pytest.mark.parametrize(
    ("min_lag", "retention", "deletes", "expected"),
    [
        (DAY_MS, DAY_MS, True, ["never-cleanable"]),
        (DAY_MS - 1, DAY_MS, True, []),
        (DAY_MS, DAY_MS, False, []),
        (DAY_MS, None, True, []),
    ],
)
def test_a_min_compaction_lag_as_long_as_retention_gets_advice(
    min_lag: int, retention: int | None, deletes: bool, expected: list[str]
) -> None:
    asked = replace(RULES, cleanup_delete=deletes, retention_ms=retention, min_compaction_lag_ms=min_lag)
    assert rules(log=replace(LOG, rules=asked)) == expected


@pytest.mark.parametrize(
    ("closed", "quiet", "segment_ms", "expected"),
    [
        (0, DAY_MS, 7 * DAY_MS, ["never-rolls"]),
        (0, DAY_MS - 1, 7 * DAY_MS, []),
        (1, DAY_MS, 7 * DAY_MS, []),
        (0, DAY_MS, DAY_MS, []),
    ],
)
def test_an_idle_log_with_only_an_active_segment_gets_advice(
    closed: int, quiet: int, segment_ms: int, expected: list[str]
) -> None:
    log = replace(LOG, closed_bytes=closed, quiet_ms=quiet, rules=replace(RULES, segment_ms=segment_ms))
    assert rules(log=log) == expected


def test_a_log_held_by_an_open_transaction_gets_advice() -> None:
    assert rules(log=replace(LOG, held_from=17)) == ["held-by-transaction"]


@pytest.mark.parametrize(
    ("delay", "after", "lag", "expected"),
    [(5, 199, 1000, ["idle-passes"]), (0, 199, 1000, []), (5, 150, 1000, []), (5, 199, None, [])],
)
def test_passes_forced_by_max_compaction_lag_without_a_gain_get_advice(
    delay: int, after: int, lag: int | None, expected: list[str]
) -> None:
    runs = every(60, run=replace(RUN, delay_ms=delay, bytes_after=after * MB))
    log = replace(LOG, rules=replace(RULES, max_compaction_lag_ms=lag))
    assert rules(*runs, log=log) == expected
