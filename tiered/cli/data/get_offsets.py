"""``tiered get-offsets``: the offsets of partitions by name or time, over both tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from local.errors import InvalidRequest, LogError
from local.names import TopicPartition
from tiered.cli.arguments import parse_partition, parse_time
from tiered.cli.errors import unread_code
from tiered.cli.options import OUTPUT, PARTITIONS, command, option
from tiered.cli.records import rfc3339
from tiered.cli.render import PartitionRow, Result, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.node.problem_groups import UnreadPartitions

if TYPE_CHECKING:
    from local.records.isolation import Isolation
    from local.records.offset_spec import FoundOffset
    from tiered.manager.manager import LogManager

# Kafka's names and codes (`local.records.offset_spec`, `tiered.read.offset_listing`), and the words of `consume
# --from`.
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


class OffsetFound(PartitionRow):
    """The requested offset; null if there is none."""

    offset: Annotated[int | None, number("OFFSET")]
    timestamp: Annotated[int | None, text("TIME", rfc3339)]
    leader_epoch: Annotated[int | None, number("EPOCH")]


class Offsets(Result):
    """``tiered get-offsets``."""

    unread: list[UnreadPartitions]
    offsets: list[OffsetFound]


@command("get-offsets")
def get_offsets(
    session: Session,
    targets: tuple[str, ...] = PARTITIONS,
    spec: str = option(
        "--time SPEC",
        "Choose the offset: earliest, latest, max-timestamp, earliest-local, latest-tiered, "
        "earliest-pending-upload, @TIME, @-2h or a number of ms.",
        default="latest",
    ),
    committed: bool = option(
        "--committed",
        "Choose the isolation; with read_committed latest is the last stable offset, below every open transaction.",
    ),
    output: str = OUTPUT,
) -> int:
    """One offset of each partition; of all topics without arguments. Empty where there is no such offset.

    An offset that could not be read is empty too: then a line says why, and the exit code is 6 or 10.
    """
    asked = parse_spec(spec, now_ms())
    names = [parse_partition(target) for target in targets]
    from local.records.isolation import Isolation
    from tiered.status.unknown_figures import unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        partitions = _partitions(manager, names)
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        found, unread = _found(manager, partitions, asked, isolation)
    rows = [
        OffsetFound.of(name, each, timestamp=each.timestamp_ms if each is not None else None)
        for name, each in found.items()
    ]
    print_result(Offsets(unread_rows(unread), rows), output)
    session.report_problems(unread)
    return unread_code(unread.values())


def _found(
    manager: LogManager, partitions: list[TopicPartition], asked: int, isolation: Isolation
) -> tuple[dict[TopicPartition, FoundOffset | None], dict[TopicPartition, LogError]]:
    """Return the offset of each partition, and the errors of partitions that could not be read."""
    found: dict[TopicPartition, FoundOffset | None] = {}
    unread: dict[TopicPartition, LogError] = {}
    for name in partitions:
        try:
            found |= manager.list_offsets({name: asked}, isolation=isolation)
        except LogError as error:
            if isinstance(error, InvalidRequest) or name not in manager.topic(name.topic).partitions():
                raise  # the request is invalid for every partition
            found[name], unread[name] = None, manager.problems.get(name, error)
    return found, unread


def parse_spec(text: str, now_ms: int) -> int:
    """Parse Kafka's code of a name, or a timestamp in ms. Raises InvalidRequest."""
    if text in _SPECS:
        return _SPECS[text]
    codes = {str(code): code for code in _SPECS.values()}
    if text in codes:
        return codes[text]
    try:
        if text.startswith("-"):
            raise InvalidRequest("invalid time, a time before now begins with @-")
        return max(0, parse_time(text.removeprefix("@"), now_ms))
    except InvalidRequest:
        expected = f"'{' '.join(_SPECS)} @TIME @-2h or a number of ms'"
        raise InvalidRequest("invalid --time", text=repr(text), expected=expected) from None


def _partitions(manager: LogManager, names: list[tuple[str, int | None]]) -> list[TopicPartition]:
    """Return the requested partitions without duplicates; without a name all."""
    found: dict[TopicPartition, None] = {}
    for topic, partition in names or [(each.name, None) for each in manager.topics()]:
        chosen = manager.topic(topic).partitions() if partition is None else [TopicPartition(topic, partition)]
        found |= dict.fromkeys(chosen)
    return list(found)
