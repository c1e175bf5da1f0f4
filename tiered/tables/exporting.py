"""Export records as Parquet files by topic and date, in Spark tasks or threads; resumable, each record once.

| object below the target | content |
|---|---|
| ``topic=<topic>/date=<day>/<partition>-<first offset>-<job>-<wave>.parquet`` | records of one task and one day |
| ``_tiered/<job>/plan.json`` | the export: the offsets of each partition, fixed when the job begins |
| ``_tiered/<job>/wave-<wave>.json`` | the exported ranges of one wave of tasks, and its files |
| ``_tiered/<job>/complete.json`` | the job is finished: totals |

The day is that of the record's timestamp, in UTC. Records without one are under ``__HIVE_DEFAULT_PARTITION__``.

**Once.** A task's file names follow from its records, its wave and the pinned manifest: a task that runs twice writes
the same files twice. A wave's record is written after all its tasks. A resumed job first deletes its files that no
record names, then continues behind the last record. It begins with an empty record: another driver of the job, which
would record files that are deleted now, fails at its next record and deletes the files of its wave.

| interrupted | left behind | resumed |
|---|---|---|
| before the plan | nothing | a new job |
| in a wave | files that no record names; readers of the directory see them | deleted, then exported again |
| between record and next wave | nothing | continued |
| before ``complete`` | every file and record | written |
"""

from __future__ import annotations

import errno
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from tempfile import gettempdir
from typing import TYPE_CHECKING, Literal, Self, TypeVar, cast, get_args

import msgspec
import numpy as np
import pyarrow as pa

