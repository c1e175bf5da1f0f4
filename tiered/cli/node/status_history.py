"""``tiered status --history``: the history of both tiers, from the notes of running managers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated

from tiered.cli.render import Result, Struct, columns_of, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import counted, format_bytes, format_dollars, format_ms
from tiered.status.tier_history import tier_history


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


def show_history(session: Session, topics: Sequence[str], span_ms: int, output: str) -> None:
    """Show the notes of the last `span_ms`, oldest first: for each of `topics`, or for all together without topics."""
    found = tier_history(session.config(), now_ms(), span_ms=span_ms, topics=topics)
    rows = [TierNote.of(point, topic=each.topic) for each in found for point in each.points]
    columns = columns_of(TierNote)
    print_result(
        StatusHistory(found[0].since_ms, found[0].until_ms, rows), output, columns=columns if topics else columns[1:]
    )
    if not rows:
        session.say("no history of that time: tiered run records a point every five minutes")
        return
    steps = sorted({each.step_ms for each in found})
    lasted = ", ".join(format_ms(step) for step in steps)
    session.say(f"{counted(len(rows), 'point')}, one for each {lasted} in which a manager ran")
