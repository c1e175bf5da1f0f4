"""Names of settings and their values in the cost lab."""

from __future__ import annotations

from tiered.config.units import format_bytes, format_ms, parse_ms
from tiered.cost.cost_lab import FOR_EVER_MS, NAME_OF
from tiered.cost.cost_simulation import CLASS_NAMES

HERE = "/cost"
FIELD_OF = {name: field for field, name in NAME_OF.items()}
LABELS = {
    "retention_ms": "Retention",
    "local_retention_ms": "Local retention",
    "segment_bytes": "Segment size",
    "part_bytes": "Part size",
    "read_share": "Share read a month",
}


def value_words(field: str, value: int | float | str) -> str:
    """``7d``, ``256MiB``, ``10%``: exactly the value, as an address and the command line have it."""
    if field == "read_share":
        return f"{100 * float(value):.6g}%"
    if field.endswith("_ms"):
        words = format_ms(int(value)).replace(" ", "")
        return words if parse_ms(words) == value else f"{value}ms" if int(value) > 0 else str(value)
    if not field.endswith("_bytes"):
        return str(value)
    units = {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}
    return next((f"{int(value) // size}{unit}" for size, unit in units.items() if int(value) % size == 0), str(value))


def shown_value(field_: str, value: int | float | str | None) -> str:
    """Format a value for a reader."""
    if value is None:
        return "-"
    if value == FOR_EVER_MS:
        return "no limit"
    if field_ == "read_share":
        return f"{100 * float(value):.3g} % of it"
    return format_ms(int(value)) if field_.endswith("_ms") else format_bytes(int(value))


def class_word(storage_class: str) -> str:
    """Return the short name of a storage class, as the command line has it."""
    names = {value: name for name, value in CLASS_NAMES.items()}
    return names.get(storage_class, storage_class.lower())
