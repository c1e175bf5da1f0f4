"""An ingest with faults and other jobs at every store call: each record once in the end."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk
from fault_store import Fault, FaultStore, Killed
from run_profile import each_call

from local.errors import Conflict, Fenced, InvalidRequest, LogError
from local.format.record import Record
from local.log import Log
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.record_columns import of_arrow
from local.settings import LogSettings
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.jobs import ingest
from tiered.jobs.ingest import abort_ingest, commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.partition.segment_inspection import segment_to_copy
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
TOPIC_ID = "A" * 22
SETTINGS = {"segment.bytes": "1024", "append.batch.bytes": "512"}
TASKS, COUNT = 2, 30


def run(store: ObjectStore, job_id: str = "job", tasks: int = TASKS, count: int = COUNT) -> None:
    """A whole job as Spark runs it: plan, tasks, commit, and an abort when the commit fails."""
    made = plan_ingest(
        store, "t", now_ms=NOW, job_id=job_id, topic_id=TOPIC_ID, create_partitions=2, settings=SETTINGS, span=1000
    )
    parts = []
    for task in range(tasks):
        disk = ModelDisk()
        disk.make_directory("./task")
        work = IngestTask(store, made, task, storage=disk, directory="./task")
        for partition in range(2):
            table = pa.table({"value": [b"%s/%d/%d" % (job_id.encode(), task, at) for at in range(count)]})
            for columns in of_arrow(table, now_ms=NOW):
                work.add(partition, columns)
        parts.append(work.end())
    try:
        commit_ingest(store, made, parts, now_ms=NOW)
    except LogError:
        abort_ingest(store, made, parts, now_ms=NOW)
        raise


def values(store: ObjectStore, partition: int) -> list[bytes | None]:
    log, name = RemoteLog(store), TopicPartition("t", partition)
    start, end = log.reader().offsets(name)
    records = list(log.reader().records(name, start)) if start < end else []
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    return [record.value for record in records]


def of_job(job_id: str) -> list[bytes]:
    return [b"%s/%d/%d" % (job_id.encode(), task, at) for task in range(TASKS) for at in range(COUNT)]


def calls() -> int:
    rehearsal = FaultStore(MemoryStore())
    run(rehearsal)
    return len(rehearsal.calls)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_an_ingest_with_any_fault_and_a_second_run_has_every_record_once(fault: Fault) -> None:
    for at in each_call(range(calls()), fault):
        inner = MemoryStore()
        store = FaultStore(inner, at, fault)
        with suppress(LogError, Killed):
            run(store)
        store.deliver(1 << 60)
        assert_sound(inner)
        run(inner)
        assert [values(inner, partition) for partition in (0, 1)] == [of_job("job")] * 2
        run(inner, "next")
        assert [values(inner, partition) for partition in (0, 1)] == [of_job("job") + of_job("next")] * 2
        assert_sound(inner)


@pytest.mark.parametrize("event", ["the same job", "another job"])
def test_an_ingest_with_another_job_between_two_calls_fails_or_has_every_record_once(event: str) -> None:
    for at in each_call(range(calls()), event):
        inner = MemoryStore()

        def meanwhile(number: int, at: int = at, inner: MemoryStore = inner) -> None:
            if number == at:
                with suppress(Fenced, Conflict):
                    run(inner, "job" if event == "the same job" else "other")

        with suppress(Fenced, Conflict):
            run(FaultStore(inner, before_call=meanwhile))
        assert_sound(inner)
        with suppress(Fenced, Conflict):
            run(inner)
        for partition in (0, 1):
            found = values(inner, partition)
            assert len(found) == len(set(found))
            assert [value for value in found if value.startswith(b"job/")] == of_job("job")  # type: ignore[union-attr]


@pytest.mark.usefixtures("every_call")
def test_an_abort_that_deletes_at_once_loses_objects_of_a_late_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken by hand: the commit's effect comes after the abort has deleted."""

    def deletes(store: ObjectStore, made: ingest.IngestPlan, parts: list[ingest.Ingested], *, now_ms: int) -> None:
        del now_ms
        entries = [
            (target.name.prefix, entry) for target in made.targets for part in parts for entry in part.entries[0]
        ]
        store.delete([prefix + entry.data_key for prefix, entry in entries])

    monkeypatch.setitem(globals(), "abort_ingest", deletes)
    with pytest.raises(AssertionError):
        test_an_ingest_with_any_fault_and_a_second_run_has_every_record_once(Fault.LATE_3)


def test_an_ingest_behind_an_open_transaction_in_the_bucket_is_refused() -> None:
    """Data of a transaction is copied, its marker is not.

    A `read_committed` reader would read no record behind it.
    """
    disk, store, name = ModelDisk(), MemoryStore(), TopicPartition("t", 0)
    log = Log.open(disk, "./t-0", name, LogSettings(), now_ms=0)
    batch = encode_batch(
        [Record(b"k", b"v", NOW)], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    log.append_encoded([bytearray(batch)], now_ms=NOW)
    log.roll(now_ms=NOW)
    log.append_marker(1, 0, commit=True, now_ms=NOW)
    prefix = partition_prefix("t", TOPIC_ID, 0)
    metadata = MetadataLog(store, prefix)
    metadata.become_writer("m", NOW, topic="t", topic_id=TOPIC_ID, partition=0)
    entry = copy_segment(store, prefix, segment_to_copy(log, log.segments()[0]), epoch=1, now_ms=NOW)
    manifest = metadata.commit(add_segments([entry]), NOW)
    with pytest.raises(InvalidRequest, match="transaction is open"):
        plan_ingest(store, "t", now_ms=NOW)
    assert MetadataLog(store, prefix).join() == manifest
