"""The cleaner's history: stored, bounded, read past damage, and printed in the format of Kafka's log cleaner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from disk_model import ModelDisk

from local import names
from local.cleaner.cleaner_history import RUNS_MAX, CleaningHistory, CleaningRun, summary

MB = 1024 * 1024
RUN = CleaningRun(
    topic="orders",
    partition=3,
    at_ms=1_000,
    first_dirty_offset=17556518476,
    cleaner_offset=17584106050,
    thread=3,
    indexed_bytes=7_352 * MB,
    bytes_read=52_570 * MB,
    bytes_written=40_467 * MB,
    bytes_before=45_218 * MB,
    bytes_after=40_467 * MB,
    records_before=161_199_718,
    records_after=142_787_217,
    distinct_keys=5_000_000,
    index_seconds=204.9,
    clean_seconds=1273.3,
    buffer_utilization=0.9,
)
PATH = "./data/" + names.CLEANER_HISTORY


def history() -> tuple[ModelDisk, CleaningHistory]:
    disk = ModelDisk()
    disk.make_directory("./data")
    return disk, CleaningHistory(disk, "./data")


def test_the_summary_of_a_pass_has_the_format_of_kafkas_log_cleaner() -> None:
    assert summary(RUN).replace("\n\t", "\n").splitlines() == [
        "Log cleaner thread 3 cleaned log orders-3 (dirty section = [17556518476, 17584106050])",
        "45,218.0 MB of log processed in 1,478.2 seconds (30.6 MB/sec).",
        "Indexed 7,352.0 MB in 204.9 seconds (35.9 MB/sec, 13.9% of total time)",
        "Buffer utilization: 90.0%",
        "Cleaned 45,218.0 MB in 1,273.3 seconds (35.5 MB/sec, 86.1% of total time)",
        "Start size: 45,218.0 MB (161,199,718 messages)",
        "End size: 40,467.0 MB (142,787,217 messages)",
        "10.5% size reduction (11.4% fewer messages)",
    ]
    odd = summary(replace(RUN, invalid_records=1200, delay_ms=90_500, index_seconds=0.0, clean_seconds=0.0))
    assert "90.5 seconds past max.compaction.lag.ms" in odd
    assert "Found 1,200 invalid messages" in odd
    assert "Indexed 7,352.0 MB in 0.0 seconds (- MB/sec" in odd
    assert summary(replace(RUN, error="torn")) == "Log cleaner thread 3 could not clean log orders-3: torn"


def test_the_history_survives_a_restart_with_the_newest_runs() -> None:
    disk, kept = history()
    for at in range(RUNS_MAX + 5):
        kept.add(replace(RUN, at_ms=at))
    again = CleaningHistory(disk, "./data").runs
    assert list(again) == list(kept.runs)
    assert [run.at_ms for run in again] == list(range(5, RUNS_MAX + 5))


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe not text",
        b"{",
        b"[]",
        b"null",
        b'{"topic": "t"}',
        b'{"topic": "t", "partition": "0", "at_ms": 1}',
        b'{"topic": "../t", "partition": 0, "at_ms": 1}',
        b'{"topic": "t", "partition": 0, "at_ms": 1, "bytes_read": 1.5}',
        b'{"topic": "t", "partition": 0, "at_ms": true}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_of_the_history_is_skipped(damage: bytes) -> None:
    disk, kept = history()
    kept.add(RUN)
    whole = disk.read(PATH)
    disk.create(PATH).append(damage + b"\n" + whole + damage)
    assert list(CleaningHistory(disk, "./data").runs) == [RUN]


def test_a_field_of_a_later_version_is_ignored() -> None:
    disk, kept = history()
    kept.add(RUN)
    later = disk.read(PATH).replace(b'{"topic"', b'{"later": [1], "topic"')
    disk.create(PATH).append(later)
    assert list(CleaningHistory(disk, "./data").runs) == [RUN]
