"""``tiered run``: the loop around `LogManager.tick`. Only here does background work know the time.

The first SIGTERM or Ctrl-C lets the step under way finish, seals the logs and ends cleanly, telling what is in trouble;
uploads have ten seconds for it. A second one breaks the step off; whatever it had begun, the next start finishes or
undoes. With ``--once`` everything is done in order before it ends; without, uploads run in threads of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from local.errors import Fenced, InvalidRequest
from tiered.cli.copy_progress import copy_progress
from tiered.cli.errors import Exit, one_line, worst
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.units import format_ms, parse_ms

if TYPE_CHECKING:
    from tiered.manager import LogManager
    from tiered.observations import Observations
    from tiered.worker import Worker


@click.command("run")
@click.option("--once", is_flag=True, help="Work until nothing is left to do, then end.")
@click.option("--interval", metavar="TIME", help="How long to rest between rounds; default: the configured one.")
@click.option(
    "--metrics", metavar="[HOST]:PORT", help="Serve /metrics and /health there; :9464 is the loopback address."
)
@click.option("--metrics-partitions", "by_partition", is_flag=True, help="Metrics of each partition, not of topics.")
@click.pass_obj
def run(session: Session, once: bool, interval: str | None, metrics: str | None, by_partition: bool) -> int:
    """Clean, copy, drop, expire and delete as the policies decide, until told to stop."""
    from tiered.observations import Observations
    from tiered.worker import Worker

    seen = Observations()
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        manager = stack.enter_context(session.manager(is_daemon=True, observations=seen))
        stack.enter_context(copy_progress(session, manager))
        rest_ms = _interval_ms(interval, manager)
        worker = Worker(manager, now_ms=now_ms(), interval_ms=rest_ms, waits=once, observations=seen)
        if metrics is not None:
            stack.enter_context(_served(session, metrics, worker, seen, by_partition=by_partition))
        if not once:
            session.say(f"running, a round every {format_ms(rest_ms)}: topics={len(manager.topics())}")
        code = _work_off(worker, stop) if once else _work(worker, stop, rest_ms)
        worker.end(now_ms())
        _tell(session, manager)
    return Exit.INTERRUPTED if stop.signal == signal.SIGINT else code


@contextmanager
def _served(
    session: Session, address: str, worker: Worker, seen: Observations, *, by_partition: bool
) -> Iterator[None]:
    """Metrics over HTTP while this lasts."""
    from tiered.metrics import Metrics
    from tiered.metrics_server import MetricsServer, health_answer, metrics_answer, parse_address

    figures = Metrics(worker.manager, seen, worker, by_partition=by_partition)
    answers = {"/metrics": metrics_answer(lambda: figures.text(now_ms())), "/health": health_answer(worker.troubles)}
    server = MetricsServer(*parse_address(address), answers)
    server.start()
    host, port = server.address
    session.say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
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


def _work(worker: Worker, stop: Stop, rest_ms: int) -> int:
    """Rounds for ever; a rest after one that left nothing to do.

    A partition in trouble is tried again. Only a newer writer in the bucket ends the loop: this one has lost its place.
    """
    while not stop.is_set:
        is_busy = worker.round(now_ms(), should_stop=lambda: stop.is_set)
        if any(isinstance(problem, Fenced) for problem in worker.manager.problems.values()):
            return Exit.CONFLICT
        if not is_busy:
            stop.wait(rest_ms / 1000)
    return Exit.DONE


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
