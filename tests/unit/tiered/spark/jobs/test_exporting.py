"""Progress of an export without Spark: its record gives the remaining ranges after any interruption or split."""

from __future__ import annotations

import json

import pytest
from manager_world import NOW, TIERED, World, send, settle

from remote.store.memory_store import MemoryStore
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.spark.jobs.exporting import ExportedFile, _due, _Job
from tiered.spark.options import parse_options
from tiered.spark.source import task
from tiered.spark.source.splits import Split


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


def wave(job: _Job, world, splits: list[Split], following: Split | None) -> list[int]:
    """The offsets exported by the given tasks. The record of the job is written."""
    found, files = [], []
    for split in splits:
        offsets = [int(at) for part in task.split_columns(world.store, split) for at in part.offsets]
        ends = {"base_offset": min(offsets, default=0), "next_offset": max(offsets, default=-1) + 1}
        file = ExportedFile(key="k", topic="t", partition=0, records=len(offsets), size_bytes=1, **ends)
        files += [file] if offsets else []
        found += offsets
    job.finish_wave(splits, files, following)
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"maxRecordsPerPartition": "25"}, {"readCompacted": "true"}, {"readCompacted": "true", "minPartitions": "9"}],
    ids=json.dumps,
)
def test_export_interrupted_at_any_task_has_every_record_once(world, monkeypatch, options):
    monkeypatch.setattr(Bucket, "open_store", lambda bucket: world.store)
    asked = parse_options({"path": "memory://b", "subscribe": "t", "splitBytes": "300", "pin": "none", **options})
    splits = _due(_Job(MemoryStore(), "whole", "memory://b"), asked)
    everything = [int(at) for split in splits for part in task.split_columns(world.store, split) for at in part.offsets]
    assert len(splits) > 3
    assert everything == sorted(set(everything))
    for cut in range(len(splits) + 1):
        target = MemoryStore()
        job = _Job(target, "cut", "memory://b")
        begun = _due(job, asked)
        found = wave(job, world, begun[:cut], begun[cut] if cut < len(begun) else None) if cut else []
        again = _Job(target, "cut", "memory://b")
        left = _due(again, asked)
        found += wave(again, world, left, None) if left else []
        assert found == everything, f"cut after {cut} of {len(begun)} tasks"
