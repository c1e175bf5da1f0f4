"""``tiered compaction``: the state of compaction, and the changes that would help it keep up."""

from __future__ import annotations

import click

from tiered.cli.errors import Exit, unread_code
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes, format_count, format_ms


@click.group("compaction")
def compaction() -> None:
    """How compaction stands, and what would help it keep up."""


@compaction.command("status")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--runs", "count", type=click.IntRange(1), metavar="N", help="Instead: the last N passes, as Kafka logs them."
)
@click.option("--metrics", is_flag=True, help="Instead: the cleaner's gauges, by Kafka's names.")
@output_option()
@click.pass_obj
def status(session: Session, topics: tuple[str, ...], count: int | None, metrics: bool, output: str) -> int:
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
        rows: list[Row] = [{"name": name.replace("_", "-"), "value": value} for name, value in asdict(figures).items()]
        emit("metrics", rows, _METRICS, output, unread=unread_rows(unread))
    elif count is not None and output == "table":
        for run in runs[-count:]:
            click.echo(summary(run))
    elif count is not None:
        emit("runs", [asdict(run) for run in runs[-count:]], _RUNS, output)
    else:
        logs: list[Row] = [log_row(each, now) for _, each in sorted(found.items())]
        logs += [{"topic": name.topic, "partition": name.partition} for name in unread]  # the figures are null
        emit("partitions", logs, _PARTITIONS, output, unread=unread_rows(unread))
    uncleanable = {
        name: each.uncleanable.reason for name, each in sorted(found.items()) if each.uncleanable is not None
    }
    for each in group_problems(uncleanable_problem(name, reason) for name, reason in uncleanable.items()):
        click.echo(f"! {each.line}", err=True)
    session.tell_problems(problems)
    return unread_code(unread.values()) or (Exit.UNHEALTHY if uncleanable else Exit.DONE)


@compaction.command("advise")
@output_option()
@click.pass_obj
def advise(session: Session, output: str) -> int:
    """Settings with which cleaning cannot keep up, from the logs and the history of passes. Exit 3 with advice."""
    from tiered.status.compaction_status import compaction_advice

    with session.manager(read_only=True, is_brief=True) as manager:
        found = compaction_advice(manager, now_ms())
        problems = dict(manager.problems)
    rows: list[Row] = [
        {
            "rule": each.rule,
            "where": str(each.partition) if each.partition is not None else None,
            "topic": each.partition.topic if each.partition is not None else None,
            "partition": each.partition.partition if each.partition is not None else None,
            "setting": each.setting,
            "text": each.text,
        }
        for each in found
    ]
    emit("advice", rows, _ADVICE, output)
    session.tell_problems(problems)
    if not found:
        session.say("nothing to advise: cleaning keeps up as far as its history tells")
    return Exit.FINDINGS if found else Exit.DONE


def _share(value: float) -> str:
    return f"{value:.0%}"


_PARTITIONS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("state", "STATE"),
    Column("dirty_ratio", "DIRTY", _share, is_number=True),
    Column("clean_bytes", "CLEAN", format_bytes, is_number=True),
    Column("cleanable_bytes", "CLEANABLE", format_bytes, is_number=True),
    Column("uncleanable_bytes", "NOT YET", format_bytes, is_number=True),
    Column("first_dirty_offset", "DIRTY FROM", format_count, is_number=True),
    Column("first_uncleanable_offset"),
    Column("delay_ms", "LATE", format_ms, is_number=True),
    Column("last_run_ms"),
    Column("ago_ms", "LAST PASS", format_ms, is_number=True),
    Column("size_reduction", "GAINED", _share, is_number=True),
    Column("invalid_records", "WITHOUT KEY", format_count, is_number=True),
    Column("buffer_utilization", "BUFFER", _share, is_number=True),
    Column("uncleanable_reason"),
    Column("retry_ms"),
)
_METRICS = (Column("name", "METRIC"), Column("value", "VALUE", is_number=True))
_ADVICE = (
    Column("rule", "RULE"),
    Column("where", "PARTITION", only_table=True),
    Column("topic"),
    Column("partition"),
    Column("setting", "SETTING"),
    Column("text", "WHAT WAS SEEN, WHAT HELPS"),
)
_RUNS = tuple(
    Column(name)
    for name in (
        "topic",
        "partition",
        "at_ms",
        "first_dirty_offset",
        "cleaner_offset",
        "thread",
        "delay_ms",
        "indexed_bytes",
        "bytes_read",
        "bytes_written",
        "bytes_before",
        "bytes_after",
        "records_before",
        "records_after",
        "distinct_keys",
        "invalid_records",
        "index_seconds",
        "clean_seconds",
        "buffer_utilization",
        "buffer_bytes",
        "is_cut",
        "error",
    )
)
