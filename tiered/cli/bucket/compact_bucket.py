"""``tiered compact`` in the bucket: in this process, or in Spark tasks."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from local.errors import InvalidRequest, LogError, NotFound
from tiered.cli.bucket_options import Bucket, open_bucket
from tiered.cli.errors import Exit, worst
from tiered.cli.render import PartitionRow, Work, number, print_result
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_job, task_bucket
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from local.names import TopicPartition
    from remote.manifest.catalog import RemotePartitionName
    from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan

_JOB = re.compile(r"[0-9A-Za-z_-]{1,64}")


class BucketCompactedPartition(PartitionRow):
    """The figures of the commits. `was_done`: by an earlier run of the job.

    `is_cut`: the partition has more than one job compares. `given_up` groups were replaced by another writer; then the
    job is not `is_done`, and still due.
    """

    was_done: bool
    is_cut: bool
    segments_before: Annotated[int, number("SEGMENTS BEFORE", format_count)]
    segments_after: Annotated[int, number("SEGMENTS AFTER", format_count)]
    bytes_before: Annotated[int, number("BYTES BEFORE", format_bytes)]
    bytes_after: Annotated[int, number("BYTES AFTER", format_bytes)]
    size_reduction: Annotated[float, number("REDUCTION", lambda value: f"{value:.1%}")]
    records_before: Annotated[int, number("RECORDS BEFORE", format_count)]
    records_after: Annotated[int, number("RECORDS AFTER", format_count)]
    given_up: int
    is_done: bool
    cleaner_offset: Annotated[int, number("CLEAN UP TO", format_count)]


class BucketCompacted(Work):
    """``tiered compact --bucket``."""

    job: str
    partitions: list[BucketCompactedPartition]


class BucketCompactionPlan(PartitionRow):
    """The segments that a job would rewrite."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    dirty_bytes: Annotated[int, number("DIRTY BYTES", format_bytes)]
    upto_offset: Annotated[int, number("UP TO", format_count)]
    is_cut: bool
    was_done: bool
    dollars: Annotated[float, number("$ ESTIMATE", format_dollars)]


class BucketCompactPlanned(Work):
    """``tiered compact --bucket --dry-run``."""

    job: str
    partitions: list[BucketCompactionPlan]


