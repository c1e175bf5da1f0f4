"""Attacks on a deployment by its store and by a second writer.

Each attack runs commands during the fault and returns their answers with its observations. `LyingGate` stands between
the commands and a server; a bucket that is a folder is renamed instead.

| fault | the commands meet |
|---|---|
| dead, refused | no connection, or no folder |
| dead, busy | 503 for each request (S3 alone) |
| lies: lost | the request takes effect, and its reply is sometimes cut |
| lies: flip | a bit of a reply's body is sometimes flipped (S3 alone) |
| lies: missing | sometimes 404 for an existing object (S3 alone) |
| lost bucket | the bucket or its folder does not exist any more |
| two owners | a process with a copy of the data directory works on the same bucket |
"""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from outage_gate import Gate, Way

if TYPE_CHECKING:
    from hostile_world import Answer, Attack, HostileWorld

CONFLICT = 5  # the exit code
LIE_SHARE = 0.15  # of the pieces of replies
HEADER_END = b"\r\n\r\n"
KEPT, RECORDS = "kept", 200  # records of an append: enough to close a segment
GC = (("gc", "--older-than", "0ms"), ("gc", "--delete", "--yes", "--older-than", "0ms"))  # list, then delete
READS = (
    ("consume", "kept/0", "-o", "jsonl"),
    ("consume", "plain/0", "-o", "jsonl"),
    ("consume", "plain/1", "-o", "jsonl", "--remote"),
)
WORK = (("run", "--once"), ("compact", "newest", "--roll"), ("gc",))
LOOKS = (
    ("status", "--check"),
    ("plan",),
    ("verify", "--remote"),
    ("scrub",),
    ("doctor", "--no-probe"),
    ("cost", "show"),
)


class Lie(Enum):
    """How a reply of the server is changed."""

    LOST = "lost"
    FLIP = "flip"
    MISSING = "missing"


class LyingGate(Gate):
    """A gate that changes replies of connections opened while a lie is set."""

    def __init__(self, port: int) -> None:
        self._lie: Lie | None = None
        self._rng = random.Random(0)
        super().__init__(port)

    @contextmanager
    def lying(self, lie: Lie, rng: random.Random) -> Iterator[None]:
        self._rng, self._lie = rng, lie
        try:
            yield
        finally:
            self._lie = None

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        lie, is_reply = self._lie, source.getpeername()[1] == self._server
        if lie is None or not is_reply:
            super()._pump(source, sink)
            return
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and (told := self._changed(data, lie)):
                sink.sendall(told)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _changed(self, data: bytes, lie: Lie) -> bytes:
        """The bytes that the client gets for a piece; empty cuts the connection."""
        if self._rng.random() > LIE_SHARE:
            return data
        match lie:
            case Lie.LOST:
                return b""
            case Lie.MISSING:
                return data.replace(b"HTTP/1.1 200", b"HTTP/1.1 404", 1) if data.startswith(b"HTTP/") else data
            case Lie.FLIP:
                begin = data.find(HEADER_END) + len(HEADER_END) if data.startswith(b"HTTP/") else 0
                if begin >= len(data):
                    return data
                at = self._rng.randrange(begin, len(data))
                return data[:at] + bytes([data[at] ^ (1 << self._rng.randrange(8))]) + data[at + 1 :]


def dead_bucket(world: HostileWorld, rng: random.Random) -> Attack:
    """Run commands while the store does not answer; then let it answer again."""
    way = rng.choice((Way.REFUSED, Way.BUSY)) if world.is_s3 else Way.REFUSED
    with world.dead(way):
        answers, told = _at_work(world, rng, shuffled=3)
    return _after(f"dead bucket, {way.name.lower()}", answers, told)


def lying_store(world: HostileWorld, rng: random.Random) -> Attack:
    """Run commands while the store returns false replies.

    Afterwards the store works again. A bucket in a folder is dead instead.
    """
    if world.gate is None:
        return dead_bucket(world, rng)
    lie = rng.choice(tuple(Lie)) if world.is_s3 else Lie.LOST
    with world.gate.lying(lie, random.Random(rng.random())):
        answers, told = _at_work(world, rng, shuffled=5)
    return _after(f"lies, {lie.value}", answers, told)


def lost_bucket(world: HostileWorld, rng: random.Random) -> Attack:
    """Delete the bucket itself, or its folder."""
    from hostile_world import Attack

    world.remove_bucket()
    return Attack(what="delete the bucket itself")


def two_owners(world: HostileWorld, rng: random.Random) -> Attack:
    """Two data directories with the same topics work on one bucket at the same time."""
    second = world.home / "second"
    shutil.rmtree(second, ignore_errors=True)
    second.mkdir()
    shutil.copytree(world.data, second / "data")
    shutil.copy(world.home / "tiered.toml", second / "tiered.toml")
    found: dict[str, tuple[list[Answer], list[str]]] = {}

    def own(name: str, home: Path, seed: float) -> None:
        found[name] = _at_work(world, random.Random(seed), home=home, name=name, shuffled=4)

    threads = [Thread(target=own, args=(name, home, rng.random())) for name, home in (("a", world.home), ("b", second))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 2, "a thread ended early"
    last = owned(world, home=second)
    complaints = unread(last, found["b"][1]) if last.code == 0 else []
    answers = [*found["a"][0], *found["b"][0], last]
    return _after("two owners", answers, found["a"][1], complaints=complaints)


ATTACKS: tuple[tuple[int, Callable[[HostileWorld, random.Random], Attack]], ...] = (
    (2, dead_bucket),
    (3, lying_store),
    (1, lost_bucket),
    (3, two_owners),
)


def owned(world: HostileWorld, home: Path | None = None) -> Answer:
    """The records of kept/0 in this directory. Of a diverged log, the records of the local tier."""
    answer = world.run(*READS[0], home=home)
    return world.run(*READS[0], "--local", home=home) if answer.code == CONFLICT else answer


def unread(answer: Answer, told: list[str]) -> list[str]:
    """A complaint when a command with exit code 0 did not read every acknowledged value."""
    values = {json.loads(line)["value"] for line in answer.out.splitlines()}
    lost = [each for each in told if each not in values]
    return [f"{' '.join(answer.words)}: {len(lost)} acknowledged records lost, first {lost[0]!r}"] if lost else []


def _at_work(
    world: HostileWorld, rng: random.Random, *, shuffled: int, home: Path | None = None, name: str = "a"
) -> tuple[list[Answer], list[str]]:
    """Run a drawn mix of commands; return their answers and the acknowledged values."""
    answers, told = [], []
    for at, words in enumerate(
        [*rng.sample((*READS, *LOOKS), 3), *rng.sample((*WORK, ("append",), ("append",)), shuffled)]
    ):
        if words == ("append",):
            values = [f"{name} {at} {n} while it lasts" for n in range(RECORDS)]
            lines = "".join(f"k{n}:{value}\n" for n, value in enumerate(values))
            answers.append(world.run("append", KEPT, "-", "-K", ":", stdin=lines, home=home))
            told += values if answers[-1].code == 0 else []
        elif words == ("gc",):
            answers += [world.run(*each, home=home) for each in GC]
        else:
            where = world.told_remote() if words[-1] == "--remote" and words[0] == "consume" else ()
            answers.append(world.run(*words, *where, home=home))
    return answers, told


def _after(what: str, answers: list[Answer], told: list[str], *, complaints: list[str] | None = None) -> Attack:
    from hostile_world import Attack

    return Attack(
        what=what, may_grow=True, answers=tuple(answers), acknowledged=tuple(told), complaints=tuple(complaints or ())
    )
