"""Errors that clients cause again and again make few lines in the log."""

from __future__ import annotations

import logging

import pytest
from fake_source import ORDERS, SLOW

from local.errors import Corrupt, Unavailable
from tiered.serve.handlers import repeated_errors
from tiered.serve.handlers.repeated_errors import INTERVAL_S, RepeatedErrors


def test_an_error_is_logged_once_an_interval_for_each_place_and_class(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    errors = RepeatedErrors(logging.getLogger("tiered.serve"), lambda: now_s)

    def levels() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            errors.warn(ORDERS, Unavailable("the store is down"))
            errors.warn(SLOW, Unavailable("the store is down"))
            errors.fail(ORDERS, Corrupt("damaged"))
        return [each.levelname for each in caplog.records]

    assert levels() == ["WARNING", "WARNING", "ERROR"]
    now_s = INTERVAL_S - 1
    assert levels() == ["DEBUG"] * 3
    now_s = INTERVAL_S
    assert levels() == ["WARNING", "WARNING", "ERROR"]


def test_the_remembered_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_errors, "PLACES_MAX", 3)
    errors = RepeatedErrors(logging.getLogger("tiered.serve"), lambda: 0.0)
    for number in range(10):
        errors.warn(number, Unavailable("the store is down"))
    assert [place for place, _ in errors._logged_s] == [7, 8, 9]
