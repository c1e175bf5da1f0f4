"""Split records over partitions, append to several in one call, flush logs in parallel.

Keys are split by Kafka's default partitioner: murmur2 of the key, sign bit cleared, modulo the number of partitions.
Each call gives its records without a key to the next partition. Source: kafka `Utils.murmur2`, `BuiltInPartitioner`.

Order of effects of an append: every share is written → all logs are synced in parallel → the call returns. A crash in
between leaves any subset of the shares, none acknowledged. After the failed write of one share, the earlier shares are
still flushed, because the error names them. The later shares are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from local.errors import LogError
from local.format.record import Record
from local.log import AppendResult, Durability, Log
from local.names import TopicPartition
from tiered.partition.partition_table import PartitionTable, flush_all

if TYPE_CHECKING:
    from local.records.record_columns import RecordColumns

Batches = Iterable[bytearray | memoryview]
Encoded = Mapping[TopicPartition, tuple[Log, Batches]]
T = TypeVar("T")


class Appender:
    """Appends to the partitions of a manager. Thread safe."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._partitioner = Partitioner()

    def append(
        self,
        topic: str,
        records: Sequence[Record],
        partition: int | None = None,
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> dict[TopicPartition, AppendResult]:
        """Append records, to one partition or split by key as Kafka does; returns the offsets by partition.

        Each partition's share is acknowledged on its own. Invalid records are refused before any append. Raises Fenced
        or Conflict for a partition that another writer took over, and Unavailable for an empty log whose end only the
        unavailable bucket knows. If the disk fails half way, the facts of the error name the appended shares.
        """
        self._table.directories.check_writable()
        shares: Mapping[TopicPartition, Sequence[Record]]
        shares = self.split(topic, records) if partition is None else {TopicPartition(topic, partition): records}
        return self._append(shares, lambda log, share: log.encode(share, now_ms=now_ms), now_ms, durability)

    def append_columns(
        self,
        topic: str,
        columns: object,
        partition: int | None = None,
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> dict[TopicPartition, AppendResult]:
        """As `append`, for columns: an Arrow table or record batch, or `Columns` read from a log.

        An Arrow table has the columns key and value (binary or string of any kind), and may have timestamp (an Arrow
        timestamp, or milliseconds; `now_ms` without it) and headers (a list of structs key, value). Raises as `append`,
        and InvalidRequest for other columns.
        """
        from local.records.record_columns import record_columns

        self._table.directories.check_writable()
        chunks = record_columns(columns, now_ms=now_ms)
        count = self._table.registry.get(topic).partition_count
        numbered = self._partitioner.split_columns(chunks, count) if partition is None else {partition: chunks}
        shares = {TopicPartition(topic, number): share for number, share in sorted(numbered.items())}
        return self._append(shares, lambda log, share: log.encode_columns(share, now_ms=now_ms), now_ms, durability)

    def split(self, topic: str, records: Sequence[Record]) -> dict[TopicPartition, list[Record]]:
        """The split of records by key, as Kafka's default partitioner does it; nothing is appended."""
        shares = self._partitioner.split(records, self._table.registry.get(topic).partition_count)
        return {TopicPartition(topic, number): share for number, share in sorted(shares.items())}

    def _append(
        self,
        shares: Mapping[TopicPartition, T],
        encode: Callable[[Log, T], Batches],
        now_ms: int,
        durability: Durability,
    ) -> dict[TopicPartition, AppendResult]:
        encoded: dict[TopicPartition, tuple[Log, Batches]] = {}
        for name, share in shares.items():
            # Every check that can refuse comes before the first append.
            held = self._table.find(name)
            held.check_appendable()
            encoded[name] = (held.log, encode(held.log, share))
        for name in encoded:
            self._table.find(name).note_append()
        return append_shares(encoded, now_ms, durability)


class Partitioner:
    """Splits records over the partitions of topics; remembers the next partition of keyless records."""

    def __init__(self) -> None:
        self._turn = count()

    def split(self, records: Sequence[Record], partition_count: int) -> dict[int, list[Record]]:
        """Records by partition number, in their order within each."""
        if partition_count == 1:
            return {0: list(records)}
        keyless = next(self._turn) % partition_count
        shares: dict[int, list[Record]] = {}
        for record in records:
            key = record[0]
            number = keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count
            shares.setdefault(number, []).append(record)
        return shares

    def split_columns(self, chunks: Sequence[RecordColumns], partition_count: int) -> dict[int, list[RecordColumns]]:
        if partition_count == 1:
            return {0: list(chunks)}
        import numpy as np

        from local import kernels

        keyless = next(self._turn) % partition_count
        shares: dict[int, list[RecordColumns]] = {}
        for chunk in chunks:
            hashes = kernels.hash_keys(chunk.key_data, chunk.key_starts, chunk.key_lengths)
            numbers = (hashes & 0x7FFFFFFF) % partition_count
            numbers[chunk.key_lengths < 0] = keyless
            for number in np.unique(numbers).tolist():
                shares.setdefault(number, []).append(chunk.select(np.flatnonzero(numbers == number)))
        return shares


@lru_cache(maxsize=1 << 16)
def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, 32 bits."""
    from local.kernels.pure_kernels import murmur2 as hashed

    return hashed(key)


def append_shares(shares: Encoded, now_ms: int, durability: Durability) -> dict[TopicPartition, AppendResult]:
    """Append each partition's batches, durable on return if `durability` asks for it. Returns the results.

    Raises the first failure. Its fact `appended` names the shares in their logs, with the durability asked for.
    """
    results: dict[TopicPartition, AppendResult] = {}
    failures: list[LogError] = []
    for name, (log, batches) in shares.items():
        try:
            # A single share is synced by its own append. Several shares are all written before the first sync.
            own = durability if len(shares) == 1 else Durability.MEMORY
            results[name] = log.append_encoded(batches, now_ms=now_ms, durability=own)
        except LogError as error:
            failures.append(error)
            break
    if durability is Durability.FLUSHED and len(shares) > 1:
        written = list(results)
        for name, problem in zip(written, flush_all([shares[name][0] for name in written]), strict=True):
            if problem is not None:
                failures.append(problem)
                del results[name]
    if failures and results:
        first = failures[0]
        appended = ",".join(f"{name}:{given.base_offset}-{given.next_offset - 1}" for name, given in results.items())
        raise first.restated(first.attempt, **{**first.facts, "appended": appended}) from first
    if failures:
        raise failures[0]
    return results
