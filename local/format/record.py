"""Records as named tuples: cheap enough for a million of them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

Header = tuple[str, bytes | None]


class TimestampType(IntEnum):
    """Bit 3 of a batch's attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """A record to append. A key of None means no key, a value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


class StoredRecord(NamedTuple):
    """A record read from a log, with its offset."""

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
