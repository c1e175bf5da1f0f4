"""Files that people name: a plan, a report, a list, a page. What goes wrong is told of the name that was typed.

Not through `Storage`: what is read may be a pipe (``<(ssh node cat plan.json)``), what is written a terminal or
``/dev/null``, and neither may be replaced by a regular file.

Order of effects of `write_given`: as `local.storage.storage.replace_file` has it, so a crash leaves the old file or the
new.
"""

from __future__ import annotations

import errno
import os
import stat

from local.errors import AccessDenied, DiskFailed, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, replace_file

BYTES_MAX = 1 << 30  # no plan, report or list is larger; a device that never ends is


def read_given(path: str, attempt: str, hint: str, *, name: str = "file") -> bytes:
    """What is in it; `hint` says where such a file comes from, `name` how errors call its path.

    Raises NotFound, InvalidRequest for a directory and for what never ends, AccessDenied, DiskFailed.
    """
    facts = {name: path}
    try:
        with open(path, "rb") as file:
            found = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise NotFound(f"{attempt}, no such file: {hint}", **facts) from None
    except IsADirectoryError:
        raise InvalidRequest(f"{attempt}, it is a directory: {hint}", **facts) from None
    except OSError as error:
        raise _refused(attempt, error, facts) from None
    if len(found) > BYTES_MAX:
        raise InvalidRequest(f"{attempt}, it has no end: {hint}", **facts)
    return found


def check_target(path: str, attempt: str, *, name: str = "file") -> None:
    """Whether a file can be put there, as far as that can be told: asked before hours of work, not after them.

    Raises InvalidRequest for a directory and for no name, NotFound without the directory it would lie in, AccessDenied.
    """
    facts: dict[str, object] = {name: path or "''"}
    if not path:
        raise InvalidRequest(f"{attempt}, the name is empty", **facts)
    if os.path.isdir(path) or path.endswith("/"):
        raise InvalidRequest(f"{attempt}, it is a directory: name a file in it", **facts)
    above = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(above):
        raise NotFound(f"{attempt}, its directory is not there: make it, or name another file", **facts)
    if not os.access(path if os.path.exists(path) and not _is_regular(path) else above, os.W_OK):
        raise AccessDenied(attempt, **facts, cause="eacces")


def write_given(path: str, body: bytes, attempt: str, *, name: str = "file") -> None:
    """Put `body` there, whole; a file that is there is replaced, where a link leads. Raises as `check_target`."""
    check_target(path, attempt, name=name)
    facts: dict[str, object] = {name: path}
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
