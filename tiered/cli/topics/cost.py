"""``tiered cost``: the monthly cost of topics by kind, the prices behind it, simulation and advice."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from policies.cost.workload import OUTSIDE
from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, OUTPUT, TOPICS, Number, command, option
from tiered.cli.render import Column, Result, Struct, columns_of, number, print_result, text, write_lines
from tiered.cli.session import Session, now_ms, topic_problems
from tiered.config.price_file import PricesUsed, configured_prices, price_rows
from tiered.config.units import format_bytes, format_dollars, parse_duration
from tiered.config.user_files import check_target, write_given
from tiered.node.problems import UnreadPartitions, unread_rows

if TYPE_CHECKING:
    from tiered.cost.cost_history import Measured
    from tiered.cost.cost_simulation import CostSimulation
    from tiered.cost.topic_cost import CostReport

STEPS = 6  # of a range such as 1d..365d
_WIDTH = 100
_WRITING = "cannot write the page"
RATE = option("--rate [TOPIC=]RATE", "Set the arrival rate, as orders=20GiB/d or 10MiB/s; default: measured.")


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


class CostShow(Result):
    """``tiered cost show``."""

    prices: PricesUsed
    dollars_per_month: float | None
    metered_since_ms: int | None
    rate_since_ms: int | None
    unread: list[UnreadPartitions]
    topics: list[TopicCost]


class CostAdvise(Result):
    """``tiered cost advise``."""

    prices: PricesUsed
    unread: list[UnreadPartitions]
    advice: list[Advice]


@click.group("cost")
def cost() -> None:
    """Show the cost of the bucket and the disk, simulate other settings, and find savings."""


@command("show", cost, example="cost show orders")
def show(session: Session, topics: tuple[str, ...] = TOPICS, output: str = OUTPUT) -> int:
    """Show dollars a month for each topic, by kind, from its segments and the metered requests.

    DOUBLE is the part of DISK that is in the bucket too; IDLE is the cost of a month without appends and reads. An
    unknown figure is a dash, null in JSON; then the exit code is 6 or 10.
    """
    from tiered.cost.topic_cost import cost_report

    with session.manager(read_only=True, is_brief=True) as manager:
        report = cost_report(manager, now_ms(), topics or None)
        problems = topic_problems(manager, topics)
    rows = [TopicCost.of_fields(each) for each in report.rows()]
    if output == "table" and len(rows) > 1:
        values = {each.name: [getattr(row, each.name) for row in rows] for each in columns_of(TopicCost)[1:]}
        sums = {name: None if None in some else sum(some) for name, some in values.items()}
        rows.append(TopicCost.of(None, topic="total", **sums))
    prices, unread = PricesUsed.of(report.prices), unread_rows(report.all_unread)
    print_result(CostShow(prices, report.total, report.since_ms, report.rate_since_ms, unread, rows), output)
    code = session.report({**problems, **report.all_unread}, report.all_unread)
    for each in report.bills:
        if each.shared_bytes:
            shared = f"{format_bytes(each.shared_bytes)} of it belong to the source of the fork"
            session.say(f"{each.topic}: {shared}; shared objects are on both bills")
    session.say(_basis_line(report))
    return code


@command("prices", cost, example="cost prices")
def prices(session: Session) -> None:
    """Print the effective prices as JSON: the built-in prices, overridden by the file of `cost.prices`.

    To change single prices, save the output, edit it, and set `cost.prices` to the file.
    """
    click.echo(json.dumps(price_rows(configured_prices(session.config())), indent=2))


@command("advise", cost, example="cost advise --out advice.json")
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
    """Show changes that reduce the bill: settings, and segments to move to another storage class. Changes nothing."""
    from tiered.cost.cost_advising import cost_advice
    from tiered.cost.cost_history import read_rates
    from tiered.plans.saved_plan import WRITING, write_plan

    rates, has_classes = read_rates(rate), _has_classes(session)
    if out is not None:
        check_target(out, WRITING)
    with session.manager(read_only=True, is_brief=True) as manager:
        at_ms = now_ms()
        found = cost_advice(manager, at_ms, topics or None, least_dollars=least, rates=rates)
        if out is not None:
            from tiered.cost.advice_applying import save_advice

            write_plan(save_advice(manager, found, at_ms, has_classes=has_classes), out)
        problems = topic_problems(manager, topics)
    advice = [Advice.of_fields(each) for each in found.rows()]
    print_result(CostAdvise(PricesUsed.of(found.prices), unread_rows(found.unread), advice), output)
    code = session.report(problems, found.unread, Exit.FINDINGS if found.advice else Exit.DONE)
    report_estimates(found.measured)
    for of in found.measured:
        session.say(f"{of.topic}: {'; '.join(of.basis)}")
    if out is None:
        for each in found.advice:
            session.say(f"next: {each.command}")
    else:
        if any(each.move is not None for each in found.advice) and not has_classes:
            session.say("moves are not in the file: storage classes exist on S3 only")
        session.say(f"saved {out}; next: tiered apply {out} --dry-run")
    if not found.advice:
        session.say("no advice" + (" for the other topics" if found.unread else ""))
    return code


def _has_classes(session: Session) -> bool:
    return (session.config().remote_url or "").startswith("s3:")


def _basis_line(report: CostReport) -> str:
    since_ms, when = report.rate_since_ms, "no request was metered yet"
    if since_ms is not None:
        day = datetime.datetime.fromtimestamp(since_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
        days = max(0, report.upto_ms - since_ms) / 86_400_000
        when = f"requests metered since {day} ({days:.1f} days), a month of 30 days"
    return f"dollars a month; {report.prices.region}, prices of {report.prices.as_of}; {when}"


def report_estimates(measured: Iterable[Measured]) -> None:
    """Print the topics without figures and the reason on stderr, even with -q."""
    for each in measured:
        if each.warning is not None and not each.is_unread:  # the problem lines report it
            click.echo(f"warning: {each.warning}", err=True)


class Lever(Struct):
    """A single change and the dollars that it saves a month."""

    changes: str
    saved_dollars: float


class BreakEvenLine(Struct):
    """A break-even; `value` null is without end."""

    what: str
    value: float | None
    limit: float | None
    unit: str
    verdict: str


class Basis(Struct):
    """The basis of a topic's figures; `warning` if it is too little for a forecast of a month."""

    topic: str
    basis: list[str]
    warning: str | None


