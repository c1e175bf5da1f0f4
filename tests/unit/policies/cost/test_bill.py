"""The monthly bill of topics over both tiers: storage of all segment entries, and metered requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import NotFound, Unavailable
from policies.cost.bill import KINDS, TopicFacts, bills
from policies.cost.prices import BUILT_IN
from policies.cost.storage_cost import GIB, StorageUsage, Stored, monthly_storage, storage_dollars, stored_of
from policies.cost.workload import Counts
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.middleware.store_wrapper import RequestCounts
from tiered.cost.topic_cost import all_entries, cost_report

MIB = 1 << 20


def facts(**more):
    lying = {"data": {"STANDARD": stored_of([GIB] * 100, BUILT_IN)}}
    lying |= {name: more.pop(name) for name in ("data", "small_bytes", "waiting_bytes") if name in more}
    return TopicFacts(**{"topic": "t", "usage": StorageUsage(**lying), "period_ms": 30 * DAY, **more})


def test_the_bills_of_two_topics_add_up_to_the_bill_of_their_common_bucket():
    small = facts(topic="a", data={"STANDARD": stored_of([GIB] * 20_000, BUILT_IN)}, small_bytes=GIB)
    large = facts(topic="b", data={"STANDARD": stored_of([GIB] * 80_000, BUILT_IN)}, waiting_bytes=7 * GIB)
    found = bills([small, large], BUILT_IN)
    assert sum(each.total for each in found) == pytest.approx(monthly_storage(100_008 * GIB))
    assert found[0].storage / found[1].storage == pytest.approx(20_001 / 80_000)
    assert found[1].waiting == pytest.approx(7 * monthly_storage(100_008 * GIB) / 100_008)


def test_remains_of_deleted_topics_get_their_own_bill_and_do_not_change_other_bills():
    living = [facts(topic=name, data={"STANDARD": stored_of([GIB] * 40_000, BUILT_IN)}) for name in "ab"]
    left = [
        facts(topic=f"{name} (deleted)", data={}, waiting_bytes=size * GIB) for name, size in (("a", 30), ("c", 10))
    ]
    found = bills(living, BUILT_IN, left)
    assert found[:2] == bills(living, BUILT_IN)
    assert [each.topic for each in found[2:]] == ["a (deleted)", "c (deleted)"]
    assert sum(each.total for each in found) == pytest.approx(monthly_storage(80_040 * GIB))
    assert found[2].waiting == pytest.approx(3 * found[3].waiting)
    assert sum(each.total for each in bills([], BUILT_IN, left)) == pytest.approx(monthly_storage(40 * GIB))


def test_every_kind_of_cost_uses_its_own_price():
    counts = Counts(puts=2000, gets=5000, lists=1000, data_puts=1000, data_gets=4000, data_bytes_out=10 * GIB)
    (of,) = bills(
        [
            facts(
                data={"GLACIER_IR": stored_of([GIB] * 100, BUILT_IN)},
                local_bytes=10 * GIB,
                both_bytes=4 * GIB,
                requests=counts,
            )
        ],
        BUILT_IN,
    )
    assert of.storage == pytest.approx(0.4)
    assert of.requests == pytest.approx(0.005 + 0.0004 + 0.005 + 0.02 + 0.04)
    assert of.retrieval == pytest.approx(0.3)
    assert (of.disk, of.double) == pytest.approx((0.8, 0.32))
    assert of.total == pytest.approx(of.idle + of.requests + of.retrieval)
    assert of.total == pytest.approx(sum(getattr(of, kind) for kind in KINDS))


@pytest.mark.parametrize(("days", "factor"), [(30, 1), (15, 2), (60, 0.5), (1, 30), (0.001, 30)])
def test_requests_are_scaled_to_a_month_from_a_period_of_at_least_a_day(days, factor):
    (of,) = bills([facts(requests=Counts(puts=100), period_ms=int(days * DAY))], BUILT_IN)
    assert of.month_requests.puts == pytest.approx(100 * factor)


def test_small_objects_of_a_cold_class_are_billed_with_its_minimum_size():
    stored = stored_of([MIB, 1024, 128 * 1024], BUILT_IN)
    assert stored.billed(128 * 1024) == MIB + 2 * 128 * 1024
    assert stored.billed(0) == stored.size_bytes
    (dollars,) = storage_dollars([StorageUsage(data={"STANDARD_IA": stored})], BUILT_IN)
    assert dollars.storage == pytest.approx((MIB + 2 * 128 * 1024) / GIB * 0.0125)
    assert Stored(objects=2, size_bytes=10).billed(100) == 200


def test_an_empty_topic_costs_nothing():
    (of,) = bills([TopicFacts(topic="t")], BUILT_IN)
    assert of.total == 0


# -- reports of a manager ---------------------------------------------------------------------------------------------


def test_the_report_counts_every_segment_entry_including_those_in_pages(monkeypatch):
    rule = PageRule(manifest_bytes_max=1200, page_rows_max=8, page_rows_min=2, kept_entries_min=2)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 2000)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest.pages
        report = cost_report(manager, NOW + 15 * DAY)
        (bill,) = report.bills
        entries = list(all_entries(manager.partitions.find(NAME)))
        assert bill.segments == len(entries) == manifest.segment_count
        data = [info for info in world.store.list("") if "/data/" in info.key and info.key.endswith(".log")]
        assert bill.data_bytes == sum(info.size_bytes for info in data) == sum(entry.stored_bytes for entry in entries)
        assert bill.local_bytes == bill.both_bytes == manifest.size_bytes
        sent = manager.store.counts()
        assert bill.month_requests.puts == pytest.approx(2 * (sent.puts - 0), abs=2 * _of_no_topic(manager).puts)
        assert report.total == pytest.approx(bill.total)
        (entry,) = report.rows()
        assert entry["dollars_per_month"] == pytest.approx(sum(entry[f"{kind}_dollars"] for kind in KINDS))


def _of_no_topic(manager):
    return sum((each.get("", RequestCounts()) for each in manager.store.history().months.values()), RequestCounts())


def test_later_and_read_only_managers_report_the_requests_of_an_earlier_manager():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        before = cost_report(manager, NOW + DAY).bills[0].month_requests
    with world.open(read_only=True, now_ms=NOW + DAY) as manager:
        after = cost_report(manager, NOW + DAY)
        assert after.since_ms == NOW
        assert after.bills[0].month_requests == replace(before)


def test_remains_of_a_deleted_topic_are_billed_until_the_end_of_the_grace_period():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "2h"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        (before,) = cost_report(manager, NOW).bills
        assert before.waiting == 0 < before.storage
        manager.topics.delete("t", now_ms=NOW)
        at_once = cost_report(manager, NOW)
        settle(manager, NOW + HOUR)
        for report in (at_once, cost_report(manager, NOW + HOUR)):
            (entry,) = report.rows()
            assert entry["topic"] == "t (deleted)"
            assert entry["storage_dollars"] == entry["disk_dollars"] == 0
            assert entry["waiting_dollars"] == pytest.approx(before.storage)
            assert report.total >= before.storage
        manager.topics.create("t", 1, TIERED, now_ms=NOW + HOUR)
        assert [each.topic for each in cost_report(manager, NOW + HOUR).bills] == ["t", "t (deleted)"]
        assert [each.topic for each in cost_report(manager, NOW + HOUR, ["t"]).bills] == ["t"]
        settle(manager, NOW + 3 * HOUR)
        assert [each.topic for each in cost_report(manager, NOW + 3 * HOUR).bills] == ["t"]


def test_a_deleted_topic_with_an_unreadable_manifest_is_a_problem_not_an_error():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        settle(manager)
        manager.topics.delete("t", now_ms=NOW)
        world.store.get = world.store.list = _refuse
        report = cost_report(manager, NOW)
        del world.store.get, world.store.list
        (entry,) = report.rows()
        assert (entry["topic"], entry["dollars_per_month"], report.total) == ("t (deleted)", None, None)
        assert set(report.unread_deleted) == {NAME}


def _refuse(*args, **more):
    raise Unavailable("reading", cause="down")


def test_a_report_of_an_unknown_topic_raises_not_found():
    world = World()
    with world.open() as manager, pytest.raises(NotFound):
        cost_report(manager, NOW, ["nothing"])


def test_a_report_converts_to_a_data_frame():
    pandas = pytest.importorskip("pandas")
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        frame = cost_report(manager, NOW).to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["topic"]) == ["t"]
    kinds = [f"{kind}_dollars" for kind in KINDS]
    sizes = ["segments", "remote_bytes", "local_bytes", "double_bytes", "shared_bytes"]
    first = ["topic", "dollars_per_month", *kinds, "double_storage_dollars", "idle_dollars", *sizes]
    assert list(frame.columns)[: len(first)] == first
