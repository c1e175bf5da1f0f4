"""Files that users name: a plan, a report, a list, a page. Errors name the path as typed.

Not through `Storage`: the path may be a pipe, a terminal or ``/dev/null``, which a regular file must not replace. A
crash of `write_given` leaves the old file or the new (`replace_file`).
"""

from __future__ import annotations

import errno
import os
import stat

from local.errors import AccessDenied, DiskFailed, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, replace_file

BYTES_MAX = 1 << 30  # no plan, report or list is larger; an endless device is


def read_given(path: str, attempt: str, hint: str, *, name: str = "file") -> bytes:
    """The content. Raises NotFound, AccessDenied, DiskFailed, InvalidRequest (a directory, endless input)."""
    facts = {name: path}
    try:
        with open(path, "rb") as file:
            found = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{attempt}, the file does not exist: {hint}", **facts) from None
    except IsADirectoryError:
        raise InvalidRequest(f"{attempt}, it is a directory: {hint}", **facts) from None
    except OSError as error:
        raise _refused(attempt, error, facts) from None
    if len(found) > BYTES_MAX:
        raise InvalidRequest(f"{attempt}, it is not a regular file: {hint}", **facts)
    return found


def check_target(path: str, attempt: str, *, name: str = "file") -> None:
    """Check, before long work, that a file can be written. Raises InvalidRequest, NotFound, AccessDenied."""
    facts: dict[str, object] = {name: path or "''"}
    if not path:
        raise InvalidRequest(f"{attempt}, the name is empty", **facts)
    if os.path.isdir(path) or path.endswith("/"):
        raise InvalidRequest(f"{attempt}, it is a directory: name a file in it", **facts)
    above = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(above):
        raise NotFound(f"{attempt}, its directory does not exist: create it, or name another file", **facts)
    if not os.access(path if os.path.exists(path) and not _is_regular(path) else above, os.W_OK):
        raise AccessDenied(attempt, **facts, cause="eacces")


def write_given(path: str, body: bytes, attempt: str) -> None:
    """Write `body` as a whole, replacing a file or a link's target. Raises as `check_target`."""
    check_target(path, attempt)
    facts: dict[str, object] = {"file": path}
    try:
        if os.path.exists(path) and not _is_regular(path):
            with open(path, "wb") as device:
                device.write(body)
            return
        replace_file(DiskStorage(), os.path.realpath(path), body)
    except OSError as error:
        raise _refused(attempt, error, facts) from None
    except LogError as error:
        raise error.restated(attempt, **facts, cause=error.facts.get("cause")) from None


def _is_regular(path: str) -> bool:
    return stat.S_ISREG(os.stat(path).st_mode)


def _refused(attempt: str, error: OSError, facts: dict[str, str] | dict[str, object]) -> LogError:
    cause = errno.errorcode.get(error.errno or 0, "unknown").lower()
    kind = AccessDenied if isinstance(error, PermissionError | NotADirectoryError) else DiskFailed
    return kind(attempt, **facts, cause=cause)
