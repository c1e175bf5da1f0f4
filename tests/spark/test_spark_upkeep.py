"""Merge, recode, copy and orphan deletion in Spark tasks: the result equals that of one process."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bucket_samples import run_copy
from bucket_truth import assert_sound
from care_world import KEYS, NOW, TOPIC_ID, all_kinds, named
from rewrite_flows import small_segments

from local.errors import Corrupt, Fenced
from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.sealing import keyed
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.jobs import orphan_deletion as here
from tiered.jobs.bucket_copying import plan_copy
from tiered.jobs.job_bucket import Bucket, OpenBucket
from tiered.jobs.key_search import KeyDigests, scan_keys, survey
from tiered.jobs.redacting import plan_redaction, run_redaction
from tiered.jobs.rewriting import plan_merge, plan_recode, run_rewrite
from tiered.jobs.runner import Here
from tiered.read.bucket_reader import RemoteLog
from tiered.spark import copy, rewrite
from tiered.spark.jobs.runner import SparkRunner, delete_garbage, list_garbage

pytestmark = pytest.mark.spark

SMALL = {"task_bytes": 1500, "now_ms": lambda: NOW}
FACTS = ("base_offset", "next_offset", "size_bytes", "record_count", "cleaned_through", "content_crc32c",
         "codec", "key_id", "epochs", "made_by")  # fmt: skip


@pytest.fixture
def pour(tmp_path):
    """Write the objects of an in-memory bucket to a bucket on disk, with its keys in a file that tasks can read."""
    (tmp_path / "keys").write_text("".join(f"{name} {_key(name)}\n" for name in "ab"))
    (tmp_path / "keys").chmod(0o600)
    opened = []

    def pour(world, name="bucket"):
        (tmp_path / name).mkdir()
        url = f"file://{tmp_path}/{name}"
        store = keyed(open_store(url), KEYS)
        opened.append(store)
        for info in world.store.list("") if world is not None else ():
            store.put(info.key, world.store.get(info.key))
        return Bucket(url=url, key_ring=str(tmp_path / "keys")), store

    yield pour
    for store in opened:
        store.close()


def _key(name):
    return base64.b64encode(bytes(range(32)) if name == "a" else bytes(range(32, 64))).decode()


def entries_of(store):
    found = []
    for name in list_partitions(store):
        log = MetadataLog(store, name.prefix)
        rows = log.index(log.refresh()).entries()
        found += [(name.topic, *(getattr(row, field) for field in FACTS)) for row in rows]
    return found


def records_of(store):
    found = []
    with RemoteLog(store, keys=KEYS) as bucket:
        reader = bucket.reader()
        for name in list_partitions(store):
            partition = TopicPartition(name.topic, name.partition)
            start, end = reader.offsets(partition)
            for each in reader.records(partition, start) if start < end else ():
                found.append((name.topic, each.offset, each.key, each.value, each.timestamp_ms))
    return found


PLANNERS = {
    "merge": lambda store, name: plan_merge(store, name, now_ms=NOW, target_bytes=3000),
    "recode": lambda store, name: plan_recode(store, name, now_ms=NOW, codec="zstd", key_id="b"),
}


@pytest.mark.parametrize("kind", sorted(PLANNERS))
def test_rewrite_in_tasks_equals_the_rewrite_of_one_process(spark, pour, kind):
    world = all_kinds() if kind == "recode" else small_segments("both", 12, paged=True)
    plain = world.copied().store
    bucket, store = pour(world)
    before = records_of(store)
    for name in list_partitions(plain):
        run_rewrite(plain, PLANNERS[kind](plain, name), now_ms=lambda: NOW, keys=KEYS)
    plans = [PLANNERS[kind](store, name) for name in list_partitions(store)]
    told = []
    context = spark.sparkContext
    outcomes = rewrite(spark, bucket, plans, wave_tasks=4, job_id=f"job-{kind}", progress=told.append, **SMALL)
    assert context.statusTracker().getJobIdsForGroup(f"job-{kind}"), (
        "the jobs of a rewrite must form one group in Spark's UI"
    )
    assert context.getLocalProperty("spark.jobGroup.id") is None, "the job group must be reset after the rewrite"
    assert entries_of(store) == entries_of(plain)
    assert records_of(store) == before
    assert all(each.is_complete for each in outcomes)
    assert sum(told) == sum(group.size_bytes for plan in plans for group in plan.groups) > 0
    assert not any(PLANNERS[kind](store, name).groups for name in list_partitions(store)) or kind == "merge"
    assert_sound(store, keys=KEYS)


def test_redaction_in_tasks_equals_the_redaction_of_one_process(spark, pour):
    world = all_kinds()
    plain = world.copied().store
    bucket, store = pour(world)
    before, keys = records_of(store), KeyDigests.of([b"key-3", b"key-5"])

    def redacted(executor, bucket, store):
        def scans():
            return scan_keys(executor, bucket, [survey(store, name) for name in list_partitions(store)], keys)

        plans = [plan_redaction(each, now_ms=NOW) for each in scans()]
        outcomes = run_redaction(executor, bucket, plans, keys, now_ms=lambda: NOW)
        assert all(each.is_complete for each in outcomes)
        assert not [finding for each in scans() for finding in each.findings()]
        return [(each.segments, each.records, each.record_bytes, len(each.due)) for each in plans]

    assert redacted(SparkRunner(spark, wave_tasks=4), bucket, store) == redacted(
        Here(), OpenBucket.of(plain, KEYS), plain
    )
    same = [
        [each for name, each in zip(("topic", *FACTS), row, strict=True) if name != "made_by"]
        for row in entries_of(store)
    ]
    assert same == [
        [each for name, each in zip(("topic", *FACTS), row, strict=True) if name != "made_by"]
        for row in entries_of(plain)
    ]
    assert records_of(store) == [each for each in before if each[2] not in (b"key-3", b"key-5")] != before
    assert_sound(store, keys=KEYS)


def test_stopped_rewrite_keeps_its_commits_and_continues(spark, pour):
    bucket, store = pour(small_segments("raw", 12))
    before, asked = records_of(store), []

    def stop():
        asked.append(1)
        return len(asked) > 2

    (plan,) = plans = [PLANNERS["recode"](store, named("t"))]
    (first,) = rewrite(spark, bucket, plans, wave_tasks=2, should_stop=stop, **{**SMALL, "task_bytes": 1})
    assert (first.groups, first.is_complete, len(plan.groups)) == (4, False, 12)
    assert records_of(store) == before
    (rest,) = plans = [PLANNERS["recode"](store, named("t"))]
    assert len(rest.groups) == 8, "committed groups must not be rewritten again"
    rewrite(spark, bucket, plans, **SMALL)
    assert {row[FACTS.index("key_id") + 1] for row in entries_of(store)} == {"b"}
    assert records_of(store) == before
    assert_sound(store, keys=KEYS)


@pytest.mark.damages_bucket
def test_failed_partitions_of_a_rewrite_are_reported_after_the_others(spark, pour):
    """One segment is damaged, one partition has a new writer since the plan, the entries of a third are rewritten."""
    bucket, store = pour(all_kinds())
    log = MetadataLog(store, named("raw").prefix)
    damaged = list(log.index(log.refresh()).entries())[2]
    key = named("raw").prefix + damaged.data_key
    body = bytearray(store.get(key))
    body[-1] ^= 1
    store.put(key, bytes(body))
    plans = [plan_recode(store, named(topic), now_ms=NOW, codec="zstd") for topic in ("raw", "encrypted", "viewed")]
    taken = MetadataLog(store, named("encrypted").prefix)
    taken.become_writer("another", NOW, topic="encrypted", topic_id=TOPIC_ID, partition=0)
    errors = {}
    outcomes = rewrite(spark, bucket, plans, wave_tasks=2, errors=errors, **{**SMALL, "task_bytes": 1})
    assert {number: type(error) for number, error in errors.items()} == {0: Corrupt, 1: Fenced}
    assert [each.is_complete for each in outcomes] == [False, False, True]
    codecs = {row[0]: set() for row in entries_of(store)}
    for row in entries_of(store):
        codecs[row[0]].add(row[FACTS.index("codec") + 1])
    assert (codecs["raw"], codecs["encrypted"], codecs["viewed"]) == ({"none", "zstd"}, {"none"}, {"zstd"})
    with pytest.raises(Corrupt):
        rewrite(spark, bucket, [plan_recode(store, named("raw"), now_ms=NOW, codec="zstd")], **SMALL)


def test_copy_in_tasks_equals_the_copy_of_one_process_and_catches_up(spark, pour):
    world = all_kinds()
    source, store = pour(world)
    target, to = pour(None, "copy")
    _, plain = pour(None, "plain")
    names = list_partitions(store)
    for name in names:
        run_copy(store, plain, plan_copy(store, plain, name, now_ms=NOW), now_ms=lambda: NOW, keys=KEYS)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 2

    plans = [plan_copy(store, to, name, now_ms=NOW) for name in names]
    first = copy(spark, source, target, plans, wave_tasks=6, should_stop=stop, **{**SMALL, "task_bytes": 1})
    assert not all(each.is_complete for each in first)
    plans = [plan_copy(store, to, name, now_ms=NOW) for name in names]
    assert 0 < sum(len(plan.entries) for plan in plans) < len(entries_of(store))
    outcomes = copy(spark, source, target, plans, **SMALL)
    assert [(each.is_complete, each.differences, each.behind) for each in outcomes] == [(True, (), 0)] * len(names)
    assert entries_of(to) == entries_of(plain) == entries_of(store)
    assert records_of(to) == records_of(store)
    assert_sound(to, keys=KEYS)


@pytest.mark.damages_bucket
def test_copy_commits_no_entry_after_a_failed_one_and_copies_other_partitions(spark, pour):
    source, store = pour(all_kinds())
    target, to = pour(None, "copy")
    log = MetadataLog(store, named("raw").prefix)
    rows = list(log.index(log.refresh()).entries())
    key = named("raw").prefix + rows[1].data_key
    store.put(key, store.get(key)[:-1] + b"?")
    plans = [plan_copy(store, to, named(topic), now_ms=NOW) for topic in ("raw", "encrypted")]
    plans[0] = replace(plans[0], at_once=False)
    with pytest.raises(Corrupt):
        copy(spark, source, target, plans, wave_tasks=1, **{**SMALL, "task_bytes": 1 << 20})
    there = entries_of(to)
    assert [row[1] for row in there if row[0] == "raw"] == [rows[0].base_offset]
    assert [row for row in there if row[0] == "encrypted"] == [
        row for row in entries_of(store) if row[0] == "encrypted"
    ]


def test_orphan_deletion_in_tasks_equals_that_of_one_process(spark, pour):
    world = all_kinds()
    for topic in ("raw", "both", "paged"):  # uploads that no manifest names, by a writer that lost its role
        for number in range(3):
            world.add(topic, all_kinds_bytes(number), 5000 + number * 10 + 10, commit=False)
        again = MetadataLog(world.store, named(topic).prefix)
        again.become_writer("next", NOW, topic=topic, topic_id=TOPIC_ID, partition=0)
    bucket, store = pour(world)
    names = list_partitions(store)
    later = NOW + 30 * 86_400_000
    plain = here.list_garbage(store, names, now_ms=later)
    told = []
    found = list_garbage(spark, bucket, names, now_ms=later, partitions_a_task=2, wave_tasks=2, progress=told.append)
    assert found == plain
    assert len(found.entries) >= 18
    assert told == [4, len(names)]
    short = list_garbage(spark, bucket, names, now_ms=later, entries_max=7, partitions_a_task=1)
    assert (short.entries, short.more) == (plain.entries[:7], len(plain.entries) - 7)
    assert list_garbage(spark, bucket, names, should_stop=lambda: True) is None
    before = records_of(store)
    assert delete_garbage(spark, bucket, found, now_ms=later, grace_ms=later).entries == (), (
        "all orphans must be too young"
    )
    done = delete_garbage(spark, bucket, found, now_ms=later)
    assert list(done.entries) == plain.entries
    assert here.list_garbage(store, names, now_ms=later).entries == []
    again = delete_garbage(spark, bucket, found, now_ms=later)
    assert (again.entries, again.named) == ((), len(found.entries))
    assert records_of(store) == before
    assert_sound(store, keys=KEYS)


def all_kinds_bytes(number):
    from care_world import batches

    return batches(5000 + number * 10, (4,))[0]


@pytest.mark.deep("tasks and drivers that die")
@pytest.mark.parametrize("master", ["local-cluster[2,1,600]"])
def test_rewrite_with_dying_tasks_and_driver_is_completed_by_another_run(spark, pour, master):
    world = all_kinds()
    bucket, store = pour(world)
    before = records_of(store)
    script = Path(__file__).with_name("faulty_upkeep_job.py")
    words = [sys.executable, script, bucket.url, bucket.key_ring, "2", master]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert records_of(store) == before
    left = [
        plan for name in list_partitions(store) if (plan := plan_recode(store, name, now_ms=NOW, codec="zstd")).groups
    ]
    assert len(left) > 0, "the driver must die before all partitions are done"
    assert any(row[FACTS.index("codec") + 1] == "zstd" and row[0] == "encrypted" for row in entries_of(store))
    outcomes = rewrite(spark, bucket, left, **SMALL)
    assert all(each.is_complete for each in outcomes)
    assert records_of(store) == before
    # uploads of the dead driver become orphans after the next takeover
    for topic in ("encrypted", "raw", "viewed", "paged"):
        MetadataLog(store, named(topic).prefix).become_writer("next", NOW, topic=topic, topic_id=TOPIC_ID, partition=0)
    later = NOW + 2000 * 86_400_000
    names = list_partitions(store)
    assert delete_garbage(spark, bucket, list_garbage(spark, bucket, names, now_ms=later), now_ms=later).entries
    assert records_of(store) == before
    assert_sound(store, keys=KEYS)


class Unstopped:
    """The shared Spark session, with a `stop` that does nothing."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


