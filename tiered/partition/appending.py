"""Split records over the partitions of a topic, append to several partitions in one call, flush logs in parallel.

A producer and `tiered` choose the same partition for every key, by Kafka's default partitioner: murmur2 of the key,
sign bit cleared, modulo the number of partitions. Records without a key share one partition per call, and the next call
uses the next partition. Source: kafka `Utils.murmur2`, `BuiltInPartitioner`.

Order of effects of an append:

1. The share of every partition is written.
2. All logs are synced in parallel.
3. The call returns.

A crash before step 3 leaves any subset of the shares, none of them acknowledged. When the write of one share fails, the
shares written before it are still flushed, because the error names them. The shares after it are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

from local.errors import LogError
from local.format.record import Record
from local.log import AppendResult, Durability, Log
from local.names import TopicPartition

if TYPE_CHECKING:
    from local.records.record_columns import RecordColumns

Encoded = Mapping[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]]

# Syncs of different files wait for the same journal, so more parallel syncs gain little.
_SYNCS_AT_ONCE = 8


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


def append_shares(shares: Encoded, now_ms: int, durability: Durability) -> dict[TopicPartition, AppendResult]:
    """Append each partition's batches, durable on return if `durability` asks for it.

    Raises the first failure. Its fact `appended` names the shares that are in their logs, with the durability asked
    for.
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
    if failures:
        raise _partly(failures[0], results) from failures[0]
    return results


def flush_all(logs: Sequence[Log]) -> list[LogError | None]:
    """Flush these logs in parallel; the error of each, None on success."""
    if len(logs) < 2:
        return [_flush(log) for log in logs]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(logs), _SYNCS_AT_ONCE)) as pool:
        return list(pool.map(_flush, logs))


def _flush(log: Log) -> LogError | None:
    try:
        log.flush()
    except LogError as error:
        return error
    return None


def _partly(error: LogError, results: Mapping[TopicPartition, AppendResult]) -> LogError:
    """The error of one share, with the shares that are in their logs as the fact `appended`."""
    if not results:
        return error
    appended = ",".join(f"{name}:{given.base_offset}-{given.next_offset - 1}" for name, given in results.items())
    return error.restated(error.attempt, **{**error.facts, "appended": appended})


def raise_first(failures: Sequence[LogError]) -> None:
    if failures:
        raise failures[0]
