"""The end of every ``--help``: a valid example, and where the exit codes are listed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from tiered.cli.errors import Exit
from tiered.cli.main import invoke, main


def _commands(group: click.Group, context: click.Context, path: str = "") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command, own = group.get_command(context, name), f"{path} {name}".strip()
        assert command is not None
        if isinstance(command, click.Group):
            found += _commands(command, context, own)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found.append((own, command))
    return found


def test_every_help_has_an_example_that_parses_and_fits_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("lines.txt", "brokers.txt", "plan.json", "report.json"):
        (tmp_path / name).touch()
    found = _commands(main, click.Context(main, info_name="tiered", **main.context_settings))
    for path, shown in found:
        example = (shown.epilog or "").partition("Example: tiered ")[2].partition("\n")[0]
        words = shlex.split(example)
        command, context = main, main.make_context("tiered", list(words))
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest:
                break
            name, under, more = command.resolve_command(context, rest)
            assert under is not None
            context = under.make_context(name, more, parent=context)
            command = under
        assert context.command_path == f"tiered {path}"
        assert invoke([*path.split(), "--help"]) == 0
        lines = capfd.readouterr().out.splitlines()
        line = f"  Example: tiered {example}"
        assert line in lines, path
        assert len(line) <= 80, path
        assert any("all of them: tiered --help" in line for line in lines)


def test_help_of_tiered_lists_every_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    told = " ".join(capfd.readouterr().out.split()).partition("Exit codes: ")[2]
    assert {int(word) for word in told.replace(",", " ").split() if word.isdigit()} == {int(each) for each in Exit}
