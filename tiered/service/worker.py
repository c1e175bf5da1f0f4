"""Maintenance runs of a manager, one after another, with their report and notes on the tiers; messages to systemd.

A run that failed because of the disk or the store is noted, and the next run tries again. Other errors are raised.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from local.errors import AccessDenied, DiskFailed, LogError, Unavailable
from local.facts import LogDirFacts
from local.names import TopicPartition
from policies.decisions import Decision, DropLocal, Plan
from policies.retention import disk_relief
from tiered.config.clock_guard import ClockGuard, counted_ms
from tiered.config.properties import APPEND_FREE_MIN, RELIEF_FREE_MIN
from tiered.config.units import format_lasted
from tiered.manager.manager import LogManager
from tiered.node.problems import (
    Problem,
    ReportedProblem,
    WorkJournal,
    WorkReport,
    group_problems,
    problems_of,
    uncleanable_problem,
)
from tiered.service.observations import Observations, tracer
from tiered.status.tier_history import TierJournal
from tiered.stores.configured_store import CLOCK_WAIT_S, StoreClock

_log = logging.getLogger(__name__)
SILENCE_S = 900.0  # work without progress for so long hangs: every call to a store ends before


class DiskRelief:
    """Relieves a full disk before each maintenance run: segments with a remote copy are dropped early.

    A segment that only this disk has is never dropped. The relief waits for no copy: the store may not answer. Dropped
    segments count as free at once, although their bytes are freed after ``file.delete.delay.ms``. Not thread safe.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.disk_error: LogError | None = None  # error of a log directory that refuses records because it is full
        self._leaving: list[tuple[int, int, str, int]] = []  # dropped at, delay in ms, directory, bytes

    def relieve(self, now_ms: int) -> int:
        directories = self._manager.directories.facts()
        self._find_space(directories)
        least = self._manager.config.int_of(RELIEF_FREE_MIN)
        self._leaving = [each for each in self._leaving if 0 <= now_ms - each[0] < each[1]]
        dropped = 0
        for facts in directories if least else ():
            if facts.is_offline or facts.free_bytes is None or facts.free_bytes >= least:
                continue
            wanted = least - facts.free_bytes - sum(each[3] for each in self._leaving if each[2] == facts.path)
            if wanted > 0:
                dropped += self._relieve(facts.path, wanted, now_ms)
        return dropped

    def _find_space(self, directories: Iterable[LogDirFacts]) -> None:
        least = max(1, self._manager.config.int_of(APPEND_FREE_MIN))
        before, self.disk_error = self.disk_error, None
        for facts in directories:
            if not facts.is_offline and facts.free_bytes is not None and facts.free_bytes < least:
                self.disk_error = DiskFailed(
                    "cannot append, the disk is full: appends are refused until it has space",
                    directory=facts.path,
                    free_bytes=facts.free_bytes,
                    least_bytes=least,
                    cause="enospc",
                )
                if before is None:
                    _log.error("the disk is full: error=%s", self.disk_error)
                return
        if before is not None:
            _log.warning("the disk has space again")

    def _relieve(self, root: str, wanted: int, now_ms: int) -> int:
        inside = frozenset(self._manager.directories.partitions_of(root))
        there = [held for held in self._manager.partitions.all() if held.name in inside]
        snapshots = [held.snapshot(now_ms, may_ask=False) for held in there if held.is_writer]
        drops = disk_relief(snapshots, wanted)
        decisions: Mapping[TopicPartition, list[Decision]] = {name: [*each] for name, each in drops.items()}
        applied = self._manager.maintenance.drop_early(Plan(now_ms=now_ms, decisions=decisions))
        delays = {each.partition: each.rules.file_delete_delay_ms for each in snapshots}
        dropped = 0
        for name, result in applied.items():
            size = sum(each.size_bytes for each in result.done if isinstance(each, DropLocal))
            self._leaving.append((now_ms, delays[name], root, size))
            dropped += size
        what = "the disk is nearly full, copied segments are dropped early: directory=%s wanted=%d dropped=%d"
        _log.warning(what, root, wanted, dropped)
        return dropped