def test_bucket_commands_with_spark_run_in_tasks(spark, tmp_path, monkeypatch, capfd):
    asked = []

    def launched(name, master, conf):
        asked.append((name, master, dict(conf)))
        return Unstopped(spark)

    monkeypatch.setattr("tiered.spark.session.launched_session", launched)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512", "-X", "local.retention.ms=1"]
    on = ["--spark", "local[2]"]
    for words in (["topic", "create", "t", *settings], ["append", "t", "lines", "-K", ":"], ["run", "--once"]):
        assert invoke(words) == 0
    capfd.readouterr()

    def told(*words, code=0):
        assert invoke([*words, "-o", "json"]) == code
        return json.loads(capfd.readouterr().out)

    (planned,) = told("rewrite", "merge", "t", "--target", "20KiB", "--dry-run", *on)["partitions"]
    assert asked == [], "a plan must not start Spark"
    merge = ["rewrite", "merge", "t", "--target", "20KiB"]
    (done,) = told(*merge, "--yes", *on, "--conf", "spark.a=b")["partitions"]
    assert (done["rows_before"], done["rows_after"]) == (planned["segments"], planned["groups"])
    assert asked == [("tiered rewrite", "local[2]", {"spark.a": "b"})]
    (done,) = told("rewrite", "recode", "t", "--codec", "zstd", "--yes", *on)["partitions"]
    assert done["stored_after"] < done["stored_before"]
    (done,) = told("rewrite", "copy", "t", "--to", f"file://{tmp_path}/other", "--yes", *on)["partitions"]
    assert (done["differences"], done["is_complete"]) == (0, True)
    assert told("scrub", "--deep", *on)["findings"] == []
    assert told("scrub", "--deep", "--remote", f"file://{tmp_path}/other", *on)["findings"] == []
    assert not (tmp_path / "scrub-state.jsonl").exists()
    assert invoke(["run", "--once"]) == 0  # a new epoch: objects left by a killed job are orphans now
    capfd.readouterr()
    assert told("gc", *on)["orphans"] == []
    assert told("gc", "--delete", "--yes", *on)["deleted"] == []
    assert len(asked) == 7
    for wrong in (
        ["rewrite", "merge", "t", "--rate", "1MB/s", *on],
        ["scrub", *on],
        ["rewrite", "recode", "--codec", "none", "--yes", *on, "--conf", "x"],
    ):
        assert invoke(wrong) == 2
