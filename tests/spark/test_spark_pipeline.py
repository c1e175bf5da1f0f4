"""Pipeline on Spark: equal to one process, under deaths of tasks and driver, and with a concurrent manager."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from bucket_truth import assert_sound
from pipeline_world import DAY, NOW, FleetWorld
from run_profile import deep_only

from local.errors import LogError, OffsetOutOfRange
from local.names import TopicPartition
from local.storage import DiskStorage
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.pipeline import Fleet, Stage, State, work_node
from tiered.jobs.pipeline_job import PipelineState, plan_pipeline, run_pipeline
from tiered.jobs.runner import Here
from tiered.spark.jobs.runner import SparkRunner

pytestmark = pytest.mark.spark

_numbers = itertools.count()


def on_spark(spark, world, small_bytes=1 << 28, fleet=None, **more):
    job_id = more["state"].run_id if "state" in more else f"job-{next(_numbers)}"
    runner = SparkRunner(spark, job_id=job_id, wave_tasks=3)
    found = run_pipeline(
        fleet or world.fleet(), runner, job_id=job_id, now_ms=lambda: NOW, small_bytes=small_bytes, **more
    )
    assert not [unit for unit in found.units if unit.state is State.FAILED], found.units
    return found


def facts_of(url):
    """Entries of the bucket without random ids."""
    store = open_store(url)
    found = []
    for name in list_partitions(store):
        log = MetadataLog(store, name.prefix)
        manifest = log.refresh()
        for row in log.index(manifest).entries():
            facts = (row.base_offset, row.next_offset, row.record_count, row.content_crc32c, row.cleaned_through)
            found.append((name.topic, name.partition, manifest.log_start_offset, *facts))
    store.close()
    return found


def sound(world):
    store = open_store(world.url)
    assert_sound(store)
    store.close()


def filled(home, nodes=2, **more):
    world = FleetWorld(home, nodes, **more)
    for number in range(nodes):
        world.fill(number)
    return world


@pytest.mark.parametrize("small_bytes", [1 << 28, 0], ids=["whole", "in groups"])
def test_spark_pipeline_equals_that_of_one_process(spark, tmp_path, small_bytes):
    plain, world = filled(tmp_path / "plain"), filled(tmp_path / "spark")
    here = run_pipeline(plain.fleet(), Here(), job_id="nightly", now_ms=lambda: NOW)
    runner = SparkRunner(spark, job_id="plan")
    planned = plan_pipeline(world.fleet(), runner, now_ms=NOW)
    assert [unit.state for unit in planned if unit.stage is Stage.CLEAN_AND_TIER] == [State.DUE] * 2
    told = []
    result = on_spark(spark, world, small_bytes, progress=lambda *words: told.append(words))
    assert facts_of(world.url) == facts_of(plain.url)
    assert facts_of(world.url)
    known = [(unit.stage, unit.topic, unit.partition, unit.state, unit.rows_after) for unit in result.units]
    assert sorted(known, key=str) == sorted(
        ((unit.stage, unit.topic, unit.partition, unit.state, unit.rows_after) for unit in here.units), key=str
    )
    assert told[-1][0] is Stage.MERGE
    assert told[-1][1] == told[-1][2] > 0
    world.check()
    sound(world)


DYING = [*deep_only((3, "local-cluster[2,1,600]")), (9, "local[2,4]")]


@pytest.mark.deep("tasks and drivers that die")
@pytest.mark.parametrize(("notes", "master"), DYING)
def test_pipeline_with_dying_tasks_and_driver_is_completed_by_a_resume(spark, tmp_path, notes, master):
    world, path = filled(tmp_path / "fleet"), str(tmp_path / "state.jsonl")
    for number in range(2):  # the bucket stages have work of their own
        with world.manager(number) as manager:
            while manager.tick(NOW - 20 * DAY):
                pass
        world.fill(number, rounds=2)
    script = Path(__file__).with_name("dying_pipeline_job.py")
    words = [sys.executable, script, world.url, path, str(notes), master, *world.nodes]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    with PipelineState(DiskStorage(), path, world.url, "nightly", now_ms=NOW) as state:
        over = [node for node in world.nodes if state.is_over(Stage.CLEAN_AND_TIER, node)]
        assert over
        result = on_spark(spark, world, state=state)
    assert result.is_complete
    assert not [unit for unit in result.units if unit.unit in over]
    world.check()
    sound(world)


def raced(seen):
    """Whether three pipelines ran during maintenance of the manager and did all work for one of its topics."""
    stages = {unit.stage for _, result in seen for unit in result.units if (unit.topic or "").endswith("-0")}
    return sum(bool(count) for count, _ in seen) >= 3 and stages >= {Stage.COMPACTION, Stage.MERGE}


def test_running_manager_continues_during_pipelines_of_its_bucket(spark, tmp_path):
    """A pipeline and a manager work on one bucket:

    1. The manager of node 0 appends, uploads and serves readers.
    2. The pipeline skips the directory of node 0 and processes node 1.
    3. The pipeline expires, compacts and merges the uploads of node 0.
    """
    world = filled(tmp_path / "fleet")
    busy, stop, errors, rounds = world.manager(0, NOW), threading.Event(), [], [0]
    assert work_node(world.fleet(), world.nodes[0], now_ms=NOW).state is State.LEFT_ALONE

    def work():
        try:
            while not stop.is_set():
                for topic in ("events-0", "prices-0"):
                    world.append(busy, topic, 0, 40, NOW)
                for _ in range(2):
                    busy.tick(NOW)
                start, _ = busy.reader().offsets(TopicPartition("events-0", 0))
                with suppress(OffsetOutOfRange):  # a pipeline may have just expired the first record
                    assert next(iter(busy.reader().records(TopicPartition("events-0", 0), start))).offset >= start
                rounds[0] += 1
        except (LogError, AssertionError, StopIteration) as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    seen = []
    try:
        while len(seen) < 3 or (len(seen) < 12 and not errors and not raced(seen)):
            before = rounds[0]
            result = on_spark(spark, world, small_bytes=0 if len(seen) == 1 else 1 << 28)
            seen.append((rounds[0] - before, result))
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert raced(seen), "at least three pipelines must have raced with the manager"
    # no unit if the manager had just done all work
    nodes = [unit for _, result in seen for unit in result.units if unit.unit == world.nodes[0]]
    assert {unit.state for unit in nodes} <= {State.LEFT_ALONE}
    while busy.tick(NOW):
        pass
    assert busy.problems == {}
    assert busy.reader().offsets(TopicPartition("prices-0", 0))[1] == len(world.sent[TopicPartition("prices-0", 0)])
    busy.partitions.roll("events-0", now_ms=NOW)
    busy.partitions.roll("prices-0", now_ms=NOW)
    while busy.tick(NOW):
        pass
    busy.close()
    # The dirty ratio is a setting of the nodes, not of the topic, so the bucket does not have it.
    on_spark(spark, world, fleet=replace(world.fleet(), nodes=(), overrides={"min.cleanable.dirty.ratio": "0"}))
    world.check()
    sound(world)


@pytest.mark.deep("Hadoop and a Spark application")
@pytest.mark.hdfs
def test_pipeline_of_a_fleet_on_hdfs(spark, hdfs_server, tmp_path):
    from hdfs_native import Client

    Client(hdfs_server.url).mkdirs("/pipeline/logs", create_parent=True)
    world = filled(tmp_path / "fleet", url=f"{hdfs_server.url}/pipeline/logs")
    result = on_spark(spark, world)
    assert [unit.state for unit in result.units if unit.stage is Stage.CLEAN_AND_TIER] == [State.DONE] * 2
    world.check()
    sound(world)


def test_deletion_stage_frees_objects_and_manifests_of_ingested_topics(spark, tmp_path):
    """The deletion stage after retention, in numbered steps:

    1. Retention unlinks objects.
    2. After the grace period the deletion stage frees objects and collects manifests, in tasks.
    3. A topic whose ingest may still run is skipped. A pin holds its objects.
    """
    from local.records.record_columns import of_arrow
    from remote.gc.pins import pin_newest, release
    from remote.keys import MANIFESTS
    from remote.manifest.commit_protocol import MetadataLog
    from remote.manifest.manifest_changes import set_properties
    from tiered.jobs.ingest import commit_ingest, plan_ingest
    from tiered.jobs.ingest_task import IngestTask

    (tmp_path / "bucket").mkdir()
    fleet = Fleet(bucket=Bucket(url=f"file://{tmp_path}/bucket"))
    store, settings = open_store(fleet.bucket.url), {"cleanup.policy": "delete", "retention.ms": str(DAY)}
    names = {}
    for topic in ("freed", "pinned", "at-work"):
        more = {"settings": {**settings, "segment.bytes": "2048", "append.batch.bytes": "512"}, "job_id": topic}
        plan = plan_ingest(store, topic, now_ms=NOW - 20 * DAY, create_partitions=1, **more)
        names[topic] = plan.targets[0].name
        (tmp_path / topic).mkdir()
        task = IngestTask(store, plan, 0, storage=DiskStorage(), directory=str(tmp_path / topic))
        for columns in of_arrow(pa.table({"value": [b"%d" % at * 30 for at in range(90)]}), now_ms=NOW - 20 * DAY):
            task.add(0, columns)
        commit_ingest(store, plan, [task.end()], now_ms=NOW - 20 * DAY)
    log = MetadataLog(store, names["freed"].prefix)
    log.join()
    for number in range(410):
        log.commit(set_properties({**settings, "segment.ms": str(DAY + number)}), NOW - 20 * DAY)

    def run(now_ms):
        found = run_pipeline(
            fleet, SparkRunner(spark, job_id="nightly"), job_id=f"job-{next(_numbers)}", now_ms=lambda: now_ms
        )
        return {unit.topic: unit for unit in found.units if unit.stage is Stage.DELETION}

    def keys(topic, below):
        return [info.key for info in store.list(names[topic].prefix + below)]

    pin, _ = pin_newest(
        store,
        names["pinned"].prefix,
        MetadataLog(store, names["pinned"].prefix),
        now_ms=NOW - 20 * DAY,
        expires_ms=NOW + 9 * DAY,
        holder="reader",
    )
    first = run(NOW - 5 * DAY)
    assert {topic: unit.why for topic, unit in first.items()} == {"freed": "213 old manifests"}, (
        "200 old manifests must stay"
    )
    assert 200 < len(keys("freed", MANIFESTS)) < 204, "the manifests of the later stages must be added"
    plan_ingest(store, "at-work", now_ms=NOW - DAY, job_id="another", settings=settings)
    before = {topic: keys(topic, "data/") for topic in names}
    assert all(before.values())
    done = run(NOW)
    assert {topic: unit.state for topic, unit in done.items()} == {
        "freed": State.DONE,
        "pinned": State.LEFT_ALONE,
        "at-work": State.LEFT_ALONE,
    }
    assert "pin" in done["pinned"].why
    assert "has taken over the partition and not committed" in done["at-work"].why
    assert keys("freed", "data/") == []
    assert done["freed"].why == f"{len(before['freed'])} objects"
    assert {topic: keys(topic, "data/") for topic in ("pinned", "at-work")} == {
        topic: before[topic] for topic in ("pinned", "at-work")
    }
    release(store, names["pinned"].prefix, [pin])
    assert run(NOW)["pinned"].state is State.DONE
    assert keys("pinned", "data/") == []
    assert_sound(store)
    store.close()


class Unstopped:
    """The shared Spark session, with a `stop` that does nothing."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


