"""Facts about one log directory at one moment, for a policy that chooses a directory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirFacts:
    """Facts about one log directory.

    `partition_count` includes the moves into this directory. `free_bytes` and `total_bytes` are those of the file
    system; None if unknown. A cordoned directory stays in use and gets no new partitions (KIP-1066).
    """

    path: str
    partition_count: int
    free_bytes: int | None = None
    total_bytes: int | None = None
    is_offline: bool = False
    is_cordoned: bool = False
