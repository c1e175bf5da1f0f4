"""Facts about one log directory at a moment, frozen: what a policy is told that chooses among several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirFacts:
    """`partition_count` has moves on their way in with it. `free_bytes` and `total_bytes` are those of the file system,
    None where they are not known. A cordoned directory is in use and takes nothing new (KIP-1066)."""

    path: str
    partition_count: int
    free_bytes: int | None = None
    total_bytes: int | None = None
    is_offline: bool = False
    is_cordoned: bool = False
