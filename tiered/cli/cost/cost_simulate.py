"""``tiered cost simulate``: the cost of topics under other settings, simulated from their own history."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.errors import unread_code
from tiered.cli.options import GROUP, OUTPUT, TOPICS, command, option
from tiered.cli.render import Column, Result, Struct, columns_of, number, print_result, write_lines
from tiered.cli.session import Session, now_ms
from tiered.config.price_file import PricesUsed
from tiered.config.units import format_bytes, format_dollars, parse_bytes, parse_duration
from tiered.node.problem_groups import UnreadPartitions

if TYPE_CHECKING:
    from tiered.cost.cost_history import Measured
    from tiered.cost.cost_simulation import CostSimulation

STEPS = 6  # of a range such as 1d..365d
_WIDTH = 100
_WRITING = "cannot write the page"


RATE = option("--rate [TOPIC=]RATE", "Set the arrival rate, as orders=20GiB/d or 10MiB/s; default: measured.")


def report_estimates(measured: Iterable[Measured]) -> None:
    """Print on stderr, even with -q, the topics without figures, and the reason."""
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
    part_bytes: int | None
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
    """The values of each setting to simulate, as typed; None for the value as it is."""

    retention: str | None = option("--retention TIMES", "Set retentions, as 7d,30d,90d or 1d..365d; -1 for no limit.")
    local: str | None = option("--local TIMES", "Set local retentions, as 1h,1d.")
    segment: str | None = option("--segment SIZES", "Set segment sizes, as 64MiB,256MiB,1GiB or 64MiB..1GiB.")
    part: str | None = option("--part SIZES", "Set part sizes of uploads, as 8MiB,16MiB.")
    codec: str | None = option("--codec CODECS", "Set the compression in the bucket: none,zstd.")
    storage_class: str | None = option(
        "--class CLASSES", "Set storage classes: standard,ia,onezone,gir,it,express or the names of S3."
    )
    reads: str | None = option("--reads SHARES", "Set the share of the data that is read in a month, as 0,0.1,1.")


@command("simulate")
def simulate(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    axes: _Axes = GROUP,
    rate: tuple[str, ...] = RATE,
    chart: bool = option("--chart", "Print bars instead of the table."),
    page: str | None = option("--html FILE", "Also write a self-contained HTML page.", type=click.Path()),
    output: str = OUTPUT,
) -> int:
    """Dollars a month under other settings: every combination of the values given, or single changes without any.

    Rates, compaction and compression are measured on the topics' own segments, reads on the metered requests.
    """
    from tiered.config.user_files import check_target
    from tiered.cost.arrival_rate import read_rates
    from tiered.cost.cost_simulation import simulate_costs
    from tiered.status.unknown_figures import unread_partitions, unread_rows

    values, rates = read_axes(asdict(axes)), read_rates(rate)
    if page is not None:
        check_target(page, _WRITING)
    with session.manager(read_only=True, is_brief=True) as manager:
        simulation = simulate_costs(manager, now_ms(), values or None, topics or None, rates=rates)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
        unread = unread_partitions(manager, topics or None)
    if page is not None:
        _write_page(page, simulation)
    if chart:
        from tiered.cost.cost_chart import chart_lines

        write_lines(chart_lines(simulation, _width()))
    else:
        columns = (_change(simulation), *columns_of(CostVariant))
        print_result(_result(simulation, unread_rows(unread)), output, columns=columns)
    session.report_problems(problems)
    report_estimates(simulation.measured)
    session.say("\n".join(_words(simulation)))
    if page is not None:
        session.say(f"page written: {page}")
    return unread_code(unread.values())


def read_axes(asked: dict[str, str | None]) -> dict[str, list[int | float | str]]:
    """Return the given options as values by fields of `policies.cost.scenarios.Scenario`. Raises InvalidRequest."""
    from tiered.cost.cost_simulation import CLASS_NAMES

    def of_class(text: str) -> str:
        return CLASS_NAMES.get(text.lower(), text.upper())

    readers: dict[str, tuple[str, Callable[[str], int | float | str | None]]] = {
        "retention": ("retention_ms", parse_duration),
        "local": ("local_retention_ms", parse_duration),
        "segment": ("segment_bytes", parse_bytes),
        "part": ("part_bytes", parse_bytes),
        "codec": ("compression", str.lower),
        "storage_class": ("storage_class", of_class),
        "reads": ("read_share", _share),
    }
    return {
        field: _values(option, str(asked[option]), read)
        for option, (field, read) in readers.items()
        if asked.get(option) is not None
    }


def _values(option: str, text: str, read: Callable[[str], int | float | str | None]) -> list[int | float | str]:
    found: list[int | float | str] = []
    for part in text.split(","):
        low, dots, high = part.strip().partition("..")
        first, last = read(low), read(high) if dots else None
        if first is None or (dots and not (isinstance(first, int) and isinstance(last, int) and 0 < first < last)):
            name = "class" if option == "storage_class" else option
            needs = ", a time with a unit such as 7d or 12h" if read is parse_duration else ""
            raise InvalidRequest(f"invalid --{name}, it is neither a value nor a range{needs}", text=repr(part))
        found += _steps(first, last) if isinstance(first, int) and isinstance(last, int) else [first]
    return found


def _steps(low: int, high: int) -> list[int | float | str]:
    """Return geometric steps from one value to the other."""
    return [round(low * (high / low) ** (step / (STEPS - 1))) for step in range(STEPS)]


def _share(text: str) -> float | None:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def _change(simulation: CostSimulation) -> Column:
    """Return the first column of the table: the changes of a variant in short."""
    from tiered.cost.cost_simulation import shown

    costs = (simulation.today, *simulation.found)
    short = {shown(each.variant): shown(each.variant, is_short=True) for each in costs}
    return Column("", "CHANGE", of=lambda row: short.get(row.changes, row.changes))


def _width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH


def _write_page(path: str, simulation: CostSimulation) -> None:
    from tiered.config.user_files import write_given
    from tiered.cost.cost_chart import cost_page

    write_given(path, cost_page(simulation).encode(), _WRITING)


def _words(simulation: CostSimulation) -> list[str]:
    from policies.cost.workload import OUTSIDE
    from tiered.cost.cost_simulation import shown

    lines = [f"{each.topic}: {'; '.join(each.basis)}" for each in simulation.measured]
    saving = [(each, dollars) for each, dollars in simulation.sensitivities if dollars > 0][:2]
    for each, dollars in saving:
        lines.append(f"change: {shown(each)} saves {format_dollars(dollars)} USD/month")
    if not saving:
        lines.append("none of the single changes saves money")
    today = simulation.today
    lines.append(
        f"current: {format_dollars(today.total)} USD/month, {format_dollars(today.double)} of it "
        f"for bytes in both tiers, {format_dollars(today.idle)} when idle"
    )
    lines += [f"break-even: {_line(each)}" for each in simulation.break_evens]
    table = simulation.prices
    lines.append(
        f"{table.region}, prices of {table.as_of}; a month of 30 days, the steady state of each "
        "setting; simulated, not metered: tiered cost show has the current costs"
    )
    lines.append(f"not simulated: {'; '.join(OUTSIDE)}")
    return lines


def _line(each: object) -> str:
    from policies.cost.scenarios import BreakEven
    from tiered.cost.cost_chart import number

    assert isinstance(each, BreakEven)
    return f"{each.what} {number(each.limit, each.unit)}, current {number(each.value, each.unit)}: {each.verdict}"


def _result(simulation: CostSimulation, unread: list[UnreadPartitions]) -> CostSimulate:
    from policies.cost.workload import OUTSIDE
    from tiered.cost.cost_simulation import shown

    breaks = simulation.break_evens
    return CostSimulate(
        prices=PricesUsed.of(simulation.prices),
        levers=[Lever(shown(each), dollars) for each, dollars in simulation.sensitivities],
        break_evens=[BreakEvenLine.of(each, value=None if each.value == inf else each.value) for each in breaks],
        measured=[Basis.of(each, basis=list(each.basis)) for each in simulation.measured],
        outside=list(OUTSIDE),
        unread=unread,
        variants=[CostVariant.of_fields(each) for each in simulation.rows()],
    )
