"""Syncs of a topic into an Iceberg table: each record once, whatever ends a sync, and the offsets are in the table."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bucket_samples import NOW_MS, SampleBucket, batch_at
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from local.errors import Conflict, Corrupt, InvalidRequest, NotFound, OffsetOutOfRange, Unavailable
from remote.gc.pins import list_pins
from remote.manifest.manifest_changes import expire_segments
from remote.store.memory_store import MemoryStore
from tiered.tables import iceberg
from tiered.tables.exporting import COLUMNS
from tiered.tables.iceberg import OFFSETS, SEQUENCE, TOPIC_ID, sync
from tiered.tables.remote_tables import RemoteTables

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TABLE = "lake.orders"
DAY_MS = 86_400_000
OTHER_ID = "BBBBBBBBBBBBBBBBBBBBBA"


@pytest.fixture
def bucket():
    bucket = SampleBucket(MemoryStore("memory://bucket"))
    fill(bucket)
    return bucket


@pytest.fixture
def catalog(tmp_path: Path):
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=(tmp_path / "warehouse").as_uri())
    yield catalog
    catalog.close()


def fill(bucket, start=0, end=200, partitions=(0, 1)):
    for partition in partitions:
        for base in range(start, end, 50):
            bucket.add("orders", partition, [batch_at(base, 50, step_ms=DAY_MS // 100)])


def synced(bucket, catalog, **more):
    return sync(RemoteTables(bucket.store), "orders", catalog, TABLE, **more)


def rows(catalog):
    """The rows of the table, by partition and offset. pyiceberg reads null headers as an empty list."""
    found = catalog.load_table(TABLE).scan().to_arrow().select(list(COLUMNS))
    found = found.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [row | {"headers": row["headers"] or None} for row in found]


def wanted(bucket, **selection):
    return RemoteTables(bucket.store).scan("orders", columns=COLUMNS, **selection).read_all().to_pylist()


def data_files(tmp_path):
    return {path.name for path in (tmp_path / "warehouse").rglob("*.parquet")}


def named_files(catalog):
    table = catalog.load_table(TABLE)
    return {Path(each.file.file_path).name for each in table.scan().plan_files()}


@pytest.mark.parametrize("partitioning", ["day", "month", "none"])
def test_table_equals_the_topic_row_by_row(bucket, catalog, partitioning):
    result = synced(bucket, catalog, partitioning=partitioning)
    assert rows(catalog) == wanted(bucket)
    assert (result.records, result.next_offsets) == (400, {0: 200, 1: 200})
    table = catalog.load_table(TABLE)
    assert [str(field.transform) for field in table.spec().fields] == ([] if partitioning == "none" else [partitioning])
    assert result.size_bytes == sum(int(each.file.file_size_in_bytes) for each in table.scan().plan_files())
    assert list_pins(bucket.store, "orders-AAAAAAAAAAAAAAAAAAAAAA/0/") == []


@pytest.mark.filterwarnings("ignore::polars.exceptions.PerformanceWarning")
def test_polars_and_duckdb_read_the_table(bucket, catalog):
    synced(bucket, catalog)
    table = catalog.load_table(TABLE)
    frame = polars.scan_iceberg(table).sort("partition", "offset").select(COLUMNS).collect()
    assert frame.to_dicts() == wanted(bucket)
    files = [each.file.file_path.removeprefix("file://") for each in table.scan().plan_files()]
    found = duckdb.read_parquet(files).order('"partition", "offset"').to_arrow_table()
    assert found.select(list(COLUMNS)).to_pylist() == wanted(bucket)


def test_a_sync_appends_what_is_new_as_one_snapshot_and_nothing_twice(bucket, catalog):
    first = synced(bucket, catalog)
    fill(bucket, 200, 300)
    bucket.add("orders", 2, [batch_at(0, 30)])  # a new partition
    second = synced(bucket, catalog, threads=3)
    assert second.records == 230
    assert rows(catalog) == wanted(bucket)
    table = catalog.load_table(TABLE)
    assert [each.snapshot_id for each in table.snapshots()] == [first.snapshot_id, second.snapshot_id]
    assert json.loads(table.current_snapshot().summary.additional_properties[OFFSETS]) == {"0": 300, "1": 300, "2": 30}


def test_a_sync_without_new_records_writes_nothing(bucket, catalog, tmp_path):
    synced(bucket, catalog)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "warehouse").rglob("*") if path.is_file()}
    result = synced(bucket, catalog)
    assert result.snapshot_id is None
    assert result.next_offsets == {0: 200, 1: 200}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "warehouse").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_sync_that_failed_leaves_no_file_and_the_next_one_has_every_record_once(
    bucket, catalog, tmp_path, monkeypatch, fails_at
):
    original, calls, lock = PyArrowFileIO.new_output, [], threading.Lock()

    def new_output(self, location):
        with lock:
            calls.append(location)
            if len(calls) == fails_at and location.endswith(".parquet"):
                raise OSError("the disk of the warehouse failed")
        return original(self, location)

    with monkeypatch.context() as patch:
        patch.setattr(PyArrowFileIO, "new_output", new_output)
        failed = False
        try:
            synced(bucket, catalog, threads=2)
        except OSError:
            failed = True
    if failed:
        assert data_files(tmp_path) == set()
    synced(bucket, catalog)
    assert rows(catalog) == wanted(bucket)
    assert data_files(tmp_path) == named_files(catalog)


def test_a_killed_sync_leaves_files_that_no_snapshot_names(bucket, catalog, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "_committed", killed)
        with pytest.raises(Killed):
            synced(bucket, catalog)
    left = data_files(tmp_path)
    assert left
    synced(bucket, catalog)
    assert rows(catalog) == wanted(bucket)
    assert data_files(tmp_path) == named_files(catalog) | left


def test_of_two_syncs_at_a_time_one_is_refused_and_its_files_are_deleted(bucket, catalog, tmp_path, monkeypatch):
    """pyiceberg's own commit would add the records of the second sync on top of those of the first."""
    original = iceberg._committed

    def after_another(*arguments):
        monkeypatch.setattr(iceberg, "_committed", original)
        synced(bucket, catalog)
        return original(*arguments)

    monkeypatch.setattr(iceberg, "_committed", after_another)
    with pytest.raises(Conflict, match="another commit came between"):
        synced(bucket, catalog)
    assert rows(catalog) == wanted(bucket)
    assert data_files(tmp_path) == named_files(catalog)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_lost_reply_of_the_commit_repeats_no_record(bucket, catalog, tmp_path, monkeypatch, is_made):
    original = SqlCatalog.commit_table

    def lost(self, *arguments):
        if is_made:
            original(self, *arguments)
        raise ConnectionError("the connection was reset")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lost)
        if is_made:
            assert synced(bucket, catalog).records == 400
        else:
            with pytest.raises(Unavailable, match="cannot see whether the sync was committed"):
                synced(bucket, catalog)
    assert (synced(bucket, catalog).snapshot_id is None) == is_made
    assert rows(catalog) == wanted(bucket)


