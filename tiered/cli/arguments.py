"""Parsers for partitions, positions and moments on the command line.

Invalid text raises InvalidRequest, which names the text.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass

import click

from local.errors import InvalidRequest
from local.names import TopicPartition, check_topic
from tiered.config.units import parse_bytes, parse_duration

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_COUNT_MAX = 2**63 - 1  # limit of an iterator's slice


@dataclass(frozen=True, slots=True)
class Position:
    """A start position: exactly one field is set.

    `last` counts records back from the end; `timestamp_ms` is absolute.
    """

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
        # The slash may belong to an invalid topic name or precede an invalid partition.
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
    """Parse ``orders/3`` or ``orders/3@17``: partition and offset. Raises InvalidRequest without a partition."""
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
    """Return the click type of a ``-n`` option."""
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
    """A click type: a number that is not NaN and not infinite.

    Python parses ``nan`` and ``1e400`` as floats, and click's ranges do not reject them.
    """

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
    """Return ms since the epoch: ``-2h`` before `now_ms`, a number of ms, or RFC 3339 (UTC without a zone)."""
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
