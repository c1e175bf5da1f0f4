"""``tiered status --history``: the history of both tiers, from the notes of running managers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from tiered.cli.render import Column, emit
from tiered.cli.session import Session, now_ms
from tiered.config.units import counted, format_bytes, format_dollars, format_ms
from tiered.status.tier_history import tier_history


def show_history(session: Session, topics: Sequence[str], span_ms: int, output: str) -> None:
    """Show the notes of the last `span_ms`, oldest first: for each of `topics`, or for all together without topics."""
    found = tier_history(session.config(), now_ms(), span_ms=span_ms, topics=topics)
    rows = [row for each in found for row in each.rows()]
    columns = _COLUMNS if topics else _COLUMNS[1:]
    facts = {"since_ms": found[0].since_ms, "until_ms": found[0].until_ms}
    emit("notes", rows, columns if output == "table" else _COLUMNS, output, **facts)
    if not rows:
        session.say("no notes of that time: tiered run takes one every five minutes")
        return
    steps = sorted({each.step_ms for each in found})
    lasted = ", ".join(format_ms(step) for step in steps)
    session.say(f"{counted(len(rows), 'note')}, one for each {lasted} in which somebody was at work")


def _time(value: object) -> str:
    return datetime.datetime.fromtimestamp(int(str(value)) / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _bytes(value: object) -> str:
    return format_bytes(int(str(value)))


def _dollars(value: object) -> str:
    return format_dollars(float(str(value)))


_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("at_ms", "TIME (UTC)", _time),
    Column("local_bytes", "LOCAL", _bytes, is_number=True),
    Column("remote_bytes", "REMOTE", _bytes, is_number=True),
    Column("lag_bytes", "UPLOAD LAG", _bytes, is_number=True),
    Column("at_risk_bytes", "AT RISK", _bytes, is_number=True),
    Column("dollars_per_month", "$/MONTH", _dollars, is_number=True),
    Column("missing_partitions", "NOT OPEN", is_number=True),
)
