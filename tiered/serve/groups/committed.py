"""Committed offsets of all groups, and those of open transactions. No I/O: it repeats what the log says, in its order.

| record | effect |
|---|---|
| an offset | it is committed |
| an offset in a transaction | it is pending until the marker |
| a tombstone | neither committed nor pending |
| commit marker | pending offsets are committed, unless a later record has committed another one |
| abort marker | pending offsets are dropped |

Source: kafka `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from local.names import TopicPartition
from tiered.serve.groups.offsets_records import OffsetValue

OFFSET_BYTES = 300  # of the objects of an offset, without its metadata


class Transaction(NamedTuple):
    """The open transaction of a producer in one partition of ``__consumer_offsets``."""

    log_partition: int
    producer_id: int


class Committed(NamedTuple):
    """`log_offset` is that of the record in ``__consumer_offsets``."""

    value: OffsetValue
    log_offset: int


class CommittedOffsets:
    """Empty groups have no entry."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, Committed]] = {}
        self._pending: dict[Transaction, dict[tuple[str, TopicPartition], Committed]] = {}
        self._open: dict[str, dict[TopicPartition, set[Transaction]]] = {}  # the same by group
        self.count = self.size_bytes = 0  # of committed and pending ones

    def groups(self) -> Collection[str]:
        """Groups with committed or pending offsets."""
        return self._groups.keys() | self._open.keys()

    def of(self, group: str) -> Mapping[TopicPartition, Committed]:
        return self._groups.get(group, {})

    def get(self, group: str, partition: TopicPartition) -> OffsetValue | None:
        found = self._groups.get(group, {}).get(partition)
        return found.value if found is not None else None

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        return partition in self._open.get(group, ())

    def pending_of(self, group: str) -> Collection[TopicPartition]:
        return self._open.get(group, {}).keys()

    def commit(self, group: str, partition: TopicPartition, value: OffsetValue, log_offset: int) -> None:
        offsets = self._groups.setdefault(group, {})
        self._note(value, offsets.get(partition))
        offsets[partition] = Committed(value, log_offset)

    def remove(self, group: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group, {})
        if partition in offsets:
            self._note(None, offsets.pop(partition))
            if not offsets:
                del self._groups[group]
        for transaction in list(self._open.get(group, {}).get(partition, ())):
            self._forget(transaction, group, partition)

    def pend(
        self, transaction: Transaction, group: str, partition: TopicPartition, value: OffsetValue, log_offset: int
    ) -> None:
        pending = self._pending.setdefault(transaction, {})
        self._note(value, pending.get((group, partition)))
        pending[group, partition] = Committed(value, log_offset)
        self._open.setdefault(group, {}).setdefault(partition, set()).add(transaction)

    def end(self, transaction: Transaction, *, is_commit: bool) -> None:
        """The marker of the transaction. Does nothing if it has no pending offsets."""
        for (group, partition), pending in list(self._pending.get(transaction, {}).items()):
            self._forget(transaction, group, partition)
            known = self._groups.get(group, {}).get(partition)
            if is_commit and (known is None or pending.log_offset > known.log_offset):
                self.commit(group, partition, pending.value, pending.log_offset)

    def items(self) -> Iterator[tuple[str, Mapping[TopicPartition, Committed]]]:
        yield from self._groups.items()

    def _note(self, new: OffsetValue | None, old: Committed | None) -> None:
        """Count an offset that takes the place of another one."""
        if new is not None:
            self.count += 1
            self.size_bytes += OFFSET_BYTES + len(new.metadata)
        if old is not None:
            self.count -= 1
            self.size_bytes -= OFFSET_BYTES + len(old.value.metadata)

    def _forget(self, transaction: Transaction, group: str, partition: TopicPartition) -> None:
        pending = self._pending[transaction]
        self._note(None, pending.pop((group, partition)))
        if not pending:
            del self._pending[transaction]
        partitions = self._open[group]
        partitions[partition].discard(transaction)
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del self._open[group]