class ProblemWatch:
    """Counts and logs the problems that begin and end, by class of error. Not thread safe."""

    def __init__(self) -> None:
        self.begun = Counter[str]()
        self.ended = Counter[str]()
        self.oldest_since_ms: int | None = None

    def note(self, before: Iterable[ReportedProblem], after: Sequence[ReportedProblem], now_ms: int) -> None:
        ongoing = {(each.name, each.kind) for each in after}
        new = [each for each in after if each.count == 1]
        over = [each for each in before if (each.name, each.kind) not in ongoing]
        self.begun.update(each.kind for each in new)
        self.ended.update(each.kind for each in over)
        self.oldest_since_ms = min((each.since_ms for each in after), default=None)
        for group in group_problems(map(_cause, new)):
            if group.count > 1:  # a single one was logged where it occurred
                _log.error("problem: %s", group.line)
        for group in group_problems(map(_cause, over)):
            lasted = format_lasted(now_ms - (group.first.since_ms or now_ms))
            _log.warning("problem ended after %s: %s", lasted, group.line)


def _cause(reported: ReportedProblem) -> Problem:
    """The problem without its next step, which may name the file of one partition."""
    return replace(reported.problem(), next_step="")


class Worker:
    """Runs maintenance for one manager, from one thread."""

    def __init__(
        self,
        manager: LogManager,
        *,
        now_ms: int,
        interval_ms: int,
        waits: bool = True,
        observations: Observations | None = None,
        clock_guard: ClockGuard | None = None,
        store_clock: StoreClock | None = None,
        counted: Callable[[], int] = counted_ms,
        endpoint_error: Callable[[], LogError | None] = lambda: None,
    ) -> None:
        """`interval_ms`: the pause between runs, for readers of the report. `waits` as in `LogManager.tick`.

        `endpoint_error`: why the node does not serve its clients.
        """
        self.manager, self.clock_guard, self._endpoint_error = manager, clock_guard, endpoint_error
        self._store_clock = store_clock  # asked for the time when `clock_guard` needs it
        self.waits, self.interval_ms = waits, interval_ms
        self.round_error: LogError | None = None
        self.rounds = self.failures = 0
        self._reported: str | None = None
        self._counted, self._ended_at = counted, counted()
        self._observations = observations or Observations()
        self._relief = DiskRelief(manager)
        self._span = tracer()
        self._notes = TierJournal(manager)
        self.problems = ProblemWatch()
        self._journal = WorkJournal(
            manager.directories.first_online, pid=os.getpid(), started_ms=now_ms, interval_ms=interval_ms
        )

    def problem_lines(self) -> list[str]:
        problems = problems_of(self.manager.problems)
        known = {each.where for each in problems}
        for name, uncleanable in self.manager.cleaning.uncleanable_of(self.manager.partitions.all()).items():
            if str(name) not in known:
                problems.append(uncleanable_problem(name, uncleanable.reason))
        groups = group_problems(sorted(problems, key=lambda each: each.where))
        return [f"node: {each}" for each in self._of_node()] + [each.line for each in groups]

    def _of_node(self) -> list[LogError]:
        clock_error = self.clock_guard.suspect_reason if self.clock_guard is not None else None
        errors = (self.round_error, clock_error, self._relief.disk_error, self._endpoint_error())
        return [each for each in errors if each is not None]

    @property
    def round_age_ms(self) -> int:
        """Monotonic ms since the end of the last run, or since the start."""
        return self._counted() - self._ended_at

    @property
    def report(self) -> WorkReport:
        return self._journal.report

    def round(self, now_ms: int, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Run maintenance once; return whether more work waits. `round_error`: the error that ended it early."""
        before, self.round_error, is_busy = self.round_error, None, False
        wall_ms, now_ms = now_ms, self._believed(now_ms)
        try:
            self._relief.relieve(now_ms)
            with self._observations.round(), self._span("tiered.round", number=self.rounds):
                is_busy = self.manager.tick(now_ms, should_stop=should_stop, waits=self.waits)
            if (refused := self.manager.maintenance.refused) is not None:
                self.round_error = refused
                self.failures += 1
        except (AccessDenied, DiskFailed, Unavailable) as error:
            self.round_error = error
            self.failures += 1
            if str(error) != str(before):
                _log.error("maintenance round aborted: error=%s", error)
        self.rounds += 1
        self._ended_at = self._counted()
        self._note(now_ms, wall_ms)
        self._notes.note(now_ms)
        return is_busy

    def end(self, now_ms: int) -> None:
        wall_ms, now_ms = now_ms, self._believed(now_ms)
        self._note(now_ms, wall_ms, is_ended=True)
        self._notes.note(now_ms, is_last=True)

    def _believed(self, wall_ms: int) -> int:
        if self.clock_guard is None:
            return wall_ms
        before, now_ms = self.clock_guard.suspect_reason, self.clock_guard.now_ms(wall_ms)
        if self._store_clock is not None and self.clock_guard.is_asking():
            self._store_clock.ask(self.clock_guard.set_store_time, wait_s=0.0 if self.rounds else CLOCK_WAIT_S)
            now_ms = self.clock_guard.now_ms(wall_ms)
        if self.clock_guard.suspect_reason is not None and self.clock_guard.suspect_reason is not before:
            _log.error("the system clock has jumped: error=%s", self.clock_guard.suspect_reason)
        elif self.clock_guard.suspect_reason is None and before is not None:
            _log.warning("the system clock is trusted again: now_ms=%d", now_ms)
        return now_ms

    def _note(self, now_ms: int, wall_ms: int, *, is_ended: bool = False) -> None:
        of_node = next(iter(self._of_node()), None)
        before = self.report.troubles
        suspicion = self.clock_guard.suspicion(wall_ms) if self.clock_guard is not None else None
        try:
            self._journal.note_round(
                self.manager.problems, now_ms, of_node=of_node, is_ended=is_ended, wall_ms=wall_ms, suspicion=suspicion
            )
        except LogError as error:
            if str(error) != self._reported:  # a full disk would repeat it in every run
                _log.warning("cannot write the report of maintenance: cause=%s", error)
            self._reported = str(error)
        else:
            self._reported = None
        self.problems.note(before, self.report.troubles, now_ms)


class ServiceManager:
    """Notifies systemd by sd_notify(3): ready, reloading, stopping, alive. Never raises. Thread safe.

    Without a socket nothing is sent. With ``WATCHDOG_USEC`` systemd restarts a service that is silent for that long.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    @classmethod
    def of(cls, environ: Mapping[str, str], *, pid: int | None = None) -> ServiceManager:
        """The environment's service manager. A watchdog of another process (``WATCHDOG_PID``) is ignored."""
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and address[:1] not in ("/", "@"):
            address = None
        usec, for_pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        is_ours = for_pid in ("", str(os.getpid() if pid is None else pid))
        watchdog_s = int(usec) / 1e6 if usec.isdigit() and int(usec) > 0 and is_ours else None
        return cls(address, watchdog_s)

    @property
    def is_listening(self) -> bool:
        return self._address is not None

    def ready(self, status: str) -> None:
        self.send_state("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self.send_state("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self.send_state("STOPPING=1", "STATUS=finishing the current step")

    def alive(self) -> None:
        self.send_state("WATCHDOG=1")

    def send_state(self, *lines: str) -> None:
        if self._address is None:
            return
        body = "\n".join(line.replace("\n", " ") for line in lines).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.connect(self._address)
                to.send(body)
        except OSError as error:
            _log.warning("cannot notify the service manager: cause=%s", error.strerror)


class Heartbeat:
    """Notifies the watchdog twice in its period while `last_seen_s` is recent. A context manager."""

    def __init__(
        self,
        service: ServiceManager,
        last_seen_s: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`last_seen_s` returns the time of the last progress, by `clock`; infinity while no work is due."""
        self._service, self._last_seen_s, self._clock, self._silence_s = service, last_seen_s, clock, silence_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tiered-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        if self._service.is_listening and self._service.watchdog_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self) -> bool:
        if self._clock() - self._last_seen_s() > self._silence_s:
            return False
        self._service.alive()
        return True

    def _beat(self) -> None:
        assert self._service.watchdog_s is not None, "started with one"
        while not self._end.wait(self._service.watchdog_s / 2):
            if not self.beat():
                _log.error("maintenance has shown no progress for a long time: seconds=%.0f", self._silence_s)
