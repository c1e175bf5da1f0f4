"""Rounds that do not wait for their tasks, with drawn events during the tasks; then the checks.

The threads are real. A seed thus fixes the sequence of events, but not the step at which a task meets an event. At the
end every acknowledged record that retention and deletion left is readable, and the bucket is undamaged.

    python tests/crash/test_tasks_with_concurrent_work.py FIRST LAST      runs any number of stories
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import pytest

if __name__ == "__main__":
    HERE = Path(__file__).resolve().parent
    sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "support"), str(HERE.parents[1])]

from bucket_truth import assert_sound
from manager_world import HOUR, NOW, TIERED, World

from local.errors import Fenced, LogError, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from remote.store import UploadSource
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager

LIMIT_S = 60.0  # nothing takes so long; a story that would hang fails
DEEDS = ["append"] * 4 + ["tick"] * 6
DEEDS += ["roll", "delete records", "alter", "time passes", "close", "cut", "tasks end", "waiting tick"]
TOPICS: dict[str, dict[str, str]] = {"t": {}, "c": {"cleanup.policy": "compact"}, "o": {"retention.ms": "3d"}}


class Flaky:
    """A store that fails now and then, before or after the effect. Uploads last for some events."""

    def __init__(self, inner: MemoryStore, rng: random.Random, rate: float) -> None:
        self._inner, self._rng, self.rate = inner, rng, rate
        self._changed = threading.Condition()
        self._deeds = 0
        self._may_last = True

    def deed(self, *, waits: bool) -> None:
        """Start the next event; one that waits for tasks lets all uploads finish."""
        with self._changed:
            self._deeds += 1
            self._may_last = not waits
            self._changed.notify_all()

    def upload(self, key: str, source: UploadSource) -> None:
        with self._changed:
            due = self._deeds + self._rng.choice((0, 0, 1, 3, 6))
            assert self._changed.wait_for(lambda: self._deeds >= due or not self._may_last, LIMIT_S)
        self._inner.upload(key, source)
        with self._changed:
            due = self._deeds + self._rng.choice((0, 0, 2))
            assert self._changed.wait_for(lambda: self._deeds >= due or not self._may_last, LIMIT_S)

    def close(self) -> None:
        """The store outlives its managers."""

    def __getattr__(self, verb: str) -> object:
        real = getattr(self._inner, verb)
        if not callable(real):
            return real

        def call(*args: object, **more: object) -> object:
            fate = self._rng.random()
            if fate < self.rate / 2:
                raise Unavailable("lost on the way there", verb=verb)
            found = real(*args, **more)
            if fate < self.rate:
                raise Unavailable("lost on the way back", verb=verb)
            return found

        return call


class Story:
    """One disk, one bucket, a sequence of managers; the records sent, by topic and offset."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now_ms, self.world = random.Random(seed), NOW, World()
        self.store = Flaky(self.world.store, random.Random(~seed), 0.0)
        self.manager = self._open()
        for topic, own in TOPICS.items():
            properties = {**TIERED, "remote.log.delete.grace.ms": "1h", **own}
            self.manager.topics.create(topic, 1, properties, now_ms=self.now_ms)
        self.sent: dict[str, dict[int, Record]] = {topic: {} for topic in TOPICS}
        self.low = dict.fromkeys(TOPICS, 0)
        self.store.rate = self.rng.choice((0.0, 0.02))

    def _open(self) -> LogManager:
        return self.world.open(now_ms=self.now_ms, store=self.store, segment_bytes="1024")  # type: ignore[arg-type]

    def go_on(self, step: int) -> None:
        topic, deed = self.rng.choice(list(TOPICS)), self.rng.choice(DEEDS)
        self.store.deed(waits=deed in ("tasks end", "close", "waiting tick"))
        match deed:
            case "append":
                self._append(topic, step)
            case "tick":
                self.manager.tick(self.now_ms, waits=False)
            case "waiting tick":
                self.manager.tick(self.now_ms)
            case "roll":
                self.manager.partitions.roll(topic, now_ms=self.now_ms)
            case "delete records" if topic != "c":
                self._delete_records(topic)
            case "alter":
                self._alter(topic)
            case "time passes":
                self.now_ms += HOUR * self.rng.choice((1, 2, 9))
            case "tasks end":
                assert self.manager.maintenance.tasks.wait_idle(LIMIT_S)
            case "close":
                self._reopen(LIMIT_S)
            case "cut":
                self._reopen(0.0)
            case _:
                pass
        wrong = [each for each in self.manager.problems.values() if not isinstance(each, Unavailable | Fenced)]
        assert not wrong, wrong

    def _reopen(self, drain_s: float) -> None:
        self.manager.close(drain_s=drain_s)
        self.manager = self._open()

    def _append(self, topic: str, step: int) -> None:
        value = b"." * self.rng.randrange(60)
        records = [
            Record(b"k%d" % self.rng.randrange(20), b"%d %d%s" % (step, at, value), self.now_ms)
            for at in range(self.rng.randrange(1, 40))
        ]
        try:
            result = self.manager.append(topic, records, 0, now_ms=self.now_ms)[TopicPartition(topic, 0)]
        except (Unavailable, Fenced):
            return
        self.sent[topic] |= dict(enumerate(records, start=result.base_offset))

    def _delete_records(self, topic: str) -> None:
        name = TopicPartition(topic, 0)
        try:
            start, end = self.manager.reader().offsets(name)
            if end > start:
                at = self.rng.randrange(start, end)
                self.manager.maintenance.delete_records({name: at}, now_ms=self.now_ms)
                self.low[topic] = max(self.low[topic], at)
        except (Unavailable, Fenced, OffsetOutOfRange):
            return

    def _alter(self, topic: str) -> None:
        disabled = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
        enabled = {"remote.log.copy.disable": "", "local.retention.ms": self.rng.choice(("1ms", "-2"))}
        self.manager.topics.alter(topic, disabled if self.rng.random() < 0.3 else enabled, now_ms=self.now_ms)

    def end(self) -> None:
        """The store works, rounds of both kinds find no more work, and every record is readable."""
        self.store.rate = 0.0
        self.store.deed(waits=True)
        assert self.manager.maintenance.tasks.wait_idle(LIMIT_S)
        self._reopen(LIMIT_S)  # a manager that was fenced by the last commit of a killed one opens again
        for turn in range(40):
            is_busy = self.manager.tick(self.now_ms, waits=turn % 2 == 0)
            assert self.manager.maintenance.tasks.wait_idle(LIMIT_S)
            if not is_busy and turn % 2 == 0:
                break
        assert not self.manager.problems, self.manager.problems
        for topic in TOPICS:
            self._check(topic)
        self.manager.close()
        assert_sound(self.world.store)

    def _check(self, topic: str) -> None:
        name = TopicPartition(topic, 0)
        start, end = self.manager.reader().offsets(name)
        assert start >= self.low[topic]
        found = {each.offset: (each.key, each.value) for each in self.manager.reader().records(name, start, end)}
        wanted = {at: (each.key, each.value) for at, each in self.sent[topic].items() if at >= start}
        if topic == "c":
            newest = {key: at for at, (key, _) in sorted(wanted.items())}
            assert found.items() <= wanted.items()
            assert set(newest.values()) <= set(found), "the newest record of a key is lost"
        else:
            assert found == wanted


def tell(seed: int, deeds: int = 60) -> None:
    """Run one story. Raises AssertionError with the seed."""
    story = Story(seed)
    try:
        for step in range(deeds):
            story.go_on(step)
        story.end()
    except (AssertionError, LogError) as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_rounds_without_waiting_lose_no_record_under_drawn_events(first: int) -> None:
    for seed in range(first, first + 6):
        tell(seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        tell(number)
    print("sound")
