"""Map exceptions to one line on stderr and an exit code (docs/reference/exit-codes.md)."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterable
from enum import IntEnum
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from local.errors import (
    Conflict,
    Corrupt,
    Diverged,
    ErrorCode,
    InvalidRequest,
    LogError,
    OffsetOutOfRange,
    RemoteLost,
    Unavailable,
)

if TYPE_CHECKING:
    from tiered.cli.session import Stop


class Terminated(KeyboardInterrupt):
    """The second signal was a SIGTERM."""


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    FINDINGS = 3
    CORRUPTION = 4
    CONFLICT = 5
    UNAVAILABLE = 6
    UNHEALTHY = 10
    INTERRUPTED = 130
    TERMINATED = 143


# The first matching class decides.
_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (OffsetOutOfRange, Exit.FAILED),
    (InvalidRequest, Exit.USAGE),
    (Conflict, Exit.CONFLICT),
    (Corrupt, Exit.CORRUPTION),
    (Unavailable, Exit.UNAVAILABLE),
    (Terminated, Exit.TERMINATED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)

_OF_TIERED = ("starlette", "anyio", "uvicorn", "h11", "jinja2")  # installed; all else works without them
_OWN_PACKAGES = ("local", "policies", "remote", "tiered")

_WORST = (Exit.CORRUPTION, Exit.CONFLICT, Exit.USAGE, Exit.FAILED, Exit.UNAVAILABLE, Exit.FINDINGS)
# The next step after an error. `causes`: by errno name or error code of S3; `extras`: the dependencies of each extra;
# `instead`: by command, an alternative that works while another manager holds the directory.
# Read at import: an error may leave no descriptor to open a file.
HINTS: dict[str, dict[str, Any]] = json.loads(get_data(__package__, "hints.json") or b"")


def exit_code(error: BaseException | type[BaseException]) -> Exit:
    kind = error if isinstance(error, type) else type(error)
    return next((code for each, code in _CODES if issubclass(kind, each)), Exit.FAILED)


def worst(errors: Iterable[LogError]) -> Exit:
    """Return the exit code of highest priority for several errors; DONE for none."""
    codes = {exit_code(error) for error in errors}
    return next((code for code in _WORST if code in codes), Exit.DONE)


def stopped_code(stop: Stop) -> Exit:
    return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED


def unread_code(errors: Iterable[Exception]) -> Exit:
    """Return the code for null figures: CORRUPTION, else UNAVAILABLE, else UNHEALTHY; DONE for no errors."""
    codes = {exit_code(error) for error in errors}
    known = next((code for code in (Exit.CORRUPTION, Exit.UNAVAILABLE) if code in codes), Exit.UNHEALTHY)
    return known if codes else Exit.DONE


def one_line(error: BaseException) -> str:
    """Return ``error: ...`` as one line, for any message, with the next step if known."""
    text, cause = str(error), None
    if isinstance(error, LogError):
        cause = error.facts.get("cause")
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        text += f": path={error.filename}" if error.filename is not None else ""
        cause = errno.errorcode.get(error.errno or 0, "").lower()
    elif isinstance(error, ImportError):
        text = _missing(error)
    hint = HINTS["causes"].get(str(cause)) or _hint(error)
    line = "error: " + " ".join((text or type(error).__name__).split())
    return f"{line} ({hint})" if hint else line


def _hint(error: BaseException) -> str | None:
    if notes := getattr(error, "__notes__", ()):
        return "; ".join(notes)
    facts, code = (error.facts, error.code) if isinstance(error, LogError) else ({}, None)
    kind = ""
    if isinstance(error, RemoteLost):
        kind = "bucket-lost"
    elif isinstance(error, Diverged):
        kind = "fenced" if facts.get("relation") == "fenced" else "diverged"
    elif "key_id" in facts or "remote.encryption.key.id" in facts:
        kind = "forged" if isinstance(error, Corrupt) else "key-ring"
    elif code is ErrorCode.STORE_DIRECTORY_MISSING:
        kind = "store-directory"
    elif code is ErrorCode.CREDENTIALS_MISSING:
        kind = "credentials"
    elif isinstance(error, Unavailable) and "endpoint" in facts:
        kind = "endpoint"
    return HINTS["errors"].get(kind)


def _missing(error: ImportError) -> str:
    """Return the line for a missing package, which fsspec names only in the cause of its ImportError."""
    package = (error.name or getattr(error.__cause__, "name", None) or "").partition(".")[0]
    if package in ("", *_OWN_PACKAGES):
        return f"cannot import a module, install the package again: {error}"
    extra = next((extra for extra, packages in HINTS["extras"].items() if package in packages), None)
    requirement = "tiered" if package in _OF_TIERED else f"'tiered[{extra}]'" if extra else None
    install = f" install=pip install {requirement}" if requirement else ""
    return f"a package is not installed: package={package}{install}"


def internal(error: Exception) -> str:
    """Return the line for an unexpected error. Its message is omitted because it may contain any data."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_globals.get('__name__')}:{frame.tb_lineno}" if frame is not None else None
    return f"error: internal error: kind={type(error).__name__} at={place}: run again with --debug"