def test_a_table_that_was_rolled_back_is_filled_again_from_there(bucket, catalog):
    first = synced(bucket, catalog)
    fill(bucket, 200, 300)
    synced(bucket, catalog)
    table = catalog.load_table(TABLE)
    table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    assert len(rows(catalog)) == 400
    synced(bucket, catalog)
    assert rows(catalog) == wanted(bucket)


def appended_by_another(catalog, tmp_path):
    """A snapshot of another program: two rows of one day."""
    name = tmp_path / "another.parquet"
    pq.write_table(catalog.load_table(TABLE).scan(row_filter="offset < 2 and partition = 0").to_arrow(), name)
    catalog.load_table(TABLE).add_files([name.as_uri()])


def without_first_snapshot(catalog):
    table = catalog.load_table(TABLE)
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()


def test_snapshots_of_others_on_top_and_expired_ones_hide_no_offsets(bucket, catalog, tmp_path):
    synced(bucket, catalog)
    appended_by_another(catalog, tmp_path)
    assert synced(bucket, catalog).snapshot_id is None
    without_first_snapshot(catalog)
    assert synced(bucket, catalog).snapshot_id is None
    fill(bucket, 200, 250)
    assert synced(bucket, catalog).records == 100


def test_a_rollback_behind_expired_snapshots_is_refused(bucket, catalog, tmp_path):
    synced(bucket, catalog)
    appended_by_another(catalog, tmp_path)
    with catalog.load_table(TABLE).transaction() as change:  # as a sync left it that was rolled back later
        change.set_properties({SEQUENCE: "99"})
    without_first_snapshot(catalog)
    with pytest.raises(InvalidRequest, match="rolled back"):
        synced(bucket, catalog)


def test_another_topic_column_or_unreadable_offsets_are_refused(bucket, catalog):
    synced(bucket, catalog)
    table = catalog.load_table(TABLE)
    with table.transaction() as change:
        change.set_properties({TOPIC_ID: OTHER_ID})
    with pytest.raises(InvalidRequest, match="records of another topic"):
        synced(bucket, catalog)
    catalog.create_table("lake.strange", pa.schema([("key", pa.string())]))
    with pytest.raises(InvalidRequest, match="column=key"):
        sync(RemoteTables(bucket.store), "orders", catalog, "lake.strange")
    with pytest.raises(Corrupt, match="record of offsets"):
        iceberg._parsed(table, "[1]")


@pytest.mark.parametrize("changes", [{"partitioning": "hour"}, {"codec": "lzma"}, {"threads": 0}])
def test_an_invalid_selection_is_refused_before_the_table_is_made(bucket, catalog, changes):
    with pytest.raises(InvalidRequest, match="not allowed"):
        synced(bucket, catalog, **changes)
    assert not catalog.table_exists(TABLE)


def test_an_unknown_topic_is_refused_before_the_table_is_made(bucket, catalog):
    with pytest.raises(NotFound):
        sync(RemoteTables(bucket.store), "nothing", catalog, TABLE)
    assert not catalog.table_exists(TABLE)


def test_records_that_retention_deleted_before_a_sync_are_an_error_unless_allowed(bucket, catalog):
    synced(bucket, catalog)
    fill(bucket, 200, 300)
    for partition in (0, 1):
        _, log = bucket.log("orders", partition)
        expired = [each.ulid for each in bucket.segments["orders", partition][:5]]
        log.commit(expire_segments(expired, log_start_offset=250, now_ms=NOW_MS), NOW_MS)
    with pytest.raises(OffsetOutOfRange, match="offset=200"):
        synced(bucket, catalog)
    assert synced(bucket, catalog, fail_on_data_loss=False).records == 100


def test_more_than_one_hundred_segments_in_one_snapshot(catalog):
    bucket = SampleBucket(MemoryStore("memory://many"))
    for base in range(0, 1200, 10):
        bucket.add("orders", 0, [batch_at(base, 10)])
    assert synced(bucket, catalog, threads=4).records == 1200
    assert rows(catalog) == wanted(bucket)
