"""A Spark task without Spark: planning, fetching and decoding."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import bucket_samples
import numpy as np
import pytest
from bucket_samples import NOW_MS, SampleBucket, batch_at
from hypothesis import given, settings
from hypothesis import strategies as st
from run_profile import examples
from split_columns import split_columns

from local import kernels
from local.errors import Corrupt, InvalidRequest, NotFound, OffsetOutOfRange, Unavailable
from local.index import offset_index
from local.names import TopicPartition
from local.records.batch import encode_batch
from remote.gc.pins import list_pins
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.options import parse_options
from tiered.spark.source import planning, task
from tiered.spark.source.planning import THREADS, plan_read

pa = pytest.importorskip("pyarrow")
ALL = tuple(task.TYPES)


class WatchedStore(MemoryStore):
    """A store that records the requested byte ranges."""

    def __init__(self):
        super().__init__("memory://watched")
        self.asked = []

    def get_range(self, key, start, length):
        self.asked.append((key, start, length))
        return super().get_range(key, start, length)

    def get_ranges(self, key, ranges):
        return [self.get_range(key, start, length) for start, length in ranges]

    def data_objects(self):
        return {key for key, _, _ in self.asked if key.endswith(".log")}


@pytest.fixture
def bucket():
    return SampleBucket(WatchedStore())


def plan(bucket, **options):
    return plan_read(bucket.store, parse_options({"path": "memory://x", "subscribe": "orders"} | options))


def read(bucket, splits):
    return [int(offset) for split in splits for part in split_columns(bucket.store, split) for offset in part.offsets]


def fill(bucket, segments=4, batches=4, records=10, partition=0):
    for segment in range(segments):
        base = segment * batches * records
        parts = [batch_at(base + number * records, records) for number in range(batches)]
        bucket.add("orders", partition, parts, chunk_bytes=256)


def test_all_records_in_order_and_every_byte_fetched_once(bucket):
    fill(bucket)
    assert read(bucket, plan(bucket)) == list(range(160))
    fetched = sum(length for key, _, length in bucket.store.asked if key.endswith(".log"))
    assert fetched == sum(row.size_bytes for row in bucket.segments["orders", 0])


def test_only_the_parts_of_segments_that_hold_the_offsets_are_fetched(bucket):
    fill(bucket)
    splits = plan(bucket, startingOffsets='{"orders":{"0":72}}', endingOffsets='{"orders":{"0":85}}')
    bucket.store.asked.clear()
    assert read(bucket, splits) == list(range(72, 85))
    rows = bucket.segments["orders", 0]
    assert bucket.store.data_objects() == {bucket.data_object(row, "orders", 0) for row in rows[1:3]}
    fetched = sum(length for key, _, length in bucket.store.asked if key.endswith(".log"))
    assert fetched < 0.6 * (rows[1].size_bytes + rows[2].size_bytes)


def test_timestamp_prunes_segments_by_their_entries(bucket):
    fill(bucket)
    splits = plan(bucket, startingTimestamp=str(NOW_MS + 1250))
    assert bucket.store.data_objects() == {bucket.data_object(bucket.segments["orders", 0][3], "orders", 0)}
    assert read(bucket, splits) == list(range(125, 160))


def test_planning_of_uncut_segments_fetches_no_data_and_no_index(bucket):
    fill(bucket)
    plan(bucket)
    assert bucket.store.asked == []


def test_a_batch_larger_than_the_window_is_read_whole(bucket, monkeypatch):
    monkeypatch.setattr(task, "WINDOW_BYTES", 100)
    fill(bucket, segments=2)
    assert read(bucket, plan(bucket)) == list(range(80))


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 120), st.integers(0, 120), st.integers(500, 5000), st.integers(0, 900), st.integers(61, 3000))
def test_any_range_split_size_index_and_window_gives_exactly_the_range(one, other, split_bytes, index_bytes, window):
    start, end = sorted((one, other))
    bucket = SampleBucket(MemoryStore("memory://any"))
    for base in (0, 60):
        parts = [batch_at(base + number * 10, 10) for number in range(6)]
        bucket.add("orders", 0, parts, index_bytes=index_bytes, chunk_bytes=512)
    bounds = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "WINDOW_BYTES", window)
        assert read(bucket, plan(bucket, splitBytes=str(split_bytes), **bounds)) == list(range(start, end))


def test_split_reads_the_manifest_it_was_planned_on(bucket):
    fill(bucket, segments=1)
    splits = plan(bucket)
    bucket.add("orders", 0, [batch_at(40, 10)])
    assert read(bucket, splits) == list(range(40))


def test_missing_segment_error_names_partition_manifest_and_object(bucket):
    fill(bucket, segments=2)
    splits = plan(bucket)
    row = bucket.segments["orders", 0][1]
    bucket.store.delete([bucket.data_object(row, "orders", 0)])
    with pytest.raises(NotFound, match=rf"load\(\) again: topic=orders partition=0 head=\d+ .*{row.ulid}"):
        read(bucket, splits)


def test_tasks_renew_the_pins_of_all_partitions_of_the_job(bucket, monkeypatch):
    """This includes partitions that are read hours later, and finished ones, because an action may run again."""
    monkeypatch.setattr(planning, "_known_ends", {})
    for partition in range(20):
        fill(bucket, segments=4, partition=partition)
    minute, now = 60_000, [NOW_MS]
    splits = plan_read(
        bucket.store,
        parse_options({"path": "memory://x", "subscribe": "orders", "pin": "1h", "minPartitions": "80"}),
        now_ms=NOW_MS,
    )
    monkeypatch.setattr(task, "PinKeeper", partial(planning.PinKeeper, clock=lambda: now[0]))
    prefixes = {split.prefix for split in splits}
    assert len(prefixes) == 20
    for split in splits:
        now[0] += 5 * minute
        ends = {prefix: max(pin.expires_ms for pin in list_pins(bucket.store, prefix)) for prefix in prefixes}
        assert min(ends.values()) > now[0], f"after {(now[0] - NOW_MS) // minute} minutes"
        list(split_columns(bucket.store, split, pin_ms=60 * minute))
    assert now[0] - NOW_MS > 6 * 60 * minute, "the job must take far longer than the lifetime of a pin"


def left(bucket, splits):
    return [
        int(offset)
        for split in splits
        for part in split_columns(bucket.store, split, fail_on_data_loss=False)
        for offset in part.offsets
    ]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(300, 4000),
    st.tuples(st.integers(0, 120), st.integers(0, 120)),
    st.sets(st.integers(0, 119)),
    st.integers(0, 900),
    st.sampled_from([(0,), (1,), (0, 1)]),
    st.booleans(),
)
def test_segments_rewritten_during_a_job_are_read_once_from_their_replacement(
    split_bytes, bounds, gone, index_bytes, numbers, is_one
):
    """Segments are replaced by segments with fewer records, one by one or both by one, after the tasks were planned."""
    bucket, (start, end) = SampleBucket(MemoryStore("memory://any")), sorted(bounds)
    for base in (0, 60):
        parts = [batch_at(base + number * 10, 10) for number in range(6)]
        bucket.add("orders", 0, parts, index_bytes=index_bytes, chunk_bytes=512)
    range_asked = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
    splits = plan(bucket, splitBytes=str(split_bytes), pin="none", **range_asked)
    rows = [bucket.segments["orders", 0][number] for number in numbers]
    gone = {offset for offset in gone if any(row.holds(offset) for row in rows)}
    for run in [rows] if is_one else [[row] for row in rows]:
        data = b"".join(bucket.store.get(bucket.data_object(row, "orders", 0)) for row in run)
        offsets = kernels.decode_columns(data).offsets
        new = kernels.filter_batches(data, ~np.isin(offsets, list(gone)), keep_last_batch=True)
        facts = {"base_offset": run[0].base_offset, "next_offset": run[-1].next_offset}
        bucket.add("orders", 0, [new], replaces=run, keep_rows=False, chunk_bytes=512, **facts)
        bucket.store.delete([bucket.data_object(row, "orders", 0) for row in run])
    assert left(bucket, splits) == [offset for offset in range(start, end) if offset not in gone]


def test_job_whose_segment_is_deleted_during_the_read_continues_after_it(bucket, monkeypatch):
    monkeypatch.setattr(task, "WINDOW_BYTES", 500)
    fill(bucket, segments=1)
    (row,) = bucket.segments["orders", 0]
    (split,) = plan(bucket, pin="none")
    given = []
    for columns in split_columns(bucket.store, split, fail_on_data_loss=False):
        given += columns.offsets.tolist()
        if row is not None:
            data = bucket.store.get(bucket.data_object(row, "orders", 0))
            bucket.add("orders", 0, [data], replaces=[row], keep_rows=False, base_offset=0)
            bucket.store.delete([bucket.data_object(row, "orders", 0)])
            row = None
    assert given == list(range(40))


def test_a_segment_that_ends_inside_a_batch_is_corrupt(bucket):
    whole = batch_at(0, 10) + batch_at(10, 10)
    row = bucket.add("orders", 0, [whole[:-5]])
    with pytest.raises(Corrupt, match=f"ends inside a batch: object={re.escape(row.data_key)}"):
        read(bucket, plan(bucket))


def test_a_batch_damaged_before_its_upload_is_named_by_object_and_position(bucket):
    # The upload computes the chunk checksums, so only the checksum of the batch can detect this damage.
    first, second = batch_at(0, 10), bytearray(batch_at(10, 10))
    second[-3] ^= 1
    row = bucket.add("orders", 0, [first, bytes(second)])
    with pytest.raises(Corrupt, match=f"at={len(first)} .*object={re.escape(row.data_key)}"):
        read(bucket, plan(bucket))


def test_offsets_outside_the_log_are_an_error_or_moved_to_its_bounds(bucket):
    fill(bucket, segments=1)
    late = {"startingOffsets": '{"orders":{"0":41}}'}
    with pytest.raises(OffsetOutOfRange, match="offset=41 log_start_offset=0 next_offset=40"):
        plan(bucket, **late)
    assert len(plan(bucket, failOnDataLoss="false", **late)) == 0


def test_offsets_must_name_the_partitions_that_are_read(bucket):
    fill(bucket, segments=1)
    fill(bucket, segments=1, partition=1)
    with pytest.raises(InvalidRequest, match="values must name every partition that is read: missing=orders/1"):
        plan(bucket, startingOffsets='{"orders":{"0":0}}')
    with pytest.raises(InvalidRequest, match="values name a partition that is not read: partition=orders/2"):
        plan(bucket, endingOffsets='{"orders":{"0":0,"1":0,"2":0}}')


def test_ambiguous_topic_name_needs_the_topic_id(bucket):
    fill(bucket, segments=1)
    bucket.add("orders", 0, [batch_at(0, 3)], topic_id="BBBBBBBBBBBBBBBBBBBBBB")
    with pytest.raises(InvalidRequest, match=r"the option topicId is required: topic=orders topic_ids=AAAA.*,BBBB"):
        plan(bucket)
    assert read(bucket, plan(bucket, topicId="BBBBBBBBBBBBBBBBBBBBBB")) == [0, 1, 2]
    with pytest.raises(NotFound, match="no topic has this id"):
        plan(bucket, topicId="CCCCCCCCCCCCCCCCCCCCCC")


def test_unknown_topics_and_partitions_are_named(bucket):
    fill(bucket, segments=1)
    options = parse_options({"path": "memory://x", "assign": '{"orders":[0,7]}'})
    with pytest.raises(NotFound, match="the partition is not in the bucket: partition=orders/7"):
        plan_read(bucket.store, options)
    with pytest.raises(NotFound, match="topic=nope there_are=orders"):
        plan(bucket, subscribe="nope,orders")


def test_partition_without_records_is_empty(bucket):
    bucket.log("orders", 0)
    assert len(plan(bucket)) == 0
    assert len(plan(bucket, startingOffsetsByTimestampStrategy="latest", startingTimestamp="5")) == 0


class MeetingStore(WatchedStore):
    """A store in which the first `party` reads of keys containing `part` wait for each other. Sequential reads would
    fail."""

    def __init__(self, objects, part, party):
        super().__init__()
        self._objects, self._part, self._left = objects, part, party
        self._barrier, self._count = threading.Barrier(party), threading.Lock()
        self._under_way, self.most, self.got = 0, 0, []

    def get(self, key):
        if self._part not in key:
            return super().get(key)
        with self._count:
            self.got.append(key)
            meets, self._left = self._left > 0, self._left - 1
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            if meets:
                self._barrier.wait(60)
            return super().get(key)
        finally:
            with self._count:
                self._under_way -= 1


def test_partitions_are_planned_in_parallel_within_a_bound_and_in_order(bucket):
    for partition in range(40):
        fill(bucket, segments=1, partition=partition)
    options = parse_options({"path": "memory://x", "subscribe": "orders", "pin": "none"})
    meeting = MeetingStore(bucket.store._objects, "/meta/head/", THREADS)
    found = plan_read(meeting, options)
    assert list(found) == list(plan_read(bucket.store, options))
    assert [split.partition for split in found] == list(range(40))
    assert 8 <= meeting.most == THREADS <= 16


def test_large_segments_are_cut_without_their_indexes(bucket):
    for partition in range(3):
        fill(bucket, segments=2, partition=partition)
    size_bytes = max(row.size_bytes for rows in bucket.segments.values() for row in rows)
    options = {"path": "memory://x", "subscribe": "orders", "splitBytes": str(size_bytes // 2), "pin": "none"}
    meeting = MeetingStore(bucket.store._objects, ".indexes", 1)
    found = plan_read(meeting, parse_options(options))
    assert len(found) >= 12
    assert meeting.got == []
    assert read(bucket, found) == [offset for _ in range(3) for offset in range(80)]


@st.composite
def segments_with_gaps(draw):
    """Segments of a compacted log: (offsets of each batch that remain, offset at which the segment ends)."""
    found, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 8))):
        batches, start = [], offset
        for _ in range(draw(st.integers(1, 3))):
            count = draw(st.integers(1, 9))
            batches.append((offset, count, draw(st.sets(st.integers(0, count - 1), min_size=1))))
            offset += count + draw(st.sampled_from([0, 0, 3, 40]))
        found.append((start, batches, offset))
        offset += draw(st.sampled_from([0, 0, 0, 7, 60]))
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    segments_with_gaps(),
    st.tuples(st.integers(0, 200), st.integers(0, 200)) | st.none(),
    st.integers(300, 4000),
    st.none() | st.integers(1, 15),
    st.integers(0, 900),
    st.integers(2, 6),
)
def test_tasks_over_gaps_of_compaction_and_pages_equal_the_plain_reader(
    log, bounds, split_bytes, tasks_min, index_bytes, page_rows
):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=page_rows, page_rows_min=2, kept_entries_min=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_protocol, "PAGE_RULE", rule)
        bucket = SampleBucket(MemoryStore("memory://any"))
        for start, batches, end in log:
            whole = b"".join(batch_at(base, count) for base, count, _ in batches)
            keep = np.concatenate([[at in kept for at in range(count)] for _, count, kept in batches])
            data = kernels.filter_batches(whole, keep)
            bucket.add("orders", 0, [data], base_offset=start, next_offset=end, index_bytes=index_bytes)
    choices = {} if tasks_min is None else {"minPartitions": str(tasks_min)}
    start, end = 0, None
    if bounds is not None:
        start, end = (min(max(each, 0), log[-1][2]) for each in sorted(bounds))
        choices |= {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
    with RemoteLog(bucket.store) as plain:
        told = [each.offset for each in plain.reader().records(TopicPartition("orders", 0), start, end)]
    assert read(bucket, plan(bucket, splitBytes=str(split_bytes), **choices)) == told


def test_first_of_several_failing_partitions_is_named(bucket):
    for partition in range(20):
        fill(bucket, segments=1, partition=partition)
    get = bucket.store.get

    def refusing(key):
        number = int(key.split("/")[1])
        if number in (17, 5, 11):
            raise Unavailable("reading", partition=number)
        return get(key)

    bucket.store.get = refusing
    for _ in range(5):
        with pytest.raises(Unavailable, match=r"partition=5$"):
            plan(bucket)


def with_wrong_index(bucket, entries, batches=12, records=10):
    """Add a segment of `batches` whose index bundle has the given `entries`, (last offset, position)."""
    parts = [batch_at(number * records, records) for number in range(batches)]
    wrong = b"".join(offset_index.pack(0, *each) for each in entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bucket_samples,
            "copy_segment",
            lambda store, prefix, segment, **facts: copy_segment(
                store, prefix, replace(segment, offset_index=wrong), **facts
            ),
        )
        bucket.add("orders", 0, parts, chunk_bytes=256)
    return [sum(map(len, parts[:number])) for number in range(batches + 1)]


@pytest.mark.parametrize("window", [100, task.WINDOW_BYTES])
@pytest.mark.parametrize("wrong_by", ["batch before", "batch behind", "half a batch", "outside", "offset"])
@pytest.mark.parametrize("bounds", [(0, 120), (33, 88), (60, 61)])
def test_wrong_index_bundle_neither_skips_nor_repeats_a_record(bucket, monkeypatch, bounds, wrong_by, window):
    """Reads with all tasks, where each index entry at a piece boundary has a wrong position or offset."""
    monkeypatch.setattr(task, "WINDOW_BYTES", window)
    size = len(batch_at(0, 10))
    shift = {"batch before": -size, "batch behind": size, "half a batch": size // 2, "outside": 1 << 20, "offset": 0}
    lasts = {number: number * 10 + (34 if wrong_by == "offset" else 9) for number in range(1, 12)}
    starts = [len(b"".join(batch_at(each * 10, 10) for each in range(number))) for number in range(12)]
    entries = [(lasts[number], starts[number] + shift[wrong_by]) for number in range(1, 12)]
    with_wrong_index(bucket, entries)
    asked = {
        "startingOffsets": f'{{"orders":{{"0":{bounds[0]}}}}}',
        "endingOffsets": f'{{"orders":{{"0":{bounds[1]}}}}}',
    }
    splits = plan(bucket, splitBytes=str(3 * size), pin="none", **asked)
    assert read(bucket, splits) == list(range(*bounds))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-5, 130), st.integers(-50, 4000)), max_size=12),
    st.tuples(st.integers(0, 120), st.integers(0, 120)),
    st.integers(200, 3000),
    st.integers(61, 3000),
    st.booleans(),
)
def test_any_index_entries_give_exactly_the_range(entries, bounds, split_bytes, window, is_sorted):
    (start, end), bucket = sorted(bounds), SampleBucket(MemoryStore("memory://any"))
    with_wrong_index(bucket, sorted(entries) if is_sorted else entries)
    asked = {"startingOffsets": f'{{"orders":{{"0":{start}}}}}', "endingOffsets": f'{{"orders":{{"0":{end}}}}}'}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "WINDOW_BYTES", window)
        assert read(bucket, plan(bucket, splitBytes=str(split_bytes), **asked)) == list(range(start, end))


def test_index_entry_of_a_whole_append_by_an_older_broker_is_accepted(bucket, caplog):
    """Older Kafka versions write the last offset of a whole append at the position of its first batch."""
    starts = [len(b"".join(batch_at(each * 10, 10) for each in range(number))) for number in range(12)]
    with_wrong_index(bucket, [(number * 10 + 29, starts[number]) for number in range(0, 12, 3)])
    splits = plan(bucket, splitBytes=str(starts[4]), pin="none")
    assert len(splits) > 1
    assert read(bucket, splits) == list(range(120))
    assert "index is wrong" not in caplog.text


def batches_of(*data, names=ALL):
    return list(task.record_batches(kernels.decode_columns(b"".join(data)), names, "orders", 3))


def test_schema_equals_the_one_spark_expects():
    (batch,) = batches_of(batch_at(0, 10))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert batch.schema.equals(
        pa.schema(
            {
                "key": pa.binary(),
                "value": pa.binary(),
                "topic": pa.string(),
                "partition": pa.int32(),
                "offset": pa.int64(),
                "timestamp": pa.timestamp("us", tz="UTC"),
                "timestampType": pa.int32(),
                "headers": pa.list_(header),
            }
        )
    )
    batch.validate(full=True)


@pytest.mark.parametrize("codec", [0, 4])
def test_every_field_of_every_record_arrives(codec):
    data = batch_at(0, 40, codec=codec) + batch_at(50, 5, log_append=True)
    columns = kernels.decode_columns(data)
    table = pa.Table.from_batches(batches_of(data)).to_pydict()
    expected = list(columns.records())
    assert table["key"] == [record.key for record in expected]
    assert table["value"] == [record.value for record in expected]
    assert table["topic"] == ["orders"] * len(expected)
    assert table["partition"] == [3] * len(expected)
    assert table["offset"] == [record.offset for record in expected]
    assert [round(each.timestamp() * 1000) for each in table["timestamp"]] == [r.timestamp_ms for r in expected]
    assert table["timestampType"] == [0] * 40 + [1] * 5
    pairs = [each and [(header["key"], header["value"]) for header in each] for each in table["headers"]]
    assert pairs == [list(record.headers) or None for record in expected]


def test_null_and_empty_values_stay_distinct():
    data = encode_batch([(None, b"", NOW_MS), (b"", None, NOW_MS), (b"k", b"v", NOW_MS)])
    table = pa.Table.from_batches(batches_of(data)).to_pydict()
    assert table["key"] == [None, b"", b"k"]
    assert table["value"] == [b"", None, b"v"]
    assert table["headers"] == [None, None, None]


def test_timestamp_that_overflows_microseconds_is_refused_and_named():
    largest = (2**63 - 1) // 1000
    fits = encode_batch([(b"k", b"v", largest)])
    assert batches_of(fits, names=("timestamp",))[0]["timestamp"].cast("int64").to_pylist() == [largest * 1000]
    nanoseconds = encode_batch([(b"k", b"v", NOW_MS), (b"k", b"v", largest + 1)])
    with pytest.raises(InvalidRequest, match=r"leave the column out by .schema.*partition=orders/3 offset=1"):
        batches_of(nanoseconds)
    assert batches_of(nanoseconds, names=("offset", "key"))[0].num_rows == 2


def test_only_the_named_columns_are_built_in_their_order():
    (batch,) = batches_of(batch_at(0, 10), names=("offset", "key"))
    assert batch.schema.names == ["offset", "key"]


def test_batches_are_bounded_in_rows(monkeypatch):
    monkeypatch.setattr(task, "BATCH_ROWS", 7)
    parts = batches_of(batch_at(0, 20))
    assert [part.num_rows for part in parts] == [7, 7, 6]
    assert pa.Table.from_batches(parts)["offset"].to_pylist() == list(range(20))


def test_batches_are_bounded_in_bytes_and_a_large_record_has_its_own_batch(monkeypatch):
    monkeypatch.setattr(task, "BATCH_BYTES", 100)
    sizes = [10, 50, 40, 1, 500, 100, 1]
    data = encode_batch([(None, b"x" * size, NOW_MS) for size in sizes])
    parts = [[len(value) for value in part["value"].to_pylist()] for part in batches_of(data)]
    assert parts == [[size] for size in sizes]
    small = encode_batch([(None, b"x" * size, NOW_MS) for size in (10, 50, 40, 1, 30)])
    parts = [[len(value) for value in part["value"].to_pylist()] for part in batches_of(small)]
    assert parts == [[10, 50], [40, 1], [30]]


def test_no_records_give_no_batch():
    assert batches_of(b"") == []


def test_selection_of_records_is_converted_without_the_others():
    columns = kernels.decode_columns(batch_at(0, 30))
    part = columns.select((columns.offsets >= 7) & (columns.offsets < 9))
    (batch,) = task.record_batches(part, ("offset", "key", "timestampType"), "orders", 3)
    assert batch.to_pydict() == {"offset": [7, 8], "key": [b"key-7", b"key-8"], "timestampType": [0, 0]}


@pytest.mark.skipif(kernels.implementation() == "pure", reason="the twin converts Python objects")
def test_reading_worker_does_not_import_pandas():
    """The import costs a quarter of a second in the first task of each Python worker, and 25 MB."""
    program = """
import sys
from local import kernels
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.errors import InvalidRequest
from tiered.spark.source.task import TYPES, built_batches

(step,) = kernels.sections_in_steps(encode_batch([(b"k", b"v", 7)]), step_bytes=100)
(batch,) = built_batches(step, (), 0, 9, names=tuple(TYPES), topic="orders", partition=3)
assert (batch["topic"][0].as_py(), batch["partition"][0].as_py()) == ("orders", 3)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
