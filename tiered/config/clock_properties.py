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
        doc="Time for which a running manager uses the time before a jump of the machine's clock, and reports "
        "it: no record expires because of a clock that is corrected sooner. It ends early when the store's "
        "clock agrees with the machine's, and never while the store's clock differs. 0 trusts the clock at "
        "once.",
    ),
)
