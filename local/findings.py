"""What looking at files brings to light: one value for each thing worth telling, with its place and its weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is. INFO: as it may be in a sound log. WARNING: somebody should look. CORRUPT: bytes are wrong."""

    INFO = 0
    WARNING = 1
    CORRUPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`at` is a byte of the file, `offsets` the half-open range that it concerns; None where there is none."""

    severity: Severity
    path: str
    what: str
    at: int | None = None
    offsets: tuple[int, int] | None = None


def worst(findings: Iterable[Finding]) -> Severity:
    """The heaviest; INFO for none."""
    return max((each.severity for each in findings), default=Severity.INFO)
