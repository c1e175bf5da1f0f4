"""Invalid values for every option and argument of every command, one at a time with otherwise valid words.

A new command is tested with generic words for its required arguments. `_WORDS` has better words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tiered.cli.main import main

# Values that people and scripts pass by mistake. A shell can pass any byte but NUL.
BAD = (
    "",
    " ",
    "..",
    "a/b/c",
    "/",
    "orders/99",
    "nosuch",
    "directory",
    "no/such/file",
    "nothing",
    "lines",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "99999999999999999999",
    "-99999999999999999999d",
    "٣",
    "ünïcode",
    "\udcff",
    "x" * 300,
    "=",
    "a=b",
    ",",
    "..,..",
    "s3://",
    "file://",
    "://",
    "@",
    ":",
)
# Valid words of a command. Other commands get `_GOOD` for each required argument.
_WORDS = {
    "append": "orders lines",
    "adopt": "directory --once",
    "demo": "--dir data",
    "run": "--once",
    "web": "--listen 127.0.0.1:{port}",
    "placement": "--brokers 0,1 -p 1 -r 1",
    "delete-records": "orders/0 --before 1",
    "transactions end": "orders/0 --producer-id 7 --abort",
    "log-dirs move": "orders/0 --to data",
    "fork": "orders spoon",
    "restore": "orders --to elsewhere",
    "rewrite copy": "orders --to {bucket}",
    "rewrite recode": "orders --codec none",
    "rewrite redact": "orders --key-file lines --yes",
    "view build": "latest",
    "view drop": "latest",
    "compact": "latest",
    "dump": "orders/0",
    "import": "{bucket}",
    "remote ls": "{bucket}",
    "apply": "old.json --dry-run",
    "repair": "report.json --dry-run",
    "config explain": "retention.ms",
    "completion": "bash",
    "backfill": "orders --to {bucket}",
}
_GOOD = "orders"
# With valid words these would run for minutes or without an end.
_LEFT_OUT = {("demo", "--dir"), ("bench", "")}
_LEFT_OUT_OPTIONS = {"--spark", "--conf"}


@dataclass(frozen=True, slots=True)
class Case:
    """One command line in which `parameter`, an option or argument, has the invalid `value`."""

    command: str
    parameter: str
    value: str
    words: tuple[str, ...]
    is_number: bool = False

    def __str__(self) -> str:
        return f"tiered {self.command}: {self.parameter}: {list(self.words)}"


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, with its words."""
    yield from _below((), main, None)


def right_words(port: int, bucket: str) -> Iterator[tuple[str, click.Command, list[str]]]:
    """Each command: its name, the command, valid words after its name. `port` is in use."""
    for name, command in leaves():
        if (name, "") not in _LEFT_OUT:
            typed = _WORDS.get(name) or " ".join(_GOOD for each in command.params if _is_demanded(each))
            yield name, command, typed.format(port=port, bucket=bucket).split()


def cases(port: int, bucket: str) -> Iterator[Case]:
    """All cases. `port` is in use, `bucket` is the address of a healthy bucket."""
    for name, command, right in right_words(port, bucket):
        for each in command.params:
            option = each.opts[0]
            is_left_out = (name, option) in _LEFT_OUT or option in _LEFT_OUT_OPTIONS
            if is_left_out or (isinstance(each, click.Option) and each.is_flag):
                continue
            for value in BAD:
                is_number = isinstance(each.type, click.types.IntParamType | click.types.FloatParamType)
                yield Case(name, option, value, (*name.split(), *_with(right, command, each, value)), is_number)


def some_cases(port: int, bucket: str, *, of_each: int, seed: int) -> list[Case]:
    """`of_each` cases of every option and argument, drawn by `seed`."""
    drawn = random.Random(seed)
    found: dict[tuple[str, str], list[Case]] = {}
    for each in cases(port, bucket):
        found.setdefault((each.command, each.parameter), []).append(each)
    return [each for several in found.values() for each in drawn.sample(several, of_each)]


def _below(
    words: tuple[str, ...], command: click.Command, parent: click.Context | None
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command, info_name=words[-1] if words else "tiered", parent=parent)
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _below((*words, name), below, context)


def _is_demanded(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument) and parameter.required


def _with(right: list[str], command: click.Command, parameter: click.Parameter, value: str) -> list[str]:
    """The valid words with `value` for the parameter: an option is appended, an argument replaced in place."""
    if isinstance(parameter, click.Option):
        option = parameter.opts[0]
        return [*right, f"{option}={value}"] if option.startswith("--") else [*right, option, value]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    place = arguments.index(parameter)
    given = right[: next((at for at, word in enumerate(right) if word.startswith("-")), len(right))]
    options = right[len(given) :]
    given[place : place + 1] = [value]
    return [*options, "--", *given]
