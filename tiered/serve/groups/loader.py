"""Read all groups and offsets of a node from ``__consumer_offsets`` at its start."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from local.names import TopicPartition
from tiered.serve.groups.committed import CommittedOffsets, Transaction
from tiered.serve.groups.consumer.records import (
    ConsumerKey,
    ConsumerValue,
    Kind,
    decode_consumer_key,
    decode_consumer_value,
)
from tiered.serve.groups.offsets_log import LoadedBatch, OffsetsLog
from tiered.serve.groups.offsets_records import GroupKey, GroupValue, OffsetKey, OffsetValue, decode_key, decode_value

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """The log up to its end. `groups` have a record of their own; other groups have only offsets.

    `consumers` are the groups of the consumer protocol. Of a group that was converted the later records count.
    """

    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)
    groups: dict[str, GroupValue] = field(default_factory=dict)
    consumers: dict[str, dict[ConsumerKey, ConsumerValue]] = field(default_factory=dict)
    skipped: int = 0  # records of newer protocols


def load(log: OffsetsLog) -> tuple[int | None, Loaded]:
    """The number of partitions, None without the topic, and their content. Raises as the log does, and Corrupt."""
    loaded, count = Loaded(), log.partition_count()
    for partition in range(count or 0):
        for batch in log.read(partition):
            apply(loaded, partition, batch)
    for name, records in list(loaded.consumers.items()):
        if ConsumerKey(Kind.GROUP, name) not in records:
            del loaded.consumers[name]  # a crash came between its tombstones
    if loaded.skipped:
        _log.warning("records of newer group protocols are not served: records=%d", loaded.skipped)
    return count, loaded


def apply(loaded: Loaded, partition: int, batch: LoadedBatch) -> None:
    """Source: kafka `CoordinatorLoaderImpl`, `GroupCoordinatorShard.replay`."""
    transaction = None if batch.producer_id is None else Transaction(partition, batch.producer_id)
    if batch.is_commit is not None and transaction is not None:
        loaded.offsets.end(transaction, is_commit=batch.is_commit)
    for offset, key_bytes, value_bytes in batch.records:
        key = decode_key(key_bytes)
        if key is None and (consumer_key := decode_consumer_key(key_bytes)) is not None:
            _apply_consumer(loaded, consumer_key, value_bytes)
            continue
        value = decode_value(key, value_bytes) if key is not None and value_bytes is not None else None
        match key, value:
            case None, _:
                loaded.skipped += 1
            case GroupKey(group), None:
                loaded.groups.pop(group, None)
            case GroupKey(group), GroupValue():
                loaded.groups[group] = value
                loaded.consumers.pop(group, None)
            case OffsetKey(group, topic, number), None:
                loaded.offsets.remove(group, TopicPartition(topic, number))
            case OffsetKey(group, topic, number), OffsetValue() if transaction is not None:
                loaded.offsets.pend(transaction, group, TopicPartition(topic, number), value, offset)
            case OffsetKey(group, topic, number), OffsetValue():
                loaded.offsets.commit(group, TopicPartition(topic, number), value, offset)


def _apply_consumer(loaded: Loaded, key: ConsumerKey, value_bytes: bytes | None) -> None:
    value = None if value_bytes is None else decode_consumer_value(key, value_bytes)
    records = loaded.consumers.setdefault(key.group, {})
    if value is not None:
        records[key] = value
        if key.kind is Kind.GROUP:
            loaded.groups.pop(key.group, None)
    else:
        records.pop(key, None)
    if not records:
        del loaded.consumers[key.group]


def partition_of(group: str, count: int) -> int:
    """The partition of a group. Source: kafka `GroupCoordinatorService.partitionFor`, Java's `String.hashCode`."""
    number = 0
    data = group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        number = (31 * number + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >= 1 << 31 else number
    return (0 if signed == -(1 << 31) else abs(signed)) % count
