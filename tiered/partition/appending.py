"""Append to several partitions in one call, and flush several logs in parallel.

Order of effects:

1. The share of every partition is written.
2. All logs are synced in parallel.
3. The call returns.

A crash before step 3 leaves any subset of the shares, none of them acknowledged. When the write of one share fails, the
shares written before it are still flushed, because the error names them. The shares after it are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from local.errors import LogError
from local.log import AppendResult, Durability, Log
from local.names import TopicPartition

Encoded = Mapping[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]]

# Syncs of different files wait for the same journal, so more parallel syncs gain little.
_SYNCS_AT_ONCE = 8


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
