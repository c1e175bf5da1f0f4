"""``tiered compaction``, ``compact`` and ``view``: state and advice, cleaning now or an estimate, compacted views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest, LogError, NotFound
from local.names import TopicPartition
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import Bucket, JobCommand, check_job_id
from tiered.cli.options import GROUP, OUTPUT, TOPICS, YES, argument, command, option
from tiered.cli.render import PartitionRow, Result, Struct, Work, number, print_result, text
from tiered.cli.session import Session, confirm, now_ms, stop_signals, topic_problems
from tiered.config.units import counted, format_bytes, format_count, format_dollars, format_ms
from tiered.node.problems import UnreadPartitions, group_problems, uncleanable_problem, unread_rows

if TYPE_CHECKING:
    from remote.manifest.catalog import RemotePartitionName
    from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan
    from tiered.jobs.view_jobs import ViewStatus

NAME = "compacted"  # `remote.manifest.view.DEFAULT_VIEW`, without the cost of its import


class CleaningState(PartitionRow):
    """A compacted partition and its last pass. Null: there was none, or the log could not be read."""

    state: Annotated[str | None, text("STATE")]
    dirty_ratio: Annotated[float | None, number("DIRTY RATIO", "{:.0%}".format)]
    clean_bytes: Annotated[int | None, number("CLEAN", format_bytes)]
    cleanable_bytes: Annotated[int | None, number("CLEANABLE", format_bytes)]
    uncleanable_bytes: Annotated[int | None, number("NOT CLEANABLE", format_bytes)]
    first_dirty_offset: Annotated[int | None, number("DIRTY FROM", format_count)]
    first_uncleanable_offset: int | None
    delay_ms: Annotated[int | None, number("OVERDUE", format_ms)]
    last_run_ms: int | None
    ago_ms: Annotated[int | None, number("LAST PASS", format_ms)]
    size_reduction: Annotated[float | None, number("REDUCTION", "{:.0%}".format)]
    invalid_records: Annotated[int | None, number("WITHOUT KEY", format_count)]
    buffer_utilization: Annotated[float | None, number("BUFFER USE", "{:.0%}".format)]
    uncleanable_reason: str | None
    retry_ms: int | None


class CleaningRun(PartitionRow):
    """A pass; `error` null if it came to its end."""

    at_ms: int
    first_dirty_offset: int
    cleaner_offset: int
    thread: int
    delay_ms: int
    indexed_bytes: int
    bytes_read: int
    bytes_written: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    distinct_keys: int
    invalid_records: int
    index_seconds: float
    clean_seconds: float
    buffer_utilization: float
    buffer_bytes: int
    is_cut: bool
    error: str | None


class CleanerGauge(Struct):
    """A gauge by Kafka's name; null before the first pass."""

    name: Annotated[str, text("METRIC")]
    value: Annotated[float | None, number("VALUE")]


class CompactionStatus(Result):
    """``tiered compaction status``."""

    unread: list[UnreadPartitions]
    partitions: list[CleaningState]


class CompactionRuns(Result):
    """``tiered compaction status --runs N``."""

    runs: list[CleaningRun]


class CompactionMetrics(Result):
    """``tiered compaction status --metrics``."""

    unread: list[UnreadPartitions]
    metrics: list[CleanerGauge]


_Advice = Annotated[str, text("OBSERVATION AND ADVICE")]


class CleaningAdvice(Struct):
    """`topic` and `partition` null: about the whole cleaner. `setting` null: none would help."""

    rule: Annotated[str, text("RULE")]
    topic: Annotated[str | None, text("PARTITION", of=lambda row: row.topic and f"{row.topic}/{row.partition}")]
    partition: int | None
    setting: Annotated[str | None, text("SETTING")]
    text: _Advice


class CompactionAdvice(Result):
    """``tiered compaction advise``."""

    advice: list[CleaningAdvice]


@click.group("compaction")
def compaction() -> None:
    """Show the state of compaction, and settings that improve it."""


