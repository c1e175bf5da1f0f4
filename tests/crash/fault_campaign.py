"""Every flow with every store fault at every call; then drawn faults by seed, several in one flow.

    python tests/crash/fault_campaign.py [--seeds 1000] [--first-seed 0] [--jobs 2] [--only NAME] [--mode RAW]

All object encodings are tried unless `--mode` selects one. When a promise is broken, the case is printed and the exit
code is 1. `run_case(name, call, kind, mode)` and `run_drawn(name, seed, mode)` of `fault_flows` repeat the case.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "support"), str(HERE.parents[1])]

from fault_flows import SCENES, Mode, cases, run_case, run_drawn  # noqa: E402
from fault_kinds import Kind  # noqa: E402

Job = tuple[str, int, str | None, str]  # scene; call or seed; kind, or None when drawn; mode


def attempt(job: Job) -> tuple[Job, bool, str | None]:
    """Return the job, whether its fault was met, and its failure."""
    logging.disable(logging.CRITICAL)
    name, number, kind, mode = job
    try:
        drawn = kind is None
        met = run_drawn(name, number, Mode[mode]) if drawn else run_case(name, number, Kind[kind], Mode[mode])
    except Exception:  # noqa: BLE001 - the run reports any error
        return job, True, traceback.format_exc()
    return job, met, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0, help="drawn runs of each flow")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=list(SCENES))
    parser.add_argument("--mode", choices=[mode.name for mode in Mode])
    asked = parser.parse_args()
    names = [asked.only] if asked.only else list(SCENES)
    modes = [Mode[asked.mode]] if asked.mode else list(Mode)
    jobs: list[Job] = [
        (name, at, kind.name, mode.name) for mode in modes for name in names for at, kind in cases(name, mode)
    ]
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    jobs += [(name, seed, None, mode.name) for seed in seeds for mode in modes for name in names]
    began, met, broken = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        for job, was_met, failure in pool.map(attempt, jobs, chunksize=8):
            met[job[2] or "drawn"] += was_met
            if failure is not None:
                broken += 1
                print(job, failure, sep="\n", flush=True)
    for kind, count in sorted(met.items()):
        print(f"{kind:24} {count}")
    print(f"cases {len(jobs)}, met {sum(met.values())}, broken {broken}, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
