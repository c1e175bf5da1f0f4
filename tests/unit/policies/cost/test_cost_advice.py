"""Cost advice: each proposal saves money, pays back in time, keeps every record, and moves nothing too early."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from manager_world import DAY, NOW, TIERED, World, send, settle

from local.format.record import Record
from policies.cost import cost_advice as cost_advice_policy
from policies.cost.cost_advice import StoredSegment, advise_costs
from policies.cost.prices import BUILT_IN
from policies.cost.scenarios import Scenario, Stream, cost_of
from policies.cost.simulation import Reads, Workload
from policies.cost.storage_cost import GIB
from policies.rules import PartitionRules
from remote.manifest.catalog import list_partitions
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.cli.options import parse_time
from tiered.config.price_file import price_rows
from tiered.cost.cost_advising import cost_advice, stored_segments_of
from tiered.cost.cost_history import measured_streams
from tiered.cost.topic_cost import cost_report
from tiered.jobs.rewriting import EntryFilter, plan_recode, run_rewrite

MIB = 1 << 20
STREAM = Stream(
    topic="t",
    partitions=10,
    workload=Workload(batch_bytes=MIB, batch_ms=3515, segment_bytes=64 * MIB),
    rules=PartitionRules(retention_ms=180 * DAY, local_retention_ms=3 * DAY),
    zstd_share=0.5,
)
SETTLED = StoredSegment(
    stored_bytes=GIB, storage_class="STANDARD", lived_ms=10 * DAY, remaining_ms=170 * DAY, is_settled=True
)


def advice(stream=STREAM, segments=(), **more):
    return advise_costs([stream], {"t": segments}, BUILT_IN, **more)


def moves(stream=STREAM, **segment):
    found = advice(stream, [replace(SETTLED, **segment)] * 100)
    return [each for each in found if each.segments]


def test_settings_are_proposed_with_the_savings_of_a_simulation():
    found = {each.change: each for each in advice()}
    assert {"segment.bytes=268435456", "remote.compression=zstd", "local.retention.ms=6h"} <= set(found)
    today = cost_of([STREAM], Scenario(), BUILT_IN).total
    packed = cost_of([STREAM], Scenario(compression="zstd"), BUILT_IN).total
    assert found["remote.compression=zstd"].saved_dollars == pytest.approx(today - packed)
    assert found["remote.compression=zstd"].command == "tiered topic alter t -X remote.compression=zstd"
    savings = [each.saved_dollars for each in advice()]
    assert savings == sorted(savings, reverse=True)


def test_a_shorter_retention_is_never_proposed():
    assert not any(each.change.startswith("retention") for each in advice(segments=[SETTLED] * 100))


def test_proposals_below_the_minimum_saving_are_left_out():
    assert advice(least_dollars=1e9) == []
    small = replace(STREAM, partitions=1, workload=Workload(batch_bytes=100, batch_ms=DAY, segment_bytes=1 << 30))
    assert advice(replace(small, zstd_share=None)) == []


def test_settled_segments_move_to_the_cheapest_class_for_their_share_of_reads():
    (cold,) = moves()
    assert cold.change == "100 segments to GLACIER_IR"
    assert cold.saved_dollars == pytest.approx(100 * (0.023 - 0.004), rel=0.01)
    assert cold.once_dollars == pytest.approx(100 * (130 * 0.02 + 129 * 0.0004) / 1000, rel=0.01)
    assert cold.command.startswith("tiered rewrite recode t --storage-class GLACIER_IR --min-bytes 131072 --since ")
    (warm,) = moves(replace(STREAM, read_share=0.7))
    assert warm.change == "100 segments to STANDARD_IA"
    assert moves(replace(STREAM, read_share=1.1)) == []


def test_a_move_out_of_a_class_saves_at_the_price_of_its_last_bands():
    tera = replace(SETTLED, stored_bytes=1000 * GIB)
    (all_of_it,) = [each for each in advice(segments=[tera] * 600) if each.segments]
    standard = 50_000 * 0.023 + 450_000 * 0.022 + 100_000 * 0.021
    assert all_of_it.saved_dollars == pytest.approx(standard - 600_000 * 0.004)
    young = replace(tera, is_settled=False, newest_ms=1)
    (last,) = [each for each in advice(segments=[tera] * 50 + [young] * 550) if each.segments]
    assert last.saved_dollars == pytest.approx(50_000 * (0.021 - 0.004))
    assert "break-even 0.57" in last.reason


@pytest.mark.parametrize(
    ("segment", "classes"),
    [
        ({"is_settled": False}, []),
        ({"remaining_ms": 20 * DAY}, []),
        ({"remaining_ms": 60 * DAY}, ["STANDARD_IA"]),
        ({"remaining_ms": None}, ["GLACIER_IR"]),
        ({"stored_bytes": 100 << 10}, []),
        ({"storage_class": "GLACIER_IR"}, []),
    ],
)
def test_no_segment_moves_that_would_be_billed_twice(segment, classes):
    assert [each.change.rpartition(" ")[2] for each in moves(**segment)] == classes


def test_the_cost_of_a_move_includes_the_rest_of_the_minimum_duration():
    (late,) = moves(storage_class="STANDARD_IA", lived_ms=40 * DAY)
    (early,) = moves(storage_class="STANDARD_IA", lived_ms=DAY)
    assert early.once_dollars - late.once_dollars == pytest.approx(100 * 0.0125 * 29 / 30, rel=0.01)


def test_a_move_with_a_payback_time_above_the_limit_is_left_out(monkeypatch):
    small = [replace(SETTLED, stored_bytes=200 << 10, remaining_ms=None)] * 10_000
    (found,) = [each for each in advice(segments=small, least_dollars=0.0001) if each.segments]
    assert 9 < found.payback_months < 11
    monkeypatch.setattr(cost_advice_policy, "PAYBACK_MONTHS_MAX", 5.0)
    assert [each for each in advice(segments=small, least_dollars=0.0001) if each.segments] == []


def test_segments_that_are_still_on_the_disk_are_not_settled():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "90d", "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        before = stored_segments_of(manager, "t", NOW)
        assert before
        assert not any(each.is_settled for each in before)
        manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        settle(manager)
        after = stored_segments_of(manager, "t", NOW + DAY)
        assert all(each.is_settled for each in after)
        assert {each.lived_ms for each in after} == {DAY}
        assert all(each.remaining_ms == pytest.approx(88 * DAY, rel=0.01) for each in after)


# Prices that bill objects as small as in these tests by the byte, in cents.
SMALL = replace(
    BUILT_IN,
    classes={
        "STANDARD": replace(BUILT_IN.of("STANDARD"), storage_bands=((None, 1e6),)),
        "STANDARD_IA": replace(BUILT_IN.of("STANDARD_IA"), storage_bands=((None, 4e5),), min_bytes=700),
    },
)


def months_of_segments(world, tmp_path):
    """One segment per day for 60 days, retained for 70 and on the disk for 5; every seventh one is small."""
    (tmp_path / "prices.json").write_text(json.dumps(price_rows(SMALL)))
    prices = str(tmp_path / "prices.json")
    with world.open(cost_prices=prices) as manager:
        rules = {"retention.ms": "70d", "local.retention.ms": "5d"}
        manager.topics.create("t", 2, {**TIERED, **rules}, now_ms=NOW)
        for age in range(60, 0, -1):
            for partition in (0, 1):
                size = 100 if age % 7 == 0 else 900 + age
                record = Record(b"k", bytes(size), NOW - age * DAY)
                manager.append("t", [record], partition, now_ms=NOW)
                manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    return prices


def asked_of(command: str) -> tuple[str, EntryFilter]:
    """The class and the limits in a proposed command, parsed as the command line does."""
    words = shlex.split(command)
    option = {words[at]: words[at + 1] for at in range(len(words) - 1) if words[at].startswith("--")}
    since, until = (parse_time(option[name], NOW) for name in ("--since", "--until"))
    return option["--storage-class"], EntryFilter(min_bytes=int(option["--min-bytes"]), since_ms=since, until_ms=until)


def test_a_proposed_move_rewrites_the_counted_segments_and_saves_the_stated_amount(tmp_path):
    """Left out are segments on the disk, segments that expire within 30 days, and segments below the minimum billed
    size."""
    world = World()
    prices = months_of_segments(world, tmp_path)
    with world.open(read_only=True, cost_prices=prices) as manager:
        (move,) = [each for each in cost_advice(manager, NOW).advice if each.segments]
        before = cost_report(manager, NOW).bills[0]
    to, entry_filter = asked_of(move.command)
    done, once, puts, metered = [], 0.0, 0, MeteredStore(world.store)
    for name in list_partitions(world.store):
        plan = plan_recode(world.store, name, now_ms=NOW, storage_class=to, entry_filter=entry_filter, prices=SMALL)
        done += [entry for group in plan.groups for entry in group.entries]
        once += plan.cost.dollars
        puts += plan.cost.puts
        run_rewrite(metered, plan, now_ms=lambda: NOW)
    ages = sorted({(NOW - entry.max_timestamp_ms) // DAY for entry in done})
    assert ages == [age for age in range(6, 41) if age % 7]
    assert (len(done), sum(entry.stored_bytes for entry in done)) == (move.segments, move.size_bytes)
    with world.open(read_only=True, cost_prices=prices) as manager:
        after = cost_report(manager, NOW).bills[0]
        kept = before.storage - after.storage
        assert kept == pytest.approx(move.saved_dollars, rel=0.01)
        assert [each for each in cost_advice(manager, NOW).advice if each.segments] == []
    assert once == pytest.approx(move.once_dollars, rel=0.02)
    assert metered.counts().puts == puts


def test_a_manager_gets_advice_from_its_own_history():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        assert cost_advice(manager, NOW).advice == ()
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        found = cost_advice(manager, NOW, least_dollars=0.0)
        assert all(each.saved_dollars >= 0 for each in found.advice)
        assert len(found.rows()) == len(found.advice)


def test_no_move_is_proposed_if_retention_expires_the_segments_before_the_payback():
    """1 MiB saves one hundred-thousandth of a dollar per month in IA, and the move costs twenty times as much."""
    small = replace(SETTLED, stored_bytes=1 << 20)
    dear = replace(BUILT_IN, classes={"STANDARD": BUILT_IN.of("STANDARD"), "STANDARD_IA": BUILT_IN.of("STANDARD_IA")})
    for days, is_worth in ((31, False), (360, True)):
        kept = [replace(small, remaining_ms=days * DAY)] * 100_000
        found = [each for each in advise_costs([STREAM], {"t": kept}, dear) if each.segments]
        assert bool(found) == is_worth, days


def test_no_move_is_proposed_from_a_class_that_became_cheaper_by_age():
    """After 90 days without reads INTELLIGENT_TIERING costs as much as GLACIER_IR, and its reads are free."""
    for days, is_worth in ((10, True), (100, False)):
        assert bool(moves(storage_class="INTELLIGENT_TIERING", lived_ms=days * DAY)) == is_worth, days


def test_reads_of_moved_segments_are_priced_by_the_ranges_of_the_readers():
    """With ranges of 64 KiB, the GETs of GLACIER_IR cost more than the class saves."""
    ranges = [8 << 20, 64 << 10]
    streams = [
        replace(STREAM, read_share=0.3, workload=replace(STREAM.workload, reads=Reads(every_ms=DAY, range_bytes=each)))
        for each in ranges
    ]
    assert [each.change.rpartition(" ")[2] for stream in streams for each in moves(stream)] == [
        "GLACIER_IR",
        "STANDARD_IA",
    ]


def test_new_segments_are_simulated_in_the_configured_storage_class():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(read_only=True, remote_storage_class="GLACIER_IR") as manager:
        assert measured_streams(manager, NOW, rates={"t": 1e9})[0].stream.storage_class == "GLACIER_IR"
