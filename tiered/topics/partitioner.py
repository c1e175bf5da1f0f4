"""Choose the partition of a record with Kafka's default partitioner.

A producer and `tiered` choose the same partition for every key: murmur2 of the key, sign bit cleared, modulo the number
of partitions. Records without a key share one partition per call, and the next call uses the next partition. Source:
kafka `Utils.murmur2`, `BuiltInPartitioner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

from local.format.record import Record

if TYPE_CHECKING:
    from local.records.record_columns import RecordColumns


class Partitioner:
    """Splits records over the partitions of topics; remembers the next partition of keyless records."""

    def __init__(self) -> None:
        self._turn = count()

    def split(self, records: Sequence[Record], partition_count: int) -> dict[int, list[Record]]:
        """Records by partition number, in their order within each."""
        if partition_count == 1:
            return {0: list(records)}
        keyless = next(self._turn) % partition_count
        chosen: dict[int, list[Record]] = {}
        for record in records:
            key = record[0]
            number = keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count
            chosen.setdefault(number, []).append(record)
        return chosen

    def split_columns(self, chunks: Sequence[RecordColumns], partition_count: int) -> dict[int, list[RecordColumns]]:
        """As `split`, for columns: every record gets the same partition."""
        if partition_count == 1:
            return {0: list(chunks)}
        import numpy as np

        from local import kernels

        keyless = next(self._turn) % partition_count
        chosen: dict[int, list[RecordColumns]] = {}
        for chunk in chunks:
            hashes = kernels.hash_keys(chunk.key_data, chunk.key_starts, chunk.key_lengths)
            numbers = (hashes & 0x7FFFFFFF) % partition_count
            numbers[chunk.key_lengths < 0] = keyless
            for number in np.unique(numbers).tolist():
                chosen.setdefault(number, []).append(chunk.select(np.flatnonzero(numbers == number)))
        return chosen


@lru_cache(maxsize=1 << 16)
def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, 32 bits."""
    from local.kernels.pure_column_kernels import murmur2 as hashed

    return hashed(key)
