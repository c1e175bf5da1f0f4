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
        doc=(
            "Time for which a running manager uses the previous time after a jump of the system "
            "clock, and reports the jump: a clock that is corrected within this time expires no "
            "record. The time ends early when the clock of the store agrees with the system clock, "
            "and does not end while they differ. 0 trusts the clock at once."
        ),
    ),
)
