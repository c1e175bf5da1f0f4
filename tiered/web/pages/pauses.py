"""Notices about paused uploads."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.config.units import counted, format_bytes
from tiered.status.status_report import StatusReport
from tiered.status.status_rows import Row
from tiered.web.html import Html, tag
from tiered.web.pages.parts import lasted, stamp

SHOWN = 5


def pauses(report: StatusReport, rows: Sequence[Row]) -> list[Html]:
    """A line for each of the first topics with paused uploads, and the number of the others."""
    paused = [row for row in rows if row.get("is_paused")]
    found = [_line(report, row) for row in paused[:SHOWN]]
    return (
        [*found, tag("p", f"Uploads of {counted(len(paused) - SHOWN, 'more topic')} are paused.")]
        if paused[SHOWN:]
        else found
    )


def _bytes(size: object) -> str:
    return format_bytes(size) if isinstance(size, int) else "an unknown number of bytes"


def _line(report: StatusReport, row: Row) -> Html:
    since, reason = row.get("paused_since_ms"), row.get("pause_reason")
    words = f"Uploads of {row['topic']} are paused"
    words += f" since {stamp(since)}, for {lasted(report.now_ms - since)}" if isinstance(since, int) else ""
    words += f" ({reason})" if reason else ""
    waiting = row.get("lag_bytes")
    waits = format_bytes(waiting) if isinstance(waiting, int) else "An unknown number of bytes"
    risk = _bytes(row.get("at_risk_bytes"))
    go_on = tag("code", "tiered resume")
    return tag("p", f"{words}. {waits} wait, {risk} exist on this disk only. To resume: ", go_on, class_="bad")
