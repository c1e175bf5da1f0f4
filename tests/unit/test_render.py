"""Tables off a terminal: laid out by ourselves as rich would lay them out, for its time."""

from __future__ import annotations

import random

import pytest

from tiered.cli import render
from tiered.cli.render import Column


@pytest.mark.parametrize("seed", range(10))
def test_plain_lines_are_what_rich_prints(seed: int, capsys, monkeypatch) -> None:
    rng = random.Random(seed)
    letters = "ab c-12.é\u4e2d"  # one of them two cells wide
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


def test_what_does_not_fit_on_a_line_is_left_to_rich(capsys) -> None:
    render.emit("rows", [{"a": "one\ntwo", "b": 1}], [Column("a", "A"), Column("b", "B", is_number=True)], "table")
    assert capsys.readouterr().out == "A       B\none     1\ntwo\n"
