"""Batches that a producer repeats after a restart of its node.

A snapshot of producers has the last batch of each, and so has the node that starts from it. A client sends up to
RETAINED_BATCHES batches ahead, and repeats those whose responses it did not get. `find_repeated` looks for the others
in the log itself, when a sequence does not follow: the answer is then the same as without the restart. Kafka answers
such a batch with OUT_OF_ORDER_SEQUENCE_NUMBER, which ends the client's producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from local.errors import LogError
from local.format.batch_header import BatchHeader, read_header
from local.log import AppendResult, Log
from local.log.producer_state import RETAINED_BATCHES, SEQUENCE_MAX, ProducerEntry

SEARCH_BYTES_MAX = 16 << 20
READ_BYTES = 1 << 20
RECORDS_AHEAD_MAX = 1 << 20  # of one producer


def find_repeated(log: Log, header: BatchHeader) -> AppendResult | None:
    """The offsets of the batch of `header`, if it is one of the last RETAINED_BATCHES of its producer, else None.

    A batch is the same if its producer, epoch, first sequence and number of records are. The search ends after
    SEARCH_BYTES_MAX.
    """
    entry = next((each for each in log.producers() if each.producer_id == header.producer_id), None)
    if entry is None or entry.producer_epoch != header.producer_epoch:
        return None
    ahead = (entry.last_sequence - header.base_sequence) % (SEQUENCE_MAX + 1)
    if entry.last_sequence < 0 or ahead > RECORDS_AHEAD_MAX:
        return None
    window, searched_bytes = ahead + 1, 0
    while searched_bytes <= SEARCH_BYTES_MAX:
        start = max(log.local_log_start_offset, entry.last_offset + 1 - window)
        last: deque[BatchHeader] = deque(maxlen=RETAINED_BATCHES)
        try:
            for each in _headers(log, start, entry):
                searched_bytes += each.size_bytes
                is_own = (each.producer_id, each.producer_epoch) == (header.producer_id, header.producer_epoch)
                if is_own and not each.is_control:
                    last.append(each)
        except LogError:  # another thread drops the segment, or the disk fails
            return None
        if len(last) == RETAINED_BATCHES or start == log.local_log_start_offset or _found(last, header) is not None:
            return _found(last, header)
        window *= 4
    return None


def _found(last: deque[BatchHeader], header: BatchHeader) -> AppendResult | None:
    for each in last:
        if (each.base_sequence, each.last_offset_delta) == (header.base_sequence, header.last_offset_delta):
            return AppendResult(each.base_offset, each.next_offset, is_duplicate=True)
    return None


def _headers(log: Log, offset: int, entry: ProducerEntry) -> Iterator[BatchHeader]:
    """The headers of the batches from `offset` to the last batch of the producer. Raises LogError."""
    while offset <= entry.last_offset:
        data, at = log.read(offset, READ_BYTES), 0
        while (header := read_header(data, at)) is not None and header.base_offset <= entry.last_offset:
            yield header
            at, offset = at + header.size_bytes, header.next_offset
        if not at:
            return
