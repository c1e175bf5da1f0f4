"""Administration during a race: commands of the project, and Kafka's own tools, one after the other in two threads.

A command that runs while the node serves from its beginning to its end must succeed, unless the store gives no reply
before the deadline. Any other may fail: the state of its topic is then the old or the new one, and the topic is left
alone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from racing_clients import GROUP, Groups, Sent, number_of
from serve_world import LIMIT_S, PARTITIONS, World

JAVA_GROUP = "java-readers"
TOPICS, CONFIGS = "org.apache.kafka.tools.TopicCommand", "kafka.admin.ConfigCommand"
GET_OFFSETS, DELETE_RECORDS = "org.apache.kafka.tools.GetOffsetShell", "org.apache.kafka.tools.DeleteRecordsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER, CONSUMER = "org.apache.kafka.tools.VerifiableProducer", "org.apache.kafka.tools.VerifiableConsumer"
State = tuple[int, str]  # partitions, retention.ms
# The S3 server of the race changes one object at a time, so on a busy machine some wait too long.
UNAVAILABLE, NO_REPLY = 6, "no reply before the deadline"


@dataclass
class Topics:
    """Topics that one thread creates, alters and deletes, and their possible states. None: there is no such topic."""

    prefix: str
    possible: dict[str, list[State | None]] = field(default_factory=dict)
    usable: list[str] = field(default_factory=list)
    count: int = 0

    def new(self) -> str:
        self.count += 1
        return f"{self.prefix}-{self.count}"

    def change(self, name: str, state: State | None, is_done: bool) -> None:
        before = self.possible.get(name, [None])
        self.possible[name] = [state] if is_done else [*before, state]
        if name in self.usable:
            self.usable.remove(name)
        if is_done and state is not None:
            self.usable.append(name)

    def state(self, name: str) -> State:
        state = self.possible[name][0]
        assert state is not None
        return state


@dataclass
class Trimmed:
    """Deleted records of a topic by partition: `floor` is acknowledged, `limit` the highest offset asked for."""

    sent: Sent
    floor: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    limit: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def offset(self, partition: int, share: float) -> int:
        """An offset to delete up to: at least one acknowledged record stays."""
        low = self.limit[partition]
        offset = low + int(share * max(0, self.sent.acked[partition] - 1 - low))
        self.limit[partition] = max(low, offset)
        return offset

    def deleted(self, partition: int, offset: int) -> None:
        self.floor[partition] = max(self.floor[partition], offset)


class Commands:
    """Commands of the project. `lines`: for each `append` its count of lines, and the acknowledged count."""

    def __init__(self, world: World, trimmed: Trimmed) -> None:
        self._world, self._race, self._trimmed = world, world.race, trimmed
        self._rng = world.race.random("commands")
        self.topics = Topics("tmp")
        self.lines: list[tuple[int, int]] = []
        self.paused: set[str] = set()

    def work(self) -> None:
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._append, 6),
            (self._create, 3),
            (self._alter, 2),
            (self._grow, 2),
            (self._delete, 2),
            (self._trim, 3),
            (lambda: self._run("compact", "latest", "--roll"), 2),
            (self._pause, 2),
            (lambda: self._run("group", "list", "-o", "json"), 2),
            (lambda: self._run("group", "describe", GROUP, "-o", "json"), 1),
            (lambda: self._run("topic", "list", "-o", "json"), 1),
            (lambda: self._run("get-offsets", "-o", "json"), 1),
            (lambda: self._run("topic", "describe", "lines", "-o", "json"), 1),
        )
        while self._race.pause(self._rng.uniform(0, 0.5)):
            (action,) = self._rng.choices([each for each, _ in actions], [weight for _, weight in actions])
            action()

    def _run(self, *words: str, stdin: str | None = None) -> bool:
        """Whether the command is acknowledged."""
        begun_s = time.monotonic()
        done = self._world.tiered(*words, stdin=stdin)
        self._race.count("commands" if not done.returncode else f"commands that ended with {done.returncode}")
        is_silent = done.returncode == UNAVAILABLE and NO_REPLY in done.stderr
        if done.returncode and not is_silent and self._world.node.was_up(begun_s):
            self._race.broken(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-600:]}")
        if "Traceback" in done.stderr:
            self._race.broken(f"{' '.join(words)}: {done.stderr[-2000:]}")
        self.said = done.stderr
        return not done.returncode

    def _append(self) -> None:
        number, count = len(self.lines), self._rng.randint(1, 2000)
        lines = "".join(f"{number} {at} {'.' * 80}\n" for at in range(count))
        is_done = self._run("append", "lines/0", "-", "--batch", "200", stdin=lines)
        counted = self.said.partition("appended before the error: records=")[2].split()
        self.lines.append((count, count if is_done else int(counted[0].rstrip(",")) if counted else 0))

    def _create(self) -> None:
        name, state = self.topics.new(), (self._rng.randint(1, 3), str(self._rng.randint(1, 9) * 10**8))
        settings = ("-p", str(state[0]), "-X", f"retention.ms={state[1]}")
        self.topics.change(name, state, self._run("topic", "create", name, *settings))

    def _alter(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            state = self.topics.state(name)[0], str(self._rng.randint(1, 9) * 10**8)
            self.topics.change(name, state, self._run("topic", "alter", name, "-X", f"retention.ms={state[1]}"))

    def _grow(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            state = self.topics.state(name)[0] + 1, self.topics.state(name)[1]
            self.topics.change(name, state, self._run("topic", "add-partitions", name, str(state[0])))

    def _delete(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            self.topics.change(name, None, self._run("topic", "delete", name, "--yes"))

    def _trim(self) -> None:
        offset = self._trimmed.offset(0, self._rng.random())
        if self._run("delete-records", "trimmed/0", "--before", str(offset), "--yes"):
            self._trimmed.deleted(0, offset)

    def _pause(self) -> None:
        if self.paused and self._rng.random() < 0.6:
            self._run("resume", self.paused.pop())
        else:
            topic = self._rng.choice(("lines", "p-aiokafka", "latest"))
            self.paused.add(topic)
            self._run("pause", topic)


class Java:
    """Kafka's own tools: short ones one after the other, a verifiable producer and a consumer for the whole race."""

    def __init__(self, kafka: Any, world: World, trimmed: Trimmed, groups: Groups, home: Path) -> None:
        self._kafka, self._world, self._race, self._trimmed = kafka, world, world.race, trimmed
        self._groups, self._home = groups, home
        self._rng = world.race.random("java")
        self.topics = Topics("java")
        self._long = {
            "producer": self._start("producer", PRODUCER, "--topic", "verified", "--throughput", "100", "--acks", "-1"),
            "consumer": self._start(
                "consumer", CONSUMER, "--topic", "p-kafka-python", "--group-id", JAVA_GROUP, "--session-timeout", "6000"
            ),
        }

    def _words(self, tool: str, *words: str) -> list[str]:
        address = self._world.node.address
        return self._kafka.command("-Xmx128m", tool, "--bootstrap-server", address, *words)

    def _start(self, name: str, tool: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._home / f"java-{name}.out").open("wb") as out, (self._home / f"java-{name}.err").open("wb") as err:
            return subprocess.Popen(self._words(tool, *words), stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def end(self) -> None:
        for name, process in self._long.items():
            if process.poll() is not None:
                err = (self._home / f"java-{name}.err").read_text()[-800:]
                self._race.broken(f"the verifiable {name} ended with {process.returncode}: {err}")
                continue
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)

    def close(self) -> None:
        for process in self._long.values():
            process.kill()
            process.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self._home / f"java-{name}.out").read_text().splitlines()
        return [json.loads(each) for each in lines if each.startswith("{") and each.endswith("}")]

    def acked(self) -> dict[tuple[int, int], str]:
        """The value by partition and offset of each record that the verifiable producer reports as sent."""
        sent = [each for each in self.events("producer") if each["name"] == "producer_send_success"]
        self._race.count("records acknowledged to Java", len(sent))
        return {(each["partition"], each["offset"]): each["value"] for each in sent}

    def read(self) -> None:
        """Add what the verifiable consumer received and committed."""
        for event in self.events("consumer"):
            if event["name"] == "records_consumed":
                for each in event["partitions"]:
                    offsets = range(each["minOffset"], each["maxOffset"] + 1)
                    if len(offsets) != each["count"]:
                        self._race.broken(f"the verifiable consumer skipped records: {each}")
                    self._groups.received[JAVA_GROUP, each["topic"], each["partition"]].update(offsets)
                    self._race.count("records consumed by Java", each["count"])
            elif event["name"] == "offsets_committed" and event["success"]:
                for each in event["offsets"]:
                    self._groups.commit((JAVA_GROUP, each["topic"], each["partition"]), each["offset"])

    def work(self) -> None:
        actions: tuple[tuple[Callable[[], None], int], ...] = (
            (self._create, 3),
            (self._alter, 2),
            (self._grow, 2),
            (self._delete, 2),
            (self._trim, 2),
            (lambda: self._run(TOPICS, "--describe"), 1),
            (lambda: self._run(GET_OFFSETS, "--topic", "p-.*"), 1),
            (lambda: self._run(GROUPS, "--describe", "--group", GROUP), 1),
            (lambda: self._run(GROUPS, "--list"), 1),
        )
        while self._race.pause(self._rng.uniform(0, 1)):
            (action,) = self._rng.choices([each for each, _ in actions], [weight for _, weight in actions])
            action()

    def _run(self, tool: str, *words: str) -> bool:
        begun_s = time.monotonic()
        command = self._words(tool, *words)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        self._race.count("Java tools" if not done.returncode else "Java tools that failed")
        if done.returncode and self._world.node.was_up(begun_s):
            said = done.stdout[-300:] + done.stderr[-600:]
            self._race.broken(f"{tool.rpartition('.')[2]} {' '.join(words)} ended with {done.returncode}: {said}")
        # A tool that succeeds after a kill may have repeated its request: then the first one was done.
        return not done.returncode

    def _create(self) -> None:
        name, state = self.topics.new(), (self._rng.randint(1, 3), str(self._rng.randint(1, 9) * 10**8))
        words = ("--partitions", str(state[0]), "--replication-factor", "1", "--config", f"retention.ms={state[1]}")
        self.topics.change(name, state, self._run(TOPICS, "--create", "--topic", name, *words))

    def _alter(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            state = self.topics.state(name)[0], str(self._rng.randint(1, 9) * 10**8)
            words = ("--entity-type", "topics", "--entity-name", name, "--add-config", f"retention.ms={state[1]}")
            self.topics.change(name, state, self._run(CONFIGS, "--alter", *words))

    def _grow(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            state = self.topics.state(name)[0] + 1, self.topics.state(name)[1]
            words = ("--alter", "--topic", name, "--partitions", str(state[0]))
            self.topics.change(name, state, self._run(TOPICS, *words))

    def _delete(self) -> None:
        if self.topics.usable:
            name = self._rng.choice(self.topics.usable)
            self.topics.change(name, None, self._run(TOPICS, "--delete", "--topic", name))

    def _trim(self) -> None:
        offset = self._trimmed.offset(1, self._rng.random())
        place = self._home / "offsets.json"
        wanted = {"topic": "trimmed", "partition": 1, "offset": offset}
        place.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        if self._run(DELETE_RECORDS, "--offset-json-file", str(place)):
            self._trimmed.deleted(1, offset)


def missing_lines(lines: list[tuple[int, int]], found: list[bytes | None]) -> str | None:
    """The failed expectation about appended lines, if any: each append is whole, or its first lines and no others."""
    by_append: dict[int, list[int]] = defaultdict(list)
    for each in found:
        number, at = (each or b"").split()[:2]
        by_append[int(number)].append(int(at))
    order = [number_of(each) for each in found]
    if order != sorted(order):
        return "lines: the appends are out of order"
    for number, (count, acked) in enumerate(lines):
        own = by_append.pop(number, [])
        if own != list(range(len(own))) or not acked <= len(own) <= count:
            return f"lines: append {number} of {count} lines has {len(own)}, {acked} are acknowledged"
    return f"lines: unknown appends {list(by_append)[:5]}" if by_append else None
