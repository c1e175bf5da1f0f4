"""The properties of cost: one part of the table of properties."""

from __future__ import annotations

from tiered.config.property_table import Kind, Property, Source

COST_TABLE = (
    Property(
        name="cost.prices",
        kind=Kind.TEXT,
        default="",
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "A JSON file with prices that differ from the built-in prices, relative to tiered.toml "
            "('tiered cost prices' prints all of them as a start). Empty: the built-in prices."
        ),
    ),
)
