"""From a sealed local segment to what the remote tier needs to know of it.

The facts of a row (record count, timestamps, offsets) are taken from the bytes while they are checked, never from
memory or an index: a segment whose bytes do not decode, or disagree with its place in the log, is refused here, before
anything is uploaded (KAFKA-15401 tiered such segments).
"""

from __future__ import annotations

from dataclasses import dataclass

from local import kernels
from local.batch_header import MAGIC
from local.checkpoints import encode_epochs
from local.errors import Corrupt, InvalidRequest
from local.log import Log
from local.names import LOG
from local.segment import Segment
from local.segment_info import SegmentInfo
from local.segment_reading import batch_slices
from remote.transfer import SegmentToCopy


@dataclass(slots=True)
class _Facts:
    records: int = 0
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    last_offset: int = -1


def segment_to_copy(log: Log, info: SegmentInfo) -> SegmentToCopy:
    """Read and check all of a sealed segment. Raises Corrupt naming the file and the byte where it stops making sense,
    and InvalidRequest naming the first message of format 0 or 1: the remote tier holds batches of format 2 only.

    Memory: one slice of the segment (`local.segment_reading.SLICE_BYTES`) and its columns.
    """
    segment = log.segment(info.base_offset)
    facts = _check(segment, info)
    epochs = log.epochs.between(info.base_offset, info.next_offset) or ((0, info.base_offset),)
    return SegmentToCopy(
        base_offset=info.base_offset,
        next_offset=info.next_offset,
        size_bytes=segment.size_bytes,
        record_count=facts.records,
        max_timestamp_ms=facts.max_timestamp_ms,
        min_timestamp_ms=facts.min_timestamp_ms,
        epochs=epochs,
        offset_index=bytes(segment.offset_index()),
        time_index=bytes(segment.time_index()),
        txn_index=segment.txn_index(),
        producer_snapshot=log.producer_snapshot(info.next_offset),
        leader_epochs=encode_epochs(log.epochs.truncate_from_end(info.next_offset).entries),
        cleaned_through=log.cleaner_offset if log.settings.is_compacted else None,
        read=segment.read,
    )


def _check(segment: Segment, info: SegmentInfo) -> _Facts:
    facts = _Facts()
    for start, data in batch_slices(segment):
        try:
            _check_slice(data, facts)
        except (Corrupt, InvalidRequest) as error:
            at = error.facts.get("at")
            at = start + at if isinstance(at, int) else start
            raise type(error)(f"copying a segment, {error.attempt}", path=segment.path(LOG), at=at) from error
    if facts.last_offset >= info.next_offset:
        raise Corrupt(
            "copying a segment, it reaches into the next one",
            path=segment.path(LOG),
            last_offset=facts.last_offset,
            next_offset=info.next_offset,
        )
    return facts


def _check_slice(data: memoryview, facts: _Facts) -> None:
    """Add what whole batches hold to `facts`. Raises Corrupt and InvalidRequest, `at` a position in `data`."""
    table = kernels.scan_batches(data)
    if table.problem is not None:
        raise Corrupt(f"checking a segment, {table.problem}", at=table.valid_bytes)
    if table.has_legacy:
        at = int(table.positions[(table.magics != MAGIC).argmax()])
        raise InvalidRequest("checking a segment, messages of format 0 or 1 cannot be tiered", at=at)
    if int(table.base_offsets[0]) <= facts.last_offset:
        raise Corrupt("checking a segment, offsets go back", at=0)
    facts.last_offset = int(table.last_offsets[-1])
    for columns in kernels.decode_in_steps(data, verify=False, table=table):
        facts.records += len(columns)
        told = columns.timestamps[columns.timestamps >= 0]  # -1 is Kafka's "no timestamp"
        if len(told):
            low, high = int(told.min()), int(told.max())
            facts.min_timestamp_ms = low if facts.min_timestamp_ms is None else min(low, facts.min_timestamp_ms)
            facts.max_timestamp_ms = high if facts.max_timestamp_ms is None else max(high, facts.max_timestamp_ms)
