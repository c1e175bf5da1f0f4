"""Writes in their real environment: on executors in other processes, and concurrently with a running manager."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from bucket_truth import assert_sound

from local.errors import LogError
from local.format.record import Record
from local.names import TopicPartition
from remote.store.open_store import open_store
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.spark import compact

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
SETTINGS = {
    "segment.bytes": "3000",
    "index.interval.bytes": "300",
    "append.batch.bytes": "500",
    "min.cleanable.dirty.ratio": "0",
}
TOPIC = {
    "cleanup.policy": "compact,delete",
    "remote.storage.enable": "true",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "remote.log.delete.grace.ms": "1h",
}


def read(reader, name):
    start, end = reader.offsets(name)
    return list(reader.records(name, start, end)) if start < end else []


@pytest.mark.deep("a cluster of two executors")
def test_two_executors_ingest_every_row_once_and_compact_to_the_newest(file_bucket):
    words = [sys.executable, str(Path(__file__).with_name("cluster_write_job.py")), file_bucket.url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {"executors": 2, "before": 2000, "after": 100}
    log = RemoteLog(file_bucket.store)
    for partition in (0, 1):
        name = TopicPartition("t", partition)
        found = read(log.reader(), name)
        assert [int(record.value) for record in found] == list(range(1900 + partition, 2000, 2))
        assert [int(record.key) for record in found] == list(range(partition, 100, 2))
        assert [note.job_id for note in log.manifest(name).jobs] == ["in", "nightly"]
    assert_sound(file_bucket.store)


class Busy(threading.Thread):
    """A manager that appends, rolls, uploads and expires until stopped. `sent` are its records by offset."""

    def __init__(self, manager):
        super().__init__(name="busy")
        self.manager, self.sent, self.error = manager, {}, None
        self.rounds, self.has_begun, self.should_stop = 0, threading.Event(), threading.Event()

    def run(self):
        try:
            while not self.should_stop.is_set():
                self.round()
                manifest = self.manager.partitions.find(NAME).manifest()
                if manifest is not None and manifest.segment_count >= 5:
                    self.has_begun.set()
        except LogError as error:
            self.error = error
        finally:
            self.has_begun.set()

    def round(self):
        # keys repeat for five rounds only, so that the newest record of a key is the one left by a compaction
        at = len(self.sent)
        records = [Record(b"k%d-%d" % (n // 500, n % 20), b"value %d" % n, NOW + n) for n in range(at, at + 100)]
        self.manager.append("t", records, 0, now_ms=NOW)
        self.sent.update(zip(range(at, at + 100), records, strict=True))
        self.manager.partitions.roll("t", now_ms=NOW)
        self.rounds += 1
        if self.rounds % 5 == 0:
            self.manager.maintenance.delete_records({NAME: at // 2}, now_ms=NOW)
        for _ in range(3):
            self.manager.tick(NOW)


def test_compaction_is_correct_concurrently_with_a_busy_manager(spark, file_bucket, tmp_path_factory):
    config = Config.load(None, SETTINGS, {}, local_dir=str(tmp_path_factory.mktemp("log")))
    with LogManager.open(config, now_ms=NOW, store=open_store(file_bucket.url)) as manager:
        manager.topics.create("t", 1, TOPIC, now_ms=NOW)
        busy = Busy(manager)
        busy.start()
        assert busy.has_begun.wait(120), "the manager must have uploaded segments"
        passed, raced = [], 0
        while len(passed) < 20 and raced < 3 and busy.error is None:
            rounds = busy.rounds
            (outcome,) = compact(spark, file_bucket.url, ["t"], group_bytes=6000, now_ms=NOW)
            # nothing is committed only if all planned entries expired
            if not outcome.rows_before and not outcome.given_up:
                assert 0 < outcome.upto_offset <= RemoteLog(file_bucket.store).reader().offsets(NAME)[0]
            passed.append((busy.rounds - rounds, outcome.rows_before))
            raced += all(passed[-1])
        busy.should_stop.set()
        busy.join()
        assert busy.error is None
        assert raced == 3, f"nothing raced: {passed}"
        while manager.tick(NOW):
            pass
        assert manager.problems == {}
        start, end = manager.reader().offsets(NAME)
        assert (start > 0, end) == (True, len(busy.sent))
        newest = {record.key: offset for offset, record in busy.sent.items()}
        ends = RemoteLog(file_bucket.store).reader().offsets(NAME)[1]
        for reader, upto in ((manager.reader(), end), (RemoteLog(file_bucket.store).reader(), ends)):
            found = {record.offset: record for record in read(reader, NAME)}
            wanted = {at for at in newest.values() if start <= at < upto}
            assert wanted <= found.keys()
            for offset, record in found.items():
                assert (record.key, record.value) == (busy.sent[offset].key, busy.sent[offset].value)
    assert_sound(file_bucket.store)
