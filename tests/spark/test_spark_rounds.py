"""A Spark compaction with more segments than one plan covers: it continues by itself, and after a stop."""

from __future__ import annotations

import json

import pytest
from bucket_samples import NOW_MS

from local.names import TopicPartition
from local.records.batch import encode_batch
from tiered.cli.main import invoke
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.jobs.runner import compact

pytestmark = pytest.mark.spark

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "65536"}
SEGMENTS, KEYS = (9, 3), 5


def fill(bucket):
    for partition, count in enumerate(SEGMENTS):
        for number in range(count):
            base = number * 10
            records = [(b"k%d" % (at % KEYS), b"v%d" % at, NOW_MS + at, ()) for at in range(base, base + 10)]
            bucket.add("t", partition, [encode_batch(records, base_offset=base)])


def test_compaction_runs_several_plans_and_continues_after_a_stop(spark, file_bucket):
    fill(file_bucket)
    job = {"settings": SETTINGS, "job_id": "nightly", "rows_max": 4, "now_ms": NOW_MS}
    first = compact(spark, file_bucket.url, ["t"], should_stop=lambda: True, **job)
    assert [(each.is_cut, each.upto_offset) for each in first] == [(True, 40), (False, 30)]
    rest = compact(spark, file_bucket.url, ["t"], **job)
    assert [(each.is_cut, each.was_done) for each in rest] == [(False, False), (False, True)]
    log = RemoteLog(file_bucket.store)
    for partition, count in enumerate(SEGMENTS):
        name = TopicPartition("t", partition)
        found = [record.offset for record in log.reader().records(name, 0)]
        assert found == list(range(count * 10 - KEYS, count * 10))
        manifest = log.manifest(name)
        assert [(note.job_id, note.turn) for note in manifest.jobs] == [("nightly", 0)]
        assert {row.cleaned_through for row in manifest.segments} == {count * 10}
    log.close()


class Unstopped:
    """The shared Spark session, with a `stop` that does nothing."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


def test_compact_command_runs_in_tasks_and_finds_a_finished_job_done(spark, file_bucket, monkeypatch, capfd):
    monkeypatch.setattr("tiered.spark.session.launched_session", lambda *words: Unstopped(spark))
    fill(file_bucket)
    words = ["-X", "cleanup.policy=compact", "compact", "t", "--remote", file_bucket.url, "--spark", "local[2]"]
    for was_done in (False, True):
        assert invoke([*words, "--resume", "nightly", "-o", "json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert told["job"] == "nightly"
        assert [each["was_done"] for each in told["partitions"]] == [was_done] * 2
        if not was_done:
            assert [each["records_after"] for each in told["partitions"]] == [KEYS] * 2
    assert invoke([*words, "--roll"]) == 2
