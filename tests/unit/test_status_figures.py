"""The figures of a status: what only this disk has, and what is paid for what the bucket has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle
from policy_samples import LOCAL, REMOTE, local, row, snapshot

from local.names import TopicPartition
from policies.cost import GIB, monthly_storage
from policies.prices import BUILT_IN
from policies.stored import storage_dollars, stored_by_class
from remote.head import SpillRow
from remote.segment import SegmentState
from tiered.metrics import Metrics
from tiered.observations import Observations
from tiered.planning import priced_plan
from tiered.status import partition_status
from tiered.status_report import status_report
from tiered.status_rows import topic_row


@pytest.mark.parametrize(
    ("taken", "at_risk"),
    [
        (snapshot(*LOCAL), 300),
        (snapshot(*LOCAL, remote=REMOTE), 100),
        (snapshot(*LOCAL, remote=REMOTE, is_tiered=False), 100),
        (snapshot(*LOCAL, remote=(row(0, 2, state=SegmentState.COPY_STARTED),)), 300),
        (snapshot(*LOCAL, remote=REMOTE[:1], copying=frozenset({2})), 200),
        (snapshot(*LOCAL, remote=REMOTE[1:]), 200),
        (snapshot(*LOCAL, remote=(row(0, 1), row(2, 4))), 200),
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
def test_at_risk_is_what_the_bucket_lacks_of_the_retained_records(taken, at_risk):
    assert partition_status(taken).at_risk_bytes == at_risk


def test_bytes_are_told_by_the_class_they_lie_in_and_indexes_stay_in_standard():
    cold = replace(row(2, 4), storage_class="GLACIER_IR", stored_bytes=40)
    assert stored_by_class(snapshot(*LOCAL, remote=(row(0, 2), cold))) == {"STANDARD": 1 + 2 * 10, "GLACIER_IR": 40}
    assert stored_by_class(snapshot(*LOCAL)) == {}


def test_a_pages_bytes_are_those_stored_in_the_class_of_the_newest_row():
    known = replace(row(2, 4), storage_class="STANDARD_IA", stored_bytes=40)
    page = SpillRow(
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
    taken = replace(snapshot(*LOCAL, remote=(known,)), spills=(page,))
    assert stored_by_class(taken) == {"STANDARD_IA": 110, "STANDARD": 10 + 20}


def test_dollars_are_band_by_band_for_all_bytes_of_a_price_together():
    stored = {"STANDARD": 40_000 * GIB, "OF ANOTHER STORE": 40_000 * GIB, "GLACIER_IR": 1000 * GIB}
    assert storage_dollars(stored, BUILT_IN) == pytest.approx(monthly_storage(80_000 * GIB) + 4.0)
    assert storage_dollars({}, BUILT_IN) == 0


def test_status_plan_and_metrics_price_a_compressed_topic_alike():
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "remote.compression": "zstd"}, now_ms=NOW)
        send(manager, 500)
        manager.roll("t", now_ms=NOW)
        settle(manager)
        rows = manager.partition(NAME).head().segments
        stored = sum(each.stored_bytes + each.indexes_bytes for each in rows)
        assert sum(each.stored_bytes for each in rows) < sum(each.size_bytes for each in rows) / 2
        report = status_report(manager, NOW, storage=world.disk)
        status = report.partitions[TopicPartition("t", 0)]
        assert storage_dollars(status.stored_bytes, BUILT_IN) == pytest.approx(monthly_storage(stored))
        dear = replace(BUILT_IN.of(None), storage_bands=((None, 1e6),))
        report = replace(report, prices=replace(BUILT_IN, classes={**BUILT_IN.classes, "STANDARD": dear}))
        assert topic_row(report, report.topics[0])["dollars_per_month"] == pytest.approx(stored / GIB * 1e6)
        assert priced_plan(manager, NOW + DAY).cost.now_dollars == pytest.approx(monthly_storage(stored))
        waiting = manager.partition(NAME).snapshot(NOW).unlinked_bytes
        (told,) = (
            each.value
            for each in Metrics(manager, Observations()).samples(NOW)
            if each.name == "tiered_cost_dollars_per_month" and ("kind", "storage") in each.labels
        )
        assert told == pytest.approx(monthly_storage(stored + waiting))
