"""Compaction as a Spark job: equal to the same passes in one process, and to a dictionary of the newest records."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bucket_samples import NOW_MS, SampleBucket
from bucket_truth import assert_sound

from local.errors import InvalidRequest, NotFound
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.storage import DiskStorage
from remote.check.partition_check import ObjectKind
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.jobs.compaction_passes import compact_partition
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.jobs.runner import compact

pytestmark = pytest.mark.spark

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "4096", "delete.retention.ms": "1000"}
HOUR = 3_600_000


def fill(bucket, topic="t", partitions=3, seed=7):
    """Partitions of segments of random size: gaps, tombstones, segments of one record, batches of all codecs."""
    rng = random.Random(seed)
    for partition in range(partitions):
        offset = 0
        for _ in range(rng.randint(3, 7)):
            batches = []
            for _ in range(rng.choice([1, 1, 4, 8])):
                count = rng.choice([1, 5, 20])
                records = []
                for at in range(offset, offset + count):
                    key = b"key-%d" % rng.randrange(40)
                    value = None if rng.random() < 0.2 else b"%d-%d-" % (partition, at) + bytes(rng.randrange(60))
                    records.append((key, value, NOW_MS + at, ()))
                batches.append(encode_batch(records, base_offset=offset, codec=rng.choice([0, 0, 1, 4])))
                offset += count + rng.choice([0, 0, 3])
            bucket.add(topic, partition, batches, next_offset=offset)
    return bucket


def newest(rows, topic="t"):
    """(partition, key) -> the newest (offset, value)."""
    found = {}
    for row in rows:
        if row.topic == topic:
            found[row.partition, row.key] = row.offset, row.value
    return found


def there(store, topic="t"):
    """The records that readers of the bucket get, by partition."""
    log, found = RemoteLog(store), []
    for partition in (each.partition for each in list_partitions(store) if each.topic == topic):
        name = TopicPartition(topic, partition)
        start, end = log.reader().offsets(name)
        found += [(partition, r.key, r.offset, r.value) for r in log.reader().records(name, start) if start < end]
    return found


@pytest.mark.parametrize("group_bytes", [1, 3000, 1 << 28])
def test_compaction_leaves_exactly_the_newest_record_of_each_key(spark, file_bucket, group_bytes):
    fill(file_bucket)
    outcomes = compact(
        spark, file_bucket.url, ["t"], settings=SETTINGS, group_bytes=group_bytes, now_ms=NOW_MS, buffer_bytes=600
    )
    wanted = newest(file_bucket.rows)
    assert sorted(there(file_bucket.store)) == sorted((p, key, *rest) for (p, key), rest in wanted.items())
    assert sum(each.records_before for each in outcomes) == len(file_bucket.rows)
    assert sum(each.records_after for each in outcomes) == len(wanted)
    assert_sound(file_bucket.store)


def test_spark_compaction_equals_that_of_one_process(spark, file_bucket, tmp_path_factory):
    """Three jobs, so that tombstones reach their delete horizon and are removed."""
    other = fill(SampleBucket(MemoryStore()))
    fill(file_bucket)
    for number in range(3):
        now_ms = NOW_MS + number * HOUR
        compact(spark, file_bucket.url, ["t"], settings=SETTINGS, group_bytes=3000, now_ms=now_ms)
        for name in list_partitions(other.store):
            directory = str(tmp_path_factory.mktemp("job"))
            more = {"storage": DiskStorage(), "directory": directory, "group_bytes": 3000}
            compact_partition(other.store, name, now_ms=now_ms, settings=SETTINGS, **more)
        assert there(file_bucket.store) == there(other.store)
        assert entries_of(file_bucket.store) == entries_of(other.store)
    assert not any(value is None for *_, value in there(file_bucket.store))
    assert {key for _, key, *_ in there(file_bucket.store)} != set()


def test_compaction_of_many_segments_and_pages_sends_only_offsets_to_its_tasks(spark, file_bucket, monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=40, page_rows_min=10, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    for base in range(0, 1300, 10):
        records = [(b"key-%d" % (at % 7), b"%d" % at, NOW_MS + at, ()) for at in range(base, base + 10)]
        file_bucket.add("t", 0, [encode_batch(records, base_offset=base)])
    assert len(file_bucket.log("t", 0)[1].refresh().pages) > 1
    rows, create = [], type(spark).createDataFrame
    monkeypatch.setattr(
        type(spark), "createDataFrame", lambda self, work, *of: rows.extend(work) or create(self, work, *of)
    )
    (outcome,) = compact(spark, file_bucket.url, ["t"], settings=SETTINGS, group_bytes=9000, now_ms=NOW_MS)
    assert (outcome.rows_before, outcome.given_up) == (130, 0)
    assert len(rows) > 3
    assert max(len(pickle.dumps(row)) for row in rows) <= 200
    assert [(key, offset) for _, key, offset, _ in there(file_bucket.store)] == [
        (b"key-%d" % (at % 7), at) for at in range(1293, 1300)
    ]
    assert_sound(file_bucket.store)


def entries_of(store):
    names = ("base_offset", "next_offset", "size_bytes", "record_count", "cleaned_through", "content_crc32c")
    return [
        tuple(getattr(row, each) for each in names)
        for name in list_partitions(store)
        for row in RemoteLog(store).manifest(name.topic_partition).segments
    ]


def test_compaction_with_compression_over_a_real_s3_api(spark, s3_bucket):
    fill(s3_bucket, partitions=1)
    compact(
        spark,
        s3_bucket.url,
        ["t"],
        store_options=s3_bucket.options,
        settings={**SETTINGS, "remote.compression": "zstd"},
        now_ms=NOW_MS,
        job_id="nightly",
    )
    wanted = newest(s3_bucket.rows)
    assert {(p, key): rest for p, key, *rest in there(s3_bucket.store)} == {k: list(v) for k, v in wanted.items()}
    assert_sound(s3_bucket.store)
    again = compact(spark, s3_bucket.url, ["t"], store_options=s3_bucket.options, settings=SETTINGS, job_id="nightly")
    assert [each.was_done for each in again] == [True]


def test_compaction_covers_only_named_partitions_of_compacted_topics(spark, file_bucket):
    fill(file_bucket)
    chosen = [TopicPartition("t", 1)]
    (outcome,) = compact(spark, file_bucket.url, ["t"], partitions=chosen, settings=SETTINGS, now_ms=NOW_MS)
    assert outcome.name.partition == 1
    with pytest.raises(InvalidRequest, match="does not include compact"):
        compact(spark, file_bucket.url, ["t"])
    for wrong in ({"topics": ["u"]}, {"topics": ["t"], "partitions": [TopicPartition("t", 9)]}):
        with pytest.raises(NotFound):
            compact(spark, file_bucket.url, settings=SETTINGS, **wrong)


@pytest.mark.deep("tasks and drivers that die")
def test_compaction_with_dying_tasks_and_driver_is_completed_by_a_second_run(spark, file_bucket):
    fill(file_bucket, partitions=2)
    script = Path(__file__).with_name("faulty_job.py")
    words = [sys.executable, script, file_bucket.url, "1"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    log = RemoteLog(file_bucket.store)
    assert [len(log.manifest(TopicPartition("t", partition)).jobs) for partition in (0, 1)] == [1, 0]
    kinds = [kind for report in assert_sound(file_bucket.store) for kind in report.objects.values()]
    assert ObjectKind.IN_FLIGHT in kinds, "a failed attempt must have left an object, or the test proves nothing"
    outcomes = compact(spark, file_bucket.url, ["t"], settings=SETTINGS, group_bytes=3000, job_id="nightly")
    assert [each.was_done for each in outcomes] == [True, False]
    wanted = newest(file_bucket.rows)
    assert sorted(there(file_bucket.store)) == sorted((p, key, *rest) for (p, key), rest in wanted.items())
    assert_sound(file_bucket.store)
