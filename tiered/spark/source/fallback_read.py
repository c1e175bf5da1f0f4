"""Read the remaining records of a piece with a deleted segment, for failOnDataLoss=false.

A pinned read never needs this. Without a pin, or after its expiry, a segment may leave the bucket during a job:

- Retention removes it, and its offsets are lost.
- Compaction, merging or encoding replaces it. Its offsets remain, some of its records perhaps not.

The piece then continues with the newest manifest's entries for its offsets. Several tasks may share one segment. Each
task takes the same batches as before, selected by their last offsets, which survive a rewriting. No record is
read twice, and none is missed between two tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from local.errors import Corrupt
from local.format.columns import Columns
from local.names import TopicPartition
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.read.view_entries import decoded, row_runs
from tiered.spark.source.boundaries import of_piece
from tiered.spark.source.splits import Piece, Split

_log = logging.getLogger(__name__)


def fallback_reads(
    store: ObjectStore, remote: RemotePartition, split: Split, piece: Piece, from_offset: int
) -> Iterator[Columns]:
    """The piece's records from `from_offset` on that the newest manifest still has, in offset order.

    Raises Corrupt if that manifest names the missing object: this is damage, not data loss. Raises NotFound if the
    replacement is missing too.
    """
    segment, name = piece.segment, TopicPartition(split.topic, split.partition)
    start, end = max(segment.base_offset, from_offset), segment.next_offset
    rows = _rows(store, split, start, end)
    if any(row.ulid == segment.ulid for row in rows):
        raise Corrupt("cannot read a segment, its object is missing", partition=name, object=segment.data_key)
    has = sum(min(row.next_offset, end) - max(row.base_offset, start) for row in rows)
    _log.warning(
        "an object of a segment does not exist: partition=%s object=%s offsets_left=%d", name, segment.data_key, has
    )
    for row in rows:
        offset = max(start, row.base_offset)
        for data in row_runs(remote, row, offset, remote.position_of_offset(row, offset)):
            for columns in decoded(data, name):
                yield of_piece(columns.select((columns.offsets >= start) & (columns.offsets < end)), piece)


def _rows(store: ObjectStore, split: Split, start: int, end: int) -> list[SegmentEntry]:
    log = MetadataLog(store, split.prefix)
    manifest = log.load()
    if manifest is None or manifest.deleted_ms is not None or start >= end:
        return []
    return log.ask(manifest, lambda index: list(index.entries(start, end)))
