"""The properties of a clock that jumps: one part of the table of properties."""

from __future__ import annotations

from tiered.config.property_table import Kind, Property, Source

JUMP_HOLD = "clock.jump.hold.ms"
CLOCK_TABLE = (
    Property(
        name=JUMP_HOLD,
        kind=Kind.MS,
        default="1d",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc="So long a manager at work goes by the time before a jump of the machine's clock, and says so: nothing "
        "expires by a clock that is put right sooner. Over as soon as the store says the same time as the machine, and "
        "not over while it says another. 0 believes the clock at once.",
    ),
)
