"""The result of a check: a finding with its place and its severity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from local.errors import AccessDenied, Corrupt, DiskFailed
from local.logdirs.offline_detection import PASSING


class Severity(IntEnum):
    """INFO: possible in a sound log. WARNING: an operator should check it. CORRUPT: bytes are wrong."""

    INFO = 0
    WARNING = 1
    CORRUPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check.

    `at` is a byte position in the file, `length` the number of bytes from there, `offsets` the half-open range of
    affected offsets; each is None if unknown. `is_unread`: the affected bytes were not read, so nothing else is known
    of them.
    """

    severity: Severity
    path: str
    what: str
    at: int | None = None
    offsets: tuple[int, int] | None = None
    length: int | None = None
    is_unread: bool = False


def worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity; INFO if there are no findings."""
    return max((each.severity for each in findings), default=Severity.INFO)


def unreadable(error: DiskFailed | AccessDenied, path: str) -> Finding:
    """The finding for an unreadable file: CORRUPT if the disk failed, WARNING if permission is missing.

    Raises `error` if it does not concern the disk, such as too many open files.
    """
    cause = error.facts.get("cause")
    if cause in PASSING:
        raise error
    severity = Severity.CORRUPT if isinstance(error, DiskFailed) else Severity.WARNING
    what = f"the file is unreadable, {error.attempt}: cause={cause}"
    return Finding(severity=severity, path=str(error.facts.get("path", path)), what=what)


def damaged(error: Corrupt, path: str) -> Finding:
    facts = " ".join(f"{name}={value}" for name, value in error.facts.items() if name not in ("path", "at"))
    at = error.facts.get("at")
    what = f"{error.attempt}: {facts}" if facts else error.attempt
    return Finding(severity=Severity.CORRUPT, path=path, what=what, at=at if isinstance(at, int) else None)


def finding(severity: Severity, path: str, what: str) -> Finding:
    return Finding(severity=severity, path=path, what=what)
