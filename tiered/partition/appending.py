"""Appends that go to several partitions at once, and making several logs durable together.

Order of effects: every partition's share is written, then all of them are synced side by side, then the call returns.
A crash before that leaves any of the shares, none acknowledged. When writing one fails, those written before it are
still made durable, for the error tells of them; those after it are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from local.errors import LogError
from local.log import AppendResult, Durability, Log
from local.names import TopicPartition

Encoded = Mapping[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]]

# Syncs of different files wait for the same journal; more of them at once gain little.
_SYNCS_AT_ONCE = 8


def append_shares(shares: Encoded, now_ms: int, durability: Durability) -> dict[TopicPartition, AppendResult]:
    """Append each partition's batches, all durable on return if so asked. Raises what the first failure raised.

    Its fact `appended` names the shares that are in their logs all the same, as durable as they were asked to be.
    """
    results: dict[TopicPartition, AppendResult] = {}
    failures: list[LogError] = []
    for name, (log, batches) in shares.items():
        try:
            # A single share waits by itself; several are written before the first is waited for.
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
    """Make everything in these logs durable, side by side; for each what went wrong, None where nothing did."""
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
    """The error of one share, and which others are in the log all the same."""
    if not results:
        return error
    appended = ",".join(f"{name}:{given.base_offset}-{given.next_offset - 1}" for name, given in results.items())
    return error.restated(error.attempt, **{**error.facts, "appended": appended})


def raise_first(failures: Sequence[LogError]) -> None:
    if failures:
        raise failures[0]
