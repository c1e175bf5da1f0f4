"""Which partition a record goes to: Kafka's default, so a producer and `tiered` agree about every key.

murmur2 of the key, sign bit cleared, modulo the number of partitions. Records without a key stay together per call and
move on by one partition a call. Source: kafka `Utils.murmur2`, `BuiltInPartitioner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count

from local.record import Record

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF


class Partitioner:
    """Splits records over the partitions of topics; keeps the turn of keyless records."""

    def __init__(self) -> None:
        self._turn = count()

    def split(self, records: Sequence[Record], partition_count: int) -> dict[int, list[Record]]:
        """Records by partition number, their order kept within each."""
        if partition_count == 1:
            return {0: list(records)}
        keyless = next(self._turn) % partition_count
        chosen: dict[int, list[Record]] = {}
        for record in records:
            key = record[0]
            number = keyless if key is None else (murmur2(key) & 0x7FFFFFFF) % partition_count
            chosen.setdefault(number, []).append(record)
        return chosen


@lru_cache(maxsize=1 << 16)
def murmur2(data: bytes) -> int:
    """The unsigned 32-bit hash of a key."""
    length = len(data)
    h = _SEED ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)
