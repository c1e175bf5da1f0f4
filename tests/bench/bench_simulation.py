"""Every case of the simulation compared with a real manager: ``python tests/bench/bench_simulation.py [WORD...]``.

Prints the table of docs/explanation/cost-model.md: the requests of each case, and the verb or byte count with the
largest error. Words select cases by name. Exits with 1 if an error is above one percent. Takes a minute of one core.
The figures do not depend on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))

from simulated_cases import CASES, MORE, both, far_off

from policies.cost.simulation import Counts
from remote.store.memory_store import MemoryStore
from tiered.stores.configured_store import StoreCheck


def main() -> int:
    words, wrong = sys.argv[1:], 0
    print("| case | requests | MB in | MB out | worst |\n|---|---|---|---|---|")
    for name, case in {**CASES, **MORE}.items():
        if words and not any(word in name for word in words):
            continue
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
            patch.setattr(os, "fsync", lambda fd: None)
            patch.setattr(os, "fdatasync", lambda fd: None)
            patch.setattr(StoreCheck, "renew", lambda self, store, now_ms: None)
            done, told = both(case, directory, MemoryStore("memory://b"), patch)
        wrong += bool(far_off(done, told))
        sent = sum(getattr(done.counts, verb) for verb in ("puts", "posts", "gets", "heads", "lists", "deletes"))
        size = f"{done.counts.bytes_in / 1e6:.1f} | {done.counts.bytes_out / 1e6:.1f}"
        print(f"| {name} | {sent:,} | {size} | {_worst(done.counts, told.counts)} |", flush=True)
    return 1 if wrong else 0


def _worst(done: object, told: Counts) -> str:
    pairs = [(each.name, getattr(done, each.name), getattr(told, each.name)) for each in fields(Counts)]
    name, were, said = max(pairs, key=lambda pair: abs(pair[2] - pair[1]) / max(1, pair[1]))
    off = abs(said - were) / max(1, were)
    return "exact" if off < 0.00005 else f"{name} {(said - were) / max(1, were):+.2%}"


if __name__ == "__main__":
    sys.exit(main())
