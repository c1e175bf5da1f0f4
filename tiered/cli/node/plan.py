"""``tiered plan``: the policies' decisions, with reasons, bytes and money. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import parse_moment
from tiered.cli.errors import unread_code
from tiered.cli.options import OUTPUT, TOPICS, command, option, settings_option
from tiered.cli.render import Column, Result, Struct, columns_of, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.price_file import PricesUsed
from tiered.config.units import DOLLARS_SHOWN, counted, format_bytes, format_dollars, format_ms
from tiered.node.problem_groups import UnreadPartitions
from tiered.status.deferral_rows import DeferredSegment

if TYPE_CHECKING:
    from tiered.plans.planning import PricedPlan


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


@command("plan")
def plan(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    summary: bool = option("--summary", "Print only counts, bytes and dollars by kind."),
    at: str | None = option("--at TIME", "Plan for a later time: +7d, a time, or a number of ms."),
    out: str | None = option("--out FILE", "Save the plan to a file, for 'tiered apply'.", type=click.Path()),
    settings: dict[str, str] = settings_option("Plan with this setting; may be repeated."),
    output: str = OUTPUT,
) -> int:
    """What a round of work would do, why, and what it costs: requests and dollars once, the bill before and after.

    Segments that are not copied, cleaned or dropped yet are listed on stderr with the reason and the time it ends.
    """
    from tiered.config.user_files import check_target
    from tiered.plans.plan_rows import decision_row, total_rows
    from tiered.plans.planning import priced_plan
    from tiered.plans.saved_plan import WRITING

    made_ms = now_ms()
    at_ms = made_ms if at is None else parse_moment(at, made_ms)
    if at_ms < made_ms:
        raise InvalidRequest("cannot plan for a past time: name a later one, such as +7d", at=at)
    if out is not None:
        check_target(out, WRITING)
    with session.manager(read_only=True, overrides=settings, is_brief=True) as manager:
        priced = priced_plan(manager, at_ms, topics or None)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
    if out is not None:
        _save(priced, out, made_ms, {**session.overrides, **settings})
    facts = _facts(priced, is_later=at is not None)
    if summary:
        totals = [PlannedTotal.of_fields(each) for each in total_rows(priced.cost.lines)]
        columns = (*_VERB, *columns_of(PlannedTotal))
        print_result(PlanSummary(**facts, totals=totals), output, columns=columns)
    else:
        decisions = [PlannedDecision.of_fields(decision_row(each)) for each in priced.cost.lines]
        columns = (*_VERB, *_WHERE, *columns_of(PlannedDecision))
        print_result(PlanShow(**facts, decisions=decisions), output, columns=columns)
    session.report_problems(problems)
    for line in (*_paused(priced), *_put_off(priced)):
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
    """Return the next command: `run` for the current settings, `apply` for a saved plan, if it can be applied."""
    if out is not None:
        later = ", for review only: a plan for a later time cannot be applied"
        return f"; saved {out}{later if is_later else f'; next: tiered apply {out}'}"
    if is_later:
        return ""
    return f"; next: {'the same with --out FILE, then tiered apply FILE' if is_what_if else 'tiered run --once'}"


def _save(priced: PricedPlan, path: str, made_ms: int, settings: dict[str, str]) -> None:
    from tiered.plans.saved_plan import save_plan, write_plan

    write_plan(save_plan(priced, made_ms=made_ms, settings=settings), path)


def _facts(priced: PricedPlan, *, is_later: bool) -> dict[str, Any]:
    """The JSON fields next to the rows; the moment of the plan if it is not now."""
    from tiered.status.deferral_rows import deferral_rows
    from tiered.status.unknown_figures import unread_rows

    prices = priced.prices
    return {
        "prices": PricesUsed.of(prices) if prices is not None else None,
        **priced.totals(),
        "at_ms": priced.plan.now_ms if is_later else None,
        "unread": unread_rows(priced.missing),
        "deferrals": deferral_rows(priced.plan.deferrals),
    }


def _paused(priced: PricedPlan) -> list[str]:
    """A line for each topic with paused uploads: the plan has none of them."""
    topics = {each.partition.topic: each.paused for each in priced.snapshots if each.paused is not None}
    found = []
    for name, pause in sorted(topics.items()):
        lasted = "" if pause.since_ms is None else f" for {format_ms(max(0, now_ms() - pause.since_ms) // 1000 * 1000)}"
        found.append(f"{name}: uploads paused{lasted}, so no upload is planned; next: tiered resume")
    return found


def _put_off(priced: PricedPlan) -> list[str]:
    """A line for each reason of deferrals; pauses and problems have their own lines."""
    from policies.deferrals import Code
    from tiered.status.deferral_rows import cause_line, causes

    deferral_causes = causes(priced.plan.deferrals, without=(Code.PAUSED, Code.REMOTE_UNKNOWN))
    return [cause_line(each, priced.plan.now_ms) for each in deferral_causes]


def _money(priced: PricedPlan) -> str:
    """The monthly cost of the bucket now and after, the one-time cost of requests, and the disk."""
    cost = priced.cost
    disk = f"disk {format_bytes(cost.now_disk_bytes)}, then {format_bytes(cost.then_disk_bytes)}"
    if priced.prices is None:
        return f"{disk}; dollars are not shown: the prices are unreadable"
    # For tiny amounts the share would only reflect manifests.
    is_seen = cost.now_dollars >= DOLLARS_SHOWN
    share = f" ({100 * (cost.then_dollars / cost.now_dollars - 1):+.1f} %)" if is_seen else ""
    now, then = format_dollars(cost.now_dollars), format_dollars(cost.then_dollars)
    verbs = ", ".join(
        f"{round(cost.sum_of(name)):,} {name[:-1]}" for name in ("puts", "gets", "lists") if cost.sum_of(name)
    )
    once = f"; {verbs or 'no request'} {format_dollars(cost.dollars)} USD"
    early = cost.sum_of("early_dollars")
    too_early = f", {format_dollars(early)} of it for minimum storage durations" if early else ""
    prices = f"{priced.prices.region}, prices of {priced.prices.as_of}"
    return f"now {now} USD/month, then {then}{share}{once}{too_early}; {disk} ({prices})"


def _verb(row: PlannedDecision | PlannedTotal) -> tuple[str, str]:
    from tiered.plans.plan_rows import VERBS

    return VERBS[row.decision]


_VERB = (Column("", "", of=lambda row: _verb(row)[0]), Column("", "WHAT", of=lambda row: _verb(row)[1]))
_WHERE = (Column("", "PARTITION", of=lambda row: f"{row.topic}/{row.partition}"),)
