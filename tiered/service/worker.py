"""Maintenance runs of a manager, one after another, with their report and notes on the tiers.

`tiered.node.work_report` has the report, `tiered.status.tier_journal` the notes. The loop continues after a run that
failed as a whole because of the disk or the store. Examples: no room for a checkpoint, no permission to write it, no
answer. The error is noted and the next run tries again. Other errors of a run (another configuration, another process
that holds the directory) are raised to the caller. The caller passes the time; a keeper decides whether to trust it
(`tiered.config.clock_guard`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from local.errors import AccessDenied, DiskFailed, LogError, Unavailable
from tiered.config.clock_guard import ClockGuard, counted_ms
from tiered.manager.manager import LogManager
from tiered.node.problem_groups import group_problems, problems_of, uncleanable_problem
from tiered.node.work_report import WorkJournal, WorkReport
from tiered.service.disk_pressure import DiskRelief
from tiered.service.observations import Observations
from tiered.service.problem_watch import ProblemWatch
from tiered.service.tracing import tracer
from tiered.status.tier_journal import TierJournal
from tiered.stores.store_clock import WAIT_S, StoreClock

_log = logging.getLogger(__name__)


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
    ) -> None:
        """`interval_ms` is the caller's pause between maintenance runs, for readers of the report.

        With `waits` false a run leaves tasks that wait for the store to their own threads (`LogManager.tick`). A
        `clock_guard` checks the times of runs against jumps of the clock; without it the times are used as they are.
        `counted` is a monotonic counter of milliseconds, independent of the wall clock.
        """
        self.manager = manager
        self.clock_guard = clock_guard
        self._store_clock = store_clock  # answers the keeper's questions
        self.waits = waits
        self.interval_ms = interval_ms
        self.round_error: LogError | None = None
        self.rounds = self.failures = 0
        self._told: str | None = None
        self._counted, self._ended_at = counted, counted()
        self._observations = observations or Observations()
        self._relief = DiskRelief(manager)
        self._spans = tracer()
        self._notes = TierJournal(manager)
        self.problems = ProblemWatch()
        self._journal = WorkJournal(
            manager.first_directory, pid=os.getpid(), started_ms=now_ms, interval_ms=interval_ms
        )

    def problem_lines(self) -> list[str]:
        """Return a line for each problem of the node and each cause of partition problems.

        A log is uncleanable until a pass succeeds: after a restart no run has met the cause yet.
        """
        problems = problems_of(self.manager.problems)
        known = {each.where for each in problems}
        for name, left in self.manager.cleaning.uncleanable_of(self.manager.partitions()).items():
            if str(name) not in known:
                problems.append(uncleanable_problem(name, left.reason))
        groups = group_problems(sorted(problems, key=lambda each: each.where))
        return [f"node: {each}" for each in self._of_node()] + [each.line for each in groups]

    def _of_node(self) -> list[LogError]:
        told = (
            self.round_error,
            self.clock_guard.suspect_reason if self.clock_guard is not None else None,
            self._relief.disk_error,
        )
        return [each for each in told if each is not None]

    @property
    def round_age_ms(self) -> int:
        """Time since the end of the last run, or since the start; independent of clock jumps."""
        return self._counted() - self._ended_at

    @property
    def report(self) -> WorkReport:
        """The report of the runs so far."""
        return self._journal.report

    def round(self, now_ms: int, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Run maintenance once; return whether more work waits.

        `round_error` is the error that ended the run early, None for a complete run.
        """
        before, self.round_error, is_busy = self.round_error, None, False
        wall_ms, now_ms = now_ms, self._believed(now_ms)
        try:
            self._relief.relieve(now_ms)
            with self._observations.round(), self._spans.span("tiered.round", number=self.rounds):
                is_busy = self.manager.tick(now_ms, should_stop=should_stop, waits=self.waits)
            if (refused := self.manager.refused_checkpoints) is not None:
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
        """Report that the manager has stopped."""
        wall_ms, now_ms = now_ms, self._believed(now_ms)
        self._note(now_ms, wall_ms, is_ended=True)
        self._notes.note(now_ms, is_last=True)

    def _believed(self, wall_ms: int) -> int:
        if self.clock_guard is None:
            return wall_ms
        before, now_ms = self.clock_guard.suspect_reason, self.clock_guard.now_ms(wall_ms)
        if self._store_clock is not None and self.clock_guard.is_asking():
            self._store_clock.ask(self.clock_guard.set_store_time, wait_s=0.0 if self.rounds else WAIT_S)
            now_ms = self.clock_guard.now_ms(wall_ms)
        if self.clock_guard.suspect_reason is not None and self.clock_guard.suspect_reason is not before:
            _log.error("the system clock has jumped: error=%s", self.clock_guard.suspect_reason)
        elif self.clock_guard.suspect_reason is None and before is not None:
            _log.warning("the system clock is trusted again: now_ms=%d", now_ms)
        return now_ms

    def _note(self, now_ms: int, wall_ms: int, *, is_ended: bool = False) -> None:
        of_node = next(iter(self._of_node()), None)
        self.problems.note(self.manager.problems, of_node, now_ms)
        suspicion = self.clock_guard.suspicion(wall_ms) if self.clock_guard is not None else None
        try:
            self._journal.note_round(
                self.manager.problems, now_ms, of_node=of_node, is_ended=is_ended, wall_ms=wall_ms, suspicion=suspicion
            )
        except LogError as error:
            if str(error) != self._told:  # a full disk would repeat it in every run
                _log.warning("cannot write the report of maintenance: cause=%s", error)
            self._told = str(error)
        else:
            self._told = None
