"""``tiered get-offsets``: the offsets of partitions that have a name, or belong to a time, over both tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.cli.arguments import parse_partition, parse_time
from tiered.cli.records import rfc3339
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms

if TYPE_CHECKING:
    from tiered.manager import LogManager

# Kafka's names and codes (`local.offset_spec`, `tiered.offset_listing`), and the words of `consume --from`.
_SPECS = {
    "latest": -1,
    "end": -1,
    "earliest": -2,
    "start": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}


@click.command("get-offsets")
@click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]")
@click.option(
    "--time",
    "spec",
    default="latest",
    show_default=True,
    metavar="SPEC",
    help="earliest, latest, max-timestamp, earliest-local, latest-tiered, earliest-pending-upload, "
    "@TIME, @-2h or a number of ms.",
)
@click.option("--committed", is_flag=True, help="latest is the last stable offset, below every open transaction.")
@output_option()
@click.pass_obj
def get_offsets(session: Session, targets: tuple[str, ...], spec: str, committed: bool, output: str) -> None:
    """One offset of each partition; of all topics without arguments. Empty where there is no such offset."""
    asked = parse_spec(spec, now_ms())
    names = [parse_partition(target) for target in targets]
    from local.isolation import Isolation

    with session.manager(read_only=True) as manager:
        partitions = _partitions(manager, names)
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        found = manager.list_offsets(dict.fromkeys(partitions, asked), isolation=isolation)
        problems = manager.problems if not names else {}
    rows: list[Row] = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "offset": each.offset if each is not None else None,
            "timestamp": each.timestamp_ms if each is not None else None,
            "leader_epoch": each.leader_epoch if each is not None else None,
        }
        for name, each in found.items()
    ]
    emit("offsets", rows, _COLUMNS, output)
    session.tell_problems(problems)


def parse_spec(text: str, now_ms: int) -> int:
    """Kafka's code of a name, or a timestamp in ms. Raises InvalidRequest."""
    if text in _SPECS:
        return _SPECS[text]
    codes = {str(code): code for code in _SPECS.values()}
    if text in codes:
        return codes[text]
    try:
        if text.startswith("-"):
            raise InvalidRequest("reading a time, what lies before now begins with @-")
        return max(0, parse_time(text.removeprefix("@"), now_ms))
    except InvalidRequest:
        expected = f"'{' '.join(_SPECS)} @TIME @-2h or a number of ms'"
        raise InvalidRequest("reading what offset is asked for", text=repr(text), expected=expected) from None


def _partitions(manager: LogManager, names: list[tuple[str, int | None]]) -> list[TopicPartition]:
    """Those asked for, each once; without a word all that could be opened."""
    found: dict[TopicPartition, None] = {}
    for topic, number in names or [(each.name, None) for each in manager.topics()]:
        chosen = manager.topic(topic).partitions() if number is None else [TopicPartition(topic, number)]
        found |= {each: None for each in chosen if names or each not in manager.problems}
    return list(found)


def _time(timestamp_ms: int) -> str:
    return rfc3339(timestamp_ms)


_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("offset", "OFFSET", is_number=True),
    Column("timestamp", "TIME", _time),
    Column("leader_epoch", "EPOCH", is_number=True),
)
