"""``tiered run``: the loop around `LogManager.tick`; ``tiered web``: pages about another process.

| a SIGTERM or Ctrl-C | effect |
|---|---|
| during the start | loaded logs are released as after a crash; a hanging bucket is not waited for |
| after the start | the current step ends, logs are closed, problems are printed; uploads have ten seconds |
| a second one | the step is interrupted; the next start completes or undoes its work |

With ``--once`` all work runs in order before the end; without it, uploads run in their own threads. A SIGHUP during the
start is handled after it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from local.errors import Fenced, LogError
from tiered.cli.errors import Exit, one_line, worst
from tiered.cli.node.serve import NodeAddress
from tiered.cli.options import GROUP, command, duration_ms, option
from tiered.cli.progress import copy_progress
from tiered.cli.session import Session, Stop, now_ms, stop_signals
from tiered.config.clock_guard import ClockGuard, counted_ms
from tiered.config.properties import JUMP_HOLD
from tiered.config.units import counted, format_ms
from tiered.node.problems import group_problems, problems_of, read_report
from tiered.serve.security.addresses import is_loopback, own_names, parse_address

if TYPE_CHECKING:
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from tiered.manager.manager import LogManager
    from tiered.observe.metrics import Metrics
    from tiered.serve.commands.unix_socket import NodeSocket
    from tiered.serve.endpoint_metrics import EndpointMetrics
    from tiered.serve.security.security import Security
    from tiered.serve.security.tls import Tls
    from tiered.service.observations import Observations
    from tiered.service.worker import ServiceManager, Worker
    from tiered.web.http.server import Gate, Pages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControl:
    token_file: str | None = option(
        "--token-file FILE", "Require the token in this file, on loopback too.", type=click.Path()
    )
    hosts: tuple[str, ...] = option("--host NAME", "Accept a further host name; repeatable.")
    tls_cert: str | None = option("--tls-cert FILE", "Serve over TLS with this certificate (PEM).", type=click.Path())
    tls_key: str | None = option(
        "--tls-key FILE", "Name the file of the key; default: the file of the certificate.", type=click.Path()
    )

    @property
    def tls(self) -> Tls | None:
        """Return the TLS files. Raises UsageError for a key without a certificate."""
        from tiered.serve.security.tls import Tls

        if self.tls_cert is not None:
            return Tls(certificate=self.tls_cert, key=self.tls_key)
        if self.tls_key is not None:
            raise click.UsageError("--tls-key is the key of a certificate: add --tls-cert")
        return None


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
    kafka: NodeAddress = GROUP,
) -> int:
    """Clean, copy, drop, expire and delete as the policies decide, until a signal ends it."""
    if dry_run:
        from tiered.cli.node.plan import plan

        click.get_current_context().invoke(plan, settings={})
        return Exit.DONE
    with stop_signals(reloads=not once) as stop, ExitStack() as stack:  # before slow imports
        try:
            with stop.breaking_off():
                from tiered.serve.endpoint_metrics import EndpointMetrics
                from tiered.service.observations import Observations

                seen, endpoint = Observations(), EndpointMetrics()
                worker, own = _started(session, stack, seen, endpoint, interval, is_once=once, takes_over=take_over)
                # Its end comes before the manager's. /health answers after it: a node that starts is not healthy yet.
                security = stack.enter_context(kafka.serving(session, worker.manager, own, endpoint))
                if metrics is not None:
                    from tiered.observe.metrics import Metrics

                    figures = Metrics(worker.manager, seen, worker, by_partition=by_partition, endpoint=endpoint)
                    stack.enter_context(_served(session, metrics, worker, figures, access))
                if ui is not None:
                    from tiered.web.pages.site import Site

                    site = Site(worker.manager, now_ms)
                    stack.enter_context(serving_pages(session, "--ui", ui, site.answer, access))
        except KeyboardInterrupt:
            if once or not stop.was_asked_once or stop.signal == signal.SIGINT:
                raise
            return Exit.DONE  # the exit code that service managers expect
        code = _worked(session, worker, stop, seen, security, is_once=once)
    return Exit.INTERRUPTED if stop.signal == signal.SIGINT else code


def _started(
    session: Session,
    stack: ExitStack,
    seen: Observations,
    endpoint: EndpointMetrics,
    interval: str | None,
    *,
    is_once: bool,
    takes_over: bool,
) -> tuple[Worker, NodeSocket]:
    from tiered.serve.commands.unix_socket import NodeSocket
    from tiered.service.worker import Worker
    from tiered.stores.configured_store import store_clock_of

    own = stack.enter_context(closing(NodeSocket(session.config().data_dirs)))  # its end comes after the manager's
    manager = stack.enter_context(session.manager(is_daemon=True, observations=seen, takes_over=takes_over, own=own))
    stack.enter_context(copy_progress(session, manager))
    last, store_clock = read_report(manager.directories.places()), store_clock_of(manager.store, now_ms)
    worker = Worker(
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
        endpoint_error=lambda: endpoint.failure,
    )
    return worker, own


def _worked(
    session: Session, worker: Worker, stop: Stop, seen: Observations, security: Security | None, *, is_once: bool
) -> int:
    from tiered.service.worker import Heartbeat, ServiceManager

    manager, service = worker.manager, ServiceManager.of(os.environ)
    if not is_once:
        session.say(
            f"running, a maintenance round every {format_ms(worker.interval_ms)}: topics={len(manager.topics.all())}"
        )
    service.ready(counted(len(manager.partitions.all()), "partition"))
    loop = _Loop(session, worker, stop, service, seen, security)
    with Heartbeat(service, loop.last_seen_s):
        code = _work_off(session, worker, stop) if is_once else loop.work()
    service.stopping()
    worker.end(now_ms())
    _print_summary(session, manager)
    return code


@contextmanager
def _served(session: Session, address: str, worker: Worker, figures: Metrics, access: AccessControl) -> Iterator[None]:
    from tiered.web.http.server import MetricsServer, health_answer, metrics_answer
    from tiered.web.pages.site import Site

    metrics = metrics_answer(lambda form: figures.text(now_ms(), form))
    answers = {"/metrics": metrics, "/health": health_answer(worker.problem_lines)}
    server = MetricsServer(*parse_address(address), answers, Site(worker.manager, now_ms).answer, hosts=access.hosts)
    server.start()
    has_pages = is_loopback(server.address[0])
    session.say(f"metrics at {server.root}metrics" + (f", pages at {server.root}" if has_pages else ""))
    with closing(server):
        yield


def _work_off(session: Session, worker: Worker, stop: Stop) -> int:
    """Run maintenance until no work is left; return the exit code. Checkpoints that wait for space are no failure."""
    while worker.round(now_ms(), should_stop=lambda: stop.is_set) and not stop.is_set:
        pass
    errors = list(worker.manager.problems.values())
    refused = worker.manager.maintenance.refused
    if refused is not None:
        session.warn(f"cannot write the checkpoints, the next start recovers the logs: {refused}")
    if worker.round_error is not None and worker.round_error is not refused:
        errors.append(worker.round_error)
    return worst(errors) or (Exit.TERMINATED if stop.is_set else Exit.DONE)


class _Loop:
    """Runs maintenance until a signal, or until a newer writer fences this one; sleeps without work.

    Partitions with a problem are tried again. A SIGHUP or a changed file reloads the configuration.
    """

    def __init__(
        self,
        session: Session,
        worker: Worker,
        stop: Stop,
        service: ServiceManager,
        seen: Observations,
        security: Security | None,
    ) -> None:
        self._security = security
        self._session, self._worker, self._stop, self._service, self._seen = session, worker, stop, service, seen
        self._is_resting = False
        # Not the file's current time: it may have changed during the start.
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
        self._service.reloading()
        if self._security is not None:
            self._security.reload()
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


@command("web", example="web --listen 127.0.0.1:8080")
def web(
    session: Session,
    listen: str = option("--listen [HOST]:PORT", "Set the address; without a host on loopback.", default=":8080"),
    access: AccessControl = GROUP,
) -> int:
    """Serve web pages: topics, segments, the plan, costs, compaction and problems.

    The pages are read-only: the server takes no lock and may run next to `tiered run`. An address other than loopback
    requires a token; without --token-file the command generates one and prints it.
    """
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from tiered.web.pages.manager_cache import ManagerCache
    from tiered.web.pages.site import Site

    config = session.config()
    session.set_up_logging(reports_problems=True)
    known = ManifestMemoryCache(counted_ms)
    managers = ManagerCache(
        config, lambda: _read_only(session, known), now_ms, lambda: _read_only(session, is_alone=True)
    )
    pages = Site(managers, now_ms).answer
    with closing(managers), stop_signals() as stop, serving_pages(session, "--listen", listen, pages, access):
        stop.wait(None)
    return Exit.DONE


@contextmanager
def serving_pages(session: Session, option: str, listen: str, pages: Pages, access: AccessControl) -> Iterator[None]:
    """Serve the pages at the address from `option` within the block.

    Raises InvalidRequest for an unusable address, token or certificate, NotFound for a missing file.
    """
    from tiered.web.http.server import WebServer

    host, port = parse_address(listen)
    gate, made = _gate(access, is_open=not is_loopback(host))
    server = WebServer(host, port, pages, gate, option=option, tls=access.tls)
    server.start()
    with closing(server):
        session.say(f"pages at {server.root} until Ctrl-C")
        if made is not None:
            click.echo(f"token: {made}", err=True)
        if gate.wants_token and access.tls is None and not is_loopback(host):
            session.say("the connection is not encrypted: use --tls-cert, or a proxy with TLS or a tunnel")
        yield


def _read_only(session: Session, known: ManifestMemoryCache | None = None, *, is_alone: bool = False) -> LogManager:
    from tiered.manager.manager import LogManager
    from tiered.web.pages.manager_cache import silent_store

    config = session.config()
    store = silent_store(config.remote_url) if is_alone and config.remote_url is not None else None
    return LogManager.open(config, now_ms=now_ms(), read_only=True, store=store, known=known)


def _gate(access: AccessControl, *, is_open: bool) -> tuple[Gate, str | None]:
    """Return the gate, and the token if one was generated. Raises NotFound and InvalidRequest."""
    import secrets

    from tiered.config.user_files import read_given
    from tiered.web.http.server import Gate, check_token

    names, path = [*access.hosts, *(own_names() if is_open else ())], access.token_file
    if path is not None:
        body = read_given(path, "cannot read the token", "a file with one line of plain letters").strip()
        return Gate(token=check_token(body.decode(errors="replace"), file=path), hosts=names), None
    made = secrets.token_urlsafe(24) if is_open else None
    return Gate(token=made, hosts=names), made
