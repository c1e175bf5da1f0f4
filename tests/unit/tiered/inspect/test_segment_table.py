"""The segment table of a bucket: every entry and object once, with its cost."""

from __future__ import annotations

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from policies.cost.prices import BUILT_IN
from policies.cost.storage_cost import early_deletion, monthly_storage
from remote.keys import MANIFESTS
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.page_out import PageRule
from tiered.cost.topic_cost import all_entries
from tiered.inspect.segment_table import COLUMNS, TableOptions, arrow_types, record_batches, segment_rows
from tiered.jobs.view_jobs import build_views, plan_views

OPTIONS = TableOptions(now_ms=NOW + DAY)


@pytest.fixture
def world(monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    return World()


def table(world):
    return [
        row
        for name in list_partitions(world.store)
        for row in segment_rows(MetadataLog(world.store, name.prefix), name, OPTIONS)
    ]


def filled(world, count=600, storage_class="STANDARD", **properties):
    manager = world.open(remote_storage_class=storage_class)
    manager.topics.create("t", 1, {**TIERED, **properties}, now_ms=NOW)
    send(manager, count)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    return manager


def test_every_object_of_a_partition_except_manifests_is_in_the_table_once(world):
    manager = filled(world, **{"retention.ms": "2d", "remote.log.delete.grace.ms": "9d"})
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    send(manager, 600, start=600)
    settle(manager)
    seen = set()
    for name, until in (("some", NOW), ("gone", NOW + 2 * DAY + HOUR)):
        settle(manager, until)
        rows = table(world)
        keys = [row[column] for row in rows for column in ("data_key", "indexes_key") if row[column]]
        there = {info.key: info.size_bytes for info in world.store.list("") if MANIFESTS not in info.key}
        assert len(keys) == len(set(keys)), name
        assert set(keys) == set(there), name
        for row in rows:
            assert row["stored_bytes"] == there[row["data_key"]], row
            assert row["indexes_bytes"] == there.get(row["indexes_key"]), row
        seen |= {row["kind"] for row in rows}
    assert seen == {"log", "view", "page", "waiting"}


def test_segment_rows_equal_the_entries_of_the_manifest(world):
    manager = filled(world)
    (held,) = manager.partitions.all()
    rows = [row for row in table(world) if row["kind"] == "log"]
    want = list(all_entries(held))
    assert [row["ulid"] for row in rows] == [each.ulid for each in want]
    assert sum(row["record_count"] for row in rows) == 600
    for row, each in zip(rows, want, strict=True):
        assert (row["base_offset"], row["next_offset"]) == (each.base_offset, each.next_offset)
        assert (row["size_bytes"], row["codec"], row["state"]) == (each.size_bytes, "none", "COPY_FINISHED")
        assert row["max_timestamp"] == each.max_timestamp_ms * 1000
        assert row["epochs"] == [{"epoch": epoch, "start_offset": start} for epoch, start in each.epochs]
        assert row["is_readable"] is True


def test_segment_below_the_log_start_offset_is_not_readable(world):
    manager = filled(world)
    manager.maintenance.delete_records({NAME: 300}, now_ms=NOW)
    rows = [row for row in table(world) if row["kind"] == "log"]
    assert {row["log_start_offset"] for row in rows} == {300}
    assert {row["is_readable"] for row in rows} == {True, False}
    assert all(row["is_readable"] is (row["next_offset"] > 300) for row in rows)


def test_rows_of_a_deleted_topic_are_marked_as_deleted(world):
    manager = filled(world, **{"remote.log.delete.grace.ms": "9d"})
    manager.topics.delete("t", now_ms=NOW)
    settle(manager)
    rows = table(world)
    assert rows
    assert not any(row["is_readable"] for row in rows if row["kind"] != "page")
    assert all(row["topic_deleted"] is not None for row in rows)


def test_costs_of_a_row_follow_from_its_storage_class(world):
    filled(world, storage_class="STANDARD_IA")
    row = next(row for row in table(world) if row["kind"] == "log")
    prices = BUILT_IN.of("STANDARD_IA")
    assert row["storage_class"] == "STANDARD_IA"
    assert row["dollars_per_month"] == pytest.approx(
        monthly_storage(max(row["stored_bytes"], prices.min_bytes), prices)
        + monthly_storage(row["indexes_bytes"], BUILT_IN.of("STANDARD"))
    )
    assert row["dollars_to_delete_now"] == pytest.approx(early_deletion(row["stored_bytes"], 1, prices))
    assert row["dollars_to_read"] > prices.get_per_1000 / 1000


def test_columns_are_arrow_batches_with_a_bounded_number_of_rows(world):
    filled(world)
    rows = table(world)
    (batch,) = record_batches(iter(rows), tuple(COLUMNS))
    assert batch.schema.names == list(COLUMNS) == list(arrow_types())
    assert batch.num_rows == len(rows)
    many = record_batches(iter(rows * 800), ("topic", "stored_bytes"))
    sizes = [each.num_rows for each in many]
    assert sum(sizes) == 800 * len(rows)
    assert max(sizes) <= 4096 < sum(sizes)
    assert list(record_batches(iter([]), ("topic",))) == []
