"""Exports by threads: each record in exactly one file, after any error, stop and resumption."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bucket_samples import SampleBucket, batch_at

from local.errors import Corrupt, InvalidRequest, Unavailable
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import Here
from tiered.tables import parquet_export
from tiered.tables.parquet_export import ThreadWaves, export

SMALL = {"subscribe": "t", "splitBytes": "600", "pin": "none"}
DAY_MS = 86_400_000


class FailingStore(MemoryStore):
    """A target whose upload number `fails_at` has no effect and raises Unavailable."""

    fails_at: int | None = None

    def __init__(self, url):
        super().__init__(url)
        self.uploads, self._counted = 0, threading.Lock()

    def upload(self, key, source, **more):
        with self._counted:
            self.uploads += 1
            number = self.uploads
        if number == self.fails_at:
            raise Unavailable("the store did not answer")
        return super().upload(key, source, **more)


@pytest.fixture
def bucket(monkeypatch):
    """Two partitions of 12 segments with records of two days; `stores` are opened by their URLs."""
    bucket = SampleBucket(MemoryStore("memory://bucket"))
    for partition in range(2):
        for base in range(0, 240, 20):
            bucket.add("t", partition, [batch_at(base, 20, step_ms=DAY_MS // 150)])
    bucket.target = FailingStore("memory://target")
    stores = {each.url: each for each in (bucket.store, bucket.target)}
    monkeypatch.setattr(Bucket, "open_store", lambda opened: stores[opened.url])
    return bucket


def exported(store):
    """(partition, offset, value) of each row of each file, sorted, and the days of the names."""
    rows, days = [], set()
    for info in store.list("topic=t/"):
        table = pq.read_table(io.BytesIO(store.get(info.key)))
        days.add(info.key.split("/")[1])
        rows += zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
    return sorted(rows), days


def wanted(bucket):
    return sorted((row.partition, row.offset, row.value) for row in bucket.rows)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_record_is_in_one_file_of_its_day(bucket, threads):
    seen = []
    options = {"threads": threads, "progress": lambda *each: seen.append(each), **SMALL}
    result = export("memory://bucket", "memory://target", **options)
    rows, days = exported(bucket.target)
    assert rows == wanted(bucket)
    assert days == {
        datetime.fromtimestamp(row.timestamp_ms / 1000, UTC).strftime("date=%Y-%m-%d") for row in bucket.rows
    }
    assert result.is_complete
    assert result.records == len(rows)
    assert {each.key for each in result.files} == {info.key for info in bucket.target.list("topic=t/")}
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("fails_at", [1, 2, 5, 9, 14, 20])
def test_an_export_that_failed_continues_and_repeats_no_record(bucket, fails_at):
    bucket.target.fails_at = fails_at
    with pytest.raises(Unavailable):
        export("memory://bucket", "memory://target", job_id="mine", threads=2, **SMALL)
    result = export("memory://bucket", "memory://target", job_id="mine", threads=3, **SMALL)
    assert exported(bucket.target)[0] == wanted(bucket)
    assert result.is_complete


def test_a_wave_with_a_failed_task_is_not_recorded_although_its_other_tasks_wrote_files(bucket, monkeypatch):
    """`Here` commits the pieces before the failed one; with it this test finds records in two files."""
    bucket.target.fails_at = 2
    with pytest.raises(Unavailable):
        export("memory://bucket", "memory://target", job_id="mine", threads=2, **SMALL)
    assert len(list(bucket.target.list("topic=t/"))) >= 1
    assert list(bucket.target.list("_tiered/mine/wave")) == []


@pytest.mark.parametrize("takes_over_at", [1, 2, 5, 8, 9, 12])
def test_a_second_process_with_the_job_id_takes_the_job_over_and_repeats_no_record(bucket, takes_over_at):
    """The first process writes file `takes_over_at` when the second one begins; it has unrecorded files then."""
    original, counted, results = bucket.target.upload, iter(range(1, 100)), []

    def upload(key, source, **more):
        if next(counted) == takes_over_at:
            bucket.target.upload = original
            results.append(export("memory://bucket", "memory://target", job_id="mine", threads=2, **SMALL))
        return original(key, source, **more)

    bucket.target.upload = upload
    with pytest.raises(InvalidRequest, match="another driver"):
        export("memory://bucket", "memory://target", job_id="mine", threads=1, **SMALL)
    assert results[0].is_complete
    assert exported(bucket.target)[0] == wanted(bucket)
    assert {each.key for each in results[0].files} == {info.key for info in bucket.target.list("topic=t/")}


@pytest.mark.parametrize("other", [{"kafka.isolation.level": "read_committed"}, {"readCompacted": "true"}])
def test_a_job_that_exports_other_records_is_not_resumed(bucket, other):
    bucket.target.fails_at = 6
    with pytest.raises(Unavailable):
        export("memory://bucket", "memory://target", job_id="mine", threads=1, **SMALL)
    with pytest.raises(InvalidRequest, match="the options select other records"):
        export("memory://bucket", "memory://target", job_id="mine", threads=1, **SMALL, **other)


def test_a_stopped_export_is_incomplete_and_continues(bucket):
    calls = iter([False, True])
    result = export(
        "memory://bucket", "memory://target", job_id="mine", threads=1, should_stop=lambda: next(calls), **SMALL
    )
    assert not result.is_complete
    assert 0 < result.records < len(bucket.rows)
    assert export("memory://bucket", "memory://target", job_id="mine", **SMALL).is_complete
    assert exported(bucket.target)[0] == wanted(bucket)


def test_more_than_one_hundred_tasks(bucket, monkeypatch):
    monkeypatch.setattr(parquet_export, "TASKS_PER_THREAD", 2)
    result = export("memory://bucket", "memory://target", threads=2, **SMALL | {"maxRecordsPerPartition": "4"})
    assert result.is_complete
    assert len(list(bucket.target.list("_tiered/"))) > 25
    assert exported(bucket.target)[0] == wanted(bucket)


def test_threads_work_at_the_same_time_and_waves_follow_each_other():
    both, order = threading.Barrier(2, timeout=30), []

    def do(piece):
        both.wait()
        order.append(piece // 8)
        return piece

    waves = list(ThreadWaves(threads=2).run("work", range(16), do))
    assert [[piece for piece, _ in wave] for wave in waves] == [list(range(8)), list(range(8, 16))]
    assert order == sorted(order)
    assert not Here().is_parallel


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": "lzma"}, "the codec is unknown"),
        ({"job_id": "no/job"}, "invalid job id"),
        ({"threads": 0}, "threads must be above zero"),
        ({"subscribe": "x"}, "the topic is not in the bucket"),
    ],
)
def test_an_invalid_export_is_refused_and_writes_nothing(bucket, changes, message):
    with pytest.raises(Exception, match=message):
        export("memory://bucket", "memory://target", **{**SMALL, **changes})
    assert list(bucket.target.list("")) == []


def test_another_buckets_job_is_refused(bucket):
    export("memory://bucket", "memory://target", job_id="mine", **SMALL)
    plan = json.loads(bucket.target.get("_tiered/mine/plan.json"))
    bucket.target.put("_tiered/mine/plan.json", json.dumps(plan | {"source": "s3://elsewhere"}).encode())
    with pytest.raises(InvalidRequest, match="another bucket"):
        export("memory://bucket", "memory://target", job_id="mine", **SMALL)


@pytest.fixture
def directory(tmp_path: Path):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "out").mkdir()
    bucket = SampleBucket(open_store((tmp_path / "bucket").as_uri()))
    for partition in range(2):
        for base in range(0, 60, 20):
            bucket.add("t", partition, [batch_at(base, 20)])
    return bucket, tmp_path


def test_backfill_without_spark_writes_the_selected_records(directory, capfd):
    bucket, folder = directory
    place = ["--remote", (folder / "bucket").as_uri(), "--to", (folder / "out").as_uri()]
    assert invoke(["backfill", "t/1", *place, "--from", "10", "--until", "45", "--parallel", "2", "-o", "json"]) == 0
    out, err = capfd.readouterr()
    rows = exported(open_store((folder / "out").as_uri()))[0]
    assert rows == [each for each in wanted(bucket) if each[0] == 1 and 10 <= each[1] < 45]
    assert json.loads(out)["records"] == len(rows) == 35
    assert "35 records in 1 file" in err


def test_backfill_imports_no_pyspark(directory):
    _, folder = directory
    words = ["backfill", "t", "--remote", (folder / "bucket").as_uri(), "--to", (folder / "out").as_uri()]
    code = f"import sys; sys.modules['pyspark'] = None; from tiered.cli.main import invoke; sys.exit(invoke({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "120 records in" in done.stderr


@pytest.mark.parametrize("error", [Unavailable("no answer"), Corrupt("damaged"), KeyboardInterrupt()])
def test_backfill_that_fails_says_how_to_resume(directory, capfd, monkeypatch, error):
    _, folder = directory

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(parquet_export, "export", fail)
    place = ["--remote", (folder / "bucket").as_uri(), "--to", (folder / "out").as_uri()]
    assert invoke(["backfill", "t", *place, "--resume", "mine"]) != 0
    assert "to resume, repeat the command with --resume mine" in capfd.readouterr().err


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), OSError(errno.EIO, "failed")])
def test_a_full_temporary_directory_is_named_and_the_job_can_be_resumed(directory, capfd, monkeypatch, error):
    bucket, folder = directory
    place = ["--remote", (folder / "bucket").as_uri(), "--to", (folder / "out").as_uri()]

    def full(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("tiered.tables.exporting.DayFile._flush", full)
        assert invoke(["backfill", "t", *place, "--resume", "mine"]) == 1
    err = capfd.readouterr().err
    assert f"a temporary file cannot be written: directory={tempfile.gettempdir()} cause=" in err
    assert "--resume mine" in err
    assert "stdout" not in err
    assert invoke(["backfill", "t", *place, "--resume", "mine"]) == 0
    assert exported(open_store((folder / "out").as_uri()))[0] == wanted(bucket)


def test_backfill_refuses_properties_of_spark_without_spark(directory, capfd):
    _, folder = directory
    place = ["--remote", (folder / "bucket").as_uri(), "--to", (folder / "out").as_uri()]
    assert invoke(["backfill", "t", *place, "--conf", "spark.x=1"]) == 2
    assert "add --spark MASTER" in capfd.readouterr().err
