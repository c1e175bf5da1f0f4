"""``tiered log-dirs``: list the content of each disk, and move partitions between disks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest
from tiered.cli.arguments import parse_partition_at
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.progress import byte_progress
from tiered.cli.render import PartitionRow, Result, Struct, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes

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


class LogDirsPartitions(Result):
    """``tiered log-dirs -p``."""

    partitions: list[PlacedPartition]


class Move(PartitionRow):
    """`free_bytes` null: the file system does not report it."""

    from_: Annotated[str, text("FROM")] = msgspec.field(name="from")
    to: Annotated[str, text("TO")]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    free_bytes: Annotated[int | None, number("FREE ON TARGET", format_bytes)]


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
        print_result(LogDirsPartitions(_partition_rows(found)), output)
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

        planned = plan_move(session.config(), name, root)
        moved = Move.of(name, planned, from_=planned.source, to=planned.target)
        print_result(LogDirsMove([moved]), output)
        session.say("nothing changed")
        return
    # No other process reads here: the old files need no grace period.
    with session.manager(overrides={"file.delete.delay.ms": "0"}) as manager:
        size_bytes = sum(info.size_bytes for info in manager.partitions.find(name).log.segments())
        with byte_progress(session, "moved", size_bytes) as advance:
            manager.maintenance.move(name, root, now_ms=now_ms(), progress=_counting_up(advance))
    session.say(f"moved {name} to {root}")


def _counting_up(advance: Callable[[int], None]) -> Callable[[int, int], None]:
    """Adapt a callback for totals: a segment cleaned during the copy is subtracted and copied again."""
    reached = 0

    def report(done: int, everything: int) -> None:
        nonlocal reached
        advance(max(0, done - reached))
        reached = max(reached, done)

    return report


def _row(each: LogDirStatus) -> LogDirectory:
    return LogDirectory.of(
        each,
        each.facts,
        partitions=each.facts.partition_count if each.error is None else None,
        size_bytes=each.size_bytes if each.error is None else None,
        error=str(each.error) if each.error is not None else None,
    )


def _partition_rows(found: list[LogDirStatus]) -> list[PlacedPartition]:
    return [
        PlacedPartition.of(replica.partition, replica, each.facts, path=each.facts.path)
        for each in found
        for replica in each.replicas
    ]
