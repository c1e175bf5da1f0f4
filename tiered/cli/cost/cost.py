"""``tiered cost``: the monthly cost of topics by kind, and the prices behind it."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.arguments import Number
from tiered.cli.cost.cost_simulate import RATE, report_estimates, simulate
from tiered.cli.errors import Exit, unread_code
from tiered.cli.options import OUTPUT, TOPICS, command, option
from tiered.cli.render import Result, Struct, columns_of, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.price_file import PricesUsed
from tiered.config.units import format_bytes, format_dollars
from tiered.node.problem_groups import UnreadPartitions

if TYPE_CHECKING:
    from tiered.cost.topic_cost import CostReport


class TopicCost(Struct):
    """A topic's bill: dollars a month by kind, and the figures behind it. Null: a tier could not be read."""

    topic: Annotated[str, text("TOPIC")]
    remote_bytes: Annotated[int | None, number("STORED", format_bytes)]
    storage_dollars: Annotated[float | None, number("STORAGE", format_dollars)]
    index_dollars: float | None
    waiting_dollars: Annotated[float | None, number("PENDING", format_dollars)]
    requests_dollars: Annotated[float, number("REQUESTS", format_dollars)]
    retrieval_dollars: float | None
    disk_dollars: Annotated[float | None, number("DISK", format_dollars)]
    dollars_per_month: Annotated[float | None, number("$/MONTH", format_dollars)]
    double_storage_dollars: Annotated[float | None, number("IN BOTH", format_dollars)]
    idle_dollars: Annotated[float | None, number("IF IDLE", format_dollars)]
    segments: int | None
    local_bytes: int | None
    double_bytes: int | None
    shared_bytes: int | None
    puts_per_month: int
    gets_per_month: int
    lists_per_month: int
    bytes_in_per_month: int
    bytes_out_per_month: int
    data_puts_per_month: int
    data_gets_per_month: int
    data_bytes_in_per_month: int
    data_bytes_out_per_month: int
    metered_months: float


class CostShow(Result):
    """``tiered cost show``."""

    prices: PricesUsed
    dollars_per_month: float | None
    metered_since_ms: int | None
    rate_since_ms: int | None
    unread: list[UnreadPartitions]
    topics: list[TopicCost]


class Advice(Struct):
    """One piece of advice; `segments` 0 for a setting."""

    topic: Annotated[str, text("TOPIC")]
    change: Annotated[str, text("CHANGE")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    saved_dollars: Annotated[float, number("SAVES/MONTH", format_dollars)]
    once_dollars: Annotated[float, number("ONE-TIME", format_dollars)]
    payback_months: Annotated[float | None, number("PAYBACK MONTHS", "{:.1f}".format)]
    reason: Annotated[str, text("REASON")]
    segments: int
    command: str


class CostAdvise(Result):
    """``tiered cost advise``."""

    prices: PricesUsed
    unread: list[UnreadPartitions]
    advice: list[Advice]


@click.group("cost")
def cost() -> None:
    """What the bucket and the disk cost, what they would cost, and what would make them cheaper."""


@command("show", cost)
def show(session: Session, topics: tuple[str, ...] = TOPICS, output: str = OUTPUT) -> int:
    """Dollars a month for each topic, by kind, from its segments and from the requests that were metered.

    DOUBLE is the part of DISK that is in the bucket as well; IDLE what a month without appends and reads costs.
    A figure that could not be read is a dash, null in JSON; then the exit code is 6 or 10.
    """
    from tiered.cost.topic_cost import cost_report
    from tiered.status.unknown_figures import unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        report = cost_report(manager, now_ms(), topics or None)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
    rows = [TopicCost.of_fields(each) for each in report.rows()]
    if output == "table" and len(rows) > 1:
        rows = [*rows, _sum(rows)]
    print_result(
        CostShow(
            PricesUsed.of(report.prices),
            report.total,
            report.since_ms,
            report.rate_since_ms,
            unread_rows(report.all_unread),
            rows,
        ),
        output,
    )
    session.report_problems({**problems, **report.all_unread})
    for each in report.bills:
        if each.shared_bytes:
            size = format_bytes(each.shared_bytes)
            session.say(
                f"{each.topic}: {size} of it belong to the source of the fork; shared objects are on both bills"
            )
    session.say(_words(report))
    return unread_code(report.all_unread.values())


@command("prices", cost)
def prices(session: Session) -> None:
    """The prices that hold here, as JSON: the built-in ones with those of `cost.prices` over them.

    Kept in a file and named by that setting, single numbers of it can be changed.
    """
    import json

    from tiered.config.price_file import configured_prices, price_rows

    click.echo(json.dumps(price_rows(configured_prices(session.config())), indent=2))


@command("advise", cost)
def advise(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    least: float = option(
        "--least", "Show advice that saves at least these dollars a month.", type=Number(), default=0.01
    ),
    out: str | None = option("--out FILE", "Save the advice to a file, for 'tiered apply'.", type=click.Path()),
    rate: tuple[str, ...] = RATE,
    output: str = OUTPUT,
) -> int:
    """What would make the bill smaller: settings, and segments to move to another storage class. Changes nothing."""
    from tiered.config.user_files import check_target
    from tiered.cost.advice_file import WRITING, write_advice
    from tiered.cost.arrival_rate import read_rates
    from tiered.cost.cost_advising import cost_advice
    from tiered.status.unknown_figures import unread_rows

    rates = read_rates(rate)
    if out is not None:
        check_target(out, WRITING)
    with session.manager(read_only=True, is_brief=True) as manager:
        at_ms = now_ms()
        found = cost_advice(manager, at_ms, topics or None, least_dollars=least, rates=rates)
        if out is not None:
            from tiered.cost.advice_applying import save_advice

            write_advice(save_advice(manager, found, at_ms, has_classes=_has_classes(session)), out)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
    advice = [Advice.of_fields(each) for each in found.rows()]
    print_result(CostAdvise(PricesUsed.of(found.prices), unread_rows(found.unread), advice), output)
    session.report_problems(problems)
    report_estimates(found.measured)
    for of in found.measured:
        session.say(f"{of.topic}: {'; '.join(of.basis)}")
    for each in found.advice if out is None else ():
        session.say(f"next: {each.command}")
    if out is not None and any(each.move is not None for each in found.advice) and not _has_classes(session):
        session.say("moves are not in the file: storage classes exist on S3 only")
    if out is not None:
        session.say(f"saved {out}; next: tiered apply {out} --dry-run")
    if not found.advice:
        session.say("no advice" + (" for the other topics" if found.unread else ""))
    return unread_code(found.unread.values()) or (Exit.FINDINGS if found.advice else Exit.DONE)


def _has_classes(session: Session) -> bool:
    return (session.config().remote_url or "").startswith("s3:")


cost.add_command(simulate)


def _sum(rows: list[TopicCost]) -> TopicCost:
    """Return the row of sums; None if a value is unknown."""
    values = {each.name: [getattr(row, each.name) for row in rows] for each in columns_of(TopicCost)[1:]}
    sums = {name: None if None in some else sum(some) for name, some in values.items()}
    return TopicCost.of(None, topic="total", **sums)


def _words(report: CostReport) -> str:
    table = report.prices
    when = "no request was metered yet"
    if report.rate_since_ms is not None:
        day = datetime.datetime.fromtimestamp(report.rate_since_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
        days = max(0, report.upto_ms - report.rate_since_ms) / 86_400_000
        when = f"requests metered since {day} ({days:.1f} days), a month of 30 days"
    return f"dollars a month; {table.region}, prices of {table.as_of}; {when}"
