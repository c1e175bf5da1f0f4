"""Export records as Parquet files by topic and date, in Spark tasks; resumable, each record once.

| object below the target | content |
|---|---|
| ``topic=<topic>/date=<day>/<partition>-<first offset>-<job>-<wave>.parquet`` | records of one task and one day |
| ``_tiered/<job>/plan.json`` | the export: the offsets of each partition, fixed when the job begins |
| ``_tiered/<job>/wave-<wave>.json`` | the exported ranges of one wave of tasks, and its files |
| ``_tiered/<job>/complete.json`` | the job is finished: totals |

The day is that of the record's timestamp, in UTC. Records without one are under ``__HIVE_DEFAULT_PARTITION__``. Readers
of directories (Spark, DuckDB, pyarrow) skip names that begin with an underscore.

**Once.** A task's file names follow from its records and its wave, and these from the pinned manifest. A task that runs
twice therefore writes the same files twice. A wave's record is written after all its tasks. A resumed job first deletes
its files that no record names, then continues behind the last record. Two drivers must not run one job at a time.

| interrupted | left behind | resumed |
|---|---|---|
| before the plan | nothing | a new job |
| in a wave | files that no record names; readers of the directory see them | deleted, then exported again |
| between record and next wave | nothing | continued |
| before ``complete`` | every file and record | written |
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

import msgspec

from local.errors import AlreadyExists, Corrupt, InvalidRequest, NotFound
from local.names import TopicPartition
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import new_ulid
from remote.store import ObjectStore, ranged_source
from tiered.jobs.job_bucket import Bucket
from tiered.spark.jobs.runner import SparkRunner
from tiered.spark.options import Bound, ReadOptions, parse_options
from tiered.spark.source.pinning import wall_ms
from tiered.spark.source.splits import Split

if TYPE_CHECKING:
    import pyarrow as pa
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
_FILE = re.compile(r"topic=[^/]+/date=[^/]+/\d+-\d{20}-([0-9A-Za-z_]+)-(\d{6})\.parquet")


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
    """The record ``plan.json``."""

    source: str
    ranges: tuple[_Range, ...]
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """The record of a wave. `reached` are (topic, partition, offset)."""

    reached: tuple[tuple[str, int, int], ...]
    files: tuple[ExportedFile, ...]


# Created at import: creation in two threads at once ends the process (msgspec 0.22).
_PLAN, _WAVE = msgspec.json.Decoder(_Plan), msgspec.json.Decoder(_Wave)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    split: Split
    wave: int
    job_id: str


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
    """Export the records that `options` select, as in ``spark.read.format("tiered")``, to `to`.

    A `job_id` that `to` has continues that job: it has the offsets of its begin, and only the other `options` count.
    `to` is a store's URL. `progress` receives the finished bytes of batches of this run and their total.

    Raises the errors of planning a read, and InvalidRequest for an invalid codec or job id, or a job of another bucket.
    """
    if codec not in CODECS:
        raise InvalidRequest("cannot export with Spark, the codec is unknown", codec=codec, choices=",".join(CODECS))
    if job_id is not None and not _JOB.fullmatch(job_id):
        raise InvalidRequest("cannot export with Spark, invalid job id: use letters, digits and _", job=repr(job_id))
    request = parse_options({"path": url, **options, "includeHeaders": "true"})
    target = Bucket(url=to, options=to_options or {}, work_directory=work_directory)
    with target.opened() as store:
        job = _Job(store, job_id or new_ulid(wall_ms()), url)
        splits = _due(job, request)
        done, everything = 0, _size(splits)
        progress(done, everything)
        group = f"tiered-export-{job.job_id}"
        runner = SparkRunner(spark, job_id=group, wave_tasks=wave_tasks, should_stop=should_stop)
        step = runner.tasks_of_a_wave
        first = len(job.waves)
        tasks = [
            _Task(split=split, wave=first + number // step, job_id=job.job_id) for number, split in enumerate(splits)
        ]
        description = f"exporting to {store.url}, job {job.job_id}"
        through = 0
        for finished in runner.run(description, tasks, _writing(target, request, codec)):
            through += len(finished)
            following = splits[through] if through < len(splits) else None
            of_wave = [task.split for task, _ in finished]
            job.finish_wave(of_wave, [file for _, files in finished for file in files], following)
            done += _size(of_wave)
            progress(done, everything)
        return job.result(is_complete=through == len(splits))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """An export's planned part of one partition: `size_bytes` of batches in `tasks` tasks."""

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    size_bytes: int
    tasks: int


