"""A fuzzing campaign over the parsers of the local log.

    python tests/fuzz/fuzz.py TARGET --seconds 600 [--corpus DIR]     guided by coverage (atheris)
    python tests/fuzz/fuzz.py all --mutate 20000 [--seed N] [--memory-mib 512]

The first form needs atheris (`pip install -e '.[dev]'`). It stops at the first finding and writes the input to a file
in the current directory. The test suite runs the second form for a few seconds. It derives mutants from the seed
inputs, always the same for one seed, and limits the address space above the use at the start. It prints the input of
a finding in hex. TARGET is one of tests/fuzz/targets.py, or `all`: every target, each with an equal share of the
seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "crash"), str(_HERE.parent / "unit" / "support"), str(_HERE.parents[1])]

from mutations import mutations  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", help="directory that keeps interesting inputs from one campaign to the next")
    parser.add_argument("--mutate", type=int, metavar="N", help="N mutants of the seeds per target, no feedback")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-mib", type=int, help="address space allowed above what is in use at the start")
    asked = parser.parse_args()
    targets = _targets(is_guided=asked.mutate is None)
    names = list(targets.TARGETS) if asked.target == "all" else [asked.target]
    if names[0] not in targets.TARGETS:
        parser.error(f"no such target; there are: all, {', '.join(targets.TARGETS)}")
    if asked.mutate is not None:
        return _mutate(targets, names, asked.mutate, asked.seed, asked.memory_mib)
    if len(names) > 1:
        share = str(max(1, asked.seconds // len(names)))
        corpus = ["--corpus", asked.corpus] if asked.corpus else []
        return max(subprocess.call([sys.executable, __file__, name, "--seconds", share, *corpus]) for name in names)
    return _guided(targets, names[0], asked.seconds, asked.corpus)


def _targets(*, is_guided: bool) -> Any:
    """tests/fuzz/targets.py; for a guided campaign the parsers are instrumented for coverage."""
    if not is_guided:
        import targets

        return targets
    import atheris

    with atheris.instrument_imports(include=["local", "tiered.serve"]):
        import targets as instrumented
    return instrumented


def _mutate(targets: Any, names: list[str], count: int, seed: int, memory_mib: int | None) -> int:
    if memory_mib is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (memory_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name in names:
        began, target = time.monotonic(), targets.TARGETS[name]
        with targets.small_limits():
            for data in islice(mutations(target.seeds(), seed=seed), count):
                try:
                    target.run(data)
                except BaseException:
                    print(f"finding: target={name} input={data.hex()}", flush=True)
                    raise
        print(f"{name}: {count} inputs, {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _guided(targets: Any, name: str, seconds: int, corpus: str | None) -> int:
    import atheris

    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(corpus, name) if corpus else scratch
        os.makedirs(folder, exist_ok=True)
        for at, seed in enumerate(target.seeds()):
            Path(folder, f"seed-{at}").write_bytes(seed)
        arguments = [sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", "-rss_limit_mb=2048", folder]
        with targets.small_limits():
            atheris.Setup(arguments, target.run)
            atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
