"""The ``tiered`` command: global options, lazily imported commands, exit handling."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING

import click

from local.errors import LogError
from tiered import __version__
from tiered.cli.errors import Exit, exit_code, internal, one_line
from tiered.cli.session import Session, complete_settings, completions, parse_setting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name: (module in this package, one line of help), in the order of use by a new user
COMMANDS = {
    "demo": ("node.demo", "Run a complete demo on real data: both tiers, compaction, Spark. Needs no setup."),
    "init": ("node.init", "Write a tiered.toml and test the object store."),
    "doctor": ("node.init", "Check this node, its disks and its bucket, and print the next steps."),
    "topic": ("topics.topic", "Create, alter, list and describe topics."),
    "append": ("data.append", "Append records from a file or from stdin."),
    "consume": ("data.offsets", "Read records from both tiers, or from a bucket only."),
    "dump": ("data.dump", "Print batches, records or index entries as they are stored."),
    "verify": ("node.verify", "Verify segments, partitions and log directories on the disk."),
    "scrub": ("bucket.scrub", "Check all objects of a bucket, and with --deep every byte."),
    "repair": ("bucket.scrub", "Repair what a scrub found, from good copies; prints a plan first."),
    "gc": ("bucket.scrub", "List orphaned objects of a bucket and what they cost, then delete from the list."),
    "adopt": ("bucket.external_buckets", "Tier the log directory of a live Kafka broker; its files are only read."),
    "restore": ("bucket.restore", "Restore topics of a bucket to a disk, whole or up to an offset or a time."),
    "fork": ("bucket.restore", "Create another topic of the bucket with the same records, without copying them."),
    "import": (
        "bucket.external_buckets",
        "Import a bucket of other software: Aiven, Kafka's LocalTieredStorage, plain logs.",
    ),
    "remote": ("bucket.external_buckets", "Inspect any bucket by its address."),
    "rewrite": (
        "bucket.redact",  # which adds its command to the group of `bucket.rewrite`
        "Rewrite a bucket: merge small segments, change codec, key or storage class, erase records by their keys.",
    ),
    "pipeline": (
        "bucket.pipeline",
        "Clean, tier, expire, recompact and merge the topics of many nodes as one job, on Spark.",
    ),
    "backfill": ("bucket.pipeline", "Write records of a bucket as Parquet files, with Spark."),
    "get-offsets": ("data.offsets", "Print first, last and other named offsets, or offsets by time, over both tiers."),
    "delete-records": ("data.offsets", "Delete the oldest records: raise the log start offset of partitions."),
    "transactions": ("data.offsets", "Find hanging transactions, and end them."),
    "status": ("node.status", "Show the contents of each tier, waiting work, bytes at risk and costs."),
    "cost": ("topics.cost", "Show, simulate and reduce the monthly costs of topics."),
    "plan": ("node.plan", "Show what maintenance would do now, and why. Changes nothing."),
    "compact": ("topics.compact", "Clean a compacted topic now, or estimate the result."),
    "view": ("topics.compaction", "Build, list and drop compacted views of a topic."),
    "compaction": ("topics.compaction", "Show the state of compaction, and advice on its settings."),
    "log-dirs": ("node.log_dirs", "Show the contents of each log directory; move a partition to another one."),
    "placement": ("node.log_dirs", "Assign the replicas of a topic to brokers, as Kafka does."),
    "apply": ("node.plan", "Apply a saved plan, if the state has not changed since."),
    "pause": ("topics.topic", "Pause uploads of some topics, or of all, until they are resumed."),
    "resume": ("topics.topic", "Resume paused uploads."),
    "run": ("node.run", "Clean, copy, drop and expire, continuously or --once."),
    "web": ("node.run", "Serve pages about the directory for a browser: read-only, on loopback."),
    "bench": ("node.bench", "Measure this machine, disk and bucket, and compare with raw references."),
    "generate": ("node.generate", "Print a dashboard, alert rules, a unit, an IAM policy or lifecycle rules."),
    "config": ("node.generate", "Explain a setting: its effect, its value here, and the source of the value."),
    "completion": ("node.generate", "Print the completion script for bash, zsh or fish."),
    "rotate-keys": ("bucket.rewrite", "Wrap the data keys of encrypted segments with another key of the key ring."),
}

_EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 usage, 3 findings, 4 corruption, 5 conflict, 6 the store is unavailable, "
    "10 unhealthy, 130 and 143 interrupted."
)
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
            raise click.UsageError(f"unknown command: {name}" + (f"; did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return completions({name: summary for name, (_, summary) in COMMANDS.items()}, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="tiered %(version)s")
@click.option(
    "-C",
    "--dir",
    "directory",
    default=".",
    envvar="TIERED_DIR",
    metavar="DIR",
    help="Name the directory of tiered.toml.",
)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a property; may be repeated.",
    shell_complete=complete_settings,
)
@click.option("--debug", is_flag=True, help="Show tracebacks and all log lines.")
@click.option("-v", "--verbose", is_flag=True, help="Log every change.")
@click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", help="Choose the format of log lines."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only data and errors.")
@click.pass_context
def main(
    ctx: click.Context,
    directory: str,
    settings: tuple[str, ...],
    debug: bool,
    verbose: bool,
    log_format: str,
    quiet: bool,
) -> None:
    """A tiered-storage log manager: Kafka's format on disk, closed segments in an object store."""
    if not directory:
        raise click.UsageError("-C is empty, name a directory")
    overrides = dict(parse_setting(text) for text in settings)
    ctx.obj = Session(
        directory=directory,
        overrides=overrides,
        is_quiet=quiet,
        is_verbose=verbose,
        is_debug=debug,
        log_format=log_format,
    )


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: the entry point."""
    _fill_closed_streams()
    if instruction := os.environ.get("_TIERED_COMPLETE"):
        from tiered.cli.node.generate import answer

        sys.exit(answer(instruction))
    words = list(sys.argv[1:] if arguments is None else arguments)
    code = invoke(words)
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
        with main.make_context("tiered", words) as context:
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
        click.echo(f"error: {error.format_message()}", err=True)
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
    return _flushed(code)


def _show_traceback(error: BaseException, is_debug: bool) -> None:
    if is_debug:
        import traceback

        traceback.print_exception(error)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or _lose_stdout(error)
    return code


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
