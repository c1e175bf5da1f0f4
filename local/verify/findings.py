"""The result of a check: a finding, with a code that names the broken rule.

``findings.json`` is the catalog of the codes; ``docs/reference/findings.md`` is generated from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from importlib.resources import files
from string import Formatter

from local.errors import AccessDenied, Corrupt, DiskFailed
from local.storage.storage import PASSING


class Severity(IntEnum):
    """How serious a finding is, ascending."""

    OK = 0  # the check found nothing wrong
    SKIPPED = 1  # the check was not possible, or not wanted
    INFO = 2  # possible in a sound log
    WARNING = 3  # an operator should look at it
    ERROR = 4  # an operation fails until it is corrected
    CORRUPT = 5  # bytes are wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check at one moment. A state that lasts is a `tiered.node.problems.Problem`."""

    code: str  # the broken rule; stable, one of `CODES`
    severity: Severity
    where: str  # the file, object, directory, partition or line of a file; empty for a whole node
    what: str  # what is wrong there, in one line
    next_step: str = ""  # what an operator does next
    at: int | None = None  # the first affected byte there
    length: int | None = None  # the number of affected bytes
    offsets: tuple[int, int] | None = None  # half open
    is_unread: bool = False  # the affected bytes were not read, so nothing else is known of them
    key: str = ""  # the setting; empty if the finding is about no setting
    topics: tuple[str, ...] = ()  # those that have the setting

    @property
    def line(self) -> str:
        return f"{self.what} ({self.next_step})" if self.next_step else self.what

    @property
    def state(self) -> str:
        return self.severity.name.lower()

    @property
    def check(self) -> str:
        return self.code.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCode:
    """A code such as ``log.torn``: the check, a dot, the rule. `text`, `next_step` may name facts in braces."""

    severity: str
    text: str
    next_step: str = ""


# The catalog, by the group of commands that report the codes.
CATALOG: dict[str, dict[str, FindingCode]] = {
    group: {code: FindingCode(**known) for code, known in codes.items()}
    for group, codes in json.loads(files(__package__).joinpath("findings.json").read_text(encoding="utf-8")).items()
}
CODES = {code: known for codes in CATALOG.values() for code, known in codes.items()}


def finding(
    code: str,
    where: str,
    *,
    severity: Severity | None = None,
    what: str | None = None,
    next_step: str | None = None,
    at: int | None = None,
    offsets: tuple[int, int] | None = None,
    is_unread: bool = False,
    key: str = "",
    topics: tuple[str, ...] = (),
    **facts: object,
) -> Finding:
    """Return a finding. Facts that its texts do not name are appended as ``name=value``. `what` replaces the text."""
    known = CODES[code]
    return Finding(
        code=code,
        severity=Severity[known.severity.upper()] if severity is None else severity,
        where=where,
        what=message(code, **facts) if what is None else what,
        next_step=_filled(known.next_step, facts) if next_step is None else next_step,
        at=at,
        offsets=offsets,
        is_unread=is_unread,
        key=key,
        topics=topics,
    )


def message(code: str, **facts: object) -> str:
    known = CODES[code]
    if not facts:
        return known.text
    named = {name for text in (known.text, known.next_step) for _, name, _, _ in Formatter().parse(text)}
    others = " ".join(f"{name}={value}" for name, value in facts.items() if name not in named)
    text = _filled(known.text, facts)
    return f"{text}: {others}" if others else text


def passed(check: str, what: str, where: str = "", *, severity: Severity = Severity.OK) -> Finding:
    return Finding(code=f"{check}.{severity.name.lower()}", severity=severity, where=where, what=what)


def worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity; INFO if there are no findings."""
    return max((each.severity for each in findings), default=Severity.INFO)


def unreadable(error: DiskFailed | AccessDenied, path: str) -> Finding:
    """The finding for an unreadable file. Raises `error` if it does not concern the disk."""
    cause = error.facts.get("cause")
    if cause in PASSING:
        raise error
    severity = Severity.CORRUPT if isinstance(error, DiskFailed) else Severity.WARNING
    where = str(error.facts.get("path", path))
    return finding("file.unreadable", where, severity=severity, attempt=error.attempt, cause=cause)


def damaged(error: Corrupt, path: str, *, offsets: tuple[int, int] | None = None, is_unread: bool = False) -> Finding:
    facts = " ".join(f"{name}={value}" for name, value in error.facts.items() if name not in ("path", "at"))
    at = error.facts.get("at")
    return finding(
        "bytes.damaged",
        path,
        what=f"{error.attempt}: {facts}" if facts else error.attempt,
        at=at if isinstance(at, int) else None,
        offsets=offsets,
        is_unread=is_unread,
    )


def _filled(text: str, facts: dict[str, object]) -> str:
    return text.format(**facts) if facts else text
