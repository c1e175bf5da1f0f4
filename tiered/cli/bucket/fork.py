"""``tiered fork``: create a topic in the bucket with the same records, without copies; shows a plan first."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.bucket_options import bucket_options, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.progress import progress_option
from tiered.cli.render import PartitionRow, PricedWork, number, output_option, print_result
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.migrate.fork import ForkPlan


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


@click.command("fork")
@click.argument("topic", metavar="TOPIC")
@click.argument("fork_topic", metavar="NEW_TOPIC")
@click.option("--to-offset", type=click.IntRange(0), help="Include only segments below this offset.")
@click.option("--dry-run", is_flag=True, help="Show the contents and the price of the fork, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
def fork(
    session: Session,
    topic: str,
    fork_topic: str,
    to_offset: int | None,
    dry_run: bool,
    yes: bool,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
) -> int:
    """Make another topic of the same bucket whose segments are those of TOPIC; none is copied."""
    from remote.manifest.catalog import chosen_partitions
    from tiered.migrate.fork import plan_fork, run_fork

    if "/" in topic:
        raise InvalidRequest("cannot fork a single partition, name a topic", topic=topic)
    with stop_signals() as stop, open_bucket(session, url, options) as bucket:
        known = chosen_partitions(bucket.store, [(fork_topic, None)])
        names = bucket.partitions([topic], topic_id)
        plan = plan_fork(bucket.store, names, fork_topic, known=known, upto_offset=to_offset)
        dollars = plan.dollars(session.prices())
        if not dry_run:
            if not yes and not sys.stdin.isatty():
                raise click.UsageError(
                    f"{counted(len(plan.partitions), 'partition')} for ${format_dollars(dollars)}: add --yes"
                )
            if not yes:
                click.confirm(f"fork {topic} as {fork_topic}?", abort=True, err=True)
            session.progress.expect(len(plan.partitions), "partitions")
            done = run_fork(
                bucket.store,
                plan,
                now_ms=now_ms,
                should_stop=lambda: stop.is_set,
                progress=session.progress.advance,
            )
        else:
            done = plan.partitions
    rows = [
        ForkedPartition.of(each.fork, each, log_start_offset=each.manifest.log_start_offset, segments=len(each.entries))
        for each in done
    ]
    print_result(Forked(dry_run=dry_run, dollars=dollars, partitions=rows), output)
    if len(done) < len(plan.partitions):
        session.say("interrupted; run the same command to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    session.say(
        "nothing changed" if dry_run else f"next: tiered restore {fork_topic} --local none --take-over --to DIR"
    )
    return _print_missing(plan)


def _print_missing(plan: ForkPlan) -> int:
    """Print a line for each partition that the fork lacks; return the exit code."""
    for name in plan.missing:
        what = "the bucket has no manifest of this partition: its records may be lost, and the fork lacks them"
        click.echo(f"! {name.topic}/{name.partition}: {what}", err=True)
    return Exit.FAILED if plan.missing else Exit.DONE
