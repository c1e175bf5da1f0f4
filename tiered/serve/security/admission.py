"""Limits on connections, the delay of failed authentications, and log lines that a client cannot multiply.

Source: kafka `ConnectionQuotas`; KIP-612 (creation rate), ``connection.failed.authentication.delay.ms``.

Failures of one address are answered one by one: the answer to the n-th failure at once waits n delays. So parallel
connections guess no faster than one, and a client that does not wait for the answer still occupies its connection.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tiered.serve.security.quotas import Meter

ADDRESSES_MAX = 10_000
DELAY_S_MAX = 30.0


class Tally:
    """Counts of the last keys; decides which events are logged: the 1st, 10th, 100th and so on of each key."""

    def __init__(self, keys_max: int = ADDRESSES_MAX) -> None:
        self._keys_max = keys_max
        self._counts: OrderedDict[Hashable, int] = OrderedDict()

    def add(self, key: Hashable) -> int | None:
        """Count an event; the count if it is to be logged."""
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        if len(self._counts) > self._keys_max:
            self._counts.popitem(last=False)
        return count if str(count).strip("0") == "1" else None

    def warn(self, log: logging.Logger, key: Hashable, text: str, *facts: object) -> None:
        """Log the event of the key, with the number of such events, unless it is one of many."""
        count = self.add(key)
        if count is not None:
            log.warning(text + " times=%d", *facts, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """None: no limit of that kind. Rates are connections per second."""

    connections_max: int | None = None
    per_address_max: int | None = None
    rate: float | None = None
    rate_per_address: float | None = None
    failure_delay_s: float = 0.1


class Admission:
    """The connections of one listener by address. Belongs to one event loop. `clock`: seconds that never fall."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.limits = ConnectionLimits()
        self._open: Counter[str] = Counter()
        self._all: Meter | None = None
        self._by_address: OrderedDict[str, Meter] = OrderedDict()
        self._failures: OrderedDict[str, float] = OrderedDict()  # when the last delayed answer leaves

    def enter(self, address: str) -> str | None:
        """Count a new connection, or return the limit that refuses it. `leave` must follow only after None."""
        limits, now_s = self.limits, self._clock()
        if limits.connections_max is not None and self._open.total() >= limits.connections_max:
            return f"max.connections={limits.connections_max}"
        if limits.per_address_max is not None and self._open[address] >= limits.per_address_max:
            return f"max.connections.per.ip={limits.per_address_max}"
        if limits.rate_per_address is not None:
            meter = self._by_address.pop(address, None) or Meter.full(limits.rate_per_address, now_s)
            self._by_address[address] = meter
            if len(self._by_address) > ADDRESSES_MAX:
                self._by_address.popitem(last=False)
            if not _admits(meter, limits.rate_per_address, now_s):
                return f"max.connection.creation.rate.per.ip={limits.rate_per_address:g}"
        if limits.rate is not None:
            self._all = self._all or Meter.full(limits.rate, now_s)
            if not _admits(self._all, limits.rate, now_s):
                return f"max.connection.creation.rate={limits.rate:g}"
        self._open[address] += 1
        return None

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def failure_delay_s(self, address: str) -> float:
        """Count a failed authentication, and return the seconds until its answer."""
        now_s = self._clock()
        leaves_s = max(now_s, self._failures.pop(address, now_s)) + self.limits.failure_delay_s
        self._failures[address] = min(leaves_s, now_s + DELAY_S_MAX)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)
        return self._failures[address] - now_s


def _admits(meter: Meter, rate: float, now_s: float) -> bool:
    """Take one from the meter, unless that makes a debt."""
    meter.rate = rate
    meter.take(0, now_s)
    if meter.allowance < 1:
        return False
    meter.take(1, now_s)
    return True
