"""``tiered apply``: apply a saved plan if the state behind it is unchanged."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.errors import Exit, one_line, worst
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.render import Column, Result, Struct, columns_of, number, print_result
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.config.units import counted, format_bytes

if TYPE_CHECKING:
    from policies.decisions import Decision
    from tiered.plans.saved_plan import SavedPlan


class AppliedPartition(Struct):
    """The number of a partition's decisions that were done, and of those that were not due any more."""

    done: Annotated[int, number("APPLIED")]
    skipped: Annotated[int, number("SKIPPED")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    topic: str
    partition: int


class PlanApplied(Result):
    """``tiered apply`` of a plan."""

    partitions: list[AppliedPartition]


@command("apply", has_progress=True)
def apply(
    session: Session,
    file: str | None = argument("PLAN.json", type=click.Path()),
    auto: bool = option("--auto", "Without a file: plan and apply until nothing is due, as 'run --once' does."),
    yes: bool = option("--yes", "Do not ask for confirmation."),
    dry_run: bool = option(
        "--dry-run", "Check whether the state is unchanged, apply nothing; for advice, print its steps."
    ),
    output: str = OUTPUT,
) -> int:
    """Do what 'tiered plan --out PLAN.json' decided, or what 'tiered cost advise --out PLAN.json' advised.

    A state that has changed since then is refused (exit 5).
    """
    if auto == (file is not None):
        raise click.UsageError("name either a plan to apply, PLAN.json, or --auto")
    if file is None:
        return _auto(session, dry_run=dry_run, output=output)
    from tiered.cost.advice_file import is_advice
    from tiered.plans.saved_plan import plan_of, read_body

    body = read_body(file)
    if is_advice(body):
        from tiered.cli.node.apply_advice import advice_of, apply_advice_file

        return apply_advice_file(session, advice_of(body, file), yes=yes, dry_run=dry_run, output=output)
    return _of_file(session, plan_of(body, file), yes=yes, dry_run=dry_run, output=output)


def _auto(session: Session, *, dry_run: bool, output: str) -> int:
    """Do the work of `run --once`; with `dry_run` only show that of `plan`."""
    from tiered.cli.node.plan import plan
    from tiered.cli.node.run import run

    context = click.get_current_context()
    if dry_run:
        context.invoke(plan, settings={}, output=output)
        return Exit.DONE
    return int(context.invoke(run, once=True, progress=session.progress.mode))


def _of_file(session: Session, saved: SavedPlan, *, yes: bool, dry_run: bool, output: str) -> int:
    from tiered.plans.saved_plan import apply_saved, check_unchanged

    session.say(_summary(saved))
    if dry_run:
        with session.manager(read_only=True, overrides=saved.settings) as manager:
            check_unchanged(saved, manager, now_ms())
        session.say("the state is unchanged; nothing was applied")
        return Exit.DONE
    confirm(yes=yes)
    session.progress.expect(sum(map(len, saved.plan.decisions.values())), "decisions")
    with stop_signals() as stop, session.manager(overrides=saved.settings) as manager:
        applied = apply_saved(
            manager,
            saved,
            now_ms=now_ms(),
            progress=lambda name, decision: session.progress.advance(),
            should_stop=lambda: stop.is_set,
        )
        problems = {name: each for name, each in manager.problems.items() if name in saved.plan.decisions}
    rows = [
        AppliedPartition.of(
            name,
            done=len(each.done),
            skipped=len(each.skipped),
            size_bytes=sum(one.size_bytes for one in each.done),
        )
        for name, each in sorted(applied.items())
    ]
    where = Column("", "PARTITION", of=lambda row: f"{row.topic}/{row.partition}")
    print_result(PlanApplied(rows), output, columns=(where, *columns_of(AppliedPartition)))
    for name, problem in sorted(problems.items()):
        click.echo(f"{one_line(problem)} (partition {name})", err=True)
    left = _count(saved.plan.decisions.values()) - _count([*each.done, *each.skipped] for each in applied.values())
    if left:
        session.say(f"{counted(left, 'decision')} not applied, and the state has changed; next: tiered plan --out FILE")
    if left and stop.is_set:
        return worst(problems.values()) or (Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED)
    return worst(problems.values())


def _count(runs: Iterable[Sequence[Decision]]) -> int:
    return sum(map(len, runs))


def _summary(saved: SavedPlan) -> str:
    """Summarize in the words of `tiered plan`."""
    from tiered.plans.plan_rows import VERBS

    totals = saved.plan.totals()
    words = [f"{total.count} {VERBS[kind][1]} {format_bytes(total.size_bytes)}" for kind, total in totals.items()]
    return f"plan {saved.fingerprint}: {', '.join(words) or 'nothing to do'}"


def confirm(*, yes: bool) -> None:
    """Ask at the terminal. Raises InvalidRequest without one."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest("cannot ask for confirmation without a terminal, add --yes")
    click.confirm("apply it?", abort=True, err=True)
