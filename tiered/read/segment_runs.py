"""The one loop that reads the batches of a remote segment: runs of whole batches, in order, in bounded memory.

Readers of the log, of compacted views and of Spark's replaced segments use it. An offset index is a hint: if the bytes
at its position are not the batch that it promised, the segment is read from its start, and the index is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.columns import Columns
from local.names import TopicPartition
from local.records.batch import HEADER_BYTES, read_header
from local.records.batch_runs import decode_up_to_damage
from remote.segment_entry import SegmentEntry

RUN_BYTES = 8 << 20
_log = logging.getLogger(__name__)


class ReadRange(Protocol):
    """`RemotePartition.read`, or `SequentialReader.read`, which reads ahead."""

    def __call__(self, entry: SegmentEntry, position: int, length: int, /, *, in_one_piece: bool) -> memoryview: ...


def segment_runs(
    read: ReadRange,
    entry: SegmentEntry,
    offset: int,
    position: int = 0,
    *,
    step_bytes: Callable[[], int] = lambda: RUN_BYTES,
    verify: bool = False,
) -> Iterator[tuple[memoryview, int]]:
    """Yield (whole batches, next offset) from byte `position` to the segment's end, without batches below `offset`.

    `verify` checks the CRC of each batch: for a store without checksums of its own. Raises Corrupt, naming the object,
    for damaged bytes, NotFound if the objects are deleted, Unavailable.
    """
    batch_bytes = 0  # size of a batch that did not fit into one step
    start = position
    while position < entry.size_bytes:
        length = min(batch_bytes or step_bytes(), entry.size_bytes - position)
        data = read(entry, position, length, in_one_piece=batch_bytes == 0)
        if position == start > 0 and index_is_wrong(entry, data, offset, position):
            position = start = batch_bytes = 0
            continue
        table = kernels.scan_batches(data, verify=verify)
        if len(table) == 0:
            if table.is_corrupt:
                raise Corrupt(f"cannot read batches, {table.problem}", object=entry.data_key, position=position)
            if position + len(data) >= entry.size_bytes:
                wrong = "cannot read a remote segment, it ends inside a batch"
                raise Corrupt(wrong, object=entry.data_key, at=position)
            header = read_header(data)
            batch_bytes = HEADER_BYTES if header is None else header.size_bytes
            continue
        position, batch_bytes = position + table.valid_bytes, 0
        first = int(np.searchsorted(table.last_offsets, offset))
        if first < len(table):
            yield data[int(table.positions[first]) : table.valid_bytes], int(table.last_offsets[-1]) + 1


def index_is_wrong(entry: SegmentEntry, data: memoryview, offset: int, position: int) -> bool:
    """Whether the offset index of a remote segment is wrong, which is logged.

    The index gave `position` for `offset`, and the bytes there (`data`) are no batch, or one that begins after the
    offset. An index bundle has a checksum: such an index was wrong when it was copied.
    """
    header = None
    with suppress(Corrupt):
        header = read_header(data)
    if header is not None and header.base_offset <= offset:
        return False
    report_wrong_index(entry, offset, position)
    return True


def report_wrong_index(entry: SegmentEntry, offset: int, position: int) -> None:
    facts = (entry.indexes_key, offset, position)
    _log.warning("the offset index of a remote segment is wrong: object=%s offset=%d position=%d", *facts)


def decoded(data: memoryview, partition: TopicPartition) -> Iterator[Columns]:
    """The records of a run, in steps of bounded memory. Raises Corrupt, naming the partition."""
    try:
        yield from decode_up_to_damage(data)
    except Corrupt as error:
        facts = {"topic": partition.topic, "partition": partition.partition, **error.facts}
        if "base_offset" not in facts and (header := read_header(data)) is not None:
            facts["from_offset"] = header.base_offset
        raise Corrupt(error.attempt, **facts) from error


def within(columns: Columns, start: int, end: int | None) -> Columns:
    """The records in ``[start, end)``; None is no end."""
    if not len(columns) or (columns.offsets[0] >= start and (end is None or columns.offsets[-1] < end)):
        return columns
    inside = columns.offsets >= start
    return columns.select(inside if end is None else inside & (columns.offsets < end))


def first_at_or_after(steps: Iterable[Columns], timestamp_ms: int, start: int = 0) -> int | None:
    """Offset of the first record at or above `start` with a time at or after `timestamp_ms`; None without one."""
    for columns in steps:
        hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
        if hits.any():
            return int(columns.offsets[hits.argmax()])
    return None
