"""Cost of the manifest index at 1,000, 100,000 and a million segments: opens, lookups, commits; requests and times.

    python tests/bench/metadata.py [--segments 1000 100000 1000000] [--store s3|memory|file] [--spark [--keep FOLDER]]

Entries are synthetic and committed in runs of 1,000, because nothing else is measured. Sizes of names, numbers and
index ranges are those of segments of 1 GiB. ``s3`` is Versity S3 Gateway on loopback. Times are medians of wall time,
in brackets of processor time of this process. Requests and bytes do not depend on the machine.

``--spark`` measures the plans of Spark jobs instead, each in a process of its own, without a JVM, over segments of
100 MB in a folder: time, the peak memory of the process above its memory before the plan, requests, and what a task
carries. Data objects exist only in listings. ``--keep`` names a folder whose buckets are used again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from bench_remote import BUCKET, PREFIX, TOPIC_ID, workplace

sys.path.insert(0, str(Path(__file__).parents[2] / "localstack"))
from local_servers import KINDS, RunningServer

from remote.keys import PAGES, data_key, indexes_key, new_ulid
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, encode_manifest
from remote.manifest.manifest_changes import add_segments, expire_segments, set_properties
from remote.manifest.manifest_lookup import manifest_disk_cache
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import ChunkTable, IndexBundle, encode_bundle
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore, StoreWrapper
from remote.store.open_store import open_store
from remote.store.protocol import ObjectInfo

RUN = 1000
TIMEOUT_S = 300  # of one plan of --spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--store", choices=("s3", "memory", "file"), default="s3")
    parser.add_argument("--spark", action="store_true", help="measure the plans of Spark jobs")
    parser.add_argument("--keep", type=Path, help="a folder for the buckets of --spark")
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=list(PLANS), help="plans to measure")
    parser.add_argument("--plan", nargs=2, metavar=("FOLDER", "NAME"), help="print the figures of one plan as JSON")
    asked = parser.parse_args()
    if asked.plan:
        print(json.dumps(figures_of_plan(Path(asked.plan[0]), asked.plan[1])))
        return
    tables = []
    for count in asked.segments:
        with ExitStack() as stack:
            if asked.spark:
                folder = asked.keep / str(count) if asked.keep else stack.enter_context(workplace())
                tables.append(planned(count, folder, asked.plans))
                continue
            folder = stack.enter_context(workplace())
            tables.append(Measured(count, store_of(asked.store, folder, stack), f"{folder}/copies").table())
    print(f"Store: {'file' if asked.spark else asked.store}\n")
    print(f"| | {' | '.join(f'{count:,} segments' for count in asked.segments)} |")
    print("|---" * (1 + len(tables)) + "|")
    for name in dict.fromkeys(name for table in tables for name in table):
        print(f"| {name} | {' | '.join(table.get(name, '') for table in tables)} |")


def store_of(kind: str, folder: Path, stack: ExitStack) -> ObjectStore:
    if kind == "memory":
        return MemoryStore()
    if kind == "file":
        (folder / "bucket").mkdir()
        return open_store(f"file://{folder}/bucket", {})
    server = stack.enter_context(RunningServer(KINDS["versitygw"], folder / "server"))
    server.create_bucket(BUCKET)
    store = open_store(f"s3://{BUCKET}/metadata", {**server.options(), "client": "obstore"})
    stack.callback(store.close)
    return store


class Measured:
    """A partition with `count` segments. Time and requests of each step are the cells of a table."""

    def __init__(self, count: int, store: ObjectStore, copies: str) -> None:
        self.store, self.inner, self.copies = MeteredStore(store), store, copies
        self.writer, first_of_run = written(count, self.store)
        manifest = self.writer.refresh()
        assert manifest.segment_count == count
        self.manifest, self.newest, self.middle = manifest, manifest.segments[-1], first_of_run[len(first_of_run) // 2]
        self.cells: dict[str, str] = {}

    def table(self) -> dict[str, str]:
        pages = [info.size_bytes for info in self.inner.list(PREFIX + PAGES)]
        told = f"{len(pages)} of {sum(pages) // len(pages) // 1000} kB" if pages else "none"
        self.cells |= {"head": f"{len(encode_manifest(self.manifest)) // 1000} kB", "manifest pages": told}
        self.cold()
        self.warm()
        self.writing()
        return self.cells

    def cold(self) -> None:
        offset, stamp = self.middle.base_offset, self.middle.min_timestamp_ms or 0
        self.tell("cold: open", lambda: self.opened().refresh())
        self.tell("cold: open, offset in the middle", lambda: self.by_offset(self.opened(), offset))
        self.tell("cold: open, timestamp in the middle", lambda: self.by_timestamp(self.opened(), stamp))
        self.by_offset(self.opened(self.copies), offset)
        self.tell("local copy: open, offset in the middle", lambda: self.by_offset(self.opened(self.copies), offset))
        self.tell("local copy: open, timestamp", lambda: self.by_timestamp(self.opened(self.copies), stamp))

    def warm(self) -> None:
        log = self.opened()
        offset, stamp = self.middle.base_offset, self.middle.min_timestamp_ms or 0
        self.by_offset(log, offset)
        self.tell("warm: is there news? no", lambda: log.load(), 48)
        self.tell("warm: offset in the middle", lambda: self.by_offset(log, offset, is_warm=True), 48)
        self.tell(
            "warm: offset among the newest", lambda: self.by_offset(log, self.newest.base_offset, is_warm=True), 48
        )
        self.tell("warm: timestamp in the middle", lambda: self.by_timestamp(log, stamp, is_warm=True), 48)

    def writing(self) -> None:
        steps = iter(range(1000))
        self.tell("commit", lambda: self.writer.commit(set_properties({"step": str(next(steps))}), now_ms=3))
        self.tell("expire the oldest segment", self.expire_one)

    def tell(self, what: str, work: Callable[[], object], times: int = 5) -> None:
        walls, cpus, before = [], [], self.store.counts()
        for _ in range(times):
            began, cpu = time.perf_counter(), time.process_time()
            work()
            walls.append(time.perf_counter() - began)
            cpus.append(time.process_time() - cpu)
        spent = self.store.counts() - before
        counts = {"PUT": spent.puts, "GET": spent.gets, "LIST": spent.lists}
        asked = ", ".join(f"{count / times:.3g} {name}" for name, count in counts.items() if count) or "no request"
        moved = (spent.bytes_in + spent.bytes_out) / times
        size = f", {moved / 1000:,.0f} kB" if moved >= 1000 else ""
        self.cells[what] = f"{median(walls) * 1e3:.3g} ms ({median(cpus) * 1e3:.2g}): {asked}{size}"

    def opened(self, copies: str | None = None) -> MetadataLog:
        return MetadataLog(self.store, PREFIX, copies=manifest_disk_cache(copies) if copies is not None else None)

    def by_offset(self, log: MetadataLog, offset: int, *, is_warm: bool = False) -> SegmentEntry:
        manifest = (log.cached if is_warm else None) or log.refresh()
        found = log.ask(manifest, lambda index: index.find_by_offset(offset))
        assert found is not None
        return found

    def by_timestamp(self, log: MetadataLog, stamp: int, *, is_warm: bool = False) -> SegmentEntry:
        manifest = (log.cached if is_warm else None) or log.refresh()
        found = log.ask(manifest, lambda index: index.find_by_timestamp(stamp))
        assert found is not None
        return found

    def expire_one(self) -> None:
        row = self.writer.index(self.writer.refresh()).find_by_offset(0)
        assert row is not None
        touches = row.base_offset, row.next_offset
        change = expire_segments([row.ulid], now_ms=4, log_start_offset=row.next_offset)
        self.writer.commit(change, now_ms=4, touches=touches)


def written(count: int, store: ObjectStore, size_bytes: int = 1 << 30) -> tuple[MetadataLog, list[SegmentEntry]]:
    """The writer of a new partition with `count` segments, and the first entry of each run."""
    writer = MetadataLog(store, PREFIX)
    writer.become_writer("bench", 1, topic="orders", topic_id=TOPIC_ID, partition=0, properties={})
    rows, first_of_run = made_up(count, size_bytes), []
    while run := list(islice(rows, RUN)):
        writer.commit(add_segments(run), now_ms=2)
        first_of_run.append(run[0])
    return writer, first_of_run


def planned(count: int, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The figures of plans over `count` segments, each in a new process."""
    if not (folder / "objects").exists():
        (folder / "bucket").mkdir(parents=True)
        store = open_store(f"file://{folder}/bucket", {})
        writer, _ = written(count - 1, store, 100_000_000)
        writer.commit(add_segments([with_indexes(store, writer.refresh())]), now_ms=2)
        index = writer.index(writer.refresh())
        with (folder / "objects").open("w") as file:
            for each in index.entries():
                file.write(f"{each.data_key} {each.stored_bytes}\n{each.indexes_key} {each.indexes_bytes}\n")
    cells = {}
    for name in names:
        command = [sys.executable, __file__, "--plan", str(folder), name]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            cells[f"{name}: time"] = f"no end in {TIMEOUT_S} s"
            continue
        cells |= {f"{name}: {what}": value for what, value in json.loads(done.stdout).items()}
    return cells


