"""The error tree of the whole project: one class for each thing a caller would do.

Every message reads ``what was attempted: key=value key=value``; the facts stay on the exception for programs.
Foreign errors are translated at the one door of their library (the disk's in `local.storage.storage`, the store's in
`remote.store.open_store`), so nothing outside this tree ever needs to be caught above those doors.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self, TypeVar


class ErrorCode(StrEnum):
    """Errors that a caller tells apart within one class. A code is stable; the text of a message may change."""

    DIRECTORY_HELD = "directory_held"  # another process has the lock of a log directory
    STORE_DIRECTORY_MISSING = "store_directory_missing"  # the directory that a file:// or hdfs:// url names
    CREDENTIALS_MISSING = "credentials_missing"  # no source of credentials has any
    SETTING_OF_MANAGER = "setting_of_manager"  # a topic was given a setting that only a manager has
    DIRECTORY_OFFLINE = "directory_offline"  # the log directory of a partition failed, or was not there at the start
    CLOCK_JUMPED = "clock_jumped"  # the machine's clock jumped and is not trusted yet


class LogError(Exception):
    """Base of the tree. `attempt` in lower case says what was tried; `facts` say where.

    `code` is for programs that branch on an error; no program branches on the text.
    """

    code: ErrorCode | None = None

    def __init__(self, attempt: str, **facts: object) -> None:
        super().__init__(attempt, facts)
        self.attempt = attempt
        self.facts = facts

    def with_code(self, code: ErrorCode | None) -> Self:
        """This error, marked with a code."""
        self.code = code
        return self

    def restated(self, attempt: str, **facts: object) -> Self:
        """An error of the same class and code with another text and these facts only."""
        return type(self)(attempt, **facts).with_code(self.code)

    def __str__(self) -> str:
        return describe(self.attempt, self.facts)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword facts have to survive the pickling that Spark does between its processes.
        return (_rebuild, (type(self), self.attempt, self.facts, self.code))


class InvalidRequest(LogError):
    """The call is wrong; the same call will fail again. Fix it."""


class OffsetOutOfRange(InvalidRequest):
    """The offset lies outside ``[log_start_offset, next_offset]``; both are in `facts`."""


class OutOfOrderSequence(InvalidRequest):
    """A producer's batch does not follow its last one: records before it were lost. Abort, and begin a new epoch."""


class NotFound(LogError):
    """The named thing does not exist."""


class AccessDenied(LogError):
    """The store or the disk refuses us: credentials, permissions. Fix the set-up."""


class Unavailable(LogError):
    """Not now. The only class that is worth retrying."""


class CleaningAborted(LogError):
    """The cleaner let go of a log because it was asked to. Nothing is half-made; a later round cleans it."""


class Conflict(LogError):
    """Somebody else got there first, or holds what we need."""


class AlreadyExists(Conflict):
    """A create-if-absent found the name taken, or cannot tell whether its own attempt took it."""


class Fenced(Conflict):
    """A newer writer owns the partition. Stop; nothing this writer does may be seen any more."""


class Diverged(Conflict):
    """The local log holds records which the manifest contradicts or does not prove. They stay; a person decides."""


class RemoteLost(Conflict):
    """The bucket lacks records that this disk has dropped: it is lost or the wrong one. Mend the url, or restore it."""


class ProducerFenced(Conflict):
    """A newer instance of this producer, or of its transaction coordinator, has written. Stop this one producer."""


class Corrupt(LogError):
    """Bytes that contradict their checksum or their format. Stop, keep the evidence, scrub."""


class DiskFailed(LogError):
    """The local disk refused a read, a write or an fsync. The file's state is unknown until it is reopened."""

    @property
    def lacks_room(self) -> bool:
        """Whether it was for want of space or quota: the disk is as good as before, and may have room later."""
        return self.facts.get("cause") in ("enospc", "edquot")


def describe(attempt: str, facts: dict[str, object]) -> str:
    """One line: the attempt, then ``key=value`` facts; facts that are None are left out."""
    told = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
    return f"{attempt}: {told}" if told else attempt


E = TypeVar("E", bound=BaseException)


def forget_locals(error: E) -> E:
    """`error`, but what the calls that it ended had in hand is let go of, its causes' too; their lines stay told.

    For whoever keeps an error, and where one refers to itself by way of a frame that it came through: a part of a
    segment is megabytes, and the collector of such circles counts objects, not bytes.
    """
    from traceback import clear_frames

    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            left += each.__cause__, each.__context__
    return error


def _rebuild(kind: type[LogError], attempt: str, facts: dict[str, object], code: ErrorCode | None) -> LogError:
    return kind(attempt, **facts).with_code(code)
