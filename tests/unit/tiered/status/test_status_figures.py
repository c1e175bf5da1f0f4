"""Figures of a status: bytes at risk on this disk, and the cost of the bytes in the bucket."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
from manager_world import COMPACTED, DAY, NAME, NOW, TIERED, World, send, settle
from policy_samples import LOCAL, REMOTE, entry, local, snapshot

from local.names import TopicPartition
from policies.cost.prices import BUILT_IN, Prices, PriceTable
from policies.cost.storage_cost import (
    GIB,
    StorageUsage,
    monthly_storage,
    storage_dollars,
    stored_of,
    total_usage,
    usage_of,
)
from policies.plan import plan
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import Manifest, PageEntry, PendingDelete, PendingPageDelete
from remote.segment_entry import SegmentState
from tiered.config.price_file import price_rows
from tiered.config.units import format_dollars
from tiered.cost.topic_cost import cost_report
from tiered.observe.metrics import Metrics
from tiered.partition.partition_status import partition_status
from tiered.plans.planning import priced_plan
from tiered.service.observations import Observations
from tiered.status.status_report import partition_row, status_report, topic_row
from tiered.web.pages.overview import overview


@pytest.mark.parametrize(
    ("taken", "at_risk"),
    [
        (snapshot(*LOCAL), 300),
        (snapshot(*LOCAL, remote=REMOTE), 100),
        (snapshot(*LOCAL, remote=REMOTE, is_tiered=False), 100),
        (snapshot(*LOCAL, remote=(entry(0, 2, state=SegmentState.COPY_STARTED),)), 300),
        (snapshot(*LOCAL, remote=REMOTE[:1], copying=frozenset({2})), 200),
        (snapshot(*LOCAL, remote=REMOTE[1:]), 200),
        (snapshot(*LOCAL, remote=(entry(0, 1), entry(2, 4))), 200),
        (snapshot(*LOCAL, start=2), 200),
        (snapshot(*LOCAL, start=3, remote=REMOTE[:1]), 200),
        (snapshot(*LOCAL, start=3, remote=REMOTE[1:]), 100),
        (snapshot(*LOCAL, remote=tuple(replace(each, state=SegmentState.DELETE_STARTED) for each in REMOTE)), 300),
        (snapshot(local(0, 2), local(2, 4), local(4, 4, size=0, active=True), remote=REMOTE), 0),
    ],
    ids=[
        "nothing copied",
        "all that is closed",
        "a tier that is switched off still has them",
        "a copy not committed is none",
        "a copy under way is none",
        "a segment below others that are there",
        "half of a segment",
        "what the log start passed is no risk",
        "but the rest of the segment where it lies",
        "of which the bucket needs the retained records only",
        "what is being deleted is no copy",
        "an empty active segment",
    ],
)
def test_at_risk_bytes_are_the_retained_bytes_missing_in_the_bucket(taken, at_risk):
    assert partition_status(taken).at_risk_bytes == at_risk


# -- billed bytes ----------------------------------------------------------------------------------------------------


def head_of(*rows, pages=(), **more):
    known = {"sequence": 9, "epoch": 1, "commit_id": "c", "parent_id": None, "writer_id": "w", "topic": "t"}
    known |= {"topic_id": "A" * 22, "partition": 0, "log_start_offset": 0, "committed_ms": NOW, "properties": {}}
    return Manifest(**known, segments=rows, pages=pages, gc_boundary=7, **more)


PAGE = PageEntry(
    key="k",
    base_offset=0,
    next_offset=2,
    min_timestamp_ms=1,
    max_timestamp_ms=1,
    first_stamp_ms=1,
    segment_count=1,
    record_count=2,
    size_bytes=200,
    stored_bytes=70,
    page_bytes=9,
    page_crc32c=0,
)


def sizes(lying):
    return {name: each.size_bytes for name, each in lying.data.items()}


def test_stored_bytes_are_split_by_storage_class_indexes_and_pending_deletes():
    cold = replace(entry(2, 4), storage_class="GLACIER_IR", stored_bytes=40)
    gone = PendingDelete(key="data/x.log", size_bytes=33, unlinked_ms=NOW, epoch=1)
    found = usage_of(head_of(entry(0, 2), cold, pending_deletes=(gone,)), BUILT_IN, manifest_bytes=100)
    assert sizes(found) == {"STANDARD": 1, "GLACIER_IR": 40}
    assert (found.small_bytes, found.index_bytes, found.waiting_bytes) == (20, 2 * 100, 33)
    assert found.data["GLACIER_IR"].billed(128 << 10) == 128 << 10


def test_bytes_of_a_manifest_page_are_split_by_class_as_the_manifest_says():
    known = replace(entry(2, 4), storage_class="STANDARD_IA", stored_bytes=40)
    moved = (("GLACIER_IR", 2, 50), ("STANDARD_IA", 1, 5))
    page = replace(PAGE, segment_count=5, indexes_bytes=7, other_classes=moved)
    found = usage_of(head_of(known, pages=(page, replace(page, other_classes=()))), BUILT_IN, manifest_bytes=100)
    assert sizes(found) == {"STANDARD_IA": 45, "GLACIER_IR": 50, "STANDARD": 15 + 70}
    assert {name: each.objects for name, each in found.data.items()} == {
        "STANDARD_IA": 2,
        "GLACIER_IR": 2,
        "STANDARD": 2 + 5,
    }
    assert (found.small_bytes, found.index_bytes) == (10 + 2 * 7, 2 * 100 + 2 * 9)
    assert PendingPageDelete(page=page, unlinked_ms=NOW, epoch=1).size_bytes == 70 + 7 + 9


def test_page_without_classes_counts_in_the_class_of_the_newest_entry():
    known = replace(entry(2, 4), storage_class="STANDARD_IA", stored_bytes=40)
    found = usage_of(head_of(known, pages=(PAGE,)), BUILT_IN, manifest_bytes=100)
    assert sizes(found) == {"STANDARD_IA": 110}
    assert (found.small_bytes, found.index_bytes) == (10 + 20, 2 * 100 + 9)
    read = usage_of(head_of(known, pages=(PAGE,)), BUILT_IN, manifest_bytes=100, entries=[entry(0, 2), known])
    assert (sizes(read), read.small_bytes) == ({"STANDARD": 1, "STANDARD_IA": 40}, 20)


def test_price_bands_are_filled_by_the_whole_deployment():
    large, other = StorageUsage(data={"STANDARD": stored_of([GIB] * 40_000, BUILT_IN)}), "OF ANOTHER STORE"
    second = StorageUsage(
        data={other: stored_of([GIB] * 40_000, BUILT_IN), "GLACIER_IR": stored_of([GIB] * 1000, BUILT_IN)}
    )
    costs = storage_dollars([large, second, StorageUsage()], BUILT_IN)
    assert costs[0].total == pytest.approx(monthly_storage(80_000 * GIB) / 2)
    assert costs[1].total == pytest.approx(monthly_storage(80_000 * GIB) / 2 + 4.0)
    assert costs[2].total == 0
    (whole,) = storage_dollars([total_usage([large, second])], BUILT_IN)
    assert whole.total == pytest.approx(sum(each.total for each in costs))


DEAR = Prices(
    as_of="today",
    region="here",
    storage_class="STANDARD",
    # one cent for a byte in the first band, a quarter of it above
    storage_bands=((20_000 / GIB, GIB / 100), (None, GIB / 400)),
    put_per_1000=0,
    get_per_1000=0,
    list_per_1000=0,
)


def dear(manager, tmp_path):
    """Write prices so high that every byte changes the cost, and return the path of the file."""
    rows = price_rows(PriceTable(as_of="today", region="here", classes={"STANDARD": DEAR}, disk_per_gb_month=0))
    (tmp_path / "dear.json").write_text(json.dumps(rows))
    return str(tmp_path / "dear.json")


def deployment(world, tmp_path):
    """Three topics larger than the first price band. A third of each topic has expired and is a pending delete."""
    with world.open(cost_prices=dear(world, tmp_path)) as manager:
        for topic, more in (("t", {}), ("u", {"remote.compression": "zstd"}), ("w", {})):
            manager.topics.create(topic, 2, {**TIERED, **more}, now_ms=NOW)
            send(manager, 600, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
        for topic in "tuw":
            manager.maintenance.delete_records({TopicPartition(topic, 0): 200}, now_ms=NOW)
        settle(manager)


def in_the_bucket(store, topic):
    """Billed bytes of a topic by a listing, without pins, locks and objects of no topic."""
    return sum(info.size_bytes for info in store.list("") if info.key.startswith(f"{topic}-"))


def test_status_cost_metrics_and_pages_agree_with_the_bucket_listing(tmp_path):
    world = World()
    deployment(world, tmp_path)
    with world.open(read_only=True, cost_prices=dear(world, tmp_path)) as manager:
        report, bill = status_report(manager, NOW, storage=world.disk), cost_report(manager, NOW)
        assert all(manager.partitions.find(TopicPartition(each, 0)).manifest().waiting_bytes > 1000 for each in "tuw")
        told = {
            entry["topic"]: entry["dollars_per_month"] for entry in (topic_row(report, each) for each in report.topics)
        }
        gauges = dict.fromkeys(told, 0.0)
        for each in Metrics(manager, Observations()).samples(NOW):
            if each.name == "tiered_cost_dollars_per_month":
                gauges[dict(each.labels)["topic"]] += each.value
        for of in bill.bills:
            assert told[of.topic] == pytest.approx(of.storage + of.index + of.waiting, abs=0.005)
            assert gauges[of.topic] == pytest.approx(told[of.topic], abs=0.005)
            assert of.waiting > 2.5, "pending deletes of a thousand bytes must be part of the cost"
            parts = [partition_row(report, TopicPartition(of.topic, number)) for number in (0, 1)]
            assert sum(each["dollars_per_month"] for each in parts) == pytest.approx(told[of.topic], abs=0.005)
        assert format_dollars(sum(told.values())) in overview(report, {}, has_remote=True)
        listed = {topic: in_the_bucket(world.store, topic) for topic in "tuw"}
        # Older manifests are smaller than assumed. All other figures are exact.
        assert sum(told.values()) == pytest.approx(monthly_storage(sum(listed.values()), DEAR), rel=0.05)


def test_cost_of_a_topic_is_the_same_in_its_own_status_and_the_full_one(tmp_path):
    world = World()
    deployment(world, tmp_path)
    with world.open(read_only=True, cost_prices=dear(world, tmp_path)) as manager:
        whole, one = (
            status_report(manager, NOW, storage=world.disk),
            status_report(manager, NOW, ["u"], storage=world.disk),
        )
        (entry,) = (topic_row(one, each) for each in one.topics)
        assert entry == next(topic_row(whole, each) for each in whole.topics if each.name == "u")


def test_status_plan_and_metrics_price_a_compressed_topic_alike():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.compression": "zstd"}, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        rows = manager.partitions.find(NAME).manifest().segments
        stored = sum(each.stored_bytes + each.indexes_bytes for each in rows)
        assert sum(each.stored_bytes for each in rows) < sum(each.size_bytes for each in rows) / 2
        kept = status_report(manager, NOW, storage=world.disk).storage[NAME]
        assert kept.storage == pytest.approx(monthly_storage(stored))
        assert priced_plan(manager, NOW + DAY).cost.now.storage == pytest.approx(monthly_storage(stored))
        (told,) = (
            each.value
            for each in Metrics(manager, Observations()).samples(NOW)
            if each.name == "tiered_cost_dollars_per_month" and ("kind", "storage") in each.labels
        )
        assert told == pytest.approx(monthly_storage(stored))


@pytest.mark.parametrize("settings", [TIERED, COMPACTED, {}], ids=["tiered", "compacted", "local"])
def test_figures_read_without_the_log_equal_the_figures_of_a_snapshot(settings):
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 2, settings, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        for opened in (manager, None):
            with world.open(read_only=True) if opened is None else nullcontext(opened) as looks:
                full, figures = looks.snapshots(NOW + DAY), looks.partitions.figures(NOW + DAY, looks.partitions.all())
                assert list(map(partition_status, figures)) == list(map(partition_status, full))
                assert not any(isinstance(each, PartitionSnapshot) for each in figures), "no plan may be made of them"
        assert any(plan(full, NOW + DAY).decisions.values()) or not settings
