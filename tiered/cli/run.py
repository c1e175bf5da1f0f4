"""``tiered run``: the loop around `LogManager.tick`. Only here does background work know the time.

The first SIGTERM or Ctrl-C lets the step under way finish, seals the logs and ends cleanly, telling what is in trouble;
uploads have ten seconds for it. A second one breaks the step off; whatever it had begun, the next start finishes or
undoes. With ``--once`` everything is done in order before it ends; without, uploads run in threads of their own.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from local.errors import Fenced, InvalidRequest, LogError
from tiered.cli.copy_progress import copy_progress
from tiered.cli.errors import Exit, one_line, worst
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.web import gate_options, serving_pages
from tiered.clock_properties import JUMP_HOLD
from tiered.units import format_ms, parse_ms

if TYPE_CHECKING:
    from tiered.manager import LogManager
    from tiered.observations import Observations
    from tiered.service_manager import ServiceManager
    from tiered.worker import Worker

_log = logging.getLogger(__name__)


@click.command("run")
@click.option("--once", is_flag=True, help="Work until nothing is left to do, then end.")
@click.option("--interval", metavar="TIME", help="How long to rest between rounds; default: the configured one.")
@click.option("--metrics", metavar="[HOST]:PORT", help="Serve /metrics, /health and pages there; :9464 is loopback.")
@click.option("--metrics-partitions", "by_partition", is_flag=True, help="Metrics of each partition, not of topics.")
@click.option("--ui", metavar="[HOST]:PORT", help="Serve the pages of 'tiered web' there, about this manager.")
@gate_options
@click.pass_obj
def run(
    session: Session,
    once: bool,
    interval: str | None,
    metrics: str | None,
    by_partition: bool,
    ui: str | None,
    token_file: str | None,
    hosts: tuple[str, ...],
) -> int:
    """Clean, copy, drop, expire and delete as the policies decide, until told to stop."""
    from tiered.observations import Observations
    from tiered.service_manager import Heartbeat, ServiceManager
    from tiered.timekeeping import Timekeeper
    from tiered.worker import Worker

    seen = Observations()
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals(reloads=not once))
        service = ServiceManager.of(os.environ)
        manager = stack.enter_context(session.manager(is_daemon=True, observations=seen))
        stack.enter_context(copy_progress(session, manager))
        rest_ms = _interval_ms(interval, manager)
        keeper = Timekeeper(manager.config.ms_of(JUMP_HOLD))
        worker = Worker(manager, now_ms=now_ms(), interval_ms=rest_ms, waits=once, observations=seen, keeper=keeper)
        if metrics is not None:
            stack.enter_context(_served(session, metrics, worker, seen, by_partition=by_partition))
        if ui is not None:
            from tiered.web.site import Site

            stack.enter_context(serving_pages(session, ui, Site(manager, now_ms).answer, token_file, hosts))
        if not once:
            session.say(f"running, a round every {format_ms(rest_ms)}: topics={len(manager.topics())}")
        service.ready(f"{len(manager.partitions())} partitions")
        loop = _Loop(session, worker, stop, service, seen, rest_ms)
        with Heartbeat(service, loop.last_seen_s):
            code = _work_off(worker, stop) if once else loop.work()
        service.stopping()
        worker.end(now_ms())
        _tell(session, manager)
    return Exit.INTERRUPTED if stop.signal == signal.SIGINT else code


@contextmanager
def _served(
    session: Session, address: str, worker: Worker, seen: Observations, *, by_partition: bool
) -> Iterator[None]:
    """Metrics over HTTP while this lasts."""
    from tiered.metrics import Metrics
    from tiered.metrics_server import MetricsServer, health_answer, is_loopback, metrics_answer, parse_address
    from tiered.web.site import Site

    figures = Metrics(worker.manager, seen, worker, by_partition=by_partition)
    told = metrics_answer(lambda form: figures.text(now_ms(), form))
    answers = {"/metrics": told, "/health": health_answer(worker.troubles)}
    site = Site(worker.manager, now_ms)
    server = MetricsServer(*parse_address(address), answers, site.answer)
    server.start()
    host, port = server.address
    root = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    session.say(f"metrics at {root}metrics" + (f", pages at {root}" if is_loopback(host) else ""))
    try:
        yield
    finally:
        server.close()


def _work_off(worker: Worker, stop: Stop) -> int:
    """Round after round until one does nothing. A SIGTERM before that is no success: work may be left."""
    while worker.round(now_ms(), should_stop=lambda: stop.is_set) and not stop.is_set:
        pass
    met = [*worker.manager.problems.values(), *([worker.trouble] if worker.trouble is not None else [])]
    return worst(met) or (Exit.TERMINATED if stop.is_set else Exit.DONE)


class _Loop:
    """Rounds for ever; a rest after one that left nothing to do.

    A partition in trouble is tried again. Only a newer writer in the bucket ends the loop: this one has lost its place.
    The configuration is read again after a SIGHUP, and when its file was changed.
    """

    def __init__(
        self,
        session: Session,
        worker: Worker,
        stop: Stop,
        service: ServiceManager,
        seen: Observations,
        rest_ms: int,
    ) -> None:
        self._session, self._worker, self._stop, self._service, self._seen = session, worker, stop, service, seen
        self._rest_ms = rest_ms
        self._is_resting = False
        self._read_ns = 0
        self._read_ns = self._changed_ns()

    def last_seen_s(self) -> float:
        """When something was last seen of the work; infinity while it rests."""
        return float("inf") if self._is_resting else self._seen.last_seen_s

    def work(self) -> int:
        while not self._stop.is_set:
            is_busy = self._worker.round(now_ms(), should_stop=lambda: self._stop.is_set)
            if any(isinstance(problem, Fenced) for problem in self._worker.manager.problems.values()):
                return Exit.CONFLICT
            if not is_busy:
                self._is_resting = True
                self._stop.wait(self._rest_ms / 1000)
                self._is_resting = False
            changed_ns = self._changed_ns()
            if self._stop.take_reload() or changed_ns != self._read_ns:
                self._read_ns = changed_ns
                self._reload()
        return Exit.DONE

    def _reload(self) -> None:
        """A configuration that cannot be read leaves everything as it was."""
        self._service.reloading()
        try:
            done = self._worker.manager.reload(self._session.config(), now_ms=now_ms())
        except LogError as error:
            _log.error("configuration could not be read again: error=%s", error)
        else:
            for name in done.at_restart:
                _log.warning("a setting holds only after the next start: setting=%s", name)
        self._service.ready(f"{len(self._worker.manager.partitions())} partitions")

    def _changed_ns(self) -> int:
        path = self._worker.manager.config.path
        try:
            return os.stat(path).st_mtime_ns if path is not None else 0
        except OSError:
            return self._read_ns  # an editor is replacing it


def _tell(session: Session, manager: LogManager) -> None:
    for name, problem in sorted(manager.problems.items()):
        click.echo(f"{one_line(problem)} (partition {name})", err=True)
    counts = manager.request_counts()
    if counts is not None and session.is_verbose:
        session.say(f"requests: {counts}")


def _interval_ms(text: str | None, manager: LogManager) -> int:
    if text is None:
        return manager.config.task_interval_ms
    value = parse_ms(text)
    if value is None or value <= 0:
        raise InvalidRequest("reading --interval", text=repr(text), expected="a duration such as 30s")
    return value