class CostVariant(Struct):
    """Dollars and requests a month under some settings; null is as it is."""

    changes: str
    stored_bytes: Annotated[int, number("STORED", format_bytes)]
    storage_dollars: Annotated[float, number("STORAGE", format_dollars)]
    requests_dollars: Annotated[float, number("REQUESTS", format_dollars)]
    retrieval_dollars: float
    early_deletion_dollars: float
    disk_dollars: float
    dollars_per_month: Annotated[float, number("$/MONTH", format_dollars)]
    saved_dollars: Annotated[float, number("SAVED", format_dollars)]
    retention_ms: int | None
    local_retention_ms: int | None
    segment_bytes: int | None
    compression: str | None
    storage_class: str | None
    read_share: float | None
    index_dollars: float
    waiting_dollars: float
    double_storage_dollars: float
    idle_dollars: float
    local_bytes: int
    objects: int
    puts_per_month: int
    posts_per_month: int
    gets_per_month: int
    heads_per_month: int
    lists_per_month: int
    deletes_per_month: int
    bytes_in_per_month: int
    bytes_out_per_month: int


class CostSimulate(Result):
    """``tiered cost simulate``; the first variant is the settings as they are, in their steady state.

    `outside` lists the costs that no simulation counts.
    """

    prices: PricesUsed
    levers: list[Lever]
    break_evens: list[BreakEvenLine]
    measured: list[Basis]
    outside: list[str]
    unread: list[UnreadPartitions]
    variants: list[CostVariant]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """The values of each setting to simulate; None for the current value."""

    retention: str | None = option("--retention TIMES", "Set retentions, as 7d,30d,90d or 1d..365d; -1 for no limit.")
    local: str | None = option("--local TIMES", "Set local retentions, as 1h,1d.")
    segment: str | None = option("--segment SIZES", "Set segment sizes, as 64MiB,256MiB,1GiB or 64MiB..1GiB.")
    codec: str | None = option("--codec CODECS", "Set the compression in the bucket: none,zstd.")
    storage_class: str | None = option(
        "--class CLASSES", "Set storage classes: standard,ia,onezone,gir,it,express or the names of S3."
    )
    reads: str | None = option("--reads SHARES", "Set the share of the data that is read in a month, as 0,0.1,1.")


