"""The offsets of a log that have a name, and what a lookup of one answers: Kafka's ListOffsets without the wire.

| name | code | offset |
|---|---|---|
| `LATEST` | -1 | the log end; the last stable offset under read_committed |
| `EARLIEST` | -2 | the log start, which may lie in the remote tier |
| `MAX_TIMESTAMP` | -3 | the first record with the largest timestamp |
| `EARLIEST_LOCAL` | -4 | the first offset that the local tier answers for |

Any other number is a timestamp in ms: the first record at or after it.
Source: kafka `OffsetSpec`, `ListOffsetsRequest`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from local.errors import InvalidRequest


class OffsetSpec(IntEnum):
    """Kafka's codes, so that ``OffsetSpec(-2)`` reads one off the wire."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4


class FoundOffset(NamedTuple):
    """An offset, and what Kafka tells with it: the record's timestamp (None for a named position), the epoch there."""

    offset: int
    timestamp_ms: int | None = None
    leader_epoch: int | None = None


def parse_spec(spec: OffsetSpec | int) -> OffsetSpec | int:
    """A name for Kafka's negative codes, a timestamp as it is. Raises InvalidRequest for any other negative number."""
    if spec >= 0:
        return int(spec)
    try:
        return OffsetSpec(spec)
    except ValueError:
        known = " ".join(f"{each.value}={each.name.lower()}" for each in OffsetSpec)
        raise InvalidRequest("looking up an offset, no such spec", spec=spec, known=known) from None
