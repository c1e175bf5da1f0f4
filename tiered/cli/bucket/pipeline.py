"""``tiered pipeline``: clean → tier → deletion → retention → recompaction → merge of a fleet, as a Spark job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import size_bytes
from tiered.cli.errors import Exit
from tiered.cli.job_command import JobCommand, check_job_id, is_submitted, open_bucket, task_bucket
from tiered.cli.options import GROUP, YES, argument, command, option
from tiered.cli.progress import Lines
from tiered.cli.render import Result, Struct, number, text
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.jobs.pipeline import Fleet, Stage, Unit
    from tiered.jobs.pipeline_job import PipelineResult
    from tiered.jobs.runner import Executor

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
    """Clean, tier, expire, recompact and merge many nodes' and partitions' data as one job."""


@dataclass(kw_only=True)
class PipelineCommand(JobCommand):
    """The options of both commands."""

    nodes: tuple[str, ...] = argument("[NODE ...]")
    topics: str | None = option("--topics A,B", "Select topics; default: all.")
    target: str = option("--target SIZE", "Set the size of a merged segment.", default="256MiB")
    take_over: bool = option("--take-over", "Include nodes whose partitions another node has written since.")
    take_epochs: bool = option(
        "--take-epochs", "Delete due objects of partitions of other writers; those writers are fenced."
    )

    def fleet(self) -> Fleet:
        from local.names import check_topic
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
    """Show the work that a pipeline would do now. NODE is a directory with a tiered.toml that all machines reach."""
    return _plan(session, job)


@command("run", pipeline, example="pipeline run node-1 --spark none --dry-run", has_progress=True)
def run(
    session: Session,
    dry_run: bool = option("--dry-run", "Show the work to do, change nothing."),
    yes: bool = YES,
    job_id: str | None = option("--resume JOB", "Resume this job, or start a job with this name."),
    job: PipelineCommand = GROUP,
) -> int:
    """Do it, on Spark: on this machine (local[*]) unless --spark says where."""
    check_job_id(job_id)
    return _plan(session, job) if dry_run else _run(session, job, job_id, yes=yes)


def _plan(session: Session, job: PipelineCommand) -> int:
    from tiered.jobs.pipeline import State
    from tiered.jobs.pipeline_job import plan_pipeline

    fleet, is_here = job.fleet(), job.spark_master == HERE or not job.is_on_spark
    with job.stoppable(), _executor(job, "pipeline plan", "plan", is_here=is_here) as executor:
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
    from tiered.jobs.pipeline_job import run_pipeline
    from tiered.jobs.state_file import PipelineState

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
        _executor(job, f"pipeline run, job {job_id}", job_id, is_here=job.spark_master == HERE) as executor,
    ):
        progress = _stage_progress(session)
        result = run_pipeline(fleet, executor, job_id=state.run_id, now_ms=now_ms, state=state, progress=progress)
    code = _report(session, job, result, job_id)
    if code == Exit.DONE:
        state.remove()
    return code


def _report(session: Session, job: JobCommand, result: PipelineResult, job_id: str) -> int:
    """Print the result; return the exit code."""
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


@contextmanager
def _executor(job: JobCommand, description: str, job_id: str, *, is_here: bool) -> Iterator[Executor]:
    if is_here and not is_submitted():
        from tiered.jobs.runner import Here

        yield Here(job.should_stop)
        return
    from tiered.spark.jobs.runner import SparkRunner

    with job.spark(description) as spark:
        if spark.conf.get("spark.speculation", "false") == "true":
            # A second attempt of a node's work would fail on the first one's lock, and its result would win.
            raise InvalidRequest(
                "cannot run the pipeline, speculative tasks are enabled", fix="--conf spark.speculation=false"
            )
        yield SparkRunner(spark, job_id=job_id, should_stop=job.should_stop)


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
