"""What the commands share: the directory, the overrides, the configuration, the manager, the clock, the words."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from local.errors import Conflict, InvalidRequest, LogError, NotFound
from tiered.cli.progress import Progress

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.cost.prices import PriceTable
    from remote.manifest.manifest_memory_cache import KnownHeads
    from tiered.config.config import Config
    from tiered.manager.manager import LogManager
    from tiered.node.topic_registry import TopicRegistry
    from tiered.service.observations import Observations


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One invocation. Library objects are made when asked for, so that a command pays only for what it uses."""

    directory: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    is_quiet: bool = False
    is_verbose: bool = False
    is_debug: bool = False
    log_format: str = "text"
    progress: Progress = field(default_factory=Progress)

    def config(self, overrides: Mapping[str, str] | None = None) -> Config:
        """The configuration of the directory, `overrides` on top. Raises NotFound where there is none."""
        from tiered.config.config import Config

        return Config.load(self.config_path(), {**self.overrides, **(overrides or {})}, os.environ)

    def config_path(self) -> str:
        """Of the directory's ``tiered.toml``. Raises NotFound where there is none."""
        from tiered.config.config import FILE

        path = os.path.join(self.directory, FILE)
        if os.path.isfile(self.directory):
            wrong = f"looking for {FILE}, -C names a file: name the directory that it lies in"
            raise InvalidRequest(wrong, directory=self.directory)
        if not os.path.exists(path):
            wrong = f"looking for {FILE}, run 'tiered init' or name a directory with -C"
            raise NotFound(wrong, directory=_whole(self.directory))
        return path

    def store_options_of(self, url: str) -> dict[str, object]:
        """The options of the configured store, where there is a configuration and `url` lies in that store."""
        try:
            config = self.config()
        except NotFound:
            return {}
        is_inside = config.remote_url is not None and url.startswith(config.remote_url.rstrip("/") + "/")
        return dict(config.remote_options) if is_inside else {}

    def prices(self) -> PriceTable:
        """The prices of the configuration, for what a job is foretold to cost; the built-in ones where a bucket is
        looked at without any, and where they cannot be read, which is told: no job waits for them."""
        from policies.cost.prices import BUILT_IN
        from tiered.config.config import FILE, Config
        from tiered.config.price_file import configured_prices

        try:
            is_there = os.path.exists(os.path.join(self.directory, FILE))
            config = self.config() if is_there else Config.load(None, self.overrides, os.environ)
            return configured_prices(config)
        except LogError as error:
            click.echo(f"! dollars are of the built-in prices: {error}", err=True)
            return BUILT_IN

    def topics(self) -> TopicRegistry:
        """The topics as the directory has them written down: no log is opened and no store asked."""
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
        known: KnownHeads | None = None,
        takes_over: bool = False,
        is_alone: bool = False,
        is_hasty: bool = False,
        is_brief: bool = False,
    ) -> LogManager:
        """An open manager; the caller closes it. Writing, it is the directory's only one (else Conflict).

        With `is_alone` the store is asked for nothing. With `is_hasty` a store that is away does not hold the open up
        (`tiered.stores.short_deadline_store`), and a bucket that refuses is a problem of the partitions; the caller
        tells problems. With `is_brief` nor does it hold up what is asked later; for figures alone. `known` and
        `takes_over` as `LogManager.open` takes them. With `observations` its disk and its store are observed, and its
        calls to the store traced.
        """
        config = self.config(overrides)
        self.set_up_logging(is_daemon=is_daemon, tells_problems=read_only or is_hasty)
        from tiered.cli.recovery_progress import recovery_progress
        from tiered.manager.manager import LogManager
        from tiered.stores.short_deadline_store import BriefStore, HastyStore
        from tiered.web.pages.offline_store import silent_store

        store = silent_store(config.remote_url) if is_alone and config.remote_url is not None else None
        hasty = HastyStore.of(config) if is_hasty else None
        brief = BriefStore.of(config) if is_brief else None
        store = hasty.as_store if hasty is not None else brief.as_store if brief is not None else store
        way, meter = self.progress.way, self.progress.meter
        is_quiet = self.is_quiet or way == "none"
        with recovery_progress(self.say, is_quiet=is_quiet, is_plain=way == "plain", meter=meter) as tell:
            if observations is not None:
                from tiered.service.observations import open_observed
                from tiered.service.tracing import store_spans, tracer

                spans = store_spans(tracer())
                return open_observed(
                    config, observations, now_ms=now_ms(), around=spans, progress=tell, takes_over=takes_over
                )
            try:
                with hasty.haste() if hasty is not None else nullcontext():
                    return LogManager.open(
                        config,
                        now_ms=now_ms(),
                        read_only=read_only,
                        store=store,
                        progress=tell,
                        known=known,
                        may_be_refused=is_hasty,
                    )
            except Conflict as error:
                from tiered.cli.conflict_hints import note_instead

                note_instead(error)
                raise

    def set_up_logging(self, *, is_daemon: bool = False, tells_problems: bool = False) -> None:
        """Log lines go to stderr: warnings, with -v or in a daemon every change, with --debug everything of ours.

        A command that `tells_problems` itself does not want them from the manager's log as well.
        """
        import logging

        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
        if self.log_format == "json":
            from tiered.service.log_format import JsonFormatter

            for handler in logging.getLogger().handlers:
                handler.setFormatter(JsonFormatter())
        level = logging.INFO if self.is_verbose or is_daemon else logging.WARNING
        level = logging.ERROR if self.is_quiet else logging.DEBUG if self.is_debug else level
        for room in ("tiered", "local", "remote"):
            logging.getLogger(room).setLevel(level)
        is_silent = tells_problems and not (self.is_verbose or self.is_debug)
        logging.getLogger("tiered.manager.manager").setLevel(logging.CRITICAL if is_silent else logging.NOTSET)

    def tell_problems(self, problems: Mapping[TopicPartition, LogError]) -> None:
        """A line on stderr for each cause of problems, quiet or not, with the count of its partitions.

        Where the key ring lacks a key the line says what to do.
        """
        from tiered.node.next_steps import lacks_key, next_step
        from tiered.node.problem_groups import group_problems, problems_of

        by_name = {str(name): error for name, error in problems.items()}
        for each in group_problems(problems_of(problems)):
            error = by_name[each.places[0]]
            step = f"; next: {next_step(error)}" if lacks_key(error) else ""
            click.echo(f"! {each.line}{step}", err=True)

    def tell_served_alone(
        self, problems: Mapping[TopicPartition, LogError], partitions: Collection[TopicPartition]
    ) -> None:
        """A line for each reason for which the remote tier of a partition is not known, and the disk answers alone."""
        from tiered.node.problem_groups import group_problems, problems_of, store_problems

        away = store_problems({name: error for name, error in problems.items() if name in partitions})
        for each in group_problems(problems_of(away)):
            self.say(f"! records on this disk are served without the remote tier: {each.line}")

    def warn(self, text: str) -> None:
        """A line on stderr about work that was not done, quiet or not."""
        click.echo(f"! {' '.join(text.split())}", err=True)

    def say(self, text: str) -> None:
        """Words for a person, on stderr."""
        if not self.is_quiet:
            click.echo(text, err=True)