def with_indexes(store: ObjectStore, manifest: Manifest) -> SegmentEntry:
    """The next segment of `manifest`; unlike the others it has an index bundle in the bucket."""
    last = manifest.segments[-1]
    (entry,) = made_up(1, last.size_bytes)
    base, ulid, table = last.next_offset, new_ulid(1), ChunkTable(lengths=(entry.size_bytes,), crcs=(1,))
    body, ranges = encode_bundle(IndexBundle(offset=b"", time=b"", txn=b"", producers=b"", epochs=b"", chunks=table))
    names = [each(base, base + entry.record_count - 1, 1, ulid) for each in (data_key, indexes_key)]
    store.put(PREFIX + names[1], body)
    return replace(
        entry,
        ulid=ulid,
        base_offset=base,
        next_offset=base + entry.record_count,
        epochs=((1, base),),
        data_crc32c=table.whole_crc,
        data_key=names[0],
        indexes_key=names[1],
        indexes_bytes=len(body),
        indexes=ranges,
    )


class Listed(StoreWrapper):
    """Adds the data objects and indexes that exist only by name to listings of the partition."""

    def __init__(self, inner: ObjectStore, path: Path) -> None:
        super().__init__(inner)
        self._path = path

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        there = self._inner.list(prefix, start_after=start_after)
        if prefix != PREFIX:
            yield from there
            return
        known = {info.key: info for info in there}
        yield from known.values()
        with self._path.open() as file:
            for key, size in (line.split() for line in file):
                if PREFIX + key not in known:
                    yield ObjectInfo(key=PREFIX + key, size_bytes=int(size))


