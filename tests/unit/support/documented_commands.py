"""Every ``tiered`` command printed in the documentation, and its errors according to the command tree.

No command is run. `complaint` parses the words with the parsers of click, and accepts omissions that a page may make.
Code fences of any language are read, and code between backticks in prose. Prose may shorten a command (`tiered scrub
--deep`) or show a synopsis (`tiered append TOPIC[/PARTITION] [FILE|-]`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from local.errors import LogError
from tiered.cli.main import _in_order, main
from tiered.cli.session import parse_setting
from tiered.config.properties import find_property, parse

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "localstack" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# The changelog has commands of former versions. The commands of the page of mistakes are wrong on purpose and have a
# test.
LEFT_OUT = {ROOT / "docs" / "changelog.md", ROOT / "docs" / "reference" / "mistakes.md"}

_FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)(?P<language>\w*).*?\n(?P<body>.*?)^(?P=fence)\s*$", re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_NOT_SHELL = frozenset(("python", "toml", "json", "yaml", "promql", "mermaid", "sql", "ini"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|\.{3}|…|\$.*")
_BINDING = re.compile(
    r"tiered (chunk|indexes|key|manifest|manifest nonce|wrap) [<12]"
)  # associated data of a ciphertext in formats.md, not a command
_SUBMITTED = re.compile(r"\$submit|\S*submit\.py")  # spark-submit has the words of a command after the script


@dataclass(frozen=True, slots=True)
class Written:
    """One command of a page: `words` follow ``tiered``. A command in prose may be shortened."""

    page: str
    line: int
    words: tuple[str, ...]
    is_prose: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: tiered {' '.join(self.words)}"


def written_commands() -> Iterator[Written]:
    """Each command of each page, in order."""
    for page in PAGES:
        if page not in LEFT_OUT:
            yield from commands_of(page.read_text(), str(page.relative_to(ROOT)))


def commands_of(text: str, page: str) -> Iterator[Written]:
    """The commands of a page: first those in fences and indented blocks, then those in prose."""
    for found in _FENCE.finditer(text):
        if found["language"] not in _NOT_SHELL:
            first = text.count("\n", 0, found.start("body")) + 1
            for line, words in _of_shell(found["body"], first, must_begin=found["language"] == "text"):
                yield Written(page, line, words, is_prose=False)
    prose = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        if line.startswith("    tiered "):
            for _, words in _of_shell(line.strip(), number):
                yield Written(page, number, words, is_prose=False)
    for found in _INLINE.finditer(prose):
        if re.match(r"(\$ )?(\S+=\S+ )*tiered [a-z-]", found[1]) and not _BINDING.match(found[1]):
            number = prose.count("\n", 0, found.start()) + 1
            for _, words in _of_shell(_without_brackets(" ".join(found[1].split())), number):
                yield Written(page, number, words, is_prose=True)


def _without_brackets(synopsis: str) -> str:
    """``[TOPIC]... [-o FORMAT]`` as one valid command line, with the first of several choices."""
    text = re.sub(r"\[/\w+\]|\](\.\.\.)?", "", synopsis).replace("[", "").replace("...", "")
    return re.sub(r"([\w./-]+)(\\?\|[\w./-]+)+", r"\1", text)


def _of_shell(script: str, first: int, must_begin: bool = False) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, words after ``tiered``) of every command; `must_begin`: of lines that begin with ``tiered``."""
    number, pending = first, ""
    for raw in script.splitlines():
        line = pending + raw.strip()
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        line = line.removeprefix("$ ")
        if not must_begin or re.match(r"(\S+ )*?tiered [a-z-]", line):
            for words in _simple_commands(line):
                if (own := _own_words(words)) is not None:
                    yield number, own
        number = first + script[: script.find(raw) + len(raw)].count("\n") + 1


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, split at pipes, ``&&`` and the like, without redirections."""
    for inner in re.findall(r"\$\((.*?)\)", line):
        yield from _simple_commands(inner)
    line = re.sub(r"\$\(([^)]*)\)", lambda found: "$submit" if "submit" in found[1] else "$OUTPUT", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    skips = False
    try:
        tokens = list(lexer)
    except ValueError:  # a quote in the output of a command
        return
    for token in tokens:
        if set(token) <= set("|&;"):
            yield words
            words = []
        elif set(token) <= set("<>&"):
            skips = True
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif skips:
            skips = False
        else:
            words.append(token)
    yield words


def _own_words(words: list[str]) -> tuple[str, ...] | None:
    """The words after ``tiered``, with any program that runs it. None for another program."""
    for at, word in enumerate(words):
        if word == "tiered" and all(_runs_another(before) for before in _programs(words[:at])):
            return tuple(words[at + 1 :])
        if _SUBMITTED.fullmatch(word) and words[0] == "spark-submit":
            return tuple(words[at + 1 :])
    return None


def _programs(words: list[str]) -> list[str]:
    """The words before a command without assignments, options and values of options."""
    return [
        word
        for at, word in enumerate(words)
        if not _ASSIGNMENT.match(word) and not word.startswith("-") and not (at and words[at - 1].startswith("-"))
    ]


def _runs_another(word: str) -> bool:
    return word in ("sudo", ".ci/with", "env", "exec", "time", "nice", "opentelemetry-instrument", "if", "!", "watch")


def complaint(written: Written) -> str | None:
    """The error of click or of the settings table for the words. None for a valid command."""
    command: click.Command = main
    context = click.Context(main, info_name="tiered", **main.context_settings)  # commands cache their option for help
    words = _in_order(list(written.words))
    try:
        while True:
            words = _parsed(command, context, words, written.is_prose)
            if not isinstance(command, click.Group):
                return f"too many words: {words}" if words else None
            if not words or _PLACEHOLDER.fullmatch(words[0]):
                may_end = written.is_prose or command.invoke_without_command or (command is main and not words)
                return None if may_end or words else f"no command of {context.info_name}"
            name, found, words = command.resolve_command(context, words)
            assert found is not None
            command, context = found, click.Context(found, info_name=name, parent=context)
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        return error.format_message()
    except LogError as error:
        return str(error)


def _parsed(command: click.Command, context: click.Context, words: list[str], is_prose: bool) -> list[str]:
    """The words that the parameters of `command` leave. Values of parameters with fixed choices are checked."""
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage:
        if not is_prose:
            raise
        given, rest, _ = command.make_parser(context).parse_args([*words, "VALUE"])
    for parameter in command.params:
        value = given.get(parameter.name or "")
        is_asked = "help" in given or "version" in given
        if value in (None, (), []) or not isinstance(value, (str, list, tuple)):
            if parameter.required and not isinstance(value, bool) and not is_prose and not is_asked:
                raise click.MissingParameter(ctx=context, param=parameter)
            continue
        for each in [value] if isinstance(value, str) else value:
            _check_value(parameter, each, context)
    return rest


def _check_value(parameter: click.Parameter, value: object, context: click.Context) -> None:
    if not isinstance(value, str) or _PLACEHOLDER.fullmatch(value) or value == "KEY=VALUE":
        return
    if "-X" in parameter.opts:
        name, text = parse_setting(value)
        find_property(name)
        if text and not _PLACEHOLDER.fullmatch(text):
            parse(name, text)
    elif isinstance(parameter.type, (click.Choice, click.types.IntParamType, click.types.FloatParamType)):
        parameter.type.convert(value, parameter, context)
