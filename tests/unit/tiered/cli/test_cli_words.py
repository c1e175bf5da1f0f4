"""Parsing of partitions, positions, times and templates."""

from __future__ import annotations

import pytest

from local.errors import InvalidRequest
from tiered.cli.options import Position, parse_partition, parse_position, parse_time
from tiered.cli.records import parse_template
from tiered.config.units import rfc3339

NOON = 1_795_176_000_000  # 2026-11-20T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Position(is_start=True)),
        ("end", Position(is_end=True)),
        ("0", Position(offset=0)),
        ("-10", Position(last=10)),
        ("@5", Position(timestamp_ms=5)),
        ("@-2h", Position(timestamp_ms=NOON - 7_200_000)),
        ("@2026-11-20T12:00:00Z", Position(timestamp_ms=NOON)),
        ("@2026-11-20T13:00:00+01:00", Position(timestamp_ms=NOON)),
        ("@2026-11-20T12:00", Position(timestamp_ms=NOON)),
    ],
)
def test_position_is_parsed(text: str, expected: Position) -> None:
    assert parse_position(text, NOON) == expected


@pytest.mark.parametrize("text", ["", "1.5", "@", "@-2x", "@now", "--1", "1e3"])
def test_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_position(text, NOON)


def test_date_without_a_time_is_midnight_utc() -> None:
    assert rfc3339(parse_time("2026-11-20", 0)) == "2026-11-20T00:00:00.000Z"
    assert rfc3339(2**62) == str(2**62)


@pytest.mark.parametrize(
    ("text", "expected"), [("orders", ("orders", None)), ("orders/3", ("orders", 3)), ("a.b_c-9", ("a.b_c-9", None))]
)
def test_partition_is_parsed_as_topic_and_number(text: str, expected: tuple[str, int | None]) -> None:
    assert parse_partition(text) == expected


@pytest.mark.parametrize("text", ["", "/", "/0", "orders/", "orders/-1", "orders/x", "../0", "a b", "o/2147483648"])
def test_invalid_partition_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_partition(text)


@pytest.mark.parametrize("template", ["%", "%x", "\\x", "\\"])
def test_unknown_sign_in_a_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown sign"):
        parse_template(template)
