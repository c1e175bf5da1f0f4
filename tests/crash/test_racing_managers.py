"""Two and three managers race for one partition: hundreds of seeds here, thousands by `race_campaign.py`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from racing import GatedStore, race_once

from local.epochs import LeaderEpochs
from remote.head import Head
from remote.metadata_log import LogState, MetadataLog
from tiered import apply, opening, partition

SEEDS = 240
RUNS = 8
PLANTED_SEEDS = 300  # most plants die within ten; histories compared from one side need the patience


@pytest.mark.parametrize("run", range(RUNS))
def test_whoever_wins_nothing_is_lost_and_nothing_is_there_twice(run: int) -> None:
    heads = epochs = 0
    for seed in range(run, SEEDS, RUNS):
        race = race_once(seed)
        heads += len(race.truth.heads)
        epochs += len(race.truth.writers)
    assert heads > 5 * SEEDS // RUNS, "hardly anything was committed"
    assert epochs > 3 * SEEDS // RUNS, "hardly anybody took over"


@pytest.mark.parametrize("seed", [3, 8])
def test_one_seed_is_one_story(seed: int) -> None:
    first, second = race_once(seed), race_once(seed)
    assert first.events == second.events
    assert _anonymous(first.inner._objects) == _anonymous(second.inner._objects)


def _anonymous(objects: dict[str, tuple[bytes, int]]) -> list[str]:
    """Names without the topic's id, which is drawn by the system."""
    return [re.sub("^t-.{22}", "t", key) for key in objects]


# --- rules broken by hand: each must be seen --------------------------------------------------------------------------


def _epoch_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A writer takes any head for its own."""

    def adopt(self: MetadataLog, found: Head) -> None:
        self._head = found
        if self._state is LogState.WRITER:
            self._epoch = found.epoch

    patch.setattr(MetadataLog, "_adopt", adopt)


def _heads_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    def put_if_absent(self: GatedStore, key: str, body: bytes) -> None:
        self.put(key, body)

    patch.setattr(GatedStore, "put_if_absent", put_if_absent)


def _histories_are_compared_from_one_side(patch: pytest.MonkeyPatch) -> None:
    def first_foreign_offset(log: partition.Log, head: Head) -> int | None:
        known = dict(log.epochs.entries)
        return next((start for epoch, start in head.lineage if epoch not in known or known[epoch] > start), None)

    patch.setattr(partition, "first_foreign_offset", first_foreign_offset)


def _histories_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition, "check_agreement", lambda log, head: None)
    patch.setattr(opening, "check_agreement", lambda log, head: None)


def _the_bucket_is_not_agreed_with(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "reconcile", lambda log, head, **more: None)


def _records_have_no_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "assign", lambda self, epoch, start_offset: LeaderEpochs(((1, 0),)))


def _unlinked_objects_are_deleted_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    def expire(state: apply._Round, run: list[apply.ExpireRemote]) -> list[apply.ExpireRemote]:
        assert state.store is not None
        assert state.partition.metadata is not None
        state.store.delete([state.partition.prefix + each.data_key for each in run])
        change = apply.expire_segments([each.ulid for each in run], now_ms=state.now_ms)
        state.partition.metadata.commit(change, state.now_ms)
        return run

    patch.setattr(apply, "_expire", expire)


PLANTED = [
    _epoch_is_ignored,
    _heads_are_overwritten,
    _histories_are_compared_from_one_side,
    _histories_are_not_compared,
    _the_bucket_is_not_agreed_with,
    _records_have_no_epoch,
    _unlinked_objects_are_deleted_before_the_commit,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_broken_rule_is_caught(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"^seed [0-9]+: "):
        _race_on()


def _race_on() -> None:
    for seed in range(PLANTED_SEEDS):
        race_once(seed)
