"""Group problems by cause: a failed store is one problem, however many partitions it stops.

Two problems have one cause if they are of one kind and their messages differ only in facts that name the place:
``key=value`` pairs, and the name of the place. The pairs ``cause=``, ``class=``, ``code=`` and ``status=`` name the
failure, so they are compared.

`next_step` is the next step for an error: the endpoint, credential, path or runbook that the error names. It is never a
command that could have printed the error (`status`, `doctor`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.config.units import counted

NAMES_SHOWN = 3  # places that a line names
_WHERE = re.compile(r"\b(?!(?:cause|class|code|status)=)\w+=\S+")
_RUNBOOKS, _HOW_TO = "docs/runbooks", "docs/how-to"
_KEY_RING = "the file of key_ring in [remote] of tiered.toml, or of TIERED_KEY_RING"
# By the class of the error, where its facts add nothing.
_BY_KIND = {
    "Corrupt": (f"{_RUNBOOKS}/corruption.md; tiered verify --deep checks the disk, tiered scrub --deep the bucket"),
    "Conflict": f"{_RUNBOOKS}/halted.md; stop one of the two writers",
    "Fenced": f"another writer took it over; stop one of the two: {_RUNBOOKS}/halted.md",
    "Diverged": f"save the records of this disk, or run --take-over: {_RUNBOOKS}/halted.md",
    "RemoteLost": f"correct url in [remote], or restore the bucket: {_RUNBOOKS}/bucket-lost.md",
    "InvalidRequest": "correct the named setting, in tiered.toml or on the topic",
    "OffsetOutOfRange": f"{_RUNBOOKS}/unopened.md",
}
_OF_DISK = ("eacces", "eperm", "erofs")
_FULL = ("enospc", "edquot")


class UnreadPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions with an unreadable tier, for one cause. Their figures of that tier are null."""

    cause: str
    kind: str
    count: int
    partitions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of one place. `kind` is the class of the error."""

    where: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemGroup:
    """Problems with one cause, in the order given. `cause` is their message without differing facts."""

    places: tuple[str, ...]
    kind: str
    cause: str

    @property
    def line(self) -> str:
        """One line: the place, or how many partitions and the first names; then the cause."""
        return group_line(self.places, self.cause)


def group_line(places: Sequence[str], cause: str, thing: str = "partition") -> str:
    """``orders/0: CAUSE``, ``200 partitions (orders/0, orders/1, orders/2, ...): CAUSE``."""
    return f"{shared_places(places, thing)}: {cause}"


def shared_places(places: Sequence[str], thing: str = "partition") -> str:
    """``orders/0``, ``200 partitions (orders/0, orders/1, orders/2, ...)``."""
    if len(places) == 1:
        return places[0]
    names = ", ".join([*places[:NAMES_SHOWN], *(["..."] if len(places) > NAMES_SHOWN else [])])
    return f"{counted(len(places), thing)} ({names})"


def store_problems(errors: Mapping[TopicPartition, LogError]) -> dict[TopicPartition, LogError]:
    """The problems of a store that is unavailable, refuses access or does not exist; the disk is sound."""
    return {name: error for name, error in errors.items() if isinstance(error, Unavailable | AccessDenied | NotFound)}


def problems_of(errors: Mapping[TopicPartition, LogError]) -> list[Problem]:
    """The problems of partitions, by name."""
    return [
        Problem(where=str(name), kind=type(error).__name__, message=flat(error))
        for name, error in sorted(errors.items())
    ]


def uncleanable_problem(name: TopicPartition, reason: str) -> Problem:
    """The problem of a log that cannot be cleaned."""
    return Problem(where=str(name), kind="uncleanable", message=f"uncleanable: {' '.join(reason.split())}")


def group_problems(problems: Iterable[Problem]) -> list[ProblemGroup]:
    """The groups of these problems, in the order of each group's first problem."""
    found: dict[tuple[str, str], list[Problem]] = {}
    for each in problems:
        found.setdefault((each.kind, cause_of(each.message, each.where)), []).append(each)
    return [
        ProblemGroup(
            places=tuple(each.where for each in some),
            kind=some[0].kind,
            cause=shared_message([(each.message, each.where) for each in some]),
        )
        for some in found.values()
    ]


def cause_of(message: str, where: str) -> str:
    """A message without the facts that name the place."""
    return _without_place(_WHERE.sub("", message), where)


def shared_message(messages: Sequence[tuple[str, str]]) -> str:
    """The first of these messages, each given with its place, without facts that another one lacks."""
    if len(messages) == 1:
        return messages[0][0]
    shared = set.intersection(*(set(_WHERE.findall(message)) for message, _ in messages))
    first, where = messages[0]
    return _without_place(_WHERE.sub(lambda found: found[0] if found[0] in shared else "", first), where).strip(" :")


def is_same_problem(one: LogError | None, other: LogError) -> bool:
    """Whether two errors have one class and the same message, apart from their facts."""
    return one is not None and type(one) is type(other) and one.attempt == other.attempt


def flat(error: BaseException) -> str:
    """The message in one line."""
    return " ".join(str(error).split())


def _without_place(message: str, where: str) -> str:
    return " ".join(re.sub(rf"\b{re.escape(where)}\b", "", message).split())


def next_step(error: LogError) -> str:
    """The next step of an error, in one line."""
    return step_of(type(error).__name__, error.facts)


def step_of(kind: str, facts: Mapping[str, object]) -> str:
    """The next step for an error class with these facts, in one line; missing facts shorten it."""
    match kind:
        case "AccessDenied" | "InvalidRequest" if key := _key(facts):
            return f"add the key {key} to the key ring, {_KEY_RING}: {_HOW_TO}/encrypt-the-bucket.md"
        case "Unavailable":
            where = facts.get("endpoint") or facts.get("store") or "the endpoint of url in [remote]"
            return (
                f"check that {where} replies from this machine, every maintenance round retries: "
                f"{_RUNBOOKS}/store-fails.md"
            )
        case "AccessDenied" if facts.get("cause") in _OF_DISK:
            return f"run as the owner of {_path(facts)}"
        case "AccessDenied":
            words = "check the credential (AWS_PROFILE, AWS_ACCESS_KEY_ID, a shared file or a role) and its permissions"
            return f"{words}: {_RUNBOOKS}/store-fails.md"
        case "DiskFailed":
            page = "disk-full" if facts.get("cause") in _FULL else "log-dir-offline"
            return f"check the disk of {_path(facts)}: {_RUNBOOKS}/{page}.md"
        case "NotFound" if "directory" in facts:
            return f"create {facts['directory']}, mount its disk, or correct url in [remote]"
        case "NotFound":
            return f"restore the named thing, or correct url in [remote]: {_RUNBOOKS}/unopened.md"
    return _BY_KIND.get(kind, f"{_RUNBOOKS}/unopened.md")


def lacks_key(error: LogError) -> bool:
    """Whether the error names a key that the key ring lacks."""
    return isinstance(error, AccessDenied | InvalidRequest) and _key(error.facts) is not None


def _key(facts: Mapping[str, object]) -> object:
    """The id of the key that an error names."""
    return facts.get("key_id") or facts.get("remote.encryption.key.id")


def _path(facts: Mapping[str, object]) -> str:
    return str(facts.get("path") or facts.get("directory") or facts.get("file") or "the log directories")
