"""Whether a log that was behind the bucket when it was opened has the bucket's own records: looked at before it starts
over behind them, or goes on after them.

Two histories are told apart by their leader epochs (`tiered.partition`). Not so where both are of one epoch: a disk was
put back from an old copy of itself, and took records while the bucket was out of reach, at offsets which the bucket
has other records for. What came last tells: the batches at the last offset that both have are compared, by the CRC32C
that they bear, for it covers all but offset and leader epoch, and copies are the same bytes.

Cleaned segments are not, so of a topic that is compacted nothing is said, nor of what a pass has reached on the disk
under another policy; nor where the bucket has let go of that offset, or cannot show it (damage, a missing key).
"""

from __future__ import annotations

import logging

from local.batch_header import read_header
from local.errors import Conflict, LogError, Unavailable
from remote.head import Head
from tiered.partition import Partition
from tiered.partition_source import PartitionSource
from tiered.reader import TieredReader

_log = logging.getLogger(__name__)


def check_same_records(held: Partition, bucket: PartitionSource, head: Head) -> None:
    """Raises Conflict where the bucket has another batch at the last offset that both have, and Unavailable. `bucket`
    is the partition without its log, `head` its newest head. For a log that was behind it when it was opened, and held
    something: one that was left alone never is, so it is worth a read."""
    log = held.log
    at = min(log.next_offset, head.rows_next_offset) - 1
    if at < max(head.log_start_offset, log.cleaner_reach) or held.rules.cleanup_compact or log.cleaner_offset:
        return
    try:
        ours = read_header(log.read(at, 1))
        row, _ = bucket.row_at(at)
        if ours is None or ours.base_offset > at or row is None or row.cleaned_through is not None:
            return
        theirs = read_header(next(TieredReader(lambda _: bucket).batches(held.name, at, at + 1), memoryview(b"")))
    except Unavailable:
        raise
    except LogError as error:
        _log.warning("disk and bucket cannot be compared where both end: partition=%s error=%s", held.name, error)
        return
    if theirs is not None and (theirs.base_offset, theirs.crc) != (ours.base_offset, ours.crc):
        raise Conflict(
            "opening a partition, its disk was behind the bucket, and has other records than the bucket has there",
            partition=held.name,
            offset=at,
            local_next_offset=log.next_offset,
            remote_next_offset=head.next_offset,
        )
