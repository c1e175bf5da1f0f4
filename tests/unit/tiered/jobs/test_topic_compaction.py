"""Compaction on request, its estimate, and the compaction status."""

from __future__ import annotations

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, settle

from local.cleaner.cleaner_history import CleaningRun
from local.errors import InvalidRequest, NotFound
from local.format.record import Record
from local.log.producer_state import Producer
from tiered.jobs.topic_compaction import compact_topic, estimate_topic
from tiered.manager.manager import LogManager
from tiered.status.compaction_status import cleaner_metrics, compaction_advice, compaction_status

COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def world() -> World:
    return World()


def add(manager: LogManager, count: int, keys: int, start: int = 0) -> None:
    for at in range(start, start + count, 10):
        records = [Record(b"key-%04d" % ((at + n) % keys), b"value %06d" % (at + n), NOW - HOUR) for n in range(10)]
        manager.append("t", records, 0, now_ms=NOW)


def filled(manager: LogManager, count: int = 400, keys: int = 40) -> None:
    manager.topics.create("t", 1, COMPACT, now_ms=NOW)
    add(manager, count, keys)


def test_compact_topic_ignores_the_dirty_ratio(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager)
        assert manager.tick(NOW) is False
        done = compact_topic(manager, "t", now_ms=NOW)
        (result,) = done[NAME].cleaned
        assert result.records_after < result.records_before
        assert compaction_status(manager, NOW)[NAME].log.cleanable_bytes == 0
        assert compact_topic(manager, "t", now_ms=NOW) == {}


def test_compact_topic_with_roll_cleans_the_active_segment(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager)
        compact_topic(manager, "t", now_ms=NOW, roll=True)
        records = list(manager.reader().records(NAME, 0, None))
        assert sorted({record.key for record in records}) == sorted(record.key for record in records)


def test_compact_topic_respects_the_minimum_compaction_lag(world: World) -> None:
    with world.open() as manager:
        filled(manager)
        manager.topics.alter("t", {"min.compaction.lag.ms": "2h"}, now_ms=NOW)
        assert compact_topic(manager, "t", now_ms=NOW, roll=True) == {}


def test_compact_topic_without_the_compact_policy_is_refused(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        for refused in (compact_topic, estimate_topic):
            with pytest.raises(InvalidRequest, match=r"its cleanup\.policy does not include compact"):
                refused(manager, "t", now_ms=NOW)
            with pytest.raises(NotFound):
                refused(manager, "other", now_ms=NOW)


@pytest.mark.parametrize("keys", [5, 40, 1000])
def test_estimate_of_a_first_pass_is_near_its_result_and_writes_nothing(world: World, keys: int) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager, keys=keys)
        manager.partitions.roll("t", now_ms=NOW)
        effects = world.disk.effects
        (told,) = estimate_topic(manager, "t", now_ms=NOW)
        assert world.disk.effects == effects
        assert (told.dirty_records, told.distinct_keys) == (400, min(keys, 400))
        (done,) = compact_topic(manager, "t", now_ms=NOW)[NAME].cleaned
        assert told.bytes_before == done.bytes_before
        # In a log of small batches the batch headers are larger than the estimate assumes.
        assert abs(told.bytes_after - done.bytes_after) <= 0.15 * done.bytes_before


def test_estimate_samples_the_clean_section_and_names_its_basis(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager, keys=1000)
        compact_topic(manager, "t", now_ms=NOW, roll=True)
        add(manager, 200, 200, start=0)  # newer records of half of the clean keys
        manager.partitions.roll("t", now_ms=NOW)
        (told,) = estimate_topic(manager, "t", now_ms=NOW)
        assert told.sampled_bytes == told.clean_bytes > 0
        assert told.sampled_superseded == 200
        assert told.basis == (
            f"all 200 records of the dirty part, a sample of {told.sampled_bytes} of {told.clean_bytes} clean bytes"
        )
        (done,) = compact_topic(manager, "t", now_ms=NOW)[NAME].cleaned
        assert abs(told.bytes_after - done.bytes_after) <= 0.15 * done.bytes_before


def test_estimate_counts_copied_segments_as_clean(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, **COMPACT, "local.retention.ms": "-1"}, now_ms=NOW)
        add(manager, 400, 1000)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        (told,) = estimate_topic(manager, "t", now_ms=NOW)
        assert told.tiered_bytes == told.clean_bytes == told.bytes_before > 0
        assert told.dirty_bytes == 0


def test_compaction_status_has_the_sections_and_the_last_pass(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager)
        before = compaction_status(manager, NOW)[NAME]
        assert (before.state, before.last_run, before.uncleanable) == ("none", None, None)
        assert before.log.dirty_ratio == 1.0
        compact_topic(manager, "t", now_ms=NOW)
        after = compaction_status(manager, NOW, ["t"])[NAME]
        assert after.last_run is not None
        assert after.last_run.cleaner_offset == after.log.first_dirty_offset
        with manager.partitions.all()[0].log.cleaning.paused():
            assert compaction_status(manager, NOW)[NAME].state == "paused(1)"
        manager.topics.create("plain", 1, {}, now_ms=NOW)
        assert list(compaction_status(manager, NOW)) == [NAME]


def run(**more: object) -> CleaningRun:
    return CleaningRun(**{"topic": "t", "partition": 0, "at_ms": NOW, **more})  # type: ignore[arg-type]


def test_cleaner_metrics_are_kafkas_maxima_over_the_last_pass_of_each_thread(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        filled(manager)
        empty = cleaner_metrics(manager, NOW)
        assert (empty.max_dirty_percent, empty.max_clean_time_secs, empty.time_since_last_run_ms) == (100, 0, None)
        directory = manager.directories.online[0]
        for each in (
            run(thread=0, buffer_utilization=0.95, clean_seconds=99.0, delay_ms=90_000),
            run(thread=1, buffer_utilization=0.419, index_seconds=2.5, clean_seconds=10.0, delay_ms=7_999),
            run(thread=0, buffer_utilization=0.2, index_seconds=1.0, clean_seconds=2.0),
        ):
            manager.cleaning._note(directory, each)
        told = cleaner_metrics(manager, NOW + 5)
        assert told.max_buffer_utilization_percent == 41
        assert told.max_clean_time_secs == 12
        assert told.max_compaction_delay_secs == 7
        assert told.time_since_last_run_ms == 5
        manager.cleaning._give_up(NAME, directory, "torn", NOW)
        stuck = cleaner_metrics(manager, NOW)
        assert (stuck.max_dirty_percent, stuck.uncleanable_partitions_count) == (0, 1)
        assert stuck.uncleanable_bytes == compaction_status(manager, NOW)[NAME].log.cleanable_bytes > 0


def test_compaction_advice_uses_logs_and_history(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACT, now_ms=NOW)
        manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
        assert compaction_advice(manager, NOW) == []
        quiet = NOW + 48 * HOUR
        assert [each.rule for each in compaction_advice(manager, quiet)] == ["never-rolls"]


def test_open_transaction_is_named_in_advice_when_it_delays_a_closed_segment(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACT, now_ms=NOW)
        log = manager.partitions.all()[0].log
        producer = Producer(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
        assert compaction_advice(manager, NOW) == []
        manager.partitions.roll("t", now_ms=NOW)
        (advice,) = compaction_advice(manager, NOW)
        assert (advice.rule, advice.setting) == ("held-by-transaction", None)
        assert "since offset 0" in advice.text
