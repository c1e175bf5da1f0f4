"""``tiered scrub``: check a bucket for consistency, on request to the last byte. Read-only."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.bucket_options import Bucket, bucket_options, lost_partitions, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.progress import byte_progress, progress_option
from tiered.cli.render import Result, Struct, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, refuse_rate, spark_job, spark_options, task_bucket
from tiered.config.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote.manifest.catalog import RemotePartitionName
    from tiered.health.scrub import ScrubPlan
    from tiered.health.scrub_report import ScrubReport

STATE = "scrub-state.jsonl"
_WRITING = "cannot write the scrub report"


class ScrubFinding(Struct):
    """`object` is relative to the partition's prefix, `at` and `length` are bytes of it. `good_copy` is a place."""

    severity: Annotated[str, text("SEVERITY")]
    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    object: Annotated[str, text("OBJECT")]
    what: Annotated[str, text("FINDING")]
    at: Annotated[int | None, number("BYTE")]
    base_offset: Annotated[int | None, number("FROM")]
    next_offset: Annotated[int | None, number("TO")]
    good_copy: Annotated[str | None, text("GOOD COPY")]
    topic_id: str
    length: int | None
    ulid: str | None


class Scrubbed(Result):
    """``tiered scrub``; `report` is the file that it wrote.

    `unread_segments` could not be opened; of `unread_partitions` even the encrypted manifests could not be read.
    `lost` are partitions with records that the bucket lacks although this disk has dropped them.
    """

    store: str
    is_deep: bool
    started_ms: int
    finished_ms: int
    read_bytes: int
    unread_segments: int
    unread_bytes: int
    unread_partitions: int
    report: str | None
    lost: list[str]
    findings: list[ScrubFinding]


