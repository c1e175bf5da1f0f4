"""Parameters of a function become the arguments and options of its command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
import pytest

from tiered.cli.options import GROUP, OUTPUT, argument, command, option
from tiered.cli.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    url: str | None = option("--remote URL", "Name the bucket.")
    hosts: tuple[str, ...] = option("--host NAME", "Accept a host.")


def _everything(
    session: Session,
    name: str = argument(),
    more: tuple[str, ...] = argument("[MORE]..."),
    deep: bool = option("--deep", "Decode."),
    count: int | None = option("-n, --count N", "Stop."),
    codec: str = option("--codec", "Set it.", choices=("none", "zstd"), default="none"),
    place: _Place = GROUP,
    output: str = OUTPUT,
) -> dict[str, Any]:
    """Do everything."""
    values = {"name": name, "more": more, "deep": deep, "count": count, "codec": codec, "output": output}
    return {**values, "place": place, "directory": session.directory}


def _called(made: click.Command, *words: str) -> Any:
    with made.make_context("made", list(words), obj=Session(directory="here")) as context:
        return made.invoke(context)


def test_command_gets_the_defaults_of_its_options_and_the_session() -> None:
    found = _called(command("made")(_everything), "first")
    assert found == {
        **{"name": "first", "more": (), "deep": False, "count": None, "codec": "none", "output": "table"},
        **{"place": _Place(url=None, hosts=()), "directory": "here"},
    }


def test_command_parses_each_kind_of_parameter() -> None:
    words = "first second --deep -n 3 --codec zstd --remote u --host a --host b -o json"
    found = _called(command("made")(_everything), *words.split())
    assert (found["more"], found["deep"], found["count"], found["codec"]) == (("second",), True, 3, "zstd")
    assert (found["place"], found["output"]) == (_Place(url="u", hosts=("a", "b")), "json")


@pytest.mark.parametrize("words", ["", "first -n x", "first --codec lz4", "first --unknown", "first -o xml"])
def test_invalid_words_are_a_usage_error(words: str) -> None:
    with pytest.raises(click.UsageError):
        _called(command("made")(_everything), *words.split())


def test_help_lists_the_options_in_the_order_of_the_parameters_and_ends_with_the_example() -> None:
    group = click.Group("group")
    made = command("made", group, has_progress=True, example="made first")(_everything)
    assert group.commands == {"made": made}
    text = made.get_help(click.Context(made, info_name="made"))
    names = ["--deep", "--count", "--codec", "--remote", "--host", "--output", "--raw", "--progress"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "[default: none]" in text
    assert "Example: tiered made first" in text
    assert text.index("Do everything.") < places[0]


def test_progress_mode_applies_to_the_session_within_the_command() -> None:
    seen = []

    def work(session: Session) -> None:
        """Work."""
        seen.append(session.progress.mode)

    _called(command("made", has_progress=True)(work), "--progress", "plain")
    assert seen == ["plain"]
