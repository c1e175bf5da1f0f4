"""``tiered status``: the content of each tier, copy lag, bytes at risk, cost, and problems."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest, LogError
from tiered.cli.errors import Exit, one_line, unread_code
from tiered.cli.options import OUTPUT, TOPICS, command, duration_ms, option
from tiered.cli.render import SCHEMA_VERSION, Column, Result, Struct, columns_of, number, print_result, text
from tiered.cli.session import Session, now_ms, stop_signals
from tiered.config.clock_guard import counted_ms
from tiered.config.units import counted, format_bytes, format_count, format_dollars, format_lasted, format_ms
from tiered.node.problems import ProblemGroup, group_problems
from tiered.status.status_report import (
    StatusFacts,
    StatusReport,
    deferral_lines,
    partition_row,
    status_facts,
    status_report,
    topic_row,
)
from tiered.status.sync_status import SyncState, TierSync, tier_sync

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager

_SECTIONS = {
    "local": ("local_bytes",),
    "remote": ("remote_bytes",),
    "lag": ("lag_since_ms", "at_risk_bytes"),
    "cost": ("dollars_per_month",),
}
_SYNC, _GROUPS = "sync", "groups"  # have their own rows
_NAMES_MAX = 3
_CLEAR = "\x1b[H\x1b[2J"  # cursor to home, clear the screen


def _lag(row: _TierFigures) -> str | None:
    if not row.is_tiered or row.lag_segments is None or row.lag_bytes is None:
        return None
    waits = f"{row.lag_segments} seg {format_bytes(row.lag_bytes)}" if row.lag_segments else "ok"
    return f"paused, {waits if row.lag_segments else 'nothing waits'}" if row.is_paused else waits


class _TierFigures(Struct, kw_only=True):
    """The figures of a topic and of a partition, which follow their own fields."""

    local_segments: int | None
    local_bytes: Annotated[int | None, number("LOCAL", format_bytes)]
    remote_segments: int | None
    remote_bytes: Annotated[int | None, number("REMOTE", format_bytes)]
    lag_segments: int | None
    lag_bytes: int | None
    lag_since_ms: Annotated[int | None, text("UPLOAD LAG", of=_lag)]
    at_risk_bytes: Annotated[int | None, number("AT RISK", format_bytes)]
    dollars_per_month: Annotated[float | None, number("$/MONTH", format_dollars)]
    overdue_bytes: int | None
    is_tiered: bool | None
    is_paused: bool | None
    paused_since_ms: int | None
    pause_reason: str | None
    problems: list[str]


class TopicFigures(_TierFigures):
    """A topic; `offsets` from log start to log end, gaps counted. Null: nothing could be opened."""

    topic: Annotated[str, text("TOPIC")]
    partitions: Annotated[int, number("PARTITIONS")]
    offsets: Annotated[int | None, number("OFFSETS", format_count)]


class PartitionFigures(_TierFigures):
    """A partition. Null: it could not be opened."""

    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    log_start_offset: Annotated[int | None, number("LOG START", format_count)]
    local_start_offset: Annotated[int | None, number("LOCAL START", format_count)]
    remote_next_offset: Annotated[int | None, number("REMOTE END", format_count)]
    next_offset: Annotated[int | None, number("LOG END", format_count)]
    cleaner_offset: int | None
    unlinked_bytes: int | None


class GroupFigures(Struct):
    """A consumer group; `expired_offsets` left the log unread. Null: unknown, for example before the first commit."""

    group: Annotated[str, text("GROUP")]
    state: Annotated[str, text("STATE")]
    members: Annotated[int | None, number("MEMBERS")]
    partitions: Annotated[int | None, number("PARTITIONS")]
    lag: Annotated[int | None, number("LAG", format_count)]
    expired_offsets: Annotated[int | None, number("EXPIRED UNREAD", format_count)]
    retention_used: Annotated[float | None, number("RETENTION USED", "{:.0%}".format)]


class GroupStatus(Result):
    """Lines of ``tiered status --section groups``; JSON has them in the result of ``status``."""

    groups: list[GroupFigures]


class Status(StatusFacts, tag_field="schema_version", tag=SCHEMA_VERSION):
    """``tiered status``. `groups` null: they could not be read, or a page prints this."""

    groups: list[GroupFigures] | None
    topics: list[TopicFigures]


class StatusByPartition(StatusFacts, tag_field="schema_version", tag=SCHEMA_VERSION):
    """``tiered status -p``. `groups` null: they could not be read, or a page prints this."""

    groups: list[GroupFigures] | None
    partitions: list[PartitionFigures]


def _time(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


class TierNote(Struct):
    """Both tiers at a time, of one topic or (null) of all together. Null: the bucket was not read then."""

    topic: Annotated[str | None, text("TOPIC")]
    at_ms: Annotated[int, text("TIME (UTC)", _time)]
    local_bytes: Annotated[int, number("LOCAL", format_bytes)]
    remote_bytes: Annotated[int | None, number("REMOTE", format_bytes)]
    lag_bytes: Annotated[int | None, number("UPLOAD LAG", format_bytes)]
    at_risk_bytes: Annotated[int | None, number("AT RISK", format_bytes)]
    dollars_per_month: Annotated[float | None, number("$/MONTH", format_dollars)]
    missing_partitions: Annotated[int, number("NOT OPEN")]


class StatusHistory(Result):
    """``tiered status --history``; notes within ``[since_ms, until_ms]``, by topic and time."""

    since_ms: int
    until_ms: int
    notes: list[TierNote]


@command("status", example="status orders --check")
def status(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    by_partition: bool = option("-p, --partitions", "Print a line for each partition."),
    section: str | None = option(
        "--section NAMES",
        "Choose sections: local,remote,lag,cost; sync: whether both tiers agree; groups: consumer groups.",
    ),
    check: bool = option("--check", "Exit with 10 if there is a problem."),
    stuck_after: str = option(
        "--stuck-after TIME", "Set the time after which waiting work is a problem.", default="30m"
    ),
    watch: bool = option("--watch", "Repeat until Ctrl-C."),
    interval: str = option("--interval TIME", "Set the interval of --watch.", default="10s"),
    history: str | None = option("--history TIME", "Show the history of the last 2d, 30d or 1y, as recorded by `run`."),
    output: str = OUTPUT,
) -> int:
    """Show the content of each tier. AT RISK are bytes on this disk only; the price is that of the bucket.

    Problems are printed on stderr with their start, cause and next step. A partition that cannot be opened has no
    figures. An unknown figure is a dash, null in JSON; then the exit code is 6 or 10, also without --check.
    """
    if history is not None:
        if by_partition or section or check or watch:
            raise click.UsageError("--history has its own columns, and excludes -p, --section, --check and --watch")
        show_history(session, topics, duration_ms("--history", history, "30s"), output)
        return Exit.DONE
    sections = _sections(section)
    if sections & {_SYNC, _GROUPS} and len(sections) > 1 and output in ("csv", "jsonl"):
        raise click.UsageError(f"{output} prints one kind of rows: --section sync or groups only, or the others")
    every = columns_of(PartitionFigures if by_partition else TopicFigures)
    figures = sections - {_SYNC, _GROUPS}
    columns = _selected(every, figures) if figures or not sections else None
    stuck_after_ms = duration_ms("--stuck-after", stuck_after, "30s")
    pause_ms = duration_ms("--interval", interval, "30s")
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache

    known = ManifestMemoryCache(counted_ms) if watch else None

    def show() -> int:
        with session.manager(read_only=True, known=known, is_brief=True) as manager:
            report = status_report(manager, now_ms(), topics or None, stuck_after_ms=stuck_after_ms)
            sync = tier_sync(manager, topics or None) if _SYNC in sections else None
            groups, failure = _groups(manager, topics) if _GROUPS in sections or output == "json" else (None, None)
        if watch and sys.stdout.isatty():
            click.echo(_CLEAR, nl=False)
        if columns is not None or output == "json":
            _print(report, sync, groups, columns or every, by_partition, output)
        if sync is not None and output != "json":
            _print_sync(sync, output)
        if _GROUPS in sections and output != "json":
            print_result(GroupStatus(groups or []), output)
        if failure is not None:
            click.echo(f"! consumer groups: {one_line(failure).removeprefix('error: ')}", err=True)
        _print_summary(session, report, has_words=output == "table")
        if not report.topics and output == "table":
            session.say(_nothing_here(session))
        if check and not report.is_healthy:
            return Exit.UNHEALTHY
        return unread_code([*report.unread.values(), *([failure] if failure is not None else [])])

    return _repeat(show, pause_ms) if watch else show()


def _repeat(show: Callable[[], int], pause_ms: int) -> int:
    with stop_signals() as stop:
        while True:
            code = show()
            sys.stdout.flush()
            stop.wait(pause_ms / 1000)
            if stop.is_set:
                return code


def _groups(manager: LogManager, topics: Sequence[str]) -> tuple[list[GroupFigures] | None, Exception | None]:
    from tiered.serve.node.directory_groups import groups_of_directory

    try:
        found = groups_of_directory(manager, now_ms(), topics)
    except (LogError, ImportError) as error:  # only a node needs the extra kafka
        return None, error
    return [
        GroupFigures.of(each, partitions=each.partition_count, expired_offsets=each.expired) for each in found
    ], None


def _print(
    report: StatusReport,
    sync: list[TierSync] | None,
    groups: list[GroupFigures] | None,
    columns: Sequence[Column],
    by_partition: bool,
    output: str,
) -> None:
    facts = msgspec.structs.asdict(status_facts(report)) | {"sync": sync, "groups": groups}
    result: StatusFacts
    if by_partition:
        names = sorted({*report.partitions, *report.errors})
        rows = [PartitionFigures.of_fields(partition_row(report, name)) for name in names]
        result = StatusByPartition(**facts, partitions=rows)
    else:
        result = Status(**facts, topics=[TopicFigures.of_fields(topic_row(report, topic)) for topic in report.topics])
    print_result(result, output, columns=columns)


def _print_sync(sync: list[TierSync], output: str) -> None:
    print_result(Synced(sync), output, columns=sync_columns(now_ms()))
    for each in sync:
        if each.problem is not None:
            click.echo(f"! {each.topic}/{each.partition}: {each.problem}", err=True)


def _print_summary(session: Session, report: StatusReport, *, has_words: bool) -> None:
    """Print a line for each cause of problems, even with -q."""
    for each in group_problems(report.problems):
        click.echo(f"! {_line(each, report)}", err=True)
    if has_words:
        deferred = deferral_lines(report.deferrals, report.now_ms)
        for line in (*paused_lines(report), *deferred, *deleted_lines(report), *_work_lines(report)):
            session.say(line)


def _nothing_here(session: Session) -> str:
    config = session.config()
    lost = f"; if a disk was lost: tiered restore TOPIC --to {shlex.quote(config.data_dirs[0])} --take-over"
    return f"there is no topic; next: tiered topic create NAME{('' if config.remote_url is None else lost)}"


def paused_lines(report: StatusReport) -> list[str]:
    rows = [TopicFigures.of_fields(topic_row(report, topic)) for topic in report.topics]
    return [_paused_line(row, report.now_ms) for row in rows if row.is_paused]


def _paused_line(row: TopicFigures, now_ms: int) -> str:
    lasted = "" if row.paused_since_ms is None else f" for {format_lasted(now_ms - row.paused_since_ms)}"
    reason = f" ({row.pause_reason})" if row.pause_reason else ""
    at_risk = "an unknown number of bytes" if row.at_risk_bytes is None else format_bytes(row.at_risk_bytes)
    waits = "the waiting bytes are unknown, because the bucket was not read"
    if row.lag_segments is not None and row.lag_bytes is not None:
        waits = f"{counted(row.lag_segments, 'segment')} waiting, {format_bytes(row.lag_bytes)}"
    risk = f"{waits}, {at_risk} on this disk only"
    return f"{row.topic}: uploads paused{lasted}{reason}; {risk}; next: tiered resume"


def deleted_lines(report: StatusReport) -> list[str]:
    """Return a line about deleted topics, which the figures exclude, if there are any."""
    if not report.deleted:
        return []
    names = ", ".join([*report.deleted[:_NAMES_MAX], *(["..."] if len(report.deleted) > _NAMES_MAX else [])])
    deleted = counted(len(report.deleted), "deleted topic")
    words = "its objects in the bucket still cost money and are not in these figures"
    return [f"{deleted} ({names}): {words}; next: tiered cost show"]


def _line(group: ProblemGroup, report: StatusReport) -> str:
    oldest = group.first
    lasted = "" if oldest.since_ms is None else f", for {format_lasted(report.now_ms - oldest.since_ms)}"
    tries = f", {oldest.count} rounds" if oldest.count > 1 else ""
    return f"{group.line}{lasted}{tries}; next: {oldest.next_step}"


def _work_lines(report: StatusReport) -> list[str]:
    if report.silent_holder is not None:
        return [report.silent_holder]
    if report.work is None:
        return []
    age = format_lasted(report.now_ms - report.work.seen_ms)
    if report.is_at_work:
        return [f"the running manager finished a maintenance round {age} ago"]
    return [f"no manager runs, since {age}"]


def _sections(text: str | None) -> frozenset[str]:
    names = frozenset(() if text is None else (each.strip() for each in text.split(",")))
    for name in sorted(names):
        if name not in (*_SECTIONS, _SYNC, _GROUPS):
            expected = ",".join((*_SECTIONS, _SYNC, _GROUPS))
            raise InvalidRequest("invalid --section", section=repr(name), expected=expected)
    return names


def _selected(columns: Sequence[Column], sections: Collection[str]) -> Sequence[Column]:
    if not sections:
        return columns
    wanted = {column for name in sections for column in _SECTIONS[name]}
    ruled = {column for several in _SECTIONS.values() for column in several}
    return [each for each in columns if each.name in wanted or each.name not in ruled]


def show_history(session: Session, topics: Sequence[str], span_ms: int, output: str) -> None:
    """Show the history of the last `span_ms`, oldest first: of each topic, or of all together."""
    from tiered.status.tier_history import tier_history

    found = tier_history(session.config(), now_ms(), span_ms=span_ms, topics=topics)
    rows = [TierNote.of(point, topic=each.topic) for each in found for point in each.points]
    columns = columns_of(TierNote)
    print_result(
        StatusHistory(found[0].since_ms, found[0].until_ms, rows), output, columns=columns if topics else columns[1:]
    )
    if not rows:
        session.say("no history of that time: tiered run records a point every five minutes")
        return
    lasted = ", ".join(format_ms(step) for step in sorted({each.step_ms for each in found}))
    session.say(f"{counted(len(rows), 'point')}, one for each {lasted} in which a manager ran")


class Synced(Result):
    """Lines of ``tiered status --section sync``; JSON has them in the result of ``status``."""

    sync: list[TierSync]


def sync_columns(now_ms: int) -> tuple[Column, ...]:
    return (
        Column("topic", "TOPIC"),
        Column("partition", "PART", is_number=True),
        Column("", "DISK", is_number=True, of=lambda row: _range(row.local_start_offset, row.local_next_offset)),
        Column("", "BUCKET", is_number=True, of=lambda row: _range(row.remote_start_offset, row.remote_next_offset)),
        Column("", "HEAD", is_number=True, of=_manifest),
        Column("epoch", "EPOCH", is_number=True),
        Column("committed_ms", "COMMITTED", lambda at_ms: f"{format_lasted(now_ms - at_ms)} ago"),
        Column("", "SYNC", of=_state),
    )


def _range(start: int | None, end: int | None) -> str | None:
    return None if start is None or end is None else f"{format_count(start)}..{format_count(end)}"


def _manifest(row: TierSync) -> str | None:
    if row.head_sequence is None:
        return None
    behind = row.head_sequence - (row.seen_sequence or 0)
    return f"{row.head_sequence}" + (f" (+{behind})" if behind and row.seen_sequence is not None else "")


def _state(each: TierSync) -> str:
    sync_text = each.state.value
    if each.state is SyncState.BEHIND:
        sync_text += f" {format_count(each.lag_offsets or 0)}"
    if each.is_own_writer is False:
        lead = ": " if each.state is SyncState.OTHER_WRITER else ", the last writer was "
        sync_text += f"{lead}{each.writer_id}"
    if each.has_new_settings:
        sync_text += ", settings wait"
    return sync_text
