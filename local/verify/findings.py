"""What looking at files brings to light: one value for each thing worth telling, with its place and its weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from local.errors import AccessDenied, Corrupt, DiskFailed
from local.logdirs.offline_detection import PASSING


class Severity(IntEnum):
    """How bad it is. INFO: as it may be in a sound log. WARNING: somebody should look. CORRUPT: bytes are wrong."""

    INFO = 0
    WARNING = 1
    CORRUPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`at` is a byte of the file, `length` how many from there, `offsets` the half-open range that it concerns; None
    where there is none. `is_unread`: the bytes that it concerns were not read, so nothing else is known of them."""

    severity: Severity
    path: str
    what: str
    at: int | None = None
    offsets: tuple[int, int] | None = None
    length: int | None = None
    is_unread: bool = False


def worst(findings: Iterable[Finding]) -> Severity:
    """The heaviest; INFO for none."""
    return max((each.severity for each in findings), default=Severity.INFO)


def unreadable(error: DiskFailed | AccessDenied, path: str) -> Finding:
    """Damage where the disk fails, a warning where a permission is missing. Raises `error` where it says nothing about
    the disk, such as too many open files."""
    cause = error.facts.get("cause")
    if cause in PASSING:
        raise error
    severity = Severity.CORRUPT if isinstance(error, DiskFailed) else Severity.WARNING
    what = f"could not be read, {error.attempt}: cause={cause}"
    return Finding(severity=severity, path=str(error.facts.get("path", path)), what=what)


def damaged(error: Corrupt, path: str) -> Finding:
    facts = " ".join(f"{name}={value}" for name, value in error.facts.items() if name not in ("path", "at"))
    at = error.facts.get("at")
    what = f"{error.attempt}: {facts}" if facts else error.attempt
    return Finding(severity=Severity.CORRUPT, path=path, what=what, at=at if isinstance(at, int) else None)


def told(severity: Severity, path: str, what: str) -> Finding:
    return Finding(severity=severity, path=path, what=what)
