"""Named offsets over both tiers: Kafka's ListOffsets for one partition.

| name | code | over both tiers |
|---|---|---|
| `LATEST` | -1 | the log end; under read_committed the last stable offset |
| `EARLIEST` | -2 | the manifest's log start offset; the log's if nothing is tiered |
| `MAX_TIMESTAMP` | -3 | the first record with the largest timestamp, on either tier |
| `EARLIEST_LOCAL` | -4 | the first offset that the disk answers for |
| `LATEST_TIERED` | -5 | the highest offset that was ever in the bucket (the epoch of an expired one is unknown) |
| `EARLIEST_PENDING_UPLOAD` | -6 | the first offset that waits for its upload; none for a topic that is not tiered |

Any other number is a timestamp in ms: the first record at or after it. Source: kafka `OffsetSpec`, KIP-405, KIP-1005.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset, OffsetSpec, parse_spec
from remote.manifest.manifest import PageEntry
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry
from tiered.read.partition_source import PartitionSource

if TYPE_CHECKING:
    from tiered.read.reader import TieredReader

# KIP-1023; a log without a remote tier does not know these names.
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6


def find_offset(
    source: PartitionSource, reader: TieredReader, spec: OffsetSpec | int, isolation: Isolation
) -> FoundOffset | None:
    """The offset that `spec` means; None if there is none. Raises InvalidRequest, Unavailable."""
    if spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # The highest offset ever in the bucket, or the first that waits. Source: `highestOffsetInRemoteStorage`.
        manifest, is_latest = source.manifest(), spec == LATEST_TIERED
        if manifest is None or (is_latest and manifest.max_end_offset == 0):
            return None
        offset = manifest.max_end_offset - 1 if is_latest else manifest.next_offset
        return FoundOffset(offset, None, _epoch_at(source, offset) if offset >= manifest.log_start_offset else None)
    log = source.log
    match parse_spec(spec):
        case OffsetSpec.LATEST:
            offset = source.stable_end() if isolation is Isolation.READ_COMMITTED else source.next_offset()
            return FoundOffset(offset, None, _epoch_at(source, offset - 1))
        case OffsetSpec.EARLIEST:
            offset = source.start_offset()
            return FoundOffset(offset, None, _epoch_at(source, offset))
        case OffsetSpec.EARLIEST_LOCAL:
            if log is None:
                return None
            offset = max(log.local_log_start_offset, source.start_offset())
            return FoundOffset(offset, None, _epoch_at(source, offset))
        case OffsetSpec.MAX_TIMESTAMP:
            found = _newest(source, reader)
        case timestamp_ms:
            found = _at_or_after(source.partition, reader, timestamp_ms)
    is_seen = found is None or isolation is Isolation.READ_UNCOMMITTED or found.offset < source.stable_end()
    return found if is_seen else None


def _at_or_after(partition: TopicPartition, reader: TieredReader, timestamp_ms: int) -> FoundOffset | None:
    offset = reader.offset_for_timestamp(partition, timestamp_ms)
    if offset is None:
        return None
    from local.kernels import decode_columns
    from tiered.read.reader import within

    for data in reader.batches(partition, offset, offset + 1):
        columns = within(decode_columns(data, include_control=True), offset, None)  # markers count, as in Kafka
        if len(columns):
            epoch = int(columns.table.leader_epochs[columns.batch_ordinals[0]])
            return FoundOffset(offset, int(columns.timestamps[0]), epoch if epoch >= 0 else None)
    return FoundOffset(offset)


def _newest(source: PartitionSource, reader: TieredReader) -> FoundOffset | None:
    """The first record with the largest timestamp, or the next largest if cleaning removed it; None without any."""
    start, log = source.start_offset(), source.log
    local_start = log.local_log_start_offset if log is not None else None
    entries = [entry for entry in source.ask(_parts) or [] if local_start is None or entry.base_offset < local_start]
    known = [_largest(source.partition, reader, entry, start) for entry in entries]
    local = log.newest() if log is not None else None
    known.append(local.timestamp_ms if local is not None else None)
    for timestamp_ms in sorted({each for each in known if each is not None}, reverse=True):
        if (found := _at_or_after(source.partition, reader, timestamp_ms)) is not None:
            return found
    return None


def _parts(index: MetadataIndex) -> list[PageEntry | SegmentEntry]:
    start = index.manifest.log_start_offset
    found: list[PageEntry | SegmentEntry] = []
    for part in index.parts():
        is_cut = isinstance(part, PageEntry) and part.base_offset < start
        found += index.entries(part.base_offset, part.next_offset) if is_cut else [part]
    return found


def _largest(
    partition: TopicPartition, reader: TieredReader, entry: PageEntry | SegmentEntry, start: int
) -> int | None:
    if entry.base_offset >= start or entry.max_timestamp_ms is None:
        return entry.max_timestamp_ms
    steps = reader.columns(partition, start, entry.next_offset)
    return max((int(columns.timestamps.max()) for columns in steps if len(columns)), default=None)


def _epoch_at(source: PartitionSource, offset: int) -> int | None:
    log = source.log
    found = log.epochs.epoch_at(offset) if log is not None else None
    if found is not None:
        return found
    try:
        entry = source.ask(lambda index: index.find_by_offset(offset))
    except LogError:
        return None
    below = [epoch for epoch, first in entry.epochs if first <= offset] if entry is not None else []
    return below[-1] if below else None
