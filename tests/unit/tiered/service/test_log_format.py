"""Log lines as JSON: facts become fields, and a message without facts stays whole."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from local.names import TopicPartition
from tiered.service.log_format import JsonFormatter, split_facts


def line(message: object, *values: object, **more: object) -> dict[str, object]:
    record = logging.LogRecord("tiered.maintenance.apply", logging.INFO, "x.py", 1, message, values, None)
    record.created = 1_795_176_000.5
    for name, value in more.items():
        setattr(record, name, value)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_facts_become_fields_and_the_message_stays_constant() -> None:
    assert line("applied: partition=%s size=%d share=%.1f", TopicPartition("t", 3), 17, 0.25) == {
        "time": "2026-11-20T12:00:00.500Z", "level": "info", "logger": "tiered.maintenance.apply", "message": "applied",
        "partition": "t/3", "size": 17, "share": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "values", "text", "facts"),
    [
        ("no facts at all", (), "no facts at all", {}),
        (
            "retention waits for a manifest page: partition=%s page=%s %s",
            ("t/0", "p", "gone"),
            "retention waits for a manifest page gone",
            {"partition": "t/0", "page": "p"},
        ),
        ("done: cause=%s", ('a "quoted" = text',), "done", {"cause": 'a "quoted" = text'}),
        ("100%% sure: x=%s", (1,), "100% sure: x=1", {}),
        ("constant=yes only", (), "constant=yes only", {}),
        ("kept: none=%s", (None,), "kept", {"none": None}),
    ],
)  # fmt: skip
def test_facts_are_split_from_every_form_of_message(
    message: str, values: tuple[object, ...], text: str, facts: dict[str, object]
) -> None:
    assert split_facts(logging.LogRecord("x", logging.INFO, "x.py", 1, message, values, None)) == (text, facts)


def test_standard_fields_take_precedence_over_facts() -> None:
    found = line("odd: time=%s level=%s", "noon", 3)
    assert (found["level"], found["level_"], found["time_"]) == ("info", 3, "noon")


def test_error_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        found = line("failed: at=%s", "y", exc_info=sys.exc_info())
    assert "ValueError: x" in str(found["error"])


def test_message_that_does_not_match_its_values_is_still_logged() -> None:
    assert line({"a": 1})["message"] == "{'a': 1}"
