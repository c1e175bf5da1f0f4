"""What other processes see of a running manager: its report (last maintenance, problems), and the lock that it holds.

``work-report.json`` is in the first online log directory. It is replaced whole: after a maintenance run that changed
something, at most every KEEP_INTERVAL_MS otherwise, and at the end. Only displayed status depends on it: a file that is
lost, damaged or of another version counts as none. A crash leaves the last report of a running manager; its age shows
that the manager has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from local.errors import LogError, NotFound
from local.names import LOCK, TopicPartition
from local.storage import Storage, join, replace_file
from tiered.config.clock_guard import ClockSuspicion
from tiered.node.problems import next_step

FILE = "work-report.json"
VERSION = 1
KEEP_INTERVAL_MS = 30_000
STALE_ROUNDS = 5  # after as many intervals without a report, no manager is running


class ReportedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a partition, or of the node (no topic then).

    | field | meaning |
    |---|---|
    | `kind` | the class of the error |
    | `count` | the number of maintenance runs that met it |
    | `code` | the error's code (`local.errors.ErrorCode`), None for an error without one |
    | `next_step` | the next step of the operator |
    """

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


class WorkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one manager.

    | field | meaning |
    |---|---|
    | `round_ms` | when the last maintenance ended, by the manager's time |
    | `wall_ms` | the same by the machine's clock, which may be in doubt |
    | `doubted_ms` | since when the machine's clock is in doubt |
    | `interval_ms` | the pause after a maintenance run |
    | `is_ended` | the manager ended in order |
    """

    version: int = VERSION
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
        """The doubt about the machine's clock after the last maintenance."""
        if self.doubted_ms is None or self.wall_ms is None:
            return None
        return ClockSuspicion(since_ms=self.doubted_ms, seen_ms=self.wall_ms)

    def is_at_work(self, now_ms: int) -> bool:
        """Whether a manager worked recently and has not reported its end."""
        return not self.is_ended and now_ms - self.seen_ms <= STALE_ROUNDS * max(self.interval_ms, KEEP_INTERVAL_MS)


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_REPORT = msgspec.json.Decoder(WorkReport)


class WorkJournal:
    """Writes the report of one manager. Not thread safe: maintenance runs one at a time."""

    def __init__(
        self, place: Callable[[], tuple[Storage, str]], *, pid: int, started_ms: int, interval_ms: int
    ) -> None:
        """`place` returns the log directory for the file."""
        self._place = place
        self._report = WorkReport(pid=pid, started_ms=started_ms, round_ms=started_ms, interval_ms=interval_ms)
        self._written: WorkReport | None = None

    @property
    def report(self) -> WorkReport:
        return self._report

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
        """Report a maintenance run with these problems; `of_node` ended it. Raises errors of the disk.

        A failed write loses only displayed status, and the next run tries again.
        """
        known = {each.name: each for each in self._report.troubles}
        met: list[tuple[TopicPartition | None, LogError]] = [] if of_node is None else [(None, of_node)]
        met += [(name, problems[name]) for name in sorted(problems)]
        troubles = tuple(_next(known.get(name), name, error, now_ms) for name, error in met)
        self._report = msgspec.structs.replace(
            self._report,
            round_ms=now_ms,
            wall_ms=wall_ms,
            doubted_ms=suspicion.since_ms if suspicion is not None else None,
            troubles=troubles,
            is_ended=is_ended,
        )
        if self._is_due():
            self.keep()

    def keep(self) -> None:
        """Write the report."""
        storage, root = self._place()
        replace_file(storage, join(root, FILE), msgspec.json.encode(self._report))
        self._written = self._report

    def _is_due(self) -> bool:
        if self._written is None or self._written.is_ended != self._report.is_ended:
            return True
        is_other = [_facts(each) for each in self._written.troubles] != [_facts(each) for each in self._report.troubles]
        return is_other or not 0 <= self._report.round_ms - self._written.round_ms < KEEP_INTERVAL_MS


def read_report(places: Sequence[tuple[Storage, str]]) -> WorkReport | None:
    """The newest report in any of the log directories; None if none can be read."""
    found = []
    for storage, root in places:
        try:
            report = _REPORT.decode(storage.read(join(root, FILE)))
        except (NotFound, LogError, msgspec.MsgspecError):
            continue  # an unreadable report is not a problem of the reader
        if report.version == VERSION:
            found.append(report)
    return max(found, key=lambda each: each.round_ms, default=None)


def _next(known: ReportedProblem | None, name: TopicPartition | None, error: LogError, now_ms: int) -> ReportedProblem:
    message = " ".join(str(error).split())
    if known is not None and known.kind == type(error).__name__:
        count = known.count + 1
        step = next_step(error)
        return msgspec.structs.replace(
            known, message=message, last_ms=now_ms, count=count, code=error.code, next_step=step
        )
    return ReportedProblem(
        topic=name.topic if name is not None else None,
        partition=name.partition if name is not None else None,
        kind=type(error).__name__,
        message=message,
        since_ms=now_ms,
        last_ms=now_ms,
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
    """The process that holds one of these log directories; None if none or unknown."""
    return next((pid for root in roots if (pid := holder(join(root, LOCK))) is not None), None)
