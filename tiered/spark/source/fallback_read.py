"""What the bucket still has of a piece whose segment is gone: the answer to failOnDataLoss=false.

A pinned read never comes here. Without a pin, or with one that lapsed, a segment may leave the bucket under a job, by
retention (its offsets are lost) or because compaction, merging or encoding put another in its place (its offsets are
still there, some of its records perhaps not). So the newest head is asked, and the piece goes on with what that has of
its offsets. Several tasks may share one segment: each takes the batches that it would have taken, told by their last
offsets, which survive a rewriting, so no record comes twice and none is left between two tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from local.errors import Corrupt
from local.format.columns import Columns
from local.names import TopicPartition
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import RemoteSegment
from remote.store import ObjectStore
from tiered.read.view_rows import decoded, row_runs
from tiered.spark.source.boundaries import of_piece
from tiered.spark.source.splits import Piece, Split

_log = logging.getLogger(__name__)


def leftovers(
    store: ObjectStore, remote: RemotePartition, split: Split, piece: Piece, from_offset: int
) -> Iterator[Columns]:
    """The piece's records from `from_offset` on that the newest head still has, in offset order.

    Raises Corrupt when that head names the very object that is gone: damage, not data loss. NotFound when what took its
    place is gone by now, too.
    """
    segment, name = piece.segment, TopicPartition(split.topic, split.partition)
    start, end = max(segment.base_offset, from_offset), segment.next_offset
    rows = _rows(store, split, start, end)
    if any(row.ulid == segment.ulid for row in rows):
        raise Corrupt("reading a segment, its object is missing", partition=name, object=segment.data_key)
    has = sum(min(row.next_offset, end) - max(row.base_offset, start) for row in rows)
    _log.warning("a segment is gone: partition=%s object=%s offsets_left=%d", name, segment.data_key, has)
    for row in rows:
        offset = max(start, row.base_offset)
        for data in row_runs(remote, row, offset, remote.position_of_offset(row, offset)):
            for columns in decoded(data, name):
                yield of_piece(columns.select((columns.offsets >= start) & (columns.offsets < end)), piece)


def _rows(store: ObjectStore, split: Split, start: int, end: int) -> list[RemoteSegment]:
    log = MetadataLog(store, split.prefix)
    head = log.load()
    if head is None or head.deleted_ms is not None or start >= end:
        return []
    return log.ask(head, lambda index: list(index.rows(start, end)))
