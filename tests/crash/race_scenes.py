"""What a race is about: the topic's settings, how early rows go into pages, who gets killed; all from the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from policies import invariants, manifest_collection
from remote.manifest import commit_protocol
from remote.manifest.page_spill import SpillRule
from tiered.migrate import fork

GRACE_MS = 3_600_000
BASE = {"remote.storage.enable": "true", "remote.log.delete.grace.ms": "1h"}
EXPIRES = {"local.retention.ms": "1h", "retention.ms": "8h"}
KEEPS = {"local.retention.ms": "-1", "retention.ms": "-1"}
COMPACTS = {
    "delete.retention.ms": "1h",
    "remote.recompaction.min.reduction.ratio": "0",
    "remote.recompaction.min.saved.bytes": "0",
}
PLAIN = "plain log"  # two or three managers and a reader, and nothing else
TOPICS = {
    PLAIN: {**EXPIRES},
    "log": {**EXPIRES},
    "view": {**EXPIRES},
    "view by threshold": {**EXPIRES, "compaction.view.threshold": "900"},
    "compact": {**KEEPS, **COMPACTS, "cleanup.policy": "compact"},
    "compact,delete": {**EXPIRES, **COMPACTS, "cleanup.policy": "compact,delete"},
    "compact and view": {**KEEPS, **COMPACTS, "cleanup.policy": "compact", "compaction.view.threshold": "900"},
}
WEIGHTS = (4, 5, 3, 3, 5, 3, 2)
SMALL_PAGES = SpillRule(head_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_rows_min=2, gaps_max=1)


@dataclass(frozen=True)
class SceneOfRace:
    """`kills` is how likely a store call is a process's last; `kept_heads` how many heads outlive a collection.

    `steps` is how long it all lasts, `deeds_max` how much a manager does in one life, `rest_max` how many steps pass
    before its next one: without rest, whoever was fenced takes over at once. `sleeps` is how likely somebody falls
    asleep right before a deed, for `sleep_max` steps at most, `jumps` how likely hours pass between two steps.
    `has_fork`: somebody forks the topic, and managers race for the fork as well; `pauses`: managers pause uploads;
    `has_freer`: housekeeping takes their epoch. `forker_sleeps`: for how many steps at most whoever forks falls asleep
    before each head that it creates, `forker_weight`: how often it gets the baton; `fork_topic`: the fork's own
    settings, where they differ from the topic's.
    """

    kind: str
    topic: dict[str, str]
    rule: SpillRule | None
    kills: float
    kept_heads: int | None
    deletes_topic: bool
    has_guest: bool
    keys: int
    steps: int
    deeds_max: int
    rest_max: int
    sleeps: float = 0.2
    sleep_max: int = 150
    jumps: float = 0.03
    has_fork: bool = False
    pauses: bool = False
    has_freer: bool = False
    forker_sleeps: int = 0
    forker_weight: int = 1
    fork_topic: dict[str, str] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        return self.kind == PLAIN

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.topic.get("cleanup.policy", "")

    @property
    def has_views(self) -> bool:
        return "view" in self.kind

    @contextmanager
    def set_up(self) -> Iterator[None]:
        """The numbers that a race of this size needs smaller than the product has them."""
        with ExitStack() as stack:
            if self.rule is not None:
                stack.enter_context(mock.patch.object(commit_protocol, "SPILL_RULE", self.rule))
            if self.kept_heads is not None:
                stack.enter_context(mock.patch.object(manifest_collection, "HEADS_KEPT", self.kept_heads))
                stack.enter_context(mock.patch.object(manifest_collection, "HEADS_AT_ONCE", 2))
                stack.enter_context(mock.patch.object(invariants, "HEADS_KEPT_MIN", 1))
            if self.has_fork:  # so that a forker may sleep past the end of its pin
                stack.enter_context(mock.patch.object(fork, "PIN_MS", GRACE_MS // 2))
            yield


def scene_of(seed: int) -> SceneOfRace:
    rng = random.Random(f"{seed} scene")
    (kind,) = rng.choices(list(TOPICS), WEIGHTS)
    if kind == PLAIN:
        return plain_scene()
    more = random.Random(f"{seed} more of the scene")  # of its own: what came before it stays as it was
    return SceneOfRace(
        kind=kind,
        topic={**BASE, **TOPICS[kind], **({"remote.copy.lag.ms": "1h"} if rng.random() < 0.3 else {})},
        rule=rng.choice((None, SMALL_PAGES)),
        kills=rng.choice((0.0, 0.003, 0.01)),
        kept_heads=rng.choice((None, 2, 4)),
        deletes_topic=rng.random() < 0.15,
        has_guest=rng.random() < 0.4,
        keys=rng.choice((3, 12)),
        steps=rng.choice((260, 500, 800)),
        deeds_max=rng.choice((14, 40, 80)),
        rest_max=rng.choice((1, 150, 600)),
        has_fork=more.random() < 0.3,
        pauses=more.random() < 0.3,
        has_freer=more.random() < 0.4,
    )


def plain_scene() -> SceneOfRace:
    return SceneOfRace(
        kind=PLAIN,
        topic={**BASE, **TOPICS[PLAIN]},
        rule=None,
        kills=0.0,
        kept_heads=None,
        deletes_topic=False,
        has_guest=False,
        keys=12,
        steps=260,
        deeds_max=14,
        rest_max=1,
        sleeps=0.0,
    )
