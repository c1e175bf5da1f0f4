"""One task of a bulk ingest: records in, uploaded segments out (`tiered.jobs.ingest`).

Encoded batches are written to a spool file, which is uploaded as a segment at about ``segment.bytes``. Memory:
HELD_BYTES of records and one batch's encoding. Disk: one segment for each partition of the task.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import numpy as np

from local import kernels
from local.errors import InvalidRequest, LogError
from local.format.batch_header import read_header
from local.index.index_files import IndexRows
from local.log.checkpoints import encode_epochs
from local.log.encoding import encode_column_batches
from local.names import LOG, segment_file
from local.records.batch import assign_offset
from local.records.record_columns import RecordColumns
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, StorageFile, join
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.page_out import keys_of
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.config.config import log_settings
from tiered.config.properties import DEFAULTS
from tiered.jobs.ingest import Ingested, IngestPlan, IngestTarget, end_of
from tiered.partition.segment_inspection import SegmentInspector
from tiered.stores.object_encoding import encoding_of

HELD_BYTES = 64 << 20
_ENOUGH_BYTES = 1 << 20  # of one partition: held records are encoded from this size on
_OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class _Partition:
    target: IngestTarget
    start_offset: int
    next_offset: int
    limit_offset: int
    held: list[RecordColumns] = field(default_factory=list)
    held_bytes: int = 0
    file: StorageFile | None = None
    base_offset: int = 0
    size_bytes: int = 0
    entries: list[SegmentEntry] = field(default_factory=list)
    indexed: IndexRows = field(default_factory=IndexRows)


@dataclass
class IngestTask:
    """One attempt of task number `task`; `directory` is empty and its own, and the caller removes it."""

    store: ObjectStore
    plan: IngestPlan
    task: int
    _: KW_ONLY
    storage: Storage
    directory: str
    keys: KeyRing = NO_KEYS

    def __post_init__(self) -> None:
        self._settings = log_settings({**DEFAULTS, **self.plan.settings})
        self._object_encoding = encoding_of(self.plan.settings, self.keys)
        self._targets = {target.name.partition: target for target in self.plan.targets}
        self._partitions: dict[int, _Partition] = {}
        self._held_bytes = 0

    def add(self, partition: int, columns: RecordColumns) -> None:
        """Add records of one partition after its earlier ones. The task holds references to their buffers.

        Raises InvalidRequest for an unknown partition, records that the topic refuses, or more records than offsets,
        and the errors of disk and store. After an error only `discard` is allowed.
        """
        if partition not in self._targets:
            wrong = "cannot ingest, the partition does not exist"
            raise InvalidRequest(wrong, topic=self.plan.topic, partition=partition)
        if self._targets[partition].is_done or not len(columns):
            return
        known = self._partitions.get(partition) or self._begun(partition)
        size = int(np.maximum(columns.key_lengths, 0).sum() + np.maximum(columns.value_lengths, 0).sum())
        size += 16 * len(columns)
        known.held.append(columns)
        known.held_bytes += size
        self._held_bytes += size
        if known.held_bytes >= _ENOUGH_BYTES:
            self._encode(known)
        while self._held_bytes > HELD_BYTES:
            self._encode(max(self._partitions.values(), key=lambda each: each.held_bytes))

    def end(self) -> Ingested:
        """Upload the remaining records; return all uploads of this attempt. Raises as `add`."""
        for known in self._partitions.values():
            self._encode(known)
            self._end_segment(known)
        return Ingested(
            task=self.task,
            entries={number: tuple(known.entries) for number, known in self._partitions.items()},
            starts={number: known.start_offset for number, known in self._partitions.items()},
        )

    def discard(self) -> None:
        """Delete the unreported uploads of this attempt, if possible. Never raises a LogError."""
        for known in self._partitions.values():
            with suppress(LogError):
                delete_objects(self.store, known.target.name.prefix, keys_of(known.entries), DeleteReason.OWN_UPLOAD)
            with suppress(LogError):
                if known.file is not None:
                    known.file.close()

    def _begun(self, partition: int) -> _Partition:
        target = self._targets[partition]
        start = target.start_offset
        if start is None:
            start = end_of(MetadataLog(self.store, target.name.prefix).refresh(exact=True))
        span = self.plan.span
        first = start if span is None else start + self.task * span
        limit = _OFFSET_MAX if span is None else first + span
        if limit > _OFFSET_MAX:
            facts = {"partition": target.name.topic_partition, "task": self.task, "span": span}
            raise InvalidRequest("cannot ingest, the offsets of the task exceed 63 bits", **facts)
        self._partitions[partition] = _Partition(target, start, first, limit)
        return self._partitions[partition]

    def _encode(self, known: _Partition) -> None:
        if not known.held:
            return
        chunks, known.held = known.held, []
        self._held_bytes -= known.held_bytes
        known.held_bytes = 0
        name = known.target.name.topic_partition
        for batch in encode_column_batches(chunks, self._settings, partition=name, now_ms=self.plan.now_ms):
            self._append(known, batch)

    def _append(self, known: _Partition, batch: memoryview) -> None:
        header = read_header(batch)
        assert header is not None, "just encoded"
        if known.next_offset + header.record_count > known.limit_offset:
            facts = {"partition": known.target.name.topic_partition, "task": self.task, "span": self.plan.span}
            raise InvalidRequest("cannot ingest, a task has more records of a partition than its offset span", **facts)
        last = known.next_offset + header.record_count - 1
        is_full = known.size_bytes + len(batch) > self._settings.segment_bytes
        if known.file is not None and (is_full or last - known.base_offset > RELATIVE_OFFSET_MAX):
            self._end_segment(known)
        if known.file is None:
            known.base_offset, known.size_bytes, known.indexed = known.next_offset, 0, IndexRows()
            known.file = self.storage.create(self._path(known))
        assign_offset(batch, known.next_offset, known.target.epoch)
        known.file.append(batch)
        known.indexed.add(kernels.scan_batches(batch, verify=False))
        known.size_bytes += len(batch)
        known.next_offset += header.record_count

    def _end_segment(self, known: _Partition) -> None:
        """Order of effects: the spool file is read again, checked and uploaded → deleted."""
        if known.file is None:
            return
        known.file.close()
        known.file = None
        path, base, target = self._path(known), known.base_offset, known.target
        indexes = known.indexed.indexes(base, self._settings.index_interval_bytes)
        both, epochs = (bytes(indexes.offset), bytes(indexes.time)), ((target.epoch, base),)
        earlier = [each for each in target.epochs if each[0] < target.epoch]
        epoch_start = dict(target.epochs).get(target.epoch, known.start_offset)
        segment = SegmentToCopy(
            base_offset=base,
            next_offset=known.next_offset,
            size_bytes=known.size_bytes,
            epochs=epochs,
            offset_index=both[0],
            time_index=both[1],
            producer_snapshot=target.producers,
            leader_epochs=encode_epochs((*earlier, (target.epoch, epoch_start))),
            read=lambda start, length: self.storage.read(path, start, length),
            path=path if path.startswith("/") else None,  # simulated disks have no absolute paths
            inspect=partial(SegmentInspector, path, base, known.next_offset, epochs, both),
        )
        now_ms, encoding = self.plan.now_ms, self._object_encoding
        entry = copy_segment(
            self.store, target.name.prefix, segment, epoch=target.epoch, now_ms=now_ms, object_encoding=encoding
        )
        known.entries.append(entry)
        self.storage.unlink(path)

    def _path(self, known: _Partition) -> str:
        return join(self.directory, f"{known.target.name.partition}-{segment_file(known.base_offset, LOG)}")
