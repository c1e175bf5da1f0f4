"""``tiered compact``: clean a topic now, on the disk or in the bucket, or estimate the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiered.cli.bucket_options import bucket_options
from tiered.cli.errors import worst
from tiered.cli.progress import progress_option
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_options
from tiered.config.units import format_bytes, format_count

if TYPE_CHECKING:
    from local.names import TopicPartition
    from tiered.jobs.topic_compaction import Estimate
    from tiered.maintenance.apply import Applied


@click.command("compact")
@click.argument("topic")
@click.option("--roll", is_flag=True, help="Seal the active segment before, so that its records are cleaned too.")
@click.option(
    "--dry-run", is_flag=True, help="Only estimate the gain: reads the dirty keys and a sample, writes nothing."
)
@click.option("--bucket", "in_bucket", is_flag=True, help="What is in the bucket, instead of what is on the disk.")
@click.option("--resume", "job_id", metavar="JOB", help="In the bucket: go on with this job, or name one.")
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
        raise click.UsageError("--dry-run seals nothing: leave out --roll")
    if in_bucket or url is not None or on_spark.is_wanted:
        if roll:
            raise click.UsageError("--roll is for the disk; in the bucket all segments are closed")
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
        raise click.UsageError("--resume and --topic-id are for the bucket: say --bucket, --remote or --spark")
    return _foretell(session, topic, output) if dry_run else _clean(session, topic, roll, output)


def _foretell(session: Session, topic: str, output: str) -> int:
    from tiered.jobs.topic_compaction import estimate_topic

    with session.manager(read_only=True) as manager:
        found = estimate_topic(manager, topic, now_ms=now_ms())
        problems = {name: error for name, error in manager.problems.items() if name.topic == topic}
    emit("partitions", [_estimate_row(each) for each in found], _ESTIMATES, output, dry_run=True)
    session.tell_problems(problems)
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
    rows = [_row(name, done.get(name)) for name in names if name not in problems]
    emit("partitions", rows, _COLUMNS, output, dry_run=False)
    session.tell_problems(problems)
    return worst(problems.values())


def _row(name: TopicPartition, applied: Applied | None) -> Row:
    """A row without figures if there was nothing to clean."""
    row: Row = {"topic": name.topic, "partition": name.partition, "is_cleaned": False}
    for result in applied.cleaned if applied is not None else ():
        gone = 1 - result.bytes_after / result.bytes_before if result.bytes_before else 0.0
        row = {
            **row,
            "is_cleaned": True,
            "cleaner_offset": result.cleaner_offset,
            "bytes_before": result.bytes_before,
            "bytes_after": result.bytes_after,
            "records_before": result.records_before,
            "records_after": result.records_after,
            "invalid_records": result.invalid_records,
            "size_reduction": round(gone, 4),
        }
    return row


def _estimate_row(each: Estimate) -> Row:
    return {
        "topic": each.log.partition.topic,
        "partition": each.log.partition.partition,
        "first_dirty_offset": each.log.first_dirty_offset,
        "upto_offset": each.log.first_uncleanable_offset,
        "bytes_before": each.bytes_before,
        "bytes_after": each.bytes_after,
        "size_reduction": round(each.size_reduction, 4),
        "distinct_keys": each.distinct_keys,
        "invalid_records": each.keyless_records,
        "dirty_records": each.dirty_records,
        "sampled_bytes": each.sampled_bytes,
        "tiered_bytes": each.tiered_bytes,
        "basis": each.basis,
    }


def _share(value: float) -> str:
    return f"{value:.1%}"


_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("is_cleaned"),
    Column("bytes_before", "BEFORE", format_bytes, is_number=True),
    Column("bytes_after", "AFTER", format_bytes, is_number=True),
    Column("size_reduction", "GAINED", _share, is_number=True),
    Column("records_before", "RECORDS", format_count, is_number=True),
    Column("records_after", "LEFT", format_count, is_number=True),
    Column("invalid_records", "WITHOUT KEY", format_count, is_number=True),
    Column("cleaner_offset", "CLEAN TO", format_count, is_number=True),
)
_ESTIMATES = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("first_dirty_offset"),
    Column("upto_offset"),
    Column("bytes_before", "BEFORE", format_bytes, is_number=True),
    Column("bytes_after", "ABOUT AFTER", format_bytes, is_number=True),
    Column("size_reduction", "GAIN", _share, is_number=True),
    Column("distinct_keys", "KEYS", format_count, is_number=True),
    Column("invalid_records", "WITHOUT KEY", format_count, is_number=True),
    Column("dirty_records"),
    Column("sampled_bytes"),
    Column("tiered_bytes"),
    Column("basis", "RESTS ON"),
)
