"""``tiered compact``: clean a topic now, on the disk or in the bucket, or estimate the gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest, LogError, NotFound
from local.names import TopicPartition
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import Bucket, JobCommand, check_job_id
from tiered.cli.options import GROUP, argument, command, option
from tiered.cli.render import PartitionRow, Work, number, text
from tiered.cli.session import Session, now_ms, topic_problems
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from remote.manifest.catalog import RemotePartitionName
    from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan


class CompactedPartition(PartitionRow):
    """Null: there was nothing to clean."""

    is_cleaned: bool
    bytes_before: Annotated[int | None, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int | None, number("BYTES AFTER", format_bytes)]
    size_reduction: Annotated[float | None, number("REDUCTION", "{:.1%}".format)]
    records_before: Annotated[int | None, number("RECORDS BEFORE", format_count)]
    records_after: Annotated[int | None, number("RECORDS AFTER", format_count)]
    invalid_records: Annotated[int | None, number("WITHOUT KEY", format_count)]
    cleaner_offset: Annotated[int | None, number("CLEAN UP TO", format_count)]


class EstimatedPartition(PartitionRow):
    """The estimated gain of a pass; `basis` says which part of it was counted."""

    first_dirty_offset: int
    upto_offset: int
    bytes_before: Annotated[int, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int, number("BYTES AFTER (EST.)", format_bytes)]
    size_reduction: Annotated[float, number("REDUCTION", "{:.1%}".format)]
    distinct_keys: Annotated[int, number("KEYS", format_count)]
    invalid_records: Annotated[int, number("WITHOUT KEY", format_count)]
    dirty_records: int
    sampled_bytes: int
    tiered_bytes: int
    basis: Annotated[str, text("BASIS")]


class BucketCompactedPartition(PartitionRow):
    """The figures of the commits. `was_done`: by an earlier run of the job.

    `is_cut`: the partition has more than one job compares. `given_up` groups were replaced by another writer. After
    such a group, or a stop between two rounds, the job is not `is_done`, and still due.
    """

    was_done: bool
    is_cut: bool
    segments_before: Annotated[int, number("SEGMENTS BEFORE", format_count)]
    segments_after: Annotated[int, number("SEGMENTS AFTER", format_count)]
    bytes_before: Annotated[int, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int, number("BYTES AFTER", format_bytes)]
    size_reduction: Annotated[float, number("REDUCTION", "{:.1%}".format)]
    records_before: Annotated[int, number("RECORDS BEFORE", format_count)]
    records_after: Annotated[int, number("RECORDS AFTER", format_count)]
    given_up: int
    is_done: bool
    cleaner_offset: Annotated[int, number("CLEAN UP TO", format_count)]


class BucketCompactionPlan(PartitionRow):
    """The segments that a job would rewrite."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    dirty_bytes: Annotated[int, number("DIRTY BYTES", format_bytes)]
    upto_offset: Annotated[int, number("UP TO", format_count)]
    is_cut: bool
    was_done: bool
    dollars: Annotated[float, number("$ ESTIMATE", format_dollars)]


class Compacted(Work):
    """``tiered compact``."""

    partitions: list[CompactedPartition]


class CompactEstimated(Work):
    """``tiered compact --dry-run``."""

    partitions: list[EstimatedPartition]


class BucketCompacted(Work):
    """``tiered compact --bucket``."""

    job: str
    partitions: list[BucketCompactedPartition]


class BucketCompactPlanned(Work):
    """``tiered compact --bucket --dry-run``."""

    job: str
    partitions: list[BucketCompactionPlan]


@command("compact", example="compact orders --dry-run", has_progress=True)
def compact(
    session: Session,
    topic: str = argument(),
    roll: bool = option("--roll", "Roll the active segment first, so that its records are cleaned too."),
    dry_run: bool = option("--dry-run", "Estimate the result: reads the dirty keys and a sample, writes nothing."),
    in_bucket: bool = option("--bucket", "Compact the segments in the bucket instead of the disk."),
    job_id: str | None = option("--resume JOB", "With --bucket: resume this job, or name a new one."),
    job: JobCommand = GROUP,
) -> int:
    """Clean every dirty closed segment of a topic now, regardless of min.cleanable.dirty.ratio.

    Compaction lags and open transactions still apply. The next `tiered run` copies the clean segments. With --bucket,
    --remote or --spark the command cleans the segments of TOPIC or TOPIC/PARTITION in the bucket, also while a manager
    runs.
    """
    if dry_run and roll:
        raise click.UsageError("--dry-run does not roll: remove --roll")
    if in_bucket or job.url is not None or job.is_on_spark:
        if roll:
            raise click.UsageError("--roll applies to the disk; in the bucket all segments are closed")
        return _in_bucket(session, job, topic, job_id, dry_run=dry_run)
    if job_id is not None or job.topic_id is not None:
        raise click.UsageError("--resume and --topic-id apply to the bucket: add --bucket, --remote or --spark")
    return _estimate(session, job, topic) if dry_run else _clean(session, job, topic, roll)


def _estimate(session: Session, job: JobCommand, topic: str) -> int:
    from tiered.jobs.topic_compaction import estimate_topic

    with session.manager(read_only=True) as manager:
        found = estimate_topic(manager, topic, now_ms=now_ms())
        problems = topic_problems(manager, [topic])
    rows = []
    for each in found:
        facts = {"upto_offset": each.log.first_uncleanable_offset, "invalid_records": each.keyless_records}
        share = round(each.size_reduction, 4)
        rows.append(EstimatedPartition.of(each.log.partition, each, each.log, size_reduction=share, **facts))
    job.print(CompactEstimated(dry_run=True, partitions=rows))
    session.report_problems(problems)
    session.say("an estimate; nothing changed")
    return worst(problems.values())


