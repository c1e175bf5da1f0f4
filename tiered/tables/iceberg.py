"""Append what is new in a topic to an Iceberg table: one snapshot for each sync, each record exactly once.

The snapshot that adds the records also says which records they are: its summary has the next offset of each partition,
and the table's properties have the same. So there is no state outside the table. Order of effects of a sync:

1. Load the table, or create it, and read the offsets of its last sync.
2. Plan the offsets from there to the end of the pinned manifests. Without new records nothing is written.
3. Write the Parquet files of the records, by day, under names that no other sync has.
4. Commit the files and the offsets as one snapshot on top of the snapshot of step 1.

| interrupted | left behind | the next sync |
|---|---|---|
| before step 3 | at most an empty table | begins |
| in step 3, by an error | nothing: the files are deleted | writes them again |
| in step 3, by a kill | files that no snapshot names: `remove_orphan_files` of Iceberg | writes them again |
| in step 4, the commit was refused | nothing: the files are deleted | reads the newer offsets |
| in step 4, the reply was lost | the snapshot, or files that no snapshot names | begins where the table ends |

Step 4 never retries on top of another snapshot, as pyiceberg's own commits do: of two syncs at a time one is refused.
A table that was rolled back is filled again from its older offsets.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from pyiceberg.transforms import DayTransform, MonthTransform, Transform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from local.errors import Conflict, Corrupt, InvalidRequest, Unavailable
from remote.gc.pins import release_all
from remote.keys import new_ulid
from tiered.spark.options import ReadOptions
from tiered.spark.source.planning import wall_ms
from tiered.spark.source.splits import ReadPlan
from tiered.spark.source.task import read_split
from tiered.tables.exporting import CODECS, COLUMNS, Codec, day_files
from tiered.tables.parquet_export import ThreadWaves
from tiered.tables.scan import Selection

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from tiered.tables.remote_tables import RemoteTables

OFFSETS = "tiered.next-offsets"  # of a snapshot's summary and of the table: JSON, by partition
SEQUENCE = "tiered.sequence-number"  # of the table: the sequence number of the last sync's snapshot
TOPIC_ID = "tiered.topic-id"  # of the table
PARTITIONINGS = ("day", "month", "none")
_TIMESTAMP = 5
_COPY_BYTES = 8 << 20
# The ids are those that a catalog gives to a new table.
SCHEMA = Schema(
    NestedField(1, "key", BinaryType()),
    NestedField(2, "value", BinaryType()),
    NestedField(3, "partition", IntegerType()),
    NestedField(4, "offset", LongType()),
    NestedField(_TIMESTAMP, "timestamp", TimestamptzType()),
    NestedField(6, "timestampType", IntegerType()),
    NestedField(
        7,
        "headers",
        ListType(8, StructType(NestedField(9, "key", StringType()), NestedField(10, "value", BinaryType())), False),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """A finished sync. `snapshot_id` is None if there was nothing new. `next_offsets` are by partition."""

    snapshot_id: int | None
    records: int
    files: int
    size_bytes: int
    next_offsets: Mapping[int, int]


def sync(
    bucket: RemoteTables,
    topic: str,
    catalog: Catalog,
    table: str,
    *,
    partitioning: str = "day",
    codec: str = "zstd",
    threads: int = 2,
    view: str | None = None,
    is_committed: bool = True,
    fail_on_data_loss: bool = True,
    work_directory: str | None = None,
) -> SyncResult:
    """Append the topic's records since the last sync to the Iceberg table `table`, "namespace.name", created if absent.

    `partitioning` is by the day or the month of the timestamp, or none; an existing table keeps its own. A compacted
    topic is appended as its history: the records that the bucket still has. `work_directory` is for temporary files.

    Raises InvalidRequest for a table with other columns or of another topic, Conflict if another commit came between,
    OffsetOutOfRange if retention deleted records that were not yet appended (`fail_on_data_loss` off leaves them out),
    and the errors of pyiceberg.
    """
    if partitioning not in PARTITIONINGS or codec not in CODECS or threads < 1:
        wrong = "cannot sync the table, the partitioning, the codec or the number of threads is not allowed"
        facts = {"partitionings": ",".join(PARTITIONINGS), "codecs": ",".join(CODECS), "threads": threads}
        raise InvalidRequest(wrong, partitioning=partitioning, codec=codec, **facts)
    (partition, *_) = bucket.partitions(topic)
    topic_id = bucket.manifest(partition).topic_id
    into = _opened(catalog, table, topic, topic_id, partitioning)
    reached = _reached(into)
    selection = Selection(
        topic=topic,
        topic_id=topic_id,
        start=reached or None,
        view=view,
        is_committed=is_committed,
        fail_on_data_loss=fail_on_data_loss,
    )
    plan, options = bucket.planned(selection, threads)
    try:
        write = _Writer(into, plan, options, codec, work_directory)
        written = write.all_files(threads)
        if not written:
            return SyncResult(snapshot_id=None, records=0, files=0, size_bytes=0, next_offsets=reached)
        ends = _ends(plan, reached)
        try:
            snapshot_id = _committed(into, [each.location for each in written], ends, topic_id)
        except Conflict:
            write.delete()
            raise
    finally:
        release_all(bucket.store, plan.pins())
    return SyncResult(
        snapshot_id=snapshot_id,
        records=sum(each.records for each in written),
        files=len(written),
        size_bytes=sum(each.size_bytes for each in written),
        next_offsets=ends,
    )


def _opened(catalog: Catalog, name: str, topic: str, topic_id: str, partitioning: str) -> Table:
    """The table, created if absent. Raises InvalidRequest if the topic does not fit into it."""
    try:
        found = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        transform: Transform[Any, Any] = MonthTransform() if partitioning == "month" else DayTransform()
        by_time = PartitionSpec(PartitionField(_TIMESTAMP, 1000, transform, "date"))
        found = catalog.create_table(
            name,
            schema=SCHEMA,
            partition_spec=UNPARTITIONED_PARTITION_SPEC if partitioning == "none" else by_time,
            properties={
                TOPIC_ID: topic_id,
                TableProperties.DEFAULT_NAME_MAPPING: SCHEMA.name_mapping.model_dump_json(),
            },
        )
    columns = {field.name: field.type for field in found.schema().as_arrow()}
    for field in SCHEMA.as_arrow():
        if columns.get(field.name) != field.type:
            facts = {"column": field.name, "needed": field.type, "found": columns.get(field.name)}
            raise InvalidRequest("cannot sync the table, it has another column", table=name, **facts)
    if (known := found.properties.get(TOPIC_ID, topic_id)) != topic_id:
        facts = {"topic": topic, "topic_id": topic_id, "topic_id_of_table": known}
        raise InvalidRequest("cannot sync the table, it has the records of another topic", table=name, **facts)
    return found


def _reached(table: Table) -> dict[int, int]:
    """The next offset of each partition, by the newest sync among the ancestors of the current snapshot.

    An expired snapshot leaves no trace in its children. Then the table's properties have the offsets of the last sync,
    unless the table was rolled back since. That is certain if the sync's snapshot still exists, or is newer than the
    current one, and raises InvalidRequest. A table is not to be rolled back, changed by another program and expired.
    """
    newest = snapshot = table.current_snapshot()
    while snapshot is not None:
        if (text := _offsets_of(snapshot)) is not None:
            return _parsed(table, text)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    text = table.properties.get(OFFSETS)
    if text is None:
        return {}
    is_older = newest is None or (newest.sequence_number or 0) < int(table.properties.get(SEQUENCE, 0))
    if is_older or any(_offsets_of(each) == text for each in table.snapshots()):
        wrong = "cannot sync the table, it was rolled back to a snapshot without offsets"
        raise InvalidRequest(wrong, table=".".join(table.name()), fix="sync into a new table")
    return _parsed(table, text)


def _offsets_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(OFFSETS)


def _parsed(table: Table, text: str) -> dict[int, int]:
    try:
        return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        wrong = "cannot sync the table, its record of offsets is not readable"
        raise Corrupt(wrong, table=".".join(table.name()), property=OFFSETS, value=text[:200]) from error


def _ends(plan: ReadPlan, reached: Mapping[int, int]) -> dict[int, int]:
    found = dict(reached)
    for read, _, end, _ in plan.tasks():
        found[read.partition] = max(end, found.get(read.partition, 0))
    return dict(sorted(found.items()))


def _committed(table: Table, locations: list[str], ends: Mapping[int, int], topic_id: str) -> int:
    """Commit the files and offsets; return the snapshot's id. Raises Conflict if another commit came between.

    Raises Unavailable if it is not known whether the commit was made.
    """
    offsets = json.dumps({str(partition): offset for partition, offset in ends.items()})
    sequence = table.metadata.next_sequence_number()
    staged = table.transaction()
    staged.add_files(locations, snapshot_properties={OFFSETS: offsets}, check_duplicate_files=False)
    staged.set_properties({OFFSETS: offsets, SEQUENCE: str(sequence), TOPIC_ID: topic_id})
    (snapshot_id,) = (each.snapshot.snapshot_id for each in staged._updates if isinstance(each, AddSnapshotUpdate))
    # Not `commit_transaction`: after a conflict it adds the same records on top of the other sync's.
    requirements = (*staged._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
    name = ".".join(table.name())
    try:
        table.catalog.commit_table(table, requirements, staged._updates)
    except CommitFailedException as error:
        wrong = "cannot sync the table, another commit came between; run the sync again"
        raise Conflict(wrong, table=name, cause=str(error).splitlines()[0]) from error
    except Exception as error:
        with suppress(Exception):  # the first error is raised
            if table.catalog.load_table(name).snapshot_by_id(snapshot_id) is not None:
                return int(snapshot_id)
        wrong = "cannot see whether the sync was committed; run it again, records are not repeated"
        raise Unavailable(wrong, table=name, cause=type(error).__name__) from error
    return int(snapshot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    location: str
    records: int
    size_bytes: int


class _Writer:
    """Writes the records of a plan into data files of the table. Thread safe."""

    def __init__(
        self, table: Table, plan: ReadPlan, options: ReadOptions, codec: Codec, work_directory: str | None
    ) -> None:
        self._table, self._plan, self._options, self._codec = table, plan, options, codec
        self._work_directory = work_directory
        self._name = new_ulid(wall_ms())
        self._begun: list[str] = []  # locations

    def all_files(self, threads: int) -> list[_File]:
        """Raises the error of the first failed task; then all files are deleted."""
        try:
            waves = ThreadWaves(threads=threads).run("table sync", range(len(self._plan)), self._task)
            return [file for wave in waves for _, files in wave for file in files]
        except BaseException:
            self.delete()
            raise

    def delete(self) -> None:
        """Delete all files that were begun. One that cannot be deleted stays, and no snapshot names it."""
        for location in self._begun:
            with suppress(Exception):
                self._table.io.delete(location)

    def _task(self, number: int) -> list[_File]:
        split, files = self._plan[number], []
        batches = read_split(split, self._options, COLUMNS)
        with TemporaryDirectory(prefix="tiered-", dir=self._work_directory) as directory:
            for part, made in enumerate(day_files(directory, self._codec, batches)):
                location = f"{self._table.location()}/data/{self._name}-{number:06d}-{part:03d}.parquet"
                self._begun.append(location)
                with open(made.path, "rb") as file, self._table.io.new_output(location).create() as out:
                    shutil.copyfileobj(file, out, _COPY_BYTES)
                size_bytes = os.path.getsize(made.path)
                os.unlink(made.path)
                files.append(_File(location=location, records=made.records, size_bytes=size_bytes))
        return files
