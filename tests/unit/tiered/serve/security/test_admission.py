"""Limits on connections and delays of failures by an injected clock."""

from __future__ import annotations

import logging

import pytest
from kafka_security import Clock

from tiered.serve.security.admission import DELAY_S_MAX, Admission, ConnectionLimits, Tally

HERE, THERE = "10.0.0.1", "10.0.0.2"


def admission(clock: Clock | None = None, **limits: object) -> Admission:
    made = Admission(clock or Clock())
    made.limits = ConnectionLimits(**limits)  # type: ignore[arg-type]
    return made


def test_without_limits_every_connection_is_admitted() -> None:
    found = admission()
    assert [found.enter(HERE) for _ in range(5000)] == [None] * 5000


def test_limits_of_one_address_and_of_all() -> None:
    found = admission(connections_max=3, per_address_max=2)
    assert [found.enter(HERE), found.enter(HERE)] == [None, None]
    assert found.enter(HERE) == "max.connections.per.ip=2"
    assert found.enter(THERE) is None
    assert found.enter(THERE) == "max.connections=3"
    found.leave(HERE)
    assert found.enter(THERE) is None
    for _ in range(2):
        found.leave(THERE)
    found.leave(HERE)
    assert not found._open


def test_rates_of_one_address_and_of_all() -> None:
    clock = Clock()
    found = admission(clock, rate=2.0, rate_per_address=1.0)
    assert [found.enter(HERE) for _ in range(10)] == [None] * 10
    assert found.enter(HERE) == "max.connection.creation.rate.per.ip=1"
    assert [found.enter(THERE) for _ in range(10)] == [None] * 10
    clock.now_s += 0.4
    assert found.enter("10.0.0.3") == "max.connection.creation.rate=2"
    clock.now_s += 0.6
    assert found.enter(HERE) is None


def test_failures_of_one_address_wait_for_each_other_up_to_a_limit() -> None:
    clock = Clock()
    found = admission(clock, failure_delay_s=0.5)
    assert [found.failure_delay_s(HERE) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert found.failure_delay_s(THERE) == 0.5
    clock.now_s += 10
    assert found.failure_delay_s(HERE) == 0.5
    assert max(found.failure_delay_s(HERE) for _ in range(1000)) == DELAY_S_MAX


def test_events_of_a_key_are_logged_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(keys_max=2)
    for _ in range(100):
        tally.warn(logging.getLogger("tiered"), HERE, "event: key=%s", HERE)
    assert caplog.messages == [f"event: key={HERE} times={count}" for count in (1, 10, 100)]
    for key in "abc":
        tally.add(key)
    assert len(tally._counts) == 2