@command("simulate", cost, example="cost simulate orders --retention 7d,30d --local 1h,6h")
def simulate(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    axes: _Axes = GROUP,
    rate: tuple[str, ...] = RATE,
    chart: bool = option("--chart", "Print bars instead of the table."),
    page: str | None = option("--html FILE", "Also write a self-contained HTML page.", type=click.Path()),
    output: str = OUTPUT,
) -> int:
    """Simulate dollars a month under other settings: all combinations of the given values.

    Without values, each single change is simulated. Arrival rates, compaction and compression are measured on the
    topics' own segments, reads on the metered requests.
    """
    from tiered.cost.cost_history import read_rates
    from tiered.cost.cost_simulation import shown, simulate_costs
    from tiered.status.status_report import unread_partitions
    from tiered.web.pages.cost_page import chart_lines, cost_page

    values, rates = read_axes(asdict(axes)), read_rates(rate)
    if page is not None:
        check_target(page, _WRITING)
    with session.manager(read_only=True, is_brief=True) as manager:
        simulation = simulate_costs(manager, now_ms(), values or None, topics or None, rates=rates)
        problems = topic_problems(manager, topics)
        unread = unread_partitions(manager, topics or None)
    if page is not None:
        write_given(page, cost_page(simulation).encode(), _WRITING)
    if chart:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
        write_lines(chart_lines(simulation, width))
    else:
        costs = (simulation.today, *simulation.found)
        short = {shown(each.variant): shown(each.variant, is_short=True) for each in costs}
        columns = (Column("", "CHANGE", of=lambda row: short[row.changes]), *columns_of(CostVariant))
        print_result(_result(simulation, unread_rows(unread)), output, columns=columns)
    code = session.report(problems, unread)
    report_estimates(simulation.measured)
    session.say("\n".join(_simulation_lines(simulation)))
    if page is not None:
        session.say(f"page written: {page}")
    return code


def read_axes(typed: dict[str, str | None]) -> dict[str, list[int | float | str]]:
    """Return the given options as values by field of `Scenario`. Raises InvalidRequest."""
    from tiered.cost.cost_simulation import AXES

    given = {"class" if name == "storage_class" else name: text for name, text in typed.items()}
    return {
        field: _values(axis.option, text, axis.read)
        for field, axis in AXES.items()
        if (text := given.get(axis.option)) is not None
    }


def _values(option: str, text: str, read: Callable[[str], int | float | str | None]) -> list[int | float | str]:
    found: list[int | float | str] = []
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        first, last = read(low), read(high) if dots else None
        if first is None or (dots and not (isinstance(first, int) and isinstance(last, int) and 0 < first < last)):
            needs = ", a time with a unit such as 7d or 12h" if read is parse_duration else ""
            raise InvalidRequest(f"invalid --{option}, it is neither a value nor a range{needs}", text=repr(part))
        if isinstance(first, int) and isinstance(last, int):  # geometric steps
            found += [round(first * (last / first) ** (step / (STEPS - 1))) for step in range(STEPS)]
        else:
            found.append(first)
    return found


def _simulation_lines(simulation: CostSimulation) -> list[str]:
    from tiered.cost.cost_simulation import shown
    from tiered.web.pages.cost_page import number as number_text

    lines = [f"{each.topic}: {'; '.join(each.basis)}" for each in simulation.measured]
    saving = simulation.largest_sensitivities
    lines += [f"change: {shown(variant)} saves {format_dollars(dollars)} USD/month" for variant, dollars in saving]
    if not saving:
        lines.append("none of the single changes saves money")
    today = simulation.today
    lines.append(
        f"current: {format_dollars(today.total)} USD/month, {format_dollars(today.double)} of it "
        f"for bytes in both tiers, {format_dollars(today.idle)} when idle"
    )
    for each in simulation.break_evens:
        limit, value = number_text(each.limit, each.unit), number_text(each.value, each.unit)
        lines.append(f"break-even: {each.what} {limit}, current {value}: {each.verdict}")
    table = simulation.prices
    lines.append(
        f"{table.region}, prices of {table.as_of}; a month of 30 days, the steady state of each "
        "setting; simulated, not metered: tiered cost show has the current costs"
    )
    lines.append(f"not simulated: {'; '.join(OUTSIDE)}")
    return lines


def _result(simulation: CostSimulation, unread: list[UnreadPartitions]) -> CostSimulate:
    from tiered.cost.cost_simulation import shown

    return CostSimulate(
        prices=PricesUsed.of(simulation.prices),
        levers=[Lever(shown(each), dollars) for each, dollars in simulation.sensitivities],
        break_evens=[BreakEvenLine.of(each, value=each.known_value) for each in simulation.break_evens],
        measured=[Basis.of(each, basis=list(each.basis)) for each in simulation.measured],
        outside=list(OUTSIDE),
        unread=unread,
        variants=[CostVariant.of_fields(each) for each in simulation.rows()],
    )
