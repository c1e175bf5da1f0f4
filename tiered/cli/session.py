"""The common state of commands: directory, overrides, configuration, manager, clock, output, signals.

| signal, in the main thread | effect |
|---|---|
| first SIGTERM or SIGINT | remembered, wakes a sleeper; work in progress ends and all is closed in order |
| first one within `Stop.breaking_off` (a start) | interrupts: a start has no work to finish |
| second one | interrupts at once |
| any number of SIGHUP (reload) | remembered once, wakes a sleeper |
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import click

from local.errors import Conflict, ErrorCode, InvalidRequest, LogError, NotFound
from tiered.cli.errors import HINTS, Exit, Terminated, unread_code
from tiered.cli.progress import Progress, byte_progress, load_progress
from tiered.config.units import counted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from local.names import TopicPartition
    from policies.cost.prices import PriceTable
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from tiered.config.config import Config
    from tiered.manager.manager import LogManager
    from tiered.node.topic_registry import TopicRegistry
    from tiered.partition.partition_table import LoadProgress
    from tiered.serve.commands.unix_socket import NodeSocket
    from tiered.serve.node.command_node import Node
    from tiered.service.observations import Observations


SIGNALS = (signal.SIGTERM, signal.SIGINT)
WAIT_MS_MAX = 2**31 - 1  # limit of poll(2); about 25 days


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One invocation. Creates library objects on request."""

    directory: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    is_quiet: bool = False
    is_verbose: bool = False
    is_debug: bool = False
    log_format: str = "text"
    progress: Progress = field(default_factory=Progress)

    def config(self, overrides: Mapping[str, str] | None = None) -> Config:
        """The directory's configuration with `overrides` applied. Raises NotFound if there is none."""
        from tiered.config.config import Config

        return Config.load(self.config_path(), {**self.overrides, **(overrides or {})}, os.environ)

    def config_path(self) -> str:
        from tiered.config.config import FILE

        path = os.path.join(self.directory, FILE)
        if os.path.isfile(self.directory):
            wrong = f"cannot find {FILE}, -C names a file: name its directory"
            raise InvalidRequest(wrong, directory=self.directory)
        if not os.path.exists(path):
            wrong = f"cannot find {FILE}, run 'tiered init' or name a directory with -C"
            raise NotFound(wrong, directory=_whole(self.directory))
        return path

    def store_options_of(self, url: str) -> dict[str, object]:
        """Return the options of the configured store, if there is a configuration and `url` is in that store."""
        try:
            config = self.config()
        except NotFound:
            return {}
        is_inside = config.remote_url is not None and url.startswith(config.remote_url.rstrip("/") + "/")
        return dict(config.remote_options) if is_inside else {}

    def prices(self) -> PriceTable:
        """Return the configured prices; built-in ones without a configuration, or (warning) if unreadable."""
        from policies.cost.prices import BUILT_IN
        from tiered.config.config import FILE, Config
        from tiered.config.price_file import configured_prices

        try:
            is_there = os.path.exists(os.path.join(self.directory, FILE))
            return configured_prices(self.config() if is_there else Config.load(None, self.overrides, os.environ))
        except LogError as error:
            click.echo(f"! dollars use the built-in prices: {error}", err=True)
            return BUILT_IN

    def topics(self) -> TopicRegistry:
        """Read the directory's topics file, without a log or the store."""
        from local.storage import DiskStorage
        from tiered.node.topic_registry import TopicRegistry

        return TopicRegistry([(DiskStorage(), root) for root in self.config().data_dirs])

    def manager(
        self,
        *,
        read_only: bool = False,
        is_daemon: bool = False,
        overrides: Mapping[str, str] | None = None,
        observations: Observations | None = None,
        known: ManifestMemoryCache | None = None,
        takes_over: bool = False,
        is_alone: bool = False,
        is_hasty: bool = False,
        is_brief: bool = False,
        own: NodeSocket | None = None,
    ) -> LogManager:
        """Open a manager, which the caller closes. Raises Conflict if another one writes, unless `read_only`.

        - `is_alone`: no store request.
        - `is_hasty`: an unavailable store does not delay the open (`tiered.stores.configured_store`), refused access is
          a problem of the partitions. The caller prints problems.
        - `is_brief`: an unavailable store does not delay later requests either; only for figures.
        - `known` and `takes_over`: as in `LogManager.open`.
        - `observations`: disk and store are measured, and store calls are traced.
        - `own`: the socket of this node, published while logs are loaded: commands wait for the node from then on.
        """
        config = self.config(overrides)
        self.set_up_logging(is_daemon=is_daemon, reports_problems=read_only or is_hasty)
        from tiered.manager.manager import LogManager
        from tiered.stores.configured_store import BriefStore, ShortDeadlineStore

        store = None
        if is_alone and config.remote_url is not None:
            from tiered.web.pages.manager_cache import silent_store

            store = silent_store(config.remote_url)
        hasty = ShortDeadlineStore.of(config) if is_hasty else None
        brief = BriefStore.of(config) if is_brief else None
        store = hasty or brief or store
        with load_progress(self) as report:
            if observations is not None:
                from tiered.service.observations import open_observed, store_spans, tracer

                def loading(loaded: LoadProgress) -> None:
                    if own is not None:
                        own.publish()
                    report(loaded)

                spans = store_spans(tracer())
                return open_observed(
                    config, observations, now_ms=now_ms(), around=spans, progress=loading, takes_over=takes_over
                )
            try:
                with hasty.haste() if hasty is not None else nullcontext():
                    return LogManager.open(
                        config,
                        now_ms=now_ms(),
                        read_only=read_only,
                        store=store,
                        progress=report,
                        known=known,
                        may_be_refused=is_hasty,
                    )
            except Conflict as error:
                note_instead(error)
                raise

    @contextmanager
    def node(
        self,
        stop: Stop | None = None,
        *,
        verb: str = "done",
        overrides: Mapping[str, str] | None = None,
        read_only: bool = False,
        is_hasty: bool = False,
    ) -> Iterator[Node]:
        """The running node of the directory, or a manager, for the operations of one command. Raises as `manager`.

        `stop` ends an operation; `verb` names its work in the progress; the others are of the manager.
        """
        from tiered.serve.node.command_node import CommandWork, opened

        self.set_up_logging()
        with CommandWork(self.progress, partial(byte_progress, self, verb), self.say, now_ms, stop) as work:
            open_manager = partial(self.manager, overrides=overrides, read_only=read_only, is_hasty=is_hasty)
            with opened(self.config().data_dirs, open_manager, work, overrides=self.overrides) as node:
                yield node

    def set_up_logging(self, *, is_daemon: bool = False, reports_problems: bool = False) -> None:
        """Log warnings to stderr, more with -v, --debug or in a daemon; `reports_problems`: without problems."""
        import logging

        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
        if self.log_format == "json":
            from tiered.service.observations import JsonFormatter

            for handler in logging.getLogger().handlers:
                handler.setFormatter(JsonFormatter())
        level = logging.INFO if self.is_verbose or is_daemon else logging.WARNING
        level = logging.ERROR if self.is_quiet else logging.DEBUG if self.is_debug else level
        for room in ("tiered", "local", "remote"):
            logging.getLogger(room).setLevel(level)
        is_silent = reports_problems and not (self.is_verbose or self.is_debug)
        logging.getLogger("tiered.partition.partition_table").setLevel(
            logging.CRITICAL if is_silent else logging.NOTSET
        )

    def report_problems(self, problems: Mapping[TopicPartition, LogError]) -> None:
        """Print a line on stderr for each cause of problems, even with -q, with the number of partitions."""
        from tiered.node.problems import group_problems, lacks_key, next_step, problems_of

        by_name = {str(name): error for name, error in problems.items()}
        for each in group_problems(problems_of(problems)):
            error = by_name[each.places[0]]
            step = f"; next: {next_step(error)}" if lacks_key(error) else ""
            click.echo(f"! {each.line}{step}", err=True)

    def report_served_alone(
        self, problems: Mapping[TopicPartition, LogError], partitions: Collection[TopicPartition]
    ) -> None:
        """Print a line for each reason why only the disk answers for a partition."""
        from tiered.node.problems import group_problems, problems_of, store_problems

        store_errors = store_problems({name: error for name, error in problems.items() if name in partitions})
        for each in group_problems(problems_of(store_errors)):
            self.say(f"! records on this disk are served without the remote tier: {each.line}")

    def report(
        self,
        problems: Mapping[TopicPartition, LogError],
        unread: Mapping[TopicPartition, LogError],
        otherwise: Exit = Exit.DONE,
    ) -> Exit:
        """Report problems; return the exit code of the partitions with null figures, or `otherwise`."""
        self.report_problems(problems)
        return unread_code(unread.values()) or otherwise

    def warn(self, text: str) -> None:
        """Print a line on stderr about work that was not done, even with -q."""
        click.echo(f"! {' '.join(text.split())}", err=True)

    def say(self, text: str) -> None:
        if not self.is_quiet:
            click.echo(text, err=True)


