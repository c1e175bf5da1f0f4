"""``tiered rewrite``: merge small segments, change their object encoding, or copy them to another bucket.

Each shows a plan first.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import parse_time
from tiered.cli.bucket_options import Bucket, bucket_options, open_bucket, open_target
from tiered.cli.errors import Exit
from tiered.cli.progress import byte_progress, progress_option
from tiered.cli.render import PartitionRow, PricedWork, Work, number, output_option, print_result
from tiered.cli.session import Session, now_ms, store_options
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, refuse_rate, spark_job, spark_options, target_bucket, task_bucket
from tiered.config.units import counted, format_bytes, format_count, format_dollars, parse_bytes

if TYPE_CHECKING:
    from remote.manifest.catalog import RemotePartitionName
    from remote.store import ObjectStore
    from tiered.jobs.bucket_copying import CopyOutcome, CopyPlan
    from tiered.jobs.job_bucket import Bucket as TaskBucket
    from tiered.jobs.rewriting import RewriteOutcome, RewritePlan

Planner = Callable[[Bucket, "RemotePartitionName"], "RewritePlan"]


class PlannedCopy(PartitionRow):
    """Segments to read and to write, in requests and dollars."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    groups: Annotated[int, number("NEW SEGMENTS", format_count)]
    read_bytes: Annotated[int, number("BYTES READ", format_bytes)]
    write_bytes: Annotated[int, number("BYTES WRITTEN", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]


class RewritePlanned(PricedWork):
    """``tiered rewrite merge|recode|copy --dry-run``."""

    partitions: list[PlannedCopy]


class RewrittenPartition(PartitionRow):
    """Segments and bytes of the committed groups, before and after.

    `given_up` groups were replaced by another writer, `expired` groups are no longer in the bucket. Without
    `is_complete` some groups are still due.
    """

    rows_before: Annotated[int, number("SEGMENTS", format_count)]
    rows_after: Annotated[int, number("SEGMENTS NOW", format_count)]
    stored_before: Annotated[int, number("BYTES", format_bytes)]
    stored_after: Annotated[int, number("BYTES NOW", format_bytes)]
    unchanged: Annotated[int, number("UNCHANGED", format_count)]
    given_up: Annotated[int, number("NOT REWRITTEN", format_count)]
    expired: int
    is_complete: bool
    groups: int


class Rewritten(Work):
    """``tiered rewrite merge|recode``."""

    partitions: list[RewrittenPartition]


class CopiedPartition(PartitionRow):
    """`behind` segments were added to the source during the copy."""

    segments: Annotated[int, number("COPIED", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    behind: Annotated[int, number("BEHIND", format_count)]
    differences: Annotated[int, number("DIFFERENCES", format_count)]
    is_complete: bool


class Copied(Work):
    """``tiered rewrite copy``."""

    partitions: list[CopiedPartition]


def to_copy(plan: CopyPlan) -> PlannedCopy:
    count = len(plan.entries)
    return PlannedCopy.of(plan.name, plan.cost, segments=count, groups=count)


def to_rewrite(plan: RewritePlan) -> PlannedCopy:
    segments = sum(len(group.entries) for group in plan.groups)
    return PlannedCopy.of(plan.name, plan.cost, segments=segments, groups=len(plan.groups))


def copied(each: CopyOutcome) -> CopiedPartition:
    return CopiedPartition.of(each.name, each, segments=each.entries, differences=len(each.differences))


@click.group("rewrite")
def rewrite() -> None:
    """Rewrite what is in the bucket; records, offsets and readers stay as they are."""


def _shared(command: Callable[..., object]) -> Callable[..., object]:
    options = (
        click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]"),
        click.option("--dry-run", is_flag=True, help="Show requests, bytes and dollars, change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--rate", metavar="SIZE/s", help="Limit the read rate and the write rate, each separately."),
        bucket_options,
        output_option(),
        progress_option,
        click.pass_obj,
        spark_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@rewrite.command("merge")
@click.option("--target", default="256MiB", show_default=True, metavar="SIZE", help="Set the size of a merged segment.")
@_shared
def merge(session: Session, targets: tuple[str, ...], target: str, **shared: object) -> int:
    """Make one segment of small neighbours."""
    from tiered.jobs.rewriting import plan_merge

    size = parse_bytes(target)
    if size is None or size <= 0:
        raise InvalidRequest("invalid --target", text=repr(target), expected="a size such as 256MiB")
    prices = session.prices()

    def plan(bucket: Bucket, name: RemotePartitionName) -> RewritePlan:
        return plan_merge(
            bucket.store, name, now_ms=now_ms(), target_bytes=size, prices=prices, settings=bucket.settings_of
        )

    return _run(session, targets, plan, None, **shared)  # type: ignore[arg-type]


@rewrite.command("recode")
@click.option("--codec", type=click.Choice(["none", "zstd"]), help="Set the object encoding.")
@click.option("--key-id", metavar="ID", help="Encrypt again, with this key of the key ring.")
@click.option("--decrypt", is_flag=True, help="Remove the encryption.")
@click.option("--storage-class", metavar="CLASS", help="Set the S3 storage class, such as GLACIER_IR.")
@click.option("--since", metavar="TIME", help="Select segments whose newest record is of this time or later.")
@click.option("--until", metavar="TIME", help="Select segments whose newest record is older than this time.")
@click.option("--min-bytes", metavar="SIZE", default="0", help="Select segments with at least this stored size.")
@_shared
def recode(
    session: Session,
    targets: tuple[str, ...],
    codec: str | None,
    key_id: str | None,
    decrypt: bool,
    storage_class: str | None,
    since: str | None,
    until: str | None,
    min_bytes: str,
    **shared: object,
) -> int:
    """Keep segments in another way: codec at rest, encryption key, storage class."""
    from tiered.jobs.rewriting import EntryFilter, plan_recode

    if codec is key_id is storage_class is None and not decrypt:
        raise click.UsageError("nothing to change: add --codec, --key-id, --decrypt or --storage-class")

    least = parse_bytes(min_bytes)
    if least is None or least < 0:
        raise InvalidRequest("invalid --min-bytes", text=repr(min_bytes), expected="a size such as 128KiB")
    times = [None if text is None else parse_time(text, now_ms()) for text in (since, until)]
    entry_filter, prices = EntryFilter(min_bytes=least, since_ms=times[0], until_ms=times[1]), session.prices()

    def plan(bucket: Bucket, name: RemotePartitionName) -> RewritePlan:
        if key_id is not None and key_id not in bucket.keys:
            raise InvalidRequest("cannot rewrite, the key is not in the key ring", key_id=key_id)
        return plan_recode(
            bucket.store,
            name,
            now_ms=now_ms(),
            codec=codec,
            key_id=key_id,
            decrypts=decrypt,
            storage_class=storage_class,
            prices=prices,
            entry_filter=entry_filter,
            settings=bucket.settings_of,
        )

    return _run(session, targets, plan, storage_class, **shared)  # type: ignore[arg-type]


@rewrite.command("copy")
@click.option("--to", "target_url", required=True, metavar="URL", help="Target bucket, such as s3://bucket/prefix.")
@click.option(
    "--to-option",
    "target_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=store_options,
    help="Option of the store of --to.",
)
@click.option(
    "--codec", type=click.Choice(["none", "zstd"]), help="Set the object encoding in the target; default: unchanged."
)
@click.option("--key-id", metavar="ID", help="Encrypt in the target with this key of the key ring; default: unchanged.")
@click.option("--storage-class", metavar="CLASS", help="Set the S3 storage class in the target.")
@_shared
def copy(
    session: Session,
    targets: tuple[str, ...],
    target_url: str,
    target_options: dict[str, object],
    codec: str | None,
    key_id: str | None,
    storage_class: str | None,
    dry_run: bool,
    yes: bool,
    rate: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """Copy topics to another bucket, offsets and all, and compare. Run it again for what has come since."""
    from tiered.jobs.bucket_copying import plan_copy

    refuse_rate(on_spark, rate)
    kept: dict[str, object] = {
        "codec": codec,
        "key_id": key_id,
        "storage_class": storage_class,
        "prices": session.prices(),
    }
    with (
        stop_signals() as stop,
        open_bucket(session, url, options, rate=rate) as bucket,
        closing(_opened(session, target_url, target_options, storage_class, rate, url)) as target,
    ):
        names = [name for name in bucket.partitions(targets, topic_id) if _is_living(bucket, name)]
        kept["settings"] = bucket.settings_of
        plans = [plan_copy(bucket.store, target, name, now_ms=now_ms(), **kept) for name in names]  # type: ignore[arg-type]
        dollars = sum(plan.cost.dollars for plan in plans)
        if dry_run:
            rows = [to_copy(plan) for plan in plans]
            print_result(RewritePlanned(dry_run=True, dollars=dollars, partitions=rows), output)
            session.say(f"${format_dollars(dollars)}; nothing changed")
            return Exit.DONE
        if not yes:
            _ask_copy(plans, target_url, dollars)
        if on_spark.is_wanted:
            ways = task_bucket(session, bucket, is_configured=url is None)
            to = target_bucket(
                session,
                target_url,
                target_options,
                storage_class=storage_class,
                is_configured=url is None,
                key_ring=ways.key_ring,
            )
            done = _copied_in_tasks(session, ways, to, plans, stop, on_spark)
        else:
            done = _copied_here(session, bucket, target, plans, stop)
    print_result(Copied(dry_run=False, partitions=[copied(each) for each in done]), output)
    for each in done:
        for difference in each.differences:
            click.echo(f"! {each.name.topic}/{each.name.partition}: {difference}", err=True)
    if stop.is_set:
        session.say("interrupted; run the same command to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    session.say(f"next: tiered scrub --deep --remote {target_url}")
    return Exit.FINDINGS if any(each.differences for each in done) else Exit.DONE


def _copied_here(
    session: Session, bucket: Bucket, target: ObjectStore, plans: Sequence[CopyPlan], stop: Stop
) -> list[CopyOutcome]:
    from tiered.jobs.bucket_copying import run_copy

    done: list[CopyOutcome] = []
    how = {"now_ms": now_ms, "keys": bucket.keys, "should_stop": lambda: stop.is_set}
    with byte_progress(session, "copied", sum(plan.size_bytes for plan in plans)) as progress:
        for plan in plans:
            if not stop.is_set:
                done.append(run_copy(bucket.store, target, plan, progress=progress, **how))  # type: ignore[arg-type]
                of = counted(len(plan.entries), "segment")
                session.say(f"{plan.name.topic}/{plan.name.partition}: {done[-1].entries:,} of {of}")
    return done


def _copied_in_tasks(
    session: Session, source: TaskBucket, target: TaskBucket, plans: Sequence[CopyPlan], stop: Stop, on_spark: OnSpark
) -> list[CopyOutcome]:
    from tiered.spark.jobs.copying import copy as copy_in_tasks

    size = sum(plan.size_bytes for plan in plans)
    with spark_job(session, "rewrite copy", on_spark) as spark, byte_progress(session, "copied", size) as progress:
        return copy_in_tasks(spark, source, target, plans, should_stop=lambda: stop.is_set, progress=progress)


def _opened(
    session: Session,
    target_url: str,
    options: Mapping[str, object],
    storage_class: str | None,
    rate: str | None,
    url: str | None,
) -> ObjectStore:
    is_configured = url is None
    return open_target(
        session, target_url, options, storage_class=storage_class, rate=rate, is_configured=is_configured
    )


def _ask_copy(plans: Sequence[CopyPlan], url: str, dollars: float) -> None:
    count, size = sum(len(plan.entries) for plan in plans), format_bytes(sum(plan.size_bytes for plan in plans))
    summary = f"{counted(count, 'segment')}, {size}, to {url} for about ${format_dollars(dollars)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{summary} would be copied; add --yes")
    click.confirm(f"copy {summary}?", abort=True, err=True)


def _run(
    session: Session,
    targets: Sequence[str],
    planned: Planner,
    storage_class: str | None,
    *,
    dry_run: bool,
    yes: bool,
    rate: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    refuse_rate(on_spark, rate)
    with stop_signals() as stop, open_bucket(session, url, options, rate=rate, writes_segments=True) as bucket:
        plans = [planned(bucket, name) for name in bucket.partitions(targets, topic_id) if _is_living(bucket, name)]
        due = [plan for plan in plans if plan.groups]
        dollars = sum(plan.cost.dollars for plan in due)
        if dry_run or not due:
            rows = [to_rewrite(plan) for plan in due]
            print_result(RewritePlanned(dry_run=dry_run, dollars=dollars, partitions=rows), output)
            session.say("nothing to rewrite" if not due else f"${format_dollars(dollars)}; nothing changed")
            return Exit.DONE
        if not yes:
            _ask(due, dollars)
        target = None
        if storage_class is not None:  # the same bucket, with that class for new objects
            target = _opened(session, bucket.url, bucket.options, storage_class, rate, url)
        if on_spark.is_wanted:
            if target is not None:
                target.close()  # opening it was the check; the tasks open their own
            done = _done_in_tasks(session, bucket, due, storage_class, stop, on_spark, is_configured=url is None)
        else:
            done = _done(session, bucket, due, target, stop)
    rewritten = [RewrittenPartition.of(plan.name, outcome) for plan, outcome in done]
    print_result(Rewritten(dry_run=False, partitions=rewritten), output)
    if stop.is_set:
        session.say("interrupted; finished segments are committed, run the same command to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    return _print_result(session, done)


def _print_result(session: Session, done: Sequence[tuple[RewritePlan, RewriteOutcome]]) -> Exit:
    """Warn about work that is still due; return the exit code."""
    code = Exit.DONE
    for plan, outcome in done:
        where = f"{plan.name.topic}/{plan.name.partition}"
        if outcome.given_up:
            groups = counted(outcome.given_up, "group")
            session.warn(f"{where}: {groups} not rewritten: another writer or job replaced their segments")
        if not outcome.is_complete:
            groups = counted(len(plan.groups) - outcome.groups, "group")
            session.warn(f"{where}: {groups} not rewritten: too many pending deletes")
            code = max(code, Exit.FINDINGS)
        if outcome.given_up:
            code = Exit.CONFLICT
    if code is Exit.CONFLICT:
        session.warn("some segments are not rewritten; run the same command again")
    elif code is Exit.FINDINGS:
        session.warn("some segments are not rewritten; run the same command again after the grace period")
    return code


def _done(
    session: Session, bucket: Bucket, plans: Sequence[RewritePlan], target: ObjectStore | None, stop: Stop
) -> list[tuple[RewritePlan, RewriteOutcome]]:
    from tiered.jobs.rewriting import run_rewrite

    done: list[tuple[RewritePlan, RewriteOutcome]] = []
    telling = ExitStack()
    progress = telling.enter_context(byte_progress(session, "rewritten", sum(map(_size_bytes, plans))))
    try:
        for plan in plans:
            if stop.is_set:
                break
            outcome = run_rewrite(
                bucket.store,
                plan,
                now_ms=now_ms,
                keys=bucket.keys,
                target=target,
                should_stop=lambda: stop.is_set,
                progress=progress,
            )
            done.append((plan, outcome))
            groups = outcome.groups - outcome.given_up
            session.say(f"{plan.name.topic}/{plan.name.partition}: {groups} of {len(plan.groups)} groups")
    finally:
        telling.close()
        if target is not None:
            target.close()
    return done


def _size_bytes(plan: RewritePlan) -> int:
    return sum(group.size_bytes for group in plan.groups)


def _done_in_tasks(
    session: Session,
    bucket: Bucket,
    plans: Sequence[RewritePlan],
    storage_class: str | None,
    stop: Stop,
    on_spark: OnSpark,
    *,
    is_configured: bool,
) -> list[tuple[RewritePlan, RewriteOutcome]]:
    from tiered.spark.jobs.rewriting import rewrite as rewrite_in_tasks

    ways, target = task_bucket(session, bucket, is_configured=is_configured), None
    if storage_class is not None:
        target = target_bucket(
            session,
            bucket.url,
            bucket.options,
            storage_class=storage_class,
            is_configured=is_configured,
            key_ring=ways.key_ring,
        )
    size = sum(map(_size_bytes, plans))
    with spark_job(session, "rewrite", on_spark) as spark, byte_progress(session, "rewritten", size) as progress:
        job_id, stopped = plans[0].job_id, lambda: stop.is_set
        outcomes = rewrite_in_tasks(
            spark, ways, plans, target=target, job_id=job_id, should_stop=stopped, progress=progress
        )
    return list(zip(plans, outcomes, strict=True))


def _is_living(bucket: Bucket, name: RemotePartitionName) -> bool:
    """Whether the topic is not deleted. Raises the result of `MetadataLog.missing` if there is no manifest."""
    from remote.manifest.commit_protocol import MetadataLog

    return MetadataLog(bucket.store, name.prefix).refresh().deleted_ms is None


def _ask(plans: Sequence[RewritePlan], dollars: float) -> None:
    groups = sum(len(plan.groups) for plan in plans)
    size = format_bytes(sum(plan.cost.write_bytes for plan in plans))
    summary = f"{counted(groups, 'segment')}, {size}, for about ${format_dollars(dollars)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{summary} would be written; add --yes")
    click.confirm(f"write {summary}?", abort=True, err=True)