def _whole(directory: str) -> str:
    """Whoever reads a job's output does not see where it ran."""
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:  # where it runs is gone
        return directory


def now_ms() -> int:
    """The wall clock: the command line is where time enters."""
    return time.time_ns() // 1_000_000


def parse_setting(text: str, option: str = "-X") -> tuple[str, str]:
    """``retention.ms=7d`` as key and value. Raises InvalidRequest without the equals sign, and for bytes not UTF-8."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidRequest(f"reading {option}, not of the form key=value", text=repr(text))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("reading a setting, not utf-8", text=repr(text)) from None
    return key.strip(), value.strip()


def settings_option(text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """The repeatable ``-X key=value`` of a command, as a dict."""

    def parsed(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        return dict(parse_setting(value, parameter.opts[0]) for value in values)

    return click.option("-X", "settings", multiple=True, metavar="KEY=VALUE", callback=parsed, help=text)


UNNAMED = "--option is for --remote URL, which is not given; the configured bucket has its options in tiered.toml"


def store_options(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, object]:
    """A click callback: repeated ``name=value`` as options for the store's client; true and false are switches, and a
    table (``client_kwargs={"region_name": "eu-central-1"}``) is a JSON object."""
    switches: dict[str, object] = {"true": True, "false": False}
    pairs = (parse_setting(value, parameter.opts[0]) for value in values)
    return {
        key: _table(parameter.opts[0], key, value) if value.startswith("{") else switches.get(value, value)
        for key, value in pairs
    }


def _table(option: str, name: str, text: str) -> dict[str, object]:
    """Raises InvalidRequest, without the text: a secret may be in it."""
    try:
        return dict(json.loads(text))
    except ValueError:
        raise InvalidRequest(f"reading {option}, what begins with {{ has to be a JSON object", name=name) from None
