"""``tiered compact``: clean a topic now, on the disk or in the bucket, or estimate the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.bucket_options import bucket_options
from tiered.cli.errors import worst
from tiered.cli.progress import progress_option
from tiered.cli.render import PartitionRow, Work, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_options
from tiered.config.units import format_bytes, format_count

if TYPE_CHECKING:
    from local.names import TopicPartition
    from tiered.jobs.topic_compaction import Estimate
    from tiered.maintenance.apply import Applied


def _share(value: float) -> str:
    return f"{value:.1%}"


class CompactedPartition(PartitionRow):
    """Null: there was nothing to clean."""

    is_cleaned: bool
    bytes_before: Annotated[int | None, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int | None, number("BYTES AFTER", format_bytes)]
    size_reduction: Annotated[float | None, number("REDUCTION", _share)]
    records_before: Annotated[int | None, number("RECORDS BEFORE", format_count)]
    records_after: Annotated[int | None, number("RECORDS AFTER", format_count)]
    invalid_records: Annotated[int | None, number("WITHOUT KEY", format_count)]
    cleaner_offset: Annotated[int | None, number("CLEAN UP TO", format_count)]


class Compacted(Work):
    """``tiered compact``."""

    partitions: list[CompactedPartition]


class EstimatedPartition(PartitionRow):
    """The estimated gain of a pass; `basis` says which part of it was counted."""

    first_dirty_offset: int
    upto_offset: int
    bytes_before: Annotated[int, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int, number("BYTES AFTER (EST.)", format_bytes)]
    size_reduction: Annotated[float, number("REDUCTION", _share)]
    distinct_keys: Annotated[int, number("KEYS", format_count)]
    invalid_records: Annotated[int, number("WITHOUT KEY", format_count)]
    dirty_records: int
    sampled_bytes: int
    tiered_bytes: int
    basis: Annotated[str, text("BASIS")]


class CompactEstimated(Work):
    """``tiered compact --dry-run``."""

    partitions: list[EstimatedPartition]


@click.command("compact")
@click.argument("topic")
@click.option("--roll", is_flag=True, help="Roll the active segment first, so that its records are cleaned too.")
@click.option("--dry-run", is_flag=True, help="Estimate the result: reads the dirty keys and a sample, writes nothing.")
@click.option("--bucket", "in_bucket", is_flag=True, help="Compact the segments in the bucket instead of the disk.")
@click.option("--resume", "job_id", metavar="JOB", help="With --bucket: resume this job, or name a new one.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
@spark_options
def compact(
    session: Session,
    topic: str,
    roll: bool,
    dry_run: bool,
    in_bucket: bool,
    job_id: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """Clean every dirty closed segment of a topic now, whatever min.cleanable.dirty.ratio says.

    Lags and open transactions hold as always. The next `tiered run` copies what is clean. With --bucket, --remote or
    --spark the segments in the bucket are cleaned, of TOPIC or TOPIC/PARTITION, beside a manager at work.
    """
    if dry_run and roll:
        raise click.UsageError("--dry-run does not roll: remove --roll")
    if in_bucket or url is not None or on_spark.is_wanted:
        if roll:
            raise click.UsageError("--roll applies to the disk; in the bucket all segments are closed")
        from tiered.cli.bucket.compact_bucket import compact_bucket

        return compact_bucket(
            session,
            topic,
            dry_run=dry_run,
            job_id=job_id,
            url=url,
            options=options,
            topic_id=topic_id,
            output=output,
            on_spark=on_spark,
        )
    if job_id is not None or topic_id is not None:
        raise click.UsageError("--resume and --topic-id apply to the bucket: add --bucket, --remote or --spark")
    return _foretell(session, topic, output) if dry_run else _clean(session, topic, roll, output)


def _foretell(session: Session, topic: str, output: str) -> int:
    from tiered.jobs.topic_compaction import estimate_topic

    with session.manager(read_only=True) as manager:
        found = estimate_topic(manager, topic, now_ms=now_ms())
        problems = {name: error for name, error in manager.problems.items() if name.topic == topic}
    print_result(CompactEstimated(dry_run=True, partitions=[_estimated(each) for each in found]), output)
    session.report_problems(problems)
    session.say("an estimate; nothing changed")
    return worst(problems.values())


def _clean(session: Session, topic: str, roll: bool, output: str) -> int:
    from tiered.jobs.topic_compaction import compact_topic

    with stop_signals() as stop, session.manager() as manager:
        names = manager.topic(topic).partitions()
        session.progress.expect(len(names), "partitions")
        done = compact_topic(
            manager,
            topic,
            now_ms=now_ms(),
            roll=roll,
            should_stop=lambda: stop.is_set,
            progress=lambda name, decision: session.progress.advance(),
        )
        problems = {name: error for name, error in manager.problems.items() if name.topic == topic}
    if not stop.is_set:
        session.progress.reach(len(names) - len(problems))  # partitions with nothing to clean report no progress
    rows = [_compacted(name, done.get(name)) for name in names if name not in problems]
    print_result(Compacted(dry_run=False, partitions=rows), output)
    session.report_problems(problems)
    return worst(problems.values())


def _compacted(name: TopicPartition, applied: Applied | None) -> CompactedPartition:
    """A row without figures if there was nothing to clean."""
    if applied is None or not applied.cleaned:
        return CompactedPartition.of(name, None, is_cleaned=False)
    last = applied.cleaned[-1]
    gone = 1 - last.bytes_after / last.bytes_before if last.bytes_before else 0.0
    return CompactedPartition.of(name, last, is_cleaned=True, size_reduction=round(gone, 4))


def _estimated(each: Estimate) -> EstimatedPartition:
    log, share = each.log, round(each.size_reduction, 4)
    facts = {"upto_offset": log.first_uncleanable_offset, "invalid_records": each.keyless_records}
    return EstimatedPartition.of(log.partition, each, log, size_reduction=share, **facts)