def _whole(directory: str) -> str:
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:  # the working directory was deleted
        return directory


def topic_problems(manager: LogManager, topics: Collection[str]) -> dict[TopicPartition, LogError]:
    """Return the problems of the partitions of these topics; of all if none is named."""
    return {name: error for name, error in manager.problems.items() if not topics or name.topic in topics}


def now_ms() -> int:
    """Read the wall clock, which only the command line does."""
    return time.time_ns() // 1_000_000


def parse_setting(text: str, option: str = "-X") -> tuple[str, str]:
    """Parse ``retention.ms=7d`` to key and value. Raises InvalidRequest without ``=`` or for no UTF-8."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidRequest(f"invalid {option}, it is not of the form key=value", text=repr(text))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("invalid setting, it is not UTF-8", text=repr(text)) from None
    return key.strip(), value.strip()


def completions(known: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """Return the candidates that begin as typed; `known` has the help text of each."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(each, help=text) for each, text in known.items() if each.startswith(incomplete)]


def complete_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tiered.config.properties import PROPERTIES

    return completions({f"{name}=": row.expected for name, row in PROPERTIES.items()}, incomplete)


def complete_topics(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a topic of this node, after a slash its partitions where allowed."""
    directory = ctx.find_root().params.get("directory") or os.environ.get("TIERED_DIR") or "."
    topics = Session(directory=directory).topics().all()
    topic, slash, _ = incomplete.partition("/")
    if slash and "PARTITION" in str(parameter.metavar):
        partitions = [str(name) for each in topics if each.name == topic for name in each.partitions()]
        return completions(dict.fromkeys(partitions, ""), incomplete)
    return completions({each.name: counted(each.partition_count, "partition") for each in topics}, incomplete)


def confirm(question: str, *, yes: bool, without: str | None = None) -> None:
    """Ask at a terminal, unless `yes`. Elsewhere raise a UsageError with the text `without`, or the question."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(without or f"{question} add --yes")
    click.confirm(question, abort=True, err=True)


UNNAMED = "--option requires --remote URL; the options of the configured bucket are in tiered.toml"


def store_options(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, object]:
    """Parse ``name=value`` of the store's client: true and false are booleans, ``{...}`` is a JSON object."""
    switches: dict[str, object] = {"true": True, "false": False}
    return {
        key: _table(parameter.opts[0], key, value) if value.startswith("{") else switches.get(value, value)
        for key, value in (parse_setting(each, parameter.opts[0]) for each in values)
    }


def _table(option: str, name: str, text: str) -> dict[str, object]:
    """Parse a JSON object. Raises InvalidRequest without the text, which may contain a secret."""
    try:
        return dict(json.loads(text))
    except ValueError:
        wrong = f"invalid {option}, a value that begins with {{ must be a JSON object"
        raise InvalidRequest(wrong, name=name) from None


def note_instead(error: Conflict) -> None:
    context = click.get_current_context(silent=True)
    if context is None or error.code is not ErrorCode.DIRECTORY_HELD:
        return
    words = HINTS["instead"].get(context.command_path.partition(" ")[2])
    if words is not None:
        error.add_note(words.format(**context.params))


class Stop:
    """The signal that asked the process to stop; None before the first."""

    def __init__(self, wake_fd: int) -> None:
        self.signal: int | None = None
        self._is_to_reload = self._is_breaking_off = False
        self._count = 0
        self._wake_fd = wake_fd

    @property
    def is_set(self) -> bool:
        return self.signal is not None

    @property
    def was_asked_once(self) -> bool:
        return self._count == 1

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Within the block also the first signal raises KeyboardInterrupt, or Terminated for a SIGTERM."""
        self._is_breaking_off = True
        try:
            if self.signal is not None:
                raise self._interrupt(self.signal)
            yield
        finally:
            self._is_breaking_off = False

    def take_reload(self) -> bool:
        """Whether a SIGHUP came since the last call."""
        is_to_reload, self._is_to_reload = self._is_to_reload, False
        return is_to_reload

    def wait(self, timeout_s: float | None, fd: int | None = None) -> bool:
        """Sleep until `fd` is readable, a signal or the timeout (25 days at most). Whether `fd` is readable.

        A signal just before the call also wakes it: the signal is a byte in a pipe.
        """
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        timeout_ms = None if timeout_s is None else min(max(0.0, timeout_s * 1000), WAIT_MS_MAX)
        found = [ready for ready, _ in poll.poll(timeout_ms)]
        if self._wake_fd in found and not self.is_set:
            os.read(self._wake_fd, 512)  # a SIGHUP wakes once
        return fd is not None and fd in found

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._is_to_reload = True
            return
        self._count += 1
        self.signal = number if self.signal is None else self.signal
        if self._count > 1 or self._is_breaking_off:
            raise self._interrupt(number)

    @staticmethod
    def _interrupt(number: int) -> KeyboardInterrupt:
        return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def stop_signals(*, reloads: bool = False) -> Iterator[Stop]:
    """Route SIGTERM and SIGINT, and with `reloads` SIGHUP, to a `Stop` within the block."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    stop = Stop(wake_read)
    wake_before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    numbers = (*SIGNALS, signal.SIGHUP) if reloads else SIGNALS
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wake_before)
        os.close(wake_read)
        os.close(wake_write)
