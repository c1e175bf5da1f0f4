"""The batches of a view's parts, as stored in the bucket: whole, in order, in runs of bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.columns import Columns
from local.names import TopicPartition
from local.records.batch import read_header
from local.records.decoding import decode_up_to_damage
from remote.fetch.range_reader import RemotePartition
from remote.segment_entry import SegmentEntry

RUN_BYTES = 8 << 20
_log = logging.getLogger(__name__)


def row_runs(remote: RemotePartition, entry: SegmentEntry, offset: int, position: int = 0) -> Iterator[memoryview]:
    """Runs of whole batches of one part from byte `position`, without batches entirely below `offset`.

    Raises Corrupt for damaged bytes, NotFound if the part's objects are deleted, Unavailable.
    """
    want, begun = RUN_BYTES, position
    while position < entry.size_bytes:
        data = remote.read(entry, position, min(want, entry.size_bytes - position))
        if position == begun > 0 and leads_astray(entry, data, offset, position):
            position = begun = 0
            continue
        table = kernels.scan_batches(data, verify=False)
        if table.valid_bytes == 0:
            if table.is_corrupt or position + len(data) >= entry.size_bytes:
                raise Corrupt(
                    "cannot read the compacted view, a part is not whole batches", object=entry.data_key, at=position
                )
            want *= 2
            continue
        position += table.valid_bytes
        first = int(np.searchsorted(table.last_offsets, offset))
        if first < len(table):
            yield data[int(table.positions[first]) : table.valid_bytes]


def leads_astray(entry: SegmentEntry, data: memoryview, offset: int, position: int) -> bool:
    """Whether the offset index of a remote segment is wrong, which is logged.

    The caller then reads from the start. The index gave `position` for `offset`, and the bytes there are no batch, or
    one that begins after the offset. An index bundle has a checksum: such an index was wrong when it was copied.
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
        raise Corrupt(error.attempt, partition=partition, **error.facts) from error
