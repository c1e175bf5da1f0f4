"""``tiered log-dirs``: list the content of each disk, and move partitions between disks."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest
from local.names import check_topic
from policies.placement import Broker, alternate_racks, assign_replicas
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, argument, command, option, parse_partition_at
from tiered.cli.render import Column, PartitionRow, Result, Struct, number, print_result, print_table, text
from tiered.cli.session import Session
from tiered.config.units import format_bytes
from tiered.config.user_files import read_given

if TYPE_CHECKING:
    from tiered.inspect.log_dir_usage import LogDirStatus


class LogDirectory(Struct):
    """A log directory. Null: it cannot be read, and `error` says why."""

    path: Annotated[str, text("DIRECTORY")]
    state: Annotated[str, text("STATE")]
    partitions: Annotated[int | None, number("PARTITIONS")]
    size_bytes: Annotated[int | None, number("SIZE", format_bytes)]
    free_bytes: Annotated[int | None, number("FREE", format_bytes)]
    total_bytes: Annotated[int | None, number("TOTAL", format_bytes)]
    error: str | None


class LogDirs(Result):
    """``tiered log-dirs``."""

    directories: list[LogDirectory]


def _moving(row: PlacedPartition) -> str:
    return "future" if row.is_future else "leaving" if row.is_deleted else ""


class PlacedPartition(Struct):
    """A partition's directory: `is_future` is moving in, `is_deleted` is being deleted."""

    path: Annotated[str, text("DIRECTORY")]
    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    is_future: bool
    is_deleted: Annotated[bool, text("MOVING", of=_moving)]


class Move(PartitionRow):
    """`free_bytes` null: the file system does not report it."""

    from_: Annotated[str, text("FROM")] = msgspec.field(name="from")
    to: Annotated[str, text("TO")]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    free_bytes: Annotated[int | None, number("FREE ON TARGET", format_bytes)]


class LogDirsPartitions(Result):
    """``tiered log-dirs -p``."""

    partitions: list[PlacedPartition]


class LogDirsMove(Result):
    """``tiered log-dirs move --dry-run``."""

    moves: list[Move]


@command("log-dirs", cls=click.Group, invoke_without_command=True, example="log-dirs --partitions")
def log_dirs(
    session: Session,
    topics: tuple[str, ...] = option("--topic NAME", "Show only partitions of this topic; may be repeated."),
    by_partition: bool = option("-p, --partitions", "Print a line for each partition."),
    output: str = OUTPUT,
) -> int:
    """Show the log directories: state, partitions, bytes, free space. Exit 10 if one is offline."""
    if click.get_current_context().invoked_subcommand is not None:
        return Exit.DONE
    from tiered.inspect.log_dir_usage import describe_log_dirs

    found = describe_log_dirs(session.config(), topics)
    if by_partition:
        replicas = [(each, replica) for each in found for replica in each.replicas]
        rows = [PlacedPartition.of(one.partition, one, each.facts, path=each.facts.path) for each, one in replicas]
        print_result(LogDirsPartitions(rows), output)
    else:
        print_result(LogDirs([_row(each) for each in found]), output)
    offline = [each for each in found if each.error is not None]
    for each in offline:
        click.echo(f"! {each.facts.path}: {' '.join(str(each.error).split())}", err=True)
    return Exit.UNHEALTHY if offline else Exit.DONE


@command("move", log_dirs, has_progress=True, example="log-dirs move orders/0 --to /mnt/disk2/logs")
def move(
    session: Session,
    partition: str = argument("TOPIC/PARTITION"),
    target: str = option("--to DIR", "Name one of the configured directories.", required=True),
    dry_run: bool = option(
        "--dry-run", "Show where the partition is, its size, and whether the target has space; move nothing."
    ),
    output: str = OUTPUT,
) -> None:
    """Move a partition to another log directory. After a crash it is complete in one of the two."""
    name, offset = parse_partition_at(partition)
    if offset is not None:
        raise InvalidRequest(
            "cannot move a part, the whole partition moves", text=repr(partition), expected="'TOPIC/PARTITION'"
        )
    known = session.config().data_dirs
    here = os.path.abspath(target)
    root = here if here in known else os.path.abspath(os.path.join(session.directory, target))
    if dry_run:
        from tiered.inspect.log_dir_usage import plan_move

        replica, source, goal = plan_move(session.config(), name, root)
        print_result(LogDirsMove([Move.of(name, replica, goal.facts, from_=source.facts.path, to=root)]), output)
        session.say("nothing changed")
        return
    from tiered.serve.node.operations import move_partition

    # Without a node no other process reads here.
    with session.node(verb="moved", overrides={"file.delete.delay.ms": "0"}) as node:
        node.run(move_partition, partition=name, directory=root)
    session.say(f"moved {name} to {root}")