def plan_export(url: str, **options: str) -> list[PlannedRange]:
    """The ranges that `export` of a new job would read.

    Needs no Spark and pins nothing. Raises the errors of planning a read.
    """
    found: dict[tuple[str, int], list[Split]] = {}
    for split in _planned(parse_options({"path": url, **options, "includeHeaders": "true", "pin": "none"})):
        found.setdefault((split.topic, split.partition), []).append(split)
    return [
        PlannedRange(
            topic=topic,
            partition=partition,
            start_offset=min(each.start_offset for each in splits),
            next_offset=max(each.next_offset for each in splits),
            size_bytes=_size(splits),
            tasks=len(splits),
        )
        for (topic, partition), splits in sorted(found.items())
    ]


def _size(splits: Iterable[Split]) -> int:
    return sum(split.size_bytes for split in splits)


def _due(job: _Job, request: ReadOptions) -> list[Split]:
    """The remaining splits of a new or resumed job, ordered so that waves continue earlier ones."""
    if not job.is_known:
        splits = _planned(request)
        job.begin(splits)
        return splits
    job.sweep()
    remaining = job.remaining()
    if not remaining:
        return []
    parts = {TopicPartition(each.topic, each.partition): each for each in remaining}
    starts = Bound(by_partition={name: each.start_offset for name, each in parts.items()})
    ends = Bound(by_partition={name: each.next_offset for name, each in parts.items()})
    return _planned(replace(request, topics=None, pattern=None, partitions=tuple(parts), start=starts, end=ends))


def _planned(request: ReadOptions) -> list[Split]:
    from tiered.spark.source.planning import plan_read

    with request.bucket.opened() as store:
        return sorted(plan_read(store, request), key=lambda split: (split.topic, split.partition, split.start_offset))


class _Job:
    """The target's records of one job, in the driver only."""

    def __init__(self, store: ObjectStore, job_id: str, source: str) -> None:
        """Raises InvalidRequest for a job that exports another bucket, Corrupt for an unreadable record."""
        self.job_id = job_id
        self.waves: list[tuple[ExportedFile, ...]] = []
        self._store, self._source = store, source
        self._reached: dict[tuple[str, int], int] = {}
        plan = self._read("plan.json", _PLAN)
        self.is_known = plan is not None
        self.ranges = plan.ranges if plan is not None else ()
        if plan is not None and plan.source != source:
            facts = {"job": job_id, "source": plan.source, "asked": source}
            raise InvalidRequest("cannot resume the export, the job belongs to another bucket", **facts)
        while (wave := self._read(f"wave-{len(self.waves):06d}.json", _WAVE)) is not None:
            self._add(wave)

    def _add(self, wave: _Wave) -> None:
        self.waves.append(wave.files)
        self._reached.update({(topic, partition): offset for topic, partition, offset in wave.reached})

    def begin(self, splits: Sequence[Split]) -> None:
        """Fix the ranges of the export. Raises InvalidRequest if another driver begins the same job."""
        ranges: dict[tuple[str, int], _Range] = {}
        for split in splits:  # a partition may have several: a view's and the log's, or limited ones
            name, start, end = (split.topic, split.partition), split.start_offset, split.next_offset
            if (known := ranges.get(name)) is not None:
                start, end = min(start, known.start_offset), max(end, known.next_offset)
            ranges[name] = _Range(topic=name[0], partition=name[1], start_offset=start, next_offset=end)
        self.ranges = tuple(ranges.values())
        plan = _Plan(source=self._source, ranges=self.ranges)
        try:
            self._store.put_if_absent(self._key("plan.json"), msgspec.json.encode(plan))
        except AlreadyExists as error:  # or this job's own plan, from an attempt in doubt
            if self._read("plan.json", _PLAN) != plan:
                raise InvalidRequest(
                    "cannot export with Spark, another driver runs this job", job=self.job_id
                ) from error

    def remaining(self) -> list[_Range]:
        """The ranges that no wave has reached."""
        rest = [
            replace(each, start_offset=max(each.start_offset, self._reached.get((each.topic, each.partition), 0)))
            for each in self.ranges
        ]
        return [each for each in rest if each.start_offset < each.next_offset]

    def sweep(self) -> None:
        """Delete files of this job that no record names: a wave was interrupted."""
        for topic in sorted({each.topic for each in self.ranges}):
            listed = self._store.list(f"topic={topic}/")
            names = [(info.key, _FILE.fullmatch(info.key)) for info in listed]
            cut = [
                key
                for key, name in names
                if name is not None and name[1] == self.job_id and int(name[2]) >= len(self.waves)
            ]
            delete_objects(self._store, "", cut, DeleteReason.EXPORT)

    def finish_wave(self, splits: Sequence[Split], files: Sequence[ExportedFile], following: Split | None) -> None:
        """Record a finished wave; `following` is the first split after it.

        Splits are in offset order, so the rest of a partition is behind the last record that was read.
        """
        reached: dict[tuple[str, int], int] = {}
        for file in files:
            name = file.topic, file.partition
            reached[name] = max(reached.get(name, 0), file.next_offset)
        unfinished = (following.topic, following.partition) if following is not None else None
        for split in splits:
            if (split.topic, split.partition) != unfinished:
                reached[split.topic, split.partition] = split.next_offset
        wave = _Wave(reached=tuple((*name, offset) for name, offset in reached.items()), files=tuple(files))
        self._store.put(self._key(f"wave-{len(self.waves):06d}.json"), msgspec.json.encode(wave))
        self._add(wave)

    def result(self, *, is_complete: bool) -> ExportResult:
        files = tuple(file for wave in self.waves for file in wave)
        result = ExportResult(job_id=self.job_id, is_complete=is_complete, files=files)
        if is_complete:
            description = {"files": len(files), "records": result.records, "size_bytes": result.size_bytes}
            self._store.put(self._key("complete.json"), msgspec.json.encode(description))
        return result

    def _key(self, name: str) -> str:
        return f"_tiered/{self.job_id}/{name}"

    def _read(self, name: str, decoder: msgspec.json.Decoder[R]) -> R | None:
        try:
            return decoder.decode(self._store.get(self._key(name)))
        except NotFound:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt("cannot read the record of an export, it is not JSON", object=self._key(name)) from error


