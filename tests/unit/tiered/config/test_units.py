"""Parsing and formatting of durations, sizes, counts and money."""

from __future__ import annotations

import pytest

from tiered.config.units import format_bytes, format_count, format_dollars, format_ms, parse_bytes, parse_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("604800000", 604_800_000),
        ("-1", -1),
        ("-2", -2),
        ("250ms", 250),
        ("30s", 30_000),
        ("15m", 900_000),
        ("6h", 21_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        (" 7D ", 604_800_000),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_duration_is_parsed_to_milliseconds(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "7x", "d", "-7d", "7 days", "1e3", "7d!", "h7", "\u0667d", "1" * 20, "9" * 19, "9" * 400 + "d", f"{2**63}ms"],
)
def test_text_that_is_no_duration_parses_to_none(text: str) -> None:
    assert parse_ms(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("-1", -1),
        ("17b", 17),
        ("4096", 4096),
        ("4KiB", 4096),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2TiB", 2 << 40),
        ("512MB", 512_000_000),
        ("1pb", 10**15),
    ],
)
def test_size_is_parsed_to_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "12 parsecs", "MiB", "-1MiB", "1.2.3KiB", "0x10", "1kbit", "9" * 19, "9" * 400 + "PiB", "9000000PB"]
)
def test_text_that_is_no_size_parses_to_none(text: str) -> None:
    assert parse_bytes(text) is None


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (30_000, "30s"),
        (5_400_000, "1h 30m"),
        (604_800_000, "7d"),
        (90_061_001, "1d 1h"),
        (-2, "-2"),
    ],
)
def test_duration_is_formatted_with_its_two_largest_units(ms: int, text: str) -> None:
    assert format_ms(ms) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (410 << 20, "410 MiB"),
        (2_132_547_747_840, "1.94 TiB"),
        (19_542_101_196, "18.2 GiB"),
        (1023 << 10, "1.00 MiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_size_is_formatted_with_three_digits_and_a_binary_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_count_is_formatted_with_separators() -> None:
    assert format_count(91_204_118) == "91,204,118"


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(0.0, "0.00"), (45.68, "45.68"), (1234.5, "1,234.50"), (0.0023, "0.0023"), (0.00001, "<0.0001")],
)
def test_money_below_a_cent_is_not_formatted_as_zero(dollars: float, text: str) -> None:
    assert format_dollars(dollars) == text
