"""The programs of the crash tests: fixed ones and drawn ones, in the language of `log_script`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from log_script import COMPACTED, FLUSHED, MEMORY, RETENTION_MS, SMALL, Op

from local.settings import LogSettings


@dataclass(frozen=True)
class Case:
    """One program with its settings."""

    name: str
    program: Sequence[Op]
    settings: LogSettings = SMALL
    keys: int = 1 << 30


CASES = [
    Case(
        "retention",
        [
            ("append", 5, FLUSHED),
            ("append", 30, MEMORY),
            ("append", 3, FLUSHED),
            ("roll",),
            ("append", 4, MEMORY),
            ("flush",),
            ("checkpoint",),
            ("drop", 2),
            ("remove",),
            ("append", 2, FLUSHED),
            ("reopen",),
            ("append", 6, FLUSHED),
        ],
    ),
    Case(
        "delete records and epochs",
        [
            ("append", 9, FLUSHED),
            ("epoch",),
            ("append", 12, MEMORY),
            ("start", 40),
            ("epoch",),
            ("append", 8, FLUSHED),
            ("checkpoint",),
            ("drop", 1),
            ("start", 50),
            ("append", 5, MEMORY),
            ("kill",),
            ("remove",),
            ("append", 4, MEMORY),
            ("append", 5, FLUSHED),
        ],
    ),
    Case(
        "transactions",
        [
            ("send", 1, 3, 0, FLUSHED),
            ("send", 2, 3, 1, MEMORY),
            ("send", 1, 2, 1, MEMORY),
            ("end", 2, 0, 0, FLUSHED),
            ("repeat",),
            ("roll",),
            ("send", 2, 4, 1, FLUSHED),
            ("end", 1, 1, 1, MEMORY),
            ("append", 9, MEMORY),
            ("kill",),
            ("send", 1, 3, 1, MEMORY),
            ("drop", 1),
            ("end", 2, 0, 0, MEMORY),
            ("checkpoint",),
            ("remove",),
            ("reopen",),
            ("send", 2, 2, 0, FLUSHED),
            ("end", 1, 0, 0, FLUSHED),
        ],
    ),
    Case(
        "producers and retention",
        [
            ("send", 1, 3, 0, FLUSHED),
            ("send", 2, 3, 1, FLUSHED),
            ("append", 9, MEMORY),
            ("checkpoint",),
            ("roll",),
            ("append", 3, FLUSHED),
            ("drop", 1),
            ("append", 2, MEMORY),
            ("checkpoint",),
        ],
    ),
    Case(
        "truncation",
        [
            ("append", 9, FLUSHED),
            ("send", 1, 3, 1, FLUSHED),
            ("epoch",),
            ("send", 2, 2, 0, FLUSHED),
            ("roll",),
            ("send", 2, 3, 0, MEMORY),
            ("end", 1, 0, 0, FLUSHED),
            ("checkpoint",),
            ("roll",),
            ("send", 1, 3, 1, FLUSHED),
            ("checkpoint",),
            ("truncate", 60),
            ("send", 3, 2, 1, MEMORY),
            ("send", 2, 5, 0, MEMORY),
            ("roll",),
            ("send", 2, 3, 0, FLUSHED),
            ("end", 3, 0, 0, MEMORY),
            ("truncate", 90),
            ("append", 2, FLUSHED),
            ("kill",),
            ("send", 2, 2, 0, MEMORY),
        ],
    ),
    Case(
        "a producer and a roll before the end",
        [
            ("append", 4, MEMORY),
            ("send", 1, 3, 0, FLUSHED),
            ("roll",),
            ("reopen",),
            ("send", 1, 1, 1, MEMORY),
            ("end", 1, 0, 0, MEMORY),
            ("roll",),
            ("kill",),
            ("send", 1, 2, 0, MEMORY),
        ],
    ),
    Case(
        "compaction",
        [
            ("append", 40, FLUSHED),
            ("clean",),
            ("remove",),
            ("append", 20, FLUSHED),
            ("clean",),
            ("checkpoint",),
            ("append", 3, FLUSHED),
            ("reopen",),
            ("append", 3, MEMORY),
        ],
        COMPACTED,
        7,
    ),
    Case(
        "tombstones",
        [
            ("append", 14, FLUSHED),
            ("delete", 5, MEMORY),
            ("append", 3, FLUSHED),
            ("sweep", 0),
            ("append", 1, MEMORY),
            ("delete", 2, FLUSHED),
            ("sweep", RETENTION_MS // 2),
            ("remove",),
            ("append", 9, FLUSHED),
            ("delete", 2, FLUSHED),
            ("kill",),
            ("sweep", RETENTION_MS),
            ("append", 2, FLUSHED),
            ("sweep", RETENTION_MS),
            ("remove",),
            ("append", 2, MEMORY),
        ],
        replace(COMPACTED, segment_bytes=400),
        9,
    ),
    Case(
        "compaction of transactions",
        [
            ("append", 6, MEMORY),
            ("send", 1, 3, 1, FLUSHED),
            ("send", 2, 3, 1, MEMORY),
            ("send", 3, 2, 0, FLUSHED),
            ("end", 1, 0, 0, FLUSHED),
            ("append", 5, MEMORY),
            ("end", 2, 1, 0, FLUSHED),
            ("sweep", 0),
            ("send", 1, 2, 1, MEMORY),
            ("delete", 3, FLUSHED),
            ("end", 1, 1, 1, FLUSHED),
            ("append", 6, FLUSHED),
            ("sweep", RETENTION_MS),
            ("remove",),
            ("send", 2, 3, 1, FLUSHED),
            ("repeat",),
            ("append", 3, FLUSHED),
            ("sweep", RETENTION_MS),
            ("end", 2, 0, 0, FLUSHED),
            ("append", 2, FLUSHED),
            ("reopen",),
            ("sweep", RETENTION_MS),
        ],
        replace(COMPACTED, segment_bytes=500),
        6,
    ),
]

_ODDS: dict[str, int] = {
    "append": 40,
    "flush": 5,
    "roll": 6,
    "checkpoint": 6,
    "epoch": 4,
    "drop": 5,
    "remove": 3,
    "start": 4,
    "reopen": 4,
    "kill": 4,
    "send": 14,
    "end": 9,
    "repeat": 2,
    "truncate": 4,
}


def drawn(seed: int) -> Case:
    """A random program; one in four runs on a compacted log. A seed always gives the same program."""
    rng = random.Random(f"program {seed}")
    is_compacted = rng.random() < 0.25
    odds = {**_ODDS, "clean": 4, "sweep": 8, "delete": 10, "drop": 0, "start": 0} if is_compacted else _ODDS
    names = rng.choices(list(odds), list(odds.values()), k=rng.randrange(6, 14))
    settings = replace(
        COMPACTED if is_compacted else SMALL,
        segment_bytes=rng.choice((400, 700, 1200)),
        index_interval_bytes=rng.choice((1, 150)),
        batch_bytes=rng.choice((1, 120, 200)),
    )
    ops = [_drawn_op(name, rng) for name in names]
    return Case(f"drawn {seed}", ops, settings, 6 if is_compacted else 1 << 30)


def _drawn_op(name: str, rng: random.Random) -> Op:
    match name:
        case "append" | "delete":
            return name, rng.choice((1, 2, 3, 5, 9, 14)), rng.randrange(2)
        case "drop":
            return name, rng.randrange(1, 4)
        case "sweep":
            return name, rng.choice((0, RETENTION_MS // 2, RETENTION_MS))
        case "start" | "truncate":
            return name, rng.randrange(101)
        case "send":
            return (
                name,
                rng.randrange(1, 4),
                rng.randrange(1, 6),
                rng.randrange(2),
                rng.randrange(2),
            )
        case "end":
            return name, rng.randrange(1, 4), rng.randrange(2), rng.randrange(2), rng.randrange(2)
        case _:
            return (name,)
