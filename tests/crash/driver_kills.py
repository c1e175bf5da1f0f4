"""Kill the process of a job (SIGKILL) at each of its effects on a bucket, and run the job again.

    python tests/crash/driver_kills.py                              all flows and effects, before and after: a campaign
    python tests/crash/driver_kills.py --flow merge --step 5        every fifth point of one flow
    python tests/crash/driver_kills.py --spark local[2] --step 7    the jobs as Spark tasks; a JVM for each point

A point is a number and a side: effect N (a put, a create, an upload, a deletion) is the first one that does not happen,
or the last one that happens. The store is a real folder. For each point:

1. The prepared folder is copied again, and the job starts in a process of its own, which kills itself at the point.
2. Another process checks that the bucket is undamaged down to the last record, and that readers see an allowed state.
3. This process runs the job again. The job must finish with the same result as a run that was not killed.

On Spark only the effects of the driver's process are counted; tests/spark/faulty_job.py covers the effects of tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from bucket_samples import NOW_MS, SampleBucket, run_copy
from bucket_truth import assert_sound

from local.records.batch import encode_batch
from local.storage import DiskStorage
from remote.manifest.catalog import list_partitions
from remote.store import ObjectStore
from remote.store.file_store import FileStore
from remote.store.open_store import open_store
from tiered.read.bucket_reader import RemoteLog

EFFECTS = ("put", "put_if_absent", "upload", "delete")
DAY = 86_400_000
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "65536"}
Records = dict[tuple[str, int], dict[int, tuple[bytes | None, bytes | None]]]


class Count:
    """Counts the effects of this process; the process ends at the chosen effect."""

    def __init__(self) -> None:
        self._numbers = itertools.count()  # shared by threads
        self.at, self.is_after = -1, False

    @property
    def done(self) -> int:
        """The number of effects; call it once, at the end."""
        return next(self._numbers)

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            number = next(self._numbers)
            if number == self.at and not self.is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*words, **more)
            finally:  # also when the call is refused because the name exists
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call


COUNT = Count()


def count_effects() -> None:
    for verb in EFFECTS:
        setattr(FileStore, verb, COUNT.around(getattr(FileStore, verb)))


def records(url: str) -> Records:
    """The records that readers of a bucket see, by partition and offset."""
    found: Records = {}
    store = open_store(url)
    with RemoteLog(store) as log:
        reader = log.reader()
        for name in list_partitions(store):
            start, end = reader.offsets(name.topic_partition)
            entries = reader.records(name.topic_partition, start) if start < end else ()
            found[name.topic, name.partition] = {entry.offset: (entry.key, entry.value) for entry in entries}
    return found


# --- flows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flow:
    """A job under test. `prepare` and `run` get the folder; `run` also gets the Spark session or None.

    `buckets` are the buckets that must stay undamaged.
    """

    prepare: Callable[[Path], None]
    run: Callable[[Path, Any], None]
    may_show: Callable[[Records, Records, Records], bool]
    shows: str = "bucket"
    buckets: tuple[str, ...] = ("bucket",)


def _url(home: Path, name: str = "bucket") -> str:
    return f"file://{home}/{name}"


def _topic(home: Path) -> None:
    """Create two partitions of ten segments with six keys."""
    (home / "bucket").mkdir(parents=True)
    store = open_store(_url(home))
    bucket = SampleBucket(store)
    for partition in range(2):
        for number in range(10):
            base = number * 6
            entries = [(b"k%d" % (at % 6), b"%d/%d" % (partition, at), NOW_MS + at, ()) for at in range(base, base + 6)]
            bucket.add("t", partition, [encode_batch(entries, base_offset=base)])
    store.close()


def _compact(home: Path, spark: Any) -> None:
    """Compact in rounds of four segments, so that each partition gets manifests between the rounds."""
    if spark is not None:
        from tiered.spark.jobs.runner import compact

        more = {"group_bytes": 300, "rows_max": 4}
        compact(spark, _url(home), ["t"], settings=COMPACTED, job_id="nightly", now_ms=NOW_MS, **more)  # type: ignore[arg-type]
        return
    from tiered.jobs.compaction_passes import compact_partition

    store = open_store(_url(home))
    for name in list_partitions(store):
        with tempfile.TemporaryDirectory(dir=home) as directory:
            compact_partition(
                store,
                name,
                now_ms=NOW_MS,
                storage=DiskStorage(),
                directory=directory,
                job_id="nightly",
                settings=COMPACTED,
                group_bytes=300,
                rows_max=4,
            )
    store.close()


def _ingest(home: Path, spark: Any) -> None:
    """Ingest with two tasks into two partitions that already hold records."""
    import pyarrow as pa

    from local.records.record_columns import of_arrow
    from tiered.jobs.ingest import commit_ingest, plan_ingest
    from tiered.jobs.ingest_task import IngestTask

    del spark  # its sink commits in a process of its own: tests/spark/test_spark_kills.py
    store = open_store(_url(home))
    more = {"settings": {"segment.bytes": "2048", "append.batch.bytes": "512"}, "job_id": "load"}
    plan, parts = plan_ingest(store, "t", now_ms=NOW_MS, **more), []  # type: ignore[arg-type]
    for number in range(2):
        with tempfile.TemporaryDirectory(dir=home) as directory:
            task = IngestTask(store, plan, number, storage=DiskStorage(), directory=directory)
            for partition in range(2):
                values = [b"%d/%d/%d" % (number, partition, at) * 20 for at in range(40)]
                for columns in of_arrow(pa.table({"value": values}), now_ms=NOW_MS):
                    task.add(partition, columns)
            parts.append(task.end())
    commit_ingest(store, plan, parts, now_ms=NOW_MS)
    store.close()


def _rewritten(home: Path, spark: Any, planned: Callable[[ObjectStore, Any], Any]) -> None:
    from tiered.jobs.job_bucket import Bucket
    from tiered.jobs.rewriting import run_rewrite

    store = open_store(_url(home))
    plans = [planned(store, name) for name in list_partitions(store)]
    if spark is not None:
        from tiered.spark.jobs.runner import rewrite

        rewrite(spark, Bucket(url=_url(home)), plans, wave_tasks=2, task_bytes=1, now_ms=lambda: NOW_MS)
    else:
        for plan in plans:
            run_rewrite(store, plan, now_ms=lambda: NOW_MS, groups_a_manifest=2)
    store.close()


def _merge(home: Path, spark: Any) -> None:
    from tiered.jobs.rewriting import plan_merge

    _rewritten(home, spark, lambda store, name: plan_merge(store, name, now_ms=NOW_MS, target_bytes=600))


def _recode(home: Path, spark: Any) -> None:
    from tiered.jobs.rewriting import plan_recode

    _rewritten(home, spark, lambda store, name: plan_recode(store, name, now_ms=NOW_MS, codec="zstd"))


def _redact(home: Path, spark: Any) -> None:
    """Erase the records of one key of six; a scan of the result finds none."""
    from tiered.jobs.job_bucket import Bucket
    from tiered.jobs.key_search import KeyDigests, scan_keys, survey
    from tiered.jobs.redacting import plan_redaction, run_redaction
    from tiered.jobs.runner import Here

    executor: Any = Here()
    if spark is not None:
        from tiered.spark.jobs.runner import SparkRunner

        executor = SparkRunner(spark, wave_tasks=2)
    keys, bucket = KeyDigests.of([b"k3"]), Bucket(url=_url(home))

    def scans() -> Any:
        with bucket.opened() as store:
            return scan_keys(executor, bucket, [survey(store, name) for name in list_partitions(store)], keys)

    plans = [plan_redaction(each, now_ms=NOW_MS) for each in scans()]
    run_redaction(executor, bucket, plans, keys, now_ms=lambda: NOW_MS)
    assert not [finding for each in scans() for finding in each.findings()]


def _two_buckets(home: Path) -> None:
    _topic(home)
    (home / "copy").mkdir()


def _copy(home: Path, spark: Any) -> None:
    from tiered.jobs.bucket_copying import plan_copy
    from tiered.jobs.job_bucket import Bucket

    store, target = open_store(_url(home)), open_store(_url(home, "copy"))
    plans = [plan_copy(store, target, name, now_ms=NOW_MS) for name in list_partitions(store)]
    if spark is not None:
        from tiered.spark.jobs.runner import copy

        buckets = Bucket(url=_url(home)), Bucket(url=_url(home, "copy"))
        outcomes = copy(spark, *buckets, plans, wave_tasks=2, task_bytes=1, now_ms=lambda: NOW_MS)
    else:
        outcomes = [run_copy(store, target, plan, now_ms=lambda: NOW_MS, entries_a_manifest=3) for plan in plans]
    assert not [each for outcome in outcomes for each in outcome.differences]
    store.close()
    target.close()


def _fleet(home: Path) -> None:
    """Prepare a node with segments to clean and to copy, and an ingested topic with expired segments."""
    import pyarrow as pa
    from pipeline_world import NOW, FleetWorld

    from local.records.record_columns import of_arrow
    from tiered.jobs.bucket_retention import commit_retention, plan_retention
    from tiered.jobs.ingest import commit_ingest, plan_ingest
    from tiered.jobs.ingest_task import IngestTask

    world = FleetWorld(home, 1)
    world.fill(0, rounds=3, per=30)
    store, then = open_store(world.url), NOW - 20 * DAY
    settings = {
        "segment.bytes": "2048",
        "append.batch.bytes": "512",
        "cleanup.policy": "delete",
        "retention.ms": "86400000",
    }
    plan = plan_ingest(store, "bulk", now_ms=then, settings=settings, create_partitions=1, job_id="load")
    with tempfile.TemporaryDirectory(dir=home) as directory:
        task = IngestTask(store, plan, 0, storage=DiskStorage(), directory=directory)
        for columns in of_arrow(pa.table({"value": [b"%d" % at * 30 for at in range(100)]}), now_ms=then):
            task.add(0, columns)
        commit_ingest(store, plan, [task.end()], now_ms=then)
    commit_retention(
        store, plan_retention(store, plan.targets[0].name, settings, now_ms=NOW - 7 * DAY), now_ms=NOW - 7 * DAY
    )
    store.close()


def _pipeline(home: Path, spark: Any) -> None:
    from pipeline_world import NOW

    from tiered.jobs.job_bucket import Bucket
    from tiered.jobs.pipeline import Fleet, Stage, State
    from tiered.jobs.pipeline_job import PipelineState, run_pipeline
    from tiered.jobs.runner import Here

    runner: Any = Here()
    is_first = not (home / "nightly.jsonl").exists()
    if spark is not None:
        from tiered.spark.jobs.runner import SparkRunner

        runner = SparkRunner(spark, job_id="nightly", wave_tasks=2)
    fleet = Fleet(bucket=Bucket(url=_url(home)), nodes=(str(home / "node-0"),), target_bytes=20_000)
    with PipelineState(DiskStorage(), str(home / "nightly.jsonl"), fleet.bucket.url, "nightly", now_ms=NOW) as state:
        more = {"job_id": state.run_id, "now_ms": lambda: NOW, "state": state}
        result = run_pipeline(fleet, runner, **more)  # type: ignore[arg-type]
    wrong = [each for each in result.units if each.state in (State.FAILED, State.LEFT_ALONE)]
    assert not wrong, wrong
    assert result.is_complete
    assert Stage.DELETION in {each.stage for each in result.units} or not is_first, result.units


def _between(before: Records, after: Records, now: Records) -> bool:
    """Readers see every record that stays, and no record that neither state holds."""
    return all(
        after[name].items() <= found.items() and found.items() <= {**before[name], **after[name]}.items()
        for name, found in now.items()
    )


def _all_or_none(before: Records, after: Records, now: Records) -> bool:
    return all(found in (before[name], after[name]) for name, found in now.items())


def _growing(before: Records, after: Records, now: Records) -> bool:
    """A copy grows: every record that is there belongs to the final state."""
    del before
    return all(found.items() <= after[name].items() for name, found in now.items())


def _anything(before: Records, after: Records, now: Records) -> bool:
    """Any state is allowed: nodes copy segments, and retention expires others."""
    del before, after, now
    return True


FLOWS = {
    "compaction": Flow(_topic, _compact, _between),
    "ingest": Flow(_topic, _ingest, _all_or_none),
    "merge": Flow(_topic, _merge, _all_or_none),
    "recode": Flow(_topic, _recode, _all_or_none),
    "redact": Flow(_topic, _redact, _between),
    "copy": Flow(_two_buckets, _copy, _growing, shows="copy", buckets=("bucket", "copy")),
    "pipeline": Flow(_fleet, _pipeline, _anything),
}


# --- points ----------------------------------------------------------------------------------------------------------


class Sweep:
    """One flow in one folder.

    Each use of a store happens in a process of its own, because threads do not survive a fork.
    """

    def __init__(self, name: str, home: Path, spark: str | None, *, counts_here: bool) -> None:
        self.counts_here = counts_here or spark is None
        self.name, self.flow, self.spark = name, FLOWS[name], spark
        self.home, self.template = home / "now", home / "prepared"
        self._apart(lambda: self.flow.prepare(self.home))
        shutil.move(self.home, self.template)
        self._lay_down()
        self.before = self._told(lambda: records(_url(self.home, self.flow.shows)))
        self.effects = self._told(self._count)
        self.after = self._told(lambda: records(_url(self.home, self.flow.shows)))

    def points(self, step: int, phase: int = 0) -> list[tuple[int, bool]]:
        every = [(number, is_after) for number in range(self.effects) for is_after in (False, True)]
        return every[phase % step :: step]

    def kill_at(self, number: int, *, is_after: bool) -> None:
        """Kill the job at one point and run it again; raise AssertionError for a broken promise."""
        self._lay_down()
        status = self._killed(number, is_after)
        assert status == -signal.SIGKILL, f"{self.name} {number} {is_after}: not killed but {status}"
        self._apart(self._look_and_end)

    def _look_and_end(self) -> None:
        self._check_sound()
        now = records(_url(self.home, self.flow.shows))
        assert self.flow.may_show(self.before, self.after, now), "readers see a state that is not allowed"
        self.flow.run(self.home, None)
        self._check_sound()
        assert records(_url(self.home, self.flow.shows)) == self.after, "a second run gives another result"

    def _check_sound(self) -> None:
        for bucket in self.flow.buckets:
            store = open_store(_url(self.home, bucket))
            assert_sound(store)
            store.close()

    def _lay_down(self) -> None:
        """Copy the prepared folder to the same path each time, because configurations name the path."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.template, self.home)

    def _count(self) -> int:
        if not self.counts_here:
            return int(self._submitted(-1, False).stdout.splitlines()[-1])
        count_effects()
        self.flow.run(self.home, None)
        return COUNT.done

    def _submitted(self, number: int, is_after: bool) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, __file__, "--only", self.name, self.home, number, int(is_after), self.spark]
        return subprocess.run(map(str, words), capture_output=True, text=True, check=False, timeout=280)

    def _killed(self, number: int, is_after: bool) -> int:
        if self.spark is not None:
            return self._submitted(number, is_after).returncode

        def run() -> None:
            COUNT.at, COUNT.is_after = number, is_after
            count_effects()
            self.flow.run(self.home, None)

        return _in_a_process(run)[0]

    def _apart(self, work: Callable[[], object]) -> None:
        self._told(lambda: work() and None)

    def _told(self, work: Callable[[], Any]) -> Any:
        status, told = _in_a_process(work)
        assert status == 0, f"{self.name}: {told}"
        return told


