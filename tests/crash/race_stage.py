"""The stage of a race: one baton among actors, virtual time, delayed requests, and processes that die.

Each actor runs its real code in a thread of its own. It stops before and after every call to the store, and at some
effects of its disk; the seed decides which actor continues. A *life* is one process of an actor. When the seed kills it
in the middle of a call, no later effect of the process reaches the store or the disk.

Helper threads of the code (reading ahead) have no baton: their requests to the store fail.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from disk_model import ModelDisk
from race_scenes import SceneOfRace
from race_truth import Truth

from local.errors import LogError, Unavailable
from local.names import CLEANER_HISTORY
from remote.store import Body, GetRange, ObjectInfo, UploadSource, read_if_there
from remote.store.memory_store import MemoryStore

NOW = 1_800_000_000_000
HOUR = 3_600_000
DEEDS = (
    "delete",
    "put meta/pin",
    "create meta/head",
    "create meta/gc",
)  # sleeps right before these do most harm


PATIENCE = 60  # seconds; a stopped process does not count as hanging


class Killed(BaseException):
    """The race is over for this actor."""


class ProcessDied(BaseException):
    """This process ended here, in the middle of its work; its actor continues with another process."""


class Actor:
    """One machine or reader; its body runs only while it holds the baton."""

    def __init__(self, race: Race, name: str, body: Callable[[Actor], None], weight: int) -> None:
        self.race, self.name, self.weight = race, name, weight
        self.rng = random.Random(f"{race.seed} {name}")
        self.is_dying = self.is_over = False
        self.failure: BaseException | None = None
        self.frozen_until = 0
        self.lives = count()
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()

    def _run(self, body: Callable[[Actor], None]) -> None:
        self._go.acquire()
        try:
            body(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - reported by the race
            self.failure = error
        self.is_over = True
        self._back.release()

    def step(self, what: str) -> None:
        """Give the baton away until the seed returns it. Raises Killed when the race is over."""
        if self.is_dying:
            raise Killed
        self.race.events.append(f"{self.name} {what}")
        self._back.release()
        self._go.acquire()
        if self.is_dying:
            raise Killed

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the actor's own."""
        return threading.current_thread() is self._thread

    def run_a_step(self) -> None:
        self._go.release()
        if not any(self._back.acquire(timeout=1) for _ in range(PATIENCE)):
            raise AssertionError(f"{self.name} hangs after {self.race.events[-1]}")
        if self.failure is not None:
            raise self.failure


class Race:
    """The bucket, the clock, the baton, and the truth."""

    def __init__(self, seed: int, scene: SceneOfRace) -> None:
        self.seed = seed
        self.scene = scene
        self.rng = random.Random(seed)
        self.now_ms = self.began_ms = NOW
        self.steps = 0
        self.events: list[str] = []
        self.actors: list[Actor] = []
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.inner = MemoryStore("memory://b", now_ms=lambda: self.now_ms)
        self.truth = Truth(self.inner, lambda: self.now_ms, self.scene)
        self.forks: list[Truth] = []
        self.trouble = self.rng.choice((0.0, 0.02, 0.1))
        self.kills = self.scene.kills

    def truth_of(self, key: str) -> Truth:
        """The truth of the partition of an object; unknown objects count for the first partition."""
        return next((each for each in self.forks if key.startswith(each.prefix)), self.truth)

    def spawn(self, name: str, body: Callable[[Actor], None], weight: int = 1) -> None:
        """Add an actor; `weight` is how often it gets the baton, compared with others."""
        self.actors.append(Actor(self, name, body, weight))

    def run(self) -> None:
        """Run until every actor is done; actors without an end of their own check `is_ending`."""
        current = None
        try:
            while alive := [each for each in self.actors if not each.is_over]:
                self.steps += 1
                self._deliver()
                if self.rng.random() < self.scene.jumps:
                    self.now_ms += self.rng.choice((1000, 60_000, HOUR, 2 * HOUR))
                ready = [each for each in alive if each.frozen_until <= self.steps] or alive
                if current not in ready or self.rng.random() < 0.35:
                    if current is not None and self.rng.random() < 0.2:
                        current.frozen_until = self.steps + self.rng.randrange(5, 80)
                    (current,) = self.rng.choices(ready, [each.weight for each in ready])
                assert current is not None
                current.run_a_step()
        finally:
            for each in self.actors:
                while not each.is_over:
                    each.is_dying = True
                    each._go.release()
                    each._back.acquire()
        self._deliver(everything=True)

    @property
    def is_ending(self) -> bool:
        return self.steps > self.scene.steps

    def _deliver(self, *, everything: bool = False) -> None:
        due = [effect for when, effect in self.late if everything or when <= self.steps]
        self.late = [each for each in self.late if not everything and each[0] > self.steps]
        for effect in due:
            with suppress(LogError):
                effect()


