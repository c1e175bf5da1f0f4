"""Routing of bulk ingest rows: the partition depends on the row only, for any division into tasks and batches."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk
from manager_world import NOW

from local.kernels.pure_kernels import murmur2
from local.names import TopicPartition
from remote.store.memory_store import MemoryStore
from tiered.jobs.ingest import commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.sink import Router

COUNT = 600


def table(*names: str) -> pa.Table:
    columns = {
        "value": [b"v%d" % (at // 2) for at in range(COUNT)],
        "key": [None if at % 3 else b"k%d" % at for at in range(COUNT)],
        "timestamp": pa.array([None if at % 5 == 0 else NOW + 1000 * at for at in range(COUNT)], pa.int64()),
        "partition": pa.array([at % 4 if at % 7 == 0 else None for at in range(COUNT)], pa.int32()),
    }
    return pa.table({name: columns[name] for name in names})


def run(store, rows: pa.Table, tasks: int, batch_rows: int):
    """(the plan, the uploads of the tasks of one run)."""
    plan = plan_ingest(store, "t", now_ms=NOW, job_id="job", create_partitions=4)
    share, parts = -(-rows.num_rows // tasks), []
    for number in range(tasks):
        disk = ModelDisk()
        disk.make_directory("./task")
        work = IngestTask(store, plan, number, storage=disk, directory="./task")
        router = Router(work, plan)
        for batch in rows.slice(number * share, share).combine_chunks().to_batches(batch_rows):
            router.add(batch)
        parts.append(work.end())
    return plan, parts


def values(store) -> list[list[bytes]]:
    log, found = RemoteLog(store), []
    for number in range(4):
        name = TopicPartition("t", number)
        start, end = log.reader().offsets(name)
        found.append([record.value for record in log.reader().records(name, start)] if start < end else [])
    return found


@pytest.mark.parametrize(
    "names", [("value",), ("value", "timestamp"), ("value", "key"), ("value", "key", "timestamp", "partition")]
)
def test_job_rerun_with_other_tasks_neither_loses_nor_repeats_a_record(names: tuple[str, ...]) -> None:
    """The first run dies after it committed two partitions. The second run has another number of cores."""
    store, rows = MemoryStore(), table(*names)
    plan, parts = run(store, rows, tasks=2, batch_rows=100)
    commit_ingest(store, replace(plan, targets=plan.targets[:2]), parts, now_ms=NOW)
    again, parts = run(store, rows, tasks=5, batch_rows=37)
    assert [each.is_done for each in again.targets] == [True, True, False, False]
    commit_ingest(store, again, parts, now_ms=NOW)
    found = values(store)
    assert sorted(value for each in found for value in each) == sorted(rows["value"].to_pylist())
    assert all(len(each) > COUNT // 8 for each in found), "the records must be spread over all partitions"
    assert_sound(store)


def test_partition_column_takes_precedence_over_the_key_and_the_other_columns() -> None:
    store, rows = MemoryStore(), table("value", "key", "timestamp", "partition")
    rows = rows.set_column(0, "value", pa.array([b"%d" % at for at in range(COUNT)]))
    plan, parts = run(store, rows, tasks=1, batch_rows=64)
    commit_ingest(store, plan, parts, now_ms=NOW)
    went = {int(value): number for number, each in enumerate(values(store)) for value in each}
    for at, row in enumerate(rows.to_pylist()):
        if row["partition"] is not None:
            assert went[at] == row["partition"]
        elif row["key"] is not None:
            assert went[at] == (murmur2(row["key"]) & 0x7FFFFFFF) % 4
