"""``tiered pause`` and ``tiered resume``: uploads wait; no record is lost and no gap remains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.options import OUTPUT, TOPICS, command, option
from tiered.cli.render import Column, Result, Struct, columns_of, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.rules import Pause


class PausedTopic(Struct):
    """A topic with paused uploads; `is_of_all`: those of all topics are. `paused_since_ms` null: not known."""

    topic: Annotated[str, text("TOPIC")]
    is_of_all: Annotated[bool, text("PAUSED WITH ALL", lambda value: "yes" if value else "no")]
    reason: Annotated[str, text("REASON")]
    paused_since_ms: int | None


class Paused(Result):
    """``tiered pause`` and ``tiered resume``: the topics that are paused now."""

    paused: list[PausedTopic]


@command("pause")
def pause(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    reason: str = option("--reason TEXT", "Record a reason, shown by status.", default="", show_default=False),
    lists: bool = option("--list", "Show which uploads are paused."),
    dry_run: bool = option("--dry-run", "Show which uploads would be paused, change nothing."),
    output: str = OUTPUT,
) -> None:
    """Send nothing of the topics (none named: of all) to the bucket until `tiered resume`.

    Beside a manager at work, which heeds it within a round. Closed segments wait on the disk; nothing leaves it that is
    not in the bucket. Prints what is paused now.
    """
    from local.storage import DiskStorage
    from tiered.node.upload_pause import dry_run_pause, pause_uploads, paused_topics

    if lists and (topics or reason):
        raise click.UsageError("--list only shows paused uploads; remove the topics and --reason")
    at_ms = now_ms()
    places = [(DiskStorage(), root) for root in session.config().data_dirs]
    do = dry_run_pause if dry_run else pause_uploads
    found = paused_topics(places) if lists else do(places, topics or None, now_ms=at_ms, reason=reason)
    _show(session, found, output, at_ms)
    if dry_run:
        session.say("nothing changed")
    elif found:
        session.say("closed segments wait on the disk until then: tiered status shows the bytes at risk")


@command("resume")
def resume(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    dry_run: bool = option("--dry-run", "Show which uploads would still be paused, change nothing."),
    output: str = OUTPUT,
) -> None:
    """Let uploads of the topics (none named: of all) go on from where they stood. Prints what is still paused."""
    from local.storage import DiskStorage
    from tiered.node.upload_pause import dry_run_resume, resume_uploads

    places = [(DiskStorage(), root) for root in session.config().data_dirs]
    do = dry_run_resume if dry_run else resume_uploads
    _show(session, do(places, topics or None), output, now_ms())
    if dry_run:
        session.say("nothing changed")


def _show(session: Session, found: Mapping[str, Pause], output: str, at_ms: int) -> None:
    rows = [PausedTopic.of(each, topic=name, paused_since_ms=each.since_ms) for name, each in sorted(found.items())]
    lasted = Column("", "FOR", format_ms, is_number=True, of=lambda row: _lasted_ms(row, at_ms))
    topic, *others = columns_of(PausedTopic)
    print_result(Paused(rows), output, columns=(topic, lasted, *others))
    if not rows:
        session.say("no topic is paused")


def _lasted_ms(row: PausedTopic, at_ms: int) -> int | None:
    return None if row.paused_since_ms is None else max(0, at_ms - row.paused_since_ms) // 1000 * 1000