class Life:
    """One process: whether it still lives, and the disk that it holds."""

    def __init__(
        self,
        actor: Actor,
        disk: ModelDisk | None = None,
        is_paused: Callable[[], bool] = lambda: False,
        may_upload: Callable[[], bool] = lambda: True,
    ) -> None:
        self.actor, self.disk, self.is_paused, self.may_upload = actor, disk, is_paused, may_upload
        self.is_dead = False
        self._number = next(actor.lives)
        self._effects = Counter[str]()

    def may_die(self, rate: float) -> bool:
        return self.actor.rng.random() < rate

    def die(self) -> None:
        """End this process and raise ProcessDied; the disk and the store ignore it from now on."""
        self.is_dead = True
        if self.disk is not None:
            self.disk.is_gone = True
        self.actor.race.events.append(f"{self.actor.name} is killed")
        raise ProcessDied

    def at_disk(self) -> None:
        """Decide after an effect on the disk whether the process stops or dies.

        The decision is drawn from the name and the count of the effect, not from the actor's sequence. A new file in
        the product thus shifts no other draw, and the seeds keep their schedules. The size of the cleaner's history is
        left out: its lines hold measured times.
        """
        assert self.disk is not None, "the disk calls this"
        what = self.disk.journal[-1]
        if CLEANER_HISTORY in what:
            what = re.sub(r" \d+$", "", what)
        self._effects[what] += 1
        drawn = f"{self.actor.race.seed} {self.actor.name} {self._number} {what} {self._effects[what]}"
        rng = random.Random(drawn)
        if rng.random() < 0.05:
            self.actor.step("disk")
        if rng.random() < self.actor.race.kills / 4:
            self.die()


class GatedStore:
    """The access of one process to the bucket: a step before and after each call, and the drawn faults."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.actor, self.race = life.actor, life.actor.race

    @property
    def url(self) -> str:
        return self.race.inner.url

    def close(self) -> None:
        pass

    def _do(self, what: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        if not self.actor.is_here:
            # A helper thread has no baton: it would run in parallel to its actor, and would wait for ever after the
            # actor ended.
            raise Unavailable("lost on the way, asked beside the actor", what=what)
        if self.life.is_dead:
            raise ProcessDied
        if what.startswith(DEEDS) and self.actor.rng.random() < self.race.scene.sleeps:
            self.actor.frozen_until = self.race.steps + self.actor.rng.randrange(self.race.scene.sleep_max)
        self.actor.step(what)
        rng, race = self.actor.rng, self.race
        if self.life.may_die(race.kills):
            if rng.random() < 0.5:
                self._at_last(effect, writes=writes)
            self.life.die()
        fate = rng.random() / race.trouble if race.trouble else 9.0
        trouble = Unavailable("lost on the way", what=what)
        if fate < 0.3:
            raise trouble
        if writes and fate < 0.6:
            effect()
            raise trouble
        if writes and fate < 1.0:
            race.late.append((race.steps + rng.randrange(1, 120), effect))
            raise trouble
        found = effect()
        if rng.random() < 0.5:
            self.actor.step(f"{what} done")
        return found

    def _at_last(self, effect: Callable[[], Any], *, writes: bool) -> None:
        """The last request of a dying process: it happens now, or much later."""
        if not writes:
            return
        if self.actor.rng.random() < 0.3:
            self.race.late.append((self.race.steps + self.actor.rng.randrange(1, 120), effect))
        else:
            with suppress(LogError):
                effect()

    def _put(self, key: str, body: bytes, *, if_absent: bool) -> None:
        inner = self.race.inner
        was_there = key in inner._objects
        if if_absent:
            inner.put_if_absent(key, body)
        elif was_there and inner.get(key) == body:
            return  # a request that arrived twice
        else:
            inner.put(key, body)
        self.race.truth_of(key).after_put(key, was_there, self.life)

    def put(self, key: str, body: Body) -> None:
        self._do(f"put {_short(key)}", partial(self._put, key, bytes(body), if_absent=False), writes=True)

    def put_if_absent(self, key: str, body: Body) -> None:
        self._do(f"create {_short(key)}", partial(self._put, key, bytes(body), if_absent=True), writes=True)

    def upload(self, key: str, source: UploadSource) -> None:
        if "/data/" in key or "/view/" in key:
            assert not self.life.is_paused(), f"an upload was sent while uploads are paused: {key}"
            assert self.life.may_upload(), f"an upload was sent in a state that forbids it: {key}"
        scratch = MemoryStore()
        scratch.upload("x", source)
        self._do(f"upload {_short(key)}", partial(self._put, key, scratch.get("x"), if_absent=False), writes=True)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)

        def effect() -> None:
            for key in wanted:
                self.race.truth_of(key).before_delete([key], self.life)
                needed = [fork.prefix for fork in self.race.forks if fork.needs(key)]
                assert not needed, f"an object that a fork names was deleted: {key} of {needed}"
            self.race.inner.delete(wanted)

        self._do(f"delete {len(wanted)}", effect, writes=True)

    def get(self, key: str) -> bytes:
        found: bytes = self._do(f"get {_short(key)}", lambda: self.race.inner.get(key))
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        found: bytes = self._do(f"get {_short(key)}", lambda: self.race.inner.get_range(key, start, length))
        return found

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        found: Sequence[Body] = self._do(f"get {_short(key)}", lambda: self.race.inner.get_ranges(key, ranges))
        return found

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        """Read each at a moment of its own, as concurrent requests may be answered."""
        return [read_if_there(self, each) for each in ranges]

    def head(self, key: str) -> ObjectInfo:
        found: ObjectInfo = self._do(f"head {_short(key)}", lambda: self.race.inner.head(key))
        return found

    def list_prefixes(self, prefix: str) -> list[str]:
        found: list[str] = self._do("list prefixes", lambda: self.race.inner.list_prefixes(prefix))
        return found

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = self._do("list", lambda: list(self.race.inner.list(prefix, start_after=start_after)))
        return iter(found)


def _short(key: str) -> str:
    """A key without the parts that differ from run to run."""
    tail = key.split("/", 2)[-1]
    if "/head/" in tail or "/boundary/" in tail:
        return tail
    return tail.rpartition("-")[0] if tail.startswith(("data/", "view/", "meta/spill/")) else tail[:9]
