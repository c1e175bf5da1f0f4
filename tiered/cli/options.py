"""Command lines from signatures: the parameters of a command's function are its arguments and options.

    @command("list", transactions)
    def list_open(session: Session, targets: tuple[str, ...] = PARTITIONS, output: str = OUTPUT) -> int:

| annotation of a parameter | on the command line |
|---|---|
| `bool` | a flag |
| `int`, `int | None` | a whole number, if no `type` is given |
| `tuple`, `dict` | may be repeated |
| `T | None` of an argument | may be omitted |
| a dataclass, with the default GROUP | its fields are arguments and options; the parameter is an instance |
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, get_args, get_origin, get_type_hints

import click

from local.errors import InvalidRequest
from local.names import TopicPartition, check_topic
from tiered.cli.progress import MODES
from tiered.cli.session import Session, complete_settings, complete_topics, parse_setting, store_options
from tiered.config.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from tiered.read.bucket_reader import RemoteLog

_CODES = "Exit codes: 0 done, 1 failed, 2 usage; all of them: tiered --help."
# `remote.external.external_layout.WORDS`, whose import is slow
LAYOUTS = ("tiered", "auto", "aiven", "local-tiered-storage", "pinterest", "logs")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_COUNT_MAX = 2**63 - 1  # limit of an iterator's slice


@dataclass(frozen=True, slots=True)
class Position:
    """A start position; exactly one field is set. `last` counts records back from the end."""

    offset: int | None = None
    last: int | None = None
    timestamp_ms: int | None = None
    is_start: bool = False
    is_end: bool = False


def parse_partition(text: str) -> tuple[str, int | None]:
    """Parse ``orders/3`` or ``orders``: the topic and the partition, None for all partitions."""
    topic, slash, number = text.partition("/")
    if not slash:
        return check_topic(text), None
    if not _NUMBER.fullmatch(number) or number.startswith("-"):
        raise InvalidRequest("invalid TOPIC/PARTITION, the partition is not a number", text=repr(text))
    partition = TopicPartition(topic, int(number))
    return partition.topic, partition.partition


def parse_one_partition(text: str, attempt: str) -> TopicPartition:
    """Parse ``orders/3``. Raises InvalidRequest, which names the attempt, without a partition."""
    topic, number = parse_partition(text)
    if number is None:
        raise InvalidRequest(f"{attempt}, name TOPIC/PARTITION", text=repr(text), expected="TOPIC/PARTITION")
    return TopicPartition(topic, number)


def parse_partition_at(text: str) -> tuple[TopicPartition, int | None]:
    """Parse ``orders/3`` or ``orders/3@17``. Raises InvalidRequest without a partition."""
    name, at, offset = text.partition("@")
    topic, number = parse_partition(name)
    if number is None or (at and not (_NUMBER.fullmatch(offset) and not offset.startswith("-"))):
        raise InvalidRequest("invalid partition", text=repr(text), expected="'TOPIC/PARTITION[@OFFSET]'")
    return TopicPartition(topic, number), int(offset) if at else None


def duration_ms(option: str, text: str, example: str, *, least: int = 1) -> int:
    """Parse the duration of an option, `least` ms at least. Raises InvalidRequest with the example."""
    value = parse_duration(text)
    if value is None or value < least:
        raise InvalidRequest(f"invalid {option}", text=repr(text), expected=f"a duration such as {example}")
    return value


def size_bytes(option: str, text: str, example: str, *, least: int = 0) -> int:
    """Parse the size of an option, `least` bytes at least. Raises InvalidRequest with the example."""
    value = parse_bytes(text)
    if value is None or value < least:
        raise InvalidRequest(f"invalid {option}", text=repr(text), expected=f"a size such as {example}")
    return value


def count_type(at_least: int) -> click.IntRange:
    return click.IntRange(at_least, _COUNT_MAX)


def parse_share(option: str, text: str) -> float:
    """Parse ``5%`` or ``0.05``; any number is allowed, without bounds."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not math.isfinite(share):
        raise InvalidRequest(f"invalid {option}", text=repr(text), expected="a share such as 5%")
    return share


