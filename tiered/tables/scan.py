"""Read topics of a bucket as Arrow batches: the tasks of a Spark read, done by threads of this process.

A scan reads one snapshot: the manifests that are newest when it begins, pinned until it ends. Batches come in the order
of topic, partition and offset.

| state | what the threads do |
|---|---|
| no batch was taken | the first task alone is read: a `LIMIT` of some rows reads little |
| a batch was taken | the next tasks are read too, each up to its share of the memory |
| a task's share is full | its thread reads other tasks; the task continues when its batches are taken |
| the reader is dropped, or a task failed | the threads end at their next batch, the pins are released |

No thread waits for another one: a full share cannot block the scan, nor a half-read reader the exit of the process.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeGuard

import pyarrow as pa

from local.errors import InvalidRequest
from local.names import TopicPartition, check_topic
from remote.external.external_layout import OURS, LayoutOptions
from remote.gc.pins import release_all
from remote.keys import check_view
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.jobs.job_bucket import OpenBucket
from tiered.spark.options import EARLIEST, LATEST, PIN_MS, Bound, BoundKind, ReadOptions
from tiered.spark.source.planning import plan_read
from tiered.spark.source.splits import SPLIT_BYTES, ReadPlan, Split
from tiered.spark.source.task import TYPES, read_split

if TYPE_CHECKING:
    from pyarrow.compute import Expression

MEMORY_BYTES = 256 << 20
THREADS_MAX = 8
TASKS_PER_THREAD = 4  # at least, for a read of less than SPLIT_BYTES a task
COLUMNS = tuple(name for name in TYPES if name != "headers")
Offsets = int | datetime | Mapping[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a scan reads. See `tiered.tables.remote_tables.RemoteTables.scan` for the meaning of each field."""

    topic: str
    topic_id: str | None = None
    columns: Sequence[str] | None = None
    partitions: Sequence[int] | None = None
    start: Offsets = None
    end: Offsets = None
    filter: Expression | None = None
    view: str | None = None
    is_committed: bool = False
    fail_on_data_loss: bool = True
    threads: int | None = None
    memory_bytes: int = MEMORY_BYTES


def scan(
    store: ObjectStore, selection: Selection, *, keys: KeyRing = NO_KEYS, layout: LayoutOptions = OURS
) -> pa.RecordBatchReader:
    """The selected records; the store must stay open until the reader has ended.

    Raises InvalidRequest for a wrong selection, and the errors of planning a read. Reading batches raises Corrupt for
    damaged bytes, and NotFound for a segment that was removed although it was pinned.
    """
    names = _checked(selection.columns)
    read = _with_filter_columns(names, selection.filter)
    threads = default_threads() if selection.threads is None else selection.threads
    if min(threads, selection.memory_bytes) < 1:
        wrong = "cannot scan, threads and memory_bytes must be above zero"
        raise InvalidRequest(wrong, threads=threads, memory_bytes=selection.memory_bytes)
    plan, options = planned(store, selection, threads, keys=keys, layout=layout)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield pa.RecordBatch.from_pylist([], schema_of(names))
            yield from _in_order(
                plan,
                lambda split: _task(split, options, names, read, selection.filter),
                threads,
                selection.memory_bytes,
            )
        finally:
            release_all(store, plan.pins())

    started = batches()
    next(started)  # from here on the pins are released, however the reader ends
    return pa.RecordBatchReader.from_batches(schema_of(names), started)


def default_threads() -> int:
    return min(os.cpu_count() or 1, THREADS_MAX)


def planned(
    store: ObjectStore, selection: Selection, threads: int, *, keys: KeyRing = NO_KEYS, layout: LayoutOptions = OURS
) -> tuple[ReadPlan, ReadOptions]:
    """The tasks of a selection, and the options to read them with. Their manifests are pinned: release the pins."""
    options = _read_options(store, selection, keys, layout, threads)
    return plan_read(store, options), options


def schema_of(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names])


def _checked(columns: Sequence[str] | None) -> tuple[str, ...]:
    names = COLUMNS if columns is None else tuple(columns)
    if isinstance(columns, str):
        raise InvalidRequest("cannot scan, columns is a list of names", columns=columns)
    if unknown := [name for name in names if name not in TYPES]:
        raise InvalidRequest("cannot scan, unknown column", column=unknown[0], there_are=", ".join(TYPES))
    if len(set(names)) < len(names) or not names:
        raise InvalidRequest("cannot scan, columns must name at least one column, each once", columns=", ".join(names))
    return names


def _with_filter_columns(names: tuple[str, ...], condition: Expression | None) -> tuple[str, ...]:
    """`names`, and behind them the other columns that the filter needs. Raises InvalidRequest for an invalid filter."""
    if condition is None:
        return names
    everything = schema_of(tuple(TYPES)).empty_table()
    try:
        everything.filter(condition)
    except (pa.ArrowException, TypeError) as error:
        wrong = "cannot scan, the filter does not fit the columns"
        raise InvalidRequest(wrong, there_are=", ".join(TYPES), cause=str(error).splitlines()[0]) from error
    if "FieldPath(" in re.sub('"[^"]*"', "", str(condition)):  # a batch has other columns at these positions
        raise InvalidRequest("cannot scan, the filter must name its columns, not number them", filter=str(condition))
    return names + tuple(name for name in TYPES if name not in names and _needs(condition, everything, name))