class Figures:
    """Prepares one plan: `make` returns its tasks' values, `rest` further figures after it."""

    def __init__(self, store: MeteredStore, url: str) -> None:
        self.store, self.url = store, url

    def read(self, **options: str) -> tuple[list[Any], dict[str, str]]:
        from pyspark.sql.datasource import InputPartition

        from tiered.spark.options import parse_options
        from tiered.spark.source.planning import plan_read

        plan = plan_read(self.store, parse_options({"path": self.url, "subscribe": "orders", **options}))
        tasks = [InputPartition(each) for each in plan.parts()]
        self.rest = lambda: figures_of_task(self.store, plan)
        return tasks, {"bytes of all tasks' common part": f"{len(pickle.dumps(plan.common()))}"}

    def export(self, **options: str) -> tuple[list[Any], dict[str, str]]:
        from tiered.jobs.job_bucket import OpenBucket
        from tiered.spark.options import parse_options
        from tiered.tables.exporting import ExportJob

        request = parse_options({"path": self.url, "subscribe": "orders", "includeHeaders": "true", **options})
        request = replace(request, bucket=OpenBucket.of(self.store))
        target = OpenBucket.of(MemoryStore())
        job = ExportJob(target.store, target, request, "zstd", "bench", wave_tasks=16)
        return list(job.units()), {}

    def compaction(self) -> tuple[list[Any], dict[str, str]]:
        from tiered.jobs.bucket_compaction import plan_compaction

        (name,) = list_partitions(self.store)
        plan = plan_compaction(self.store, name, now_ms=1 << 42, settings={"cleanup.policy": "compact"})
        tasks, common = compaction_tasks(plan)
        entries = sum(len(group.entries) for group in plan.groups)
        told = f"{entries:,} of one round" if plan.is_cut else f"{entries:,}"
        return tasks, {"segments": told, "bytes of all tasks' common part": f"{common}"}

    def scrub(self) -> tuple[list[Any], dict[str, str]]:
        from tiered.health.scrub import plan_scrub
        from tiered.jobs.runner import TASK_BYTES, packed

        plan = plan_scrub(self.store, list_partitions(self.store), deep=True)
        assert not any(survey.suspects for survey in plan.surveys.values())
        return list(packed(plan.jobs, lambda job: job.read_bytes, TASK_BYTES)), {}

    def pipeline(self, **more: int) -> tuple[list[Any], dict[str, str]]:
        from tiered.jobs.job_bucket import OpenBucket
        from tiered.jobs.pipeline import Fleet, plan_units_of_partition

        fleet = Fleet(bucket=OpenBucket.of(self.store), overrides={"cleanup.policy": "compact"}, **more)
        (name,) = list_partitions(self.store)
        return plan_units_of_partition(fleet, self.store, name, now_ms=1 << 42), {}

    def rest(self) -> dict[str, str]:
        return {}


