"""Commands for Spark: ``tiered pipeline`` and ``tiered backfill``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import click

from local.errors import InvalidRequest
from local.names import check_topic
from tiered.cli.errors import Exit
from tiered.cli.job_command import Bucket, JobCommand, check_job_id, is_submitted, open_bucket, task_bucket
from tiered.cli.options import (
    GROUP,
    YES,
    Position,
    argument,
    command,
    option,
    parse_partition,
    parse_position,
    size_bytes,
)
from tiered.cli.progress import Lines
from tiered.cli.render import PartitionRow, Result, Struct, Work, number, text
from tiered.cli.session import Session, confirm, now_ms, store_options
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.jobs.pipeline import Fleet, Unit
    from tiered.jobs.pipeline_job import PipelineResult

HERE = "none"  # --spark none: without Spark, in this process
_LINE_EVERY_S = 5.0


class PipelineUnit(Struct):
    """A node's directory or a partition's work in a stage. Null: not known yet."""

    stage: Annotated[str, text("STAGE")]
    node: Annotated[str | None, text("NODE OR PARTITION", of=lambda row: row.node or f"{row.topic}/{row.partition}")]
    topic: str | None
    partition: int | None
    state: Annotated[str, text("STATE")]
    segments_before: Annotated[int, number("SEGMENTS BEFORE", format_count)]
    segments_after: Annotated[int | None, number("SEGMENTS AFTER", format_count)]
    bytes_before: Annotated[int, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int | None, number("BYTES AFTER", format_bytes)]
    dollars: Annotated[float, number("$", format_dollars)]
    why: Annotated[str, text("REASON")]


class PipelinePlan(Result):
    """``tiered pipeline plan``."""

    is_complete: bool
    dollars: float
    units: list[PipelineUnit]


class PipelineRun(Result):
    """``tiered pipeline run``."""

    job: str
    is_complete: bool
    units: list[PipelineUnit]


@click.group("pipeline")
def pipeline() -> None:
    """Clean, tier, expire, compact and merge the data of many nodes and partitions as one job."""


@dataclass(kw_only=True)
class PipelineCommand(JobCommand):
    nodes: tuple[str, ...] = argument("[NODE ...]")
    topics: str | None = option("--topics A,B", "Select topics; default: all.")
    target: str = option("--target SIZE", "Set the size of a merged segment.", default="256MiB")
    take_over: bool = option("--take-over", "Include nodes whose partitions another node has written since.")
    take_epochs: bool = option(
        "--take-epochs", "Delete due objects of partitions of other writers; those writers are fenced."
    )

    @contextmanager
    def spark(self, description: str) -> Iterator[Any]:
        with super().spark(description) as spark:
            if spark.conf.get("spark.speculation", "false") == "true":
                # A second attempt would fail on the first one's lock, and its result would win.
                wrong = "cannot run the pipeline, speculative tasks are enabled"
                raise InvalidRequest(wrong, fix="--conf spark.speculation=false")
            yield spark

    def fleet(self) -> Fleet:
        from tiered.jobs.pipeline import Fleet

        session, is_configured = self.session, self.url is None
        size = size_bytes("--target", self.target, "256MiB", least=1)
        selected = tuple(each for each in (self.topics or "").split(",") if each)
        for each in selected:
            check_topic(each)
        with open_bucket(session, self.url, self.options) as bucket:
            bucket.partitions(selected if not self.nodes else (), None)  # errors before the slow start of Spark
            tasks = task_bucket(session, bucket, is_configured=is_configured)
        return Fleet(
            bucket=tasks,
            nodes=tuple(os.path.abspath(node) for node in self.nodes),
            topics=selected,
            config=session.config() if is_configured else None,
            overrides=dict(session.overrides),
            takes_over=self.take_over,
            takes_epochs=self.take_epochs,
            target_bytes=size,
        )


@command("plan", pipeline, example="pipeline plan node-1 node-2 --topics orders", has_progress=True)
def plan(session: Session, job: PipelineCommand = GROUP) -> int:
    """Show the work that a pipeline would do now. NODE is a directory with a tiered.toml that all machines can read."""
    return _plan(session, job)


@command("run", pipeline, example="pipeline run node-1 --spark none --dry-run", has_progress=True)
def run(
    session: Session,
    dry_run: bool = option("--dry-run", "Show the work to do, change nothing."),
    yes: bool = YES,
    job_id: str | None = option("--resume JOB", "Resume this job, or start a job with this name."),
    job: PipelineCommand = GROUP,
) -> int:
    """Run the pipeline on Spark: on this machine (local[*]), or on the master that --spark names."""
    check_job_id(job_id)
    return _plan(session, job) if dry_run else _run(session, job, job_id, yes=yes)


def _plan(session: Session, job: PipelineCommand) -> int:
    from tiered.jobs.pipeline import State
    from tiered.jobs.pipeline_job import plan_pipeline

    fleet, is_on_spark = job.fleet(), is_submitted() or job.spark_master not in (None, HERE)
    with job.stoppable(), job.executor("pipeline plan", job_id="plan", is_on_spark=is_on_spark) as executor:
        found = plan_pipeline(fleet, executor, now_ms=now_ms(), progress=session.progress.count("units"))
    units = [each for each in found if each.state is not State.NOTHING]
    dollars = sum(each.dollars for each in units)
    job.print(PipelinePlan(not job.should_stop(), dollars, [_row(each) for each in units]))
    if job.should_stop():
        return job.interrupted()
    due = [each for each in units if each.state is State.DUE]
    session.say(f"{len(due)} units, {format_bytes(sum(each.size_bytes for each in due))}; nothing changed")
    return Exit.FAILED if any(each.state is State.FAILED for each in units) else Exit.DONE


def _run(session: Session, job: PipelineCommand, job_id: str | None, *, yes: bool) -> int:
    from local.storage import DiskStorage
    from remote.keys import new_ulid
    from tiered.jobs.pipeline_job import PipelineState, run_pipeline

    fleet = job.fleet()
    description = f"{len(fleet.nodes)} nodes and the partitions of {fleet.bucket.url}"
    confirm(
        f"process {description}? ('tiered pipeline plan' shows the work)",
        yes=yes,
        without=f"{description} would be processed: check with 'tiered pipeline plan', then add --yes",
    )
    job_id = job_id or f"pipeline-{new_ulid(now_ms())}"
    path = os.path.join(os.path.abspath(session.directory), f"{job_id}.jsonl")
    state = PipelineState(DiskStorage(), path, fleet.bucket.url, job_id, now_ms=now_ms())
    with (
        job.stoppable(),
        state,
        job.executor(
            f"pipeline run, job {job_id}", job_id=job_id, is_on_spark=is_submitted() or job.spark_master != HERE
        ) as executor,
    ):
        progress = _line_progress(session, "units", lambda stage, done, everything: f"{stage}: {done} of {everything}")
        result = run_pipeline(fleet, executor, job_id=state.run_id, now_ms=now_ms, state=state, progress=progress)
    code = _report(session, job, result, job_id)
    if code == Exit.DONE:
        state.remove()
    return code


def _report(session: Session, job: JobCommand, result: PipelineResult, job_id: str) -> int:
    from tiered.jobs.pipeline import State

    job.print(PipelineRun(job_id, result.is_complete, [_row(each) for each in result.units]))
    for each in result.units:
        if each.state in (State.FAILED, State.LEFT_ALONE, State.DUE):
            where = f"{each.topic}/{each.partition}" if each.topic is not None else each.unit
            session.warn(f"{each.stage}: {where}: {each.state}: {each.why}")
    done, failed, due = (
        sum(each.state is state for each in result.units) for state in (State.DONE, State.FAILED, State.DUE)
    )
    session.say(f"{done} units done, {failed} failed{f', {due} still due' if due else ''}, job {job_id}")
    again = f"resume with: tiered pipeline run ... --resume {job_id}"
    if not result.is_complete:
        return job.interrupted(again)
    if due:
        session.say(again)
    return Exit.FAILED if failed else Exit.FINDINGS if due else Exit.DONE


def _row(each: Unit) -> PipelineUnit:
    from tiered.jobs.pipeline import Stage, State

    is_known = each.state is State.DONE or each.bytes_after > 0  # for due work only a merge plan knows the segments
    are_segments_known = is_known or (each.state is State.DUE and each.stage is Stage.MERGE)
    return PipelineUnit.of(
        each,
        stage=str(each.stage),
        node=each.unit if each.topic is None else None,
        state=str(each.state),
        segments_before=each.rows_before,
        segments_after=each.rows_after if are_segments_known else None,
        bytes_after=each.bytes_after if is_known else None,
    )


class PlannedExport(PartitionRow):
    """The range of a partition to export, in `tasks` tasks."""

    start_offset: Annotated[int, number("FROM")]
    next_offset: Annotated[int, number("TO")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    tasks: Annotated[int, number("TASKS")]


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


class BackfillPlan(Work):
    """``tiered backfill --dry-run``."""

    target: str
    ranges: list[PlannedExport]


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
        "--parallel auto|N", "Set the number of threads, or of Spark tasks; auto: by the CPUs.", default="auto"
    ),
    dry_run: bool = option("--dry-run", "Show which offsets and bytes would be read, write nothing."),
    job_id: str | None = option("--resume JOB", "Resume this job, or start a job with this name."),
    job: JobCommand = GROUP,
) -> int:
    """Export records of the bucket as Parquet files by topic and day. Changes nothing in the bucket."""
    from remote.store.open_store import open_store

    if job.spark_conf and not job.is_on_spark:
        raise click.UsageError("--conf sets properties of Spark: add --spark MASTER")
    now, tasks = now_ms(), parse_parallel(parallel)
    with open_bucket(session, job.url, job.options) as bucket:
        bucket.partitions(targets, job.topic_id)  # report errors before the slow start of Spark
        open_store(target, to_options).close()  # no request: checks the url and the options
        read: dict[str, Any] = read_options(bucket, targets, parse_position(start, now), parse_position(end, now))
    if job.topic_id is not None:
        read["topicId"] = job.topic_id
    if read_committed:
        read["kafka.isolation.level"] = "read_committed"
    from remote.keys import new_ulid
    from tiered.tables import parquet_export
    from tiered.tables.exporting import export, plan_export

    if dry_run:
        ranges = plan_export(bucket.url, **read)
        job.print(BackfillPlan(dry_run=True, target=target, ranges=[PlannedExport.of(each) for each in ranges]))
        size = format_bytes(sum(each.size_bytes for each in ranges))
        session.say(f"would read {size} in {sum(each.tasks for each in ranges)} tasks; nothing changed")
        return Exit.DONE
    config = session.config() if job.url is None else None
    if config is not None and config.key_ring is not None:
        read["keyRing"] = os.path.abspath(config.key_ring)

    def exported(stage: str, done: int, everything: int) -> str:
        return f"exported {format_bytes(done)} of {format_bytes(everything)}"

    job_id = job_id or new_ulid(now)
    again = f"to resume, repeat the command with --resume {job_id}"  # all options: --read-committed selects records
    more: dict[str, Any] = {"to_options": to_options, "job_id": job_id, "codec": codec, "should_stop": job.should_stop}
    more |= {"progress": partial(_line_progress(session, "bytes", exported), "export"), **read}
    try:
        with job.stoppable(), job.spark(f"backfill {' '.join(targets)}") if job.is_on_spark else nullcontext() as spark:
            if spark is not None:
                result = export(spark, bucket.url, target, wave_tasks=tasks, **more)
            else:
                result = parquet_export.export(bucket.url, target, threads=tasks, **more)
    except InvalidRequest:
        raise
    except BaseException:
        session.say(again)  # a new job would export the finished waves again
        raise
    job.print(Backfilled.of(result, job=result.job_id, files=[ParquetFile.of(each) for each in result.files]))
    files, size = counted(len(result.files), "file"), format_bytes(result.size_bytes)
    session.say(f"{counted(result.records, 'record')} in {files}, {size}, job {result.job_id}")
    if result.is_complete:
        return Exit.DONE
    return job.interrupted(again)


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
                wrong = "invalid position, an offset applies to one partition: TOPIC/PARTITION"
                raise InvalidRequest(wrong, option=flag)
            found[f"{side}Offsets"] = json.dumps({partitions[0][0]: {str(partitions[0][1]): position.offset}})
        elif (position.is_end and side == "starting") or (position.is_start and side == "ending"):
            raise InvalidRequest("nothing to export between these positions", option=flag)
        elif position.last is not None:
            raise InvalidRequest("invalid position", option=flag, expected="'start end OFFSET @TIME @-2h'")
    return found


def _line_progress(
    session: Session, unit: str, line: Callable[[str, int, int], str]
) -> Callable[[str, int, int], None]:
    progress, known = session.progress, dict[str, int]()
    lines = Lines(session.say, every_s=_LINE_EVERY_S)

    def report(stage: str, done: int, everything: int) -> None:
        if progress.sends_events:
            progress.expect(0 if stage in known else everything, unit)
            progress.advance(done - known.get(stage, 0))
            known[stage] = done
        elif progress.mode != "none":
            lines.report(lambda: line(stage, done, everything), is_last=done == everything)

    return report
