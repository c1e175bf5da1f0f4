"""``tiered completion``: the shell completion script and the answers to its requests.

The script calls `tiered` with ``_TIERED_COMPLETE`` set. Commands are listed without importing them. Topics come only
from the node's topics file: no log is opened and no store request is sent, because the shell blocks until the answer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from local.errors import LogError
from tiered.cli.options import argument, command
from tiered.cli.session import Session
from tiered.config.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiered.node.topic_registry import Topic

VARIABLE = "_TIERED_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@command("completion")
def completion(shell: str = argument(choices=_SHELLS)) -> None:
    """Print the script for SHELL, to be kept where it reads such or evaluated: eval "$(tiered completion bash)"."""
    from tiered.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's own"
    click.echo(kind(main, {}, "tiered", VARIABLE).source())


def answer(instruction: str) -> int:
    """Print the candidates for the word under the cursor, as the ``bash_complete`` script and similar ones ask."""
    shell = instruction.partition("_")[0]
    kind = get_completion_class(shell)
    if kind is None or not instruction.endswith("_complete"):
        return 1
    from tiered.cli.main import main

    asked = kind(main, {}, "tiered", VARIABLE)
    words, incomplete = asked.get_completion_args()
    try:
        found = candidates(words, incomplete)
    except (click.ClickException, LogError, OSError):
        found = []  # invalid words so far, or no node here: running the command reports it
    click.echo("\n".join(asked.format_completion(each) for each in found))
    return 0


def candidates(words: list[str], incomplete: str) -> list[CompletionItem]:
    """Return the candidates for `incomplete` after `words`."""
    from tiered.cli.main import COMMANDS, main

    context = main.make_context("tiered", list(words), resilient_parsing=True)
    command: click.Command = main
    typed = _behind_options(main, context, words)
    while isinstance(command, click.Group) and typed:
        name, rest = typed[0], typed[1:]
        found = command.get_command(context, name)
        if found is None:
            return []
        command = found
        context = command.make_context(name, list(rest), parent=context, resilient_parsing=True)
        typed = _behind_options(command, context, rest)
    if words and words[-1] == "-X":
        return _starting(_settings(), incomplete)
    if command is main and not incomplete.startswith("-"):
        return _starting({each: summary for each, (_, summary) in COMMANDS.items()}, incomplete)
    if command.name == "explain" and not incomplete.startswith("-"):
        return _starting({each[:-1]: text for each, text in _settings().items()}, incomplete)
    if not incomplete.startswith("-") and _takes_topics(command):
        known = (
            _partitions(context, incomplete) if "/" in incomplete and _takes_partitions(command) else _topics(context)
        )
        return _starting(known, incomplete)
    return command.shell_complete(context, incomplete)


def _behind_options(command: click.Command, context: click.Context, words: list[str]) -> list[str]:
    """Return the words after a group's own options: the command's name and its words. Empty for other commands."""
    if not isinstance(command, click.Group):
        return []
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    return rest


def _starting(known: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(each, help=text) for each, text in known.items() if each.startswith(incomplete)]


def _settings() -> dict[str, str]:
    from tiered.config.properties import PROPERTIES

    return {f"{name}=": row.expected for name, row in PROPERTIES.items()}


def _takes_topics(command: click.Command) -> bool:
    """Whether the command's first argument names topics or partitions of this node."""
    first = next((each for each in command.params if isinstance(each, click.Argument)), None)
    if first is None:
        return False
    is_name = first.name == "name" and command.name in ("alter", "delete", "describe")
    return is_name or first.name in ("topic", "topics") or "TOPIC" in (first.metavar or "")


def _takes_partitions(command: click.Command) -> bool:
    return any(isinstance(each, click.Argument) and "PARTITION" in (each.metavar or "") for each in command.params)


def _topics(context: click.Context) -> dict[str, str]:
    return {each.name: counted(each.partition_count, "partition") for each in _known(context)}


def _partitions(context: click.Context, incomplete: str) -> dict[str, str]:
    """Return ``orders/0`` and so on, for the topic before the slash."""
    topic = incomplete.partition("/")[0]
    counts = {each.name: each.partition_count for each in _known(context)}
    return {f"{topic}/{number}": "" for number in range(counts.get(topic, 0))}


def _known(context: click.Context) -> list[Topic]:
    directory = context.find_root().params.get("directory") or os.environ.get("TIERED_DIR") or "."
    return Session(directory=directory).topics().all()
