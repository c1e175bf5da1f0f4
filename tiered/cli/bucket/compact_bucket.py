"""``tiered compact`` in the bucket: in this process, or in Spark tasks."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from local.errors import InvalidRequest, LogError, NotFound
from tiered.cli.bucket_options import Bucket, open_bucket
from tiered.cli.errors import Exit, worst
from tiered.cli.render import Column, Row, emit
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_job, task_bucket
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from local.names import TopicPartition
    from remote.manifest.catalog import RemotePartitionName
    from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan

_JOB = re.compile(r"[0-9A-Za-z_-]{1,64}")


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
        raise InvalidRequest("reading --resume, not a job: letters, digits, _ and -", job=repr(job_id))
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
    emit("partitions", [_row(each) for each in done], _COLUMNS, output, dry_run=False, job=job)
    session.tell_problems(errors)
    left = [each for each in done if each.given_up]
    for each in left:
        groups = counted(each.given_up, "group")
        where = f"{each.name.topic}/{each.name.partition}"
        session.warn(f"{where}: {groups} of segments not compacted: another writer or job replaced them meanwhile")
    if left and not stop.is_set:
        session.warn(f"the job is still due; run: tiered compact {target} ... --resume {job}")
    if any(each.is_cut for each in done) and not stop.is_set:
        session.say("some have more segments than one job compares, or too much waits for its deletion: go on later")
    if stop.is_set:
        session.say(f"interrupted; go on with: tiered compact {target} ... --resume {job}")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    code = worst(errors.values())
    return Exit.CONFLICT if left and code is not Exit.CORRUPTION else code


def _chosen(bucket: Bucket, target: str, topic_id: str | None) -> tuple[list[RemotePartitionName], dict[str, str]]:
    """(the selected partitions that are not deleted, the known settings of the topic)."""
    from remote.manifest.commit_protocol import MetadataLog

    found = {name: MetadataLog(bucket.store, name.prefix).refresh() for name in bucket.partitions([target], topic_id)}
    heads = {name: head for name, head in found.items() if head.deleted_ms is None}
    ids = sorted({name.topic_id for name in heads})
    if not heads:
        raise NotFound("compacting what is in the bucket, the topic was deleted or has no segment", name=target)
    if len(ids) > 1:
        raise InvalidRequest("compacting, several topics of one name: --topic-id is needed", topic_ids=",".join(ids))
    name, head = next(iter(heads.items()))
    return list(heads), bucket.settings_of(name.topic, head.properties)


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
    rows = [_planned_row(plan) for plan in plans]
    emit("partitions", rows, _PLANNED, output, dry_run=True, job=job)
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
        records = f"{counted(outcome.records_before, 'record')}, {outcome.records_after:,} left"
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


def _planned_row(plan: CompactionPlan) -> Row:
    from tiered.jobs.pipeline import dirty_bytes
    from tiered.jobs.rewriting import cost_of
    from tiered.stores.object_encoding import Keeping

    rows = [row for group in plan.groups for row in group.rows]
    return {
        "topic": plan.name.topic,
        "partition": plan.name.partition,
        "segments": len(rows),
        "size_bytes": plan.size_bytes,
        "dirty_bytes": dirty_bytes(rows),
        "upto_offset": plan.upto_offset,
        "is_cut": plan.is_cut,
        "was_done": plan.is_done,
        "dollars": cost_of(rows, Keeping()).dollars if rows else 0.0,
    }


def _row(each: CompactionOutcome) -> Row:
    gone = 1 - each.bytes_after / each.bytes_before if each.bytes_before else 0.0
    return {
        "topic": each.name.topic,
        "partition": each.name.partition,
        "was_done": each.was_done,
        "is_cut": each.is_cut,
        "segments_before": each.rows_before,
        "segments_after": each.rows_after,
        "bytes_before": each.bytes_before,
        "bytes_after": each.bytes_after,
        "size_reduction": round(gone, 4),
        "records_before": each.records_before,
        "records_after": each.records_after,
        "given_up": each.given_up,
        "is_done": not each.given_up,
        "cleaner_offset": each.upto_offset,
    }


_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("was_done"),
    Column("is_cut"),
    Column("segments_before", "SEGMENTS", format_count, is_number=True),
    Column("segments_after", "THEN", format_count, is_number=True),
    Column("bytes_before", "BEFORE", format_bytes, is_number=True),
    Column("bytes_after", "AFTER", format_bytes, is_number=True),
    Column("size_reduction", "GAINED", lambda value: f"{value:.1%}", is_number=True),
    Column("records_before", "RECORDS", format_count, is_number=True),
    Column("records_after", "LEFT", format_count, is_number=True),
    Column("given_up"),
    Column("is_done"),
    Column("cleaner_offset", "CLEAN TO", format_count, is_number=True),
)
_PLANNED = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("segments", "SEGMENTS", format_count, is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
    Column("dirty_bytes", "DIRTY", format_bytes, is_number=True),
    Column("upto_offset", "TO", format_count, is_number=True),
    Column("is_cut"),
    Column("was_done"),
    Column("dollars", "$ ABOUT", format_dollars, is_number=True),
)