def _clean(session: Session, job: JobCommand, topic: str, roll: bool) -> int:
    from tiered.serve.commands.operation_jobs import errors_of
    from tiered.serve.node.operations import compact

    with job.stoppable(), session.node(job.stop) as node:
        done = node.run(compact, topic=topic, roll=roll)
    rows = []
    for each in done.cleaned:
        last = each.figures
        reduction = _reduction(last.bytes_before, last.bytes_after) if last is not None else None
        facts = {"is_cleaned": last is not None, "size_reduction": reduction}
        rows.append(CompactedPartition.of(each.partition, last, **facts))
    job.print(Compacted(dry_run=False, partitions=rows))
    problems = errors_of(done.problems)
    session.report_problems(problems)
    return worst(problems.values())


def _reduction(before: int, after: int) -> float:
    return round(1 - after / before, 4) if before else 0.0


def _in_bucket(session: Session, job: JobCommand, target: str, job_id: str | None, *, dry_run: bool) -> int:
    from remote.keys import new_ulid
    from tiered.jobs.bucket_compaction import compact_partitions, plan_compaction

    check_job_id(job_id)
    job_id = job_id or f"compact-{new_ulid(now_ms())}"
    errors: dict[TopicPartition, LogError] = {}

    def on_done(outcome: CompactionOutcome) -> None:
        session.progress.advance()
        records = f"{counted(outcome.records_before, 'record')}, {outcome.records_after:,} retained"
        session.say(f"{outcome.name.topic}/{outcome.name.partition}: {records}")

    with job.opened(writes_segments=True) as bucket:
        names, settings = _selected(bucket, target, job.topic_id)
        if dry_run:
            plans = [
                plan_compaction(bucket.store, name, now_ms=now_ms(), job_id=job_id, settings=settings, keys=bucket.keys)
                for name in names
            ]
            job.print(BucketCompactPlanned(dry_run=True, job=job_id, partitions=list(map(_plan_row, plans))))
            session.say("nothing changed")
            return Exit.DONE
        session.progress.expect(len(names), "partitions")
        with job.executor(f"compact {names[0].topic}", job_id=job_id) as executor:
            done = compact_partitions(
                executor,
                job.tasks_of(bucket),
                names,
                now_ms=now_ms(),
                job_id=job_id,
                errors=errors,
                should_stop=job.should_stop,
                on_done=on_done,
                settings=settings,
            )
    job.print(BucketCompacted(dry_run=False, job=job_id, partitions=[_compacted_in_bucket(each) for each in done]))
    session.report_problems(errors)
    unfinished = [each for each in done if each.given_up]
    for each in unfinished:
        groups = counted(each.given_up, "group")
        where = f"{each.name.topic}/{each.name.partition}"
        session.warn(f"{where}: {groups} of segments not compacted: another writer or job replaced them")
    again = f"tiered compact {target} ... --resume {job_id}"
    if job.should_stop():
        return job.interrupted(f"resume with: {again}")
    if unfinished:
        session.warn(f"the job is not finished; run: {again}")
    if any(each.is_cut for each in done):
        session.say(
            "some partitions have more segments than one job compares, or too many pending deletes: resume later"
        )
    code = worst(errors.values())
    return Exit.CONFLICT if unfinished and code is not Exit.CORRUPTION else code


def _selected(bucket: Bucket, target: str, topic_id: str | None) -> tuple[list[RemotePartitionName], dict[str, str]]:
    from remote.manifest.commit_protocol import MetadataLog

    found = {name: MetadataLog(bucket.store, name.prefix).refresh() for name in bucket.partitions([target], topic_id)}
    manifests = {name: manifest for name, manifest in found.items() if manifest.deleted_ms is None}
    ids = sorted({name.topic_id for name in manifests})
    if not manifests:
        raise NotFound("cannot compact in the bucket, the topic was deleted or has no segment", name=target)
    if len(ids) > 1:
        raise InvalidRequest(
            "cannot compact, several topics have this name: choose one with --topic-id", topic_ids=",".join(ids)
        )
    name, manifest = next(iter(manifests.items()))
    return list(manifests), bucket.settings_of(name.topic, manifest.properties)


def _plan_row(plan: CompactionPlan) -> BucketCompactionPlan:
    from tiered.jobs.pipeline import dirty_bytes
    from tiered.jobs.rewriting import cost_of
    from tiered.stores.object_encoding import EncodingChoice

    rows = [row for group in plan.groups for row in group.entries]
    figures = {"dirty_bytes": dirty_bytes(rows), "dollars": cost_of(rows, EncodingChoice()).dollars if rows else 0.0}
    return BucketCompactionPlan.of(plan.name, plan, segments=len(rows), was_done=plan.is_done, **figures)


def _compacted_in_bucket(each: CompactionOutcome) -> BucketCompactedPartition:
    segments = {"segments_before": each.rows_before, "segments_after": each.rows_after}
    is_done, reduction = not (each.given_up or each.is_stopped), _reduction(each.bytes_before, each.bytes_after)
    facts = {"size_reduction": reduction, "is_done": is_done, "cleaner_offset": each.upto_offset}
    return BucketCompactedPartition.of(each.name, each, **segments, **facts)
