"""``tiered plan``: decisions with reasons, bytes and cost; ``tiered apply``: saved plans and advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from local.errors import InvalidRequest
from remote.store import ObjectStore
from tiered.cli.errors import Exit, one_line, stopped_code, unread_code, worst
from tiered.cli.job_command import open_bucket, open_target
from tiered.cli.options import OUTPUT, TOPICS, YES, argument, command, option, parse_moment, settings_option
from tiered.cli.render import Column, Result, Struct, Work, columns_of, number, print_result, text
from tiered.cli.session import Session, confirm, now_ms, stop_signals, topic_problems
from tiered.config.price_file import PricesUsed
from tiered.config.units import DOLLARS_SHOWN, counted, format_bytes, format_dollars, format_lasted
from tiered.config.user_files import check_target
from tiered.node.problems import UnreadPartitions, unread_rows
from tiered.status.status_report import DeferredSegment, deferral_lines, deferral_rows

if TYPE_CHECKING:
    from tiered.cost.advice_applying import StepState
    from tiered.plans.planning import PricedPlan
    from tiered.plans.saved_plan import SavedPlan


class PlannedDecision(Struct):
    """One decision of a plan and its price; `dollars` once, `dollars_per_month` is the change of the bill.

    Null: the prices cannot be read.
    """

    what: Annotated[str, text("RANGE")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    requests: int
    once: Annotated[float | None, number("USD", format_dollars)]
    reason: Annotated[str, text("WHY")]
    decision: str
    topic: str
    partition: int
    puts: int
    gets: int
    lists: int
    deletes: int
    bytes_in: int
    dollars: float | None
    early_deletion_dollars: float | None
    dollars_per_month: float | None


class PlannedTotal(Struct):
    """All decisions of one kind."""

    count: Annotated[int, number("COUNT")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    requests: Annotated[int, number("REQUESTS")]
    once: Annotated[float | None, number("USD", format_dollars)]
    dollars_per_month: Annotated[float | None, number("$/MONTH", format_dollars)]
    decision: str


class _PlanFacts(Result):
    prices: PricesUsed | None
    now_dollars_per_month: float | None
    then_dollars_per_month: float | None
    dollars_once: float | None
    now_disk_bytes: int | None
    then_disk_bytes: int | None
    at_ms: int | None
    unread: list[UnreadPartitions]
    deferrals: list[DeferredSegment]


class PlanShow(_PlanFacts):
    """``tiered plan``; `at_ms` null for now."""

    decisions: list[PlannedDecision]


class PlanSummary(_PlanFacts):
    """``tiered plan --summary``."""

    totals: list[PlannedTotal]


@command("plan", example="plan orders -X retention.ms=7d --out plan.json")
def plan(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    summary: bool = option("--summary", "Print only counts, bytes and dollars by kind."),
    at: str | None = option("--at TIME", "Plan for a later time: +7d, a time, or a number of ms."),
    out: str | None = option("--out FILE", "Save the plan to a file, for 'tiered apply'.", type=click.Path()),
    settings: dict[str, str] = settings_option("Plan with this setting; may be repeated."),
    output: str = OUTPUT,
) -> int:
    """Show what the next round would do, the reasons, and the price: requests, and the bill before and after.

    Segments that are not copied, cleaned or dropped yet are listed on stderr, with the reason and its end.
    """
    from tiered.plans.planning import decision_row, priced_plan, total_rows
    from tiered.plans.saved_plan import WRITING, save_plan, write_plan

    made_ms = now_ms()
    at_ms = made_ms if at is None else parse_moment(at, made_ms)
    if at_ms < made_ms:
        raise InvalidRequest("cannot plan for a past time: name a later one, such as +7d", at=at)
    if out is not None:
        check_target(out, WRITING)
    with session.manager(read_only=True, overrides=settings, is_brief=True) as manager:
        priced = priced_plan(manager, at_ms, topics or None)
        problems = topic_problems(manager, topics)
    if out is not None:
        write_plan(save_plan(priced, made_ms=made_ms, settings={**session.overrides, **settings}), out)
    facts: dict[str, Any] = {
        "prices": PricesUsed.of(priced.prices) if priced.prices is not None else None,
        **priced.totals(),
        "at_ms": priced.plan.now_ms if at is not None else None,
        "unread": unread_rows(priced.missing),
        "deferrals": deferral_rows(priced.plan.deferrals),
    }
    if summary:
        totals = [PlannedTotal.of_fields(each) for each in total_rows(priced.cost.lines)]
        print_result(PlanSummary(**facts, totals=totals), output, columns=(*_VERB, *columns_of(PlannedTotal)))
    else:
        decisions = [PlannedDecision.of_fields(decision_row(each)) for each in priced.cost.lines]
        columns = (*_VERB, *_WHERE, *columns_of(PlannedDecision))
        print_result(PlanShow(**facts, decisions=decisions), output, columns=columns)
    session.report_problems(problems)
    for line in (*_paused(priced), *deferral_lines(priced.plan.deferrals, priced.plan.now_ms)):
        session.say(line)
    if priced.plan.is_empty:
        session.say("nothing to do" + (" for the other topics" if problems else ""))
    elif not priced.missing:
        session.say(_money(priced))
    if priced.missing:
        some = counted(len(priced.missing), "partition")
        session.say(f"no plan for {some}, because a tier is unreadable: totals are unknown")
    if out is not None or not priced.plan.is_empty:
        is_what_if = bool(settings or session.overrides)
        session.say(f"nothing changed{_following(out, is_later=at_ms > made_ms, is_what_if=is_what_if)}")
    return unread_code(priced.missing.values())


def _following(out: str | None, *, is_later: bool, is_what_if: bool) -> str:
    if out is not None:
        later = ", for review only: a plan for a later time cannot be applied"
        return f"; saved {out}{later if is_later else f'; next: tiered apply {out}'}"
    if is_later:
        return ""
    return f"; next: {'the same with --out FILE, then tiered apply FILE' if is_what_if else 'tiered run --once'}"


def _paused(priced: PricedPlan) -> list[str]:
    topics = {each.partition.topic: each.paused for each in priced.snapshots if each.paused is not None}
    found = []
    for name, pause in sorted(topics.items()):
        lasted = "" if pause.since_ms is None else f" for {format_lasted(now_ms() - pause.since_ms)}"
        found.append(f"{name}: uploads paused{lasted}, so no upload is planned; next: tiered resume")
    return found


def _money(priced: PricedPlan) -> str:
    cost = priced.cost
    disk = f"disk {format_bytes(cost.now_disk_bytes)}, then {format_bytes(cost.then_disk_bytes)}"
    if priced.prices is None:
        return f"{disk}; dollars are not shown: the prices are unreadable"
    # For tiny amounts the share would only reflect manifests.
    is_seen = cost.now_dollars >= DOLLARS_SHOWN
    share = f" ({100 * (cost.then_dollars / cost.now_dollars - 1):+.1f} %)" if is_seen else ""
    now, then = format_dollars(cost.now_dollars), format_dollars(cost.then_dollars)
    counts = {name[:-1]: round(cost.sum_of(name)) for name in ("puts", "gets", "lists")}
    verbs = ", ".join(f"{count:,} {verb}" for verb, count in counts.items() if count) or "no request"
    early = cost.sum_of("early_dollars")
    too_early = f", {format_dollars(early)} of it for minimum storage durations" if early else ""
    prices = f"{priced.prices.region}, prices of {priced.prices.as_of}"
    once = f"{verbs} {format_dollars(cost.dollars)} USD{too_early}"
    return f"now {now} USD/month, then {then}{share}; {once}; {disk} ({prices})"


def _verb(row: PlannedDecision | PlannedTotal) -> tuple[str, str]:
    from tiered.plans.planning import VERBS

    return VERBS[row.decision]


_VERB = (Column("", "", of=lambda row: _verb(row)[0]), Column("", "WHAT", of=lambda row: _verb(row)[1]))
_WHERE = (Column("", "PARTITION", of=lambda row: f"{row.topic}/{row.partition}"),)


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


@command("apply", has_progress=True, example="apply plan.json --dry-run")
def apply(
    session: Session,
    file: str | None = argument("PLAN.json", type=click.Path()),
    auto: bool = option("--auto", "Without a file: plan and apply until nothing is due, as 'run --once' does."),
    yes: bool = YES,
    dry_run: bool = option(
        "--dry-run", "Check whether the state is unchanged, apply nothing; for advice, print its steps."
    ),
    output: str = OUTPUT,
) -> int:
    """Apply the plan of 'tiered plan --out PLAN.json' or the advice of 'tiered cost advise --out PLAN.json'.

    If the state has changed since, nothing is done (exit 5).
    """
    if auto == (file is not None):
        raise click.UsageError("name either a plan to apply, PLAN.json, or --auto")
    if file is None:
        return _auto(session, dry_run=dry_run, output=output)
    from tiered.plans.saved_plan import read_plan

    saved = read_plan(file)
    session.say(_summary(saved))
    if dry_run:
        _check(session, saved, output)
        session.say("the state is unchanged; nothing was applied")
        return Exit.DONE
    confirm("apply it?", yes=yes, without="cannot ask for confirmation without a terminal, add --yes")
    return (_apply_decisions if saved.steps is None else _apply_steps)(session, saved, output)


def _auto(session: Session, *, dry_run: bool, output: str) -> int:
    from tiered.cli.node.run import run

    context = click.get_current_context()
    if dry_run:
        context.invoke(plan, settings={}, output=output)
        return Exit.DONE
    return int(context.invoke(run, once=True, progress=session.progress.mode))


def _check(session: Session, saved: SavedPlan, output: str) -> None:
    from tiered.cost.advice_applying import check_advice
    from tiered.plans.saved_plan import check_unchanged

    with session.manager(read_only=True, overrides=saved.settings) as manager:
        if saved.steps is None:
            check_unchanged(saved, manager, now_ms())
            return
        states = check_advice(manager, saved)
    _show_steps(states, output, dry_run=True)


def _apply_decisions(session: Session, saved: SavedPlan, output: str) -> int:
    from tiered.plans.saved_plan import apply_saved

    planned = sum(map(len, saved.plan.decisions.values()))
    session.progress.expect(planned, "decisions")
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
            name, done=len(each.done), skipped=len(each.skipped), size_bytes=sum(one.size_bytes for one in each.done)
        )
        for name, each in sorted(applied.items())
    ]
    print_result(PlanApplied(rows), output, columns=(*_WHERE, *columns_of(AppliedPartition)))
    for name, problem in sorted(problems.items()):
        click.echo(f"{one_line(problem)} (partition {name})", err=True)
    remaining = planned - sum(len(each.done) + len(each.skipped) for each in applied.values())
    if not remaining:
        return worst(problems.values())
    not_applied = f"{counted(remaining, 'decision')} not applied, and the state has changed"
    session.say(f"{not_applied}; next: tiered plan --out FILE")
    return worst(problems.values()) or (stopped_code(stop) if stop.is_set else Exit.DONE)


def _summary(saved: SavedPlan) -> str:
    from tiered.plans.planning import VERBS

    if saved.steps is not None:
        once = format_dollars(sum(each.once_dollars for each in saved.steps))
        size = format_bytes(sum(each.size_bytes for each in saved.steps))
        return f"advice {saved.fingerprint}: {counted(len(saved.steps), 'step')}, {size} to move, ${once}"
    totals = saved.plan.totals()
    words = [f"{total.count} {VERBS[kind][1]} {format_bytes(total.size_bytes)}" for kind, total in totals.items()]
    return f"plan {saved.fingerprint}: {', '.join(words) or 'nothing to do'}"


class AdvisedStep(Struct):
    """A step of saved advice: `due` of `parts` parts are not done. Dollars a month; `once_dollars` once."""

    topic: Annotated[str, text("TOPIC")]
    change: Annotated[str, text("CHANGE")]
    due: Annotated[int, number("DUE")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    requests: Annotated[int, number("REQUESTS")]
    once_dollars: Annotated[float, number("ONE-TIME", format_dollars)]
    now_dollars: Annotated[float, number("NOW/MONTH", format_dollars)]
    then_dollars: Annotated[float, number("THEN/MONTH", format_dollars)]
    reason: Annotated[str, text("REASON")]
    parts: int


class AdviceApplied(Work):
    """``tiered apply`` of advice."""

    steps: list[AdvisedStep]


def _apply_steps(session: Session, saved: SavedPlan, output: str) -> int:
    from tiered.cost.advice_applying import apply_advice

    with stop_signals() as stop, session.manager() as manager, open_bucket(session, None, {}) as bucket:

        def target_of(storage_class: str) -> ObjectStore:
            return open_target(
                session, bucket.url, bucket.options, storage_class=storage_class, rate=None, is_configured=True
            )

        states = apply_advice(
            manager,
            saved,
            bucket.store,
            now_ms=now_ms,
            keys=bucket.keys,
            target_of=target_of,
            should_stop=lambda: stop.is_set,
        )
    _show_steps(states, output, dry_run=False)
    if stop.is_set:
        session.say("interrupted; finished steps stay, apply the file again to resume")
        return stopped_code(stop)
    if not all(each.is_done for each in states):
        session.say(
            "some segments could not be moved yet: apply the file again, after the grace period if "
            "there are many pending deletes"
        )
        return Exit.FINDINGS
    return Exit.DONE


def _show_steps(states: Sequence[StepState], output: str, *, dry_run: bool) -> None:
    rows = [AdvisedStep.of(each, each.step, requests=each.step.puts + each.step.gets) for each in states]
    print_result(AdviceApplied(dry_run=dry_run, steps=rows), output)
