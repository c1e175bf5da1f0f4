"""``tiered restore``: restore topics of a bucket to a disk. ``tiered fork``: a topic of another one's records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import DRY_RUN, BucketCommand
from tiered.cli.options import GROUP, YES, argument, command, option, parse_time
from tiered.cli.progress import byte_progress
from tiered.cli.render import PartitionRow, PricedWork, Work, number
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.migrate.restore_plan import SkippedPartition
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


class RestoredRow(PartitionRow):
    """As planned; `epoch` null: the present writer was not fenced."""

    log_start_offset: Annotated[int, number("START")]
    next_offset: Annotated[int, number("END")]
    size_bytes: Annotated[int, number("LOCAL BYTES", format_bytes)]
    remote_bytes: Annotated[int, number("REMOTE-ONLY BYTES", format_bytes)]
    epoch: int | None
    open_transactions: int
    exact_from: int | None


class RestorePlanned(PricedWork):
    """``tiered restore --dry-run``."""

    partitions: list[PlannedRestore]


class Restored(Work):
    """``tiered restore``."""

    partitions: list[RestoredRow]


@command("restore", example="restore orders --to restored --dry-run", has_progress=True)
def restore(
    session: Session,
    targets: tuple[str, ...] = argument("TOPIC[/PARTITION] ...", required=True),
    directory: str = option("--to DIR", "Log directory to restore to; created if it does not exist.", required=True),
    local_segments: str = option(
        "--local",
        "Segments that get local files; the others are read from the bucket and require --take-over.",
        choices=["all", "recent", "none"],
        default="all",
    ),
    to_offset: int | None = option(
        "--to-offset", "Restore only the records below this offset, of each partition.", least=0
    ),
    to_time: str | None = option(
        "--to-time, --at TIME", "Restore only the records before the first record of this time or later."
    ),
    take_over: bool = option("--take-over", "Become the writer of the topics; the previous writer is fenced."),
    accept_missing_keys: bool = option(
        "--accept-missing-keys", "Restore a compacted topic up to a cut even if keys may be missing below it."
    ),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    rate: str | None = option("--rate SIZE/s", "Limit the read rate."),
    job: BucketCommand = GROUP,
) -> int:
    """Restore topics from the bucket to a log directory that this manager or a Kafka broker can open."""
    from local.storage import DiskStorage
    from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
    from tiered.migrate.restore_running import check_restore, run_restore

    wish = RestoreWish(
        kept=LocalSegments(local_segments),
        to_offset=to_offset,
        to_time_ms=parse_time(to_time, now_ms()) if to_time is not None else None,
        takes_over=take_over,
        accepts_missing_keys=accept_missing_keys,
    )
    wish.check()
    if not directory:
        raise click.UsageError("--to is empty, name a directory")
    root = os.path.abspath(directory)
    with job.opened(rate=rate) as bucket:
        names = bucket.partitions(targets, job.topic_id)
        skipped: list[SkippedPartition] = []
        missing = bucket.missing(targets, names)
        plan = plan_restore(
            bucket.store, names, wish, now_ms=now_ms(), keys=bucket.keys, skipped=skipped, missing=missing
        )
        check_restore(plan, DiskStorage(), root)
        parts = [each for topic in plan for each in topic.partitions]
        costs = [each.cost(session.prices()) for each in parts]
        rows = [
            PlannedRestore.of(each.name, each, each.manifest, cost, segments=len(each.entries))
            for each, cost in zip(parts, costs, strict=True)
        ]
        planned = RestorePlanned(dry_run=dry_run, dollars=sum(cost.dollars for cost in costs), partitions=rows)
        fenced = " (fences the current writer)" if any(topic.wish.takes_over for topic in plan) else ""
        summary = f"{counted(len(parts), 'partition')}, {format_bytes(sum(cost.read_bytes for cost in costs))}"
        summary += f" to {root} for about ${format_dollars(planned.dollars)}{fenced}"
        if not job.proceeds(planned, "restore", "restored", summary, yes=yes):
            return _print_skipped(skipped)
        with byte_progress(session, "restored", sum(each.size_bytes for each in parts)) as progress:
            outcome = run_restore(
                bucket.store,
                plan,
                DiskStorage(),
                root,
                now_ms=now_ms,
                keys=bucket.keys,
                should_stop=job.should_stop,
                progress=progress,
            )
    done = [RestoredRow.of(each.partition, each) for each in outcome.partitions]
    job.print(Restored(dry_run=False, partitions=done))
    if not outcome.is_complete:
        return job.interrupted("complete files stay, run the same command to resume")
    _say_rest(session, outcome.partitions, root)
    return _print_skipped([*skipped, *outcome.skipped])


def _print_skipped(skipped: Sequence[SkippedPartition]) -> int:
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


class ForkedPartition(PartitionRow):
    """A partition of the fork."""

    log_start_offset: Annotated[int, number("START")]
    next_offset: Annotated[int, number("END")]
    segments: Annotated[int, number("SEGMENTS", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    topic_id: str


class Forked(PricedWork):
    """``tiered fork``."""

    partitions: list[ForkedPartition]


@command("fork", example="fork orders orders-before --dry-run", has_progress=True)
def fork(
    session: Session,
    topic: str = argument("TOPIC"),
    fork_topic: str = argument("NEW_TOPIC"),
    to_offset: int | None = option("--to-offset", "Include only segments below this offset.", least=0),
    dry_run: bool = option("--dry-run", "Show the contents and the price of the fork, change nothing."),
    yes: bool = YES,
    job: BucketCommand = GROUP,
) -> int:
    """Create a topic in the same bucket that reads the segments of TOPIC; no segment is copied."""
    from remote.manifest.catalog import chosen_partitions
    from tiered.migrate.fork import plan_fork, run_fork

    if "/" in topic:
        raise InvalidRequest("cannot fork a single partition, name a topic", topic=topic)
    with job.opened() as bucket:
        known = chosen_partitions(bucket.store, [(fork_topic, None)])
        names = bucket.partitions([topic], job.topic_id)
        plan = plan_fork(bucket.store, names, fork_topic, known=known, upto_offset=to_offset)
        dollars, done = plan.dollars(session.prices()), plan.partitions
        if not dry_run:
            count = counted(len(plan.partitions), "partition")
            confirm(
                f"fork {topic} as {fork_topic}?", yes=yes, without=f"{count} for ${format_dollars(dollars)}: add --yes"
            )
            session.progress.expect(len(plan.partitions), "partitions")
            done = run_fork(
                bucket.store, plan, now_ms=now_ms, should_stop=job.should_stop, progress=session.progress.advance
            )
    rows = [
        ForkedPartition.of(each.fork, each, log_start_offset=each.manifest.log_start_offset, segments=len(each.entries))
        for each in done
    ]
    job.print(Forked(dry_run=dry_run, dollars=dollars, partitions=rows))
    if len(done) < len(plan.partitions):
        return job.interrupted("run the same command to resume")
    session.say(
        "nothing changed" if dry_run else f"next: tiered restore {fork_topic} --local none --take-over --to DIR"
    )
    for name in plan.missing:
        what = "the bucket has no manifest of this partition: its records may be lost, and the fork lacks them"
        click.echo(f"! {name.topic}/{name.partition}: {what}", err=True)
    return Exit.FAILED if plan.missing else Exit.DONE
