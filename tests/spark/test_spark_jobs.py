"""Bucket jobs in Spark tasks: the deep scrub and the export to Parquet, equal to plain Python."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys

import msgspec
import pyarrow.parquet
import pytest
from bucket_samples import NOW_MS
from json_schemas import SCHEMAS

from local.errors import InvalidRequest, NotFound
from local.records.batch import encode_batch
from local.storage import DiskStorage
from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import ScrubState
from tiered.spark import export, scrub
from tiered.spark.jobs.runner import SparkRunner
from tiered.tables.parquet_export import export as threads_export

pytestmark = pytest.mark.spark

DAY = 86_400_000


def fill(bucket, topic="t", partitions=2, segments=4, step=DAY // 3):
    for partition in range(partitions):
        for number in range(segments):
            base = number * 10
            records = [
                (
                    b"k%d" % (at % 3) if at % 4 else None,
                    None if at % 7 == 0 else b"v%d" % at,
                    NOW_MS + at * step,
                    (("h", b"x"),) if at % 5 == 0 else (),
                )
                for at in range(base, base + 8)
            ]
            bucket.add(topic, partition, [encode_batch(records, base_offset=base)], next_offset=base + 10)
    return bucket


def exported(directory):
    """(topic, partition, offset) -> (date, key, value, timestamp) of all files. A repeated record fails."""
    found = {}
    for path in sorted(directory.rglob("*.parquet")):
        topic, date = path.parent.parent.name, path.parent.name
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist():
            name = topic.removeprefix("topic="), row["partition"], row["offset"]
            assert name not in found, f"{name} is in two files"
            found[name] = date.removeprefix("date="), row["key"], row["value"], row["timestamp"], row["headers"]
    return found


def expected(rows, topic="t"):
    found = {}
    for row in rows:
        if row.topic != topic:
            continue
        moment = datetime.datetime.fromtimestamp(row.timestamp_ms / 1000, datetime.UTC)
        headers = [{"key": key, "value": value} for key, value in row.headers] if row.headers else None
        place = row.topic, row.partition, row.offset
        found[place] = moment.date().isoformat(), row.key, row.value, moment, headers
    return found


@pytest.fixture
def target(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_each_work_item_runs_once_and_results_are_in_order(spark, tmp_path):
    def work(number):
        with open(tmp_path / f"done-{number}", "x"):  # a second run of the item would fail
            return number * 2

    waves = list(SparkRunner(spark, wave_tasks=3).run("counting", list(range(7)), work))
    assert waves == [[(0, 0), (1, 2), (2, 4)], [(3, 6), (4, 8), (5, 10)], [(6, 12)]]
    assert len(list(tmp_path.iterdir())) == 7


def test_stopped_job_ends_between_two_waves(spark):
    given = []
    runner = SparkRunner(spark, wave_tasks=2, should_stop=lambda: len(given) >= 4)
    waves = runner.run("counting", [0, 1, 2, 3, 4], abs)
    for wave in waves:
        given.extend(wave)
    assert given == [(number, number) for number in range(4)]


def test_export_has_every_record_once_under_its_date(spark, bucket, target):
    fill(bucket)
    fill(bucket, topic="other", partitions=1)
    result = export(
        spark, bucket.url, f"file://{target}", subscribe="t", splitBytes="300", storeOptions=json.dumps(bucket.options)
    )
    assert exported(target) == expected(bucket.rows)
    assert result.is_complete
    assert result.records == len(expected(bucket.rows))
    assert result.size_bytes == sum(path.stat().st_size for path in target.rglob("*.parquet"))
    assert {each.key for each in result.files} == {str(path.relative_to(target)) for path in target.rglob("*.parquet")}


def test_threads_export_the_files_of_spark(spark, file_bucket, target, tmp_path):
    fill(file_bucket)
    (tmp_path / "threads").mkdir()
    options = {"subscribe": "t", "splitBytes": "300"}
    export(spark, file_bucket.url, f"file://{target}", job_id="one", wave_tasks=4, **options)
    threads_export(file_bucket.url, f"file://{tmp_path}/threads", job_id="one", threads=1, **options)
    assert exported(tmp_path / "threads") == exported(target) == expected(file_bucket.rows)
    one, other = (
        {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*.parquet")}
        for folder in (target, tmp_path / "threads")
    )
    assert one == other


def test_export_of_many_dates_and_records_without_a_timestamp(spark, file_bucket, target):
    times = [NOW_MS + (at % 40) * DAY for at in range(200)] + [-1]
    records = [(b"k", b"v", time, ()) for time in times]
    file_bucket.add("t", 0, [encode_batch(records[at : at + 50], base_offset=at) for at in (0, 50, 100, 150, 200)])
    result = export(spark, file_bucket.url, f"file://{target}", subscribe="t", codec="snappy")
    found = exported(target)
    assert sorted(offset for _, _, offset in found) == list(range(201))
    assert found["t", 0, 200][0] == "__HIVE_DEFAULT_PARTITION__"
    days = {date for date, *_ in found.values()}
    assert len(days) == 41
    assert len(result.files) == 41
    assert sum(each.records for each in result.files) == 201


def test_more_dates_than_open_files_give_several_files_for_a_date(tmp_path):
    from tiered.tables.exporting import _OPEN_MAX, day_files

    days = list(range(_OPEN_MAX + 4)) * 2
    schema = pyarrow.schema({"offset": pyarrow.int64(), "timestamp": pyarrow.timestamp("us", tz="UTC")})
    batches = [
        pyarrow.record_batch([pyarrow.array([at * 2, at * 2 + 1]), pyarrow.array([day * DAY * 1000] * 2)], ["a", "b"])
        .rename_columns(["offset", "timestamp"])
        .cast(schema)
        for at, day in enumerate(days)
    ]
    written = list(day_files(str(tmp_path), "none", iter(batches)))
    assert len(written) == len({each.path for each in written}) == len(days), (
        "each date must come again after its file was closed"
    )
    found = [offset for each in written for offset in pyarrow.parquet.read_table(each.path)["offset"].to_pylist()]
    assert sorted(found) == list(range(2 * len(days)))
    assert all(each.next_offset - each.base_offset == 2 for each in written)


@pytest.mark.parametrize("waves_done", [0, 1, 2])
def test_interrupted_export_continues_and_exports_each_record_once(spark, file_bucket, target, waves_done):
    fill(file_bucket)
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > waves_done

    options = {"subscribe": "t", "splitBytes": "300", "job_id": "nightly", "wave_tasks": 1}
    first = export(spark, file_bucket.url, f"file://{target}", should_stop=stop, **options)
    assert not first.is_complete
    assert first.job_id == "nightly"
    planned = {(row.topic, row.partition, row.offset) for row in file_bucket.rows}
    # Files of an interrupted wave: of this job, but in no record of it.
    (stray := target / "topic=t" / "date=2020-01-01").mkdir(parents=True, exist_ok=True)
    name = f"0-{90:020d}-nightly-{waves_done:06d}.parquet"
    (stray / name).write_bytes(b"half")
    (stray / name.replace("nightly", "another")).write_bytes(b"of another job")
    # Later records are not part of this job.
    file_bucket.add("t", 0, [encode_batch([(b"late", b"x", NOW_MS, ())], base_offset=40)])
    second = export(spark, file_bucket.url, f"file://{target}", **options)
    assert second.is_complete
    assert [path.name for path in stray.iterdir()] == [name.replace("nightly", "another")]
    (stray / name.replace("nightly", "another")).unlink()
    assert set(exported(target)) == planned
    assert second.records == len(planned)
    third = export(spark, file_bucket.url, f"file://{target}", **options)
    assert third == second, "a finished job must do nothing"


def test_invalid_export_is_refused_with_a_reason(spark, file_bucket, target):
    fill(file_bucket)
    with pytest.raises(InvalidRequest, match="the codec is unknown"):
        export(spark, file_bucket.url, f"file://{target}", subscribe="t", codec="rar")
    with pytest.raises(InvalidRequest, match="cannot export, invalid job id"):
        export(spark, file_bucket.url, f"file://{target}", subscribe="t", job_id="a/b")
    with pytest.raises(NotFound, match="not in the bucket"):
        export(spark, file_bucket.url, f"file://{target}", subscribe="nope")
    export(spark, file_bucket.url, f"file://{target}", subscribe="t", job_id="one")
    plan = target / "_tiered" / "one" / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"source": "s3://elsewhere"}))
    with pytest.raises(InvalidRequest, match="another bucket"):
        export(spark, file_bucket.url, f"file://{target}", subscribe="t", job_id="one")


@pytest.mark.deep("a Spark application")
def test_backfill_command_exports_the_selected_records(file_bucket, target):
    fill(file_bucket)
    command = [
        sys.executable,
        "-m",
        "tiered",
        "backfill",
        "t/1",
        "--remote",
        file_bucket.url,
        "--to",
        f"file://{target}",
    ]
    command += ["--from", "10", "--until", "25", "--spark", "local[1]", "--resume", "mine", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    msgspec.convert(told, SCHEMAS["backfill"])
    wanted = {name: row for name, row in expected(file_bucket.rows).items() if name[1] == 1 and 10 <= name[2] < 25}
    assert exported(target) == wanted
    assert told["job"] == "mine"
    assert told["is_complete"]
    assert sum(each["records"] for each in told["files"]) == told["records"] == len(wanted)
    assert "records in" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["t", "--from", "7"], "an offset applies to one partition"),
        (["t", "t/1"], "name either topics or partitions"),
        (["t", "--from", "-5"], "--from"),
        (["t", "--from", "end"], "nothing to export between these positions"),
        (["nope"], "the partition is not in the bucket"),
        (["t", "--spark", "local[1]", "--conf", "a=b"], "spark.NAME=VALUE"),
    ],
)
def test_invalid_backfill_is_refused_before_spark_starts(file_bucket, target, words, said, monkeypatch, capsys):
    fill(file_bucket, segments=1)
    monkeypatch.setattr("tiered.spark.session.launched_session", lambda *_: pytest.fail("Spark was started"))
    command = ["backfill", *words, "--remote", file_bucket.url, "--to", f"file://{target}"]
    assert invoke(command) in (1, 2)
    assert said in capsys.readouterr().err


def flipped(store, key, at):
    body = bytearray(store.get(key))
    body[at] ^= 1
    store.put(key, bytes(body))


@pytest.mark.damages_bucket
def test_deep_scrub_in_tasks_equals_that_of_one_process(spark, file_bucket, tmp_path):
    fill(file_bucket)
    store = open_store(file_bucket.url)
    assert not scrub(spark, file_bucket.url, ["t"], task_bytes=500).of("corrupt")
    keys = sorted(info.key for info in store.list("") if info.key.endswith(".log"))
    flipped(store, keys[1], 70)
    flipped(store, keys[6], 90)
    plan = plan_scrub(store, list_partitions(store), deep=True)
    plain = report_of(store, plan, run_scrub(store, plan), started_ms=0, now_ms=0)
    told = []
    found = scrub(spark, file_bucket.url, task_bytes=500, progress=told.append)
    assert found.findings == plain.findings
    assert {each.object for each in found.of("corrupt")} == {
        key.partition("/")[2].partition("/")[2] for key in (keys[1], keys[6])
    }
    assert sum(told) == found.read_bytes == plain.read_bytes
    store.close()


def test_deep_scrub_continues_after_a_stop(spark, file_bucket, tmp_path):
    fill(file_bucket)
    path = str(tmp_path / "state.jsonl")
    waves = []

    def stop():
        waves.append(1)
        return len(waves) > 2

    url = file_bucket.store.url
    with ScrubState(DiskStorage(), path, url, now_ms=1, resume=False) as state:
        assert scrub(spark, file_bucket.url, state=state, task_bytes=1, wave_tasks=2, should_stop=stop) is None
    told = []
    with ScrubState(DiskStorage(), path, url, now_ms=2, resume=True) as state:
        report = scrub(spark, file_bucket.url, state=state, task_bytes=1, wave_tasks=2, progress=told.append)
    assert report is not None
    assert report.started_ms == 1
    assert len(told) == 8
    with pytest.raises(NotFound, match="not in the bucket"):
        scrub(spark, file_bucket.url, ["nope"])
