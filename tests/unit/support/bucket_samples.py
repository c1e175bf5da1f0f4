"""Sample buckets: batches made with `local.records.batch`, copied and committed like by the manager."""

from __future__ import annotations

from dataclasses import dataclass

from local import kernels
from local.format.record import TimestampType
from local.index import offset_index, time_index
from local.records.batch import encode_batch
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments, replace_segments
from remote.upload.segment_upload import SegmentToCopy, copy_segment

NOW_MS = 1_700_000_000_000
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True)
class Row:
    """A record as the Spark source must return it. The timestamp is in ms."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int = 0
    headers: tuple | None = None


class SampleBucket:
    """Writes partitions into `store` and records in `rows` the expected records of a reader."""

    def __init__(self, store, url="", options=None):
        self.store = store
        self.url = url
        self.options = options or {}
        self.rows = []
        self.segments = {}
        self._logs = {}

    def log(self, topic, partition, topic_id=TOPIC_ID):
        """The manifest chain of the partition, opened for writing."""
        name = topic, partition, topic_id
        if name not in self._logs:
            prefix = partition_prefix(topic, topic_id, partition)
            log = MetadataLog(self.store, prefix)
            log.become_writer("sample", NOW_MS, topic=topic, topic_id=topic_id, partition=partition)
            self._logs[name] = prefix, log
        return self._logs[name]

    def add(
        self,
        topic,
        partition,
        batches,
        *,
        next_offset=None,
        topic_id=TOPIC_ID,
        index_bytes=0,
        chunk_bytes=4096,
        keep_rows=True,
        base_offset=None,
        replaces=(),
    ):
        """Add one segment of encoded batches, with an index entry for every batch or for every `index_bytes`.

        `replaces` are entries that the segment replaces. `base_offset` is then the base offset of the first of them.
        """
        prefix, log = self.log(topic, partition, topic_id)
        data = b"".join(batches)
        columns = kernels.decode_columns(data, verify=False)
        table = columns.table
        base_offset = int(table.base_offsets[0]) if base_offset is None else base_offset
        next_offset = int(table.last_offsets[-1]) + 1 if next_offset is None else next_offset
        offsets, times, indexed, largest, entered = [], [], 0, -1, -1
        timed = columns.timestamps[columns.timestamps >= 0]
        for number in range(len(table)):
            position, last = int(table.positions[number]), int(table.last_offsets[number])
            if number and position - indexed > index_bytes:
                offsets.append(offset_index.pack(base_offset, last, position))
                if largest > entered:
                    times.append(time_index.pack(base_offset, largest, int(table.last_offsets[number - 1])))
                    entered = largest
                indexed = position
            largest = max(largest, int(table.max_timestamps[number]))
        entry = copy_segment(
            self.store,
            prefix,
            SegmentToCopy(
                base_offset=base_offset,
                next_offset=next_offset,
                size_bytes=len(data),
                record_count=len(columns),
                max_timestamp_ms=int(columns.timestamps.max()) if len(columns) else None,
                min_timestamp_ms=int(timed.min()) if len(timed) else None,
                epochs=((0, base_offset),),
                offset_index=b"".join(offsets),
                time_index=b"".join(times),
                read=lambda start, length: data[start : start + length],
            ),
            epoch=log.epoch,
            now_ms=NOW_MS,
            chunk_bytes=chunk_bytes,
        )
        change = replace_segments(entry, [each.ulid for each in replaces]) if replaces else add_segments([entry])
        log.commit(change, NOW_MS)
        self.segments.setdefault((topic, partition), []).append(entry)
        self.rows += (
            []
            if not keep_rows
            else [
                Row(
                    topic,
                    partition,
                    record.offset,
                    record.key,
                    record.value,
                    record.timestamp_ms,
                    int(record.timestamp_type),
                    record.headers or None,
                )
                for record in columns.records()
            ]
        )
        return entry

    def data_object(self, entry, topic, partition, topic_id=TOPIC_ID):
        return partition_prefix(topic, topic_id, partition) + entry.data_key


def batch_at(base_offset, count, *, step_ms=10, codec=0, value_bytes=20, log_append=False, **changes):
    """`count` records from `base_offset`, one each `step_ms`. Some have no key, some no value, some have headers."""
    records = []
    for offset in range(base_offset, base_offset + count):
        key = None if offset % 7 == 3 else b"key-%d" % (offset % 50)
        value = None if offset % 11 == 5 else (b"value-%d-" % offset).ljust(value_bytes, b"x")
        headers = (("source", b"\x00\xff"), ("źródło", None)) if offset % 5 == 1 else ()
        records.append((key, value, NOW_MS + offset * step_ms, headers))
    kind = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": NOW_MS} if log_append else {}
    return encode_batch(records, base_offset=base_offset, codec=codec, **kind, **changes)


def run_copy(source, target, plan, *, now_ms, keys=None, entries_a_manifest=None, should_stop=lambda: False):
    """Carry out one plan of `plan_copy` in this process. Raises an entry's error after the commit of those below it."""
    from remote.manifest.sealing import keyed
    from remote.segments.encryption import NO_KEYS
    from tiered.jobs.bucket_copying import ENTRIES_A_MANIFEST, CopyJob
    from tiered.jobs.job_bucket import OpenBucket
    from tiered.jobs.runner import Here, run_job

    keys, batch_size = keys or NO_KEYS, entries_a_manifest or ENTRIES_A_MANIFEST
    here, there = (OpenBucket.of(keyed(store, keys), keys) for store in (source, target))
    job = CopyJob(source=here, target=there, plans=[plan], now_ms=now_ms, batch_size=batch_size)
    (outcome,) = run_job(job, Here(should_stop))
    return outcome
