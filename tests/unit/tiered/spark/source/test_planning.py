"""Plan of a Spark read: one pinned manifest, transactions, manifest pages and views, compared with the plain reader."""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle
from pyspark.sql.datasource import InputPartition
from remote_samples import entry
from split_columns import split_columns

from local.errors import AccessDenied, Corrupt, InvalidRequest, NotFound, OffsetOutOfRange, Unavailable
from local.format.batch_header import CONTROL
from local.format.record import Record
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import list_pins, release, renew
from remote.keys import PAGES, manifest_key
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.options import parse_options
from tiered.spark.source import pinned_snapshots, planning, settling, splits, task
from tiered.spark.source.planning import open_partitions, plan_read
from tiered.spark.source.settling import settled
from tiered.spark.source.splits import PartitionRange, ReadRange, plan_splits, share_offsets
from tiered.spark.source.task import trimmed

COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture
def world():
    return World()


def ask(**options):
    return parse_options({"path": "memory://b", "subscribe": "t", **options})


def plan(world, now_ms=NOW, **options):
    return plan_read(world.store, ask(**options), now_ms=now_ms)


def read(world, splits):
    """(offset, value) of every record that the tasks return."""
    found = []
    for split in splits:
        for columns in split_columns(world.store, split):
            found += [(record.offset, record.value) for record in columns.records()]
    return found


def told(world, start=0, end=None, **choices):
    """The same from the plain bucket reader."""
    with RemoteLog(world.store) as log:
        return [(record.offset, record.value) for record in log.reader(**choices).records(NAME, start, end)]


def settled_of(world, split):
    return settled(world.store, split, RemotePartition(world.store, split.prefix))


def pins_of(world):
    prefix = next(iter(world.store.list(""))).key.partition("/")[0] + "/0/"
    return list_pins(world.store, prefix)


def filled(world, count=300, *, properties=TIERED, **settings):
    manager = world.open(**settings)
    manager.topics.create("t", 1, properties, now_ms=NOW)
    send(manager, count)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    return manager


