"""The long run of the crash tests: hundreds of thousands of distinct crash states.

    python tests/crash/campaign.py --states 1000000 --jobs 2 [--first-seed 1000] [--resume DIR]

Work is divided into numbered seeds. Seed n explores some drawn programs that no other seed has, and each eighth seed
also every fixed program with its own choice of lost writes: more often, they yield few states that are new. The result
of a seed depends on its number alone.

Each finished seed writes one line and one file of digests below ``--resume DIR``. A run that was stopped continues from
there. Equal states of different seeds are counted once.

A broken promise is printed at once with the note of its state. The other seeds continue, and the exit code is 1. The
next ``--resume`` runs the broken seed again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "support"), str(HERE.parents[1])]

from log_explorer import Tally, explore  # noqa: E402
from log_programs import CASES, drawn  # noqa: E402

DRAWN_PER_SEED = 12
FIXED_EVERY = 8
DRAWS_FIXED, DRAWS_DRAWN = 6, 5
STATES_OF_A_CASE = 1_000


def run_seed(seed: int) -> dict[str, object]:
    """Explore one seed; return its figures and digests, or its failure."""
    tally, began, programs = Tally(), time.monotonic(), 0
    failures = []
    fixed = CASES if seed % FIXED_EVERY == 0 else []
    for case in [*fixed, *(drawn(seed * DRAWN_PER_SEED + at) for at in range(DRAWN_PER_SEED))]:
        programs += 1
        draws = DRAWS_FIXED if case in CASES else DRAWS_DRAWN
        try:
            explore(case, draws=draws, seed=seed, tally=tally, states_max=tally.distinct + STATES_OF_A_CASE)
        except Exception:  # noqa: BLE001 - the run reports any error
            failures.append(traceback.format_exc())
    return {
        "seed": seed,
        "programs": programs,
        "drawn": tally.drawn,
        "nested": tally.nested,
        "seconds": time.monotonic() - began,
        "failures": failures,
        "digests": np.fromiter(tally.checked, np.uint64, len(tally.checked)),
    }


class Ledger:
    """The results of finished seeds; also stored on disk when a folder is given."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.entries: dict[int, dict[str, object]] = {}
        self.digests = np.empty(0, np.uint64)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(folder.glob("*.json")):
                entry = json.loads(file.read_text())
                if entry["failures"]:
                    continue
                self.entries[entry["seed"]] = entry
                self._merge(np.load(file.with_suffix(".npy")))

    def add(self, entry: dict[str, object]) -> None:
        digests = entry.pop("digests")
        assert isinstance(digests, np.ndarray)
        self.entries[int(str(entry["seed"]))] = entry
        self._merge(digests)
        if self.folder is not None:
            np.save(self.folder / f"{entry['seed']}.npy", digests)
            (self.folder / f"{entry['seed']}.json").write_text(json.dumps(entry))

    def total(self, name: str) -> int:
        return int(sum(float(str(entry[name])) for entry in self.entries.values()))

    def failures(self) -> list[str]:
        return [text for entry in self.entries.values() for text in entry["failures"]]  # type: ignore[attr-defined]

    def _merge(self, digests: np.ndarray) -> None:
        self.digests = np.union1d(self.digests, digests)


def seeds_left(ledger: Ledger, first: int) -> Iterator[int]:
    return (seed for seed in count(first) if seed not in ledger.entries)


def run(states: int, jobs: int, first_seed: int, folder: Path | None) -> int:
    ledger, began = Ledger(folder), time.monotonic()
    left = seeds_left(ledger, first_seed)
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(run_seed, next(left)) for _ in range(jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                entry = each.result()
                ledger.add(entry)
                if entry["failures"]:
                    print(f"\nseed {entry['seed']}: {entry['failures']}", flush=True)
            if len(ledger.digests) < states:
                running |= {pool.submit(run_seed, next(left)) for _ in done}
            _progress(ledger, states, time.monotonic() - began)
    _summary(ledger, time.monotonic() - began)
    return 1 if ledger.failures() else 0


def _progress(ledger: Ledger, states: int, seconds: float) -> None:
    have = len(ledger.digests)
    print(
        f"\r{have:,} of {states:,} states ({have / states:.1%}), {len(ledger.entries)} seeds, {seconds:,.0f} s",
        end="",
        file=sys.stderr,
        flush=True,
    )


def _summary(ledger: Ledger, seconds: float) -> None:
    print(file=sys.stderr)
    print(f"distinct states   {len(ledger.digests):,}")
    print(f"states drawn      {ledger.total('drawn'):,}")
    print(f"inside recoveries {ledger.total('nested'):,}")
    print(f"programs run      {ledger.total('programs'):,}")
    print(f"seeds             {len(ledger.entries):,}")
    print(f"promises broken   {len(ledger.failures()):,}")
    print(f"seconds           {seconds:,.0f} (of all processes {ledger.total('seconds'):,})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1_000_000, help="how many distinct states are wanted")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--first-seed", type=int, default=1_000, help="the suite uses small ones")
    parser.add_argument("--resume", type=Path, default=None, metavar="DIR", help="keep the figures of each seed here")
    asked = parser.parse_args()
    return run(asked.states, asked.jobs, asked.first_seed, asked.resume)


if __name__ == "__main__":
    sys.exit(main())