def compaction_tasks(plan: Any) -> tuple[list[Any], int]:
    """The rows of the groups as `tiered.spark.jobs.runner.rewritten` sends them, and the bytes of their common part."""
    from tiered.spark.jobs.runner import _RANGE, BUFFER_BYTES, _Layout

    rows = [(0, slot, slot, _RANGE.pack(each.base_offset, each.next_offset)) for slot, each in enumerate(plan.groups)]
    return rows, len(pickle.dumps(_Layout.of([plan], BUFFER_BYTES)))


PLANS: dict[str, Callable[[Figures], tuple[list[Any], dict[str, str]]]] = {
    "read": lambda figures: figures.read(),
    "read, splitBytes=64MiB": lambda figures: figures.read(splitBytes="64MiB"),
    "export": lambda figures: figures.export(),
    "export, splitBytes=64MiB": lambda figures: figures.export(splitBytes="64MiB"),
    "compaction": lambda figures: figures.compaction(),
    "scrub": lambda figures: figures.scrub(),
    "pipeline": lambda figures: figures.pipeline(),
    "pipeline, no segment small": lambda figures: figures.pipeline(target_bytes=128 << 20),
}


def figures_of_plan(folder: Path, name: str) -> dict[str, str]:
    url = f"file://{folder}/bucket"
    store = MeteredStore(Listed(open_store(url, {}), folder / "objects"))
    figures = Figures(store, url)
    before, began, cpu = peak_bytes(), time.perf_counter(), time.process_time()
    tasks, more = PLANS[name](figures)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    counts, peak = store.counts(), peak_bytes() - before
    sizes = [len(pickle.dumps(each)) for each in tasks[:: max(1, len(tasks) // 1000)]]
    return {
        "time": f"{wall:.3g} s ({used:.2g})",
        "peak memory": f"{peak >> 20} MiB",
        "requests": f"{counts.gets} GET, {counts.puts} PUT, {counts.lists} LIST, {counts.bytes_out // 1000:,} kB",
        "tasks": f"{len(tasks):,}",
        "bytes of a task": f"{sum(sizes) // max(1, len(sizes))}, at most {max(sizes, default=0)}",
        **more,
        **figures.rest(),
    }


def figures_of_task(store: MeteredStore, plan: Sequence[Any]) -> dict[str, str]:
    """What tasks do before their first byte of data: the first of a process, one of another page, the one after it."""
    from remote.fetch.range_reader import RemotePartition
    from tiered.spark.source.settling import settled

    cells, middle = {}, len(plan) // 2
    for name, number in (("first", len(plan) // 4), ("another page", middle), ("the same page", middle + 1)):
        before, began = store.counts(), time.process_time()
        found = settled(store, plan[number], RemotePartition(store, PREFIX))
        used, spent = time.process_time() - began, store.counts() - before
        told = f"{used * 1e3:.3g} ms of processor, {spent.gets} GET, {spent.bytes_out // 1000:,} kB"
        cells[f"settling a task, {name}"] = f"{told}, {len(found.entries)} segments"
    return cells


def peak_bytes() -> int:
    """Of this program alone: ``ru_maxrss`` would include the parent that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def made_up(count: int, size_bytes: int = 1 << 30) -> Iterator[SegmentEntry]:
    """Segments of about `size_bytes`, one every 100 s."""
    draw, base, began_ms = random.Random(1), 0, 1_700_000_000_000
    for _ in range(count):
        following, ulid = base + draw.randint(100_000, 900_000), new_ulid(began_ms)
        offset = draw.randint(300_000, 400_000)
        lengths = {"offset": offset, "time": offset // 2, "txn": 0, "producers": 40, "epochs": 20, "chunks": 4120}
        ranges, at = {}, 0
        for name, length in lengths.items():
            ranges[name] = IndexRange(start=at, length=length)
            at += length
        size = size_bytes - draw.randint(0, 4000)
        yield (
            SegmentEntry(
                ulid=ulid,
                base_offset=base,
                next_offset=following,
                size_bytes=size,
                stored_bytes=size,
                record_count=following - base,
                max_timestamp_ms=began_ms + draw.randint(90_000, 100_000),
                min_timestamp_ms=began_ms,
                epochs=((1, base),),
                data_crc32c=draw.getrandbits(32),
                data_key=data_key(base, following - 1, 1, ulid),
                indexes_key=indexes_key(base, following - 1, 1, ulid),
                indexes_bytes=at,
                indexes=ranges,
            )
        )
        base, began_ms = following, began_ms + 100_000


if __name__ == "__main__":
    main()
