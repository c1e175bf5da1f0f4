"""Translation of the HDFS client's errors into this project's errors; the only place for it.

The client raises three kinds of errors:

- Python's classes for a missing and for a taken name;
- OSError for a connection;
- RuntimeError for the rest, with the Java class of the NameNode's exception. The class decides, and only the class is
  reported.

A panic of its Rust code is not an Exception. It is caught too, because one odd answer of a server must not end the
process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from local.errors import AccessDenied, AlreadyExists, InvalidRequest, LogError, NotFound, Unavailable

_JAVA_CLASS = re.compile(r'RPCError\("([\w.$]+)"')
_NOT_A_DIRECTORY = "(is not a directory)"  # a name below a file: the NameNode calls it a missing permission
_DENIED = {
    "AccessControlException", "AccessTokenException", "AuthenticationException", "AuthorizationException",
    "InvalidToken", "SaslException", "SecurityException",
}  # fmt: skip
_REFUSED = {
    "HadoopIllegalArgumentException", "IllegalArgumentException", "InvalidPathException",
    "MaxDirectoryItemsExceededException", "ParentNotDirectoryException", "PathComponentTooLongException",
    "PathIsNotEmptyDirectoryException", "UnsupportedOperationException",
}  # fmt: skip


@contextmanager
def translated(attempt: str, *, options: Iterable[str] = (), **facts: object) -> Iterator[None]:
    """Raise this project's error, with `attempt` and `facts`, for any error of the client.

    `options` are the names of the client's options, reported if one of them is wrong.
    """
    try:
        yield
    except LogError:
        raise
    except (TypeError, ValueError) as error:
        told = {"options": ",".join(sorted(options)) or None, "cause": type(error).__name__}
        raise InvalidRequest(f"{attempt}, the client rejected its options", **facts, **told) from None
    except (OSError, RuntimeError) as error:
        raise translate(error, attempt, facts) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Unavailable(f"{attempt}, the client failed before the reply", **facts, cause="PanicException") from None


def translate(error: OSError | RuntimeError, attempt: str, facts: dict[str, object]) -> LogError:
    """Return this project's error for an error of the client."""
    name = java_class(error)
    if isinstance(error, FileNotFoundError) or (name == "AccessControlException" and _NOT_A_DIRECTORY in str(error)):
        return NotFound(f"{attempt}, it does not exist", **facts)
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{attempt}, the name already exists", **facts)
    if isinstance(error, PermissionError) or name in _DENIED:
        return AccessDenied(f"{attempt}, access was denied or the credentials are wrong", **facts, cause=name or None)
    if name in _REFUSED:
        return InvalidRequest(f"{attempt}, the store rejected the request", **facts, cause=name)
    if isinstance(error, OSError):
        return Unavailable(f"{attempt}, the store cannot be reached", **facts, cause=type(error).__name__)
    # Safe mode, a standby NameNode, no DataNode left, an exhausted quota, a broken pipeline.
    return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts, cause=name or _variant(error))


def java_class(error: BaseException) -> str:
    """Return the NameNode's exception without its package, "" without one."""
    found = _JAVA_CLASS.match(str(error))
    return re.split(r"[.$]", found[1])[-1] if found else ""


def _variant(error: BaseException) -> str:
    """Return the client's name of the error: the first word of its text, which holds no secret."""
    found = re.match(r"\w+", str(error))
    return found[0] if found else type(error).__name__
