"""``tiered cost``: the monthly cost of topics by kind, and the prices behind it."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click

from tiered.cli.arguments import Number
from tiered.cli.cost.cost_simulate import rate_option, report_estimates, simulate
from tiered.cli.errors import Exit, unread_code
from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes, format_dollars

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from tiered.cost.topic_cost import CostReport


@click.group("cost")
def cost() -> None:
    """What the bucket and the disk cost, what they would cost, and what would make them cheaper."""


@cost.command("show")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@output_option()
@click.pass_obj
def show(session: Session, topics: tuple[str, ...], output: str) -> int:
    """Dollars a month for each topic, by kind, from its segments and from the requests that were metered.

    DOUBLE is the part of DISK that is in the bucket as well; IDLE what a month without appends and reads costs.
    A figure that could not be read is a dash, null in JSON; then the exit code is 6 or 10.
    """
    from tiered.cost.topic_cost import cost_report

    with session.manager(read_only=True, is_brief=True) as manager:
        report = cost_report(manager, now_ms(), topics or None)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
    rows = report.rows()
    if output == "table" and len(rows) > 1:
        rows = [*rows, _sum(rows)]
    emit("topics", rows, _COLUMNS, output, **report_facts(report))
    session.report_problems({**problems, **report.all_unread})
    for each in report.bills:
        if each.shared_bytes:
            size = format_bytes(each.shared_bytes)
            session.say(
                f"{each.topic}: {size} of it were its source's when it was forked; what both have is on both bills"
            )
    session.say(_words(report))
    return unread_code(report.all_unread.values())


@cost.command("prices")
@click.pass_obj
def prices(session: Session) -> None:
    """The prices that hold here, as JSON: the built-in ones with those of `cost.prices` over them.

    Kept in a file and named by that setting, single numbers of it can be changed.
    """
    import json

    from tiered.config.price_file import configured_prices, price_rows

    click.echo(json.dumps(price_rows(configured_prices(session.config())), indent=2))


@cost.command("advise")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--least", type=Number(), default=0.01, show_default=True, help="Dollars a month that it has to save.")
@click.option("--out", metavar="FILE", type=click.Path(), help="Keep the advice in a file, for 'tiered apply'.")
@rate_option
@output_option()
@click.pass_obj
def advise(
    session: Session, topics: tuple[str, ...], least: float, out: str | None, rate: tuple[str, ...], output: str
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
    facts = {"prices": price_facts(found.prices), "unread": unread_rows(found.unread)}
    emit("advice", found.rows(), _ADVICE_COLUMNS, output, **facts)
    session.report_problems(problems)
    report_estimates(found.measured)
    for of in found.measured:
        session.say(f"{of.topic}: {'; '.join(of.basis)}")
    for each in found.advice if out is None else ():
        session.say(f"next: {each.command}")
    if out is not None and any(each.move is not None for each in found.advice) and not _has_classes(session):
        session.say("moves are not in the file: storage classes are S3's")
    if out is not None:
        session.say(f"saved {out}; next: tiered apply {out} --dry-run")
    if not found.advice:
        session.say("no advice" + (" for the others" if found.unread else ""))
    return unread_code(found.unread.values()) or (Exit.FINDINGS if found.advice else Exit.DONE)


def _has_classes(session: Session) -> bool:
    return (session.config().remote_url or "").startswith("s3:")


cost.add_command(simulate)


def price_facts(table: PriceTable) -> dict[str, object]:
    """The JSON fields about prices next to the figures."""
    return {"as_of": table.as_of, "region": table.region}


def report_facts(report: CostReport) -> dict[str, object]:
    """The JSON fields next to the rows."""
    from tiered.status.unknown_figures import unread_rows

    return {
        "prices": price_facts(report.prices),
        "dollars_per_month": report.total,
        "metered_since_ms": report.since_ms,
        "rate_since_ms": report.rate_since_ms,
        "unread": unread_rows(report.all_unread),
    }


def _sum(rows: list[dict[str, object]]) -> dict[str, object]:
    names = [column.name for column in _COLUMNS if column.title is not None and column.name != "topic"]
    return {"topic": "total", **{name: _total([row[name] for row in rows]) for name in names}}


def _total(values: list[object]) -> float | None:
    """The sum; None if a value is unknown."""
    return None if None in values else sum(float(str(value)) for value in values)


def _words(report: CostReport) -> str:
    table = report.prices
    when = "no request was metered yet"
    if report.rate_since_ms is not None:
        day = datetime.datetime.fromtimestamp(report.rate_since_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
        days = max(0, report.upto_ms - report.rate_since_ms) / 86_400_000
        when = f"requests metered since {day} ({days:.1f} days), a month of 30 days"
    return f"dollars a month; {table.region}, prices of {table.as_of}; {when}"


def _dollars(value: object) -> str:
    return format_dollars(float(str(value)))


def _bytes(value: object) -> str:
    return format_bytes(round(float(str(value))))


def _months(value: object) -> str:
    return f"{float(str(value)):.1f}"


_ADVICE_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("change", "CHANGE"),
    Column("size_bytes", "BYTES", _bytes, is_number=True),
    Column("saved_dollars", "SAVES/MONTH", _dollars, is_number=True),
    Column("once_dollars", "ONCE", _dollars, is_number=True),
    Column("payback_months", "MONTHS", _months, is_number=True),
    Column("reason", "WHY"),
    Column("segments"),
    Column("command"),
)
_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("remote_bytes", "STORED", _bytes, is_number=True),
    Column("storage_dollars", "STORAGE", _dollars, is_number=True),
    Column("index_dollars"),
    Column("waiting_dollars", "WAITING", _dollars, is_number=True),
    Column("requests_dollars", "REQUESTS", _dollars, is_number=True),
    Column("retrieval_dollars"),
    Column("disk_dollars", "DISK", _dollars, is_number=True),
    Column("dollars_per_month", "$/MONTH", _dollars, is_number=True),
    Column("double_storage_dollars", "DOUBLE", _dollars, is_number=True),
    Column("idle_dollars", "IDLE", _dollars, is_number=True),
    Column("segments"),
    Column("local_bytes"),
    Column("double_bytes"),
    Column("shared_bytes"),
    *(
        Column(f"{name}_per_month")
        for name in ("puts", "gets", "lists", "bytes_in", "bytes_out", "data_puts", "data_gets")
    ),
    Column("data_bytes_in_per_month"),
    Column("data_bytes_out_per_month"),
    Column("metered_months"),
)
