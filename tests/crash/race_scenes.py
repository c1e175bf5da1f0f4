"""Settings of a race, all drawn from the seed: topic, manifest pages, odds of kills."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from policies import invariants, retention
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
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
PLAIN = "plain log"  # two or three managers and a reader, and no other actor
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
SMALL_PAGES = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=2, gaps_max=1)


@dataclass(frozen=True)
class SceneOfRace:
    """The settings of one race.

    | field | meaning |
    |---|---|
    | `kills` | probability that a store call is the last one of its process |
    | `kept_heads` | number of manifests that a garbage collection leaves |
    | `steps` | length of the race |
    | `deeds_max` | most actions of one manager process |
    | `rest_max` | most steps before the next manager process; at 0 a fenced manager takes over again at once |
    | `sleeps`, `sleep_max` | probability of a sleep right before an action; its most steps |
    | `jumps` | probability that hours pass between two steps |
    | `has_fork` | a process forks the topic, and managers race for the fork too |
    | `pauses` | managers pause uploads |
    | `has_freer` | housekeeping takes over the writer epoch |
    | `forker_sleeps` | most steps that the forking process sleeps before each manifest that it creates |
    | `forker_weight` | how often the forking process gets the baton |
    | `fork_topic` | settings of the fork that differ from the topic's |
    """

    kind: str
    topic: dict[str, str]
    rule: PageRule | None
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
        """Replace constants of the product by the smaller values that a race of this size needs."""
        with ExitStack() as stack:
            if self.rule is not None:
                stack.enter_context(mock.patch.object(commit_protocol, "PAGE_RULE", self.rule))
            if self.kept_heads is not None:
                stack.enter_context(mock.patch.object(retention, "MANIFESTS_RETAINED", self.kept_heads))
                stack.enter_context(mock.patch.object(retention, "MANIFESTS_AT_ONCE", 2))
                stack.enter_context(mock.patch.object(invariants, "MANIFESTS_RETAINED_MIN", 1))
            if self.has_fork:  # so that the forking process may sleep past the end of its pin
                stack.enter_context(mock.patch.object(fork, "PIN_MS", GRACE_MS // 2))
            yield


def scene_of(seed: int) -> SceneOfRace:
    rng = random.Random(f"{seed} scene")
    (kind,) = rng.choices(list(TOPICS), WEIGHTS)
    if kind == PLAIN:
        return plain_scene()
    more = random.Random(f"{seed} more of the scene")  # a generator of its own: earlier draws do not change
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