def _in_a_process(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run `work` in another process; return (exit code, its result or its error text)."""
    import pickle
    import traceback

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 0
        try:
            told = work()
        except BaseException:  # noqa: BLE001 - the parent reports it
            code, told = 1, traceback.format_exc()
        with os.fdopen(writing, "wb") as out:
            out.write(pickle.dumps(told))
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        body = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, pickle.loads(body) if body else None


def careless() -> None:
    """Break the rule by hand: delete the replaced segments before the commit of their replacement."""
    from tiered.jobs import rewriting

    real = rewriting.commit_groups

    def commit(store: ObjectStore, plan: Any, done: Any, **more: Any) -> Any:
        store.delete([plan.name.prefix + entry.data_key for each in done for entry in plan.groups[each.number].entries])
        return real(store, plan, done, **more)

    rewriting.commit_groups = commit  # type: ignore[assignment]


def sweep(
    names: Iterable[str],
    home: Path,
    *,
    step: int = 1,
    phase: int = 0,
    spark: str | None = None,
    asked: Sequence[tuple[int, bool]] = (),
) -> dict[str, Any]:
    """For each flow: its number of effects, the number of points tried, and the failed points."""
    found: dict[str, Any] = {}
    for name in names:
        if spark is not None and name == "ingest":
            continue
        each, wrong = Sweep(name, home / name, spark, counts_here=bool(asked)), []
        points = asked or each.points(step, phase)
        for number, is_after in points:
            try:
                each.kill_at(number, is_after=is_after)
            except AssertionError as error:
                wrong.append(f"effect {number} {'after' if is_after else 'before'}: {error}")
        found[name] = {"effects": each.effects, "points": len(points), "wrong": wrong}
        shutil.rmtree(home / name)
    return found


def _only(words: list[str]) -> None:
    """Run one flow on Spark that ends at the chosen effect."""
    from tiered.spark.session import spark_session

    name, home, number, is_after, master = words
    spark = spark_session("killed", master=master)
    COUNT.at, COUNT.is_after = int(number), bool(int(is_after))
    count_effects()
    FLOWS[name].run(Path(home), spark)
    print(COUNT.done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flow", choices=sorted(FLOWS), action="append", help="these alone")
    parser.add_argument("--step", type=int, default=1, help="every so many points")
    parser.add_argument("--phase", type=int, default=0, help="which of them is the first")
    parser.add_argument("--spark", metavar="MASTER", help="the jobs on Spark; its driver is killed")
    parser.add_argument("--point", metavar="N:before|after", action="append", default=[], help="these points alone")
    parser.add_argument("--careless", action="store_true", help="break a rule by hand, to see the sweep find it")
    asked = parser.parse_args()
    points = [(int(number), side == "after") for number, _, side in (each.partition(":") for each in asked.point)]
    if asked.careless:
        careless()
    with tempfile.TemporaryDirectory(prefix="kills-") as home:
        names = asked.flow or sorted(FLOWS)
        more = {"step": asked.step, "phase": asked.phase, "spark": asked.spark, "asked": points}
        found = sweep(names, Path(home), **more)
    print(json.dumps(found, indent=1))
    return 1 if any(each["wrong"] for each in found.values()) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only"]:
        _only(sys.argv[2:])
        sys.exit(0)
    sys.exit(main())