def _row(each: LogDirStatus) -> LogDirectory:
    return LogDirectory.of(
        each,
        each.facts,
        partitions=each.facts.partition_count if each.error is None else None,
        size_bytes=each.size_bytes if each.error is None else None,
        error=str(each.error) if each.error is not None else None,
    )


class Replicas(PartitionRow):
    """The brokers of a partition, the preferred leader first."""

    replicas: list[int]


class Placement(Struct):
    """``tiered placement``: the input of ``kafka-reassign-partitions``, and so without `schema_version`."""

    version: int
    partitions: list[Replicas]


@command("placement", example="placement brokers.txt -p 8 -r 3")
def placement(
    session: Session,
    file: str | None = argument("[FILE|-]", type=click.Path(allow_dash=True)),
    brokers: str | None = option("--brokers ID[:RACK],...", "List the brokers, in place of FILE."),
    topic: str = option("--topic NAME", "Set the topic name in the JSON.", default="topic"),
    partitions: int = option("-p, --partitions N", "Set the number of partitions.", least=1, required=True),
    replication_factor: int = option(
        "-r, --replication-factor R", "Set the number of replicas of each partition.", least=1, required=True
    ),
    start: int | None = option("--start N", "Set the index of the first leader; default: random.", least=0),
    shift: int | None = option("--shift N", "Set the shift of the followers; default: random.", least=0),
    output: str = option("-o, --output", "Set the output format.", choices=("table", "json"), default="table"),
) -> None:
    """Assign replicas as Kafka does: leaders in turn, followers on the next brokers, spread over racks.

    FILE has one broker a line, or several separated by commas: ID or ID:RACK. The JSON is the input of Kafka's
    kafka-reassign-partitions.
    """
    fleet = parse_fleet(_text(file, brokers))
    check_topic(topic)
    # Random as in Kafka; printed, so that the same assignment can be requested again.
    draw = random.Random().randrange  # noqa: S311 - no secret hangs on it
    start = draw(len(fleet)) if start is None else start
    shift = draw(len(fleet)) if shift is None else shift
    assigned = assign_replicas(
        fleet, partitions=partitions, replication_factor=replication_factor, start_index=start, shift=shift
    )
    order = ",".join(str(each.broker_id) for each in alternate_racks(fleet))
    session.say(f"brokers in turn: {order} --start {start} --shift {shift}")
    rows = [Replicas(topic, number, list(each)) for number, each in assigned.items()]
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(Placement(1, rows))))
    else:
        print_table(rows, _columns({each.broker_id: each.rack for each in fleet}))


def parse_fleet(text: str) -> list[Broker]:
    """Parse ``0:rack1,1:rack2`` or one broker a line; ``#`` starts a comment. Raises InvalidRequest."""
    fleet = []
    for line in text.splitlines():
        for word in filter(None, (part.strip() for part in line.partition("#")[0].split(","))):
            number, colon, rack = word.partition(":")
            if not re.fullmatch(r"[0-9]{1,9}", number.strip()) or (colon and not rack.strip()):
                raise InvalidRequest("invalid brokers", text=repr(word), expected="an id such as 0, or 0:rack1")
            fleet.append(Broker(broker_id=int(number), rack=rack.strip() or None))
    if not fleet:
        raise InvalidRequest("invalid brokers, there is none", expected="'0:rack1,1:rack2' or a file with one a line")
    return fleet


def _text(file: str | None, brokers: str | None) -> str:
    if (file is None) == (brokers is None):
        raise InvalidRequest("invalid brokers, name either --brokers or a file")
    if brokers is not None or file is None:
        return brokers or ""

    hint = "one broker a line, such as 0:rack1"
    body = sys.stdin.buffer.read() if file == "-" else read_given(file, "invalid brokers", hint)
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("cannot read the brokers, the file is not UTF-8", file=file) from None


def _columns(racks: Mapping[int, str | None]) -> tuple[Column, ...]:
    def of_replicas(row: Replicas) -> str | None:
        found = [racks[each] for each in row.replicas]
        return ",".join(str(each) for each in found) if None not in found else None

    return (
        Column("partition", "PARTITION", is_number=True),
        Column("", "LEADER", is_number=True, of=lambda row: row.replicas[0]),
        Column("replicas", "REPLICAS", lambda each: ",".join(map(str, each))),
        Column("", "RACKS", of=of_replicas),
    )
