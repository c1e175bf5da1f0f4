"""Results on stdout: a table, JSON, JSON lines or CSV.

A command prints a `Result`, whose last field is the list of its rows. The struct is also the JSON schema; within one
version fields are only added. JSON and CSV have every field with raw numbers, the table the annotated fields with human
units.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, repeat, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import click
import msgspec

from tiered.cli.options import RAW

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
ROWS_AT_ONCE = 1000
FOLDED_MIN = 20  # cells; a narrower column of text is hard to read
Row = Mapping[str, object]
_CONTROL = dict.fromkeys(b"\a\b\v\f\r")  # as rich strips them from a cell


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field `name` of a row, or with `of` a value made from the whole row."""

    name: str
    title: str
    show: Callable[..., str] = str
    is_number: bool = False
    of: Callable[[Any], object] | None = None


def text(title: str, show: Callable[..., str] = str, *, of: Callable[[Any], object] | None = None) -> Column:
    """Annotate a field that the table shows; with `of` the cell is made from the whole row.

    A lambda in an annotation cannot use names of its module, because the annotation is evaluated late.
    """
    return Column("", title, show, of=of)


def number(title: str, show: Callable[..., str] = str, *, of: Callable[[Any], object] | None = None) -> Column:
    """Annotate a field that the table shows aligned to the right."""
    return Column("", title, show, is_number=True, of=of)


class Struct(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a result: an object with these fields and no other."""

    @classmethod
    def of(cls, *sources: object, **values: object) -> Self:
        """Take each field from `values`, else from the first source with an attribute of its name.

        A source of None has None for every field. A field without source and default raises TypeError.
        """
        for name in cls.__struct_fields__:
            if name not in values:
                for source in sources:
                    if source is None or hasattr(source, name):
                        values[name] = getattr(source, name, None)
                        break
        return cls(**values)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Take each field from a flat row, and ignore other fields of the row."""
        return cls(**{name: fields[name] for name in cls.__struct_fields__})


class PartitionRow(Struct):
    """A row about a partition."""

    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]


class Result(Struct, tag_field="schema_version", tag=SCHEMA_VERSION):
    """The output of a command. The last field is the list of rows."""


class Work(Result):
    """Work that was done; a dry run only plans it."""

    dry_run: bool


class PricedWork(Work):
    """Work and its price; a dry run only plans it."""

    dollars: float


class ProgressEvent(Result):
    """A line on stderr under ``--progress json``: the progress of a command, or a message.

    `done` and `total` only grow; the last event of kind `progress` has `is_last`.
    """

    kind: Literal["progress", "message"]
    operation: str
    done: int
    total: int
    unit: str
    rate_per_second: float
    eta_ms: int | None
    waits_for: str | None
    is_last: bool
    message: str | None


def print_result(
    result: msgspec.Struct, output: str, *, columns: Sequence[Column] | None = None, rows: Iterable[msgspec.Struct] = ()
) -> None:
    """Print `result`, then `rows` as they arrive. `columns` replaces the annotated columns of the table."""
    field = msgspec.structs.fields(type(result))[-1]
    row_type = get_args(field.type)[0]
    if output == "table":
        print_table(chain(getattr(result, field.name), rows), columns_of(row_type) if columns is None else columns)
        return
    facts = msgspec.to_builtins(result)
    what, listed = facts.popitem()  # the last field that is set
    names = row_type.__struct_encode_fields__ if output == "csv" else ()
    _write_rows(what, chain(listed, map(msgspec.to_builtins, rows)), names, output, facts)


def print_fields(
    what: str, rows: Iterable[Mapping[str, object]], names: Sequence[str], output: str, **facts: object
) -> None:
    """Print the fields `names` of a stored object's rows, as `print_result` does."""
    named = ({name: row.get(name) for name in names} for row in rows)
    if output == "table":
        every = list(named)
        numbers = {name: all(isinstance(row[name], int) for row in every) for name in names}
        print_table(every, [Column(name, name, is_number=numbers[name]) for name in names])
        return
    _write_rows(what, named, names, output, facts)


@cache
def columns_of(row: type[msgspec.Struct]) -> tuple[Column, ...]:
    return tuple(
        replace(each, name=field.name)
        for field in msgspec.structs.fields(row)
        for each in getattr(field.type, "__metadata__", ())
        if isinstance(each, Column)
    )


def write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        _write(line)


