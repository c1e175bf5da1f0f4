"""Tables without a terminal: laid out by own code, which is faster, exactly as rich does it."""

from __future__ import annotations

import io
import random
import re

import pytest

from tiered.cli import render
from tiered.cli.render import Column


@pytest.mark.parametrize("seed", range(10))
def test_plain_table_equals_the_output_of_rich(seed: int, capsys, monkeypatch) -> None:
    rng = random.Random(seed)
    letters = "ab c-12.é\u4e2d"  # the last letter is two cells wide
    for _ in range(30):
        columns = [
            Column(f"c{at}", rng.choice(["A", "LONG TITLE", "é"]), is_number=rng.random() < 0.5)
            for at in range(rng.randrange(1, 5))
        ]
        rows = [
            {column.name: "".join(rng.choices(letters, k=rng.randrange(9))) or None for column in columns}
            for _ in range(rng.randrange(4))
        ]
        render.emit("rows", rows, columns, "table")
        ours = capsys.readouterr().out
        with monkeypatch.context() as patch:
            patch.setattr(render, "_plain_line", None)
            patch.setattr(render, "_write_block", render._write_rich)
            render.emit("rows", rows, columns, "table")
        assert ours == capsys.readouterr().out


def test_cell_with_a_line_break_is_laid_out_by_rich(capsys) -> None:
    render.emit("rows", [{"a": "one\ntwo", "b": 1}], [Column("a", "A"), Column("b", "B", is_number=True)], "table")
    assert capsys.readouterr().out == "A       B\none     1\ntwo\n"


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
    render.emit("rows", ROWS, COLUMNS, "table")
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert "".join(f"{line.rstrip()}\n" for line in lines) == shown