def _writing(target: Bucket, request: ReadOptions, codec: Codec) -> Callable[[_Task], list[ExportedFile]]:
    def write(task: _Task) -> list[ExportedFile]:
        from tiered.spark.source.task import read_split

        split = task.split
        files = []
        with target.opened() as store, target.scratch() as directory:
            for written in _files(directory, codec, read_split(split, request, COLUMNS)):
                name = f"{split.partition}-{written.first_offset:020d}-{task.job_id}-{task.wave:06d}.parquet"
                key = f"topic={split.topic}/date={written.date}/{name}"
                size_bytes = _upload(store, key, written.path)
                os.unlink(written.path)
                files.append(
                    ExportedFile(
                        key=key,
                        topic=split.topic,
                        partition=split.partition,
                        base_offset=written.first_offset,
                        next_offset=written.last_offset + 1,
                        records=written.records,
                        size_bytes=size_bytes,
                    )
                )
        return files

    return write


def _upload(store: ObjectStore, key: str, path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size

        def read(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        store.upload(key, ranged_source(size_bytes, read))
    return size_bytes


@dataclass(frozen=True, slots=True)
class _Written:
    date: str
    path: str
    records: int
    first_offset: int
    last_offset: int


def _files(directory: str, codec: Codec, batches: Iterator[pa.RecordBatch]) -> Iterator[_Written]:
    """Write the records of each day to separate files; yields each file when it is whole.

    The caller may then delete it.
    """
    import numpy as np
    import pyarrow as pa

    opened: OrderedDict[str, _DayFile] = OrderedDict()
    for batch in batches:
        stamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
        days = np.where(stamps == -1000, np.iinfo(np.int64).min, stamps // _DAY_US)  # -1 ms: a record without a time
        for day in np.unique(days):
            date = _date(int(day))
            part = batch if (days == day).all() else batch.filter(pa.array(days == day))
            if date not in opened:
                if len(opened) == _OPEN_MAX:
                    yield opened.popitem(last=False)[1].close()
                opened[date] = _DayFile(directory, date, part, codec)
            opened.move_to_end(date)
            opened[date].add(part)
    for file in opened.values():
        yield file.close()


def _date(day: int) -> str:
    """A day as in the directory name, also for years outside of the calendar."""
    import numpy as np

    return NO_DATE if day == np.iinfo(np.int64).min else str(np.datetime64(day, "D"))


class _DayFile:
    def __init__(self, directory: str, date: str, batch: pa.RecordBatch, codec: Codec) -> None:
        """`batch` is the first batch to add: it determines the file's name and columns."""
        from pyarrow.parquet import ParquetWriter

        self._date, self._records, self._schema = date, 0, batch.schema
        self._first_offset = self._last_offset = _offset(batch, 0)
        self._path = os.path.join(directory, f"{date}-{self._first_offset}.parquet")
        self._buffered: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer = ParquetWriter(self._path, batch.schema, compression=codec)

    def add(self, batch: pa.RecordBatch) -> None:
        self._buffered.append(batch)
        self._bytes += batch.nbytes
        self._records += batch.num_rows
        self._last_offset = _offset(batch, batch.num_rows - 1)
        if self._bytes >= _BUFFER_BYTES:
            self._flush()

    def close(self) -> _Written:
        self._flush()
        self._writer.close()
        return _Written(self._date, self._path, self._records, self._first_offset, self._last_offset)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._buffered:
            self._writer.write_table(pa.Table.from_batches(self._buffered, self._schema))
        self._buffered, self._bytes = [], 0


def _offset(batch: pa.RecordBatch, row: int) -> int:
    return int(cast(int, batch.column("offset")[row].as_py()))
