"""``tiered transactions``: list open transactions, and end one by abort or commit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.cli.arguments import parse_partition
from tiered.cli.errors import unread_code
from tiered.cli.options import OUTPUT, PARTITIONS, argument, command, option
from tiered.cli.records import rfc3339
from tiered.cli.render import PartitionRow, Result, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_count
from tiered.node.problem_groups import UnreadPartitions

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager
    from tiered.partition.partition import Partition


class OpenTransaction(PartitionRow):
    """A transaction without its end; `waiting` offsets are not returned to committed readers."""

    producer_id: Annotated[int, number("PRODUCER")]
    producer_epoch: Annotated[int, number("EPOCH")]
    first_offset: Annotated[int, number("FIRST OFFSET", format_count)]
    waiting: Annotated[int, number("DELAYED OFFSETS", format_count)]
    timestamp: Annotated[int, text("LAST RECORD", rfc3339)]


class Transactions(Result):
    """``tiered transactions list``."""

    unread: list[UnreadPartitions]
    transactions: list[OpenTransaction]


@click.group("transactions")
def transactions() -> None:
    """Find transactions that nobody has ended, and end them."""


@command("list", transactions)
def list_open(session: Session, targets: tuple[str, ...] = PARTITIONS, output: str = OUTPUT) -> int:
    """The open transactions of partitions; of all topics without arguments."""
    asked = [parse_partition(target) for target in targets]
    from tiered.partition.hanging_transactions import open_transactions
    from tiered.status.unknown_figures import unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        held = _held(manager, asked)
        problems = manager.problems if not asked else {}
        opened = {each.name for each in held}
        unread = {name: error for name, error in problems.items() if name not in opened}
        rows = [
            OpenTransaction.of(
                each.partition,
                each,
                waiting=held_one.log.next_offset - each.first_offset,
                timestamp=each.last_timestamp_ms,
            )
            for held_one in held
            for each in open_transactions(held_one)
        ]
    print_result(Transactions(unread_rows(unread), rows), output)
    session.report_problems(problems)
    return unread_code(unread.values())


@command("end", transactions)
def end(
    session: Session,
    target: str = argument("TOPIC/PARTITION"),
    producer_id: int = option(
        "--producer-id", "Name the producer of the transaction.", type=click.IntRange(0), required=True
    ),
    aborts: bool = option("--abort", "Abort: committed readers do not see its records."),
    commits: bool = option("--commit", "Commit: committed readers see its records."),
    yes: bool = option("--yes", "Do not ask for confirmation."),
    dry_run: bool = option("--dry-run", "Show the transaction that would end, change nothing."),
) -> None:
    """Write the marker that ends a producer's open transaction: --abort or --commit."""
    if aborts == commits:
        raise click.UsageError(f"add --abort or --commit{(', not both' if aborts else '')}")
    outcome = "abort" if aborts else "commit"
    topic, number = parse_partition(target)
    if number is None:
        raise InvalidRequest(
            "cannot end a transaction, name TOPIC/PARTITION", text=repr(target), expected="TOPIC/PARTITION"
        )
    if dry_run:
        from tiered.partition.hanging_transactions import find_open

        with session.manager(read_only=True, is_brief=True) as manager:
            (held,) = _held(manager, [(topic, number)])
            open_one = find_open(held, producer_id)
        since = f"producer_id={producer_id} first_offset={open_one.first_offset}"
        session.say(f"would {outcome}: partition={topic}/{number} {since}; nothing changed")
        return
    _confirm((f"{outcome} the open transaction of producer {producer_id} in {topic}/{number} permanently?"), yes)
    from tiered.partition.hanging_transactions import end_transaction

    with session.manager() as manager:
        (held,) = _held(manager, [(topic, number)])
        found = end_transaction(held, producer_id, commit=outcome == "commit", now_ms=now_ms())
    done = "aborted" if outcome == "abort" else "committed"
    session.say(f"{done}: partition={topic}/{number} producer_id={producer_id} first_offset={found.first_offset}")


def _held(manager: LogManager, asked: list[tuple[str, int | None]]) -> list[Partition]:
    """Return the requested partitions without duplicates, or all partitions of the manager.

    Raises NotFound, and the error of a requested partition that the manager could not open.
    """
    if not asked:
        return manager.partitions()
    wanted: dict[TopicPartition, Partition] = {}
    for topic, partition in asked:
        names = manager.topic(topic).partitions() if partition is None else [TopicPartition(topic, partition)]
        wanted |= {name: manager.partition(name) for name in names}
    return list(wanted.values())


def _confirm(question: str, yes: bool) -> None:
    """Ask at a terminal; otherwise require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this is permanent; add --yes")
    click.confirm(question, abort=True, err=True)
