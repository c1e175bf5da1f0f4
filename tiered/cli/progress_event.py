"""The line of ``--progress json``."""

from __future__ import annotations

from typing import Literal

from tiered.cli.render import Result


class ProgressEvent(Result):
    """A line on stderr under ``--progress json``: the progress of a command, or a message.

    `done` and `total` only grow; the last event of kind `progress` has `is_last`.
    """

    kind: Literal["progress", "message"]
    operation: str
    done: int
    total: int
    unit: str
    rate_per_second: float
    eta_ms: int | None
    waits_for: str | None
    is_last: bool
    message: str | None
