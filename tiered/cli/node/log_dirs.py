"""``tiered log-dirs``: list the content of each disk, and move partitions between disks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import parse_partition_at
from tiered.cli.byte_progress import byte_progress
from tiered.cli.errors import Exit
from tiered.cli.progress import progress_option
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes

if TYPE_CHECKING:
    from tiered.inspect.log_dir_usage import LogDirStatus


@click.group("log-dirs", invoke_without_command=True)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic's partitions; may be repeated.")
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="A line for each partition.")
@output_option()
@click.pass_context
def log_dirs(ctx: click.Context, topics: tuple[str, ...], by_partition: bool, output: str) -> int:
    """The log directories: state, partitions, bytes, free space. Exit 10 when one is offline."""
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    from tiered.inspect.log_dir_usage import describe_log_dirs

    session = ctx.find_object(Session)
    assert session is not None, "made by the main command"
    found = describe_log_dirs(session.config(), topics)
    if by_partition:
        emit("partitions", _partition_rows(found), _PARTITIONS, output)
    else:
        emit("directories", [_row(each) for each in found], _DIRECTORIES, output)
    offline = [each for each in found if each.error is not None]
    for each in offline:
        click.echo(f"! {each.facts.path}: {' '.join(str(each.error).split())}", err=True)
    return Exit.UNHEALTHY if offline else Exit.DONE


@log_dirs.command("move")
@click.argument("partition", metavar="TOPIC/PARTITION")
@click.option("--to", "target", required=True, metavar="DIR", help="One of the configured directories.")
@click.option("--dry-run", is_flag=True, help="Only show where it is, how large, and whether there is room.")
@output_option()
@progress_option
@click.pass_obj
def move(session: Session, partition: str, target: str, dry_run: bool, output: str) -> None:
    """Move a partition to another log directory; a crash at any point leaves it whole in one of them."""
    name, offset = parse_partition_at(partition)
    if offset is not None:
        raise InvalidRequest("moving a partition, all of it moves", text=repr(partition), expected="'TOPIC/PARTITION'")
    known = session.config().data_dirs
    here = os.path.abspath(target)
    root = here if here in known else os.path.abspath(os.path.join(session.directory, target))
    if dry_run:
        from tiered.inspect.log_dir_usage import plan_move

        planned = plan_move(session.config(), name, root)
        row = {"topic": name.topic, "partition": name.partition, "from": planned.source, "to": planned.target}
        emit("moves", [{**row, "size_bytes": planned.size_bytes, "free_bytes": planned.free_bytes}], _MOVE, output)
        session.say("nothing changed")
        return
    # No other process reads here: the old files need no grace period.
    with session.manager(overrides={"file.delete.delay.ms": "0"}) as manager:
        size_bytes = sum(info.size_bytes for info in manager.partition(name).log.segments())
        with byte_progress(session, "moved", size_bytes) as advance:
            manager.move(name, root, now_ms=now_ms(), progress=_counting_up(advance))
    session.say(f"moved {name} to {root}")


def _counting_up(advance: Callable[[int], None]) -> Callable[[int, int], None]:
    """Adapt a callback for totals: a segment cleaned during the copy is subtracted and copied again."""
    reached = 0

    def tell(done: int, everything: int) -> None:
        nonlocal reached
        advance(max(0, done - reached))
        reached = max(reached, done)

    return tell


def _row(each: LogDirStatus) -> Row:
    return {
        "path": each.facts.path,
        "state": each.state,
        "partitions": each.facts.partition_count if each.error is None else None,
        "size_bytes": each.size_bytes if each.error is None else None,
        "free_bytes": each.facts.free_bytes,
        "total_bytes": each.facts.total_bytes,
        "error": str(each.error) if each.error is not None else None,
    }


def _partition_rows(found: list[LogDirStatus]) -> Iterator[Row]:
    for each in found:
        for replica in each.replicas:
            yield {
                "path": each.facts.path,
                "topic": replica.partition.topic,
                "partition": replica.partition.partition,
                "size_bytes": replica.size_bytes,
                "is_future": replica.is_future,
                "is_deleted": replica.is_deleted,
                "what": "future" if replica.is_future else "leaving" if replica.is_deleted else "",
            }


_DIRECTORIES = (
    Column("path", "DIRECTORY"),
    Column("state", "STATE"),
    Column("partitions", "PARTS", is_number=True),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("free_bytes", "FREE", format_bytes, is_number=True),
    Column("total_bytes", "OF", format_bytes, is_number=True),
    Column("error"),
)
_MOVE = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("from", "FROM"),
    Column("to", "TO"),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("free_bytes", "FREE THERE", format_bytes, is_number=True),
)
_PARTITIONS = (
    Column("path", "DIRECTORY"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("is_future"),
    Column("is_deleted"),
    Column("what", "MOVING", only_table=True),
)
