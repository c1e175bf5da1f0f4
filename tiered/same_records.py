"""Whether a log that ends before the bucket has the bucket's own records: looked at before it starts over behind them.

Two histories are told apart by their leader epochs (`tiered.partition`). Not so where both are of one epoch: a disk was
put back from an old copy of itself, and took records while the bucket was out of reach, at offsets which the bucket
has other records for. What came last tells: the last batch on the disk is compared with the bucket's batch of that
offset, by the CRC32C that both bear, for it covers all but offset and leader epoch, and copies are the same bytes.

Cleaned segments are not, so of a topic that is, or was, compacted nothing is said; nor where the bucket has let go of
that offset, or cannot show it (damage, a missing key).
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
    """Raises Conflict where the bucket has another batch than the last one of a log that would start over, and
    Unavailable. `bucket` is the partition without its log, `head` its newest head. A log that holds nothing, or does
    not end before the bucket, costs no request."""
    log = held.log
    if not head.log_start_offset < log.next_offset < head.taken_upto or log.size_bytes == 0 or head.given_up:
        return
    if held.rules.cleanup_compact or log.cleaner_offset:
        return
    try:
        ours = read_header(log.read(log.next_offset - 1, 1))
        if ours is None or ours.base_offset < head.log_start_offset:
            return
        row, _ = bucket.row_at(ours.base_offset)
        if row is None or row.cleaned_through is not None:
            return
        found = TieredReader(lambda _: bucket).batches(held.name, ours.base_offset, ours.base_offset + 1)
        theirs = read_header(next(found, memoryview(b"")))
    except Unavailable:
        raise
    except LogError as error:
        _log.warning("disk and bucket cannot be compared where the log ends: partition=%s error=%s", held.name, error)
        return
    if theirs is not None and (theirs.base_offset, theirs.crc) != (ours.base_offset, ours.crc):
        raise Conflict(
            "opening a partition, its log ends before the bucket and with other records than the bucket has there",
            partition=held.name,
            offset=ours.base_offset,
            local_next_offset=log.next_offset,
            remote_next_offset=head.next_offset,
        )
