"""``tiered restore``: restore topics of a bucket to a disk; shows a plan first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.arguments import parse_time
from tiered.cli.bucket_options import bucket_options, open_bucket
from tiered.cli.errors import Exit, worst
from tiered.cli.progress import byte_progress, progress_option
from tiered.cli.render import PartitionRow, PricedWork, Work, number, output_option, print_result
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from tiered.migrate.restore_plan import PartitionRestore, SkippedPartition, TopicRestore
    from tiered.migrate.restore_running import RestoredPartition


class PlannedRestore(PartitionRow):
    """`size_bytes` on the disk, `remote_bytes` in the bucket alone. Keys may be missing below `exact_from`."""

    log_start_offset: Annotated[int, number("START")]
    next_offset: Annotated[int, number("END")]
    segments: Annotated[int, number("SEGMENTS", format_count)]
    size_bytes: Annotated[int, number("LOCAL BYTES", format_bytes)]
    remote_bytes: Annotated[int, number("REMOTE-ONLY BYTES", format_bytes)]
    read_bytes: Annotated[int, number("READ", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]
    exact_from: int | None


class RestorePlanned(PricedWork):
    """``tiered restore --dry-run``."""

    partitions: list[PlannedRestore]


class RestoredRow(PartitionRow):
    """As planned; `epoch` null: the present writer was not fenced."""

    log_start_offset: Annotated[int, number("START")]
    next_offset: Annotated[int, number("END")]
    size_bytes: Annotated[int, number("LOCAL BYTES", format_bytes)]
    remote_bytes: Annotated[int, number("REMOTE-ONLY BYTES", format_bytes)]
    epoch: int | None
    open_transactions: int
    exact_from: int | None


class Restored(Work):
    """``tiered restore``."""

    partitions: list[RestoredRow]


@click.command("restore")
@click.argument("targets", nargs=-1, required=True, metavar="TOPIC[/PARTITION] ...")
@click.option(
    "--to", "directory", required=True, metavar="DIR", help="Log directory to restore to; created if it does not exist."
)
@click.option(
    "--local",
    "kept",
    type=click.Choice(["all", "recent", "none"]),
    default="all",
    show_default=True,
    help=("Segments that get local files; the others are read from the bucket and require --take-over."),
)
@click.option(
    "--to-offset", type=click.IntRange(0), help="Restore only the records below this offset, of each partition."
)
@click.option(
    "--to-time",
    "--at",
    "to_time",
    metavar="TIME",
    help="Restore only the records before the first record of this time or later.",
)
@click.option("--take-over", is_flag=True, help="Become the writer of the topics; the previous writer is fenced.")
@click.option(
    "--accept-missing-keys",
    is_flag=True,
    help="Restore a compacted topic up to a cut even if keys may be missing below it.",
)
@click.option("--dry-run", is_flag=True, help="Show requests, bytes and dollars, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--rate", metavar="SIZE/s", help="Limit the read rate.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
def restore(
    session: Session,
    targets: tuple[str, ...],
    directory: str,
    kept: str,
    to_offset: int | None,
    to_time: str | None,
    take_over: bool,
    accept_missing_keys: bool,
    dry_run: bool,
    yes: bool,
    rate: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
) -> int:
    """Put topics of a bucket back on a disk, as a log directory that this manager or a Kafka broker opens."""
    from local.storage import DiskStorage
    from tiered.migrate.restore_files import check_restore
    from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
    from tiered.migrate.restore_running import run_restore

    wish = RestoreWish(
        kept=LocalSegments(kept),
        to_offset=to_offset,
        to_time_ms=parse_time(to_time, now_ms()) if to_time is not None else None,
        takes_over=take_over,
        accepts_missing_keys=accept_missing_keys,
    )
    wish.check()
    if not directory:
        raise click.UsageError("--to is empty, name a directory")
    root = os.path.abspath(directory)
    with stop_signals() as stop, open_bucket(session, url, options, rate=rate) as bucket:
        names = bucket.partitions(targets, topic_id)
        skipped: list[SkippedPartition] = []
        missing = bucket.missing(targets, names)
        plan = plan_restore(
            bucket.store, names, wish, now_ms=now_ms(), keys=bucket.keys, skipped=skipped, missing=missing
        )
        check_restore(plan, DiskStorage(), root)
        parts = [each for topic in plan for each in topic.partitions]
        prices = session.prices()
        dollars = sum(each.dollars(prices) for each in parts)
        if dry_run:
            rows = [_planned(each, prices) for each in parts]
            print_result(RestorePlanned(dry_run=True, dollars=dollars, partitions=rows), output)
            session.say(f"${format_dollars(dollars)}; nothing changed")
            return _print_skipped(skipped)
        if not yes:
            _ask(plan, parts, root, dollars)
        with byte_progress(session, "restored", sum(each.size_bytes for each in parts)) as progress:
            outcome = run_restore(
                bucket.store,
                plan,
                DiskStorage(),
                root,
                now_ms=now_ms,
                keys=bucket.keys,
                should_stop=lambda: stop.is_set,
                progress=progress,
            )
    done = [RestoredRow.of(each.partition, each) for each in outcome.partitions]
    print_result(Restored(dry_run=False, partitions=done), output)
    if not outcome.is_complete:
        session.say("interrupted; complete files stay, run the same command to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    _say_rest(session, outcome.partitions, root)
    return _print_skipped([*skipped, *outcome.skipped])


def _ask(plan: Sequence[TopicRestore], parts: Sequence[PartitionRestore], root: str, dollars: float) -> None:
    size = format_bytes(sum(each.read_bytes for each in parts))
    fenced = "; the current writer is fenced" if any(topic.wish.takes_over for topic in plan) else ""
    summary = f"{counted(len(parts), 'partition')}, {size} to {root} for about ${format_dollars(dollars)}{fenced}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{summary}: add --yes")
    click.confirm(f"restore {summary}?", abort=True, err=True)


def _print_skipped(skipped: Sequence[SkippedPartition]) -> int:
    """Print each partition that prevented the restore of its topic; return the exit code."""
    for each in skipped:
        hint = "exclude the topic: name its other partitions, or repair this one ('tiered scrub')"
        click.echo(f"! {each.name.topic}/{each.name.partition}: {each.error}; {hint}", err=True)
    return worst(each.error for each in skipped)


def _say_rest(session: Session, done: Sequence[RestoredPartition], root: str) -> None:
    for each in done:
        if each.exact_from is not None:
            click.echo(f"! {each.partition}: keys may be missing; complete from offset {each.exact_from}", err=True)
        if each.open_transactions:
            hint = (
                f"{each.open_transactions} transactions have no end in the restored records: 'tiered "
                "transactions' lists and ends them"
            )
            click.echo(f"! {each.partition}: {hint}", err=True)
    session.say(f"next: tiered verify {root}")


def _planned(each: PartitionRestore, prices: PriceTable) -> PlannedRestore:
    start = each.manifest.log_start_offset
    return PlannedRestore.of(
        each.name, each, log_start_offset=start, segments=len(each.entries), dollars=each.dollars(prices)
    )
