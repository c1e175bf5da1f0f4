"""Both passes of a compaction (`tiered.jobs.bucket_compaction`) as one Spark action.

| stage | input of a task | output |
|---|---|---|
| pass one | neighbouring groups, `PART_BYTES` at most, in sequence | digests of keys with offsets, by bucket |
| the newest of each key | a bucket: all records of some keys | the offsets that stay, by group |
| pass two | a group | the uploaded segments |

The stages exchange a few byte strings (`tiered.jobs.key_exchange`): Spark moves thousands of rows, never the millions
of records. It is one action, because a second one would repeat the uploads.

A record that may stay costs about 19 bytes of shuffle. Tasks may fail, be retried and run twice: each attempt uploads
under its own names, and only those of the successful attempts are committed. Executors need disk for one group each
(``work_directory``) and no memory for data. The driver holds segment entries, never records.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from local.cleaner.offset_map import Buffer
from tiered.jobs.bucket_compaction import CompactionPlan, GroupResult, RowGroup, with_groups
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import packed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tiered.jobs.key_exchange import KeyRun

PART_BYTES = 1 << 30  # of one task of pass one: a key that repeats in it is sent once
_ROWS_BYTES = 4 << 20  # of byte strings in one Arrow batch
_GROUPS = "tp int, part int, slot int, plan binary"
_KEYS = "bucket int, tp int, records binary"
_OFFSETS = "slot int, offsets binary"
_RESULTS = "tp int, result binary"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The numbering that all tasks share. Buckets and groups (slots) are counted over all plans."""

    buffer_bytes: int
    bases: tuple[tuple[int, ...], ...]  # by plan: each group's first offset
    buckets: tuple[int, ...]  # by plan: number of buckets

    @staticmethod
    def of(plans: Sequence[CompactionPlan], buffer_bytes: int) -> _Layout:
        from tiered.jobs.key_exchange import bucket_count

        counts = [sum(row.record_count for group in plan.groups for row in group.entries) for plan in plans]
        bases = tuple(tuple(group.base_offset for group in plan.groups) for plan in plans)
        return _Layout(buffer_bytes, bases, tuple(bucket_count(each, buffer_bytes) for each in counts))

    @property
    def first_slots(self) -> list[int]:
        return list(accumulate((len(each) for each in self.bases), initial=0))

    @property
    def first_buckets(self) -> list[int]:
        return list(accumulate(self.buckets, initial=0))


def rewritten(
    spark: SparkSession, bucket: Bucket, plans: Sequence[CompactionPlan], buffer: Buffer
) -> dict[int, list[GroupResult]]:
    """The results of all groups, by the number of their plan."""
    layout = _Layout.of(plans, buffer.size_bytes)
    groups = [(number, group) for number, plan in enumerate(plans) for group in plan.groups]
    if not groups:
        return {}
    parts = _parts(groups, spark.sparkContext.defaultParallelism)
    of_group = [number for number, part in enumerate(parts) for _ in part]
    work = [
        (number, of_group[slot], slot, bytearray(pickle.dumps(with_groups(plans[number], [group]))))
        for slot, (number, group) in enumerate(groups)
    ]
    found: dict[int, list[GroupResult]] = {}
    for row in _as_job(spark.createDataFrame(work, _GROUPS), bucket, layout, len(parts)):
        found.setdefault(row["tp"], []).append(pickle.loads(bytes(row["result"])))  # noqa: S301 - our own task's
    return found


