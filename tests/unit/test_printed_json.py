"""JSON of commands is held against its schema in every test (`printed_json`): it sees what it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import printed_json
import pytest

from tiered.cli import schemas, topic
from tiered.cli.main import invoke, main
from tiered.cli.render import Column


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize(
    "columns",
    [
        (*topic._TOPIC_COLUMNS, Column("extra")),
        topic._TOPIC_COLUMNS[:-1],
        (*topic._TOPIC_COLUMNS[:-1], Column("Settings")),
    ],
    ids=["one-more", "one-less", "another-name"],
)
def test_a_field_that_no_schema_has_is_seen_in_any_test(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
    columns: tuple[Column],
) -> None:
    place = ["-q", "-C", str(tmp_path)]
    assert invoke([*place, "init", str(tmp_path), "--no-probe"]) == 0
    assert invoke([*place, "topic", "create", "orders", "-o", form]) == 0
    assert printed_json.take_wrong() == []
    monkeypatch.setattr(topic, "_TOPIC_COLUMNS", columns)
    assert invoke([*place, "topic", "list", "-o", form]) == 0
    assert capsys.readouterr().out.count("orders") == 2
    (wrong,) = printed_json.take_wrong()
    assert wrong.startswith("tiered topic list: ")


def test_a_value_of_another_type_is_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["-q", "-C", str(tmp_path)]
    assert invoke([*place, "init", str(tmp_path), "--no-probe"]) == 0
    assert invoke([*place, "topic", "create", "orders"]) == 0
    monkeypatch.setattr(topic, "_topic_row", lambda each, output: {"topic": each.name, "partitions": "1"})
    assert invoke([*place, "topic", "list", "-o", "json"]) == 0
    (wrong,) = printed_json.take_wrong()
    assert "Expected `int`, got `str`" in wrong
    capsys.readouterr()


def test_every_command_that_prints_json_has_its_schemas() -> None:
    asked = {" ".join(path) for path, command in _commands(main, ()) if _prints_json(command)}
    assert asked | {"config export"} == set(schemas.COMMANDS)  # --format json
    assert len(asked) > 45


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name))


def _prints_json(command: click.Command) -> bool:
    choices = [
        each.type.choices for each in command.params if isinstance(each.type, click.Choice) and "-o" in each.opts
    ]
    return any({"json", "jsonl"} & set(each) for each in choices)


def test_every_schema_is_of_a_command_or_of_a_file_or_of_what_all_say_on_stderr() -> None:
    of_commands = {name for names in schemas.COMMANDS.values() for name in names}
    others = {"progress", "cost-advise-plan"}
    assert of_commands | others == set(schemas.SCHEMAS)
    assert not others & of_commands