def _write_rows(what: str, rows: Iterable[Row], names: Sequence[str], output: str, facts: Mapping[str, object]) -> None:
    match output:
        case "json":
            _write_json(what, rows, facts)
        case "jsonl":
            write_lines(map(_json, rows))
        case _:
            _write_csv(names, rows)


def _write_json(what: str, rows: Iterable[Mapping[str, object]], facts: Mapping[str, object]) -> None:
    rest = iter(rows)
    first = next(rest, None)
    opening = _json({"schema_version": SCHEMA_VERSION, **facts, what: []})
    sys.stdout.write(opening[: -len("]}")])
    for separator, row in zip(chain([""], repeat(", ")), chain([] if first is None else [first], rest), strict=False):
        sys.stdout.write(separator + _json(row))
    _write("]}")


def _json(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")


def _write_csv(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_cell(value) for name, value in row.items()})


def _csv_cell(value: object) -> object:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return pairs(value) if isinstance(value, dict) else value


def pairs(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def print_table(rows: Iterable[Row | msgspec.Struct], columns: Sequence[Column]) -> None:
    """Print rows as a table: as wide as the terminal, elsewhere as wide as needed, without escape codes.

    Rows that do not fit on a terminal are shown as lines of title and value. To bound memory, ROWS_AT_ONCE rows are
    laid out together; off a terminal later groups are at least as wide as earlier ones.
    """
    is_terminal, titles = sys.stdout.isatty(), [column.title for column in columns]
    widths, rest, is_first = [0] * len(columns), iter(rows), True
    while (block := [_cells(row, columns) for row in islice(rest, ROWS_AT_ONCE)]) or is_first:
        if is_terminal:
            _write_rich(block, columns)
        else:
            widths = [max(known, *map(_width, cells)) for known, *cells in zip(widths, titles, *block, strict=True)]
            for cells in [titles, *block] if is_first else block:
                write_lines(_plain_lines(cells, columns, widths))
        is_first = False


def _width(text: str) -> int:
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _plain_lines(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> Iterator[str]:
    """Format like rich, which takes 0.1 s for a hundred lines."""
    for parts in zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""):
        padded = []
        for part, column, width in zip(parts, columns, widths, strict=True):
            text = part.rstrip() if column.is_number else part
            blank = " " * (width - _width(text))
            padded.append(blank + text if column.is_number else text + blank)
        yield "  ".join(padded).rstrip()


def _write_rich(block: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, markup=False)
    fitting = _fitting(block, columns, console.width)
    if fitting is None:
        _write_records(console, block, columns)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, fitting, strict=True):
        justify: Literal["right", "left"] = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", min_width=width, max_width=width)
    for cells in block:
        table.add_row(*map(Text, cells))
    console.print(table)


def _fitting(block: Sequence[Sequence[str]], columns: Sequence[Column], room: int) -> list[int] | None:
    """Return the column widths on a terminal of `room`, None if they do not fit; only long texts wrap."""
    lines = [[column.title for column in columns], *block]
    widths = [max(_width(cells[at]) for cells in lines) for at in range(len(columns))]
    surplus = sum(widths) + 2 * (len(widths) - 1) - room
    while surplus > 0:
        widest = max(range(len(widths)), key=lambda at: (not columns[at].is_number, widths[at]))
        if columns[widest].is_number or widths[widest] <= FOLDED_MIN:
            return None
        widths[widest] -= 1
        surplus -= 1
    return widths


def _write_records(console: Console, block: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    titles = [Text(column.title, style="bold") for column in columns]
    for number, cells in enumerate(block):
        if number:
            _write("")
        record = Table(box=None, pad_edge=False, show_header=False)
        record.add_column(no_wrap=True)
        record.add_column(overflow="fold")
        for title, cell in zip(titles, cells, strict=True):
            record.add_row(title, Text(cell))
        console.print(record)
    if not block:
        _write("  ".join(column.title for column in columns))


def _cells(row: Row | msgspec.Struct, columns: Sequence[Column]) -> list[str]:
    ctx, shown = click.get_current_context(silent=True), []
    is_raw = ctx is not None and ctx.meta.get(RAW)
    for column in columns:
        if column.of is not None:
            value = column.of(row)
        else:
            value = row.get(column.name) if isinstance(row, Mapping) else getattr(row, column.name)
        is_exact = is_raw and isinstance(value, int | float) and not isinstance(value, bool)
        text = "-" if value is None else str(value) if is_exact else column.show(value)
        shown.append(text if text.isprintable() else text.expandtabs().translate(_CONTROL))
    return shown
