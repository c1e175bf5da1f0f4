"""Pass two of a view: write the surviving records into parts and upload them. Nothing is visible yet.

A part is a segment like any other: whole batches with their indexes, named by its offsets. It is written to the disk
first, because an upload must be able to read it twice. Its name is that of a segment being cleaned (``.cleaned``), so
the next start deletes its remains after a crash. One part at a time, so the disk needs room for one. Uploaded parts
that no manifest names are deleted after an error; after a crash they remain as objects of an older epoch.

A batch with survivors keeps its offsets, times, headers, codec, leader epoch and producer. Only its transaction flag is
removed. The view holds committed records only and no markers, and Kafka's readers would wait for the markers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import InvalidRequest, LogError
from local.format.batch_header import HEADER_BYTES, TRANSACTIONAL, seal
from local.format.columns import BatchTable
from local.index.index_building import build_indexes
from local.kernels.pure_kernels import DROP, REBUILD, VERBATIM
from local.log.checkpoints import encode_epochs
from local.names import CLEANED, LOG, segment_file
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, StorageFile, join
from remote.manifest.view import VIEW_ROWS_MAX
from remote.segment_entry import SegmentEntry
from remote.segments.segment_upload import SegmentToCopy
from remote.store import ObjectStore
from tiered.partition.segment_inspection import SegmentInspector

_log = logging.getLogger(__name__)

PART_BYTES_MAX = 2**31 - 1  # positions in an offset index are int32
PARTS_WANTED = VIEW_ROWS_MAX // 4  # as many entries leave every manifest small

Upload = Callable[[SegmentToCopy], SegmentEntry]


def part_bytes(segment_bytes: int, input_bytes: int) -> int:
    """The maximum size of a part: `segment.bytes`, or more if that made more parts than a manifest takes."""
    return min(PART_BYTES_MAX, max(segment_bytes, -(-input_bytes // PARTS_WANTED)))


def filtered(data: memoryview, table: BatchTable, keep: NDArray[np.bool_]) -> bytes:
    """The batches of `data` reduced to the records flagged in `keep`.

    `table` is the scan of `data`. `keep` has a flag for each record, markers included.
    """
    ends = np.cumsum(table.record_counts, dtype=np.int64)
    running = np.concatenate((np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)))
    kept = running[ends] - running[ends - table.record_counts]
    actions = np.full(len(table), REBUILD, np.uint8)
    actions[kept == table.record_counts] = VERBATIM
    actions[kept == 0] = DROP
    if (actions == DROP).all():
        return b""
    left = kernels.filter_batches(data, keep, actions=actions)
    is_transactional = bool((table.attributes[actions != DROP] & TRANSACTIONAL).any())
    return _without_transactions(left) if is_transactional else left


class ViewParts:
    """Takes batches in the order of their offsets, returns entries. `upload` puts one part into the store."""

    def __init__(
        self, storage: Storage, directory: str, upload: Upload, *, part_bytes: int, interval_bytes: int
    ) -> None:
        self.entries: list[SegmentEntry] = []
        self.record_count = 0
        self.size_bytes = 0
        self._uploaded: list[SegmentEntry] = []
        self._storage, self._directory, self._upload = storage, directory, upload
        self._part_bytes, self._interval_bytes = part_bytes, interval_bytes
        self._file: StorageFile | None = None
        self._base_offset = 0
        self._size = 0

    def add(self, data: bytes) -> None:
        """Add whole batches. Raises errors of the disk and the store, and InvalidRequest for too many parts."""
        view, table = memoryview(data), kernels.scan_batches(data, verify=False)
        ends = table.positions + table.sizes
        at = 0
        while at < len(table):
            room = self._part_bytes - self._size
            upto = int(np.searchsorted(ends, int(table.positions[at]) + room, "right"))
            if self._file is not None:
                span = self._base_offset + RELATIVE_OFFSET_MAX
                upto = min(upto, int(np.searchsorted(table.last_offsets, span, "right")))
            if upto <= at and self._file is not None:
                self._end_part()
                continue
            upto = max(upto, at + 1) if self._file is not None else self._fitting(table, at, upto)
            self._append(view[int(table.positions[at]) : int(ends[upto - 1])], int(table.base_offsets[at]))
            at = upto

    def keep(self, row: SegmentEntry) -> None:
        """Use a part of the old view unchanged."""
        self._end_part()
        self._take(row)

    def end(self) -> tuple[SegmentEntry, ...]:
        """All entries, ascending. Raises as `add`."""
        self._end_part()
        return tuple(self.entries)

    def discard(self, store: ObjectStore, prefix: str) -> None:
        """Delete the uploaded parts as far as possible; unchanged old parts stay. Never raises a LogError."""
        keys = [prefix + key for row in self._uploaded for key in (row.data_key, row.indexes_key)]
        try:
            self._drop_file()
            store.delete(keys)
        except LogError as error:
            _log.warning("cannot delete parts of a failed view: keys=%s cause=%s", ",".join(keys), error)

    def _fitting(self, table: BatchTable, at: int, upto: int) -> int:
        """The end of a part that begins with batch `at`; it has at least one batch."""
        span = int(table.base_offsets[at]) + RELATIVE_OFFSET_MAX
        return max(at + 1, min(upto, int(np.searchsorted(table.last_offsets, span, "right"))))

    def _append(self, data: memoryview, base_offset: int) -> None:
        if self._file is None:
            self._base_offset, self._size = base_offset, 0
            self._file = self._storage.create(self._path())
        self._file.append(data)
        self._size += len(data)

    def _end_part(self) -> None:
        """End the current part. Order of effects: the file is read again, checked and uploaded → deleted."""
        if self._file is None:
            return
        row = self._upload(self._part())
        self._uploaded.append(row)
        self._drop_file()
        self._take(row)

    def _take(self, row: SegmentEntry) -> None:
        self.entries.append(row)
        self.record_count += row.record_count
        self.size_bytes += row.size_bytes
        if len(self.entries) > VIEW_ROWS_MAX:
            raise InvalidRequest(
                ("cannot build the view, it would have more parts than a manifest may hold: raise segment.bytes"),
                parts_max=VIEW_ROWS_MAX,
                part_bytes=self._part_bytes,
            )

    def _part(self) -> SegmentToCopy:
        path, base = self._path(), self._base_offset
        mapped = self._storage.map(path)
        try:
            table = kernels.scan_batches(mapped, verify=False)
            indexes = build_indexes(table, base, self._interval_bytes)
        finally:
            mapped.release()
        epochs, following = _epochs(table), int(table.last_offsets[-1]) + 1
        return SegmentToCopy(
            base_offset=base,
            next_offset=following,
            size_bytes=self._size,
            epochs=epochs,
            offset_index=bytes(indexes.offset),
            time_index=bytes(indexes.time),
            leader_epochs=encode_epochs(entry for entry in epochs if entry[0] >= 0),
            read=lambda start, length: self._storage.read(path, start, length),
            inspect=partial(SegmentInspector, path, base, following, epochs),
        )

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._storage.unlink(self._path())
            self._file = None
            self._size = 0

    def _path(self) -> str:
        return join(self._directory, segment_file(self._base_offset, LOG) + CLEANED)


def _without_transactions(data: bytes) -> bytes:
    """The same batches without the transaction flag."""
    table = kernels.scan_batches(data, verify=False)
    view, parts = memoryview(data), []
    for row, (position, size) in enumerate(zip(table.positions.tolist(), table.sizes.tolist(), strict=True)):
        batch = view[position : position + size]
        if table.attributes[row] & TRANSACTIONAL:
            header = table.row(row)
            plain = replace(header, attributes=header.attributes & ~TRANSACTIONAL)
            parts.append(seal(plain, bytes(batch[HEADER_BYTES:])))
        else:
            parts.append(bytes(batch))
    return b"".join(parts)


def _epochs(table: BatchTable) -> tuple[tuple[int, int], ...]:
    """Pairs (leader epoch, offset of its first batch)."""
    changes = np.flatnonzero(np.diff(table.leader_epochs)) + 1
    firsts = [0, *changes.tolist()]
    return tuple((int(table.leader_epochs[row]), int(table.base_offsets[row])) for row in firsts)
