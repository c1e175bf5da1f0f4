"""Scans of a bucket as Arrow batches: each record once, in order, with bounded memory and without left pins."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import aclosing
from datetime import UTC, datetime

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bucket_samples import NOW_MS, SampleBucket, batch_at
from hypothesis import given, settings
from hypothesis import strategies as st
from run_profile import examples

from local.errors import Corrupt, InvalidRequest, NotFound, OffsetOutOfRange, Unavailable
from local.names import TopicPartition
from remote.gc.pins import list_pins
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from tiered.spark.source import task as spark_task
from tiered.spark.source.task import TYPES
from tiered.tables import scan as scan_module
from tiered.tables.remote_tables import RemoteTables, open_remote

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"
ALL = tuple(TYPES)


@pytest.fixture
def bucket():
    return SampleBucket(MemoryStore("memory://scan"))


def fill(bucket, partitions=2, segments=4, batches=4, records=10, **changes):
    for partition in range(partitions):
        for segment in range(segments):
            base = segment * batches * records
            parts = [batch_at(base + number * records, records, **changes) for number in range(batches)]
            bucket.add("orders", partition, parts, chunk_bytes=256)


def rows(table):
    return table.to_pylist()


def expected(bucket):
    found = sorted(bucket.rows, key=lambda row: (row.partition, row.offset))
    return [
        {
            "key": row.key,
            "value": row.value,
            "topic": row.topic,
            "partition": row.partition,
            "offset": row.offset,
            "timestamp": datetime.fromtimestamp(row.timestamp_ms / 1000, UTC),
            "timestampType": row.timestamp_type,
            "headers": None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers],
        }
        for row in found
    ]


def scanned(bucket, **selection):
    return RemoteTables(bucket.store).scan("orders", **selection).read_all()


def pins(bucket):
    return [pin for number in (0, 1) for pin in list_pins(bucket.store, PREFIX.replace("/0/", f"/{number}/"))]


def threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("tiered-scan")]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_column_of_every_record_is_read_in_order(bucket, codec):
    fill(bucket, codec=codec)
    assert rows(scanned(bucket, columns=ALL)) == expected(bucket)


def test_default_columns_are_all_but_headers_and_chosen_ones_keep_their_order(bucket):
    fill(bucket)
    assert scanned(bucket).column_names == [name for name in ALL if name != "headers"]
    assert scanned(bucket, columns=["offset", "key"]).column_names == ["offset", "key"]


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_any_range_threads_memory_and_task_size_give_exactly_the_range(data):
    bucket = SampleBucket(MemoryStore("memory://any"))
    fill(bucket, partitions=2, segments=3)
    start, end = sorted((data.draw(st.integers(0, 120)), data.draw(st.integers(0, 120))))
    found = scanned(
        bucket,
        columns=["partition", "offset"],
        start=start,
        end={1: end},
        threads=data.draw(st.integers(1, 5)),
        memory_bytes=data.draw(st.integers(1, 5000)),
    )
    assert list(zip(*(found.column(at).to_pylist() for at in (0, 1)), strict=True)) == [
        *((0, offset) for offset in range(start, 120)),
        *((1, offset) for offset in range(start, end)),
    ]


def test_partitions_and_times_select_records(bucket):
    fill(bucket)
    begin = datetime.fromtimestamp((NOW_MS + 1000) / 1000, UTC)
    found = scanned(bucket, partitions=[1], start=begin, end=datetime.fromtimestamp((NOW_MS + 1200) / 1000, UTC))
    assert found.column("offset").to_pylist() == list(range(100, 120))
    assert set(found.column("partition").to_pylist()) == {1}
    late = datetime.fromtimestamp((NOW_MS + 10_000_000) / 1000, UTC)
    assert scanned(bucket, start=late).num_rows == 0


def test_filter_uses_columns_that_are_not_returned(bucket):
    fill(bucket)
    found = scanned(
        bucket, columns=["value"], filter=pc.field("offset").isin(range(4, 160, 50)) & (pc.field("partition") == 1)
    )
    wanted = [row.value for row in bucket.rows if row.offset % 50 == 4 and row.partition == 1]
    assert found.column_names == ["value"]
    assert found.column("value").to_pylist() == wanted


def test_filter_may_compare_with_any_text(bucket):
    fill(bucket, segments=1)
    assert scanned(bucket, columns=["offset"], filter=pc.field("topic") == "FieldPath(3)").num_rows == 0


def test_headers_can_be_filtered_by(bucket):
    fill(bucket)
    found = scanned(bucket, columns=["offset", "partition"], filter=pc.field("headers").is_valid())
    assert found.num_rows == sum(row.headers is not None for row in bucket.rows)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"columns": ["ofset"]}, "unknown column"),
        ({"columns": "offset"}, "columns is a list"),
        ({"columns": []}, "at least one column"),
        ({"columns": ["key", "key"]}, "each once"),
        ({"start": "2026-01-01"}, "start is an offset"),
        ({"start": True}, "start is an offset"),
        ({"start": -1}, "start is an offset"),
        ({"end": {0: -2}}, "end is an offset"),
        ({"end": datetime(2026, 1, 1)}, "end has no time zone"),
        ({"partitions": []}, "partitions is empty"),
        ({"threads": 0}, "threads and memory_bytes must be above zero"),
        ({"threads": -1}, "threads and memory_bytes must be above zero"),
        ({"memory_bytes": 0}, "threads and memory_bytes must be above zero"),
        ({"filter": pc.field("ofset") == 1}, "the filter does not fit the columns"),
        ({"filter": pc.field("offset") == "x"}, "the filter does not fit the columns"),
        ({"filter": pc.field(4) > 100}, "the filter must name its columns"),
        ({"filter": (pc.field("offset") > 1) & (pc.field(3) == 1)}, "the filter must name its columns"),
        ({"partitions": 1}, "partitions is a list of numbers"),
        ({"partitions": "01"}, "partitions is a list of numbers"),
        ({"partitions": [True]}, "partitions is a list of numbers"),
        ({"partitions": [-1]}, "partitions is a list of numbers"),
        ({"view": "no/view"}, "view"),
    ],
)
def test_a_wrong_selection_is_refused_before_anything_is_read(bucket, selection, message):
    fill(bucket, segments=1)
    with pytest.raises(InvalidRequest, match=message):
        scanned(bucket, **selection)
    assert pins(bucket) == []


def test_unknown_topic_partition_and_offset_are_refused_and_leave_no_pin(bucket):
    fill(bucket)
    with pytest.raises(NotFound, match="there_are=orders"):
        RemoteTables(bucket.store).scan("order")
    with pytest.raises(NotFound, match="orders/7"):
        scanned(bucket, partitions=[0, 7])
    with pytest.raises(OffsetOutOfRange, match="offset=161"):
        scanned(bucket, start={0: 161})
    assert scanned(bucket, start={0: 161}, partitions=[0], fail_on_data_loss=False).num_rows == 0
    assert pins(bucket) == []


def test_reader_holds_pins_until_it_ends(bucket):
    fill(bucket)
    reader = RemoteTables(bucket.store).scan("orders")
    assert len(pins(bucket)) == 2
    reader.read_all()
    assert pins(bucket) == []


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_dropped_reader_ends_its_threads_and_releases_its_pins(bucket, taken, monkeypatch):
    monkeypatch.setattr(spark_task, "BATCH_ROWS", 10)
    fill(bucket)
    reader = RemoteTables(bucket.store).scan("orders", threads=2, memory_bytes=1)
    for _ in range(taken):
        assert reader.read_next_batch().num_rows == 10
    del reader
    assert threads() == []
    assert pins(bucket) == []


HALF_READ = """
import sys
from tiered import open_remote
reader = open_remote(sys.argv[1]).scan("orders", threads=2, memory_bytes=1)
print(reader.read_next_batch().num_rows > 0)
"""


def test_a_half_read_reader_does_not_keep_a_process_from_ending(tmp_path):
    (tmp_path / "bucket").mkdir()
    bucket = SampleBucket(open_store((tmp_path / "bucket").as_uri()))
    fill(bucket, segments=8)
    command = [sys.executable, "-c", HALF_READ, (tmp_path / "bucket").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert [done.returncode, done.stdout, done.stderr] == [0, "True\n", ""]


def test_no_thread_waits_while_batches_are_not_taken(bucket, monkeypatch):
    monkeypatch.setattr(spark_task, "BATCH_ROWS", 10)
    fill(bucket)
    pools, make = [], scan_module.ThreadPoolExecutor
    monkeypatch.setattr(scan_module, "ThreadPoolExecutor", lambda *each: pools.append(make(*each)) or pools[-1])
    reader = RemoteTables(bucket.store).scan("orders", columns=["offset"], threads=2, memory_bytes=1)
    reader.read_next_batch()
    reader.read_next_batch()
    assert [pools[0].submit(len, "ab").result(timeout=60) for _ in range(4)] == [2] * 4  # behind full tasks
    assert reader.read_all().num_rows == 300


def test_batches_that_are_ready_stay_below_the_memory(bucket, monkeypatch):
    """Without a reader that takes batches each task stops at its share and one batch."""
    monkeypatch.setattr(spark_task, "BATCH_ROWS", 10)
    ready = []
    original = scan_module._Task._put

    def put(self, batch):
        kept = original(self, batch)
        ready.append(self._size_bytes)
        return kept

    monkeypatch.setattr(scan_module._Task, "_put", put)
    fill(bucket, partitions=1, segments=20)
    reader = RemoteTables(bucket.store).scan("orders", threads=3, memory_bytes=8000)
    largest = max(batch.nbytes for batch in reader)
    assert largest < 2000
    assert max(ready) <= 2000 + largest


def test_limit_reads_one_task_only(bucket, monkeypatch):
    monkeypatch.setattr(scan_module, "SPLIT_BYTES", 1000)
    asked = []
    original = scan_module.read_split
    monkeypatch.setattr(scan_module, "read_split", lambda *each: asked.append(each[0]) or original(*each))
    fill(bucket, partitions=1, segments=20)
    reader = RemoteTables(bucket.store).scan("orders", threads=4)
    reader.read_next_batch()
    assert len(asked) == 1
    reader.close()


def test_damaged_bytes_are_raised_in_their_turn_and_end_the_scan(bucket):
    fill(bucket)
    entry = bucket.segments["orders", 1][2]
    key = bucket.data_object(entry, "orders", 1)
    data = bytearray(bucket.store.get(key))
    data[len(data) // 2] ^= 1
    bucket.store.delete([key])
    bucket.store.put(key, bytes(data))
    reader, offsets = RemoteTables(bucket.store).scan("orders", columns=["offset"], threads=4), []
    with pytest.raises(Corrupt, match="chunk"):
        offsets += [batch.num_rows for batch in reader]
    assert threads() == []
    assert pins(bucket) == []


def test_an_error_of_the_store_keeps_its_type(bucket, monkeypatch):
    fill(bucket)
    reader = RemoteTables(bucket.store).scan("orders")

    def fail(*_):
        raise Unavailable("the store did not answer")

    monkeypatch.setattr(bucket.store, "get_range", fail)
    monkeypatch.setattr(bucket.store, "get_ranges", fail)
    with pytest.raises(Unavailable):
        reader.read_all()


def test_a_scan_reads_the_snapshot_of_its_begin(bucket):
    fill(bucket, partitions=1, segments=2)
    reader = RemoteTables(bucket.store).scan("orders", columns=["offset"])
    bucket.add("orders", 0, [batch_at(80, 10)])
    assert reader.read_all().num_rows == 80
    assert scanned(bucket).num_rows == 90


def test_an_empty_topic_is_an_empty_table(bucket):
    bucket.log("orders", 0)
    assert scanned(bucket).num_rows == 0
    assert scanned(bucket).schema.names == [name for name in ALL if name != "headers"]


def test_async_scan_equals_the_scan_and_closes_early(bucket):
    fill(bucket)
    tables = RemoteTables(bucket.store)

    async def whole():
        return [batch async for batch in tables.scan_async("orders", columns=ALL)]

    assert rows(pa.Table.from_batches(asyncio.run(whole()))) == expected(bucket)

    async def first():
        async with aclosing(tables.scan_async("orders")) as batches:
            async for batch in batches:
                return batch.num_rows
        return 0

    assert asyncio.run(first()) > 0
    assert threads() == []
    assert pins(bucket) == []


def test_duckdb_polars_and_pandas_read_what_the_topic_holds(bucket):
    fill(bucket)
    tables = RemoteTables(bucket.store)
    orders = tables.scan("orders", columns=["partition", "offset", "value"])  # noqa: F841 - DuckDB finds it by name
    found = duckdb.sql('SELECT partition, count(*), max("offset"), count(value) FROM orders GROUP BY 1 ORDER BY 1')
    wanted = [
        (
            number,
            160,
            159,
            sum(row.value is not None for row in bucket.rows if row.partition == number),
        )
        for number in (0, 1)
    ]
    assert found.fetchall() == wanted
    frame = polars.from_arrow(tables.scan("orders"))
    assert [frame.height, frame["offset"].sum()] == [320, 2 * sum(range(160))]
    assert tables.scan("orders").read_pandas()["key"].tolist() == [each["key"] for each in expected(bucket)]
    assert pins(bucket) == []


def test_a_bucket_on_the_disk_is_scanned_through_open_remote(tmp_path):
    (tmp_path / "bucket").mkdir()
    bucket = SampleBucket(open_store((tmp_path / "bucket").as_uri()))
    fill(bucket)
    with open_remote((tmp_path / "bucket").as_uri()) as tables:
        assert rows(tables.scan("orders", columns=ALL).read_all()) == expected(bucket)
        assert tables.partitions("orders") == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