def compact_bucket(
    session: Session,
    target: str,
    *,
    dry_run: bool,
    job_id: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """`target` is ``TOPIC[/PARTITION]``."""
    from remote.keys import new_ulid

    if job_id is not None and not _JOB.fullmatch(job_id):
        raise InvalidRequest("invalid --resume, a job has letters, digits, _ and - only", job=repr(job_id))
    job = job_id or f"compact-{new_ulid(now_ms())}"
    errors: dict[TopicPartition, LogError] = {}
    with stop_signals() as stop, open_bucket(session, url, options, writes_segments=True) as bucket:
        names, settings = _chosen(bucket, target, topic_id)
        if dry_run:
            return _planned(session, bucket, names, settings, job, output)
        if on_spark.is_wanted:
            done = _in_tasks(session, bucket, names, settings, job, stop, on_spark, errors, is_configured=url is None)
        else:
            done = _here(session, bucket, names, settings, job, stop, errors, is_configured=url is None)
    rows = [_compacted(each) for each in done]
    print_result(BucketCompacted(dry_run=False, job=job, partitions=rows), output)
    session.report_problems(errors)
    left = [each for each in done if each.given_up]
    for each in left:
        groups = counted(each.given_up, "group")
        where = f"{each.name.topic}/{each.name.partition}"
        session.warn(f"{where}: {groups} of segments not compacted: another writer or job replaced them")
    if left and not stop.is_set:
        session.warn(f"the job is not finished; run: tiered compact {target} ... --resume {job}")
    if any(each.is_cut for each in done) and not stop.is_set:
        session.say(
            "some partitions have more segments than one job compares, or too many pending deletes: resume later"
        )
    if stop.is_set:
        session.say(f"interrupted; resume with: tiered compact {target} ... --resume {job}")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    code = worst(errors.values())
    return Exit.CONFLICT if left and code is not Exit.CORRUPTION else code


def _chosen(bucket: Bucket, target: str, topic_id: str | None) -> tuple[list[RemotePartitionName], dict[str, str]]:
    """(the selected partitions that are not deleted, the known settings of the topic)."""
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


def _planned(
    session: Session,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    settings: dict[str, str],
    job: str,
    output: str,
) -> int:
    from tiered.jobs.bucket_compaction import plan_compaction

    plans = [
        plan_compaction(bucket.store, name, now_ms=now_ms(), job_id=job, settings=settings, keys=bucket.keys)
        for name in names
    ]
    print_result(BucketCompactPlanned(dry_run=True, job=job, partitions=list(map(_plan_row, plans))), output)
    session.say("nothing changed")
    return Exit.DONE


def _here(
    session: Session,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    settings: dict[str, str],
    job: str,
    stop: Stop,
    errors: dict[TopicPartition, LogError],
    *,
    is_configured: bool,
) -> list[CompactionOutcome]:
    from local.storage import DiskStorage
    from tiered.jobs.compaction_passes import compact_partition

    done = []
    session.progress.expect(len(names), "partitions")
    for name in names:
        if stop.is_set:
            break
        try:
            with task_bucket(session, bucket, is_configured=is_configured).scratch() as directory:
                outcome = compact_partition(
                    bucket.store,
                    name,
                    now_ms=now_ms(),
                    storage=DiskStorage(),
                    directory=directory,
                    keys=bucket.keys,
                    job_id=job,
                    settings=settings,
                )
        except LogError as error:
            errors[name.topic_partition] = error
            continue
        done.append(outcome)
        session.progress.advance()
        records = f"{counted(outcome.records_before, 'record')}, {outcome.records_after:,} retained"
        session.say(f"{name.topic}/{name.partition}: {records}")
    return done


def _in_tasks(
    session: Session,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    settings: dict[str, str],
    job: str,
    stop: Stop,
    on_spark: OnSpark,
    errors: dict[TopicPartition, LogError],
    *,
    is_configured: bool,
) -> list[CompactionOutcome]:
    from tiered.spark.jobs.compaction import compact

    session.progress.expect(len(names), "partitions")
    with spark_job(session, f"compact {names[0].topic}", on_spark) as spark:
        done = compact(
            spark,
            bucket.url,
            [names[0].topic],
            partitions=[name.topic_partition for name in names],
            topic_id=names[0].topic_id,
            settings=settings,
            job_id=job,
            bucket=task_bucket(session, bucket, is_configured=is_configured),
            should_stop=lambda: stop.is_set,
            errors=errors,
        )
    session.progress.advance(len(done))
    return done


def _plan_row(plan: CompactionPlan) -> BucketCompactionPlan:
    from tiered.jobs.pipeline import dirty_bytes
    from tiered.jobs.rewriting import cost_of
    from tiered.stores.object_encoding import EncodingChoice

    rows = [row for group in plan.groups for row in group.entries]
    return BucketCompactionPlan.of(
        plan.name,
        plan,
        segments=len(rows),
        dirty_bytes=dirty_bytes(rows),
        was_done=plan.is_done,
        dollars=cost_of(rows, EncodingChoice()).dollars if rows else 0.0,
    )


def _compacted(each: CompactionOutcome) -> BucketCompactedPartition:
    gone = 1 - each.bytes_after / each.bytes_before if each.bytes_before else 0.0
    return BucketCompactedPartition.of(
        each.name,
        each,
        segments_before=each.rows_before,
        segments_after=each.rows_after,
        size_reduction=round(gone, 4),
        is_done=not each.given_up,
        cleaner_offset=each.upto_offset,
    )
