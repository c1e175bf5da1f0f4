"""The error tree of the whole project: one class per reaction of the caller.

Every message has the form ``attempt: key=value key=value``. One module per library translates its errors:
`local.storage.storage` for the disk, `remote.store.open_store` for stores. Code above them catches only this tree.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self, TypeVar


class ErrorCode(StrEnum):
    """Errors of one class that callers distinguish. A code is stable; the text of a message may change."""

    DIRECTORY_HELD = "directory_held"  # another process holds the lock of a log directory
    STORE_DIRECTORY_MISSING = "store_directory_missing"  # the directory of a file:// or hdfs:// url is missing
    CREDENTIALS_MISSING = "credentials_missing"  # no credential source has credentials
    SETTING_OF_MANAGER = "setting_of_manager"  # a topic got a setting that only a manager has
    DIRECTORY_OFFLINE = "directory_offline"  # the partition's log directory failed, or was missing at the start
    TRANSACTION_OPEN = "transaction_open"  # the producer has an open transaction, and its batch is not transactional
    CLOCK_JUMPED = "clock_jumped"  # the system clock jumped and is not trusted yet


class LogError(Exception):
    """Base class of all errors. `attempt` is the failed operation, in lower case; `facts` are its values.

    Programs branch on the class and on `code`, never on the text.
    """

    code: ErrorCode | None = None

    def __init__(self, attempt: str, **facts: object) -> None:
        super().__init__(attempt, facts)
        self.attempt = attempt
        self.facts = facts

    def with_code(self, code: ErrorCode | None) -> Self:
        """Set the code and return this error."""
        self.code = code
        return self

    def restated(self, attempt: str, **facts: object) -> Self:
        """Return an error of the same class and code with another text and only these facts."""
        return type(self)(attempt, **facts).with_code(self.code)

    def __str__(self) -> str:
        return describe(self.attempt, self.facts)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword facts must survive pickling: Spark pickles errors between its processes.
        return (_rebuild, (type(self), self.attempt, self.facts, self.code))


class InvalidRequest(LogError):
    """The call is wrong: the same call fails again. Fix the call."""


class OffsetOutOfRange(InvalidRequest):
    """The offset is outside ``[log_start_offset, next_offset]``; both bounds are in `facts`."""


class OutOfOrderSequence(InvalidRequest):
    """A producer's batch does not follow its last batch: records are lost. Abort and use a new epoch."""


class NotFound(LogError):
    """The named thing does not exist."""


class AccessDenied(LogError):
    """The store or the disk denies access. Fix the credentials or the permissions."""


class Unavailable(LogError):
    """A temporary failure. The only class worth retrying."""


class CleaningAborted(LogError):
    """The cleaner stopped on request. It left no partial result; a later cleaner pass cleans the log."""


class Conflict(LogError):
    """Another process holds the resource, or changed it first."""


class AlreadyExists(Conflict):
    """A create-if-absent found the name in use, or cannot determine whether its own request created it."""


class Fenced(Conflict):
    """A writer with a higher epoch took over. Stop: readers must see no further effect of this writer."""


class Diverged(Conflict):
    """The manifest contradicts local records, or does not prove them. They stay until an operator decides."""


class RemoteLost(Conflict):
    """The bucket lacks records that this disk has dropped. Fix the url or restore the bucket."""


class ProducerFenced(Conflict):
    """A newer instance of this producer or its transaction coordinator has written. Stop this producer only."""


class Corrupt(LogError):
    """Bytes contradict their checksum or their format. Stop, keep the evidence, run a scrub."""


class DiskFailed(LogError):
    """The local disk refused a read, a write or an fsync. Reopen the file: its state is unknown."""

    @property
    def lacks_room(self) -> bool:
        """Whether the cause was a lack of space or quota. The disk is healthy then, and may have space later."""
        return self.facts.get("cause") in ("enospc", "edquot")


def describe(attempt: str, facts: dict[str, object]) -> str:
    """One line: the attempt, then ``key=value`` facts without the facts that are None."""
    listed = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
    return f"{attempt}: {listed}" if listed else attempt


E = TypeVar("E", bound=BaseException)


def forget_locals(error: E) -> E:
    """Clear the local variables of all frames in the tracebacks of `error` and its causes; return `error`.

    For an error that is stored or part of a reference cycle: its frames can hold megabytes of a segment.
    """
    from traceback import clear_frames

    remaining: list[BaseException | None] = [error]
    seen: set[int] = set()
    while remaining:
        each = remaining.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            remaining += each.__cause__, each.__context__
    return error


def _rebuild(kind: type[LogError], attempt: str, facts: dict[str, object], code: ErrorCode | None) -> LogError:
    return kind(attempt, **facts).with_code(code)