@command("status", compaction, example="compaction status")
def show_compaction(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    count: int | None = option("--runs N", "Print the last N passes instead, in the log format of Kafka.", least=1),
    metrics: bool = option("--metrics", "Print the cleaner metrics instead, with the names of Kafka."),
    output: str = OUTPUT,
) -> int:
    """Show each compacted partition: dirty share, state, last pass. Exit 10 if one cannot be cleaned."""
    from local.cleaner.cleaner_history import summary
    from tiered.status.compaction_status import cleaner_metrics, compaction_status, log_row, unread_logs

    now = now_ms()
    with session.manager(read_only=True, is_brief=True) as manager:
        for topic in topics:
            manager.topics.get(topic)
        found = compaction_status(manager, now, topics or None)
        unread = unread_logs(manager, found, topics or None)
        figures = cleaner_metrics(manager, now)
        runs = [run for run in manager.cleaning.runs if not topics or run.topic in topics]
        problems = topic_problems(manager, topics)
    if metrics:
        gauges = [CleanerGauge(name.replace("_", "-"), value) for name, value in asdict(figures).items()]
        print_result(CompactionMetrics(unread_rows(unread), gauges), output)
    elif count is not None and output == "table":
        for run in runs[-count:]:
            click.echo(summary(run))
    elif count is not None:
        print_result(CompactionRuns([CleaningRun.of(run) for run in runs[-count:]]), output)
    else:
        logs = [CleaningState.of_fields(log_row(each, now)) for _, each in sorted(found.items())]
        logs += [CleaningState.of(name, None) for name in unread]
        print_result(CompactionStatus(unread_rows(unread), logs), output)
    reasons = {name: each.uncleanable.reason for name, each in sorted(found.items()) if each.uncleanable is not None}
    uncleanable = [uncleanable_problem(name, reason) for name, reason in reasons.items()]
    for each in group_problems(uncleanable):
        session.warn(each.line)
    return session.report(problems, unread, Exit.UNHEALTHY if uncleanable else Exit.DONE)


@command("advise", compaction, example="compaction advise")
def advise(session: Session, output: str = OUTPUT) -> int:
    """Show settings with which the cleaner cannot keep up, from the logs and past passes. Exit 3 with advice."""
    from tiered.status.compaction_status import compaction_advice

    with session.manager(read_only=True, is_brief=True) as manager:
        found = compaction_advice(manager, now_ms())
        problems = dict(manager.problems)
    rows = [CleaningAdvice.of(each.partition, rule=each.rule, setting=each.setting, text=each.text) for each in found]
    print_result(CompactionAdvice(rows), output)
    session.report_problems(problems)
    if not found:
        session.say("no advice: cleaning keeps up, according to its history")
    return Exit.FINDINGS if found else Exit.DONE


class View(PartitionRow):
    """A view of a partition and its last run. `gap` was lost before the view took it up, `lost` are all such ranges.

    `is_local`: the view is on the local disk, not in the bucket.
    """

    view: Annotated[str, text("VIEW")]
    state: Annotated[str, text("STATE")]
    horizon_offset: Annotated[int | None, number("HORIZON", format_count)]
    backlog_bytes: Annotated[int, number("BACKLOG", format_bytes)]
    key_count: Annotated[int, number("KEYS", format_count)]
    record_count: int
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    ago_ms: Annotated[int | None, number("LAST RUN", format_ms)]
    took_ms: Annotated[int | None, number("DURATION", format_ms)]
    records_in: Annotated[int | None, number("RECORDS READ", format_count)]
    start_offset: int
    parts: int
    last_run_ms: int | None
    records_out: int | None
    bytes_in: int | None
    bytes_out: int | None
    key_ranges: int | None
    source_sequence: int | None
    started_ms: int | None
    failed_ms: int | None
    error: str | None
    gap: list[int] | None
    lost: list[list[int]]
    is_local: bool


