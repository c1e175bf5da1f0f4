"""When a closed segment is due for its copy (KIP-1241): the one rule, asked by the plan, status and the simulation.

A segment is due when its newest record is `copy_lag_ms` old, or when `copy_lag_bytes` of the log are newer: whichever
comes first. Zero in either makes it due once it is closed; None in both never does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from policies.rules import PartitionRules
from policies.words import format_ms

NEVER = inf


def copy_due_ms(
    rules: PartitionRules, *, closed_ms: float, newest_ms: float, reached_ms: Callable[[int], float]
) -> float:
    """The time in ms from which a segment is due; `NEVER` where no time can be told.

    The segment was closed at `closed_ms` and its newest record is of `newest_ms`. `reached_ms` says when the bytes that
    are newer than the segment reach a number; `NEVER` while they do not.
    """
    lag_ms, lag_bytes = rules.copy_lag_ms, rules.copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return closed_ms
    by_age = NEVER if lag_ms is None else newest_ms + lag_ms
    by_size = NEVER if lag_bytes is None else reached_ms(lag_bytes)
    return max(closed_ms, min(by_age, by_size))


def lag_in_words(rules: PartitionRules) -> str:
    """The settings that the rule goes by: ``remote.copy.lag.ms=1h``, with ``or`` between two of them."""
    told = [] if rules.copy_lag_ms is None else [f"remote.copy.lag.ms={format_ms(rules.copy_lag_ms)}"]
    told += [] if rules.copy_lag_bytes is None else [f"remote.copy.lag.bytes={rules.copy_lag_bytes}"]
    return " or ".join(told) or "remote.copy.lag.ms and remote.copy.lag.bytes are unlimited"
