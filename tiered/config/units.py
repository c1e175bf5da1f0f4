"""Parse and print durations, sizes, counts and money.

Durations: ``500ms 30s 15m 6h 7d 2w`` and sums of them (``1h30m``). A bare number of a setting is ms, as in Kafka;
options need the unit. Sizes: ``512MiB`` and similar are powers of two, ``512MB`` powers of ten; a bare number is bytes.
"""

from __future__ import annotations

import datetime
import re

from policies.formatting import counted as counted
from policies.formatting import format_ms as format_ms

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_MAX = 2**63 - 1  # Kafka's long: more is a typing error


def parse_ms(text: str) -> int | None:
    """``7d`` as milliseconds, negative only as a bare number; None if malformed or above 2**63-1."""
    text = text.strip().lower()
    if _is_integer(text):
        return _bounded(int(text))
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return _whole(sum(float(number) * _MS[unit] for number, unit in parts))


def parse_duration(text: str) -> int | None:
    """As `parse_ms`, for an option: None also for a number above 0 without a unit."""
    value = parse_ms(text)
    return None if value is not None and value > 0 and _is_integer(text.strip()) else value


def parse_bytes(text: str) -> int | None:
    """``512MiB`` as bytes; None if malformed or above 2**63-1. Negative only as bare numbers."""
    text = text.strip().lower()
    if _is_integer(text):
        return _bounded(int(text))
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _BYTES:
        return None
    return _whole(float(found[1]) * int(_BYTES[found[2]]))


def format_bytes(size: int) -> str:
    """Three digits and a binary unit: ``410 MiB``, ``1.94 TiB``, ``17 B``."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 999.5 or unit == "PiB":
            break
        value /= 1024
    if unit == "B":
        return f"{size} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_lasted(ms: int) -> str:
    """A duration in whole seconds; a negative one is 0, for clocks that differ."""
    return format_ms(max(0, ms) // 1000 * 1000)


def format_count(count: int) -> str:
    return f"{count:,}"


DOLLARS_SHOWN = 0.00005  # smaller amounts are shown as "<0.0001"


def format_dollars(dollars: float) -> str:
    """Dollars with cents, with more digits below one cent: ``45.68``, ``0.0023``."""
    if dollars == 0 or abs(dollars) >= 0.005:
        return f"{dollars:,.2f}"
    return f"{dollars:.4f}" if abs(dollars) >= DOLLARS_SHOWN else "<0.0001"


def _bounded(value: int) -> int | None:
    return value if -_MAX <= value <= _MAX else None


def _whole(value: float) -> int | None:
    return round(value) if value < _MAX else None


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,19}", text) is not None


def rfc3339(timestamp_ms: int) -> str:
    """Format as ``2026-11-20T12:00:00.000Z``; as a bare number outside the years of the calendar."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
