"""``tiered rewrite merge``, ``recode`` and ``copy``, and ``tiered rotate-keys``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import DRY_RUN, Bucket, JobCommand
from tiered.cli.options import GROUP, OUTPUT, PARTITIONS, TOPICS, YES, command, option, parse_time, size_bytes
from tiered.cli.render import PartitionRow, PricedWork, Result, Struct, Work, number, print_result, text
from tiered.cli.session import Session, now_ms, store_options, topic_problems
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from remote.manifest.catalog import RemotePartitionName
    from tiered.jobs.bucket_copying import CopyPlan
    from tiered.jobs.rewriting import RewriteOutcome, RewritePlan


Planner = Callable[[Bucket, "RemotePartitionName"], "RewritePlan"]
CODECS = ("none", "zstd")


@dataclass(kw_only=True)
class RewriteCommand(JobCommand):
    targets: tuple[str, ...] = PARTITIONS
    dry_run: bool = DRY_RUN
    yes: bool = YES
    rate: str | None = option("--rate SIZE/s", "Limit the read rate and the write rate, each separately.")

    def names(self, bucket: Bucket) -> list[RemotePartitionName]:
        """Return the selected partitions of living topics. Raises as `MetadataLog.missing` without a manifest."""
        from remote.manifest.commit_protocol import MetadataLog

        found = bucket.partitions(self.targets, self.topic_id)
        return [name for name in found if MetadataLog(bucket.store, name.prefix).refresh().deleted_ms is None]


class PlannedCopy(PartitionRow):
    """Segments to read and to write, in requests and dollars."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    groups: Annotated[int, number("NEW SEGMENTS", format_count)]
    read_bytes: Annotated[int, number("BYTES READ", format_bytes)]
    write_bytes: Annotated[int, number("BYTES WRITTEN", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]


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


class CopiedPartition(PartitionRow):
    """`behind` segments were added to the source during the copy."""

    segments: Annotated[int, number("COPIED", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    behind: Annotated[int, number("BEHIND", format_count)]
    differences: Annotated[int, number("DIFFERENCES", format_count)]
    is_complete: bool


class RewritePlanned(PricedWork):
    """``tiered rewrite merge|recode|copy --dry-run``."""

    partitions: list[PlannedCopy]


class Rewritten(Work):
    """``tiered rewrite merge|recode``."""

    partitions: list[RewrittenPartition]


class Copied(Work):
    """``tiered rewrite copy``."""

    partitions: list[CopiedPartition]


@click.group("rewrite")
def rewrite() -> None:
    """Rewrite segments in the bucket; records and offsets do not change, and readers continue."""


@command("merge", rewrite, example="rewrite merge orders --target 256MiB --dry-run", has_progress=True)
def merge(
    session: Session,
    target: str = option("--target SIZE", "Set the size of a merged segment.", default="256MiB"),
    job: RewriteCommand = GROUP,
) -> int:
    """Merge small neighbouring segments into larger ones."""
    from tiered.jobs.rewriting import plan_merge

    size = size_bytes("--target", target, "256MiB", least=1)
    prices = session.prices()

    def plan(bucket: Bucket, name: RemotePartitionName) -> RewritePlan:
        return plan_merge(
            bucket.store, name, now_ms=now_ms(), target_bytes=size, prices=prices, settings=bucket.settings_of
        )

    return _run(session, job, plan, None)


@command("recode", rewrite, example="rewrite recode orders --codec zstd --dry-run", has_progress=True)
def recode(
    session: Session,
    codec: str | None = option("--codec", "Set the object encoding.", choices=CODECS),
    key_id: str | None = option("--key-id ID", "Encrypt again, with this key of the key ring."),
    decrypt: bool = option("--decrypt", "Remove the encryption."),
    storage_class: str | None = option("--storage-class CLASS", "Set the S3 storage class, such as GLACIER_IR."),
    since: str | None = option("--since TIME", "Select segments whose newest record is of this time or later."),
    until: str | None = option("--until TIME", "Select segments whose newest record is older than this time."),
    min_bytes: str = option(
        "--min-bytes SIZE", "Select segments with at least this stored size.", default="0", show_default=False
    ),
    job: RewriteCommand = GROUP,
) -> int:
    """Change the codec, the encryption key or the storage class of segments."""
    from tiered.jobs.rewriting import EntryFilter, plan_recode

    if codec is key_id is storage_class is None and not decrypt:
        raise click.UsageError("nothing to change: add --codec, --key-id, --decrypt or --storage-class")

    least = size_bytes("--min-bytes", min_bytes, "128KiB")
    times = [None if text is None else parse_time(text, now_ms()) for text in (since, until)]
    entry_filter = EntryFilter(min_bytes=least, since_ms=times[0], until_ms=times[1])
    prices = session.prices()

    def plan(bucket: Bucket, name: RemotePartitionName) -> RewritePlan:
        _check_key(bucket, key_id)
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

    return _run(session, job, plan, storage_class)


@command("copy", rewrite, example="rewrite copy orders --to s3://other-bucket/logs --dry-run", has_progress=True)
def copy(
    session: Session,
    target_url: str = option("--to URL", "Target bucket, such as s3://bucket/prefix.", required=True),
    target_options: dict[str, object] = option(
        "--to-option NAME=VALUE", "Option of the store of --to.", callback=store_options
    ),
    codec: str | None = option("--codec", "Set the object encoding in the target; default: unchanged.", choices=CODECS),
    key_id: str | None = option(
        "--key-id ID", "Encrypt in the target with this key of the key ring; default: unchanged."
    ),
    storage_class: str | None = option("--storage-class CLASS", "Set the S3 storage class in the target."),
    job: RewriteCommand = GROUP,
) -> int:
    """Copy topics to another bucket with their offsets, and compare. Repeat it to copy newer segments."""
    from tiered.jobs.bucket_copying import CopyJob, plan_copy

    prices = session.prices()
    with (
        job.opened(rate=job.rate) as bucket,
        job.target_of(bucket, target_url, target_options, storage_class=storage_class, rate=job.rate) as target,
    ):
        _check_key(bucket, key_id)
        with target.opened() as store:
            plans = [
                plan_copy(
                    bucket.store,
                    store,
                    name,
                    now_ms=now_ms(),
                    codec=codec,
                    key_id=key_id,
                    storage_class=storage_class,
                    prices=prices,
                    settings=bucket.settings_of,
                )
                for name in job.names(bucket)
            ]
        planned = _planned(job, plans, [(len(plan.entries), len(plan.entries)) for plan in plans])
        count, size = sum(len(plan.entries) for plan in plans), sum(plan.size_bytes for plan in plans)
        summary = f"{counted(count, 'segment')}, {format_bytes(size)}, to {target_url}"
        summary += f" for about ${format_dollars(planned.dollars)}"
        if not job.proceeds(planned, "copy", "copied", summary, yes=job.yes):
            return Exit.DONE
        work = CopyJob(source=job.tasks_of(bucket), target=target, plans=plans, now_ms=now_ms)
        done = job.carry_out(work, size, done="copied", description="rewrite copy")
    for plan, outcome in zip(plans, done, strict=True):
        session.say(f"{plan.name.topic_partition}: {outcome.entries:,} of {counted(len(plan.entries), 'segment')}")
    rows_done = [
        CopiedPartition.of(each.name, each, segments=each.entries, differences=len(each.differences)) for each in done
    ]
    job.print(Copied(dry_run=False, partitions=rows_done))
    for each in done:
        for difference in each.differences:
            click.echo(f"! {each.name.topic_partition}: {difference}", err=True)
    if job.should_stop():
        return job.interrupted("run the same command to resume")
    session.say(f"next: tiered scrub --deep --remote {target_url}")
    return Exit.FINDINGS if any(each.differences for each in done) else Exit.DONE


def _check_key(bucket: Bucket, key_id: str | None) -> None:
    if key_id is not None and key_id not in bucket.keys:
        raise InvalidRequest("cannot rewrite, the key is not in the key ring", key_id=key_id)


def _planned(
    job: RewriteCommand, plans: Sequence[RewritePlan | CopyPlan], counts: Sequence[tuple[int, int]]
) -> PricedWork:
    rows = [
        PlannedCopy.of(plan.name, plan.cost, segments=segments, groups=groups)
        for plan, (segments, groups) in zip(plans, counts, strict=True)
    ]
    return RewritePlanned(dry_run=job.dry_run, dollars=sum(each.cost.dollars for each in plans), partitions=rows)


def _run(session: Session, job: RewriteCommand, planner: Planner, storage_class: str | None) -> int:
    from tiered.jobs.rewriting import RewriteJob

    with job.opened(rate=job.rate, writes_segments=True) as bucket, ExitStack() as opened:
        plans = [plan for name in job.names(bucket) if (plan := planner(bucket, name)).groups]
        counts = [(sum(len(group.entries) for group in plan.groups), len(plan.groups)) for plan in plans]
        planned, groups = _planned(job, plans, counts), [group for plan in plans for group in plan.groups]
        summary = f"{counted(len(groups), 'segment')}, {format_bytes(sum(plan.cost.write_bytes for plan in plans))}"
        summary += f", for about ${format_dollars(planned.dollars)}"
        nothing = None if plans else "nothing to rewrite"
        if not job.proceeds(planned, "write", "written", summary, yes=job.yes, nothing=nothing):
            return Exit.DONE
        target = None
        if storage_class is not None:  # the same bucket, with that class for new objects
            target = opened.enter_context(
                job.target_of(bucket, bucket.url, bucket.options, storage_class=storage_class, rate=job.rate)
            )
        work = RewriteJob(bucket=job.tasks_of(bucket), plans=plans, now_ms=now_ms, target=target)
        size = sum(group.size_bytes for group in groups)
        outcomes = job.carry_out(work, size, done="rewritten", description="rewrite", job_id=plans[0].job_id)
        done = list(zip(plans, outcomes, strict=True))
    for plan, outcome in done:
        session.say(f"{plan.name.topic_partition}: {outcome.groups - outcome.given_up} of {len(plan.groups)} groups")
    job.print(Rewritten(dry_run=False, partitions=[RewrittenPartition.of(plan.name, each) for plan, each in done]))
    if job.should_stop():
        return job.interrupted("finished segments are committed, run the same command to resume")
    return _report(session, done)


def _report(session: Session, done: list[tuple[RewritePlan, RewriteOutcome]]) -> Exit:
    for plan, outcome in done:
        where = plan.name.topic_partition
        if outcome.given_up:
            groups = counted(outcome.given_up, "group")
            session.warn(f"{where}: {groups} not rewritten: another writer or job replaced their segments")
        if not outcome.is_complete:
            groups = counted(len(plan.groups) - outcome.groups, "group")
            session.warn(f"{where}: {groups} not rewritten: too many pending deletes")
    if any(outcome.given_up for _, outcome in done):
        session.warn("some segments are not rewritten; run the same command again")
        return Exit.CONFLICT
    if all(outcome.is_complete for _, outcome in done):
        return Exit.DONE
    session.warn("some segments are not rewritten; run the same command again after the grace period")
    return Exit.FINDINGS


class WrappedKeys(Struct):
    """`keys` are the keys that wrap the data keys, with counts. `key_id` is the one from now on.

    `sealed` counts manifests and pages.
    """

    where: Annotated[str, text("PARTITION")]
    keys: Annotated[str, text("WRAPPED BY")]
    key_id: Annotated[str, text("CURRENT KEY")]
    rewrapped: Annotated[int, number("SEGMENTS")]
    sealed: Annotated[int, number("SEALED")]


class KeysRotated(Result):
    """``tiered rotate-keys``."""

    keys: list[WrappedKeys]


@command("rotate-keys", example="rotate-keys orders --dry-run", has_progress=True)
def rotate_keys(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    dry_run: bool = option("--dry-run", "Count the segments by the key that wraps their data keys, change nothing."),
    output: str = OUTPUT,
) -> Exit:
    """Wrap the data keys of each topic's segments with the key that remote.encryption.key.id names.

    Manifests and pages are sealed with the same key; SEALED counts them. Upgrade every reader first: versions before
    sealed manifests cannot read them. Afterwards only older manifests need the old keys, until tiered gc deletes them.
    """
    from tiered.jobs.key_rotation import rotate_keys as rotate

    progress = session.progress
    with session.manager(read_only=dry_run) as manager:
        found = rotate(manager, topics or None, now_ms=now_ms(), dry_run=dry_run, progress=progress.count("partitions"))
        problems = topic_problems(manager, topics)
    rows = [
        WrappedKeys.of(
            each,
            where=str(each.partition),
            keys=",".join(f"{used_id}:{count}" for used_id, count in sorted(each.used.items())) or "-",
            key_id=each.key_id or "-",
        )
        for each in found
    ]
    print_result(KeysRotated(rows), output)
    session.report_problems(problems)
    if dry_run:
        session.say("nothing changed; next: tiered rotate-keys")
    return worst(problems.values())
