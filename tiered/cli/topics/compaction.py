"""``tiered compaction``: the state of compaction, and the changes that would help it keep up."""

from __future__ import annotations

from typing import Annotated

import click

from tiered.cli.errors import Exit, unread_code
from tiered.cli.options import OUTPUT, TOPICS, command, option
from tiered.cli.render import PartitionRow, Result, Struct, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes, format_count, format_ms
from tiered.node.problem_groups import UnreadPartitions


def _share(value: float) -> str:
    return f"{value:.0%}"


class CleaningState(PartitionRow):
    """A compacted partition and its last pass. Null: there was none, or the log could not be read."""

    state: Annotated[str | None, text("STATE")]
    dirty_ratio: Annotated[float | None, number("DIRTY RATIO", _share)]
    clean_bytes: Annotated[int | None, number("CLEAN", format_bytes)]
    cleanable_bytes: Annotated[int | None, number("CLEANABLE", format_bytes)]
    uncleanable_bytes: Annotated[int | None, number("NOT CLEANABLE", format_bytes)]
    first_dirty_offset: Annotated[int | None, number("DIRTY FROM", format_count)]
    first_uncleanable_offset: int | None
    delay_ms: Annotated[int | None, number("OVERDUE", format_ms)]
    last_run_ms: int | None
    ago_ms: Annotated[int | None, number("LAST PASS", format_ms)]
    size_reduction: Annotated[float | None, number("REDUCTION", _share)]
    invalid_records: Annotated[int | None, number("WITHOUT KEY", format_count)]
    buffer_utilization: Annotated[float | None, number("BUFFER USE", _share)]
    uncleanable_reason: str | None
    retry_ms: int | None


class CompactionStatus(Result):
    """``tiered compaction status``."""

    unread: list[UnreadPartitions]
    partitions: list[CleaningState]


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


class CompactionRuns(Result):
    """``tiered compaction status --runs N``."""

    runs: list[CleaningRun]


class CleanerGauge(Struct):
    """A gauge by Kafka's name; null before the first pass."""

    name: Annotated[str, text("METRIC")]
    value: Annotated[float | None, number("VALUE")]


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
    """How compaction stands, and what would help it keep up."""


@command("status", compaction)
def status(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    count: int | None = option(
        "--runs N", "Print the last N passes instead, in the log format of Kafka.", type=click.IntRange(1)
    ),
    metrics: bool = option("--metrics", "Print the cleaner metrics instead, with the names of Kafka."),
    output: str = OUTPUT,
) -> int:
    """Each compacted partition: how dirty, in which state, what the last pass did. Exit 10 with an uncleanable one."""
    from dataclasses import asdict

    from local.cleaner.cleaner_history import summary
    from tiered.node.problem_groups import group_problems, uncleanable_problem
    from tiered.status.compaction_status import cleaner_metrics, compaction_status, log_row, unread_logs
    from tiered.status.unknown_figures import unread_rows

    now = now_ms()
    with session.manager(read_only=True, is_brief=True) as manager:
        for topic in topics:
            manager.topic(topic)
        found = compaction_status(manager, now, topics or None)
        unread = unread_logs(manager, found, topics or None)
        figures = cleaner_metrics(manager, now)
        runs = [run for run in manager.cleaning.runs if not topics or run.topic in topics]
        problems = {name: error for name, error in manager.problems.items() if not topics or name.topic in topics}
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
    uncleanable = {
        name: each.uncleanable.reason for name, each in sorted(found.items()) if each.uncleanable is not None
    }
    for each in group_problems(uncleanable_problem(name, reason) for name, reason in uncleanable.items()):
        click.echo(f"! {each.line}", err=True)
    session.report_problems(problems)
    return unread_code(unread.values()) or (Exit.UNHEALTHY if uncleanable else Exit.DONE)


@command("advise", compaction)
def advise(session: Session, output: str = OUTPUT) -> int:
    """Settings with which cleaning cannot keep up, from the logs and the history of passes. Exit 3 with advice."""
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
