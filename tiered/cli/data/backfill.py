"""``tiered backfill``: write a bucket's records as Parquet files, by Spark on this machine or a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from local.errors import InvalidRequest
from tiered.cli.arguments import Position, parse_partition, parse_position
from tiered.cli.errors import Exit
from tiered.cli.job_command import Bucket, JobCommand, open_bucket
from tiered.cli.options import GROUP, argument, command, option
from tiered.cli.progress import Lines
from tiered.cli.render import PartitionRow, Result, Work, number, text
from tiered.cli.session import Session, now_ms, store_options
from tiered.config.units import counted, format_bytes

_LINE_EVERY_S = 5.0


class PlannedExport(PartitionRow):
    """The range of a partition to export, in `tasks` tasks."""

    start_offset: Annotated[int, number("FROM")]
    next_offset: Annotated[int, number("TO")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    tasks: Annotated[int, number("TASKS")]


class BackfillPlan(Work):
    """``tiered backfill --dry-run``."""

    target: str
    ranges: list[PlannedExport]


class ParquetFile(PartitionRow):
    """A Parquet file."""

    base_offset: Annotated[int, number("FROM")]
    next_offset: Annotated[int, number("TO")]
    records: Annotated[int, number("RECORDS")]
    size_bytes: Annotated[int, number("BYTES")]
    key: Annotated[str, text("FILE")]


class Backfilled(Result):
    """``tiered backfill``."""

    job: str
    is_complete: bool
    records: int
    files: list[ParquetFile]


@command("backfill", example="backfill orders --from @-30d --to s3://my-lake/orders", has_progress=True)
def backfill(
    session: Session,
    targets: tuple[str, ...] = argument("TOPIC[/PARTITION] ...", required=True),
    target: str = option("--to URL", "Set the target of the files: s3://..., hdfs://..., file:///...", required=True),
    to_options: dict[str, object] = option(
        "--to-option NAME=VALUE", "Option of the store of --to.", callback=store_options
    ),
    start: str = option("--from POSITION", "First position: start, OFFSET, @TIME.", default="start"),
    end: str = option("--until POSITION", "End position: end, OFFSET, @TIME.", default="end"),
    codec: str = option("--codec NAME", "Set the compression of the files.", default="zstd"),
    read_committed: bool = option("--read-committed", "Omit records of aborted transactions."),
    parallel: str = option(
        "--parallel auto|N", "Set the number of concurrent tasks; auto: chosen by Spark.", default="auto"
    ),
    dry_run: bool = option("--dry-run", "Show which offsets and bytes would be read, write nothing."),
    job_id: str | None = option("--resume JOB", "Resume this job, or start a job with this name."),
    job: JobCommand = GROUP,
) -> int:
    """Write records of the bucket as Parquet, by topic and day of their time, with Spark. Changes nothing in it."""
    from remote.store.open_store import open_store

    now, tasks = now_ms(), parse_parallel(parallel)
    with open_bucket(session, job.url, job.options) as bucket:
        bucket.partitions(targets, job.topic_id)  # report errors before the slow start of Spark
        open_store(target, to_options).close()  # no request: checks the url and the options
        read: dict[str, Any] = read_options(bucket, targets, parse_position(start, now), parse_position(end, now))
    if job.topic_id is not None:
        read["topicId"] = job.topic_id
    if read_committed:
        read["kafka.isolation.level"] = "read_committed"
    from tiered.spark.jobs.exporting import export, plan_export

    if dry_run:
        ranges = plan_export(bucket.url, **read)
        job.print(BackfillPlan(dry_run=True, target=target, ranges=[PlannedExport.of(each) for each in ranges]))
        size = format_bytes(sum(each.size_bytes for each in ranges))
        session.say(f"would read {size} in {sum(each.tasks for each in ranges)} tasks; nothing changed")
        return Exit.DONE
    config = session.config() if job.url is None else None
    if config is not None and config.key_ring is not None:
        read["keyRing"] = os.path.abspath(config.key_ring)
    with job.stoppable(), job.spark(f"backfill {' '.join(targets)}") as spark:
        result = export(
            spark,
            bucket.url,
            target,
            to_options=to_options,
            job_id=job_id,
            codec=codec,
            wave_tasks=tasks,
            should_stop=job.should_stop,
            progress=_export_progress(session),
            **read,
        )
    job.print(Backfilled.of(result, job=result.job_id, files=[ParquetFile.of(each) for each in result.files]))
    files, size = counted(len(result.files), "file"), format_bytes(result.size_bytes)
    session.say(f"{counted(result.records, 'record')} in {files}, {size}, job {result.job_id}")
    if result.is_complete:
        return Exit.DONE
    return job.interrupted(f"resume with: tiered backfill {' '.join(targets)} --to {target} --resume {result.job_id}")


def parse_parallel(text: str) -> int | None:
    """Parse the number of concurrent tasks; None: one for each core of Spark. Raises InvalidRequest."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 20):
        raise InvalidRequest("invalid --parallel", text=repr(text), expected="auto or a number of tasks")
    return int(text)


def read_options(bucket: Bucket, targets: Sequence[str], start: Position, end: Position) -> dict[str, str]:
    """Convert the command's options to source options. Raises InvalidRequest for a meaningless position."""
    partitions = [parse_partition(each) for each in targets]
    found: dict[str, str] = {}
    if bucket.options:
        found["storeOptions"] = json.dumps(dict(bucket.options))
    topics = [topic for topic, partition in partitions if partition is None]
    if len(topics) == len(partitions):
        found["subscribe"] = ",".join(dict.fromkeys(topics))
    elif topics:
        raise InvalidRequest("cannot export, name either topics or partitions", topic=topics[0])
    else:
        assigned: dict[str, list[int]] = {}
        for topic, partition in partitions:
            assigned.setdefault(topic, []).append(partition or 0)
        found["assign"] = json.dumps(assigned)
    for flag, side, position in (("--from", "starting", start), ("--until", "ending", end)):
        if position.timestamp_ms is not None:
            found[f"{side}Timestamp"] = str(position.timestamp_ms)
        elif position.offset is not None:
            if len(partitions) != 1 or partitions[0][1] is None:
                raise InvalidRequest(
                    "invalid position, an offset applies to one partition: TOPIC/PARTITION", option=flag
                )
            found[f"{side}Offsets"] = json.dumps({partitions[0][0]: {str(partitions[0][1]): position.offset}})
        elif (position.is_end and side == "starting") or (position.is_start and side == "ending"):
            raise InvalidRequest("nothing to export between these positions", option=flag)
        elif position.last is not None:
            raise InvalidRequest("invalid position", option=flag, expected="'start end OFFSET @TIME @-2h'")
    return found


def _export_progress(session: Session) -> Callable[[int, int], None]:
    """Return a callback that says a line every few seconds where other commands show a bar, or sends events."""
    progress, lines = session.progress, Lines(session.say, every_s=_LINE_EVERY_S)
    is_expected = False

    def report(done: int, everything: int) -> None:
        nonlocal is_expected
        if progress.sends_events:
            progress.expect(0 if is_expected else everything, "bytes")
            is_expected = True
            progress.reach(done)
        elif progress.has_bars or progress.mode == "plain":
            lines.report(lambda: f"exported {format_bytes(done)} of {format_bytes(everything)}")

    return report