def test_pipeline_command_plans_runs_and_reports_skipped_nodes(spark, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tiered.spark.session.launched_session", lambda *words: Unstopped(spark))
    monkeypatch.setattr("tiered.cli.bucket.pipeline.now_ms", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    world = filled(tmp_path / "fleet")
    words = [*world.nodes, "--remote", world.url, "-o", "json"]

    def told(*more, code=0):
        assert invoke(["pipeline", *more]) == code
        out = capfd.readouterr()
        return json.loads(out.out), out.err

    found, said = told("plan", *words)
    assert [(unit["state"], unit["bytes_after"]) for unit in found["units"]] == [("due", None)] * 2
    assert "nothing changed" in said
    assert invoke(["pipeline", "run", *words]) == 2
    assert "add --yes" in capfd.readouterr().err
    assert invoke(["pipeline", "run", *words, "--dry-run", "--spark", "local[2]"]) == 0
    assert facts_of(world.url) == []
    capfd.readouterr()
    with world.manager(0):
        found, said = told("run", *words, "--yes", "--resume", "mine")
    assert (found["job"], found["is_complete"]) == ("mine", True)
    assert "! clean and tier" in said
    assert "another manager has the log directory open" in said
    assert "clean and tier: 2 of 2" in said
    assert not (tmp_path / "mine.jsonl").exists()
    found, _ = told("run", *words, "--yes", "--spark", "none", "--topics", "events-0,prices-0")
    assert {unit["topic"] for unit in found["units"]} <= {None, "events-0", "prices-0"}
    world.check()
    for wrong in (["--topics", "a/0"], ["--target", "much"], ["--resume", "a/b"], ["--remote", "nowhere://"]):
        assert invoke(["pipeline", "run", *words, "--yes", *wrong]) == 2
