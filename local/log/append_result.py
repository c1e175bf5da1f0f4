"""The durability that an append requests, and its result."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Durability(Enum):
    """How durable an append is when it returns."""

    MEMORY = "memory"
    FLUSHED = "flushed"


class AppendResult(NamedTuple):
    """The offsets ``[base_offset, next_offset)`` of the appended records.

    With `is_duplicate` they are the offsets of the first append of the same batch.
    """

    base_offset: int
    next_offset: int
    is_duplicate: bool = False
