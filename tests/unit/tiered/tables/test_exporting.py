"""Progress of an export without Spark: its record gives the remaining ranges after any interruption or split."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import pytest
from bucket_samples import SampleBucket, batch_at
from manager_world import NOW, TIERED, World, send, settle
from split_columns import split_columns

from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.spark.options import ReadOptions, parse_options
from tiered.spark.source.splits import ReadPlan, Split
from tiered.tables.exporting import ExportedFile, ExportJob


@pytest.fixture(scope="module")
def world():
    """A view of the first records, and a log that continues after it."""
    world = World()
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 120)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    send(manager, 60, start=120)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    manager.close()
    return world


def export_job(target: MemoryStore, job_id: str, asked: ReadOptions) -> ExportJob:
    return ExportJob(target, Bucket(url=target.url), asked, "zstd", job_id, wave_tasks=8)


def offsets_of(world, split: Split) -> list[int]:
    return [int(at) for part in split_columns(world.store, split) for at in part.offsets]


def wave(job: ExportJob, world, count: int | None = None) -> list[int]:
    """Record the first units of the job as one wave; return the exported offsets."""
    results, found = [], []
    for unit in islice(job.units(), count):
        offsets = offsets_of(world, job.plan.split(unit.part))
        ends = {"base_offset": min(offsets, default=0), "next_offset": max(offsets, default=-1) + 1}
        file = ExportedFile(key="k", topic="t", partition=0, records=len(offsets), size_bytes=1, **ends)
        results.append((unit, [file] if offsets else []))
        found += offsets
    if results:
        job.commit(results)
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"maxRecordsPerPartition": "25"}, {"readCompacted": "true"}, {"readCompacted": "true", "minPartitions": "9"}],
    ids=json.dumps,
)
def test_export_interrupted_at_any_task_has_every_record_once(world, monkeypatch, options):
    monkeypatch.setattr(Bucket, "open_store", lambda bucket: world.store)
    asked = parse_options({"path": "memory://b", "subscribe": "t", "splitBytes": "300", "pin": "none", **options})
    splits = list(export_job(MemoryStore(), "whole", asked).plan)
    everything = [offset for split in splits for offset in offsets_of(world, split)]
    assert len(splits) > 3
    assert everything == sorted(set(everything))
    for cut in range(len(splits) + 1):
        target = MemoryStore()
        job = export_job(target, "cut", asked)
        found = wave(job, world, cut)
        assert [result.is_complete for result in job.outcomes()] == [cut == len(splits)]
        again = export_job(target, "cut", asked)
        found += wave(again, world)
        assert found == everything, f"cut after {cut} of {len(splits)} tasks"
        assert [result.is_complete for result in again.outcomes()] == [True]


def test_export_of_many_segments_and_pages_makes_small_tasks_without_a_split(monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=40, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    sample = SampleBucket(MemoryStore())
    for base in range(0, 1300, 10):
        sample.add("t", 0, [batch_at(base, 10)])
    _, log = sample.log("t", 0)
    assert len(log.refresh().pages) > 2
    monkeypatch.setattr(Bucket, "open_store", lambda bucket: sample.store)
    monkeypatch.setattr(ReadPlan, "split", lambda plan, part: pytest.fail("the plan of an export made a split"))
    asked = parse_options({"path": "memory://b", "subscribe": "t", "splitBytes": "300", "pin": "none"})
    job = export_job(MemoryStore(), "j" * 64, asked)
    units = list(job.units())
    assert len(units) == len(job.plan) > 130
    assert sum(job.size_of(unit) for unit in units) == job.read_bytes == log.refresh().size_bytes
    assert max(len(pickle.dumps(unit)) for unit in units) <= 200
