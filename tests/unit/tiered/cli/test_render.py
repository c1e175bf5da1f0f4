"""Tables without a terminal: laid out by own code, which is faster, exactly as rich does it."""

from __future__ import annotations

import io
import random
import re
from types import SimpleNamespace
from typing import Annotated

import msgspec
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from local.names import TopicPartition
from tiered.cli import render
from tiered.cli.render import Column


@pytest.mark.parametrize("seed", range(10))
def test_plain_table_equals_the_output_of_rich(seed: int, capsys) -> None:
    rng = random.Random(seed)
    letters = "ab c-12.é\u4e2d\a\n"  # the Chinese letter is two cells wide
    for _ in range(30):
        columns = [
            Column(f"c{at}", rng.choice(["A", "LONG TITLE", "é"]), is_number=rng.random() < 0.5)
            for at in range(rng.randrange(1, 5))
        ]
        rows = [
            {column.name: "".join(rng.choices(letters, k=rng.randrange(9))) or None for column in columns}
            for _ in range(rng.randrange(4))
        ]
        render.print_table(rows, columns)
        assert capsys.readouterr().out == as_rich_does_it(rows, columns)


def as_rich_does_it(rows: list[dict[str, str | None]], columns: list[Column]) -> str:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if row[column.name] is None else str(row[column.name])) for column in columns))
    plain = io.StringIO()
    Console(file=plain, width=10_000, highlight=False, markup=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in plain.getvalue().splitlines())


def test_cell_with_a_line_break_takes_several_lines(capsys) -> None:
    render.print_table([{"a": "one\ntwo", "b": 1}], [Column("a", "A"), Column("b", "B", is_number=True)])
    assert capsys.readouterr().out == "A    B\none  1\ntwo\n"


COLUMNS = (Column("name", "NAME"), Column("size", "SIZE", is_number=True), Column("why", "WHAT WAS SEEN"))
ROWS = [
    {"name": "orders", "size": 12345, "why": "a reason of quite a few words that goes on"},
    {"name": "b", "size": 1},
]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            80,
            "NAME     SIZE  WHAT WAS SEEN\n"
            "orders  12345  a reason of quite a few words that goes on\n"
            "b           1  -\n",
        ),
        (
            40,
            "NAME     SIZE  WHAT WAS SEEN\norders  12345  a reason of quite a few\n"
            "               words that goes on\nb           1  -\n",
        ),
        (
            30,
            "NAME           orders\nSIZE           12345\nWHAT WAS SEEN  a reason of\n               quite a few\n"
            "               words that goes\n               on\n\n"
            "NAME           b\nSIZE           1\nWHAT WAS SEEN  -\n",
        ),
    ],
)
def test_table_on_a_terminal_never_breaks_a_heading_name_or_number(width: int, shown: str, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": str(width), "LINES": "20", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    render.print_table(ROWS, COLUMNS)
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert "".join(f"{line.rstrip()}\n" for line in lines) == shown


class Held(render.PartitionRow):
    size: Annotated[int | None, render.number("SIZE", "{} B".format)]
    labels: dict[str, str]
    names: list[str]
    is_late: Annotated[bool, render.text("LATE", of=lambda row: f"{row.topic}: late" if row.is_late else None)]


class Listed(render.Work):
    more_: int = msgspec.field(name="more")
    held: list[Held]


RESULT = Listed(dry_run=True, more_=2, held=[Held("a", 0, 7, {"x": "1", "y": "2"}, ["n", "m"], True)])
LATER = Held.of(TopicPartition("b", 1), None, labels={}, names=[], is_late=False)


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        (
            "json",
            '{"schema_version": 1, "dry_run": true, "more": 2, "held": '
            '[{"topic": "a", "partition": 0, "size": 7, "labels": {"x": "1", "y": "2"}, "names": ["n", "m"], '
            '"is_late": true}, {"topic": "b", "partition": 1, "size": null, "labels": {}, "names": [], '
            '"is_late": false}]}\n',
        ),
        (
            "jsonl",
            '{"topic": "a", "partition": 0, "size": 7, "labels": {"x": "1", "y": "2"}, "names": ["n", "m"], '
            '"is_late": true}\n'
            '{"topic": "b", "partition": 1, "size": null, "labels": {}, "names": [], "is_late": false}\n',
        ),
        ("csv", "topic,partition,size,labels,names,is_late\na,0,7,x=1 y=2,n m,True\nb,1,,,,False\n"),
        ("table", "TOPIC  PARTITION  SIZE  LATE\na              0   7 B  a: late\nb              1     -  -\n"),
    ],
)
def test_result_is_printed_in_each_format_from_its_struct(output: str, printed: str, capsys) -> None:
    render.print_result(RESULT, output, rows=iter([LATER]))
    assert capsys.readouterr().out == printed
    if output == "json":
        assert msgspec.json.decode(printed, type=Listed).held == [*RESULT.held, LATER]


def test_struct_takes_fields_from_values_then_sources_and_refuses_a_missing_one() -> None:
    one = Held.of(TopicPartition("t", 3), SimpleNamespace(size=1, topic="not"), labels={}, names=[], is_late=True)
    assert (one.topic, one.partition, one.size) == ("t", 3, 1)
    with pytest.raises(TypeError, match="size"):
        Held.of(TopicPartition("t", 3), labels={}, names=[], is_late=True)
    with pytest.raises(KeyError, match="size"):
        Held.of_fields({"topic": "t", "partition": 1})
