"""Named offsets of a log, and the result of an offset lookup, as in Kafka's ListOffsets.

A number from 0 up is a timestamp in ms: the first record at or after it. Source: kafka `OffsetSpec`,
`ListOffsetsRequest`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from local.errors import InvalidRequest


class OffsetSpec(IntEnum):
    """Kafka's codes: ``OffsetSpec(-2)`` converts a code of the protocol."""

    LATEST = -1  # the log end offset; the last stable offset under read_committed
    EARLIEST = -2  # the log start offset, which may be in the remote tier
    MAX_TIMESTAMP = -3  # the first record with the largest timestamp
    EARLIEST_LOCAL = -4  # the first offset that the local tier can read


class FoundOffset(NamedTuple):
    """An offset with the record's timestamp (None for a named offset) and the leader epoch at the offset."""

    offset: int
    timestamp_ms: int | None = None
    leader_epoch: int | None = None


def parse_spec(spec: OffsetSpec | int) -> OffsetSpec | int:
    """The `OffsetSpec` of a negative code, or the timestamp. Raises InvalidRequest for other numbers."""
    if spec >= 0:
        return int(spec)
    try:
        return OffsetSpec(spec)
    except ValueError:
        known = " ".join(f"{each.value}={each.name.lower()}" for each in OffsetSpec)
        raise InvalidRequest("invalid offset specification", spec=spec, known=known) from None
