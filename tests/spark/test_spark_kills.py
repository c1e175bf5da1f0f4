"""Spark drivers killed between two effects: the bucket stays sound, and a second run completes the job.

Compaction, rewrites and pipelines have such tests in their own modules. tests/crash/driver_kills.py covers every point.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bucket_truth import assert_sound

from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from tiered.read.bucket_reader import RemoteLog

pytestmark = pytest.mark.spark


@pytest.mark.deep("a driver for each kill")
def test_copy_whose_driver_is_killed_between_two_manifests_continues():
    script = Path(__file__).parents[1] / "crash" / "driver_kills.py"
    words = [sys.executable, script, "--flow", "copy", "--spark", "local[2]", "--point", "4:after"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(done.stdout)["copy"]["points"] == 1


@pytest.mark.deep("a driver for each kill")
def test_write_whose_driver_is_killed_between_partitions_is_completed_by_its_job(spark, file_bucket, tmp_path_factory):
    """Planning creates two manifests, committing two more. The driver dies before the fourth."""
    counter = tmp_path_factory.mktemp("counter") / "effects"
    script = Path(__file__).with_name("killed_ingest_job.py")
    words = [sys.executable, script, file_bucket.url, "3", counter]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert_sound(file_bucket.store)
    counts = [len(values_of(file_bucket, partition)) for partition in (0, 1)]
    assert counts == [200, 0], "the first partition must be complete, the second empty"
    rows = spark.range(0, 400, 1, 2).selectExpr("cast(id % 2 as int) as partition", "lpad(id, 200, ' ') as value")
    writer = rows.write.format("tiered").mode("append").options(topic="t", jobId="nightly")
    writer.save(file_bucket.url)
    for partition in (0, 1):
        wanted = {b"%200d" % number for number in range(partition, 400, 2)}
        found = values_of(file_bucket, partition)
        assert (len(found), set(found)) == (200, wanted), "each row must be written once"
    assert len(list_partitions(file_bucket.store)) == 2


def values_of(bucket, partition):
    log, name = RemoteLog(bucket.store), TopicPartition("t", partition)
    start, end = log.reader().offsets(name)
    return [record.value for record in log.reader().records(name, start)] if start < end else []