@click.command("scrub")
@click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]")
@click.option(
    "--deep", is_flag=True, help="Read every byte: chunks, batches, facts of segment entries, indexes against data."
)
@click.option("--rate", metavar="SIZE/s", help="Limit the read rate, such as 50MB/s.")
@click.option("--resume", is_flag=True, help="Resume an interrupted deep scrub.")
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Set the number of segments that are read at the same time.",
)
@click.option(
    "--report", metavar="FILE", help="Write the report to this file; default: scrub-<time>.json if there is a finding."
)
@bucket_options
@output_option()
@progress_option
@click.pass_obj
@spark_options
def scrub(
    session: Session,
    targets: tuple[str, ...],
    deep: bool,
    rate: str | None,
    resume: bool,
    threads: int,
    report: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """Check a bucket: heads and their chain, pages, tiling, names, sizes; with --deep every byte. Changes nothing."""
    from tiered.config.user_files import check_target
    from tiered.health.scrub import plan_scrub

    if resume and not deep:
        raise click.UsageError("--resume requires --deep; a scrub of metadata always starts from the beginning")
    if on_spark.is_wanted and not deep:
        raise click.UsageError("--spark requires --deep; without it a scrub reads metadata only")
    refuse_rate(on_spark, rate)
    if report is not None:
        check_target(report, _WRITING)
    started_ms = now_ms()
    with stop_signals() as stop, open_bucket(session, url, options, rate=rate, copies=True) as bucket:
        names = bucket.partitions(targets, topic_id)
        missing = bucket.missing(targets, names)
        if on_spark.is_wanted:
            found = _in_tasks(
                session, bucket, names, stop, on_spark, missing=missing, resume=resume, is_configured=url is None
            )
        else:
            plan = plan_scrub(bucket.store, names, deep=deep, settings=bucket.settings.of, missing=missing)
            found = _scrubbed(session, bucket, plan, stop, threads=threads, resume=resume, started_ms=started_ms)
    if found is None:
        session.say("interrupted; resume with: tiered scrub --deep --resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    lost = lost_partitions(session, targets) if url is None else {}
    told = [each for each in found.findings if each.severity != "info"]
    path = report or (_default_report(session, found) if told else None)
    if path is not None:
        _write(path, found)
    findings = [ScrubFinding.of(each) for each in found.findings]
    print_result(Scrubbed.of(found, report=path, lost=[str(name) for name in lost], findings=findings), output)
    _print_summary(session, found, path)
    session.report_problems(lost)
    if found.of("corrupt"):
        return Exit.CORRUPTION
    return Exit.CONFLICT if lost else Exit.FINDINGS if told else Exit.DONE


def _scrubbed(
    session: Session, bucket: Bucket, plan: ScrubPlan, stop: Stop, *, threads: int, resume: bool, started_ms: int
) -> ScrubReport | None:
    """Return the report; None if asked to stop before the end: then the state file is unchanged."""
    from local.storage import DiskStorage
    from tiered.health.scrub import report_of, run_scrub
    from tiered.health.scrub_state import ScrubState

    state = None
    if plan.is_deep:
        path = os.path.join(session.directory, STATE)
        state = ScrubState(DiskStorage(), path, plan.store_url, now_ms=started_ms, resume=resume)
        started_ms = state.started_ms
    with byte_progress(session, "scrubbed", plan.size_bytes) as progress:
        results = run_scrub(
            bucket.store,
            plan,
            keys=bucket.keys,
            state=state,
            threads=threads,
            should_stop=lambda: stop.is_set,
            progress=progress,
        )
    if results is None:
        return None
    copies = bucket.copies if bucket.copies is not None else lambda name, row: False
    found = report_of(bucket.store, plan, results, started_ms=started_ms, now_ms=now_ms(), local_copy=copies)
    if state is not None:
        state.remove()
    return found


def _in_tasks(
    session: Session,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    stop: Stop,
    on_spark: OnSpark,
    *,
    missing: Sequence[RemotePartitionName],
    resume: bool,
    is_configured: bool,
) -> ScrubReport | None:
    """As `_scrubbed`, with the reads in Spark tasks."""
    from local.storage import DiskStorage
    from tiered.health.scrub_state import ScrubState
    from tiered.spark.jobs.scrubbing import scrub_partitions

    path = os.path.join(session.directory, STATE)
    state = ScrubState(DiskStorage(), path, bucket.store.url, now_ms=now_ms(), resume=resume)
    with spark_job(session, "scrub", on_spark) as spark:
        found = scrub_partitions(
            spark,
            task_bucket(session, bucket, is_configured=is_configured),
            names,
            missing=missing,
            state=state,
            should_stop=lambda: stop.is_set,
            telling=lambda size_bytes: byte_progress(session, "scrubbed", size_bytes),
            local_copy=bucket.copies if bucket.copies is not None else lambda name, row: False,
            settings=bucket.settings.of,
        )
    if found is not None:
        state.remove()
    return found


def _default_report(session: Session, found: ScrubReport) -> str:
    told = time.strftime("%Y%m%d-%H%M%S", time.gmtime(found.finished_ms / 1000))
    return os.path.join(session.directory, f"scrub-{told}.json")


def _write(path: str, found: ScrubReport) -> None:
    from tiered.config.user_files import write_given
    from tiered.health.scrub_report import encode_report

    write_given(path, encode_report(found), _WRITING)


def _print_summary(session: Session, found: ScrubReport, path: str | None) -> None:
    objects = sum(count for each in found.partitions for count in each.objects.values())
    size = sum(each.size_bytes for each in found.partitions)
    depth = _depth(found)
    session.say(
        f"{counted(len(found.partitions), 'partition')}, {counted(objects, 'object')}, {format_bytes(size)}: {depth}"
    )
    counts = {weight: len(found.of(weight)) for weight in ("corrupt", "warning", "info")}
    session.say(" ".join(f"{weight}={count}" for weight, count in counts.items()))
    if found.of("corrupt"):
        session.say(f"next: tiered repair {path} --dry-run")


def _depth(found: ScrubReport) -> str:
    if not found.is_deep:
        sealed = f", {counted(found.unread_partitions, 'partition')} not read, see the findings"
        return "metadata only, see --deep" + (sealed if found.unread_partitions else "")
    if not (found.unread_segments or found.unread_partitions):
        return f"every byte of {format_bytes(found.read_bytes)} read"
    unread = f"{counted(found.unread_segments, 'segment')} with {format_bytes(found.unread_bytes)} not read"
    if found.unread_partitions:
        unread = f"{counted(found.unread_partitions, 'partition')} and {unread}"
    return f"{format_bytes(found.read_bytes)} read, {unread}, see the findings"
