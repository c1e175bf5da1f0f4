"""``tiered view``: build, inspect and drop compacted views of a topic, which leave its log unchanged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tiered.cli.errors import Exit, unread_code, worst
from tiered.cli.progress import progress_option
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import stop_signals
from tiered.config.units import counted, format_bytes, format_count, format_ms

if TYPE_CHECKING:
    from policies.decisions import Plan
    from tiered.jobs.view_jobs import ViewStatus

NAME = "compacted"  # `remote.manifest.view.DEFAULT_VIEW`, without the cost of its import

_name_option = click.option("--name", default=NAME, show_default=True, metavar="NAME", help="Which view of the topic.")


@click.group("view")
def view() -> None:
    """Compacted views: the newest value of each key below a horizon, beside a log that stays as it is."""


@view.command("build")
@click.argument("topic")
@_name_option
@click.option("--accept-loss", is_flag=True, help="Go on behind records that the log has lost; they are noted.")
@click.option("--dry-run", is_flag=True, help="Only show what a run would take up.")
@output_option()
@progress_option
@click.pass_obj
def build(session: Session, topic: str, name: str, accept_loss: bool, dry_run: bool, output: str) -> int:
    """Bring a topic's view up to what the bucket holds now. The log is not changed.

    Without a remote tier the view lies beside the log, and takes up all of it that is durable and decided.
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
        problems = {each: error for each, error in manager.problems.items() if each.topic == topic}
    if dry_run:
        emit("partitions", _planned(plan), _PLANNED, output, dry_run=True)
        session.say("nothing changed" if not plan.is_empty else "nothing to take up: the view is up to date")
    else:
        rows = [_row(each, now_ms()) for each in found if each.partition not in problems]
        emit("partitions", rows, _STATUS, output, dry_run=False)
    session.tell_problems(problems)
    return worst(problems.values())


@view.command("status")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--name", metavar="NAME", help="Only the view of this name.")
@output_option()
@click.pass_obj
def status(session: Session, topics: tuple[str, ...], name: str | None, output: str) -> int:
    """Each view of each partition: its last run, how far the log is ahead. Exit 10 with an error or a gap.

    Of topics without a remote tier those are shown that have a view, that are to have one by
    compaction.view.threshold, or that are named.
    """
    from tiered.jobs.view_jobs import view_status
    from tiered.status.unknown_figures import unread_partitions, unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        for topic in topics:
            manager.topic(topic)
        found = view_status(manager, now_ms(), topics or None, name=name)
        unread = unread_partitions(manager, topics or None)
        problems = {each: error for each, error in manager.problems.items() if not topics or each.topic in topics}
    emit("views", [_row(each, now_ms()) for each in found], _STATUS, output, unread=unread_rows(unread))
    for each in found:
        for line in _troubles(each):
            click.echo(f"! {each.partition} {each.view.name}: {line}", err=True)
    session.tell_problems(problems)
    return unread_code(unread.values()) or (Exit.DONE if all(each.is_healthy for each in found) else Exit.UNHEALTHY)


@view.command("drop")
@click.argument("topic")
@_name_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped.")
@output_option()
@click.pass_obj
def drop(session: Session, topic: str, name: str, yes: bool, dry_run: bool, output: str) -> None:
    """Drop a topic's view. Readers that ask for it get an error from then on.

    Its objects are deleted after remote.log.delete.grace.ms, its files beside the log after file.delete.delay.ms.
    What the log has let go of since is in no other place: a view built anew begins at the log start.
    """
    from tiered.jobs.view_jobs import drop_views, views_to_drop

    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            found = views_to_drop(manager, topic, name=name, now_ms=now_ms())
        emit("views", [_row(each, now_ms()) for each in found], _STATUS, output, dry_run=True)
        session.say("nothing changed")
        return
    with session.manager() as manager:
        manager.topic(topic)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("the view would be dropped; say --yes")
            click.confirm(f"drop the view {name} of {topic}?", abort=True, err=True)
        dropped = drop_views(manager, topic, name=name, now_ms=now_ms())
    session.say(f"dropped {name} of {counted(len(dropped), 'partition')}")


def _troubles(each: ViewStatus) -> list[str]:
    lines = []
    if each.view.failure is not None:
        lines.append(" ".join(each.view.failure.error.split()))
    if each.gap is not None:
        lines.append(f"the log has lost [{each.gap[0]}, {each.gap[1]}), which the view has not taken up")
    lines += [f"records of [{start}, {end}) were lost before the view took them up" for start, end in each.view.lost]
    return lines


def _planned(plan: Plan) -> list[Row]:
    from policies.decisions import BuildView

    return [
        {
            "topic": name.topic,
            "partition": name.partition,
            "view": one.view,
            "from_offset": one.from_offset,
            "upto_offset": one.upto_offset,
            "size_bytes": one.size_bytes,
        }
        for name, decided in sorted(plan.decisions.items())
        for one in decided
        if isinstance(one, BuildView)
    ]


def _row(each: ViewStatus, now: int) -> Row:
    found, run = each.view, each.view.last_run
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "view": found.name,
        "state": each.state.value,
        "start_offset": found.start_offset,
        "horizon_offset": found.horizon_offset if found.is_built else None,
        "backlog_bytes": each.backlog.size_bytes,
        "record_count": found.record_count,
        "key_count": found.key_count,
        "size_bytes": found.size_bytes,
        "parts": len(found.rows),
        "last_run_ms": run.started_ms if run is not None else None,
        "ago_ms": max(0, now - run.started_ms) if run is not None else None,
        "took_ms": run.took_ms if run is not None else None,
        "records_in": run.records_in if run is not None else None,
        "records_out": run.records_out if run is not None else None,
        "bytes_in": run.bytes_in if run is not None else None,
        "bytes_out": run.bytes_out if run is not None else None,
        "key_ranges": run.key_ranges if run is not None else None,
        "source_sequence": found.source_sequence,
        "started_ms": found.under_way.started_ms if found.under_way is not None else None,
        "failed_ms": found.failure.failed_ms if found.failure is not None else None,
        "error": found.failure.error if found.failure is not None else None,
        "gap": list(each.gap) if each.gap is not None else None,
        "lost": [list(each) for each in found.lost],
        "is_local": each.is_local,
    }


_STATUS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("view", "VIEW"),
    Column("state", "STATE"),
    Column("horizon_offset", "HORIZON", format_count, is_number=True),
    Column("backlog_bytes", "BACKLOG", format_bytes, is_number=True),
    Column("key_count", "KEYS", format_count, is_number=True),
    Column("record_count"),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("ago_ms", "LAST RUN", format_ms, is_number=True),
    Column("took_ms", "TOOK", format_ms, is_number=True),
    Column("records_in", "READ", format_count, is_number=True),
    *(
        Column(name)
        for name in (
            "start_offset",
            "parts",
            "last_run_ms",
            "records_out",
            "bytes_in",
            "bytes_out",
            "key_ranges",
            "source_sequence",
            "started_ms",
            "failed_ms",
            "error",
            "gap",
            "lost",
            "is_local",
        )
    ),
)
_PLANNED = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("view", "VIEW"),
    Column("from_offset", "FROM", format_count, is_number=True),
    Column("upto_offset", "UP TO", format_count, is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
)
