"""``tiered backfill``: write a bucket's records as Parquet files, by Spark on this machine or a cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import Position, parse_partition, parse_position
from tiered.cli.bucket_options import Bucket, bucket_options, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.progress import Lines, progress_option
from tiered.cli.render import PartitionRow, Result, Work, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms, store_options
from tiered.cli.signals import stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_job, spark_options
from tiered.config.units import counted, format_bytes

if TYPE_CHECKING:
    from tiered.spark.jobs.exporting import ExportResult

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


@click.command("backfill")
@click.argument("targets", nargs=-1, required=True, metavar="TOPIC[/PARTITION] ...")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="URL",
    help="Set the target of the files: s3://..., hdfs://..., file:///...",
)
@click.option(
    "--to-option",
    "to_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=store_options,
    help="Option of the store of --to.",
)
@click.option(
    "--from",
    "start",
    default="start",
    show_default=True,
    metavar="POSITION",
    help="First position: start, OFFSET, @TIME.",
)
@click.option(
    "--until", "end", default="end", show_default=True, metavar="POSITION", help="End position: end, OFFSET, @TIME."
)
@click.option("--codec", default="zstd", show_default=True, metavar="NAME", help="Set the compression of the files.")
@click.option("--read-committed", is_flag=True, help="Omit records of aborted transactions.")
@click.option(
    "--parallel",
    default="auto",
    show_default=True,
    metavar="auto|N",
    help="Set the number of concurrent tasks; auto: chosen by Spark.",
)
@click.option("--dry-run", is_flag=True, help="Show which offsets and bytes would be read, write nothing.")
@click.option("--resume", "job_id", metavar="JOB", help="Resume this job, or start a job with this name.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
@spark_options
def backfill(
    session: Session,
    targets: tuple[str, ...],
    target: str,
    to_options: dict[str, object],
    start: str,
    end: str,
    codec: str,
    read_committed: bool,
    parallel: str,
    dry_run: bool,
    job_id: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """Write records of the bucket as Parquet, by topic and day of their time, with Spark. Changes nothing in it."""
    from remote.store.open_store import open_store

    now, tasks = now_ms(), parse_parallel(parallel)
    with open_bucket(session, url, options) as bucket:
        bucket.partitions(targets, topic_id)  # report errors before the slow start of Spark
        open_store(target, to_options).close()  # no request: checks the url and the options
        asked: dict[str, Any] = read_options(bucket, targets, parse_position(start, now), parse_position(end, now))
    if topic_id is not None:
        asked["topicId"] = topic_id
    if read_committed:
        asked["kafka.isolation.level"] = "read_committed"
    from tiered.spark.jobs.exporting import export, plan_export

    if dry_run:
        ranges = plan_export(bucket.url, **asked)
        planned = BackfillPlan(dry_run=True, target=target, ranges=[PlannedExport.of(each) for each in ranges])
        print_result(planned, output)
        size = format_bytes(sum(each.size_bytes for each in ranges))
        session.say(f"would read {size} in {sum(each.tasks for each in ranges)} tasks; nothing changed")
        return Exit.DONE
    config = session.config() if url is None else None
    if config is not None and config.key_ring is not None:
        asked["keyRing"] = os.path.abspath(config.key_ring)
    with stop_signals() as stop, spark_job(session, f"backfill {' '.join(targets)}", on_spark) as spark:
        result = export(
            spark,
            bucket.url,
            target,
            to_options=to_options,
            job_id=job_id,
            codec=codec,
            wave_tasks=tasks,
            should_stop=lambda: stop.is_set,
            progress=_export_progress(session),
            **asked,
        )
    _print_summary(session, result, output)
    if result.is_complete:
        return Exit.DONE
    session.say(f"interrupted; resume with: tiered backfill {' '.join(targets)} --to {target} --resume {result.job_id}")
    return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED


def parse_parallel(text: str) -> int | None:
    """Parse the number of concurrent tasks; None: one for each core of Spark. Raises InvalidRequest."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 20):
        raise InvalidRequest("invalid --parallel", text=repr(text), expected="auto or a number of tasks")
    return int(text)


def read_options(bucket: Bucket, targets: Sequence[str], start: Position, end: Position) -> dict[str, str]:
    """Convert the command's options to source options. Raises InvalidRequest for a meaningless position."""
    asked = [parse_partition(each) for each in targets]
    found: dict[str, str] = {}
    if bucket.options:
        found["storeOptions"] = json.dumps(dict(bucket.options))
    whole = [topic for topic, partition in asked if partition is None]
    if len(whole) == len(asked):
        found["subscribe"] = ",".join(dict.fromkeys(whole))
    elif whole:
        raise InvalidRequest("cannot export, name either topics or partitions", topic=whole[0])
    else:
        chosen: dict[str, list[int]] = {}
        for topic, partition in asked:
            chosen.setdefault(topic, []).append(partition or 0)
        found["assign"] = json.dumps(chosen)
    for side, option, position in (("--from", "starting", start), ("--until", "ending", end)):
        if position.timestamp_ms is not None:
            found[f"{option}Timestamp"] = str(position.timestamp_ms)
        elif position.offset is not None:
            if len(asked) != 1 or asked[0][1] is None:
                raise InvalidRequest(
                    "invalid position, an offset applies to one partition: TOPIC/PARTITION", option=side
                )
            found[f"{option}Offsets"] = json.dumps({asked[0][0]: {str(asked[0][1]): position.offset}})
        elif (position.is_end and option == "starting") or (position.is_start and option == "ending"):
            raise InvalidRequest("nothing to export between these positions", option=side)
        elif position.last is not None:
            raise InvalidRequest("invalid position", option=side, expected="'start end OFFSET @TIME @-2h'")
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


def _print_summary(session: Session, result: ExportResult, output: str) -> None:
    files = [ParquetFile.of(each) for each in result.files]
    print_result(Backfilled.of(result, job=result.job_id, files=files), output)
    size = format_bytes(result.size_bytes)
    session.say(
        f"{counted(result.records, 'record')} in {counted(len(result.files), 'file')}, {size}, job {result.job_id}"
    )
