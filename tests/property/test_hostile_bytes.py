"""Hostile bytes for the parsers: a few seconds of `tests/fuzz/fuzz.py`, with the same mutants in every run.

Proven: no error outside the project's error tree, equal results of both kernels, no read behind the end, little
memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import mutations
import pytest
import targets
from run_profile import HOSTILE_STRIDE

from local import kernels
from local.format.columns import BatchTable
from local.kernels import pure_kernels

ROOT = Path(__file__).parents[2]
MEMORY_MIB = 256  # above the use of the process after its imports; batches are limited to 1 MiB inflated


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/fuzz'}:{ROOT / 'tests/crash'}:{ROOT / 'tests/unit/support'}",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("target", ["batches", "legacy", "columns", "all"])
def test_mutants_raise_only_known_errors_within_the_memory_limit(target: str) -> None:
    count = "100" if target == "all" else "500"
    done = run(str(ROOT / "tests/fuzz/fuzz.py"), target, "--mutate", count, "--memory-mib", str(MEMORY_MIB))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"{count} inputs" in done.stdout


def test_the_memory_limit_of_a_campaign_is_enforced() -> None:
    code = "import fuzz; fuzz._mutate(None, [], 0, 0, 64); bytearray(128 << 20)"
    assert "MemoryError" in run("-c", code).stderr


@pytest.mark.parametrize("at", ["len(data)", "-1"])
def test_a_read_one_byte_outside_a_guarded_copy_kills_the_process(at: str) -> None:
    code = f"""
import ctypes, targets
data = bytes(4096)
with targets.guarded(data) as view:
    assert bytes(view) == data
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    ctypes.string_at(start + {at}, 1)
print("alive")
"""
    done = run("-c", code)
    assert "alive" not in done.stdout
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.skipif(targets.compiled is None, reason="the extension was not built")
def test_no_changed_byte_makes_the_compiled_kernel_read_behind_the_end() -> None:
    code = """
import targets
from functools import partial
from run_profile import HOSTILE_STRIDE
from local import kernels
from local.errors import Corrupt, InvalidRequest
tried = 0
for name in ("batches", "legacy"):
    for seed in targets.TARGETS[name].seeds()[::HOSTILE_STRIDE]:
        body = bytearray(seed[1:])
        for at in range(len(body)):
            before = body[at]
            for value in {0, 1, 0x7F, 0x80, 0xFF, *((before + step) % 256 for step in (-2, -1, 1, 2))}:
                body[at] = value
                tried += 1
                with targets.guarded(targets.resealed(bytes(body))) as view:
                    for read in (partial(kernels.decode_columns, include_control=True), targets.arrow_rows):
                        try:
                            read(view)
                        except (Corrupt, InvalidRequest):
                            pass
            body[at] = before
print("alive", tried)
"""
    done = run("-c", code)
    assert done.stdout.startswith("alive"), (done.returncode, done.stderr[-2000:])
    assert int(done.stdout.split()[1]) > 20_000 // HOSTILE_STRIDE


@pytest.mark.skipif(targets.compiled is None, reason="the extension was not built")
def test_a_difference_between_the_kernels_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def shorter(data: memoryview, *, verify: bool = True, position: int = 0) -> BatchTable:
        table = pure_kernels.scan_batches(data, verify=verify, position=position)
        return table.select(slice(1))

    class Wrong:
        def __getattr__(self, name: str) -> object:
            return shorter if name == "scan_batches" else getattr(pure_kernels, name)

    monkeypatch.setattr(targets, "compiled", Wrong())
    seeds = targets.TARGETS["batches"].seeds()
    several = [seed for seed in seeds if len(kernels.scan_batches(seed[1:])) > 1]
    assert several
    for seed in several:
        with pytest.raises(AssertionError, match="the kernels differ"):
            targets.run_batches(seed)


def test_mutants_are_the_same_for_the_same_seed() -> None:
    seeds = targets.TARGETS["legacy"].seeds()
    first, again = (list(islice(mutations.mutations(seeds, seed=3), 200)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 150
    assert first != list(islice(mutations.mutations(seeds, seed=4), 200))


def test_every_seed_input_of_batches_is_valid() -> None:
    for seed in targets.TARGETS["batches"].seeds() + targets.TARGETS["legacy"].seeds():
        assert kernels.scan_batches(seed[1:]).problem is None
        kernels.decode_columns(seed[1:], include_control=True)
