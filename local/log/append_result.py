"""What an append is asked for and what it answers."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Durability(Enum):
    """How far an append has come when it returns."""

    MEMORY = "memory"
    FLUSHED = "flushed"


class AppendResult(NamedTuple):
    """The offsets ``[base_offset, next_offset)`` that an append was given, when it came first if `is_duplicate`."""

    base_offset: int
    next_offset: int
    is_duplicate: bool = False
