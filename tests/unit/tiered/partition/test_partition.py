"""Objects unlinked by a clock that was ahead: deleted after their grace period was counted, never before."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send

from policies.decisions import DeletePage, DeletePending
from policies.plan import plan_partition
from remote.gc.pins import pin_newest
from remote.manifest.manifest import Manifest, PendingDelete
from tiered.config.clock_guard import JUMP_MS
from tiered.manager.manager import LogManager
from tiered.partition.partition import SkewedDeleteTimer

MONTH = 30 * DAY
GRACE = {**TIERED, "retention.ms": "7d", "remote.log.delete.grace.ms": "1h"}


class Counter:
    """A monotonic clock that wall clock changes do not move."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


def expired_a_month_ahead(world: World, counter: Counter) -> LogManager:
    """A manager whose clock was a month ahead for one maintenance round, in which entries expired."""
    manager = world.open()
    manager.topics.create("t", 1, GRACE, now_ms=NOW)
    for at in range(3):
        send(manager, 20, start=20 * at)
        manager.partitions.roll("t", now_ms=NOW)
    while manager.tick(NOW):
        pass
    manager.partitions.find(NAME).ahead = SkewedDeleteTimer(counter)
    while manager.tick(NOW + MONTH):
        pass
    assert pending_deletes(manager)
    return manager


def pending_deletes(manager: LogManager) -> list[PendingDelete]:
    manifest = manager.partitions.find(NAME).manifest()
    assert manifest is not None
    return list(manifest.pending_deletes)


def objects(world: World) -> int:
    return sum("/data/" in info.key for info in world.store.list(""))


def test_unlinked_objects_are_deleted_a_grace_period_after_first_being_seen() -> None:
    world, counter = World(), Counter()
    with expired_a_month_ahead(world, counter) as manager:
        there = objects(world)
        assert {each.unlinked_ms for each in pending_deletes(manager)} == {NOW + MONTH}
        for counter.ms in (0, HOUR // 2, HOUR - 1):
            manager.tick(NOW + counter.ms)
            assert objects(world) == there
        counter.ms = HOUR
        manager.tick(NOW + HOUR)
        assert objects(world) < there
        assert not pending_deletes(manager)


@pytest.mark.parametrize("wall_ms", [NOW + HOUR, NOW + DAY, NOW + MONTH - 2 * JUMP_MS, NOW + MONTH + HOUR - 1])
def test_setting_the_wall_clock_does_not_shorten_the_counted_grace_period(wall_ms: int) -> None:
    world, counter = World(), Counter()
    with expired_a_month_ahead(world, counter) as manager:
        there = objects(world)
        manager.tick(NOW)
        manager.tick(wall_ms)
        assert objects(world) == there
        manager.tick(NOW + MONTH + HOUR)  # the time of the stamp
        assert objects(world) < there


def test_restart_counts_the_grace_period_from_zero() -> None:
    world, counter = World(), Counter()
    with expired_a_month_ahead(world, counter) as manager:
        there = objects(world)
        manager.tick(NOW)
    counter.ms = HOUR
    with world.open() as manager:
        manager.partitions.find(NAME).ahead = SkewedDeleteTimer(counter)
        manager.tick(NOW + HOUR)
        assert objects(world) == there
        counter.ms = 2 * HOUR
        manager.tick(NOW + 2 * HOUR)
        assert objects(world) < there


def test_pinned_objects_are_not_deleted_after_the_counted_grace_period() -> None:
    world, counter = World(), Counter()
    manager = world.open()
    manager.topics.create("t", 1, GRACE, now_ms=NOW)
    send(manager, 20)
    manager.partitions.roll("t", now_ms=NOW)
    while manager.tick(NOW):
        pass
    held = manager.partitions.find(NAME)
    assert held.metadata is not None
    pin, _ = pin_newest(world.store, held.prefix, held.metadata, now_ms=NOW, expires_ms=NOW + DAY, holder="reader")
    held.ahead = SkewedDeleteTimer(counter)
    with manager:
        while manager.tick(NOW + MONTH - HOUR):
            pass
        there = objects(world)
        for counter.ms in (0, HOUR, 2 * HOUR):
            manager.tick(NOW + counter.ms)
            assert objects(world) == there, pin
        counter.ms = 3 * DAY
        manager.tick(NOW + 3 * DAY)
        assert objects(world) < there


def test_no_object_is_deleted_before_its_grace_period_under_any_clock() -> None:
    """Random stamps and random reading clocks. Where a stamp is not trusted, the grace period is counted."""
    world, counter = World(), Counter()
    with expired_a_month_ahead(world, counter) as manager:
        snapshot, manifest = manager.snapshots(NOW)[0], manager.partitions.find(NAME).manifest()
        assert manifest is not None
        went = early = 0
        for seed in range(300):
            draw, counter = Random(seed), Counter()
            stamps, at = SkewedDeleteTimer(counter), NOW + draw.choice((0, HOUR, MONTH, -MONTH))
            one = replace(manifest.pending_deletes[0], unlinked_ms=at)
            listed: Manifest = replace(manifest, pending_deletes=(one,), pending_page_deletes=())
            for _ in range(20):
                counter.ms += draw.choice((0, 1, HOUR // 4, HOUR))
                now_ms = NOW + draw.choice((0, HOUR, DAY, MONTH, 2 * MONTH, -DAY))
                judged, pages = stamps.judged(listed, now_ms)
                decided = plan_partition(
                    replace(snapshot, now_ms=now_ms, pending_deletes=judged, pending_page_deletes=pages)
                )
                if any(isinstance(each, DeletePending | DeletePage) for each in decided):
                    went += 1
                    early += now_ms - at < HOUR
                    assert now_ms - at >= HOUR or counter.ms >= HOUR
        assert went > 300
        assert early > 100