def transactions(world):
    """Aborted and committed transactions, some across segments. The marker of the last one is not in the bucket yet."""
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    log = manager._source(NAME).log
    for turn in range(30):
        for at in range(3):  # three interleaved transactions
            who = Producer(producer_id=3 * turn + at, producer_epoch=0, base_sequence=0, is_transactional=True)
            log.append([Record(b"k%d" % at, b"%d of %d" % (at, turn), NOW)] * 4, now_ms=NOW, producer=who)
        for at in range(3):
            log.append_marker(3 * turn + at, 0, commit=(turn + at) % 3 != 0, coordinator_epoch=0, now_ms=NOW)
    last = Producer(producer_id=999, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"decided where the bucket does not see it", NOW)], now_ms=NOW, producer=last)
    manager.partitions.roll("t", now_ms=NOW)
    log.append_marker(999, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    settle(manager)
    manager.close()


def test_committed_read_equals_the_plain_reader_for_any_split_size(world):
    transactions(world)
    want = told(world, isolation=Isolation.READ_COMMITTED)
    assert 100 < len(want) < len(told(world))
    assert told(world)[-1][1].startswith(b"decided")
    for split_bytes in ("300", "1500", "64MiB"):
        splits = plan(world, splitBytes=split_bytes, **COMMITTED)
        assert read(world, splits) == want
    assert len(splits) == 1
    assert read(world, plan(world)) == told(world)


@pytest.mark.parametrize(("start", "end"), [(0, 7), (5, 6), (100, 350), (400, 435)])
def test_committed_read_of_a_range_equals_the_plain_reader(world, start, end):
    transactions(world)
    bounds = {"startingOffsets": json.dumps({"t": {"0": start}}), "endingOffsets": json.dumps({"t": {"0": end}})}
    assert read(world, plan(world, **bounds, **COMMITTED)) == told(
        world, start, end, isolation=Isolation.READ_COMMITTED
    )


def test_task_finds_only_the_aborted_transactions_of_its_range(world):
    transactions(world)
    splits = plan(world, splitBytes="300", **COMMITTED)
    aborted = [settled_of(world, split).aborted for split in splits]
    all_of_them = {each for some in aborted for each in some}
    assert len(all_of_them) > 20
    assert max(map(len, aborted)) < len(all_of_them) / 2


def test_max_records_per_partition_limits_each_task(world):
    filled(world)
    splits = plan(world, maxRecordsPerPartition="70")
    assert [(split.start_offset, split.next_offset) for split in splits] == [
        (0, 60),
        (60, 120),
        (120, 180),
        (180, 240),
        (240, 300),
    ]
    assert read(world, splits) == told(world)
    assert len(plan(world, maxRecordsPerPartition="70", minPartitions="20", splitBytes="1GiB")) >= 20


def requests(world, monkeypatch):
    asked = []
    get = world.store.get
    monkeypatch.setattr(world.store, "get", lambda key: asked.append(key) or get(key))
    return asked


def paged(monkeypatch, rows=3):
    """Pages of up to `rows` segments, and no pages in the memory of the process."""
    rule = PageRule(manifest_bytes_max=1, page_rows_max=rows, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    monkeypatch.setattr(settling, "_kept", {})


def test_plan_reads_no_page_and_a_task_only_the_page_of_its_range(world, monkeypatch):
    paged(monkeypatch)
    filled(world, 1500)
    assert read(world, plan(world)) == told(world)
    monkeypatch.setattr(settling, "_kept", {})
    asked = requests(world, monkeypatch)
    found = plan_read(
        world.store, ask(startingOffsets='{"t":{"0":700}}', endingOffsets='{"t":{"0":710}}', pin="none"), now_ms=NOW
    )
    assert [key for key in asked if PAGES in key] == []
    assert [offset for offset, _ in read(world, found)] == list(range(700, 710))
    assert (
        len([key for key in asked if PAGES in key]) == 1 < len({k.key for k in world.store.list("") if PAGES in k.key})
    )


@pytest.mark.parametrize("choices", [{}, {"minPartitions": "40"}, {"maxRecordsPerPartition": "90"}], ids=str)
def test_tasks_that_share_pages_return_every_record_once(world, monkeypatch, choices):
    paged(monkeypatch, rows=20)
    filled(world, 1500)
    plan_of_all = plan(world, splitBytes="700", **choices)
    assert any(split.shares > 1 for split in plan_of_all)
    assert read(world, plan_of_all) == told(world)
    bounds = {"startingOffsets": '{"t":{"0":333}}', "endingOffsets": '{"t":{"0":1111}}'}
    assert read(world, plan(world, splitBytes="700", **bounds, **choices)) == told(world, 333, 1111)


def test_task_reads_its_manifest_and_page_once_in_a_process(world, monkeypatch):
    paged(monkeypatch, rows=20)
    filled(world, 1500)
    splits = list(plan(world, splitBytes="700"))
    asked = requests(world, monkeypatch)
    read(world, splits[:6])
    assert len({split.start_offset for split in splits[:6]}) == 1, "the tasks are shares of one page"
    assert len([key for key in asked if "/meta/head/" in key or PAGES in key]) == 2


@pytest.mark.damages_bucket
def test_task_without_its_manifest_reads_the_newest_or_fails(world, monkeypatch):
    transactions(world)
    splits = plan(world, pin="none", splitBytes="300", **COMMITTED)
    want = told(world, isolation=Isolation.READ_COMMITTED)
    paged(monkeypatch, rows=20)
    manager = world.open()
    send(manager, 500, start=0)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    shared = plan(world, pin="none", splitBytes="300")
    send(manager, 50, start=0)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    world.store.delete(splits[0].prefix + manifest_key(each[0].head_sequence) for each in (splits, shared))
    with pytest.raises(NotFound, match="call load"):
        read(world, splits)
    assert left(world, splits) == want
    (split,) = [split for split in shared if split.share == 1][:1]
    with pytest.raises(NotFound, match="call load"):
        left(world, [split])


def test_read_of_a_view_and_its_log_equals_the_plain_reader(world):
    manager = filled(world, 120)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    send(manager, 60, start=120)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    want = told(world, read_compacted=True)
    assert len(want) < 80
    for split_bytes in ("300", "64MiB"):
        assert read(world, plan(world, readCompacted="true", splitBytes=split_bytes)) == want
    late = {"startingTimestamp": str(NOW - DAY + 130)}
    assert read(world, plan(world, readCompacted="true", **late)) == [each for each in want if each[0] >= 130]
    with pytest.raises(NotFound, match="the topic has no compacted view"):
        plan(world, readCompacted="true", view="other")


# --- one state for the whole read -------------------------------------------------------------------------------------


def expired(world, manager, now_ms):
    """Expire and unlink all entries, delete their objects after the grace period, and collect old manifests."""
    settle(manager, now_ms)
    settle(manager, now_ms + 2 * HOUR)


GOING = {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}


def test_pinned_read_survives_retention_deletion_and_gc(world):
    manager = filled(world, properties=GOING)
    want = told(world)
    splits = plan(world, pin="9d")
    expired(world, manager, NOW + 2 * DAY)
    assert manager.reader().offsets(NAME) == (300, 300)
    assert read(world, splits) == want
    release(world.store, splits[0].prefix, pins_of(world))
    expired(world, manager, NOW + 3 * DAY)
    with pytest.raises(NotFound, match="call load"):
        read(world, splits)


def test_pin_that_is_not_renewed_expires(world):
    manager = filled(world, properties=GOING)
    splits = plan(world, pin="1d")
    expired(world, manager, NOW + 2 * DAY)
    with pytest.raises(NotFound, match="call load"):
        read(world, splits)


def test_tasks_renew_the_pin_in_the_second_half_of_its_lifetime(world, monkeypatch):
    monkeypatch.setattr(planning, "_known_ends", {})
    filled(world)
    (split,) = plan(world, pin="2h")
    (pin,) = pins_of(world)
    assert (pin, pin.expires_ms) == (split.pin, NOW + 2 * HOUR)
    now = [NOW + HOUR - 1]
    keeper = planning.PinKeeper(world.store, split.prefix, split.pin, 2 * HOUR, lambda: now[0])
    keeper.keep()
    assert pins_of(world) == [pin]
    now[0] = NOW + HOUR
    keeper.keep()
    assert pins_of(world) == [replace(pin, expires_ms=NOW + 3 * HOUR)]
    late = planning.PinKeeper(world.store, split.prefix, split.pin, 2 * HOUR, lambda: NOW + 9 * HOUR)
    late.keep()
    assert pins_of(world) == [replace(pin, expires_ms=NOW + 3 * HOUR)], "an expired pin must not be renewed"


def test_pin_is_renewed_to_the_later_expiry_and_never_recreated(world):
    filled(world)
    (split,) = plan(world)
    (pin,) = pins_of(world)
    later = renew(world.store, split.prefix, pin, clock=lambda: NOW, expires_ms=NOW + 5 * HOUR)
    assert later == replace(pin, expires_ms=NOW + 5 * HOUR)
    assert renew(world.store, split.prefix, pin, clock=lambda: NOW, expires_ms=NOW + 3 * HOUR) == later
    assert pins_of(world) == [later]
    assert renew(world.store, split.prefix, pin, clock=lambda: later.expires_ms, expires_ms=NOW + DAY) is None
    release(world.store, split.prefix, [pin])
    assert renew(world.store, split.prefix, pin, clock=lambda: NOW, expires_ms=NOW + DAY) is None
    assert pins_of(world) == []


def test_task_renews_its_pin_while_it_reads(world, monkeypatch):
    filled(world)
    (split,) = plan(world, pin="1h")
    kept = []
    monkeypatch.setattr(task, "PinKeeper", lambda store, prefix, pin, pin_ms: kept.append((pin, pin_ms)) or Keeper())

    class Keeper:
        def keep(self):
            kept.append("kept")

    list(split_columns(world.store, split, pin_ms=5))
    assert kept[0] == (split.pin, 5)
    assert kept[1:] == ["kept"] * (1 + len(settled_of(world, split).entries))


def test_failed_or_empty_plan_leaves_no_pin(world):
    filled(world)
    with pytest.raises(OffsetOutOfRange):
        plan(world, startingOffsets='{"t":{"0":999}}')
    with pytest.raises(InvalidRequest):
        plan(world, startingTimestamp=str(NOW + DAY))
    assert len(plan(world, endingOffsets='{"t":{"0":0}}')) == 0
    with pytest.raises(NotFound):
        plan_read(world.store, parse_options({"path": "memory://b", "assign": '{"t":[0,5]}'}), now_ms=NOW)
    assert pins_of(world) == []
    plan(world, pin="none")
    assert pins_of(world) == []
    plan(world)
    assert len(pins_of(world)) == 1


def test_read_only_bucket_is_read_without_a_pin_unless_one_is_required(world, monkeypatch):
    filled(world)

    def refuse(key, body):
        raise AccessDenied("the bucket is immutable", key=key)

    monkeypatch.setattr(world.store, "put", refuse)
    splits = plan(world)
    assert splits[0].pin is None
    assert read(world, splits) == told(world)
    with pytest.raises(AccessDenied):
        plan(world, pin="6h")


def test_manifests_pinned_by_options_are_read_after_later_changes(world):
    manager = filled(world, properties=GOING)
    want = told(world)
    (opened,) = open_partitions(world.store, ask(pin="9d"), NOW)
    pins = json.dumps({opened.name.prefix: asdict(opened.pin)})
    send(manager, 50, start=300)
    expired(world, manager, NOW + 2 * DAY)
    for _ in range(2):
        assert read(world, plan(world, NOW + 2 * DAY, pins=pins)) == want
    assert [pin.sequence for pin in pins_of(world)] == [opened.pin.sequence], "the read must not create its own pin"
    for lapsed in (replace(opened.pin, sequence=999), replace(opened.pin, commit_id="another's")):
        with pytest.raises(NotFound, match="the pin has expired"):
            plan(world, NOW + 3 * DAY, pins=json.dumps({opened.name.prefix: asdict(lapsed)}))


def test_pinned_block_holds_its_manifests_until_it_ends(world, monkeypatch):
    filled(world)
    monkeypatch.setattr(Bucket, "open_store", lambda bucket: world.store)
    with pinned_snapshots.pinned("memory://b", subscribe="t") as manifests:
        (pin,) = pins_of(world)
        assert json.loads(manifests.options["pins"]).popitem()[1]["sequence"] == pin.sequence
        assert read(world, plan(world, **manifests.options)) == told(world)
        assert pins_of(world) == [pin]
    assert pins_of(world) == []
    with pytest.raises(RuntimeError, match="in between"), pinned_snapshots.pinned("memory://b", subscribe="t"):
        raise RuntimeError("in between")
    assert pins_of(world) == []


# --- data loss: offsets deleted while the job runs ----------------------------------------------------------------


def left(world, splits):
    found = []
    for split in splits:
        for columns in split_columns(world.store, split, fail_on_data_loss=False):
            found += [(record.offset, record.value) for record in columns.records()]
    return found


def test_fail_on_data_loss_false_skips_expired_records_and_reads_the_rest(world):
    manager = filled(world, properties=GOING)
    splits = plan(world, pin="none", splitBytes="300")
    before = told(world)
    manager.maintenance.delete_records({NAME: 137}, now_ms=NOW)
    expired(world, manager, NOW + 2 * HOUR)
    with pytest.raises(NotFound, match="call load"):
        read(world, splits)
    found = left(world, splits)
    first = next(row.base_offset for row in manager.partitions.all()[0].manifest().segments)
    assert 0 < first <= 137
    assert found == [each for each in before if each[0] >= first]


@pytest.mark.damages_bucket
def test_missing_view_segment_is_not_replaced_by_the_log(world, monkeypatch):
    """The log has older records of the keys."""
    manager = filled(world, 120)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    asked = {"pin": "none", "readCompacted": "true", "failOnDataLoss": "false"}
    splits = plan(world, **asked)
    monkeypatch.setattr(Bucket, "open_store", lambda bucket: world.store)
    assert sum(batch.num_rows for split in splits for batch in task.read_split(split, ask(**asked), ["offset"])) > 0
    world.store.delete([splits[0].prefix + settled_of(world, splits[0]).entries[0].data_key])
    with pytest.raises(NotFound, match="call load"):
        list(task.read_split(splits[0], ask(**asked), ["offset"]))


@pytest.mark.damages_bucket
def test_missing_object_named_by_the_newest_manifest_is_corrupt(world):
    filled(world)
    splits = plan(world, pin="none")
    world.store.delete([splits[0].prefix + settled_of(world, splits[0]).entries[2].data_key])
    with pytest.raises(Corrupt, match="its object is missing"):
        left(world, splits)


# --- deleted and recreated topics -------------------------------------------------------------------------------------


def test_deleted_topic_is_not_found_and_its_successor_is_read(world):
    manager = filled(world, properties={**GOING, "remote.log.delete.grace.ms": "9d"})
    manager.topics.delete("t", now_ms=NOW)
    settle(manager)
    with pytest.raises(NotFound, match="the topic was deleted: topic=t"):
        plan(world)
    assert len(plan_read(world.store, parse_options({"path": "memory://b", "subscribePattern": ".*"}), now_ms=NOW)) == 0
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 20)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    assert [offset for offset, _ in read(world, plan(world))] == list(range(20))


def test_failure_of_one_partition_releases_the_pins_of_the_others(world, monkeypatch):
    manager = world.open()
    manager.topics.create("t", 3, TIERED, now_ms=NOW)
    settle(manager)
    get = world.store.get

    def refusing(key):
        if "/2/meta/head" in key:
            raise Unavailable("reading", key=key)
        return get(key)

    monkeypatch.setattr(world.store, "get", refusing)
    with pytest.raises(Unavailable):
        plan(world)
    monkeypatch.undo()
    assert [info.key for info in world.store.list("") if "/meta/pin/" in info.key] == []


def test_control_records_are_not_returned(world):
    transactions(world)
    for split in plan(world):
        for columns in split_columns(world.store, split):
            assert not (columns.table.attributes[columns.batch_ordinals] & CONTROL).any()


def make_range(segments, start_offset=0, next_offset=10**9):
    read = ReadRange(
        topic="orders",
        partition=3,
        prefix="orders-x/3/",
        head_sequence=9,
        commit_id="c",
        start_offset=start_offset,
        next_offset=next_offset,
    )
    return PartitionRange(read=read, parts=tuple(segments))


def segments_of(*sizes, each=100):
    return [
        entry(f"U{number}", number * each, (number + 1) * each, size_bytes=size) for number, size in enumerate(sizes)
    ]


def shape(splits):
    return [(split.start_offset, split.next_offset, split.share, split.shares) for split in splits]


def test_small_segments_are_packed_up_to_the_split_size():
    plan = plan_splits([make_range(segments_of(40, 40, 40, 10, 60))], split_bytes=100)
    assert shape(plan) == [(0, 200, 0, 1), (200, 400, 0, 1), (400, 500, 0, 1)]
    assert [split.size_bytes for split in plan] == [80, 50, 60]


def test_partitions_are_never_packed_together():
    assert len(plan_splits([make_range(segments_of(1)), make_range(segments_of(1))], split_bytes=100)) == 2


def test_empty_segments_and_segments_outside_the_range_are_left_out():
    segments = [*segments_of(10, 10, 10, 10), entry("E", 400, 500, size_bytes=0)]
    assert shape(plan_splits([make_range(segments, 100, 300)], split_bytes=10)) == [(100, 200, 0, 1), (200, 300, 0, 1)]
    assert shape(plan_splits([make_range(segments, 99, 301)], split_bytes=100)) == [(99, 301, 0, 1)]
    assert len(plan_splits([make_range(segments, 250, 250)], split_bytes=100)) == 0
    assert len(plan_splits([make_range(segments, 400, 500)], split_bytes=100)) == 0


def test_a_large_segment_is_cut_into_equal_shares_of_its_offsets():
    plan = plan_splits([make_range(segments_of(1000))], split_bytes=300)
    assert shape(plan) == [(0, 25, 0, 1), (25, 50, 0, 1), (50, 75, 0, 1), (75, 100, 0, 1)]


def test_a_large_segment_is_trimmed_to_the_offsets_before_it_is_cut():
    assert shape(plan_splits([make_range(segments_of(1000), 50, 70)], split_bytes=300)) == [(50, 70, 0, 1)]
    assert shape(plan_splits([make_range(segments_of(1000), 50, 90)], split_bytes=300)) == [
        (50, 70, 0, 1),
        (70, 90, 0, 1),
    ]


def test_partitions_min_gives_more_tasks():
    plan = plan_splits([make_range(segments_of(*[10] * 20))], split_bytes=1000, partitions_min=7)
    assert len(plan) >= 7


def test_large_read_without_a_size_has_a_bounded_number_of_tasks(monkeypatch):
    monkeypatch.setattr(splits, "TASKS_MAX", 10)
    large = make_range(segments_of(*[100 << 20] * 30))
    assert len(plan_splits([large])) == 10
    assert len(plan_splits([large], split_bytes=64 << 20)) == 60
    assert len(plan_splits([make_range(segments_of(*[60 << 20] * 9))])) == 9


def test_task_carries_at_most_200_bytes_and_becomes_its_split_in_a_worker():
    segments = segments_of(*[2**40] * 50, each=2**53)
    plan = plan_splits([make_range(segments, 0, 2**62)], split_bytes=2**30)
    assert len(plan) > 40_000
    part = plan.part(len(plan) - 1)
    assert len(pickle.dumps(InputPartition(part))) <= 200
    common = pickle.loads(pickle.dumps(plan.common()))
    assert len(common) == 0
    assert common.split(pickle.loads(pickle.dumps(part))) == plan[-1]
    assert plan[-1].head_sequence == 9


@st.composite
def ranges(draw):
    """(segments with gaps, a range): any sizes, some empty."""
    segments, offset = [], draw(st.integers(0, 3))
    for number in range(draw(st.integers(1, 12))):
        after = offset + draw(st.integers(1, 40))
        segments.append(entry(f"U{number}", offset, after, size_bytes=draw(st.integers(1, 5000))))
        offset = after + draw(st.sampled_from([0, 0, 1, 30]))
    start = draw(st.integers(0, offset + 5))
    return segments, start, draw(st.integers(start, offset + 9))


@example(([entry("U0", 0, 1)], 1, 1), 1, None, 1)  # an empty range
@given(ranges(), st.integers(1, 6000), st.none() | st.integers(1, 60), st.none() | st.integers(1, 40))
def test_each_offset_of_a_segment_is_in_exactly_one_task(sample, split_bytes, partitions_min, records_max):
    segments, start, end = sample
    plan = plan_splits(
        [make_range(segments, start, end)],
        split_bytes=split_bytes,
        partitions_min=partitions_min,
        records_max=records_max,
    )
    found = [offset for split in plan for offset in range(split.start_offset, split.next_offset)]
    assert found == sorted(set(found)), "tasks overlap or are out of order"
    held = {offset for each in segments for offset in range(*each.offsets) if start <= offset < end}
    assert held <= set(found) <= set(range(start, end))
    assert records_max is None or all(split.next_offset - split.start_offset <= records_max for split in plan)


@given(ranges(), st.integers(1, 50))
def test_shares_of_a_page_join_without_a_gap_and_without_an_overlap(sample, shares):
    segments, start, end = sample
    rows = [each for each in segments if each.next_offset > start and each.base_offset < end]
    whole = plan_splits([make_range(segments, start, end)], split_bytes=10**9)
    if not whole:
        return
    (split,) = whole
    cuts = [share_offsets(rows, 0, len(rows), replace(split, share=share, shares=shares)) for share in range(shares)]
    assert cuts[0][0] == split.start_offset
    assert cuts[-1][1] == split.next_offset
    assert all(left[1] == right[0] for left, right in itertools.pairwise(cuts))
    assert all(first <= after for first, after in cuts)


@st.composite
def logs(draw):
    """(a segment, its batches as (base, last, position, size), an index of some batches, a range)."""
    batches, offset, position = [], 100, 0
    for _ in range(draw(st.integers(1, 30))):
        base = offset + draw(st.integers(0, 3))
        last = base + draw(st.integers(0, 9))
        size = draw(st.integers(61, 200))
        batches.append((base, last, position, size))
        offset, position = last + 1, position + size
    indexed = draw(st.sets(st.sampled_from(batches)))
    segment = entry("U", 100, offset + draw(st.integers(0, 5)), size_bytes=position)
    start = draw(st.integers(90, offset + 10))
    return (
        segment,
        batches,
        [(last, at) for _, last, at, _ in sorted(indexed)],
        (start, draw(st.integers(start, offset + 10))),
    )


@given(logs())
def test_trimming_never_loses_a_wanted_batch_and_cuts_at_batch_starts(log):
    segment, batches, entries, (start, end) = log
    piece = trimmed(entries, segment, start, end)
    wanted = [(at, at + size) for base, last, at, size in batches if last >= start and base < end]
    if wanted:
        assert piece.position <= wanted[0][0]
        assert wanted[-1][1] <= piece.end_position
    edges = {at for _, _, at, _ in batches} | {segment.size_bytes}
    assert {piece.position, piece.end_position} <= edges


@pytest.mark.parametrize("next_offset", [0, 1])
def test_an_index_without_entries_reads_the_whole_segment(next_offset):
    piece = trimmed([], entry("U", 0, 10, size_bytes=77), 0, next_offset)
    assert (piece.position, piece.end_position) == (0, 77)