from local.errors import AlreadyExists, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.names import TopicPartition
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import new_ulid
from remote.store import ObjectStore, ranged_source
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import Executor, Failures, Job, run_job
from tiered.spark.jobs.runner import SparkRunner
from tiered.spark.options import Bound, ReadOptions, parse_options
from tiered.spark.source.planning import plan_read, wall_ms
from tiered.spark.source.splits import Given, ReadPlan, Split
from tiered.spark.source.task import read_split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")
VERSION = 1
Codec = Literal["zstd", "snappy", "gzip", "lz4", "none"]
CODECS: tuple[Codec, ...] = get_args(Codec)
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")  # the topic is in the name
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_OPEN_MAX = 16  # files that a task writes at a time; a record of a further day closes the least recently used one
_BUFFER_BYTES = 32 << 20  # of a file's records before they become a row group
_DAY_US = 86_400_000_000
_JOB = re.compile(r"[0-9A-Za-z_]{1,64}")
_FILE = re.compile(r"topic=[^/]+/date=[^/]+/\d+-\d{20}-([0-9A-Za-z_]+)-\d{6,}\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file: records of one partition and one day, from the first offset to behind the last."""

    key: str
    topic: str
    partition: int
    base_offset: int
    next_offset: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """The files of all runs of the job. If it is not complete, run it again with its id."""

    job_id: str
    is_complete: bool
    files: tuple[ExportedFile, ...]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    topic: str
    partition: int
    start_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """`selects`: the isolation and the view to read. `driver` is a random id, as in `_Wave`: one `ExportJob`'s."""

    source: str
    ranges: tuple[_Range, ...]
    version: int = VERSION
    selects: str | None = None
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """The record of a wave. `reached` are (topic, partition, offset)."""

    reached: tuple[tuple[str, int, int], ...] = ()
    files: tuple[ExportedFile, ...] = ()
    driver: str = ""


# Created at import: creation in two threads at once ends the process (msgspec 0.22).
_PLAN, _WAVE = msgspec.json.Decoder(_Plan), msgspec.json.Decoder(_Wave)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What a task of the plan carries, as `ReadPlan.part`."""

    part: tuple[bytes, Given]
    size_bytes: int
    wave: int
    job_id: str
    number: int = 0  # the export has one plan


def export(
    spark: SparkSession,
    url: str,
    to: str,
    *,
    to_options: Mapping[str, object] | None = None,
    job_id: str | None = None,
    codec: str = "zstd",
    work_directory: str | None = None,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda done_bytes, all_bytes: None,
    **options: str,
) -> ExportResult:
    """Export the records that `options` select, as in ``spark.read.format("tiered")``, to the store's URL `to`.

    A `job_id` that `to` has continues that job with its own offsets. `progress` receives the finished and all bytes.
    Raises the errors of planning a read, and InvalidRequest for an invalid codec or job id, or another bucket's job.
    """
    job_id = job_id or new_ulid(wall_ms())
    runner = SparkRunner(spark, job_id=f"tiered-export-{job_id}", wave_tasks=wave_tasks, should_stop=should_stop)
    target = Bucket(url=to, options=to_options or {}, work_directory=work_directory)
    return export_by(runner, runner.tasks_of_a_wave, url, target, job_id, codec=codec, progress=progress, **options)


def export_by(
    executor: Executor,
    wave_tasks: int,
    url: str,
    target: Bucket,
    job_id: str,
    *,
    codec: str,
    progress: Callable[[int, int], None],
    **options: str,
) -> ExportResult:
    """As `export`. The executor returns the results of a whole wave of `wave_tasks` tasks, or fails."""
    if codec not in CODECS:
        raise InvalidRequest("cannot export, the codec is unknown", codec=codec, choices=",".join(CODECS))
    if not _JOB.fullmatch(job_id):
        raise InvalidRequest("cannot export, invalid job id: use letters, digits and _", job=repr(job_id))
    request, done = parse_options({"path": url, **options, "includeHeaders": "true"}), 0

    def report(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress(done, job.read_bytes)

    with target.opened() as store:
        job = ExportJob(store, target, request, codec, job_id, wave_tasks=wave_tasks)
        report(0)
        (result,) = run_job(job, executor, task_bytes=0, progress=report)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange(_Range):
    """An export's planned part of one partition: `size_bytes` of batches in `tasks` tasks."""

    size_bytes: int
    tasks: int


def plan_export(url: str, **options: str) -> list[PlannedRange]:
    """Return the ranges that a new export would read, without Spark and pins. Raises the errors of planning."""
    return _ranges(_planned(parse_options({"path": url, **options, "includeHeaders": "true", "pin": "none"})))


def _ranges(plan: ReadPlan) -> list[PlannedRange]:
    """The tasks of each partition together; they follow each other in offset order."""
    found: dict[tuple[str, int], tuple[int, int, int, int]] = {}
    for read, first, end, size in plan.tasks():
        start, _, size_bytes, tasks = found.get((read.topic, read.partition), (first, 0, 0, 0))
        found[read.topic, read.partition] = start, end, size_bytes + size, tasks + 1
    return [
        PlannedRange(
            topic=topic, partition=partition, start_offset=start, next_offset=end, size_bytes=size_bytes, tasks=tasks
        )
        for (topic, partition), (start, end, size_bytes, tasks) in sorted(found.items())
    ]


def _planned(request: ReadOptions) -> ReadPlan:
    with request.bucket.opened() as store:
        return plan_read(store, request)


class ExportJob(Job[_Task, list[ExportedFile], ExportResult]):
    """The export of one job id; a unit is a task; a commit writes the record of a wave to the target."""

    def __init__(
        self, store: ObjectStore, target: Bucket, request: ReadOptions, codec: Codec, job_id: str, *, wave_tasks: int
    ) -> None:
        """Begin or continue the job. Raises InvalidRequest for another bucket's, Corrupt for an unreadable record."""
        self.job_id, self._source = job_id, request.bucket.url
        self.failures = Failures(())
        self.description = f"exporting to {store.url}, job {job_id}"
        self._store, self._target, self._codec, self._wave_tasks = store, target, codec, wave_tasks
        self._request, self._driver = request, new_ulid(wall_ms())
        self._selects = ("" if request.is_committed else "un") + "committed records of " + (request.view or "the log")
        self._waves: list[tuple[ExportedFile, ...]] = []
        self._reached: dict[tuple[str, int], int] = {}
        plan = self._read("plan.json", _PLAN)
        if plan is not None and plan.source != self._source:
            facts = {"job": job_id, "source": plan.source, "asked": self._source}
            raise InvalidRequest("cannot resume the export, the job belongs to another bucket", **facts)
        if plan is not None and plan.selects not in (None, self._selects):
            facts = {"job": job_id, "job_exports": repr(plan.selects), "asked": repr(self._selects)}
            raise InvalidRequest("cannot resume the export, the options select other records", **facts)
        while (wave := self._read(f"wave-{len(self._waves):06d}.json", _WAVE)) is not None:
            self._add(wave)
        self.plan = self._begun() if plan is None else self._resumed(plan)
        self.read_bytes = sum(size for *_, size in self.plan.tasks())  # of batches, in this run
        self._first_wave, self._done = len(self._waves), 0

    def units(self) -> Iterator[_Task]:
        for at, (*_, size) in enumerate(self.plan.tasks()):
            wave = self._first_wave + at // self._wave_tasks
            yield _Task(part=self.plan.part(at), size_bytes=size, wave=wave, job_id=self.job_id)

    def size_of(self, unit: _Task) -> int:
        return unit.size_bytes

    def worker(self) -> Callable[[Sequence[_Task]], list[list[ExportedFile] | LogError]]:
        target, request, codec, common = self._target, self._request, self._codec, self.plan.common()
        return lambda tasks: [_written(target, request, codec, task, common.split(task.part)) for task in tasks]

    def commit(self, results: Sequence[tuple[_Task, list[ExportedFile] | LogError]]) -> None:
        """Record a finished wave. Splits are in offset order: only the last partition may be unfinished."""
        files = tuple(file for _, written in results if not isinstance(written, LogError) for file in written)
        reached: dict[tuple[str, int], int] = {}
        for file in files:
            name = file.topic, file.partition
            reached[name] = max(reached.get(name, 0), file.next_offset)
        self._done += len(results)
        following = self.plan[self._done] if self._done < len(self.plan) else None
        for split in (self.plan.split(task.part) for task, _ in results):
            if following is None or (split.topic, split.partition) != (following.topic, following.partition):
                reached[split.topic, split.partition] = split.next_offset
        try:
            self._record(_Wave(reached=tuple((*name, at) for name, at in reached.items()), files=files))
        except InvalidRequest:
            delete_objects(self._store, "", [each.key for each in files], DeleteReason.EXPORT)
            raise

    def _record(self, wave: _Wave) -> None:
        """Raises InvalidRequest if another driver has recorded a wave of this number, its first empty one perhaps."""
        self._create(f"wave-{len(self._waves):06d}.json", replace(wave, driver=self._driver), _WAVE)
        self._add(wave)

    def _create(self, name: str, record: R, decoder: msgspec.json.Decoder[R]) -> None:
        try:
            self._store.put_if_absent(self._key(name), msgspec.json.encode(record))
        except AlreadyExists as error:
            if self._read(name, decoder) != record:  # else of an earlier attempt of this call
                raise InvalidRequest("cannot export, another driver runs this job", job=self.job_id) from error

    def outcomes(self) -> list[ExportResult]:
        files = tuple(file for wave in self._waves for file in wave)
        is_complete = self._done == len(self.plan)
        result = ExportResult(job_id=self.job_id, is_complete=is_complete, files=files)
        if is_complete:
            description = {"files": len(files), "records": result.records, "size_bytes": result.size_bytes}
            self._store.put(self._key("complete.json"), msgspec.json.encode(description))
        return [result]

    def _add(self, wave: _Wave) -> None:
        self._waves.append(wave.files)
        self._reached.update({(topic, partition): offset for topic, partition, offset in wave.reached})

    def _begun(self) -> ReadPlan:
        found = _planned(self._request)
        ranges = tuple(_Range(**{at.name: getattr(each, at.name) for at in fields(_Range)}) for each in _ranges(found))
        plan = _Plan(source=self._source, ranges=ranges, selects=self._selects, driver=self._driver)
        self._create("plan.json", plan, _PLAN)
        return found

    def _resumed(self, plan: _Plan) -> ReadPlan:
        starts, ends = dict[TopicPartition, int](), dict[TopicPartition, int]()
        for each in plan.ranges:
            reached = max(each.start_offset, self._reached.get((each.topic, each.partition), 0))
            if reached < each.next_offset:
                name = TopicPartition(each.topic, each.partition)
                starts[name], ends[name] = reached, each.next_offset
        if starts:
            self._record(_Wave())
        self._delete_unrecorded({each.topic for each in plan.ranges})
        if not starts:
            return ReadPlan()
        start, end = Bound(by_partition=starts), Bound(by_partition=ends)
        remaining = replace(self._request, topics=None, pattern=None, partitions=tuple(starts), start=start, end=end)
        return _planned(remaining)

    def _delete_unrecorded(self, topics: Iterable[str]) -> None:
        recorded = {file.key for wave in self._waves for file in wave}
        for topic in sorted(topics):
            names = [(info.key, _FILE.fullmatch(info.key)) for info in self._store.list(f"topic={topic}/")]
            cut = [key for key, name in names if name and name[1] == self.job_id and key not in recorded]
            delete_objects(self._store, "", cut, DeleteReason.EXPORT)

    def _key(self, name: str) -> str:
        return f"_tiered/{self.job_id}/{name}"

    def _read(self, name: str, decoder: msgspec.json.Decoder[R]) -> R | None:
        try:
            return decoder.decode(self._store.get(self._key(name)))
        except NotFound:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt("cannot read the record of an export, it is not JSON", object=self._key(name)) from error


def _written(target: Bucket, request: ReadOptions, codec: Codec, task: _Task, split: Split) -> list[ExportedFile]:
    files = []
    with _disk_errors(target), target.opened() as store, target.scratch() as directory:
        for written in day_files(directory, codec, read_split(split, request, COLUMNS)):
            name = f"{split.partition}-{written.base_offset:020d}-{task.job_id}-{task.wave:06d}.parquet"
            key = f"topic={split.topic}/date={written.date}/{name}"
            size_bytes = _upload(store, key, written.path)
            os.unlink(written.path)
            place = {"topic": split.topic, "partition": split.partition}
            offsets = {"base_offset": written.base_offset, "next_offset": written.next_offset}
            files.append(ExportedFile(key=key, records=written.records, size_bytes=size_bytes, **place, **offsets))  # type: ignore[arg-type]
    return files


@contextmanager
def _disk_errors(target: Bucket) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # also of pyarrow, without a path
        cause = errno.errorcode.get(error.errno or 0, type(error).__name__).lower()
        wrong = "cannot export, a temporary file cannot be written"
        raise DiskFailed(wrong, directory=target.work_directory or gettempdir(), cause=cause) from error


def _upload(store: ObjectStore, key: str, path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size

        def read(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        store.upload(key, ranged_source(size_bytes, read))
    return size_bytes


def day_files(directory: str, codec: Codec, batches: Iterator[pa.RecordBatch]) -> Iterator[DayFile]:
    """Write the records of each day to separate files; yield each when whole, for the caller to delete."""
    opened, no_day = OrderedDict[str, DayFile](), np.iinfo(np.int64).min
    for batch in batches:
        stamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
        days = np.where(stamps == -1000, no_day, stamps // _DAY_US)  # -1 ms: a record without a time
        for day in np.unique(days):
            date = NO_DATE if day == no_day else str(np.datetime64(int(day), "D"))  # for any year, unlike datetime
            part = batch if (days == day).all() else batch.filter(pa.array(days == day))
            if date not in opened:
                if len(opened) == _OPEN_MAX:
                    yield opened.popitem(last=False)[1].closed()
                opened[date] = DayFile(directory, date, part, codec)
            opened.move_to_end(date)
            opened[date].add(part)
    for file in opened.values():
        yield file.closed()


class DayFile:
    def __init__(self, directory: str, date: str, batch: pa.RecordBatch, codec: Codec) -> None:
        from pyarrow.parquet import ParquetWriter

        self.date, self.records, self._schema = date, 0, batch.schema
        self.base_offset = self.next_offset = _offset(batch, 0)
        self.path = os.path.join(directory, f"{date}-{self.base_offset}.parquet")
        self._buffered: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer = ParquetWriter(self.path, batch.schema, compression=codec)

    def add(self, batch: pa.RecordBatch) -> None:
        self._buffered.append(batch)
        self._bytes += batch.nbytes
        self.records += batch.num_rows
        self.next_offset = _offset(batch, batch.num_rows - 1) + 1
        if self._bytes >= _BUFFER_BYTES:
            self._flush()

    def closed(self) -> Self:
        self._flush()
        self._writer.close()
        return self

    def _flush(self) -> None:
        if self._buffered:
            self._writer.write_table(pa.Table.from_batches(self._buffered, self._schema))
        self._buffered, self._bytes = [], 0


def _offset(batch: pa.RecordBatch, row: int) -> int:
    return int(cast(int, batch.column("offset")[row].as_py()))
