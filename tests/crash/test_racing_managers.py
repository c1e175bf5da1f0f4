"""Managers race for one partition: hundreds of seeds here, thousands in `race_campaign.py`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest
from race_plants import PLANTED, Plant, fork_outlives, forker_sleeps_long
from race_scenes import TOPICS, scene_of
from race_stage import Actor, GatedStore, Life
from racing import Race, race_once
from run_profile import RACE_SEEDS, RACE_SEEDS_OF_FORKS

from local.errors import Unavailable
from tiered.node.writer_ids import DELETION

RUNS = 8
PLANTED_SEEDS = 1200  # most bugs show within the first ten of the seeds in which they can show

ENOUGH: dict[str, tuple[Callable[[Race], int], float]] = {
    "heads": (lambda race: len(race.truth.manifests), 5),
    "takeovers": (lambda race: len(race.truth.writers), 2),
    "records": (lambda race: len(race.truth.committed), 8),
}
RARER: dict[str, Callable[[Race], int]] = {
    "steps with a pin": lambda race: _count(race, " with a pin"),
    "killed processes": lambda race: _count(race, " is killed"),
    "GC boundary": lambda race: race.truth.gc_boundary,
    "views": lambda race: len(race.truth.views),
    "pages": lambda race: race.truth.pages_seen,
    "replaced rows": lambda race: race.truth.replaced,
    "collected orphans": lambda race: len(race.truth.orphans),
    "jobs": lambda race: len(race.truth.manifests[-1].jobs),
    "forks": lambda race: sum(each.is_told for each in race.forks),
    "heads of forks": lambda race: sum(len(each.manifests) - 3 for each in race.forks if each.is_told),
    "epochs taken to free": lambda race: sum(each.writer_id.startswith(DELETION) for each in race.truth.manifests),
    "deleted topics": lambda race: race.truth.is_deleted,
}


@pytest.mark.parametrize("run", range(RUNS))
def test_races_for_a_partition_lose_and_duplicate_no_record(run: int) -> None:
    races = [race_once(seed) for seed in RACE_SEEDS[run::RUNS]]
    for what, (count, per_race) in ENOUGH.items():
        assert sum(map(count, races)) >= per_race * len(races), f"hardly any {what}"


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_always_gives_the_same_race(seed: int) -> None:
    first, second = race_once(seed), race_once(seed)
    assert first.events == second.events
    assert _anonymous(first.inner._objects) == _anonymous(second.inner._objects)


def test_forks_of_an_expiring_source_are_whole_or_their_creation_does_not_return() -> None:
    for in_danger, least_told in ((forker_sleeps_long, 0), (fork_outlives, RACE_SEEDS_OF_FORKS // 4)):
        races = [race_once(seed, scene=in_danger(scene_of(seed))) for seed in range(RACE_SEEDS_OF_FORKS)]
        forks = [each for race in races for each in race.forks]
        assert len(forks) > RACE_SEEDS_OF_FORKS, "hardly any fork"
        assert sum(each.is_told for each in forks) >= least_told, "hardly any fork was made in time"


def _anonymous(objects: dict[str, tuple[bytes, int]]) -> list[str]:
    """Names without the topic id, which is drawn by the system."""
    return [re.sub("^t-.{22}", "t", key) for key in objects]


def _count(race: Race, ending: str) -> int:
    return sum(each.endswith(ending) for each in race.events)


def test_a_helper_thread_of_an_actor_neither_takes_the_baton_nor_outlives_it() -> None:
    race, told = Race(1, scene_of(1)), []

    def ask(store: GatedStore) -> None:
        try:
            list(store.list(""))
        except Unavailable as error:
            told.append(error)

    def body(actor: Actor) -> None:
        helper = threading.Thread(target=ask, args=(GatedStore(Life(actor)),), daemon=True)
        helper.start()
        helper.join(60)
        told.append(helper.is_alive())

    race.spawn("a", body)
    race.run()
    assert [type(each) for each in told] == [Unavailable, bool]
    assert told[-1] is False


@pytest.mark.deep("races enough for the rare scenes")
def test_the_seeds_of_the_suite_cover_every_scene_and_every_actor() -> None:
    scenes = [scene_of(seed) for seed in RACE_SEEDS]
    assert {each.kind for each in scenes} == set(TOPICS)
    for trait in ("rule", "kept_heads", "kills", "deletes_topic", "has_guest", "has_fork", "pauses", "has_freer"):
        assert 3 * sum(bool(getattr(each, trait)) for each in scenes) > len(RACE_SEEDS) // 10, trait
    races = [race_once(seed) for seed in range(0, RACE_SEEDS.stop, 3)]
    idle = [what for what, count in RARER.items() if not sum(map(count, races))]
    assert idle == []


# --- planted bugs: each must be detected ------------------------------------------------------------------------------


@pytest.mark.deep("planted bugs of races")
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.breaks.__name__.strip("_"))
def test_a_planted_bug_is_detected(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant.breaks(monkeypatch)
    with pytest.raises(AssertionError, match=r"^seed [0-9]+ "):
        _race_on(plant)


def _race_on(plant: Plant) -> None:
    for seed in range(plant.since, plant.since + PLANTED_SEEDS):
        scene = plant.scene(scene_of(seed))
        if scene is not None:
            race_once(seed, scene=scene)
