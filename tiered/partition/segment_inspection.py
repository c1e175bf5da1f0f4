"""Collect from a closed local segment the facts that the remote tier needs.

The facts come from the bytes during the upload, never from memory or an index. A segment is refused before any commit
if its bytes do not decode or contradict its place in the log (KAFKA-15401); wrong indexes are rebuilt if possible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import numpy as np

from local import kernels
from local.errors import Corrupt, InvalidRequest, LogError
from local.facts import SegmentInfo
from local.format.batch_header import CONTROL, MAGIC
from local.format.columns import BatchTable, joined_tables
from local.index import txn_index
from local.index.index_files import build_indexes
from local.index.txn_index import TransactionScan
from local.log import Log
from local.log.checkpoints import encode_epochs
from local.names import LOG, OFFSET_INDEX, TIME_INDEX
from local.segment.segment import Segment
from local.segment.segment_reading import batch_slices
from local.verify.findings import Severity
from local.verify.segment_checks import INTERVAL_BYTES, check_offset_index, check_time_index
from remote.upload.segment_upload import SegmentToCopy
from remote.upload.segment_upload_stream import SegmentFacts

_log = logging.getLogger(__name__)


def segment_to_copy(log: Log, info: SegmentInfo, *, cleaned_through: int | None = None) -> SegmentToCopy:
    """The parts of a closed segment for its copy. `SegmentInspector` checks the bytes during the upload."""
    segment = log.segment(info.base_offset)
    path = segment.path(LOG)
    epochs = log.epochs.between(info.base_offset, info.next_offset) or ((0, info.base_offset),)
    indexes = bytes(segment.index(OFFSET_INDEX)), bytes(segment.index(TIME_INDEX))
    return SegmentToCopy(
        base_offset=info.base_offset,
        next_offset=info.next_offset,
        size_bytes=segment.size_bytes,
        epochs=epochs,
        offset_index=indexes[0],
        time_index=indexes[1],
        txn_index=segment.txn_index(),
        producer_snapshot=log.producer_snapshot(info.next_offset),
        leader_epochs=encode_epochs(log.epochs.truncate_from_end(info.next_offset).entries),
        cleaned_through=cleaned_through,
        read=segment.read,
        path=path if path.startswith("/") else None,  # simulated disks have no absolute paths
        inspect=partial(
            SegmentInspector,
            path,
            info.base_offset,
            info.next_offset,
            epochs,
            indexes,
            aborted=segment.txn_index(),
            interval_bytes=log.settings.index_interval_bytes,
            on_wrong=partial(_rebuild, segment),
            aborted_again=partial(log.aborted_again, info.base_offset),
        ),
    )


def _rebuild(segment: Segment, problem: str) -> None:
    """Rebuild the indexes on the disk too; otherwise the next reader finds them wrong again."""
    with suppress(LogError):
        segment.rebuild_indexes(problem, lambda: True)


def count_records(segment: Segment) -> int:
    """Count the records of a closed segment without markers, as a segment entry does. Reads headers."""
    count = 0
    for _, data in batch_slices(segment):
        table = kernels.scan_batches(data, verify=False)
        count += int(table.record_counts[(table.attributes & CONTROL) == 0].sum())
    return count


@dataclass(slots=True, eq=False)
class SegmentInspector:
    """Check every batch of a segment during its upload.

    Each batch must be whole, match its CRC, decode, and fit its place, its leader epoch and the `indexes` (offset,
    time). Raises Corrupt at the first bytes that fail, and InvalidRequest at a message of format 0 or 1. Memory: the
    columns of some batches, the headers of all.

    `aborted` is the ``.txnindex``, which `aborted_again` rebuilds; `on_wrong` gets a fault of `indexes`.
    """

    path: str
    base_offset: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...]
    indexes: tuple[bytes, bytes] | None = None
    _: KW_ONLY
    aborted: bytes | None = None
    interval_bytes: int = INTERVAL_BYTES
    on_wrong: Callable[[str], None] = lambda problem: None
    aborted_again: Callable[[str], bytes] | None = None
    _transactions: TransactionScan = field(default_factory=TransactionScan, init=False)
    _tables: list[BatchTable] = field(default_factory=list, init=False)
    _seen_bytes: int = field(default=0, init=False)
    _records: int = field(default=0, init=False)
    _first_offset: int | None = field(default=None, init=False)
    _last_offset: int | None = field(default=None, init=False)
    _times: tuple[int, int] | None = field(default=None, init=False)  # smallest, largest

    def take(self, data: memoryview) -> int:
        try:
            return self._take(data)
        except (Corrupt, InvalidRequest) as error:
            facts = {"path": self.path, **error.facts}
            raise error.restated(f"cannot copy a segment: {error.attempt}", **facts) from error

    def facts(self) -> SegmentFacts:
        made = self._indexes_again()
        low, high = self._times if self._times is not None else (None, None)
        return SegmentFacts(
            record_count=self._records,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            max_timestamp_ms=high,
            min_timestamp_ms=low,
            offset_index=made[0] if made is not None else None,
            time_index=made[1] if made is not None else None,
            txn_index=self._txn_index_again(),
        )

    def _take(self, data: memoryview) -> int:
        table = kernels.scan_batches(data)
        if table.is_corrupt:
            raise Corrupt(f"the segment is invalid, {table.problem}", at=table.valid_bytes)
        if len(table) == 0:
            return 0
        self._check_places(table)
        for columns in kernels.decode_in_steps(data, verify=False, table=table):
            self._records += len(columns)
            times = columns.timestamps[columns.timestamps >= 0]  # -1 is Kafka's "no timestamp"
            if len(times):
                low, high = self._times or (int(times[0]), int(times[0]))
                self._times = min(low, int(times.min())), max(high, int(times.max()))
        if self.indexes is not None:
            self._tables.append(table.moved(self._seen_bytes))
        if self.aborted is not None:
            self._transactions.take(data, table)
        self._seen_bytes += table.valid_bytes
        return table.valid_bytes

    def _indexes_again(self) -> tuple[bytes, bytes] | None:
        if self.indexes is None:
            return None
        places, base = joined_tables(self._tables), self.base_offset
        found = check_offset_index(self.indexes[0], base, places, path=self.path)
        found += check_time_index(self.indexes[1], base, places, path=self.path)
        wrong = next((each for each in found if each.severity is Severity.CORRUPT), None)
        if wrong is None:
            return None
        _log.warning("rebuilt a wrong index of a segment for its copy: path=%s cause=%s", self.path, wrong.what)
        made = build_indexes(places, base, self.interval_bytes)
        self.on_wrong(wrong.what)
        return bytes(made.offset), bytes(made.time)

    def _txn_index_again(self) -> bytes | None:
        """A rebuilt transaction index; None if the given one agrees with the batches. Raises Corrupt."""
        if self.aborted is None:
            return None
        problem = self._problem_of(self.aborted)
        if problem is None:
            return None
        made = self.aborted_again(problem) if self.aborted_again is not None else None
        problem = problem if made is None else self._problem_of(made)
        if problem is not None:
            raise Corrupt(f"cannot copy a segment, its transaction index is wrong: {problem}", path=self.path)
        return made

    def _problem_of(self, data: bytes) -> str | None:
        try:
            txn_index.check(data, self.base_offset, path=self.path)
            return self._transactions.found().problem(txn_index.entries(data, path=self.path))
        except Corrupt as error:
            return error.attempt

    def _check_places(self, table: BatchTable) -> None:
        """Check format, order, offsets, epochs. Raises InvalidRequest for an old format, Corrupt otherwise."""
        if table.has_legacy:
            at = int(table.positions[(table.magics != MAGIC).argmax()])
            raise InvalidRequest("messages of format 0 or 1 cannot be tiered", at=at)
        ends = np.concatenate(([-1 if self._last_offset is None else self._last_offset], table.last_offsets))
        self._refuse(table, table.base_offsets <= ends[:-1], "its offsets decrease")
        outside = (table.base_offsets < self.base_offset) | (table.last_offsets >= self.next_offset)
        self._refuse(table, outside, "it exceeds its offset range in the log", next_offset=self.next_offset)
        epochs, starts = np.array(self.epochs, np.int64).reshape(-1, 2).T
        governing = np.searchsorted(starts, table.base_offsets, "right") - 1
        of_another = (table.leader_epochs >= 0) & (table.leader_epochs != epochs[governing])
        self._refuse(table, of_another | (governing < 0), "a batch has another leader epoch")
        self._first_offset = int(table.base_offsets[0]) if self._first_offset is None else self._first_offset
        self._last_offset = int(table.last_offsets[-1])

    def _refuse(self, table: BatchTable, wrong: np.ndarray, what: str, **facts: object) -> None:
        if wrong.any():
            batch = int(wrong.argmax())
            where = {"at": int(table.positions[batch]), "offset": int(table.base_offsets[batch])}
            raise Corrupt(f"the segment is invalid, {what}", **where, **facts)
