"""Problems that do not resolve by themselves: groups by cause, next steps, the report of a manager.

The manager meets a problem again in every maintenance run. Problems have one cause if kind and next step are equal and
their texts differ only in the name of the place and in ``key=value`` facts (except ``cause=``, ``class=``, ``code=``,
``status=``). A next step is never a command that could have printed the error (`status`, `doctor`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound, Unavailable
from local.names import LOCK, TopicPartition
from local.storage import Storage, join, replace_file
from tiered.config.clock_guard import ClockSuspicion
from tiered.config.units import counted

NAMES_SHOWN = 3  # places that a line names
_FACT = re.compile(r"\b(?!(?:cause|class|code|status)=)\w+=\S+")
_LATE = {"upload": "upload waits", "deletion": "deletion waits past the grace period"}
_RUNBOOKS, _HOW_TO = "docs/runbooks", "docs/how-to"
_KEY_RING = "the file of key_ring in [remote] of tiered.toml, or of TIERED_KEY_RING"
_BY_KIND = {
    "Corrupt": (f"{_RUNBOOKS}/corruption.md; tiered verify --deep checks the disk, tiered scrub --deep the bucket"),
    "Conflict": f"{_RUNBOOKS}/halted.md; stop one of the two writers",
    "Fenced": f"another writer took it over; stop one of the two: {_RUNBOOKS}/halted.md",
    "Diverged": f"save the records of this disk, or run --take-over: {_RUNBOOKS}/halted.md",
    "RemoteLost": f"correct url in [remote], or restore the bucket: {_RUNBOOKS}/bucket-lost.md",
    "InvalidRequest": "correct the named setting, in tiered.toml or on the topic",
    "EndpointEnded": "restart the node, and report the traceback of its log",
    "OffsetOutOfRange": f"{_RUNBOOKS}/unopened.md",
}
_OF_DISK = ("eacces", "eperm", "erofs")
_FULL = ("enospc", "edquot")
REPORT_FILE = "work-report.json"
REPORT_VERSION = 1
KEEP_INTERVAL_MS = 30_000
STALE_ROUNDS = 5  # after as many intervals without a report, no manager is running


class UnreadPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions with an unreadable tier, for one cause. Their figures of that tier are null."""

    cause: str
    kind: str
    count: int
    partitions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of one place: a partition, a log directory, or ``node``.

    `kind` is the error's class or the kind of late work. `since_ms` is None if the start is unknown. `count` is the
    number of maintenance runs that met the problem, 0 for a problem of this moment.
    """

    where: str
    partition: TopicPartition | None
    kind: str
    what: str
    next_step: str = ""
    since_ms: int | None = None
    count: int = 0

    @property
    def cause(self) -> str:
        return self.kind if self.kind in _LATE else _without_place(_FACT.sub("", self.what), self.where)


@dataclass(frozen=True, slots=True)
class ProblemGroup:
    members: tuple[Problem, ...]

    @property
    def first(self) -> Problem:
        return self.members[0]

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def thing(self) -> str:
        return "partition" if all(each.partition is not None for each in self.members) else "place"

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(each.where for each in self.members)

    @property
    def what(self) -> str:
        """The text of the first member, without facts that another member lacks."""
        if len(self.members) == 1:
            return self.first.what
        if self.first.kind in _LATE:
            return _LATE[self.first.kind]
        shared = set.intersection(*(set(_FACT.findall(each.what)) for each in self.members))
        text = _FACT.sub(lambda found: found[0] if found[0] in shared else "", self.first.what)
        return _without_place(text, self.first.where).strip(" :")

    @property
    def line(self) -> str:
        return group_line(self.places, self.what, self.thing)


def group_line(places: Sequence[str], cause: str, thing: str = "partition") -> str:
    """Format ``orders/0: CAUSE``, ``200 partitions (orders/0, orders/1, orders/2, ...): CAUSE``."""
    return f"{shared_places(places, thing)}: {cause}"


def shared_places(places: Sequence[str], thing: str = "partition") -> str:
    """Format ``orders/0``, ``200 partitions (orders/0, orders/1, orders/2, ...)``."""
    if len(places) == 1:
        return places[0]
    names = ", ".join([*places[:NAMES_SHOWN], *(["..."] if len(places) > NAMES_SHOWN else [])])
    return f"{counted(len(places), thing)} ({names})"


def store_problems(errors: Mapping[TopicPartition, LogError]) -> dict[TopicPartition, LogError]:
    return {name: error for name, error in errors.items() if isinstance(error, (Unavailable, AccessDenied, NotFound))}


def problem_of(name: TopicPartition, error: LogError) -> Problem:
    return Problem(where=str(name), partition=name, kind=type(error).__name__, what=flat(error))


def problems_of(errors: Mapping[TopicPartition, LogError]) -> list[Problem]:
    return [problem_of(name, error) for name, error in sorted(errors.items())]


def uncleanable_problem(name: TopicPartition, reason: str) -> Problem:
    what = f"uncleanable: {' '.join(reason.split())}"
    return Problem(where=str(name), partition=name, kind="uncleanable", what=what)


def group_problems(problems: Iterable[Problem]) -> list[ProblemGroup]:
    """The groups of these problems, the oldest first, else in the order of their first problems."""
    found: dict[tuple[str, str, str], list[Problem]] = {}
    for each in sorted(problems, key=lambda each: (each.since_ms is None, each.since_ms or 0)):
        found.setdefault(_cause_key(each), []).append(each)
    return [ProblemGroup(tuple(each)) for each in found.values()]


def same_cause(problems: Sequence[Problem], where: str) -> list[Problem]:
    """The problems with the same cause as in `where`; empty without a problem there."""
    keys = {_cause_key(each) for each in problems if each.where == where}
    return [each for each in problems if _cause_key(each) in keys]


def unread_rows(unread: Mapping[TopicPartition, LogError]) -> list[UnreadPartitions]:
    return [
        UnreadPartitions(cause=each.what, kind=each.first.kind, count=len(each.members), partitions=list(each.places))
        for each in group_problems(problems_of(unread))
    ]


def is_same_problem(one: LogError | None, other: LogError) -> bool:
    return one is not None and type(one) is type(other) and one.attempt == other.attempt


def flat(error: BaseException) -> str:
    return " ".join(str(error).split())


def next_step(error: LogError) -> str:
    return step_of(type(error).__name__, error.facts)


def step_of(kind: str, facts: Mapping[str, object]) -> str:
    """The next step for an error class with these facts, in one line; missing facts shorten it."""
    match kind:
        case "AccessDenied" | "InvalidRequest" if key := _key(facts):
            return f"add the key {key} to the key ring, {_KEY_RING}: {_HOW_TO}/encrypt-the-bucket.md"
        case "Unavailable":
            where = facts.get("endpoint") or facts.get("store") or "the endpoint of url in [remote]"
            words = f"check that {where} replies from this machine, every maintenance round retries"
            return f"{words}: {_RUNBOOKS}/store-fails.md"
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
    return isinstance(error, AccessDenied | InvalidRequest) and _key(error.facts) is not None


def _key(facts: Mapping[str, object]) -> object:
    return facts.get("key_id") or facts.get("remote.encryption.key.id")


def _path(facts: Mapping[str, object]) -> str:
    return str(facts.get("path") or facts.get("directory") or facts.get("file") or "the log directories")


def _cause_key(problem: Problem) -> tuple[str, str, str]:
    return problem.kind, problem.next_step, problem.cause


def _without_place(text: str, where: str) -> str:
    return " ".join(re.sub(rf"\b{re.escape(where)}\b", "", text).split())


class ReportedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a partition, or of the node (no topic), that `count` runs met; `kind` is its error's class."""

    topic: str | None
    partition: int | None
    kind: str
    message: str
    since_ms: int
    last_ms: int
    count: int = 1
    code: str | None = None
    next_step: str = ""

    @property
    def name(self) -> TopicPartition | None:
        if self.topic is None or self.partition is None:
            return None
        return TopicPartition(self.topic, self.partition)

    def problem(self, node: str = "node") -> Problem:
        return Problem(
            where=node if self.name is None else str(self.name),
            partition=self.name,
            kind=self.kind,
            what=self.message,
            next_step=self.next_step,
            since_ms=self.since_ms,
            count=self.count,
        )


class WorkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one manager, for other processes.

    ``work-report.json`` is in the first online log directory. It is replaced whole: after a maintenance run that
    changed something, at most every KEEP_INTERVAL_MS otherwise, and at the end. Only displayed status depends on it: an
    unreadable file counts as none. After a crash the age of the last report shows that the manager has ended.

    Maintenance ended at `round_ms` by the manager's time, at `wall_ms` by the machine's clock, which is in doubt since
    `doubted_ms`. `is_ended`: the manager ended in order.
    """

    version: int = REPORT_VERSION
    pid: int
    started_ms: int
    round_ms: int
    wall_ms: int | None = None
    doubted_ms: int | None = None
    interval_ms: int
    is_ended: bool = False
    troubles: tuple[ReportedProblem, ...] = ()

    @property
    def seen_ms(self) -> int:
        """When the last maintenance ended, by the machine's clock."""
        return self.wall_ms if self.wall_ms is not None else self.round_ms

    @property
    def suspicion(self) -> ClockSuspicion | None:
        if self.doubted_ms is None or self.wall_ms is None:
            return None
        return ClockSuspicion(since_ms=self.doubted_ms, seen_ms=self.wall_ms)

    def is_at_work(self, now_ms: int) -> bool:
        return not self.is_ended and now_ms - self.seen_ms <= STALE_ROUNDS * max(self.interval_ms, KEEP_INTERVAL_MS)


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_REPORT = msgspec.json.Decoder(WorkReport)