def _needs(condition: Expression, everything: pa.Table, name: str) -> bool:
    try:
        everything.drop_columns([name]).filter(condition)
    except pa.ArrowException:
        return True
    return False


def _read_options(
    store: ObjectStore, selection: Selection, keys: KeyRing, layout: LayoutOptions, threads: int
) -> ReadOptions:
    topic, numbers = check_topic(selection.topic), selection.partitions
    if numbers is not None and not (_is_iterable(numbers) and all(map(_is_offset, numbers := [*numbers]))):
        raise InvalidRequest("cannot scan, partitions is a list of numbers", partitions=repr(numbers))
    chosen = None if numbers is None else tuple(TopicPartition(topic, number) for number in dict.fromkeys(numbers))
    if chosen is not None and not chosen:
        raise InvalidRequest("cannot scan, partitions is empty; None means all partitions", topic=topic)
    return ReadOptions(
        bucket=OpenBucket.of(store, keys),
        topics=(topic,) if chosen is None else None,
        pattern=None,
        partitions=chosen,
        topic_id=selection.topic_id,
        start=_bound(topic, selection.start, EARLIEST, "start"),
        end=_bound(topic, selection.end, LATEST, "end"),
        latest_without_match=True,
        fail_on_data_loss=selection.fail_on_data_loss,
        include_headers=True,
        partitions_min=threads * TASKS_PER_THREAD,
        split_bytes=SPLIT_BYTES,
        records_max=None,
        is_committed=selection.is_committed,
        view=None if selection.view is None else check_view(selection.view),
        pin_ms=PIN_MS if layout.is_ours else None,
        must_pin=False,
        pins={},
        layout=layout,
    )


def _bound(topic: str, value: object, default: int, side: str) -> Bound:
    if value is None:
        return Bound(everywhere=default)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidRequest(f"cannot scan, {side} has no time zone", value=value.isoformat())
        return Bound(kind=BoundKind.TIMESTAMP, everywhere=round(value.timestamp() * 1000))
    if _is_offset(value):
        return Bound(everywhere=value)
    if isinstance(value, Mapping) and all(map(_is_offset, (*value.keys(), *value.values()))):
        by_partition = {TopicPartition(topic, number): offset for number, offset in value.items()}
        return Bound(by_topic={topic: default}, by_partition=by_partition)
    wrong = f"cannot scan, {side} is an offset, offsets by partition, or a datetime"
    raise InvalidRequest(wrong, value=repr(value))


def _is_iterable(value: object) -> bool:
    return isinstance(value, Iterable)


def _is_offset(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _task(
    split: Split, options: ReadOptions, names: tuple[str, ...], read: tuple[str, ...], condition: Expression | None
) -> Iterator[pa.RecordBatch]:
    for batch in read_split(split, options, read):
        kept = batch if condition is None else batch.filter(condition)
        if kept.num_rows:
            yield kept if read == names else kept.select(list(names))


class _Task:
    """One task of a scan: a queue of at most `share_bytes` and one batch, which `run` fills in a thread of the pool.

    `run` returns when the share is full, and `taken` submits it again. So no thread waits, also not at the exit of the
    process, and a suspended iterator of `batches` is never in use by two threads.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], pool: ThreadPoolExecutor, share_bytes: int, stopped: threading.Event
    ) -> None:
        self._source, self._pool, self._share_bytes, self._stopped = batches, pool, share_bytes, stopped
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._size_bytes = 0
        self._has_ended = self._is_full = False
        self._error: BaseException | None = None
        pool.submit(self._run)

    def _run(self) -> None:
        try:
            for batch in self._source:
                if not self._put(batch):
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the batches are taken
            self._error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Whether the task is to read on now."""
        with self._changed:
            self._batches.append(batch)
            self._size_bytes += batch.nbytes
            self._is_full = self._size_bytes >= self._share_bytes
            self._changed.notify_all()
            return not self._is_full and not self._stopped.is_set()

    def taken(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._has_ended)
                if not self._batches:
                    break
                batch = self._batches.popleft()
                self._size_bytes -= batch.nbytes
                if self._is_full and self._size_bytes < self._share_bytes:
                    self._is_full = False
                    self._pool.submit(self._run)
            yield batch
        if self._error is not None:
            raise self._error


def _in_order(
    plan: ReadPlan, read: Callable[[Split], Iterator[pa.RecordBatch]], threads: int, memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    stopped = threading.Event()
    waiting: deque[_Task] = deque()
    ahead = 1  # tasks in line
    numbers = iter(range(len(plan)))
    pool = ThreadPoolExecutor(threads, "tiered-scan")

    def fill() -> None:
        while len(waiting) < ahead and (number := next(numbers, None)) is not None:
            waiting.append(_Task(read(plan[number]), pool, max(1, memory_bytes // (threads + 1)), stopped))

    try:
        fill()
        while waiting:
            for batch in waiting[0].taken():
                yield batch
                ahead = threads + 1
                fill()
            waiting.popleft()
            ahead = threads + 1
            fill()
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