class Number(click.FloatRange):
    """A click type: a finite number. Click's ranges accept ``nan`` and ``1e400``."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def parse_position(text: str, now_ms: int) -> Position:
    """Parse ``start``, ``end``, an offset, ``-N`` (the last N), or ``@TIME`` as `parse_time` does."""
    match text:
        case "start" | "beginning" | "earliest":
            return Position(is_start=True)
        case "end" | "latest":
            return Position(is_end=True)
    if text.startswith("@"):
        return Position(timestamp_ms=parse_time(text[1:], now_ms))
    if not _NUMBER.fullmatch(text):
        raise InvalidRequest("invalid position", text=repr(text), expected="'start end OFFSET -N @TIME @-2h'")
    number = int(text)
    return Position(last=-number) if number < 0 else Position(offset=number)


def parse_time(text: str, now_ms: int) -> int:
    """Return ms since the epoch: ``-2h`` before `now_ms`, a number of ms, or RFC 3339 (default UTC)."""
    if text.startswith("-"):
        ago = parse_duration(text[1:])
        if ago is not None:
            return now_ms - ago
    elif _NUMBER.fullmatch(text):
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        expected = "'2026-11-20T12:00:00Z, a number of ms, or -2h'"
        raise InvalidRequest("invalid time", text=repr(text), expected=expected) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)


def parse_moment(text: str, now_ms: int) -> int:
    """As `parse_time`, and ``+7d`` after `now_ms`."""
    if text.startswith("+"):
        ahead = parse_duration(text[1:])
        if ahead is not None and ahead >= 0:
            return now_ms + ahead
    return parse_time(text, now_ms)


@dataclass(frozen=True, slots=True)
class Declared:
    """An argument (without names) or an option, until the parameter that holds it is known."""

    names: tuple[str, ...]
    attributes: Mapping[str, Any]

    def parameter(self, name: str, annotation: object) -> click.Parameter:
        attributes, is_repeated = dict(self.attributes), get_origin(annotation) in (tuple, dict)
        if (choices := attributes.pop("choices", None)) is not None:
            attributes["type"] = click.Choice(choices)
        if (least := attributes.pop("least", None)) is not None:
            attributes["type"] = click.IntRange(least)
        elif annotation in (int, int | None):
            attributes.setdefault("type", int)
        if not self.names:
            if "TOPIC" in (attributes["metavar"] or name.upper()):
                attributes.setdefault("shell_complete", complete_topics)
            attributes |= {"nargs": -1} if is_repeated else {}
            attributes |= {"required": False} if type(None) in get_args(annotation) else {}
            return click.Argument([name], **attributes)
        if annotation is bool:
            attributes["is_flag"] = True
        elif "default" in attributes:
            attributes.setdefault("show_default", True)
        return click.Option([*self.names, name], multiple=is_repeated, **attributes)


def argument(metavar: str | None = None, **attributes: object) -> Any:  # noqa: ANN401 - stands for a value of any type
    """Declare an argument, with the attributes of click."""
    return Declared((), {"metavar": metavar, **attributes})


def option(form: str, text: str, **attributes: object) -> Any:  # noqa: ANN401 - stands for a value of any type
    """Declare an option in its `form` (``-n, --name NAME``) with its help `text` and click's attributes."""
    names, _, metavar = form.partition(" ") if ", " not in form else form.replace(", ", ",").partition(" ")
    return Declared(tuple(names.split(",")), {"metavar": metavar or None, "help": text, **attributes})


def command(
    name: str,
    group: click.Group | None = None,
    *,
    example: str | None = None,
    has_progress: bool = False,
    **attributes: Any,  # noqa: ANN401 - click's
) -> Callable[[Callable[..., object]], Any]:
    """Make a command of a function, with its docstring as help, and add the command to `group`."""

    def declared(function: Callable[..., object]) -> click.Command:
        hints = get_type_hints(function)
        groups = [(name, hints[name]) for name, each in _defaults(function) if each is GROUP]

        def invoke(**values: Any) -> object:  # noqa: ANN401 - the parsed values
            for name, group_type in groups:
                values[name] = _group(group_type, values)
            if "session" not in hints:
                return function(**values)
            context = click.get_current_context()
            mode, session = values.pop("progress", None), context.find_object(Session)
            assert session is not None, "made by the main command"
            operation = context.command_path.partition(" ")[2]
            with session.progress.use(mode, operation) if has_progress else nullcontext():
                return function(session, **values)

        made: click.Command = attributes.pop("cls", click.Command)(
            name,
            callback=invoke,
            params=[
                *getattr(function, "__click_params__", ()),
                *_parameters(function),
                *([PROGRESS.parameter("progress", str)] if has_progress else []),
            ],
            help=function.__doc__,
            epilog=f"\b\nExample: tiered {example}\n{_CODES}" if example else attributes.pop("epilog", None),
            **attributes,
        )
        if group is not None:
            group.add_command(made)
        return made

    return declared


