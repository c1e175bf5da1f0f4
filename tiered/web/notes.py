"""What stands above a page that shows less than how things are now: of when it is, and what is waited for."""

from __future__ import annotations

from typing import Any

from tiered.web.gathering import Told
from tiered.web.html import Html, tag
from tiered.web.looks import Looks
from tiered.web.parts import lasted, stamp


def note_on(looks: Looks, told: Told[Any], now_ms: int) -> Html | None:
    """None for a page that is as things are."""
    stale = looks.stale()
    if stale is not None:
        at_ms, why = stale
        return _note(f"What is shown is of {stamp(at_ms)}; {why}.")
    if told.late_since_ms is not None:
        waits = (
            f"Looking again since {lasted(now_ms - told.late_since_ms)} without an end: the disk does not answer, or "
        )
        return _note(f"{waits}this machine is busy. What is shown is of {stamp(told.at_ms)}.")
    return None


def _note(words: str) -> Html:
    return tag("div", words, class_="trouble", id="late", role="alert")
