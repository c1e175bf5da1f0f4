"""The properties of a disk that fills: one part of the table of properties."""

from __future__ import annotations

from tiered.config.property_table import Kind, Property, Source

APPEND_FREE_MIN = "log.dir.append.free.bytes.min"
RELIEF_FREE_MIN = "log.dir.relief.free.bytes.min"
DISK_TABLE = (
    Property(
        name=APPEND_FREE_MIN,
        kind=Kind.BYTES,
        default="32MiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "With less free space in a log directory, appends to its partitions are refused, so that "
            "uploads, checkpoints and a clean stop still have space."
        ),
    ),
    Property(
        name=RELIEF_FREE_MIN,
        kind=Kind.BYTES,
        default="128MiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "With less free space in a log directory, segments that are in the bucket are dropped "
            "before their local retention ends, the oldest first. 0 never drops them early."
        ),
    ),
)
