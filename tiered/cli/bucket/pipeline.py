"""``tiered pipeline``: clean → tier → deletion → retention → recompaction → merge of a fleet, as a Spark job."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.bucket_options import bucket_options, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.progress import Lines, progress_option
from tiered.cli.render import Result, Struct, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, is_submitted, spark_job, spark_options, task_bucket
from tiered.config.units import format_bytes, format_count, format_dollars, parse_bytes

if TYPE_CHECKING:
    from tiered.jobs.pipeline import Fleet, Stage, Unit
    from tiered.jobs.pipeline_job import PipelineResult, Runner

HERE = "none"  # --spark none: without Spark, in this process
_JOB = re.compile(r"[0-9A-Za-z_-]{1,64}")
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
    """Clean, tier, expire, recompact and merge many nodes' and partitions' data as one job."""


def _shared(command: Callable[..., object]) -> Callable[..., object]:
    options = (
        click.argument("nodes", nargs=-1, metavar="[NODE ...]"),
        click.option("--topics", metavar="A,B", help="Select topics; default: all."),
        click.option(
            "--target", default="256MiB", show_default=True, metavar="SIZE", help="Set the size of a merged segment."
        ),
        click.option(
            "--take-over", is_flag=True, help="Include nodes whose partitions another node has written since."
        ),
        click.option(
            "--take-epochs",
            is_flag=True,
            help="Delete due objects of partitions of other writers; those writers are fenced.",
        ),
        bucket_options,
        output_option(),
        progress_option,
        click.pass_obj,
        spark_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@pipeline.command("plan")
@_shared
def plan(session: Session, output: str, on_spark: OnSpark, **more: object) -> int:
    """What a pipeline would find to do now. NODE is a directory with a tiered.toml that all machines reach."""
    return _plan(session, output, on_spark, **more)  # type: ignore[arg-type]


@pipeline.command("run")
@click.option("--dry-run", is_flag=True, help="Show the work to do, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--resume", "job_id", metavar="JOB", help="Resume this job, or start a job with this name.")
@_shared
def run(
    session: Session, dry_run: bool, yes: bool, job_id: str | None, output: str, on_spark: OnSpark, **more: object
) -> int:
    """Do it, on Spark: on this machine (local[*]) unless --spark says where."""
    if dry_run:
        return _plan(session, output, on_spark, **more)  # type: ignore[arg-type]
    return _run(session, job_id, output, on_spark, yes=yes, **more)  # type: ignore[arg-type]


def _plan(
    session: Session,
    output: str,
    on_spark: OnSpark,
    *,
    nodes: tuple[str, ...],
    topics: str | None,
    target: str,
    take_over: bool,
    take_epochs: bool,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
) -> int:
    from tiered.jobs.pipeline import State
    from tiered.jobs.pipeline_job import plan_pipeline

    fleet = _fleet(session, nodes, topics, target, url, options, take_over=take_over, take_epochs=take_epochs)
    is_here = on_spark.master == HERE or not on_spark.is_wanted
    with stop_signals() as stop, _runner(session, "pipeline plan", on_spark, "plan", stop, is_here=is_here) as runner:
        found = plan_pipeline(fleet, runner, now_ms=now_ms(), progress=session.progress.count("units"))
    due = [each for each in found if each.state is not State.NOTHING]
    dollars = sum(each.dollars for each in due)
    print_result(PipelinePlan(not stop.is_set, dollars, [_row(each) for each in due]), output)
    if stop.is_set:
        return _interrupted(stop)
    size = format_bytes(sum(each.size_bytes for each in due if each.state is State.DUE))
    session.say(f"{sum(each.state is State.DUE for each in due)} units, {size}; nothing changed")
    return Exit.FAILED if any(each.state is State.FAILED for each in due) else Exit.DONE


def _run(
    session: Session,
    job_id: str | None,
    output: str,
    on_spark: OnSpark,
    *,
    yes: bool,
    nodes: tuple[str, ...],
    topics: str | None,
    target: str,
    take_over: bool,
    take_epochs: bool,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
) -> int:
    from local.storage import DiskStorage
    from remote.keys import new_ulid
    from tiered.jobs.pipeline_job import run_pipeline
    from tiered.jobs.pipeline_state import PipelineState

    if job_id is not None and not _JOB.fullmatch(job_id):
        raise InvalidRequest("invalid --resume, a job has letters, digits, _ and - only", job=repr(job_id))
    fleet = _fleet(session, nodes, topics, target, url, options, take_over=take_over, take_epochs=take_epochs)
    if not yes:
        _ask(fleet)
    job = job_id or f"pipeline-{new_ulid(now_ms())}"
    path = os.path.join(os.path.abspath(session.directory), f"{job}.jsonl")
    state = PipelineState(DiskStorage(), path, fleet.bucket.url, job, now_ms=now_ms())
    with stop_signals() as stop, state:
        is_here = on_spark.master == HERE
        with _runner(session, f"pipeline run, job {job}", on_spark, job, stop, is_here=is_here) as runner:
            result = run_pipeline(
                fleet,
                runner,
                job_id=state.run_id,
                now_ms=now_ms,
                state=state,
                should_stop=lambda: stop.is_set,
                progress=_stage_progress(session),
            )
    code = _print_result(session, result, job, stop, output)
    if code == Exit.DONE:
        state.remove()
    return code


def _print_result(session: Session, result: PipelineResult, job: str, stop: Stop, output: str) -> int:
    from tiered.jobs.pipeline import State

    unfinished = (State.FAILED, State.LEFT_ALONE, State.DUE)
    print_result(PipelineRun(job, result.is_complete, [_row(each) for each in result.units]), output)
    for each in result.units:
        if each.state in unfinished:
            session.warn(f"{each.stage}: {_where(each)}: {each.state}: {each.why}")
    failed = sum(each.state is State.FAILED for each in result.units)
    done = sum(each.state is State.DONE for each in result.units)
    due = sum(each.state is State.DUE for each in result.units)
    left = f", {due} still due" if due else ""
    session.say(f"{done} units done, {failed} failed{left}, job {job}")
    if not result.is_complete:
        session.say(f"interrupted; resume with: tiered pipeline run ... --resume {job}")
        return _interrupted(stop)
    if due:
        session.say(f"resume with: tiered pipeline run ... --resume {job}")
    return Exit.FAILED if failed else Exit.FINDINGS if due else Exit.DONE


def _fleet(
    session: Session,
    nodes: Sequence[str],
    topics: str | None,
    target: str,
    url: str | None,
    options: dict[str, object],
    *,
    take_over: bool,
    take_epochs: bool,
) -> Fleet:
    from local.names import check_topic
    from tiered.jobs.pipeline import Fleet

    size = parse_bytes(target)
    if size is None or size <= 0:
        raise InvalidRequest("invalid --target", text=repr(target), expected="a size such as 256MiB")
    chosen = tuple(each for each in (topics or "").split(",") if each)
    for each in chosen:
        check_topic(each)
    with open_bucket(session, url, options) as bucket:
        bucket.partitions(chosen if not nodes else (), None)  # report errors before the slow start of Spark
        ways = task_bucket(session, bucket, is_configured=url is None)
    return Fleet(
        bucket=ways,
        nodes=tuple(os.path.abspath(node) for node in nodes),
        topics=chosen,
        config=session.config() if url is None else None,
        overrides=dict(session.overrides),
        takes_over=take_over,
        takes_epochs=take_epochs,
        target_bytes=size,
    )


@contextmanager
def _runner(
    session: Session, description: str, on_spark: OnSpark, job_id: str, stop: Stop, *, is_here: bool
) -> Iterator[Runner]:
    if is_here and not is_submitted():
        from tiered.jobs.pipeline_job import Here

        yield Here(lambda: stop.is_set)
        return
    from tiered.spark.jobs.pipeline import SparkRunner

    with spark_job(session, description, on_spark) as spark:
        if spark.conf.get("spark.speculation", "false") == "true":
            # A second attempt of a node's work would fail on the first one's lock, and its result would win.
            raise InvalidRequest(
                "cannot run the pipeline, speculative tasks are enabled", fix="--conf spark.speculation=false"
            )
        yield SparkRunner(spark, job_id=job_id, should_stop=lambda: stop.is_set)


def _ask(fleet: Fleet) -> None:
    description = f"{len(fleet.nodes)} nodes and the partitions of {fleet.bucket.url}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{description} would be processed: check with 'tiered pipeline plan', then add --yes")
    click.confirm(f"process {description}? ('tiered pipeline plan' shows the work)", abort=True, err=True)


def _interrupted(stop: Stop) -> int:
    return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED


def _stage_progress(session: Session) -> Callable[[Stage, int, int], None]:
    """Return a callback that says a line every few seconds and at the end of a stage, or sends events."""
    progress = session.progress
    known: dict[Stage, int] = {}
    lines = Lines(session.say, every_s=_LINE_EVERY_S)

    def report(stage: Stage, done: int, everything: int) -> None:
        if progress.sends_events:
            progress.expect(0 if stage in known else everything, "units")
            progress.advance(done - known.get(stage, 0))
            known[stage] = done
        elif progress.mode != "none":
            lines.report(lambda: f"{stage}: {done} of {everything}", is_last=done == everything)

    return report


def _where(each: Unit) -> str:
    return f"{each.topic}/{each.partition}" if each.topic is not None else each.unit


def _row(each: Unit) -> PipelineUnit:
    from tiered.jobs.pipeline import Stage, State

    is_known = each.state is State.DONE or each.bytes_after > 0  # for due work only a merge plan knows the segments
    is_told = is_known or (each.state is State.DUE and each.stage is Stage.MERGE)
    return PipelineUnit.of(
        each,
        stage=str(each.stage),
        node=each.unit if each.topic is None else None,
        state=str(each.state),
        segments_before=each.rows_before,
        segments_after=each.rows_after if is_told else None,
        bytes_after=each.bytes_after if is_known else None,
    )
