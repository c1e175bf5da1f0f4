"""Attacks on a deployment through its commands.

The attacks: damaged files and objects, forged manifests, faulty and lost stores, two writers, kills.

    python tests/crash/hostile_campaign.py [--store file|moto|versitygw|localstack|hdfs] [--seeds 200] [--first-seed 0]

Every seed restores the deployment, attacks it once, and runs commands that read, that write, and that read again. A
seed is broken when a command

1. prints a traceback or an internal error, ends with an undocumented exit code, or fails without a line on stderr;
2. reads with exit code 0 something else than the truth, although no check command reported a problem;
3. loses a record that was readable before the command;
4. deletes a data object that the manifest before the attack names;
5. reads with exit code 0 without a record that was acknowledged during the attack.

The exit code is 1 when a seed is broken, and the broken seeds are listed. A seed repeats exactly, except for kills by
time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path[:0] = [str(HERE), str(TOP / "tests" / "unit" / "support"), str(TOP / "localstack"), str(TOP)]

from command_server import Commands  # noqa: E402
from hostile_stores import GC, owned, unread  # noqa: E402
from hostile_world import ATTACKS, PARTITIONS, Answer, Attack, HostileWorld  # noqa: E402
from local_servers import KINDS, RunningServer  # noqa: E402

CODES = {0, 1, 3, 4, 5, 6, 10}
CHECKS = (
    ("status", "--check"), ("doctor", "--no-probe"), ("verify",), ("verify", "--remote"), ("scrub",), ("plan",),
    ("get-offsets",), ("compaction", "status"), ("cost", "show"), ("log-dirs",),
)  # fmt: skip
NEW = "".join(f"k{n}:new {n}\n" for n in range(5))


def attacked(world: HostileWorld, seed: int) -> tuple[Attack, list[str], Counter[str]]:
    """Attack the world once and judge every command; return the attack, the complaints and the counts."""
    rng = random.Random(f"hostile {seed}")
    world.restore(is_clean=rng.random() < 0.5)
    weights, attacks = zip(*ATTACKS, strict=True)
    (attack,) = rng.choices(attacks, weights)
    done = attack(world, rng)
    counted = Counter[str]({attack.__name__: 1})
    complaints, reported, before = list(done.complaints), False, {}
    for answer in done.answers:
        counted["commands"] += 1
        counted[f"exit {answer.code} during the attack"] += 1
        complaints += _misbehaviour(answer)
        if answer.words[0] == "consume" and answer.code == 0:
            is_remote = "--remote" in answer.words
            complaints += _untruth(world.truth[answer.words[1]], answer, done, is_remote=is_remote)
    for answer in _looked(world):
        counted["commands"] += 1
        complaints += _misbehaviour(answer)
        reported |= answer.code != 0 or "WARNING" in answer.err or "ERROR" in answer.err
    for partition in PARTITIONS:
        for words in ((), ("--remote", *world.told_remote())):
            answer = _consume(world, partition, *words)
            counted["commands"] += 1
            complaints += _misbehaviour(answer)
            if answer.code == 0:
                before[partition, words] = answer.out.splitlines()
                if not done.is_forged and not reported:
                    complaints += _untruth(world.truth[partition], answer, done, is_remote=bool(words))
    reported |= done.is_forged
    for answer in (
        world.run("append", "kept", "-", "-K", ":", stdin=NEW),
        world.run("run", "--once"),
        world.run("compact", "newest", "--roll"),
        *(world.run(*words) for words in GC),
        world.run("run", "--once"),
    ):
        counted["commands"] += 1
        complaints += _misbehaviour(answer)
    complaints += _lost(world, before, done.acknowledged)
    complaints += _deleted(world, done)
    return done, complaints, counted


def _looked(world: HostileWorld) -> Iterator[Answer]:
    for words in CHECKS:
        yield world.run(*words)
    yield world.run("remote", "ls", *world.told_remote())


def _consume(world: HostileWorld, partition: str, *words: str) -> Answer:
    return world.run("consume", partition, "-o", "jsonl", *words)


def _misbehaviour(answer: Answer) -> list[str]:
    words = " ".join(answer.words)
    if "Traceback" in answer.err or "internal error" in answer.err:
        return [f"{words}: traceback: {answer.err[-900:]}"]
    if answer.code not in CODES:
        return [f"{words}: exit {answer.code}: {answer.err[-400:]}"]
    if answer.code == 1 and not answer.err.strip():
        return [f"{words}: exit 1 without a line"]
    return []


def _untruth(truth: list[str], answer: Answer, attack: Attack, *, is_remote: bool) -> list[str]:
    """Compare the records with the truth; the remote tier alone may lack the active segment."""
    found = answer.out.splitlines()
    if found == truth or ((is_remote or attack.may_cut) and found == truth[: len(found)] and found):
        return []
    if attack.may_grow and (found[: len(truth)] == truth or _newest(truth).keys() <= _newest(found).keys()):
        return []
    return [f"{' '.join(answer.words)}: {len(found)} of {len(truth)} records, exit 0, and no check reported it"]


def _lost(
    world: HostileWorld, before: dict[tuple[str, tuple[str, ...]], list[str]], acknowledged: tuple[str, ...]
) -> list[str]:
    complaints = []
    if acknowledged and (answer := owned(world)).code == 0:
        complaints += unread(answer, list(acknowledged))
    for (partition, words), records in before.items():
        if words:
            continue
        answer = _consume(world, partition)
        complaints += _misbehaviour(answer)
        if answer.code != 0:
            continue  # An error that names the damage hides nothing.
        found = set(answer.out.splitlines())
        gone = [each for each in records if each not in found]
        if partition == "newest/0":  # Compaction removes older values. The newest value of each key stays.
            gone = [each for each in gone if each in _newest(records).values()]
        if gone:
            complaints.append(
                f"{partition}: {len(gone)} of {len(records)} readable records lost, first {gone[0][:120]}"
            )
    return complaints


def _newest(records: list[str]) -> dict[str, str]:
    """The last line of each key."""
    return {json.loads(each)["key"]: each for each in records}


def _deleted(world: HostileWorld, attack: Attack) -> list[str]:
    """Data objects that were deleted without a permission: retention is unlimited in this deployment."""
    if attack.what.startswith(("empty", "delete")):
        return []
    there = {each.key for each in world.store.list("")}
    gone = [key for key in world.objects if key.endswith((".log", ".indexes")) and key not in there]
    gone = [key for key in gone if "/newest" not in f"/{key}"]  # recompaction replaces segments
    return [f"deleted: {len(gone)} objects, first {gone[0]}"] if gone else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("file", *KINDS), default="file")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    began, counted, broken = time.monotonic(), Counter[str](), 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "commands").mkdir()
        (folder / "home").mkdir()
        server = None
        if asked.store != "file":
            server = stack.enter_context(RunningServer(KINDS[asked.store], folder / "server"))
        commands = stack.enter_context(Commands(folder / "commands"))
        world = HostileWorld(folder / "home", commands, server, "hostile")
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            attack, complaints, told = attacked(world, seed)
            counted.update(told)
            print(f"seed {seed}: {len(complaints)} complaints, {time.monotonic() - began:.0f} s", file=sys.stderr)
            broken += bool(complaints)
            for each in complaints:
                print(f"seed {seed}: {attack.what}\n    {each}", flush=True)
    print(
        f"store {asked.store}, seeds {asked.seeds}, broken {broken}, {dict(counted)}, {time.monotonic() - began:.0f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
