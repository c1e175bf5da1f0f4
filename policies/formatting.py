"""Durations and counts as text for people."""

from __future__ import annotations

_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def format_ms(ms: int) -> str:
    """Return the two largest non-zero units: ``7d``, ``1h 30m``, ``250ms``; a bare number if negative."""
    if ms < 0:
        return str(ms)
    parts: list[str] = []
    for unit, size in _MS:
        whole, ms = divmod(ms, size)
        if whole:
            parts.append(f"{whole}{unit}")
    return " ".join(parts[:2]) or "0ms"


def counted(count: int, thing: str) -> str:
    """Return ``1 topic``, ``1,000 topics``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