def _group(group_type: Any, values: dict[str, Any]) -> object:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(group_type)
    return group_type(
        **{
            field.name: _group(hints[field.name], values) if field.default is GROUP else values.pop(field.name)
            for field in dataclasses.fields(group_type)
        }
    )


def _defaults(source: Any) -> list[tuple[str, object]]:  # noqa: ANN401 - a function or a dataclass
    return [(name, each.default) for name, each in inspect.signature(source).parameters.items()]


def _parameters(source: Any) -> Iterator[click.Parameter]:  # noqa: ANN401 - a function or a dataclass
    hints = get_type_hints(source)
    for name, declared in _defaults(source):
        if declared is GROUP:
            yield from _parameters(hints[name])
        elif isinstance(declared, Declared):
            yield declared.parameter(name, hints[name])
            if declared is OUTPUT:
                yield _RAW.parameter("raw", bool)


def settings_option(text: str) -> Any:  # noqa: ANN401 - stands for a value of any type
    """Declare the repeatable ``-X key=value``, a dict."""

    def parsed(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        return dict(parse_setting(value, parameter.opts[0]) for value in values)

    return option("-X KEY=VALUE", text, callback=parsed, shell_complete=complete_settings)


GROUP: Any = object()
FORMATS = ("table", "json", "jsonl", "csv")
RAW = "tiered.raw"  # of click's context


def _note_raw(ctx: click.Context, parameter: click.Parameter, is_raw: bool) -> None:
    ctx.meta[RAW] = ctx.meta.get(RAW, False) or is_raw


OUTPUT = option("-o, --output", "Set the output format.", type=click.Choice(FORMATS), default="table")
_RAW = option("--raw", "Print exact numbers in a table: bytes, ms.", expose_value=False, callback=_note_raw)
PROGRESS = option(
    "--progress",
    "Choose the progress display: a bar on a terminal; lines; JSON events; or none.",
    type=click.Choice(MODES),
    default="auto",
)
YES = option("--yes", "Do not ask for confirmation.")
TOPICS = argument("[TOPIC]...")
PARTITIONS = argument("[TOPIC[/PARTITION] ...]")
REMOTE = option("--remote URL", "Read this bucket only; needs no configuration.")
REMOTE_OPTIONS = option("--option NAME=VALUE", "Option of the store of --remote.", callback=store_options)


class LayoutWords(TypedDict):
    """The layout parameters of `tiered.open_remote`."""

    layout: str
    prefixes: tuple[str, ...]
    private_keys: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout options of a bucket that other software may have filled."""

    layout: str = option(
        "--layout",
        "Set the layout of the --remote bucket, by the software that wrote it.",
        choices=LAYOUTS,
        default=LAYOUTS[0],
    )
    prefixes: tuple[str, ...] = option("--layout-prefix TEXT", "Set key.prefix of Aiven; repeatable.")
    private_keys: tuple[str, ...] = option("--layout-key ID=FILE", "Name RSA keys of Aiven; repeatable.")

    @property
    def is_given(self) -> bool:
        return bool(self.layout != LAYOUTS[0] or self.prefixes or self.private_keys)

    def words(self) -> LayoutWords:
        """Return the options as typed. Raises InvalidRequest for a key without a file."""
        files = {}
        for text in self.private_keys:
            key_id, equals, path = text.partition("=")
            if not key_id or not equals or not path:
                raise InvalidRequest("invalid --layout-key, it is not of the form id=file", text=repr(text))
            files[key_id] = path
        return LayoutWords(layout=self.layout, prefixes=self.prefixes or ("",), private_keys=files)

    def open_bucket(
        self, session: Session, url: str, options: dict[str, object], topic: str, topic_id: str | None
    ) -> RemoteLog:
        """Open a bucket to read `topic`, with its id if several topics have the name. Raises as `open_remote`."""
        session.set_up_logging()
        from tiered.tables.remote_tables import open_remote

        topic_ids = {topic: topic_id} if topic_id is not None else {}
        return open_remote(url, options, topic_ids=topic_ids, **self.words())


OWN_LAYOUT = Layout(layout=LAYOUTS[0], prefixes=(), private_keys=())
