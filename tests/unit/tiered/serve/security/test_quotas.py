"""Meters of principals by an injected clock."""

from __future__ import annotations

import pytest
from kafka_security import Clock

from tiered.serve.security.principals import Principal
from tiered.serve.security.quotas import BURST_S, METERS_MAX, Quotas, Rate

ALICE, BOB = Principal("alice"), Principal("bob")


def test_a_burst_is_free_and_a_debt_is_paid_at_the_rate() -> None:
    clock = Clock()
    quotas = Quotas(clock)
    quotas.replace({(ALICE, Rate.FETCH): 100.0})
    assert quotas.record(ALICE, Rate.FETCH, 100 * BURST_S) == 0
    assert quotas.record(ALICE, Rate.FETCH, 50) == 0.5
    clock.now_s += 0.25
    assert quotas.record(ALICE, Rate.FETCH, 0) == 0.25
    clock.now_s += 0.25
    assert quotas.record(ALICE, Rate.FETCH, 0) == 0
    clock.now_s += 1000
    assert quotas.record(ALICE, Rate.FETCH, 100 * BURST_S + 100) == 1.0


def test_principals_and_rates_are_metered_apart_and_the_default_is_for_each() -> None:
    quotas = Quotas(Clock())
    quotas.replace({(None, Rate.FETCH): 10.0, (BOB, Rate.FETCH): 1000.0, (None, Rate.PRODUCE): 10.0})
    assert quotas.record(ALICE, Rate.FETCH, 110) == 1.0
    assert quotas.record(Principal("carol"), Rate.FETCH, 10) == 0
    assert quotas.record(BOB, Rate.FETCH, 110) == 0
    assert quotas.record(ALICE, Rate.PRODUCE, 100) == 0
    assert quotas.record(ALICE, Rate.REQUESTS, 10**9) == 0
    assert (quotas.burst(ALICE, Rate.FETCH), quotas.burst(ALICE, Rate.REQUESTS)) == (100, None)


def test_a_changed_rate_applies_to_the_same_debt() -> None:
    quotas = Quotas(Clock())
    quotas.replace({(ALICE, Rate.FETCH): 10.0})
    assert quotas.record(ALICE, Rate.FETCH, 200) == 10.0
    quotas.replace({(ALICE, Rate.FETCH): 100.0})
    assert quotas.record(ALICE, Rate.FETCH, 0) == pytest.approx(1.0)
    quotas.replace({})
    assert quotas.record(ALICE, Rate.FETCH, 10**9) == 0


def test_the_number_of_meters_is_bounded() -> None:
    quotas = Quotas(Clock())
    quotas.replace({(None, Rate.REQUESTS): 1.0})
    for at in range(METERS_MAX + 100):
        quotas.record(Principal(str(at)), Rate.REQUESTS, 1)
    assert len(quotas._meters) == METERS_MAX
