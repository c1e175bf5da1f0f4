"""Quotas: bytes and requests per second of a principal. Source: kafka `ClientQuotaManager`, KIP-124, KIP-219.

A meter allows bursts of BURST_S seconds of its rate, Kafka's ten windows of a second. What exceeds them is a debt: the
response says how long the client should pause (`throttle_time_ms`), and its connection is not read for that time.

The meters belong to one process, as Kafka's belong to one broker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tiered.serve.security.principals import Principal

BURST_S = 10.0
METERS_MAX = 10_000
MUTE_S_MAX = 60.0  # a longer debt is paid in several pauses


class Rate(Enum):
    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUESTS = "request_rate"


@dataclass(slots=True)
class Meter:
    """`rate` per second; `allowance` is negative while there is a debt."""

    rate: float
    allowance: float
    at_s: float

    @classmethod
    def full(cls, rate: float, now_s: float) -> Meter:
        return cls(rate, rate * BURST_S, now_s)

    def take(self, amount: float, now_s: float) -> float:
        """Record an amount, and return the seconds until the debt is paid; 0.0 without one."""
        self.allowance = min(self.rate * BURST_S, self.allowance + (now_s - self.at_s) * self.rate) - amount
        self.at_s = now_s
        return max(0.0, -self.allowance / self.rate)


class Quotas:
    """The meters of principals. `clock` returns seconds that never fall. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rates: Mapping[tuple[Principal | None, Rate], float] = {}
        self._meters: OrderedDict[tuple[Principal, Rate], Meter] = OrderedDict()

    def replace(self, rates: Mapping[tuple[Principal | None, Rate], float]) -> None:
        """Set the rates per second by principal, None for every other one. Debts remain."""
        self._rates = rates

    def record(self, principal: Principal, rate: Rate, amount: float) -> float:
        """Record an amount, and return the seconds until the debt of the principal is paid."""
        per_s = self._rates.get((principal, rate), self._rates.get((None, rate)))
        if per_s is None:
            return 0.0
        now_s, key = self._clock(), (principal, rate)
        meter = self._meters.pop(key, None) or Meter.full(per_s, now_s)
        if meter.rate != per_s:
            meter = Meter(per_s, min(meter.allowance, per_s * BURST_S), meter.at_s)
        self._meters[key] = meter
        if len(self._meters) > METERS_MAX:
            self._meters.popitem(last=False)
        return meter.take(amount, now_s)

    def burst(self, principal: Principal, rate: Rate) -> int | None:
        """The largest amount that one response should have; None without a quota."""
        per_s = self._rates.get((principal, rate), self._rates.get((None, rate)))
        return None if per_s is None else max(1, int(per_s * BURST_S))
