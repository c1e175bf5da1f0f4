"""Thousands of races of two and three managers; every seed is a race of its own and repeats exactly.

    python tests/crash/race_campaign.py [--seeds 10000] [--first-seed 0] [--jobs 2]

When a promise is broken, the last steps of the race are printed and the exit code is 1. `race_once(seed)` of `racing`
repeats the race.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "support"), str(HERE.parents[1])]

from racing import race_once  # noqa: E402

from local.lock_ranks import check_ranks  # noqa: E402

check_ranks()


def attempt(seed: int) -> tuple[Counter[str], str | None]:
    """The events of one race, and its failure."""
    try:
        race = race_once(seed)
    except AssertionError as error:
        return Counter({"broken": 1}), str(error)
    told = Counter(steps=race.steps, manifests=len(race.truth.manifests), epochs=len(race.truth.writers))
    told.update(records=len(race.truth.committed), fenced=sum(each.endswith(" Fenced") for each in race.events))
    told.update(refused=sum(each.endswith(" Conflict") for each in race.events))
    told.update(logical_ms=race.now_ms - race.began_ms, deletes=sum(" delete " in each for each in race.events))
    told.update(killed=sum(each.endswith(" is killed") for each in race.events), views=len(race.truth.views))
    told.update(pinned_steps=sum(each.endswith(" with a pin") for each in race.events), pages=race.truth.pages_seen)
    told.update(gc_boundary=race.truth.gc_boundary, orphans=len(race.truth.orphans), deleted=race.truth.is_deleted)
    told.update(
        forks=sum(each.is_told for each in race.forks), fork_heads=sum(len(each.manifests) for each in race.forks)
    )
    told.update(fork_records=sum(len(each.committed) for each in race.forks if each.is_told))
    told.update(jobs=len(race.truth.manifests[-1].jobs) if race.truth.manifests else 0)
    return told, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    began, told = time.monotonic(), Counter[str]()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done, (found, failure) in enumerate(pool.map(attempt, seeds, chunksize=16), start=1):
            told.update(found)
            if failure is not None:
                print(failure, flush=True)
            if done % 1000 == 0:
                print(f"{done} seeds, {time.monotonic() - began:.0f} s, {told['broken']} broken", flush=True)
    hours = told.pop("logical_ms") / 3_600_000
    print(f"seeds {asked.seeds}, logical hours {hours:.0f}, {dict(told)}, {time.monotonic() - began:.0f} s")
    return 1 if told["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