def _parts(groups: Sequence[tuple[int, RowGroup]], cores: int) -> list[tuple[tuple[int, RowGroup], ...]]:
    """Runs of groups, at least one for each core if there are enough groups."""
    total = sum(group.size_bytes for _, group in groups)
    return packed(groups, lambda each: each[1].size_bytes, min(PART_BYTES, -(-total // cores)))


def _as_job(groups: DataFrame, bucket: Bucket, layout: _Layout, parts: int) -> list[Any]:
    """Run the one action, exactly once, because it has effects."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    keys = _placed(groups, parts, "part").mapInArrow(_pass_one(bucket, layout), _KEYS)
    offsets = _placed(keys, layout.first_buckets[-1], "bucket").mapInArrow(_newest(layout), _OFFSETS)
    nothing = F.lit(None)
    # A group that lost every record is rewritten too: its plan is a row of its own.
    every = offsets.select(nothing.cast("int").alias("tp"), "slot", "offsets", nothing.cast("binary").alias("plan"))
    every = every.unionByName(groups.select("tp", "slot", nothing.cast("binary").alias("offsets"), "plan"))
    return _placed(every, layout.first_slots[-1], "slot").mapInArrow(_pass_two(bucket), _RESULTS).collect()


def _placed(frame: DataFrame, tasks: int, column: str) -> DataFrame:
    """One task for each number in `column`; before Spark 4.1 some share a task, and other tasks are empty."""
    by_number = getattr(frame, "repartitionById", None)
    return cast("DataFrame", by_number(tasks, column)) if by_number else frame.repartition(tasks, column)


def _pass_one(bucket: Bucket, layout: _Layout) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tiered.jobs.key_exchange import parted

        buckets, firsts = layout.buckets, layout.first_buckets
        rows = (
            (firsts[tp] + number, tp, string)
            for tp, run in _combined(bucket, layout, batches)
            for number, string in parted(run, buckets[tp])
        )
        yield from _as_batches(rows, _KEYS)

    return work


def _combined(bucket: Bucket, layout: _Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, KeyRun]]:
    """The newest records of the groups in `batches`, with their plan's number.

    Older records of a key are dropped as far as memory allows.
    """
    from local.storage import DiskStorage
    from tiered.jobs.compaction_passes import GroupWork
    from tiered.jobs.key_exchange import Combiner, records_held

    buffer = Buffer(size_bytes=layout.buffer_bytes)
    at, combiner = -1, Combiner(records_held(layout.buffer_bytes))
    with bucket.opened() as store:
        for tp, plan in _plans_of(batches):
            if tp != at:  # another partition: another secret, so nothing to combine
                yield from ((at, run) for run in combiner.rest())
                at = tp
            with bucket.scratch() as directory:
                keys = bucket.keys()
                one = GroupWork(store, plan, plan.groups[0], storage=DiskStorage(), directory=directory, keys=keys)
                for run in one.newest_keys(buffer):
                    yield from ((tp, ready) for ready in combiner.add(run))
        yield from ((at, run) for run in combiner.rest())


def _newest(layout: _Layout) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        from tiered.jobs.key_exchange import by_group, newest

        strings: dict[tuple[int, int], list[bytes]] = {}
        for number, tp, string in _rows_of(batches):
            strings.setdefault((number, tp), []).append(string)
        firsts = layout.first_slots
        rows = (
            (firsts[tp] + group, offsets)
            for (number, tp) in sorted(strings)
            for group, offsets in by_group(newest(strings.pop((number, tp))), np.array(layout.bases[tp], np.int64))
        )
        yield from _as_batches(rows, _OFFSETS)

    return work


def _pass_two(bucket: Bucket) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        strings: dict[int, list[bytes]] = {}
        plans: dict[int, tuple[int, bytes]] = {}
        for tp, slot, offsets, plan in _rows_of(batches):
            if plan is None:
                strings.setdefault(slot, []).append(offsets)
            else:
                plans[slot] = tp, plan
        assert strings.keys() <= plans.keys(), "offsets of an unplanned group"
        rows = (
            (tp, pickle.dumps(_rewrite(bucket, pickle.loads(plan), strings.pop(slot, []))))  # noqa: S301 - our own
            for slot, (tp, plan) in sorted(plans.items())
        )
        yield from _as_batches(rows, _RESULTS)

    return work


def _rewrite(bucket: Bucket, plan: CompactionPlan, strings: list[bytes]) -> GroupResult:
    from local.storage import DiskStorage
    from tiered.jobs.compaction_passes import GroupWork
    from tiered.jobs.key_exchange import offsets_of

    offsets = offsets_of(strings)
    strings.clear()
    with bucket.opened() as store, bucket.scratch() as directory:
        one = GroupWork(store, plan, plan.groups[0], storage=DiskStorage(), directory=directory, keys=bucket.keys())
        return one.rewrite(offsets)


def _plans_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, CompactionPlan]]:
    """Plans in the order of their numbers, so that the groups of a partition follow each other."""
    for tp, _, _, plan in sorted(_rows_of(batches), key=lambda row: row[2]):
        yield tp, pickle.loads(plan)  # noqa: S301 - our own driver's


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _as_batches(rows: Iterable[tuple[Any, ...]], ddl: str) -> Iterator[pa.RecordBatch]:
    """Arrow batches of numbers and byte strings, some megabytes each."""
    import pyarrow as pa

    fields = [field.split() for field in ddl.split(", ")]
    schema = pa.schema([(name, pa.binary() if kind == "binary" else pa.int32()) for name, kind in fields])
    held: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += 64 + len(row[-1])
        if size >= _ROWS_BYTES:
            yield _batch(held, schema)
            held, size = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [_column(kind, values) for kind, values in zip(schema.types, columns, strict=True)], schema=schema
    )


def _column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array[Any]:
    """A column from buffers: `pyarrow.array` would import pandas into every worker (0.25 s)."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_int32(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, np.int32).data)])
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends.data), pa.py_buffer(b"".join(values))])
