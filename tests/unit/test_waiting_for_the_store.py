"""Who waits for the store does so without the locks that others need. Nothing sleeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from manager_world import NAME, NOW, TIERED, World, send, settle

from local.errors import Unavailable
from policies.remote_retention import log_bytes
from policies.snapshot import PartitionSnapshot
from remote import metadata_log
from remote.keys import SPILLS
from remote.spilling import SpillRule
from tiered.apply import apply_in_task

LIMIT_S = 30.0  # nothing takes so long; a test that would hang fails instead


class Hooked:
    """A store before whose verbs `before(verb, key)` is called."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.before: Callable[[str, str], None] = lambda verb, key: None

    def __getattr__(self, verb: str) -> object:
        real = getattr(self.inner, verb)
        if not callable(real):
            return real

        def call(*given: object, **more: object) -> object:
            self.before(verb, str(given[0]) if given else "")
            return real(*given, **more)

        return call


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_task_asks_for_pages_before_it_takes_the_lock_and_never_within(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    rule = SpillRule(head_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_rows_min=1)
    monkeypatch.setattr(metadata_log, "SPILL_RULE", rule)
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
        all_bytes = log_bytes(manager.snapshots(NOW)[0])
        manager.alter_topic("t", {"retention.bytes": str(all_bytes - 1500)}, now_ms=NOW)  # a part of the first page
    store = Hooked(world.store)
    asked: list[bool] = []
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        held = manager.partition(NAME)

        def before(verb: str, key: str) -> None:
            if SPILLS in key:
                asked.append(held.lock._is_owned())  # type: ignore[attr-defined]
                if is_away:
                    raise Unavailable("the store is down", key=key)

        store.before = before
        seen: list[PartitionSnapshot] = []
        with held.tier_lock:
            apply_in_task(
                held,
                lambda snapshot: seen.append(snapshot) or [],  # type: ignore[func-returns-value]
                where=lambda: manager._directory.of(NAME),
                store=store,  # type: ignore[arg-type]
                now_ms=NOW,
                should_stop=lambda: False,
                clock=lambda: 0.0,
            )
        assert asked, "some may expire"
        assert not any(asked), "inside the lock"
        assert bool(seen[0].known_pages) is not is_away
