"""The ``tiered`` command: global options, lazily imported commands, exit handling."""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from keyword import iskeyword
from pkgutil import get_data

import click
from click.shell_completion import CompletionItem

from local.errors import LogError
from tiered import __version__
from tiered.cli.errors import Exit, exit_code, internal, one_line
from tiered.cli.options import command, option
from tiered.cli.session import Session, complete_settings, completions, parse_setting

# By section of the help: module in this package, one line of help. A module may add to the group of another one.
_SECTIONS: dict[str, dict[str, tuple[str, str]]] = json.loads(get_data(__package__, "commands.json") or b"")
COMMANDS = {name: each for section in _SECTIONS.values() for name, each in section.items()}

_WRITE_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO, errno.EFBIG)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"tiered.cli.{module}"), f"{name}_" if iskeyword(name) else name)
        command.short_help = summary
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            from tiered.config.properties import nearest

            near = nearest(name, COMMANDS)
            hint = _other_name("commands", name.lower()) or (f"did you mean {near}?" if near else None)
            raise click.UsageError(f"unknown command: {name}" + (f"; {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return completions({name: summary for name, (_, summary) in COMMANDS.items()}, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])


@command(
    "tiered",
    cls=_LazyGroup,
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 findings, 4 corruption, 5 conflict, 6 the store is unavailable, "
    "10 unhealthy, 130 and 143 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="tiered %(version)s")
def main(
    directory: str = option(
        "-C, --dir DIR", "Name the directory of tiered.toml.", default=".", envvar="TIERED_DIR", show_default=False
    ),
    settings: tuple[str, ...] = option(
        "-X KEY=VALUE", "Override a property; may be repeated.", shell_complete=complete_settings
    ),
    is_debug: bool = option("--debug", "Show tracebacks and all log lines."),
    is_verbose: bool = option("-v, --verbose", "Log every change."),
    log_format: str = option(
        "--log-format", "Choose the format of log lines.", choices=("text", "json"), default="text", show_default=False
    ),
    is_quiet: bool = option("-q, --quiet", "Print only data and errors."),
) -> None:
    """A tiered-storage log manager: Kafka's format on disk, closed segments in an object store."""
    if not directory:
        raise click.UsageError("-C is empty, name a directory")
    click.get_current_context().obj = Session(
        directory=directory,
        overrides=dict(parse_setting(text) for text in settings),
        is_quiet=is_quiet,
        is_verbose=is_verbose,
        is_debug=is_debug,
        log_format=log_format,
    )


_NO_CONTEXT = click.Context(main)  # finding a command needs one


def _other_name(kind: str, *names: str) -> str | None:
    """Return the hint for the first known name of ``commands`` or ``options`` of other tools."""
    known: dict[str, dict[str, str]] = json.loads(get_data(__package__, "other_names.json") or b"")
    return next((known[kind][name] for name in names if name in known[kind]), None)


def _in_order(words: list[str]) -> list[str]:
    """``-C DIR``, ``-q`` and ``--json`` (``-o json``) may stand anywhere; ``help WORDS`` is ``WORDS --help``.

    Options that the command has itself, values of options and words behind ``--`` stay where they are. Raises
    UsageError for ``-C`` without a directory.
    """
    remaining, first, others = iter(words), list[str](), list[str]()
    command, behind, is_json = main, 0, False
    for word in remaining:
        is_own = command is not main and any(word.partition("=")[0] in each.opts for each in command.params)
        if not is_own and (word in ("-q", "--quiet") or word.startswith("--dir=")):
            first.append(word)
        elif not is_own and word in ("-C", "--dir"):
            if (directory := next(remaining, None)) is None:
                raise click.UsageError(f"{word} requires a directory")
            first += [word, directory]
        elif word == "--json":
            is_json = True
        else:
            found = command.get_command(_NO_CONTEXT, word) if isinstance(command, click.Group) else None
            takes = any(
                word in each.opts for each in command.params if isinstance(each, click.Option) and not each.is_flag
            )
            others += [word, *islice(remaining, None if word == "--" else int(takes))]
            command, behind = (found, len(others)) if found is not None else (command, behind)
    others[behind:behind] = ["-o", "json"] if is_json else []
    return [*first, *others[1:], "--help"] if others[:1] == ["help"] else [*first, *others]


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: the entry point."""
    _fill_closed_streams()
    if instruction := os.environ.get("_TIERED_COMPLETE"):
        from tiered.cli.node.generate import answer

        sys.exit(answer(instruction))
    code = invoke(list(sys.argv[1:] if arguments is None else arguments))
    # Skip the interpreter's clean-up, a seventh of a short command: all resources are closed.
    gc.freeze()
    sys.exit(code)


def invoke(words: list[str]) -> int:
    """Run a command; return its exit code. An error prints a line, and under ``--debug`` a traceback."""
    is_debug = "--debug" in words  # click consumes the list
    if is_debug:
        from local.lock_ranks import check_ranks

        check_ranks()
    code: int
    try:
        # Not click's main(): it would handle a closed pipe, an interrupt and our errors in its own way.
        with main.make_context("tiered", _in_order(words)) as context:
            result = main.invoke(context)
        code = int(result) if isinstance(result, int) else Exit.DONE
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.exceptions.Abort:
        code = Exit.INTERRUPTED
    except click.ClickException as error:
        typed, command = getattr(error, "option_name", ""), getattr(getattr(error, "ctx", None), "info_name", "")
        other = _other_name("options", f"{command} {typed}", typed)
        click.echo(f"error: {error.format_message()}" + (f" ({other})" if other else ""), err=True)
        code = error.exit_code
    except (LogError, OSError, ImportError, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS:
            # All other I/O translates its errors, so this one is from printing.
            code = _lose_stdout(error)
        else:
            _show_traceback(error, is_debug)
            code = exit_code(error)
            if not isinstance(error, KeyboardInterrupt):
                click.echo(one_line(error), err=True)
    except Exception as error:  # noqa: BLE001 - the last resort: a person gets one line, whatever it was
        _show_traceback(error, is_debug)
        click.echo(internal(error), err=True)
        code = Exit.FAILED
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or _lose_stdout(error)
    return code


def _show_traceback(error: BaseException, is_debug: bool) -> None:
    if is_debug:
        import traceback

        traceback.print_exception(error)


def _lose_stdout(error: OSError) -> Exit:
    """Discard unwritable output, which the interpreter would report at exit; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return Exit.DONE
    click.echo(f"error: cannot write to stdout: {(error.strerror or 'failed').lower()}", err=True)
    return Exit.FAILED


def _fill_closed_streams() -> None:
    """Replace closed standard streams (``>&-``), or the next opened file gets their descriptor.

    Each opens in the opposite direction: reading stdin and writing stdout fail as on a closed stream.
    """
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
