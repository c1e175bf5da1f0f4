"""``tiered compaction`` and ``view``: state and advice, compacted views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.errors import Exit, worst
from tiered.cli.options import OUTPUT, TOPICS, YES, argument, command, option
from tiered.cli.render import PartitionRow, Result, Struct, Work, number, print_result, text
from tiered.cli.session import Session, confirm, now_ms, stop_signals, topic_problems
from tiered.config.units import counted, format_bytes, format_count, format_ms
from tiered.node.problems import UnreadPartitions, group_problems, uncleanable_problem, unread_rows

if TYPE_CHECKING:
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
    from tiered.jobs.view_jobs import plan_views
    from tiered.serve.commands.operation_jobs import errors_of
    from tiered.serve.node.operations import build_view

    if dry_run:
        with session.manager(read_only=True) as manager:
            plan = plan_views(manager, topic, name=name, accepts_loss=accept_loss, now_ms=now_ms())
            problems = topic_problems(manager, [topic])
        planned = [PlannedView.of(name, each) for name, views in sorted(plan.decisions.items()) for each in views]
        print_result(ViewsPlanned(dry_run=True, partitions=planned), output)
        session.say("nothing changed" if not plan.is_empty else "nothing to build: the view is up to date")
    else:
        with stop_signals() as stop, session.node(stop) as node:
            built = node.run(build_view, topic=topic, view=name, accepts_loss=accept_loss)
        problems = errors_of(built.problems)
        print_result(ViewsBuilt(dry_run=False, partitions=[_view(each, now_ms()) for each in built.views]), output)
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
    from tiered.jobs.view_jobs import views_to_drop
    from tiered.serve.node.operations import drop_view

    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            found = views_to_drop(manager, topic, name=name, now_ms=now_ms())
        print_result(ViewsToDrop(dry_run=True, views=[_view(each, now_ms()) for each in found]), output)
        session.say("nothing changed")
        return
    with session.node() as node:
        session.topics().get(topic)
        confirm(f"drop the view {name} of {topic}?", yes=yes, without="the view would be dropped; add --yes")
        dropped = node.run(drop_view, topic=topic, view=name)
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