class WorkJournal:
    """Writes the report of one manager. Not thread safe: maintenance runs one at a time."""

    def __init__(
        self, place: Callable[[], tuple[Storage, str]], *, pid: int, started_ms: int, interval_ms: int
    ) -> None:
        self._place = place
        self.report = WorkReport(pid=pid, started_ms=started_ms, round_ms=started_ms, interval_ms=interval_ms)
        self._written: WorkReport | None = None

    def note_round(
        self,
        problems: Mapping[TopicPartition, LogError],
        now_ms: int,
        *,
        of_node: LogError | None = None,
        is_ended: bool = False,
        wall_ms: int | None = None,
        suspicion: ClockSuspicion | None = None,
    ) -> None:
        """Report a maintenance run; `of_node` is the error that ended it. Raises errors of the disk."""
        known = {each.name: each for each in self.report.troubles}
        met: list[tuple[TopicPartition | None, LogError]] = [] if of_node is None else [(None, of_node)]
        met += [(name, problems[name]) for name in sorted(problems)]
        self.report = msgspec.structs.replace(
            self.report,
            round_ms=now_ms,
            wall_ms=wall_ms,
            doubted_ms=suspicion.since_ms if suspicion is not None else None,
            troubles=tuple(_next(known.get(name), name, error, now_ms) for name, error in met),
            is_ended=is_ended,
        )
        if self._is_due():
            self.keep()

    def keep(self) -> None:
        storage, root = self._place()
        replace_file(storage, join(root, REPORT_FILE), msgspec.json.encode(self.report))
        self._written = self.report

    def _is_due(self) -> bool:
        if self._written is None or self._written.is_ended != self.report.is_ended:
            return True
        is_other = [_facts(each) for each in self._written.troubles] != [_facts(each) for each in self.report.troubles]
        return is_other or not 0 <= self.report.round_ms - self._written.round_ms < KEEP_INTERVAL_MS


def read_report(places: Sequence[tuple[Storage, str]]) -> WorkReport | None:
    """The newest readable report in the log directories; None without one."""
    found = []
    for storage, root in places:
        try:
            report = _REPORT.decode(storage.read(join(root, REPORT_FILE)))
        except (NotFound, LogError, msgspec.MsgspecError):
            continue  # an unreadable report is not a problem of the reader
        if report.version == REPORT_VERSION:
            found.append(report)
    return max(found, key=lambda each: each.round_ms, default=None)


def _next(known: ReportedProblem | None, name: TopicPartition | None, error: LogError, now_ms: int) -> ReportedProblem:
    kind, since_ms, count = type(error).__name__, now_ms, 1
    if known is not None and known.kind == kind:
        since_ms, count = known.since_ms, known.count + 1
    return ReportedProblem(
        topic=name.topic if name is not None else None,
        partition=name.partition if name is not None else None,
        kind=kind,
        message=flat(error),
        since_ms=since_ms,
        last_ms=now_ms,
        count=count,
        code=error.code,
        next_step=next_step(error),
    )


def _facts(problem: ReportedProblem) -> tuple[object, ...]:
    return problem.topic, problem.partition, problem.kind, problem.message, problem.since_ms


def lock_holder(path: str) -> int | None:
    """The process that holds `path`'s flock, from Linux's ``/proc/locks``; None if none or unknown.

    Only reads: taking the lock, even briefly, could keep a manager from starting.
    """
    try:
        facts = os.stat(path)
        with open("/proc/locks", encoding="ascii") as locks:
            lines = locks.read().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    for line in lines:
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:393 0 EOF
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
            return int(words[4])
    return None


def directory_holder(roots: Iterable[str], holder: Callable[[str], int | None] = lock_holder) -> int | None:
    return next((pid for root in roots if (pid := holder(join(root, LOCK))) is not None), None)
