"""``tiered run``: the loop around `LogManager.tick`. Only this module gives background work the time.

| a SIGTERM or Ctrl-C | effect |
|---|---|
| during the start | loaded logs are released as after a crash; a hanging bucket is not waited for |
| after the start | the current step ends, logs are closed, problems are printed; uploads have ten seconds |
| a second one | the step is interrupted; the next start completes or undoes its work |

With ``--once`` all work runs in order before the end; without it, uploads run in their own threads. A SIGHUP is
remembered from the start on, and handled once all is loaded.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from local.errors import Fenced, LogError
from tiered.cli.arguments import duration_ms
from tiered.cli.errors import Exit, one_line, worst
from tiered.cli.node.web import AccessControl, serving_pages
from tiered.cli.options import GROUP, command, option
from tiered.cli.progress import copy_progress
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.config.properties import JUMP_HOLD
from tiered.config.units import counted, format_ms
from tiered.node.problems import group_problems, problems_of

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager
    from tiered.service.observations import Observations
    from tiered.service.systemd import ServiceManager
    from tiered.service.worker import Worker

_log = logging.getLogger(__name__)


@command("run", has_progress=True, example="run --metrics 127.0.0.1:9464")
def run(
    session: Session,
    once: bool = option("--once", "Run until nothing is due, then exit."),
    interval: str | None = option(
        "--interval TIME", "Set the interval between maintenance rounds; default: from the configuration."
    ),
    metrics: str | None = option(
        "--metrics [HOST]:PORT", "Serve /metrics, /health and pages at this address; :9464 is loopback."
    ),
    by_partition: bool = option("--metrics-partitions", "Export metrics of each partition, not of topics."),
    dry_run: bool = option("--dry-run", "Show what the next round would do, as 'tiered plan' does."),
    take_over: bool = option("--take-over", "Take the writer role back if another writer fenced this log."),
    ui: str | None = option("--ui [HOST]:PORT", "Serve the pages of 'tiered web' about this manager at this address."),
    access: AccessControl = GROUP,
) -> int:
    """Clean, copy, drop, expire and delete as the policies decide, until a signal ends it."""
    if dry_run:
        from tiered.cli.node.plan import plan

        click.get_current_context().invoke(plan, settings={})
        return Exit.DONE
    with stop_signals(reloads=not once) as stop, ExitStack() as stack:  # before slow imports
        try:
            with stop.breaking_off():
                from tiered.service.observations import Observations

                seen = Observations()
                worker = _started(session, stack, seen, interval, is_once=once, takes_over=take_over)
                if metrics is not None:
                    stack.enter_context(_served(session, metrics, worker, seen, access, by_partition=by_partition))
                if ui is not None:
                    from tiered.web.pages.site import Site

                    site = Site(worker.manager, now_ms)
                    stack.enter_context(serving_pages(session, "--ui", ui, site.answer, access))
        except KeyboardInterrupt:
            if once or not stop.was_asked_once or stop.signal == signal.SIGINT:
                raise
            return Exit.DONE  # the exit code that service managers expect
        code = _worked(session, worker, stop, seen, is_once=once)
    return Exit.INTERRUPTED if stop.signal == signal.SIGINT else code


def _started(
    session: Session, stack: ExitStack, seen: Observations, interval: str | None, *, is_once: bool, takes_over: bool
) -> Worker:
    """Load everything; `stack` closes it."""
    from tiered.config.clock_guard import ClockGuard
    from tiered.node.problems import read_report
    from tiered.service.worker import Worker
    from tiered.stores.store_check import store_clock_of

    manager = stack.enter_context(session.manager(is_daemon=True, observations=seen, takes_over=takes_over))
    stack.enter_context(copy_progress(session, manager))
    last, store_clock = read_report(manager.directories.places()), store_clock_of(manager.store, now_ms)
    return Worker(
        manager,
        now_ms=now_ms(),
        interval_ms=manager.config.int_of("remote.log.manager.task.interval.ms")
        if interval is None
        else duration_ms("--interval", interval, "30s"),
        waits=is_once,
        observations=seen,
        clock_guard=ClockGuard(
            manager.config.int_of(JUMP_HOLD),
            last_ms=last.round_ms if last is not None else None,
            has_store=store_clock is not None,
            suspicion=last.suspicion if last is not None else None,
        ),
        store_clock=store_clock,
    )


def _worked(session: Session, worker: Worker, stop: Stop, seen: Observations, *, is_once: bool) -> int:
    """Run maintenance until asked to stop; return the exit code."""
    from tiered.service.systemd import Heartbeat, ServiceManager

    manager, service = worker.manager, ServiceManager.of(os.environ)
    if not is_once:
        session.say(
            f"running, a maintenance round every {format_ms(worker.interval_ms)}: topics={len(manager.topics.all())}"
        )
    service.ready(counted(len(manager.partitions.all()), "partition"))
    loop = _Loop(session, worker, stop, service, seen)
    with Heartbeat(service, loop.last_seen_s):
        code = _work_off(session, worker, stop) if is_once else loop.work()
    service.stopping()
    worker.end(now_ms())
    _print_summary(session, manager)
    return code


@contextmanager
def _served(
    session: Session, address: str, worker: Worker, seen: Observations, access: AccessControl, *, by_partition: bool
) -> Iterator[None]:
    """Serve metrics over HTTP within the block."""
    from tiered.observe.metrics import Metrics
    from tiered.web.http.metrics_server import MetricsServer, health_answer, is_loopback, metrics_answer, parse_address
    from tiered.web.pages.site import Site

    figures = Metrics(worker.manager, seen, worker, by_partition=by_partition)
    metrics = metrics_answer(lambda form: figures.text(now_ms(), form))
    answers = {"/metrics": metrics, "/health": health_answer(worker.problem_lines)}
    site = Site(worker.manager, now_ms)
    server = MetricsServer(*parse_address(address), answers, site.answer, hosts=access.hosts)
    server.start()
    has_pages = is_loopback(server.address[0])
    session.say(f"metrics at {server.root}metrics" + (f", pages at {server.root}" if has_pages else ""))
    try:
        yield
    finally:
        server.close()


def _work_off(session: Session, worker: Worker, stop: Stop) -> int:
    """Run maintenance until it finds no work. A SIGTERM before that is no success: work may remain.

    Checkpoints that wait for space are no failure: all work was done, and the next start recovers.
    """
    while worker.round(now_ms(), should_stop=lambda: stop.is_set) and not stop.is_set:
        pass
    met = list(worker.manager.problems.values())
    refused = worker.manager.maintenance.refused
    if refused is not None:
        session.warn(f"cannot write the checkpoints, the next start recovers the logs: {refused}")
    if worker.round_error is not None and worker.round_error is not refused:
        met.append(worker.round_error)
    return worst(met) or (Exit.TERMINATED if stop.is_set else Exit.DONE)


class _Loop:
    """Runs maintenance for ever; sleeps after a run that left no work.

    A partition with a problem is tried again. Only a newer writer in the bucket ends the loop: this one is fenced. The
    configuration is read again after a SIGHUP, and when its file has changed.
    """

    def __init__(
        self, session: Session, worker: Worker, stop: Stop, service: ServiceManager, seen: Observations
    ) -> None:
        self._session, self._worker, self._stop, self._service, self._seen = session, worker, stop, service, seen
        self._is_resting = False
        # Not the file's current time: a start is slow, and a change during it has not been read.
        self._read_ns = worker.manager.config.changed_ns

    def last_seen_s(self) -> float:
        """Return the time of the last sign of work; infinity while the loop sleeps."""
        return float("inf") if self._is_resting else self._seen.last_seen_s

    def work(self) -> int:
        while not self._stop.is_set:
            is_busy = self._worker.round(now_ms(), should_stop=lambda: self._stop.is_set)
            if any(isinstance(problem, Fenced) for problem in self._worker.manager.problems.values()):
                return Exit.CONFLICT
            if not is_busy:
                self._is_resting = True
                self._stop.wait(self._worker.interval_ms / 1000)
                self._is_resting = False
            changed_ns = self._changed_ns()
            if self._stop.take_reload() or changed_ns != self._read_ns:
                self._read_ns = changed_ns
                self._reload()
        return Exit.DONE

    def _reload(self) -> None:
        """Reload the configuration. An unreadable one changes nothing."""
        self._service.reloading()
        try:
            done = self._worker.manager.topics.reload(self._session.config(), now_ms=now_ms())
        except LogError as error:
            _log.error("cannot read the configuration again: error=%s", error)
        else:
            for name in done.at_restart:
                _log.warning("a changed setting takes effect at the next start: setting=%s", name)
        self._service.ready(counted(len(self._worker.manager.partitions.all()), "partition"))

    def _changed_ns(self) -> int:
        from tiered.config.config import last_changed_ns

        path = self._worker.manager.config.path
        try:
            return last_changed_ns(path) if path is not None else 0
        except OSError:
            return self._read_ns  # an editor is replacing it


def _print_summary(session: Session, manager: LogManager) -> None:
    errors = {str(name): problem for name, problem in manager.problems.items()}
    for group in group_problems(problems_of(manager.problems)):
        first, count = group.places[0], len(group.places)
        where = f"partition {first}" if count == 1 else f"{first} and {counted(count - 1, 'other partition')}"
        click.echo(f"{one_line(errors[first])} ({where})", err=True)
    if manager.store is not None and session.is_verbose:
        session.say(f"requests: {manager.store.counts()}")
