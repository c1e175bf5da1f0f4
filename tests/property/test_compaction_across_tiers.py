"""Every possible history of a compacted, tiered log of a few records: no deleted key returns, no newest value is lost.

These scopes are small enough for every run. docs/reference/reliability.md has the larger ones and their figures."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from disk_model import ModelDisk
from log_world import open_log
from run_profile import deep_only, seeds
from tier_explorer import explore
from tier_model import NO_HORIZON, RETENTION_TICKS, Rules, Scope, Segment, World, kept_records, steps
from tier_model import Record as Kind

from local.cleaner import cleaner
from local.format.batch_header import DELETE_HORIZON
from local.format.record import Record
from local.log import Log
from local.settings import LogSettings

SMALL = Scope(offsets=3, losses=1, has_retention=True)


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope(offsets=3, readers=(True,)), id="a reader of the bucket"),
        pytest.param(Scope(offsets=4, segment_records=2), id="two records a segment"),
        *deep_only(
            pytest.param(SMALL, id="losses and retention"),
            pytest.param(Scope(offsets=3, readers=(False,)), id="a reader of both tiers"),
        ),
    ],
)
def test_in_every_history_no_deleted_key_returns_and_no_newest_value_is_lost(scope: Scope) -> None:
    found = explore(scope)
    assert found.story == ()
    assert found.worlds > 300


@pytest.mark.deep("the history that the tombstone bound prevents")
def test_without_the_tombstone_bound_a_deleted_key_returns() -> None:
    found = explore(Scope(offsets=4), Rules(drops_by_time_alone=True))
    assert len(found.story) == 11, "the shortest history has ten steps and the violation"
    assert found.story[-1] == "both tiers, read from the start: key a came back with the value of offset 0"


def _name(each: object) -> str:
    return (
        next((field.name for field in fields(each) if getattr(each, field.name)), "") if isinstance(each, Rules) else ""
    )


@pytest.mark.deep("planted bugs of compaction across tiers")
@pytest.mark.parametrize(
    ("rules", "scope", "end"),
    [
        (Rules(uploads_dirty=True), SMALL, "the bucket, read from the start: key a has nothing"),
        (Rules(commits_one_by_one=True), SMALL, "the bucket, read from the start: key a has nothing"),
        (Rules(forgets_reach=True), SMALL, "the bucket, read from the start: key a has nothing"),
        (Rules(checkpoint_ahead=True), SMALL, "the bucket, read from the start: key a has nothing"),
        (Rules(replaces_early=True), SMALL, "the bucket, read from the start: key a has nothing"),
        (Rules(removes_before_adding=True), Scope(offsets=3), "the bucket, read from the start: key a has nothing"),
        (Rules(drops_before_commit=True), SMALL, "both tiers, read from the start: key a has nothing"),
        (
            Rules(deletes_without_grace=True),
            Scope(offsets=3, readers=(True,)),
            "a reader within the grace time meets a missing object",
        ),
        (Rules(vouches_unseen=True), Scope(offsets=4), "both tiers, read from the start: key a came back"),
    ],
    ids=_name,
)
def test_a_reader_detects_each_broken_rule(rules: Rules, scope: Scope, end: str) -> None:
    assert explore(scope, rules).story[-1].startswith(end)


def test_a_horizon_set_by_the_first_pass_is_too_early_for_remote_readers() -> None:
    """The retention of a tombstone begins when no tier has an older record of the key, not at the first pass that sees
    it."""
    world = played(
        "append a value at offset 0",
        "clean [0, 1)",
        "append a tombstone at offset 1",
        "upload and commit [0, 1)",
        "clean [1, 2)",
        "append b value at offset 2",
        "upload and commit [1, 2)",
        "half of delete.retention.ms goes by",
        "a reader of both tiers begins at 0",
        "replace the rows of [0, 1)",
        "drop the disk's [0, 1)",
        "the reader reads offset 0 from the bucket",
        "half of delete.retention.ms goes by",
        "clean [2, 3), called off after 1 of 2 swaps",
        rules=Rules(horizon_at_first_sight=True),
    )
    ends = [after for label, after in steps(world, READING, Rules()) if label.startswith("the reader reads")]
    assert ends == ["the reader is done: key a came back with the value of offset 0"]


@pytest.mark.parametrize("seed", seeds(30))
def test_the_models_cleaner_keeps_the_same_records_as_the_real_cleaner(seed: int) -> None:
    """Passes with random records, bounds and times keep the same offsets with the same delete horizons."""
    draw = random.Random(seed)
    disk = ModelDisk()
    log = open_log(disk, LogSettings(segment_bytes=1 << 20, is_compacted=True))
    model, now_ms = World(), 0
    for _ in range(6):
        for _ in range(draw.randint(1, 4)):
            key, is_tombstone = draw.randrange(3), draw.random() < 0.4
            log.append([Record(b"%d" % key, None if is_tombstone else b"v", now_ms)], now_ms=now_ms)
            segment = Segment(model.end, model.end + 1, ((model.end, NO_HORIZON),))
            model = model._replace(log=(*model.log, Kind(key, is_tombstone)), local=(*model.local, segment))
        log.roll(now_ms=now_ms)
        bound = draw.choice([None, draw.randint(0, model.end)])
        mapped = {model.log[at].key: at for at in range(log.cleaner_offset or 0, model.end)}
        cleaner.clean(log, now_ms=now_ms, delete_retention_ms=RETENTION_TICKS, tombstones_below=bound)
        model = model._replace(
            local=tuple(
                each._replace(records=kept_records(model, each, mapped, bound, Rules())) for each in model.local
            )
        )
        wanted = {at: horizon for each in model.local for at, horizon in each.records}
        assert left(log, now_ms) == wanted
        ticks = draw.randrange(3)
        now_ms += ticks
        model = model._replace(local=tuple(_aged(each, ticks) for each in model.local))


def _aged(segment: Segment, ticks: int) -> Segment:
    records = ((at, horizon if horizon == NO_HORIZON else max(0, horizon - ticks)) for at, horizon in segment.records)
    return segment._replace(records=tuple(records))


def left(log: Log, now_ms: int) -> dict[int, int]:
    """The offsets in the log and the ms until their delete horizon."""
    found: dict[int, int] = {}
    for columns in log.columns(0):
        table = columns.table
        for at, batch in zip(columns.offsets.tolist(), columns.batch_ordinals.tolist(), strict=True):
            has_horizon = bool(table.attributes[batch] & DELETE_HORIZON)
            found[at] = max(0, int(table.base_timestamps[batch]) - now_ms) if has_horizon else NO_HORIZON
    return found


READING = Scope(offsets=3, readers=(False,))


def played(*story: str, rules: Rules) -> World:
    world = World()
    for line in story:
        after = dict(reversed(steps(world, READING, rules)))[line]
        assert isinstance(after, World)
        world = after
    return world