class PlannedView(PartitionRow):
    """The offsets that a view would take up."""

    view: Annotated[str, text("VIEW")]
    from_offset: Annotated[int, number("FROM", format_count)]
    upto_offset: Annotated[int, number("UP TO", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]


class Views(Result):
    """``tiered view status``."""

    unread: list[UnreadPartitions]
    views: list[View]


class ViewsToDrop(Work):
    """``tiered view drop --dry-run``."""

    views: list[View]


class ViewsBuilt(Work):
    """``tiered view build``."""

    partitions: list[View]


class ViewsPlanned(Work):
    """``tiered view build --dry-run``."""

    partitions: list[PlannedView]


_NAME = option("--name NAME", "Choose the view of the topic.", default=NAME)


@click.group("view")
def view() -> None:
    """Manage compacted views: the newest value of each key below a horizon, next to an unchanged log."""


@command("build", view, has_progress=True, example="view build orders --dry-run")
def build(
    session: Session,
    topic: str = argument(),
    name: str = _NAME,
    accept_loss: bool = option("--accept-loss", "Continue after records that the log has lost; the loss is recorded."),
    dry_run: bool = option("--dry-run", "Show which records a build would include, build nothing."),
    output: str = OUTPUT,
) -> int:
    """Update a topic's view with the records that are in the bucket now. The log does not change.

    Without a remote tier the view is stored next to the log, and includes all durable records without an open
    transaction.
    """
    from tiered.jobs.view_jobs import build_views, plan_views, view_status

    with stop_signals() as stop, session.manager(read_only=dry_run) as manager:
        plan = plan_views(manager, topic, name=name, accepts_loss=accept_loss, now_ms=now_ms())
        if not dry_run:
            session.progress.expect(len(plan.decisions), "partitions")
            build_views(
                manager,
                plan,
                should_stop=lambda: stop.is_set,
                progress=lambda partition, decision: session.progress.advance(),
            )
        found = view_status(manager, now_ms(), [topic], name=name)
        problems = topic_problems(manager, [topic])
    if dry_run:
        planned = [PlannedView.of(name, each) for name, views in sorted(plan.decisions.items()) for each in views]
        print_result(ViewsPlanned(dry_run=True, partitions=planned), output)
        session.say("nothing changed" if not plan.is_empty else "nothing to build: the view is up to date")
    else:
        rows = [_view(each, now_ms()) for each in found if each.partition not in problems]
        print_result(ViewsBuilt(dry_run=False, partitions=rows), output)
    session.report_problems(problems)
    return worst(problems.values())


@command("status", view, example="view status orders")
def show_views(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    name: str | None = option("--name NAME", "Show only the view of this name."),
    output: str = OUTPUT,
) -> int:
    """Show each view of each partition: its last run, and the records that it lacks. Exit 10 with an error or a gap.

    A topic without a remote tier is shown if it has a view, if compaction.view.threshold asks for one, or if it is
    named.
    """
    from tiered.jobs.view_jobs import view_status
    from tiered.status.status_report import unread_partitions

    with session.manager(read_only=True, is_brief=True) as manager:
        for topic in topics:
            manager.topics.get(topic)
        found = view_status(manager, now_ms(), topics or None, name=name)
        unread = unread_partitions(manager, topics or None)
        problems = topic_problems(manager, topics)
    print_result(Views(unread_rows(unread), [_view(each, now_ms()) for each in found]), output)
    for each in found:
        for line in _problem_lines(each):
            session.warn(f"{each.partition} {each.view.name}: {line}")
    return session.report(problems, unread, Exit.DONE if all(each.is_healthy for each in found) else Exit.UNHEALTHY)


@command("drop", view, example="view drop orders --dry-run")
def drop(
    session: Session,
    topic: str = argument(),
    name: str = _NAME,
    yes: bool = YES,
    dry_run: bool = option("--dry-run", "Show what would be dropped, change nothing."),
    output: str = OUTPUT,
) -> None:
    """Drop a topic's view. Readers that ask for it get an error from then on.

    Its objects are deleted after remote.log.delete.grace.ms, its local files after file.delete.delay.ms. Records that
    retention has removed from the log exist only in the view: a new view begins at the log start.
    """
    from tiered.jobs.view_jobs import drop_views, views_to_drop

    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            found = views_to_drop(manager, topic, name=name, now_ms=now_ms())
        print_result(ViewsToDrop(dry_run=True, views=[_view(each, now_ms()) for each in found]), output)
        session.say("nothing changed")
        return
    with session.manager() as manager:
        manager.topics.get(topic)
        confirm(f"drop the view {name} of {topic}?", yes=yes, without="the view would be dropped; add --yes")
        dropped = drop_views(manager, topic, name=name, now_ms=now_ms())
    session.say(f"dropped {name} of {counted(len(dropped), 'partition')}")


def _problem_lines(each: ViewStatus) -> list[str]:
    lines = []
    if each.view.failure is not None:
        lines.append(" ".join(each.view.failure.error.split()))
    if each.gap is not None:
        lines.append(f"the log has lost [{each.gap[0]}, {each.gap[1]}), which the view does not include")
    lines += [f"records of [{start}, {end}) were lost before the view included them" for start, end in each.view.lost]
    return lines


def _view(each: ViewStatus, now: int) -> View:
    view, run, failure = each.view, each.view.last_run, each.view.failure
    facts = {
        "view": view.name,
        "state": each.state.value,
        "horizon_offset": view.horizon_offset if view.is_built else None,
        "backlog_bytes": each.backlog.size_bytes,
        "parts": len(view.entries),
        "last_run_ms": run and run.started_ms,
        "ago_ms": run and max(0, now - run.started_ms),
        "started_ms": view.under_way and view.under_way.started_ms,
        "failed_ms": failure and failure.failed_ms,
        "error": failure and failure.error,
        "gap": each.gap and list(each.gap),
        "lost": [list(lost) for lost in view.lost],
    }
    return View.of(each.partition, each, view, run, **facts)


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
    from tiered.jobs.topic_compaction import compact_topic

    with job.stoppable(), session.manager() as manager:
        names = manager.topics.get(topic).partitions()
        session.progress.expect(len(names), "partitions")
        done = compact_topic(
            manager,
            topic,
            now_ms=now_ms(),
            roll=roll,
            should_stop=job.should_stop,
            progress=lambda name, decision: session.progress.advance(),
        )
        problems = topic_problems(manager, [topic])
    if not job.should_stop():
        session.progress.reach(len(names) - len(problems))  # partitions with nothing to clean report no progress
    rows = []
    for name in names:
        applied = done.get(name)
        last = applied.cleaned[-1] if applied is not None and applied.cleaned else None
        reduction = _reduction(last.bytes_before, last.bytes_after) if last is not None else None
        if name not in problems:
            rows.append(CompactedPartition.of(name, last, is_cleaned=last is not None, size_reduction=reduction))
    job.print(Compacted(dry_run=False, partitions=rows))
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
